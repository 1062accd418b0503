"""The log of a partition's groups, as their coordinator has it: what was read of it, what is on its way into it, and
the snapshots that bound it.

| event                              | what follows                                                                    |
| ---------------------------------- | ------------------------------------------------------------------------------- |
| the replica leads, anew            | it is read, once it is known what of it is committed (K1)                       |
| all is read                        | it serves                                                                       |
| changes are taken                  | they count at once; they are appended together with what comes at the same time |
| nobody waits for them              | they wait UNAWAITED_MS for others: 1,000 commits/s are some 80 appends          |
| they, and all before, are stored   | whoever waits for that is called                                                |
| an append is refused               | nobody knows any longer what is in the log: it is read anew                     |
| the log has grown                  | a snapshot, a few groups at a time; once that is committed, the log forgets     |
|                                    | what is before it                                                               |
| the replica leads no longer        | whoever waits is refused, and all is forgotten                                  |

All is done on the broker's loop. Whoever calls a method that takes a replica has its partition.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import msgspec

from spark_replication.core.groups.group import Change, Groups, Row, SnapshotBegun, SnapshotEnded
from spark_replication.core.replica.producers import OffsetSpan
from spark_replication.decoding import UNDECODABLE, from_json
from spark_replication.engine.replica.replica_loop import ReplicaLoop
from spark_replication.errors import CorruptLog, NotCoordinator, ReplicationError
from spark_replication.model import Offset
from spark_replication.ports import GroupRows, Records

LOAD_BYTES = 1 << 20
SNAPSHOT_ROWS_MIN = 1_000  # between the beginnings of two snapshots
SNAPSHOT_ROWS_TIMES = 4  # the rows of the one before
SNAPSHOT_GROUPS = 20  # that one step of it writes
UNAWAITED_MS = 200.0  # so long changes that nobody waits for are gathered

log = logging.getLogger(__name__)

_encode = msgspec.json.Encoder().encode


class ReadRows(NamedTuple):
    """A part of the log."""

    rows: list[tuple[Offset, Row]]
    next_offset: Offset


#: Reads what is perhaps on the disk, elsewhere, and calls back on the loop.
Load = Callable[[Callable[[], ReadRows], Callable[[ReadRows | ReplicationError], None]], None]
#: Has the loop call this with the partition in hand, in so many ms; 0: once it has taken what has come.
Soon = Callable[[Callable[[ReplicaLoop], None], float], None]
#: Called once what was decided is committed, or with the error.
Then = Callable[[ReplicationError | None], None]


class _Snapshot(NamedTuple):
    name: str
    #: Where it begins in the log.
    begins: Offset
    #: The groups that are to be written, the next one last.
    left: list[str]


class _Batch:
    """What was decided together, on its way to being committed."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.then: list[Then] = []
        self.left = 0  # appends that are not committed

    def ended(self, error: ReplicationError | None) -> None:
        then, self.then = self.then, []
        for call in then:
            call(error)


class GroupLog:
    def __init__(
        self,
        rows: GroupRows,
        load: Load,
        soon: Soon,
        now_ms: Callable[[], int],
        *,
        began: Callable[[], None],
        ended: Callable[[], None],
        snapshot_rows_min: int = SNAPSHOT_ROWS_MIN,
    ) -> None:
        """began: called once it serves. ended: called before whoever waits is refused."""
        self._rows = rows
        self._load = load
        self._soon = soon
        self._now_ms = now_ms
        self._began = began
        self._ended = ended
        self._snapshot_rows_min = snapshot_rows_min
        self._forget()

    def _forget(self) -> None:
        #: Of the replica, while what is known here is of its log.
        self._leadership: object | None = None
        #: What was begun in an earlier life counts no longer.
        self._life = object()
        #: Also with what is not committed yet.
        self.groups = Groups()
        self.serves = False
        #: Why it cannot be read.
        self._trouble: ReplicationError | None = None
        self._read_to: Offset | None = None  # None: the reading has not begun
        self._is_reading = False
        #: Where a reading has failed of what is not damaged.
        self._doubted_at: Offset | None = None
        self._gathering = _Batch()
        #: How long the gathering lasts. None: nobody has said so yet.
        self._gathers_ms: float | None = None
        #: In the order of the log.
        self._uncommitted: list[_Batch] = []
        self._snapshot: _Snapshot | None = None
        #: Where the newest snapshot that ended begins, and how many rows it took.
        self._kept_from: Offset = 0
        self._kept_rows = 0
        self._has_whole = False
        #: Everything below it is in a snapshot that is committed.
        self._forgets_below: Offset | None = None

    # Leadership

    def check(self, replica: ReplicaLoop) -> None:
        """Raises NotCoordinator unless it serves, or what keeps it from being read. Begins to read it if the replica
        has begun to lead."""
        leadership = replica.leadership
        if leadership is None:
            self._end("another broker leads it, or nobody")
            raise NotCoordinator(f"this broker does not lead {replica.partition}: reload routes and retry")
        if self._leadership is not leadership:
            self._end("its leadership has begun anew")
            self._leadership = leadership
        if not self.serves:
            self._go_on_reading(replica)
        if self._trouble is not None:
            raise self._trouble
        if not self.serves:
            raise NotCoordinator(f"this broker is reading {replica.partition}, in which its groups are: retry")
        replica.check_append()

    def _end(self, why: str) -> None:
        waiting = [*self._uncommitted, self._gathering]
        self._forget()
        self._ended()
        error = NotCoordinator(
            f"the groups' log has gone elsewhere ({why}): reload routes and retry", maybe_written=True
        )
        for batch in waiting:
            batch.ended(error)

    def _go_on_reading(self, replica: ReplicaLoop) -> None:
        if self._is_reading or self._trouble is not None:
            return
        try:
            if replica.committed_end() < replica.log.log_end:
                return  # it was read before in this leadership: what it has written since is yet to be committed
            if self._read_to is None:
                self._read_to = replica.log.log_start
            if self._read_to >= replica.log.log_end:
                self._begin(replica)
                return
            found = replica.read(self._read_to, bytes_max=LOAD_BYTES, to=None)
        except ReplicationError as error:
            log.info("the groups of %s cannot be read yet: %s", replica.partition, error)
            return
        assert found is not None, "there is more below the end"
        self._is_reading = True
        self._load(partial(self._read, found), partial(self._has_read, self._life, found))

    def _read(self, found: Records) -> ReadRows:
        """On another thread."""
        rows = [(offset, _row(offset, text)) for offset, text in self._rows.decode(found.loaded())]
        return ReadRows(rows, found.next_offset)

    def _has_read(self, life: object, records: Records, found: ReadRows | ReplicationError) -> None:
        """Called without the partition: it only takes in what was read."""
        if self._life is not life:
            return
        if isinstance(found, ReplicationError):
            self._soon(partial(self._examine, life, records, found), 0.0)
            return
        self._is_reading = False
        for offset, row in found.rows:
            self._take_in(offset, row)
        self._read_to = found.next_offset
        self._soon(partial(self._read_on, life), 0.0)

    def _examine(self, life: object, records: Records, error: ReplicationError, replica: ReplicaLoop) -> None:
        """What cannot be read may be damaged on this disk: it is read again once it was mended. What is not damaged,
        and cannot be read twice, is an error of whoever asks."""
        if self._life is not life:
            return
        self._is_reading = False
        log.error("%s cannot be read: %s", replica.partition, error)
        try:
            replica.damage.require_none(records)
        except ReplicationError as damage:
            log.error("%s", damage)
            return
        self._trouble = error if self._doubted_at == self._read_to and not error.retriable else None
        self._doubted_at = self._read_to

    def _read_on(self, life: object, replica: ReplicaLoop) -> None:
        if self._life is life and self._leadership is replica.leadership:
            self._go_on_reading(replica)

    def _take_in(self, offset: Offset, row: Row) -> None:
        match row:
            case SnapshotBegun(snapshot=name):
                self._snapshot = _Snapshot(name, offset, [])
            case SnapshotEnded(snapshot=name):
                if self._snapshot is not None and self._snapshot.name == name:
                    self._has_whole = True
                    self._kept_from, self._kept_rows = self._snapshot.begins, offset - self._snapshot.begins
        self.groups.apply(row)

    def _begin(self, replica: ReplicaLoop) -> None:
        if replica.log.log_start and not self._has_whole:
            self._trouble = CorruptLog(
                f"{replica.partition} begins at {replica.log.log_start}, and has no whole snapshot after that: "
                "somebody has cut it, and its groups cannot be known. Delete the topic, and reset the groups"
            )
            log.error("%s", self._trouble)
            return
        self._snapshot = None
        self.serves = True
        log.info("coordinates %d groups of %s", len(self.groups.by_name), replica.partition)
        self._began()

    # Changes

    def take(self, changes: Sequence[Change]) -> None:
        for change in changes:
            self.groups.apply(change)
            self._gathering.rows.append(change)

    def once_committed(self, call: Then) -> None:
        """Call it once all that was taken so far is committed."""
        batch = self._gathering if self._gathering.rows or not self._uncommitted else self._uncommitted[-1]
        batch.then.append(call)

    def gather(self, *, is_awaited: bool = True) -> None:
        """Append what was taken once the loop has taken what has come with it, or what comes within UNAWAITED_MS: many
        requests cost one append."""
        if not (self._gathering.rows or self._gathering.then):
            return
        if not self._gathering.rows:  # all before it is committed
            batch, self._gathering = self._gathering, _Batch()
            batch.ended(None)
            return
        gathers_ms = 0.0 if is_awaited else UNAWAITED_MS
        if self._gathers_ms is None or gathers_ms < self._gathers_ms:
            self._gathers_ms = gathers_ms
            self._soon(partial(self._append_gathered, self._life, self._gathering), gathers_ms)

    def _append_gathered(self, life: object, batch: _Batch, replica: ReplicaLoop) -> None:
        if self._life is not life or self._gathering is not batch:  # somebody could not wait so long
            return
        if self._leadership is not replica.leadership:  # another may have written meanwhile, on other grounds
            self._end("its leadership is over")
            return
        self._gathering, self._gathers_ms = _Batch(), None
        self._uncommitted.append(batch)
        prepared = self._rows.encode([(getattr(row, "group", None), _encode(row)) for row in batch.rows])
        batch.left = len(prepared)
        now_ms = self._now_ms()
        try:
            for each in prepared:
                if self._life is life:  # else what came before it was refused already
                    told = partial(self._acknowledged, life, batch)
                    replica.produce(each, acks="all", now_ms=now_ms, acknowledge=told)
        except ReplicationError as error:  # what was taken is not in the log: all that is known here is too much
            log.warning("%s takes no changes of groups, and is read anew: %s", replica.partition, error)
            self._end(str(error))

    def _acknowledged(self, life: object, batch: _Batch, place: OffsetSpan | ReplicationError) -> None:
        if self._life is not life:
            return
        if isinstance(place, ReplicationError):
            self._end(str(place))
            return
        batch.left -= 1
        if not batch.left:
            self._uncommitted.remove(batch)
            batch.ended(None)

    # Snapshots

    def keep(self, replica: ReplicaLoop) -> None:
        """Forget what is before a whole snapshot. Do a step of the next one, if one is due."""
        if self._forgets_below is not None:
            replica.forget(self._forgets_below)
            self._forgets_below = None
        log_end = replica.log.log_end
        if self._snapshot is None:
            if log_end - self._kept_from < max(self._snapshot_rows_min, SNAPSHOT_ROWS_TIMES * self._kept_rows):
                return
            begins = log_end + len(self._gathering.rows)
            self._snapshot = _Snapshot(f"at-{begins}", begins, sorted(self.groups.by_name, reverse=True))
            self._gathering.rows.append(SnapshotBegun(snapshot=self._snapshot.name))
        snapshot = self._snapshot
        for _ in range(min(SNAPSHOT_GROUPS, len(snapshot.left))):
            group = self.groups.by_name.get(snapshot.left.pop())
            if group is not None:
                self._gathering.rows.append(group.kept())
        if not snapshot.left:
            self._snapshot = None
            self._gathering.rows.append(SnapshotEnded(snapshot=snapshot.name))
            self._kept_rows = log_end + len(self._gathering.rows) - snapshot.begins
            self._kept_from = snapshot.begins
            self.once_committed(partial(self._is_kept, snapshot.begins))

    def _is_kept(self, begins: Offset, error: ReplicationError | None) -> None:
        if error is None:
            self._forgets_below = begins


def _row(offset: Offset, text: str) -> Row:
    try:
        row: Row = from_json(text, cast(Any, Row))
    except UNDECODABLE as error:
        raise CorruptLog(f"row {offset} of the groups' log is no change of a group: {error}") from error
    return row

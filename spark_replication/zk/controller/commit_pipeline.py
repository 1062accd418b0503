"""The only way by which a controller writes: groups in, multi()s out, several in flight, one answer for each group.

Every multi() checks /controller_epoch at the version that this controller won, so none of a deposed controller can be
stored. After a rejected multi() nothing of it is stored; after a lost answer nobody knows. In both cases the deciding
nodes are read, and each group turns out to be stored, is refused, or is sent again. Sending again is safe at any time:
the conditions are in the multi().
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

from spark_replication.core.law.standing import SeenWrite, Standing, moved_on, standing
from spark_replication.core.law.unreadable import Unreadable
from spark_replication.core.law.writes import (
    Deposed,
    Group,
    GroupAnswer,
    Made,
    PartitionWrite,
    Refused,
    Stored,
    StoredAssignment,
    StoredPartition,
    TopicRemoval,
    TopicWrite,
)
from spark_replication.errors import CorruptState, Overloaded, ReplicationError, RequestTimedOut
from spark_replication.model import ABSENT, TopicPartition
from spark_replication.process.threads import Worker
from spark_replication.zk import paths
from spark_replication.zk.controller.batches import (
    Item,
    looks_at,
    made_by,
    multi_of,
    pack,
    paths_of,
    waves_of,
    written_path,
)
from spark_replication.zk.operations import (
    EXISTS,
    Check,
    Committed,
    Create,
    Delete,
    Node,
    Operation,
    Rejected,
    RejectionReason,
    UnreadNode,
)
from spark_replication.zk.reading import Reading, stored_assignment, stored_partition
from spark_replication.zk.session import ConnectionLost, MultiOutcome, ReadOutcome, Session, SessionLost

MULTIS_IN_FLIGHT_MAX = 8
COMMITS_WAITING_MAX = 10_000
# A multi() is rejected again only if its nodes changed between the read and the write.
ATTEMPTS_MAX = 20
# How many nodes below a node that is to go are removed at once. Only people make nodes there.
STRAYS_MAX = 500

# Stands for a node that is there and may not be read: no condition of ours holds for it.
NO_SUCH_VERSION = Node(b"", -2, 0, 0, 0)

Then = Callable[[list[GroupAnswer]], None]
log = logging.getLogger(__name__)


class _Deposed(Exception):
    """Nothing of this controller will be stored any more."""


class _When(NamedTuple):
    """When a multi() was stored."""

    zxid: int
    #: 0: not known.
    at_ms: int = 0


class _Commit(NamedTuple):
    """Groups to store."""

    items: list[Item]
    #: By the group's number. A group that no multi() can hold has its answer at once.
    answers: dict[int, GroupAnswer]
    then: Then
    group_count: int


class _Batch:
    """One multi() on its way."""

    __slots__ = ("attempt", "items", "made", "operations", "owners", "removed_topics")

    def __init__(self, items: Sequence[Item], epoch_check: Check, attempt: int = 0) -> None:
        planned = multi_of(items, epoch_check)
        self.items = list(items)
        self.attempt = attempt
        self.operations: list[Operation] = [operation for operation, _ in planned]
        #: The item of each operation; None for a shared check.
        self.owners: list[Item | None] = [item for _, item in planned]
        self.made: dict[str, Made] = {}
        self.removed_topics = [
            written_path(write) for item in items for write in item.group if isinstance(write, TopicRemoval)
        ]


class CommitPipeline:
    """Stores groups on a thread of its own."""

    def __init__(
        self,
        session: Session,
        epoch_version: int,
        on_deposed: Callable[[str], None],
        on_unreadable: Callable[[Unreadable], None],
    ) -> None:
        """on_deposed(reason): called once, on this pipeline's thread, when a write shows that another controller took
        over. on_unreadable: called if a node of a write cannot be read."""
        self._session = session
        self._epoch_check = Check(paths.CONTROLLER_EPOCH, epoch_version)
        self._on_deposed = on_deposed
        self._on_unreadable = on_unreadable
        self._lock = threading.Lock()
        self._deposed = False
        self._commits: queue.SimpleQueue[_Commit | None] = queue.SimpleQueue()
        self._answered: queue.SimpleQueue[tuple[_Batch, MultiOutcome | _When]] = queue.SimpleQueue()
        self.worker = Worker(self._run, "controller-commits")
        self.worker.start()

    def commit(self, groups: Sequence[Group], then: Then) -> None:
        """Call `then` once, on this pipeline's thread, or at once if nothing can be stored any more. It raises for no
        group: an error would end the controller for what one group holds."""
        commit = _Commit([], {}, then, len(groups))
        for number, group in enumerate(groups):
            try:
                commit.items.append(Item(number, group, self._session.root_bytes))
            except ReplicationError as error:
                log.error("%d writes are refused: %s", len(group), error)
                commit.answers[number] = Refused({}, unstorable=error)
        answers: list[GroupAnswer] = []
        with self._lock:
            if self._deposed:
                answers = [Deposed()] * len(groups)
            elif self._commits.qsize() >= COMMITS_WAITING_MAX:
                full = f"{COMMITS_WAITING_MAX} commits wait for ZooKeeper at {self._session.address}: retry later"
                answers = [Refused({}, unstorable=Overloaded(full))] * len(groups)
            else:
                self._commits.put(commit)
                return
        then(answers)

    def depose(self) -> bool:
        """Answer Deposed from now on; multi()s in flight are answered as ZooKeeper decides. False: it was deposed
        already."""
        with self._lock:
            if self._deposed:
                return False
            self._deposed = True
            self.worker.stop()
            self._commits.put(None)
            return True

    def _run(self) -> None:
        while (commit := self._commits.get()) is not None:
            try:
                if self._deposed:
                    raise _Deposed("it has ended")
                for wave in waves_of(commit.items):
                    self._store(wave, commit.answers)
            except _Deposed as reason:
                if self.depose():
                    self._on_deposed(str(reason))
            commit.then([commit.answers.get(number, Deposed()) for number in range(commit.group_count)])

    def _store(self, wave: Sequence[Item], answers: dict[int, GroupAnswer]) -> None:
        """Store a wave, until each of its items has an answer."""
        waiting = deque(_Batch(items, self._epoch_check) for items in pack(wave))
        in_flight = 0
        while waiting or in_flight:
            while waiting and in_flight < MULTIS_IN_FLIGHT_MAX:
                batch = waiting.popleft()
                self._session.commit(batch.operations, partial(self._take, batch))
                in_flight += 1
            batch, outcome = self._answered.get()
            try:
                if isinstance(outcome, Committed) and self._ask_when(batch, outcome):
                    continue
                in_flight -= 1
                again = self._settle(batch, outcome, answers)
            except _Deposed:
                self._drain(in_flight)
                raise
            if again is not None:
                waiting.appendleft(again)

    def _take(self, batch: _Batch, outcome: MultiOutcome) -> None:
        self._answered.put((batch, outcome))

    def _take_when(self, batch: _Batch, of_created: bool, outcome: ReadOutcome) -> None:  # noqa: FBT001 (in a partial)
        """Take the stat of a node that this multi() created (None: it is gone already), or of a removed node's
        parent."""
        if isinstance(outcome, ReplicationError):
            self._answered.put((batch, outcome))
        elif outcome is None:
            self._answered.put((batch, _When(0)))
        else:
            self._answered.put((batch, _of_created(outcome) if of_created else _When(outcome.children_zxid)))

    def _drain(self, in_flight: int) -> None:
        """Wait for the answers in flight, so that none of them is taken for one of the next commit."""
        for _ in range(in_flight):
            self._answered.get()

    def _ask_when(self, batch: _Batch, outcome: Committed) -> bool:
        """Whether a stat had to be asked for. ZooKeeper answers a SetData alone with its zxid. All operations of a
        multi() share one zxid: the stat of a created node has it, or that of a removed node's parent (M2)."""
        created = None
        when = _When(0)
        for operation, stored in zip(batch.operations, outcome.stored, strict=True):
            if stored is not None:
                batch.made[operation.path] = stored
                when = _When(stored.zxid, stored.at_ms)
            elif isinstance(operation, Create):
                batch.made[operation.path] = Made()
                created = operation.path
        batch.made.update(dict.fromkeys(batch.removed_topics, Made()))
        if when.zxid == 0 and (created is not None or batch.removed_topics):
            self._session.stat(created or paths.TOPICS, partial(self._take_when, batch, created is not None))
            return True
        self._put_when(batch, when)
        return False

    def _put_when(self, batch: _Batch, when: _When) -> None:
        for path, made in batch.made.items():
            if made.zxid == 0:
                batch.made[path] = Made(made.version, *when)

    def _settle(self, batch: _Batch, outcome: MultiOutcome | _When, answers: dict[int, GroupAnswer]) -> _Batch | None:
        """Answer what can be answered. Returns the rest, which is to be sent again."""
        match outcome:
            case Committed():
                self._answer_stored(batch, answers)
            case _When():
                self._put_when(batch, outcome)
                self._answer_stored(batch, answers)
            case Rejected(operation=0):
                raise _Deposed("another controller raised /controller_epoch")
            case Rejected(operation=place, reason=reason):
                cleared = reason is RejectionReason.NOT_EMPTY and self._clear_below(batch.operations[place].path)
                return self._sort_out(batch, batch.owners[place], answers, changed=cleared)
            case ConnectionLost():
                for item in batch.items:
                    item.unsure = True
                return self._sort_out(batch, None, answers)
            case SessionLost():
                raise _Deposed("the ZooKeeper session has ended")
            case ReplicationError():
                log.error("ZooKeeper failed a write of the controller, which steps down: %s", outcome)
                raise _Deposed(str(outcome)) from outcome
        return None

    def _answer_stored(self, batch: _Batch, answers: dict[int, GroupAnswer]) -> None:
        for item in batch.items:
            answers[item.number] = Stored(tuple(batch.made.get(written_path(write), Made()) for write in item.group))

    def _sort_out(
        self, batch: _Batch, culprit: Item | None, answers: dict[int, GroupAnswer], *, changed: bool = False
    ) -> _Batch | None:
        """Look at all groups of the multi(), not at the culprit alone: a broker's death makes hundreds of them
        conflict.

        changed: something was done about the rejection, so the next attempt may succeed.
        """
        nodes = self._read_all(dict.fromkeys(path for item in batch.items for path in paths_of(item)))
        self._look_at_met(batch, nodes)
        rest: list[Item] = []
        for item in batch.items:
            looks = looks_at(item, nodes)
            match standing(looks, is_lost=item.unsure):
                case Standing.STORED:
                    answers[item.number] = _found_stored(looks, nodes)
                case Standing.LOST:
                    answers[item.number] = _refused(item, nodes)
                case Standing.OPEN:
                    changed |= item.learn(nodes)
                    rest.append(item)
        stuck = len(rest) == len(batch.items) and not changed and culprit is not None
        if stuck and culprit is not None:
            # It was rejected for a reason that none of our conditions expresses.
            answers[culprit.number] = _refused(culprit, nodes)
            rest.remove(culprit)
        elif batch.attempt >= ATTEMPTS_MAX:
            answers.update({item.number: _refused(item, nodes) for item in rest})
            rest = []
        return _Batch(rest, self._epoch_check, batch.attempt + 1) if rest else None

    def _clear_below(self, path: str) -> bool:
        """Remove nodes that people made below a node that is to go. False: there are none.

        leaderAndISR nodes whose own removal failed with the rest are among them, which has the same result.
        """
        try:
            strays = list(islice(self._below(path), STRAYS_MAX))
            if not strays:
                return False
            log.warning("%s is to go, and has below it %s: removed", path, ", ".join(strays))
            outcome = self._session.commit_now((self._epoch_check, *(Delete(stray, EXISTS) for stray in strays)))
        except RequestTimedOut as error:
            log.warning("the controller waits for ZooKeeper: %s", error)
            return True
        except ReplicationError as error:
            raise _Deposed(f"ZooKeeper cannot be read: {error}") from error
        if isinstance(outcome, Rejected) and outcome.operation == 0:
            raise _Deposed("another controller raised /controller_epoch")
        return True

    def _below(self, path: str) -> Iterator[str]:
        """All nodes below, children before their parents, so that any number of the first ones can be removed."""
        for name in self._session.children_now(path):
            yield from self._below(f"{path}/{name}")
            yield f"{path}/{name}"

    def _look_at_met(self, batch: _Batch, nodes: Mapping[str, Node | None]) -> None:
        """Report nodes of this multi() that cannot be read: nobody decides about them from now on (Z1)."""
        writes = [write for item in batch.items for write in item.group]
        partitions = [write.partition for write in writes if isinstance(write, PartitionWrite)]
        read = Reading(self._session)
        read.stored({partition: nodes[paths.leader_and_isr(partition)] for partition in partitions})
        for write in writes:
            if isinstance(write, TopicWrite) and write.version != ABSENT:
                read.topic(write.topic, nodes[paths.topic(write.topic)])
        if read.unreadable.reasons:
            self._on_unreadable(read.unreadable)

    def _read_all(self, wanted: Iterable[str]) -> Mapping[str, Node | None]:
        """Read for as long as the session lives: without the nodes no group can be answered. A node that may not be
        read gets a version that none of our conditions names."""
        named = list(wanted)
        while True:
            try:
                found = self._session.read_each(named)
                return {
                    path: NO_SUCH_VERSION if isinstance(node, UnreadNode) else node
                    for path, node in zip(named, found, strict=True)
                }
            except RequestTimedOut as error:
                log.warning("the controller waits for ZooKeeper: %s", error)
            except SessionLost as error:
                raise _Deposed("the ZooKeeper session has ended") from error
            except ReplicationError as error:
                raise _Deposed(f"ZooKeeper cannot be read: {error}") from error


def _of_created(node: Node) -> _When:
    return _When(node.created_zxid, node.modified_ms if node.zxid == node.created_zxid else 0)


def _found_stored(looks: Sequence[SeenWrite], nodes: Mapping[str, Node | None]) -> Stored:
    read = {write.partition: _current(write.partition, nodes[written_path(write)]) for write in moved_on(looks)}
    newer = {partition: stored for partition, stored in read.items() if stored is not None}
    return Stored(made_by(looks, nodes), newer)


def _refused(item: Item, nodes: Mapping[str, Node | None]) -> Refused:
    partitions = [write.partition for write in item.group if isinstance(write, PartitionWrite)]
    topics = [write.topic for write in item.group if isinstance(write, TopicWrite)]
    changed = [write.partition for write in item.group if isinstance(write, PartitionWrite) and write.version != ABSENT]
    return Refused(
        {partition: _current(partition, nodes[paths.leader_and_isr(partition)]) for partition in partitions},
        {topic: _current_assignment(topic, nodes[paths.topic(topic)]) for topic in topics},
        frozenset(each for each in changed if nodes[paths.leader_and_isr(each)] is None),
    )


def _current(partition: TopicPartition, node: Node | None) -> StoredPartition | None:
    try:
        return None if node is None else stored_partition(partition, node)
    except CorruptState as error:
        log.error("%s is left alone: %s", partition, error)
        return None


def _current_assignment(topic: str, node: Node | None) -> StoredAssignment | None:
    try:
        return None if node is None else stored_assignment(topic, node)
    except CorruptState as error:
        log.error("topic %s is left alone: %s", topic, error)
        return None

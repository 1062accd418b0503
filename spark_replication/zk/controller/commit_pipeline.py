"""The one way by which a controller writes: groups in, multi()s out, several in flight, one answer a group.

Every multi() checks /controller_epoch at the version that this controller won, so none of a deposed one can be stored.
After a rejected multi() nothing of it is stored; after a lost answer nobody knows. In both cases the nodes that decide
are read, and every group of it is stored already, refused, or sent again. Sending again is safe at any time: the
conditions are in the multi().
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

from spark_replication.core.law.writes import (
    Deposed,
    Group,
    GroupAnswer,
    PartitionWrite,
    Refused,
    Stored,
    StoredPartition,
    TopicRemoval,
)
from spark_replication.errors import CorruptState, Overloaded, ReplicationError, RequestTimedOut
from spark_replication.model import TopicPartition
from spark_replication.process.worker import Worker
from spark_replication.zk import paths
from spark_replication.zk.batches import (
    Item,
    Standing,
    multi_of,
    pack,
    paths_of,
    standing,
    versions_stored,
    waves_of,
    written_path,
)
from spark_replication.zk.reading import stored_partition
from spark_replication.zk.session import (
    EXISTS,
    Check,
    Committed,
    ConnectionLost,
    Create,
    Delete,
    MultiOutcome,
    Node,
    Operation,
    ReadOutcome,
    Reason,
    Rejected,
    Session,
    SessionLost,
)

MULTIS_IN_FLIGHT_MAX = 8
COMMITS_WAITING_MAX = 10_000
# A multi() is rejected again only if its nodes moved between the read and the write.
ATTEMPTS_MAX = 20
# Nodes that are removed at once from below one that is to go. Nobody but people makes any there.
STRAYS_MAX = 500

Then = Callable[[list[GroupAnswer]], None]
log = logging.getLogger(__name__)


class _Deposed(Exception):
    """Nothing of this controller will be stored any more."""


class _Zxid(NamedTuple):
    """Of a multi() that is stored."""

    zxid: int


class _Batch:
    """One multi() on its way: its operations, and the item that each belongs to (None: a shared check)."""

    __slots__ = ("attempt", "items", "operations", "owners", "removed_topics", "versions")

    def __init__(self, items: Sequence[Item], epoch_check: Check, attempt: int = 0) -> None:
        planned = multi_of(items, epoch_check)
        self.items = list(items)
        self.attempt = attempt
        self.operations: list[Operation] = [operation for operation, _ in planned]
        self.owners: list[Item | None] = [item for _, item in planned]
        self.versions: dict[str, tuple[int, int]] = {}
        self.removed_topics = [
            written_path(write) for item in items for write in item.group if isinstance(write, TopicRemoval)
        ]


class CommitPipeline:
    """`on_deposed(reason)` is called once, on its own thread, when a write shows that another controller took over."""

    def __init__(self, session: Session, epoch_version: int, on_deposed: Callable[[str], None]) -> None:
        self._session = session
        self._epoch_check = Check(paths.CONTROLLER_EPOCH, epoch_version)
        self._on_deposed = on_deposed
        self._lock = threading.Lock()
        self._deposed = False
        self._commits: queue.SimpleQueue[tuple[list[Item], Then] | None] = queue.SimpleQueue()
        self._answered: queue.SimpleQueue[tuple[_Batch, MultiOutcome | _Zxid]] = queue.SimpleQueue()
        self.worker = Worker(self._run, "controller-commits")
        self.worker.start()

    def commit(self, groups: Sequence[Group], then: Then) -> None:
        """`then` is called once, on this pipeline's thread; at once where nothing can be stored any more."""
        items = [Item(number, group, self._session.root_bytes) for number, group in enumerate(groups)]
        with self._lock:
            deposed = self._deposed
            if not deposed:
                if self._commits.qsize() >= COMMITS_WAITING_MAX:
                    raise Overloaded(
                        f"{COMMITS_WAITING_MAX} commits wait for ZooKeeper at {self._session.address}: retry later"
                    )
                self._commits.put((items, then))
        if deposed:
            then([Deposed()] * len(items))

    def depose(self) -> bool:
        """From now on the answer is Deposed; what is in flight is answered as ZooKeeper decides. False: it was so."""
        with self._lock:
            if self._deposed:
                return False
            self._deposed = True
            self._commits.put(None)
            return True

    def _run(self) -> None:
        while (commit := self._commits.get()) is not None:
            items, then = commit
            answers: dict[int, GroupAnswer] = {}
            try:
                if self._deposed:
                    raise _Deposed("it has ended")
                for wave in waves_of(items):
                    self._store(wave, answers)
            except _Deposed as reason:
                if self.depose():
                    self._on_deposed(str(reason))
            then([answers.get(item.number, Deposed()) for item in items])

    def _store(self, wave: Sequence[Item], answers: dict[int, GroupAnswer]) -> None:
        """Until every item of the wave has its answer."""
        waiting = deque(_Batch(items, self._epoch_check) for items in pack(wave))
        in_flight = 0
        while waiting or in_flight:
            while waiting and in_flight < MULTIS_IN_FLIGHT_MAX:
                batch = waiting.popleft()
                self._session.commit(batch.operations, partial(self._take, batch))
                in_flight += 1
            batch, outcome = self._answered.get()
            try:
                if isinstance(outcome, Committed) and self._ask_zxid(batch, outcome):
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

    def _take_zxid(self, batch: _Batch, of_created: bool, outcome: ReadOutcome) -> None:  # noqa: FBT001 (in a partial)
        """Of a node created by this very multi() (None: it is gone already), or of the parent of a removed one."""
        if isinstance(outcome, ReplicationError):
            self._answered.put((batch, outcome))
        elif outcome is None:
            self._answered.put((batch, _Zxid(0)))
        else:
            self._answered.put((batch, _Zxid(outcome.created_zxid if of_created else outcome.children_zxid)))

    def _drain(self, in_flight: int) -> None:
        """So that no answer of this commit is taken for one of the next."""
        for _ in range(in_flight):
            self._answered.get()

    def _ask_zxid(self, batch: _Batch, outcome: Committed) -> bool:
        """ZooKeeper tells the zxid of a SetData only. All of a multi() have the same one: a created node's tells it, or
        the parent's of a removed one (M2)."""
        created = None
        zxid = 0
        for operation, stored in zip(batch.operations, outcome.stored, strict=True):
            if stored is not None:
                batch.versions[operation.path] = stored
                zxid = stored[1]
            elif isinstance(operation, Create):
                batch.versions[operation.path] = (0, 0)
                created = operation.path
        batch.versions.update(dict.fromkeys(batch.removed_topics, (0, 0)))
        if zxid == 0 and (created is not None or batch.removed_topics):
            self._session.stat(created or paths.TOPICS, partial(self._take_zxid, batch, created is not None))
            return True
        self._put_zxid(batch, zxid)
        return False

    def _put_zxid(self, batch: _Batch, zxid: int) -> None:
        for path, (version, known) in batch.versions.items():
            batch.versions[path] = (version, known or zxid)

    def _settle(self, batch: _Batch, outcome: MultiOutcome | _Zxid, answers: dict[int, GroupAnswer]) -> _Batch | None:
        """Answer what can be answered; the rest is to be sent again."""
        match outcome:
            case Committed():
                self._answer_stored(batch, answers)
            case _Zxid(zxid=zxid):
                self._put_zxid(batch, zxid)
                self._answer_stored(batch, answers)
            case Rejected(operation=0):
                raise _Deposed("another controller raised /controller_epoch")
            case Rejected(operation=place, reason=reason):
                cleared = reason is Reason.NOT_EMPTY and self._clear_below(batch.operations[place].path)
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
            answers[item.number] = Stored(
                tuple(batch.versions.get(written_path(write), (0, 0)) for write in item.group)
            )

    def _sort_out(
        self, batch: _Batch, culprit: Item | None, answers: dict[int, GroupAnswer], *, changed: bool = False
    ) -> _Batch | None:
        """All groups of the multi() are looked at, not the culprit alone: a broker's death makes hundreds conflict.

        changed: it need not be rejected again for the same reason.
        """
        nodes = self._read_all(dict.fromkeys(path for item in batch.items for path in paths_of(item)))
        rest: list[Item] = []
        for item in batch.items:
            match standing(item, nodes):
                case Standing.STORED:
                    answers[item.number] = Stored(versions_stored(item, nodes))
                case Standing.LOST:
                    answers[item.number] = _refused(item, nodes)
                case Standing.OPEN:
                    changed |= item.learn(nodes)
                    rest.append(item)
        stuck = len(rest) == len(batch.items) and not changed and culprit is not None
        if stuck and culprit is not None:
            # Rejected for a reason that no condition of ours expresses.
            answers[culprit.number] = _refused(culprit, nodes)
            rest.remove(culprit)
        elif batch.attempt >= ATTEMPTS_MAX:
            answers.update({item.number: _refused(item, nodes) for item in rest})
            rest = []
        return _Batch(rest, self._epoch_check, batch.attempt + 1) if rest else None

    def _clear_below(self, path: str) -> bool:
        """People made nodes below one that is to go: they go, too. False: there are none.

        Those of leaderAndISR nodes whose own removal failed with the rest are among them: it comes to the same.
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
        """Children before their parents, so that any number of the first ones can be removed."""
        for name in self._session.children_now(path):
            yield from self._below(f"{path}/{name}")
            yield f"{path}/{name}"

    def _read_all(self, wanted: Iterable[str]) -> Mapping[str, Node | None]:
        """For as long as the session lives: without an answer there is nothing that could be said."""
        named = list(wanted)
        while True:
            try:
                return dict(zip(named, self._session.read_many(named), strict=True))
            except RequestTimedOut as error:
                log.warning("the controller waits for ZooKeeper: %s", error)
            except SessionLost as error:
                raise _Deposed("the ZooKeeper session has ended") from error
            except ReplicationError as error:
                raise _Deposed(f"ZooKeeper cannot be read: {error}") from error


def _refused(item: Item, nodes: Mapping[str, Node | None]) -> Refused:
    partitions = [write.partition for write in item.group if isinstance(write, PartitionWrite)]
    return Refused({partition: _current(partition, nodes[paths.leader_and_isr(partition)]) for partition in partitions})


def _current(partition: TopicPartition, node: Node | None) -> StoredPartition | None:
    try:
        return None if node is None else stored_partition(partition, node)
    except CorruptState as error:
        log.error("%s is left alone: %s", partition, error)
        return None

"""The only way by which a controller writes: groups in, multi()s out, several in flight, one answer for each group.

Every multi() checks /controller_epoch at the version that this controller won, so none of a deposed controller can be
stored. After a rejected multi() nothing of it is stored; after a lost answer nobody knows. In both cases the deciding
nodes are read, and each group turns out to be stored, is refused, or is sent again. Sending again is safe at any time:
the conditions are in the multi().

It waits for nothing, and runs on one thread: the controller's, or the simulator's.

| a multi() is answered | then |
| --- | --- |
| stored | its groups are; when, a stat may have to tell |
| rejected, by the check of the epoch | another controller commands: all that waits is answered with Deposed |
| rejected, since a node that is to go has nodes below it | those go first; then as below |
| rejected otherwise, or nobody knows | the nodes of its groups are read: each is stored, refused, or sent again |
| not at all: the session has ended | Deposed |
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol

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
from spark_replication.zk import paths
from spark_replication.zk.contents import Contents, stored_assignment, stored_partition
from spark_replication.zk.controller.batches import (
    MULTI_OPERATIONS_MAX,
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
    READS_AT_ONCE_MAX,
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
from spark_replication.zk.session import ConnectionLost, MultiOutcome, ReadOutcome, SessionLost

MULTIS_IN_FLIGHT_MAX = 8
COMMITS_WAITING_MAX = 10_000
# A multi() is rejected again only if its nodes changed between the read and the write.
ATTEMPTS_MAX = 20
# How many nodes below a node that is to go are removed at once. Only people make nodes there.
STRAYS_MAX = 500

# Stands for a node that is there and may not be read: no condition of ours holds for it.
NO_SUCH_VERSION = Node(b"", -2, 0, 0, 0)

Then = Callable[[list[GroupAnswer]], None]
Nodes = Mapping[str, Node | None]
log = logging.getLogger(__name__)


class CommitRequests(Protocol):
    """ZooKeeper. Each `then` is called once, after the call has returned, on the thread that all of this runs on. Reads
    are repeated for as long as the session lives."""

    @property
    def address(self) -> str: ...

    @property
    def root_bytes(self) -> int:
        """How many bytes the chroot adds to every path on the wire."""

    def commit(self, operations: Sequence[Operation], then: Callable[[MultiOutcome], None]) -> None: ...

    def stat(self, path: str, then: Callable[[ReadOutcome], None]) -> None: ...

    def read_some(
        self, paths: Sequence[str], then: Callable[[list[Node | UnreadNode | None] | ReplicationError], None]
    ) -> None:
        """At most READS_AT_ONCE_MAX of them."""

    def children(self, path: str, then: Callable[[list[str] | ReplicationError | None], None]) -> None: ...


class _When(NamedTuple):
    """When a multi() was stored."""

    zxid: int
    #: 0: not known.
    at_ms: int = 0


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


class _Commit:
    """Groups to store, wave by wave, and their answers so far."""

    __slots__ = ("answers", "group_count", "in_flight", "items", "then", "waiting", "waves")

    def __init__(self, then: Then, group_count: int) -> None:
        self.then = then
        self.group_count = group_count
        self.items: list[Item] = []
        #: By the group's number. A group that no multi() can hold has its answer at once.
        self.answers: dict[int, GroupAnswer] = {}
        self.waves: deque[list[Item]] = deque()
        #: What of the present wave is to be sent.
        self.waiting: deque[_Batch] = deque()
        #: How many of its multi()s are sent, and not sorted out yet.
        self.in_flight = 0


class Committing:
    """Stores groups, one commit after the other."""

    def __init__(
        self,
        zookeeper: CommitRequests,
        epoch_version: int,
        on_deposed: Callable[[str], None],
        on_unreadable: Callable[[Unreadable], None],
        operations_max: int = MULTI_OPERATIONS_MAX,
    ) -> None:
        """on_deposed(reason): called once when a write shows that another controller took over. on_unreadable: called
        if a node of a write cannot be read. operations_max: of groups that share a multi()."""
        self._zookeeper = zookeeper
        self._epoch_check = Check(paths.CONTROLLER_EPOCH, epoch_version)
        self._on_deposed = on_deposed
        self._on_unreadable = on_unreadable
        self._operations_max = operations_max
        self._deposed = False
        self._commits: deque[_Commit] = deque()
        self._present: _Commit | None = None
        self._goes_on = False

    def commit(self, groups: Sequence[Group], then: Then) -> None:
        """Call `then` once; at once if nothing can be stored any more. It raises for no group: an error would end the
        controller for what one group holds."""
        if self._deposed:
            then([Deposed()] * len(groups))
        elif len(self._commits) >= COMMITS_WAITING_MAX:
            full = f"{COMMITS_WAITING_MAX} commits wait for ZooKeeper at {self._zookeeper.address}: retry later"
            then([Refused({}, unstorable=Overloaded(full))] * len(groups))
        else:
            self._commits.append(self._commit_of(groups, then))
            self._go_on()

    def depose(self) -> None:
        """Answer Deposed from now on; the commit under way is answered as ZooKeeper decides. On any thread."""
        self._deposed = True

    def _commit_of(self, groups: Sequence[Group], then: Then) -> _Commit:
        commit = _Commit(then, len(groups))
        for number, group in enumerate(groups):
            try:
                commit.items.append(Item(number, group, self._zookeeper.root_bytes))
            except ReplicationError as error:
                log.error("%d writes are refused: %s", len(group), error)
                commit.answers[number] = Refused({}, unstorable=error)
        return commit

    def _go_on(self) -> None:
        """Send what may be sent, and answer what is done. A `then` that commits more finds this going on already."""
        if self._goes_on:
            return
        self._goes_on = True
        try:
            while self._step():
                pass
        finally:
            self._goes_on = False

    def _step(self) -> bool:
        """Do the next thing. False: all waits for ZooKeeper, or there is nothing."""
        commit = self._present
        if commit is None:
            return self._begin()
        if commit.waiting and commit.in_flight < MULTIS_IN_FLIGHT_MAX:
            self._send(commit, commit.waiting.popleft())
        elif commit.in_flight:
            return False
        elif commit.waves:
            packed = pack(commit.waves.popleft(), self._operations_max)
            commit.waiting.extend(_Batch(items, self._epoch_check) for items in packed)
        else:
            self._finish(commit)
        return True

    def _begin(self) -> bool:
        if not self._commits:
            return False
        commit = self._present = self._commits.popleft()
        if not self._deposed:
            commit.waves.extend(waves_of(commit.items))
        return True

    def _finish(self, commit: _Commit) -> None:
        self._present = None
        commit.then([commit.answers.get(number, Deposed()) for number in range(commit.group_count)])

    def _send(self, commit: _Commit, batch: _Batch) -> None:
        commit.in_flight += 1
        self._zookeeper.commit(batch.operations, partial(self._answered, commit, batch))

    def _lose(self, reason: str) -> None:
        """Nothing of this controller will be stored any more: end the present commit. What ZooKeeper says of the rest
        of it comes too late."""
        if not self._deposed:
            self._deposed = True
            self._on_deposed(reason)
        if self._present is not None:
            self._finish(self._present)
        self._go_on()

    def _lose_by(self, error: ReplicationError) -> None:
        ended = isinstance(error, SessionLost)
        self._lose("the ZooKeeper session has ended" if ended else f"ZooKeeper cannot be read: {error}")

    # Answers

    def _answered(self, commit: _Commit, batch: _Batch, outcome: MultiOutcome) -> None:
        if commit is not self._present:
            return
        match outcome:
            case Committed():
                self._stored(commit, batch, outcome)
            case Rejected(operation=0):
                self._lose("another controller raised /controller_epoch")
            case Rejected(operation=place, reason=RejectionReason.NOT_EMPTY):
                _Strays(self._zookeeper, batch.operations[place].path, partial(self._clear, commit, batch, place))
            case Rejected(operation=place):
                self._read_back(commit, batch, batch.owners[place])
            case ConnectionLost():
                for item in batch.items:
                    item.unsure = True
                self._read_back(commit, batch, None)
            case SessionLost():
                self._lose_by(outcome)
            case ReplicationError():
                log.error("ZooKeeper failed a write of the controller, which steps down: %s", outcome)
                self._lose(str(outcome))

    def _stored(self, commit: _Commit, batch: _Batch, outcome: Committed) -> None:
        """Find out when. ZooKeeper answers a SetData alone with its zxid. All operations of a multi() share one zxid:
        the stat of a created node has it, or that of a removed node's parent (M2)."""
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
            told = partial(self._told_when, commit, batch, of_created=created is not None)
            self._zookeeper.stat(created or paths.TOPICS, told)
        else:
            self._answer_stored(commit, batch, when)

    def _told_when(self, commit: _Commit, batch: _Batch, outcome: ReadOutcome, *, of_created: bool) -> None:
        """Take the stat of a node that this multi() created (None: it is gone already), or of a removed node's
        parent."""
        if commit is not self._present:
            return
        if isinstance(outcome, ReplicationError):
            self._lose_by(outcome)
        elif outcome is None:
            self._answer_stored(commit, batch, _When(0))
        else:
            self._answer_stored(commit, batch, _of_created(outcome) if of_created else _When(outcome.children_zxid))

    def _answer_stored(self, commit: _Commit, batch: _Batch, when: _When) -> None:
        made = {path: Made(each.version, *when) if each.zxid == 0 else each for path, each in batch.made.items()}
        for item in batch.items:
            commit.answers[item.number] = Stored(tuple(made.get(written_path(write), Made()) for write in item.group))
        self._sorted_out(commit, None)

    def _sorted_out(self, commit: _Commit, again: _Batch | None) -> None:
        commit.in_flight -= 1
        if again is not None:
            commit.waiting.appendleft(again)
        self._go_on()

    def _clear(self, commit: _Commit, batch: _Batch, place: int, strays: Sequence[str] | ReplicationError) -> None:
        """Remove nodes that people made below a node that is to go.

        leaderAndISR nodes whose own removal failed with the rest are among them, which has the same result.
        """
        if commit is not self._present:
            return
        if isinstance(strays, ReplicationError):
            self._lose_by(strays)
        elif not strays:
            self._read_back(commit, batch, batch.owners[place])
        else:
            log.warning("%s is to go, and has below it %s: removed", batch.operations[place].path, ", ".join(strays))
            deletions: list[Operation] = [self._epoch_check, *(Delete(stray, EXISTS) for stray in strays)]
            self._zookeeper.commit(deletions, partial(self._cleared, commit, batch, place))

    def _cleared(self, commit: _Commit, batch: _Batch, place: int, outcome: MultiOutcome) -> None:
        if commit is not self._present:
            return
        if isinstance(outcome, Rejected) and outcome.operation == 0:
            self._lose("another controller raised /controller_epoch")
        elif isinstance(outcome, ReplicationError) and not isinstance(outcome, RequestTimedOut):
            self._lose_by(outcome)
        else:
            self._read_back(commit, batch, batch.owners[place], changed=True)

    # What became of a multi() that was rejected, or whose answer was lost

    def _read_back(self, commit: _Commit, batch: _Batch, culprit: Item | None, *, changed: bool = False) -> None:
        """Read the nodes of all groups of the multi(), not of the culprit alone: a broker's death makes hundreds of
        them conflict.

        changed: something was done about the rejection, so the next attempt may succeed.
        """
        named = list(dict.fromkeys(path for item in batch.items for path in paths_of(item)))
        nodes: dict[str, Node | None] = {}

        def take(some: Sequence[str], read: list[Node | UnreadNode | None] | ReplicationError) -> None:
            if commit is not self._present:
                return
            if isinstance(read, ReplicationError):
                self._lose_by(read)
                return
            # A node that may not be read gets a version that none of our conditions names.
            nodes.update(
                (path, NO_SUCH_VERSION if isinstance(node, UnreadNode) else node)
                for path, node in zip(some, read, strict=True)
            )
            if len(nodes) == len(named):
                self._look_at_met(batch, nodes)
                self._sorted_out(commit, self._sort_out(commit, batch, culprit, nodes, changed=changed))

        for start in range(0, len(named), READS_AT_ONCE_MAX):
            some = named[start : start + READS_AT_ONCE_MAX]
            self._zookeeper.read_some(some, partial(take, some))

    def _sort_out(
        self, commit: _Commit, batch: _Batch, culprit: Item | None, nodes: Nodes, *, changed: bool
    ) -> _Batch | None:
        """Answer what can be answered. Returns the rest, which is to be sent again."""
        answers = commit.answers
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

    def _look_at_met(self, batch: _Batch, nodes: Nodes) -> None:
        """Report nodes of this multi() that cannot be read: nobody decides about them from now on (Z1)."""
        writes = [write for item in batch.items for write in item.group]
        partitions = [write.partition for write in writes if isinstance(write, PartitionWrite)]
        found = Contents()
        found.stored({partition: nodes[paths.leader_and_isr(partition)] for partition in partitions})
        for write in writes:
            if isinstance(write, TopicWrite) and write.version != ABSENT:
                found.topic(write.topic, nodes[paths.topic(write.topic)])
        if found.unreadable.reasons:
            self._on_unreadable(found.unreadable)


class _Strays:
    """Finds the nodes below one, children before their parents, so that any number of the first ones can be removed."""

    def __init__(
        self, zookeeper: CommitRequests, path: str, then: Callable[[list[str] | ReplicationError], None]
    ) -> None:
        self._zookeeper = zookeeper
        self._then = then
        self._found: list[str] = []
        #: The nodes from `path` down to the one that is listed, each with those of its children that are left.
        self._open: list[tuple[str, deque[str]]] = []
        self._list(path)

    def _list(self, path: str) -> None:
        self._zookeeper.children(path, partial(self._listed, path))

    def _listed(self, path: str, names: list[str] | ReplicationError | None) -> None:
        if isinstance(names, ReplicationError):
            self._then(names)
            return
        self._open.append((path, deque(names or ())))
        while len(self._found) < STRAYS_MAX:
            parent, left = self._open[-1]
            if left:
                self._list(f"{parent}/{left.popleft()}")
                return
            self._open.pop()
            if not self._open:
                break
            self._found.append(parent)
        self._then(self._found)


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

"""A leader's conditional ISR change: a read and one multi(), answered through `then` (I1, I3, I4).

Nothing here waits. Bounded: each partition has at most one change under way (I4).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from spark_replication.core.law.writes import IsrAnswer, IsrCommitted, IsrRefused, IsrUnanswered, IsrWrite
from spark_replication.errors import CorruptState, ReplicationError
from spark_replication.model import encode
from spark_replication.zk import paths
from spark_replication.zk.contents import stored_partition
from spark_replication.zk.isr_change import IsrChange
from spark_replication.zk.operations import EXISTS, Check, Committed, Create, Node, Operation, Rejected, SetData
from spark_replication.zk.session import MultiOutcome, ReadOutcome

UNMARKED = 0  # the version of a registration that is not shutting down
Then = Callable[[IsrAnswer], None]

log = logging.getLogger(__name__)


class IsrRequests(Protocol):
    """ZooKeeper. Each `then` is called once."""

    def commit(self, operations: Sequence[Operation], then: Callable[[MultiOutcome], None]) -> None: ...
    def read(self, path: str, then: Callable[[ReadOutcome], None]) -> None: ...
    def stat(self, path: str, then: Callable[[ReadOutcome], None]) -> None: ...


class IsrWrites:
    def __init__(self, session: IsrRequests, controlled: Callable[[], bool]) -> None:
        """controlled: whether /controller was there at the last look."""
        self._session = session
        self._controlled = controlled

    def change(self, write: IsrWrite, then: Then) -> None:
        """The state is read first. One that somebody removed and a controller made again begins at version 0, which a
        leader of the state before may name: the leader epoch tells them apart, and no condition of a multi() can."""
        self._session.read(paths.leader_and_isr(write.partition), partial(self._seen, write, then))

    def _seen(self, write: IsrWrite, then: Then, current: ReadOutcome) -> None:
        if isinstance(current, ReplicationError):
            then(IsrUnanswered())
        elif current is None:  # before the change lands another may be made
            self._ask_why(write, then)
        elif _is_of_another_epoch(write, current):
            self._refused_as(write, then, current)
        else:
            self._send(write, then, notify=self._controlled())

    def _send(self, write: IsrWrite, then: Then, *, notify: bool) -> None:
        operations = _operations(write)
        if notify:
            operations.append(_notification(write))
        answered = partial(self._answered, write, then, notification=len(operations) - 1 if notify else None)
        self._session.commit(operations, answered)

    def _answered(self, write: IsrWrite, then: Then, outcome: MultiOutcome, *, notification: int | None) -> None:
        match outcome:
            case Committed():
                stored = outcome.stored[0]
                assert stored is not None, "the first operation sets leaderAndISR"
                then(IsrCommitted(stored[0]))
                if notification is None:
                    self._notify_late(write)
            case Rejected(operation=place) if place == notification:
                # Somebody removed the folder of notifications. The ISR matters more: the controller will find out by
                # its next write.
                self._send(write, then, notify=False)
            case Rejected():
                self._ask_why(write, then)
            case ReplicationError():
                then(IsrUnanswered())

    def _ask_why(self, write: IsrWrite, then: Then) -> None:
        self._session.read(paths.topic_id(write.topic_id), partial(self._refused, write, then))

    def _refused(self, write: IsrWrite, then: Then, topic_id: ReadOutcome) -> None:
        """Answer by the topic's id first: the leaderAndISR of a topic that was made again says nothing of this one."""
        if topic_id is None:
            then(IsrRefused(None))
        elif isinstance(topic_id, ReplicationError):
            then(IsrUnanswered())
        else:
            self._session.read(paths.leader_and_isr(write.partition), partial(self._refused_as, write, then))

    def _refused_as(self, write: IsrWrite, then: Then, current: ReadOutcome) -> None:
        if isinstance(current, ReplicationError):
            then(IsrUnanswered())
            return
        try:
            then(IsrRefused(None if current is None else stored_partition(write.partition, current)))
        except CorruptState as error:
            # Nobody decides about what cannot be read: the leader goes on with the maximal ISR, as without an answer
            # (I4).
            log.error("%s is led as it was known: %s", write.partition, error)
            then(IsrUnanswered())

    def _notify_late(self, write: IsrWrite) -> None:
        """Notify a controller that came during the write: it may have loaded the partition just before."""
        self._session.stat(paths.CONTROLLER, partial(self._notify_if, write))

    def _notify_if(self, write: IsrWrite, controller: ReadOutcome) -> None:
        if controller is not None and not isinstance(controller, ReplicationError):
            # A lost notification costs the controller one refused write, and is not worth another attempt.
            self._session.commit((_notification(write),), lambda _outcome: None)


def _is_of_another_epoch(write: IsrWrite, current: Node) -> bool:
    try:
        return stored_partition(write.partition, current).state.leader_epoch != write.state.leader_epoch
    except CorruptState:  # its version has risen, too: the multi() is refused
        return False


def _operations(write: IsrWrite) -> list[Operation]:
    operations: list[Operation] = [
        SetData(paths.leader_and_isr(write.partition), encode(write.state), write.version),
        Check(paths.broker_epoch(write.broker), write.broker_epoch),
        Check(paths.topic_id(write.topic_id), EXISTS),
    ]
    for broker, epoch in sorted(write.joining.items()):
        operations.append(Check(paths.broker_id(broker), UNMARKED))
        operations.append(Check(paths.broker_epoch(broker), epoch))
    return operations


def _notification(write: IsrWrite) -> Create:
    change = IsrChange(partitions=(str(write.partition),))
    return Create(paths.ISR_CHANGE_PREFIX, encode(change), sequence=True)

"""What a controller hears of: brokers that come, go or shut down, and ISRs that leaders changed.

A watch only marks what is to be read; one thread reads it, with the watch set again before the first byte is read. So
nothing is lost, and a burst of changes is one event. A notification is deleted after its partitions were handed on, in
a multi() that checks the controller epoch: a deposed controller must not take what its successor has not seen.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence

from spark_replication.core.controller.events import BrokersRead, PartitionsRead
from spark_replication.core.law.writes import StoredPartition
from spark_replication.errors import CorruptState, ReplicationError, RequestTimedOut
from spark_replication.model import TopicPartition, decode
from spark_replication.process.worker import Worker
from spark_replication.zk import paths
from spark_replication.zk.isr_change import IsrChange
from spark_replication.zk.reading import read_brokers, stored_partition
from spark_replication.zk.session import EXISTS, Check, Delete, Node, Rejected, Session

DELETIONS_IN_MULTI_MAX = 500

log = logging.getLogger(__name__)


class ControllerWatch:
    """Starts at once: everything is read a first time, so that nothing between loading and watching is missed."""

    def __init__(
        self,
        session: Session,
        epoch_check: Check,
        on_event: Callable[[BrokersRead | PartitionsRead], None],
        on_deposed: Callable[[str], None],
    ) -> None:
        self._session = session
        self._epoch_check = epoch_check
        self._on_event = on_event
        self._on_deposed = on_deposed
        self._marked = threading.Condition()
        self._brokers_marked = True
        self._changes_marked = True
        self._stopped = False
        self.worker = Worker(self._run, "controller-watch")
        self.worker.start()

    def stop(self) -> None:
        with self._marked:
            self._stopped = True
            self._marked.notify_all()

    def _mark_brokers(self, _event: object) -> None:
        self._mark(brokers=True, changes=False)

    def _mark_changes(self, _event: object) -> None:
        self._mark(brokers=False, changes=True)

    def _mark(self, *, brokers: bool, changes: bool) -> None:
        with self._marked:
            self._brokers_marked |= brokers
            self._changes_marked |= changes
            self._marked.notify_all()

    def _run(self) -> None:
        while True:
            with self._marked:
                self._marked.wait_for(lambda: self._stopped or self._brokers_marked or self._changes_marked)
                if self._stopped:
                    return
                brokers, changes = self._brokers_marked, self._changes_marked
                self._brokers_marked = self._changes_marked = False
            try:
                if brokers:
                    self._on_event(read_brokers(self._session, self._mark_brokers))
                if changes:
                    self._read_changes()
            except RequestTimedOut as error:
                log.warning("the controller's watches wait for ZooKeeper: %s", error)
                self._mark(brokers=brokers, changes=changes)
            except CorruptState as error:
                log.error("brokers cannot be watched: %s", error)
            except ReplicationError as error:
                log.info("the controller's watches end: %s", error)
                return

    def _read_changes(self) -> None:
        names = self._session.children_now(paths.ISR_CHANGES, self._mark_changes)
        if not names:
            return
        changed = _partitions_of(names, self._session.read_many([paths.isr_change(name) for name in names]))
        nodes = self._session.read_many([paths.leader_and_isr(partition) for partition in changed])
        read = {
            partition: stored
            for partition, node in zip(changed, nodes, strict=True)
            if node is not None and (stored := _readable(partition, node)) is not None
        }
        if read:
            self._on_event(PartitionsRead(read))
        self._delete(names)

    def _delete(self, names: Sequence[str]) -> None:
        for start in range(0, len(names), DELETIONS_IN_MULTI_MAX):
            some = names[start : start + DELETIONS_IN_MULTI_MAX]
            deletions = [Delete(paths.isr_change(name), EXISTS) for name in some]
            outcome = self._session.commit_now((self._epoch_check, *deletions))
            if isinstance(outcome, Rejected) and outcome.operation == 0:
                self.stop()
                self._on_deposed("another controller raised /controller_epoch")
                return
            if isinstance(outcome, Rejected):
                self._mark(brokers=False, changes=True)  # somebody deleted one by hand: look again


def _partitions_of(names: Iterable[str], nodes: Iterable[Node | None]) -> list[TopicPartition]:
    found: set[TopicPartition] = set()
    for name, node in zip(names, nodes, strict=True):
        try:
            if node is not None:
                found.update(decode(node.data, IsrChange, paths.isr_change(name)).topic_partitions)
        except CorruptState as error:
            log.error("a notification is dropped: %s", error)
    return sorted(found)


def _readable(partition: TopicPartition, node: Node) -> StoredPartition | None:
    try:
        return stored_partition(partition, node)
    except CorruptState as error:
        log.error("%s is left as it was known: %s", partition, error)
        return None

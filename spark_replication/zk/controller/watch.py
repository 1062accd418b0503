"""Reports to the controller: brokers that come, go or shut down, and ISRs that leaders changed.

A watch only marks what is to be read. One thread reads it, and sets the watch again before the first byte is read: so
nothing is lost, and a burst of changes is one event. A notification is deleted after its partitions were handed on, in
a multi() that checks the controller epoch: a deposed controller must not delete what its successor has not seen.

The watch ends only when it is stopped, or with its session. After any other error it reads again, after a while (Z1).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from spark_replication.core.controller.events import BrokersRead, NodesUnreadable, PartitionsRead
from spark_replication.core.law.unreadable import Unreadable
from spark_replication.errors import CorruptState, ReplicationError
from spark_replication.model import TopicPartition, decode, shortened
from spark_replication.process.threads import Worker
from spark_replication.zk import paths
from spark_replication.zk.contents import Contents, is_held, is_readable
from spark_replication.zk.isr_change import IsrChange
from spark_replication.zk.operations import EXISTS, Check, Delete, Node, Rejected, UnreadNode
from spark_replication.zk.reading import NodeReads, Reading
from spark_replication.zk.session import Session, SessionLost, Watch

DELETIONS_IN_MULTI_MAX = 500
PAUSE_S_MIN = 0.1
PAUSE_S_MAX = 5.0
LOOK_S = 5.0  # between two tries to read what could not be read

log = logging.getLogger(__name__)


class ControllerWatch:
    """Starts at once: everything is read a first time, so that nothing between loading and watching is missed."""

    def __init__(
        self,
        session: Session,
        epoch_check: Check,
        on_event: Callable[[BrokersRead | PartitionsRead | NodesUnreadable], None],
        on_deposed: Callable[[str], None],
        unreadable: Unreadable,
    ) -> None:
        """unreadable: what could not be read while loading. Once any of it can be read, this candidacy ends, and the
        next one loads it."""
        self._session = session
        self._epoch_check = epoch_check
        self._on_event = on_event
        self._on_deposed = on_deposed
        self._marked = threading.Condition()
        self._brokers_marked = True
        self._changes_marked = True
        self._unreadable_brokers = False
        self._held: set[str] = set()
        self._left: dict[str, str] = {}  # notifications that cannot be read, and why
        self._hold(unreadable)
        self._stopped = False
        self.worker = Worker(self._run, "controller-watch")
        self.worker.start()

    def stop(self) -> None:
        with self._marked:
            self._stopped = True
            self.worker.stop()
            self._marked.notify_all()

    def met(self, unreadable: Unreadable) -> None:
        """A write found that these cannot be read: nobody decides about them from now on."""
        self._hold(unreadable)
        self._on_event(PartitionsRead({}, unreadable))

    def _hold(self, unreadable: Unreadable) -> None:
        with self._marked:
            self._held.update(path for path in unreadable.reasons if is_held(path))
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
        pause_s = PAUSE_S_MIN
        look_at_s = time.monotonic() + LOOK_S
        while True:
            with self._marked:
                while not (self._stopped or self._brokers_marked or self._changes_marked):
                    left_s = look_at_s - time.monotonic() if self._held or self._unreadable_brokers else None
                    if left_s is not None and left_s <= 0:
                        break
                    self._marked.wait(left_s)
                if self._stopped:
                    return
                brokers, changes = self._brokers_marked, self._changes_marked
                self._brokers_marked = self._changes_marked = False
            looks = time.monotonic() >= look_at_s
            try:
                if brokers or (looks and self._unreadable_brokers):
                    self._read_brokers()
                if changes:
                    self._read_changes()
                if looks:
                    self._look_again()
                    look_at_s = time.monotonic() + LOOK_S
                pause_s = PAUSE_S_MIN
            except SessionLost as error:
                log.info("the controller's watches end: %s", error)
                return
            except ReplicationError as error:
                log.warning("the controller's watches wait for ZooKeeper, and look again in %s s: %s", pause_s, error)
                self._mark(brokers=brokers, changes=changes)
                self._pause(pause_s)
                pause_s = min(pause_s * 2, PAUSE_S_MAX)

    def _pause(self, pause_s: float) -> None:
        with self._marked:
            self._marked.wait_for(lambda: self._stopped, pause_s)

    def _read_brokers(self) -> None:
        read = Reading(self._session).brokers(self._mark_brokers)
        # A broker that may not be read has no watch.
        self._unreadable_brokers = bool(read.unreadable.reasons)
        self._on_event(read)

    def _look_again(self) -> None:
        """Read again what could not be read: no event comes when an ACL is corrected."""
        with self._marked:
            held = sorted(self._held)
        if not held:
            return
        for path, node in zip(held, self._session.read_each(held), strict=True):
            if is_readable(path, node):
                self.stop()
                self._on_deposed(f"{shortened(path)} can be read again, or is gone: everything is loaded anew")
                return

    def _read_changes(self) -> None:
        read = read_changes(self._session, self._mark_changes)
        self._tell_left(read.left)
        self._hold(read.event.unreadable)
        if read.event.partitions or read.event.unreadable.reasons:
            self._on_event(read.event)
        self._delete(read.names)

    def _tell_left(self, left: dict[str, str]) -> None:
        """Report notifications that cannot be read."""
        if left != self._left:
            self._left = left
            self._on_event(NodesUnreadable(paths.ISR_CHANGES, left))

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


class ChangesRead(NamedTuple):
    #: The notifications that were read.
    names: list[str]
    #: By the path of each that cannot be read: why. It stays, since nobody knows which partitions it is about.
    left: dict[str, str]
    #: The partitions that they name.
    event: PartitionsRead


def read_changes(reads: NodeReads, watch: Watch | None = None) -> ChangesRead:
    names = reads.children_now(paths.ISR_CHANGES, watch)
    nodes = reads.read_each([paths.isr_change(name) for name in names])
    changed, left = _partitions_of(names, nodes)
    stored = reads.read_each([paths.leader_and_isr(partition) for partition in changed])
    contents = Contents()
    partitions = contents.stored(dict(zip(changed, stored, strict=True)))
    readable = [name for name in names if paths.isr_change(name) not in left]
    return ChangesRead(readable, left, PartitionsRead(partitions, contents.unreadable))


def _partitions_of(
    names: Iterable[str], nodes: Iterable[Node | UnreadNode | None]
) -> tuple[list[TopicPartition], dict[str, str]]:
    """The partitions of the notifications; and for those that cannot be read the reason, by path."""
    found: set[TopicPartition] = set()
    left: dict[str, str] = {}
    for name, node in zip(names, nodes, strict=True):
        path = paths.isr_change(name)
        if isinstance(node, UnreadNode):
            left[path] = node.why
        elif node is not None:
            try:
                found.update(decode(node.data, IsrChange, path).topic_partitions)
            except CorruptState as error:
                left[path] = error.message
    return sorted(found), left

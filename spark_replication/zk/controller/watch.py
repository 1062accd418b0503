"""Reports to the controller what its watches have marked (`zk.controller.looking`): a thread waits, reads and deletes.

The watch ends only when it is stopped, or with its session. After any other error it reads again, after a while (Z1).
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable

from spark_replication.core.controller.events import PartitionsRead
from spark_replication.core.law.unreadable import Unreadable
from spark_replication.errors import ReplicationError
from spark_replication.process.threads import Worker
from spark_replication.zk.controller.looking import CandidacyOver, Looking, Marks, Told, looked
from spark_replication.zk.operations import Check
from spark_replication.zk.session import Session, SessionLost

log = logging.getLogger(__name__)


class ControllerWatch:
    """Starts at once."""

    def __init__(
        self,
        session: Session,
        epoch_check: Check,
        on_event: Callable[[Told], None],
        on_deposed: Callable[[str], None],
        unreadable: Unreadable,
    ) -> None:
        """unreadable: see Looking."""
        self._session = session
        self._on_event = on_event
        self._on_deposed = on_deposed
        self._marked = threading.Condition()  # guards the two below
        self._looking = Looking(epoch_check, unreadable, time.monotonic())
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
        with self._marked:
            self._looking.hold(unreadable)
            self._marked.notify_all()
        self._on_event(PartitionsRead({}, unreadable))

    def _mark_brokers(self, _event: object) -> None:
        self._mark(brokers=True)

    def _mark_changes(self, _event: object) -> None:
        self._mark(changes=True)

    def _mark(self, *, brokers: bool = False, changes: bool = False) -> None:
        with self._marked:
            self._looking.mark(brokers=brokers, changes=changes)
            self._marked.notify_all()

    def _run(self) -> None:
        while (marks := self._next()) is not None:
            try:
                self._look(marks)
            except SessionLost as error:
                log.info("the controller's watches end: %s", error)
                return
            except ReplicationError as error:
                with self._marked:
                    pause_s = self._looking.failed(marks, time.monotonic())
                log.warning("the controller's watches wait for ZooKeeper, and look again in %s s: %s", pause_s, error)

    def _next(self) -> Marks | None:
        """Wait until something is due. None: it was stopped."""
        with self._marked:
            while not self._stopped:
                now_s = time.monotonic()
                left_s = self._looking.due_s - now_s
                if left_s <= 0:
                    return self._looking.taken(now_s)
                self._marked.wait(None if math.isinf(left_s) else left_s)
            return None

    def _look(self, marks: Marks) -> None:
        found = looked(marks, self._session, self._mark_brokers, self._mark_changes)
        with self._marked:
            told = list(self._looking.found(found))
        for each in told:
            if isinstance(each, CandidacyOver):
                self._depose(each)
            else:
                self._on_event(each)
        for multi in self._looking.writes(found):
            outcome = self._session.commit_now(multi)
            with self._marked:
                deposed = self._looking.written(outcome)
            if deposed is not None:
                self._depose(deposed)
                return

    def _depose(self, deposed: CandidacyOver) -> None:
        self.stop()
        self._on_deposed(deposed.why)

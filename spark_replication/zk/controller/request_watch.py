"""Reports requests below /admin to the controller (`zk.controller.request_looking`): one thread waits and reads.

The watch ends only when it is stopped, or with its session. After any other error it reads again, after a while (Z1).
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable

from spark_replication.core.controller.events import NodesUnreadable, Requested
from spark_replication.errors import ReplicationError
from spark_replication.process.threads import Worker
from spark_replication.zk.controller.admin_requests import FoundRequest
from spark_replication.zk.controller.request_looking import Deletions, RequestLooking, looked_for
from spark_replication.zk.session import Session, SessionLost

log = logging.getLogger(__name__)


class RequestWatch:
    """Starts at once."""

    def __init__(
        self,
        session: Session,
        on_event: Callable[[Requested | NodesUnreadable], None],
        loaded: Iterable[FoundRequest],
        deletions: Deletions,
    ) -> None:
        """loaded, deletions: see RequestLooking."""
        self._session = session
        self._on_event = on_event
        self._changed = threading.Condition()  # guards the two below
        self._looking = RequestLooking(loaded, deletions)
        self._stopped = False
        self.worker = Worker(self._run, "request-watch")
        self.worker.start()

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self.worker.stop()
            self._changed.notify_all()

    def _mark(self, _event: object) -> None:
        with self._changed:
            self._looking.mark()
            self._changed.notify_all()

    def _run(self) -> None:
        while self._is_due():
            try:
                self._look()
            except SessionLost as error:
                log.info("requests below /admin are no longer read: %s", error)
                return
            except ReplicationError as error:
                with self._changed:
                    pause_s = self._looking.failed(time.monotonic())
                log.warning("requests below /admin wait for ZooKeeper, next look in %s s: %s", pause_s, error)

    def _is_due(self) -> bool:
        """Wait until something is to be read. False: it was stopped."""
        with self._changed:
            while not self._stopped:
                left_s = self._looking.due_s - time.monotonic()
                if left_s <= 0:
                    self._looking.taken()
                    return True
                self._changed.wait(None if math.isinf(left_s) else left_s)
            return False

    def _look(self) -> None:
        found = looked_for(self._session, self._mark)
        with self._changed:
            told = list(self._looking.found(found, time.monotonic()))
        for each in told:
            self._on_event(each)

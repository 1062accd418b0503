"""Tells the controller which replicas this broker's disk refuses, so that others take over what they lead (B4).

A refusal is told at once, and then at most every `REPEAT_S`, however often producers try.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from spark_replication.errors import ReplicationError, StorageFailed
from spark_replication.model import ReplicaOf

REPEAT_S = 5.0  # less than disk.retry.ms, so that a replica that fails again after that is told again
RETRY_S = 1.0  # after a report that did not arrive
STOP_TIMEOUT_S = 2.0

log = logging.getLogger(__name__)


class QueuedFailureReports:
    """ports.FailureReports. Bounded: both dictionaries hold a replica at most once."""

    def __init__(
        self, tell: Callable[[tuple[ReplicaOf, ...]], None], now_s: Callable[[], float] = time.monotonic
    ) -> None:
        """tell: called on a thread of its own; raises if the report did not arrive."""
        self._tell = tell
        self._now_s = now_s
        self._changed = threading.Condition()
        self._waiting: dict[ReplicaOf, StorageFailed] = {}
        self._quiet_until_s: dict[ReplicaOf, float] = {}
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="failure-reports", daemon=True)
        self._thread.start()

    def failed(self, replica: ReplicaOf, error: StorageFailed) -> None:
        with self._changed:
            if self._now_s() >= self._quiet_until_s.get(replica, 0.0):
                self._waiting[replica] = error
                self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(STOP_TIMEOUT_S)

    def _run(self) -> None:
        while (failed := self._take()) is not None:
            for replica, error in failed.items():
                log.error("%s: its disk refuses: %s", replica.partition, error, extra={"partition": replica.partition})
            try:
                self._tell(tuple(failed))
                quiet_s = REPEAT_S
            except ReplicationError as error:
                log.warning("the controller does not know that this disk refuses %s replicas: %s", len(failed), error)
                quiet_s = RETRY_S
            with self._changed:
                now_s = self._now_s()
                still = {replica: until_s for replica, until_s in self._quiet_until_s.items() if now_s < until_s}
                self._quiet_until_s = still | dict.fromkeys(failed, now_s + quiet_s)
                for replica in failed:
                    self._waiting.pop(replica, None)  # it may have failed again during the report

    def _take(self) -> dict[ReplicaOf, StorageFailed] | None:
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            taken, self._waiting = self._waiting, {}
            return None if self._closed else taken

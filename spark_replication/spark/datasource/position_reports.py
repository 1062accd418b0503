"""Tells whoever coordinates groups how far a stream is: does what engine.client.reporting says, on a thread of its own,
so that no query waits for it, or fails by it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Mapping

from spark_replication.client.asking.groups import change_group
from spark_replication.client.finding.deadline import Deadline
from spark_replication.client.finding.routes import Routes
from spark_replication.engine.client.reporting import AGAIN_S, PositionReporting
from spark_replication.errors import ReplicationError
from spark_replication.messages.groups import OF_SPARK, ResetGroup, ResetPlace
from spark_replication.model import TopicPartition
from spark_replication.spark.datasource.options import LogOptions
from spark_replication.transport.security.security import Security

ATTEMPT_MS = 5_000
FLUSH_S = 1.0

log = logging.getLogger(__name__)


class PositionReports:
    """Lives as long as the query. Thread-safe."""

    def __init__(self, options: LogOptions, name: str) -> None:
        self._options = options
        self._changed = threading.Condition()  # guards everything below
        self._reporting = PositionReporting(f"{OF_SPARK}{name}")
        self._is_closed = False
        threading.Thread(target=self._run, name="position-reports", daemon=True).start()

    def note(self, places: Mapping[TopicPartition, ResetPlace], dropped: Collection[TopicPartition]) -> None:
        """See PositionReporting."""
        with self._changed:
            self._reporting.note(places, dropped)
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until all is reported, or will not be soon, for FLUSH_S at most."""
        with self._changed:
            self._changed.wait_for(lambda: not self._reporting.owes, FLUSH_S)

    def close(self) -> None:
        self.flush()
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        routes = Routes(self._options.bootstrap, Security.of(self._options.security or None))
        try:
            while (report := self._await_next()) is not None:
                self._send(report, routes)
        finally:
            routes.close()

    def _await_next(self) -> ResetGroup | None:
        """The next report, once there is one. None: it is closed."""
        with self._changed:
            while not self._is_closed:
                now_s = time.monotonic()
                if (report := self._reporting.next_report(now_s)) is not None:
                    return report
                self._changed.wait(self._reporting.wait_s(now_s))
            return None

    def _send(self, report: ResetGroup, routes: Routes) -> None:
        try:
            change_group(routes, report, Deadline(ATTEMPT_MS))
        except ReplicationError as error:
            with self._changed:
                is_news = self._reporting.refused(error, time.monotonic())
                self._changed.notify_all()
            if is_news:
                log.warning(
                    "%s: how far this query is nobody is told, and the query goes on: %s. Once that is mended, it is "
                    "told within %d minutes; with the option reportGroup=false nothing is",
                    report.group,
                    error.message,
                    AGAIN_S / 60,
                )
        else:
            with self._changed:
                self._reporting.taken(report, time.monotonic())
                self._changed.notify_all()

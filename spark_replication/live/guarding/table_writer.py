"""Keeps a writer of topics' tables beside a broker, while the broker knows of a topic that is a table.

The writer is a process of its own, in a folder of the broker's directory, whose lock says whether it lives: a guardian
that comes later finds it there. It outlives its guardian, and ends soon after its broker.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from spark_replication.model import BrokerId
from spark_replication.process.processes import LockedProcess

FOLDER = "table-writer"
AGAIN_S = (1.0, 60.0)
STEADY_S = 60.0
STOP_S = 10.0

log = logging.getLogger(__name__)


class TableWriterKeeper:
    def __init__(
        self,
        broker_id: BrokerId,
        directory: Path,
        bootstrap: str,
        overrides: Mapping[str, Any],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """directory: the broker's. overrides: the settings that differ from the defaults."""
        self._process = LockedProcess(directory / FOLDER)
        self._command = (
            sys.executable,
            "-m",
            "spark_replication.live.tables.process",
            f"--directory={self._process.directory}",
            f"--broker-directory={directory}",
            f"--broker-id={broker_id}",
            f"--bootstrap={bootstrap}",
            f"--settings={json.dumps(dict(overrides))}",
        )
        self._broker_id = broker_id
        self._now_s = now_s
        self._again_s = AGAIN_S[0]
        self._not_before_s = self._started_s = now_s()
        self._lock = threading.Lock()
        self._is_stopped = False

    def heed(self, *, has_tables: bool) -> None:
        """Start the writer if there is to be one, and is none: after a pause that grows, if it has ended before. One
        that was seen STEADY_S after its start is started again as the first one was."""
        with self._lock:
            now_s = self._now_s()
            if not has_tables or self._is_stopped or now_s < self._not_before_s:
                return
            if not self._process.alive():
                self._start(now_s)
            elif now_s - self._started_s > STEADY_S:
                self._again_s = AGAIN_S[0]

    def _start(self, now_s: float) -> None:
        with self._process.locked() as lock:
            if lock is not None:
                child = self._process.start(self._command, lock)
                log.info("started the writer of tables beside broker %d, pid %d", self._broker_id, child.pid)
        self._started_s, self._not_before_s = now_s, now_s + self._again_s
        self._again_s = min(2 * self._again_s, AGAIN_S[1])

    def stop(self) -> None:
        """Stop the writer, whoever started it, and start none from now on: the broker's lease may be renewed once more.
        What the writer has not committed is written by another."""
        with self._lock:
            self._is_stopped = True
        if self._process.directory.exists() and not self._process.stop(STOP_S):
            log.warning("the writer of tables beside broker %d has not ended", self._broker_id)

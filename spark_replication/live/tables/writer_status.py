"""What the writer of tables beside a broker tells of itself: a small file in its folder, which the broker reads.

A file, and no message: the two share a host and a folder, whose lock says whether the writer lives; what it tells needs
no rights, no connection and no order, and is there while the broker is not. Nobody acts on it. The file is written
whole or not at all, and what cannot be read, or is no such status, counts as not told.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from spark_replication import decoding
from spark_replication.decoding import UNDECODABLE
from spark_replication.errors import InvalidConfig
from spark_replication.model import Count, TimeMs
from spark_replication.process.files import read_named
from spark_replication.process.whole_files import replace_text

STATUS_FILE = "status.json"
WRITE_S = 5.0

log = logging.getLogger(__name__)


class WriterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Counts are since this writer began."""

    #: When it said so.
    at_ms: TimeMs
    #: Topics that it writes.
    tables: Count
    #: Those whose last step was not done, or of which it leaves a partition alone.
    troubled: Count
    commits: Count
    rows: Count
    #: Commits that were refused, since others had written.
    refused: Count
    given_up_files: Count = 0
    joined_files: Count
    swept_files: Count
    committed_ms: TimeMs | None
    #: When a step was not done.
    failed_ms: TimeMs | None


class StatusFile:
    """One thread uses it."""

    def __init__(self, directory: Path, status: Callable[[], WriterStatus]) -> None:
        """directory: the writer's."""
        self._path = directory / STATUS_FILE
        self._status = status
        self._due_s = time.monotonic()

    def tell(self) -> None:
        """Write the status, unless that was done a moment ago. A disk that refuses keeps no writer from writing."""
        now_s = time.monotonic()
        if now_s < self._due_s:
            return
        self._due_s = now_s + WRITE_S
        try:
            replace_text(self._path, msgspec.json.encode(self._status()).decode())
        except OSError as error:
            log.warning("%s cannot be written: %s", self._path, error)


def read_status(directory: Path) -> WriterStatus | None:
    """None if there is none that can be read. directory: the writer's."""
    try:
        return decoding.from_json(read_named("status", str(directory / STATUS_FILE)), WriterStatus)
    except (InvalidConfig, *UNDECODABLE):
        return None

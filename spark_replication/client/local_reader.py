"""Reads a partition from the files of one of its brokers, on that host: without a copy, whether or not it runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

from spark_replication.client.log_batch import LogBatch, log_batches
from spark_replication.core.replica.read_start import asked_start
from spark_replication.errors import InvalidRequest
from spark_replication.model import NamedOffset, Offset
from spark_replication.storage.stored_log import StoredLog


class LocalReader:
    """folder: of one partition in a broker's log.dir, `<topic>-<partition>.<topic_id>`. It is read and never changed.

    Batches are views of the files, and may outlive the reader. A file that is cut while it is looked at, or whose disk
    fails, ends this process (SIGBUS): below the high watermark no broker cuts, but after an unclean election. Who needs
    to be safe from that, or does not know where the files are, has `Reader(prefer="near")`, which copies.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self._log = StoredLog(self._folder, mapped=True)

    def read(
        self,
        start: Offset | NamedOffset = 0,
        stop: Offset | None = None,
        *,
        start_time: datetime | int | None = None,
        columns: Sequence[str] | None = None,
        verify: bool = False,
        uncommitted: bool = False,
    ) -> Iterator[LogBatch]:
        """From `start` (or start_time) on, up to `stop` (exclusive), as `Reader.read`, to the high watermark as it was
        checkpointed last: brokers serve a little more.

        verify: check each batch by its CRC-32C; without it damaged rows are handed out as they are.
        uncommitted: to the log's end; what lies beyond the high watermark may be truncated and written otherwise.
        """
        asked = asked_start(start, start_time, stop)
        if not uncommitted and not self._log.is_in_broker_directory:
            raise InvalidRequest(
                f"{self._folder} is in no broker's directory, which says what of it is committed: name a folder there, "
                "or read with uncommitted=True"
            )
        high_watermark = self._log.high_watermark
        end = None if uncommitted else high_watermark
        found = self._log.read(asked, stop, end=end, columns=columns, verify=verify)
        return log_batches(found, high_watermark)

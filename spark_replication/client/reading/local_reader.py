"""Reads a partition from the files of one of its replicas, on the same host: without a copy, and without the broker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

from spark_replication.client.reading.log_batch import LogBatch, log_batches
from spark_replication.core.replica.read_start import asked_start
from spark_replication.errors import InvalidRequest
from spark_replication.model import NamedOffset, Offset
from spark_replication.storage.directory.replica_folder import partition_of_folder
from spark_replication.storage.directory.stored_log import StoredLog


class LocalReader:
    """Reads one partition from its folder in a broker's log.dir, `<topic>-<partition>.<topic_id>`. The folder is never
    changed.

    Batches are views of the files, and may outlive the reader. If a file is cut while it is read, or its disk fails,
    the kernel ends this process (SIGBUS). A broker cuts below the high watermark only after an unclean election.
    `Reader(prefer="near")` copies, and so is safe from that; it also finds the files by itself.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self._log = StoredLog(self._folder, mapped=True)
        self._name = partition_of_folder(self._folder.name)

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
        """Read batches from `start` (or start_time) on, up to `stop` (exclusive), as `Reader.read` does. The read ends
        at the high watermark of the last checkpoint: brokers serve a little more.

        With `verify`, each batch is checked by its CRC-32C; without it, damaged rows are returned as they are. With
        `uncommitted`, the read goes on to the log's end: records beyond the high watermark may be truncated, and others
        written in their place.
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
        return log_batches(self._name, found, high_watermark)

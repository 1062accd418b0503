"""What keeps a topic's table small: giving up its oldest rows (`retaining`), joining small files (`joining`),
checkpoints and clean-up of its log, and sweeping.

Rules:
- Nothing here moves the end of a partition. Writers go on meanwhile. Of two that tidy one table at once the later one
  leaves off, and is no failure.
- Swept are files that were removed from the table, once no reader of an earlier version needs them, and orphans: files
  that no version has had, once they are SWEPT_AGE_MS old. Before that a commit is made that holds nothing. A commit on
  an earlier version is refused after it, and on a later one `delta_table` commits no file that is as old. So whatever
  the log names up to that commit stays, and nothing else can ever come to be in the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import msgspec
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError

from spark_replication.core.tables.retaining import TableRetention
from spark_replication.errors import StorageFailed
from spark_replication.mirror.tables.history import (
    RETENTION_OF_DATA,
    RETENTION_OF_LOG,
    StoredFile,
    as_interval,
    from_interval,
    is_due,
    retention,
)
from spark_replication.tables.delta_table import DATA_HISTORY, UPLOAD_AGE_MS_MAX, TableOwner, open_table
from spark_replication.tables.folder import LOG, TableFolder
from spark_replication.tables.joining import join
from spark_replication.tables.retaining import retain
from spark_replication.tables.table_log import LogMoved, files_of

SWEPT_AGE_MS = 4 * UPLOAD_AGE_MS_MAX
LOG_BYTES_MAX = 256 << 20
ATTEMPTS_MAX = 50
_ONCE = CommitProperties(max_commit_retries=0)
_NOT_DATA = (f"{LOG}/", "_change_data/")


class TidiedFiles(NamedTuple):
    #: Files that table.retention.* have removed.
    given_up: int
    #: Small files that became part of larger ones.
    joined: int
    #: Files that no version has, or had for long.
    swept: int


class UpkeepRules(msgspec.Struct, frozen=True, kw_only=True):
    """What settings say of it."""

    file_bytes: int
    retention: TableRetention = TableRetention()


class TableUpkeep:
    """One table's. Not thread-safe."""

    def __init__(self, folder: TableFolder, owner: TableOwner, now_ms: Callable[[], int]) -> None:
        self._folder = folder
        self._now_ms = now_ms
        self._owner = owner

    def tidy(self, rules: UpkeepRules, *, swept_age_ms: int = SWEPT_AGE_MS) -> TidiedFiles:
        """All of it. StorageFailed: not all of it was done."""
        given_up = retain(self._folder, self._owner, rules.retention, self._now_ms)
        joined = join(self._folder, self._owner, rules.file_bytes, self._now_ms)
        self.shorten_log()
        return TidiedFiles(given_up, joined, len(self.sweep(swept_age_ms)))

    def shorten_log(self) -> None:
        """Make a checkpoint, and remove what the log has of before, as far as that is old enough."""
        with self._folder.translated("shorten its log"):
            opened = open_table(self._folder, self._owner)
            if opened is None:
                return
            log = [file for file in self._folder.files() if file.path.startswith(f"{LOG}/")]
            wanted = retention(log, 2 * LOG_BYTES_MAX, _time(self._now_ms()))[RETENTION_OF_LOG]
            if is_due(from_interval(opened.metadata().configuration.get(RETENTION_OF_LOG)), wanted):
                try:
                    opened.alter.set_table_properties({RETENTION_OF_LOG: as_interval(wanted)})
                except CommitFailedError:
                    return
            opened.create_checkpoint()
            opened.cleanup_metadata()

    def sweep(self, swept_age_ms: int = SWEPT_AGE_MS) -> list[str]:
        """Remove files that are not in the table any more, or never were. Returns which."""
        with self._folder.translated("sweep"):
            opened = open_table(self._folder, self._owner)
            if opened is None:
                return []
            found = [file for file in self._folder.files() if _is_data(file)]
            kept = from_interval(opened.metadata().configuration.get(RETENTION_OF_DATA)) or DATA_HISTORY
            now_ms = self._now_ms()
            before = _files_of(self._folder, opened)
            if not _swept(found, before, now_ms, swept_age_ms, kept):
                return []
            for _ in range(ATTEMPTS_MAX):
                try:
                    opened.create_write_transaction(
                        [],
                        mode="append",
                        schema=opened.schema(),
                        partition_by=opened.metadata().partition_columns,
                        commit_properties=_ONCE,
                    )
                except CommitFailedError:
                    opened.update_incremental()
                    continue
                opened.update_incremental()
                due = _swept(found, _files_of(self._folder, opened), now_ms, swept_age_ms, kept)
                for path in due:
                    self._folder.remove(path)
                return due
        raise StorageFailed(f"the table at {self._folder.uri} is being written by others: it is swept later")


def _swept(
    found: Iterable[StoredFile],
    of_log: Mapping[str, int | None],
    now_ms: int,
    swept_age_ms: int,
    kept: timedelta,
) -> list[str]:
    """Which of these files to remove. of_log: as `table_log.files_of` tells it.

    | in the log | is removed |
    | --- | --- |
    | in the table | never |
    | was in the table | once it was removed from it longer ago than earlier versions are kept |
    | not at all | once it is old |
    """
    due = []
    for file in found:
        name = file.path.rpartition("/")[2]
        if name not in of_log:
            if now_ms - file.written.timestamp() * 1000 > swept_age_ms:
                due.append(file.path)
        elif (removed_ms := of_log[name]) is not None and now_ms - removed_ms > kept.total_seconds() * 1000:
            due.append(file.path)
    return sorted(due)


def _is_data(file: StoredFile) -> bool:
    return file.path.endswith(".parquet") and not file.path.startswith(_NOT_DATA)


def _files_of(folder: TableFolder, opened: DeltaTable) -> Mapping[str, int | None]:
    for _ in range(ATTEMPTS_MAX):
        try:
            return files_of(folder, opened.version())
        except LogMoved:
            opened.update_incremental()
    raise StorageFailed(f"{folder.uri} has a log whose parts are missing: restore _delta_log")


def _time(now_ms: int) -> datetime:
    return datetime.fromtimestamp(now_ms / 1000, UTC)

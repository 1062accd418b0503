"""How long the files of a table's earlier versions are kept. Pure.

They are kept for HISTORY. If a table changes a lot, they are kept only as long as they take no more than so many bytes:
half of these for files of rows, half for the log of the table's versions. If the last version of a table says
everything that earlier ones said, its files of rows get a tenth of their half. Each write lists the log, so the log
also has a limit on its number of files.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import NamedTuple

HISTORY = timedelta(days=7)
# A reader of a version, or a writer on it, has at least so long to end.
DATA_AT_LEAST = timedelta(seconds=10)
LOG_AT_LEAST = timedelta(minutes=1)
# Each write looks at every file of the log three times. With 3,000 files it takes 1.7 times as long as with 300, with
# 1,000 it takes 1.2 times as long.
LOG_FILES_MAX = 1_000

LOG = "_delta_log/"
RETENTION_OF_DATA = "delta.deletedFileRetentionDuration"
RETENTION_OF_LOG = "delta.logRetentionDuration"


class StoredFile(NamedTuple):
    #: Within the table's folder.
    path: str
    size: int
    written: datetime


def retention(
    files: Iterable[StoredFile], bytes_max: int, now: datetime, *, keeps_versions: bool = True
) -> dict[str, timedelta]:
    """How long a table with these files keeps what, by the names of its properties. keeps_versions: see
    columns.Table."""
    data_bytes_max = bytes_max // (2 if keeps_versions else 20)
    log: list[StoredFile] = []
    data: list[StoredFile] = []
    for file in files:
        (log if file.path.startswith(LOG) else data).append(file)
    return {
        RETENTION_OF_DATA: max(DATA_AT_LEAST, _kept(data, data_bytes_max, now)),
        RETENTION_OF_LOG: max(LOG_AT_LEAST, _kept(log, bytes_max // 2, now, LOG_FILES_MAX)),
    }


def is_due(present: timedelta | None, wanted: timedelta) -> bool:
    """Whether to write the property. Each write makes a version, so only for a large change, or if less is to be
    kept."""
    return present is None or wanted < present or wanted >= 2 * present


def as_interval(time: timedelta) -> str:
    return f"interval {int(time.total_seconds())} seconds"


def from_interval(text: str | None) -> timedelta | None:
    """The time in a property; None if it is not as this module writes it."""
    words = (text or "").split()
    if len(words) != 3 or words[0] != "interval" or words[2] != "seconds" or not words[1].isdecimal():
        return None
    return timedelta(seconds=int(words[1]))


def _kept(files: list[StoredFile], bytes_max: int, now: datetime, count_max: int | None = None) -> timedelta:
    left = bytes_max
    for number, file in enumerate(sorted(files, key=lambda each: each.written, reverse=True)):
        left -= file.size
        if left < 0 or number == count_max:
            return min(HISTORY, max(timedelta(), now - file.written))
    return HISTORY

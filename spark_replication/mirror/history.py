"""How long what earlier versions of a table were made of is kept: for HISTORY, or, of a table that changes a lot, as
long as it takes no more than so many bytes. Half of these are for files of rows, half for the log that tells of them.
Of a table whose last version says what the earlier ones said, files of rows have a tenth of their half. Each write
lists the log, so that has no more than so many files, whatever their size. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import NamedTuple

HISTORY = timedelta(days=7)
# Whoever reads a version, or writes on it, has so long to end.
DATA_AT_LEAST = timedelta(seconds=10)
LOG_AT_LEAST = timedelta(minutes=1)
# Each write looks at every file of the log three times. With 3,000 it takes 1.7 times as long as with 300, with 1,000
# 1.2 times.
LOG_FILES_MAX = 1_000

LOG = "_delta_log/"
RETENTION_OF_DATA = "delta.deletedFileRetentionDuration"
RETENTION_OF_LOG = "delta.logRetentionDuration"


class StoredFile(NamedTuple):
    path: str  # in the table's folder
    size: int
    written: datetime


def retention(
    files: Iterable[StoredFile], bytes_max: int, now: datetime, *, keeps_versions: bool = True
) -> dict[str, timedelta]:
    """Of a table with these files, by the names of its properties. keeps_versions: see columns.Table."""
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
    """Whether the property is to be written anew: each time makes a version. At once if less is to be kept."""
    return present is None or wanted < present or wanted >= 2 * present


def as_interval(time: timedelta) -> str:
    return f"interval {int(time.total_seconds())} seconds"


def from_interval(text: str | None) -> timedelta | None:
    """None: it is not as this module writes it."""
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

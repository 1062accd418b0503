"""The file that says where a log starts, once it was trimmed."""

from __future__ import annotations

from pathlib import Path

from spark_replication.errors import CorruptState
from spark_replication.model import Offset, Value, decode, encode
from spark_replication.storage.disk.files import Files
from spark_replication.storage.disk.state_files import read_checked, write_checked

LOG_START_FILE = "log_start.json"


class LogStart(Value, frozen=True, kw_only=True):
    """log_start.json."""

    offset: int


def read_log_start(files: Files, folder: Path) -> Offset:
    """The start of the log; 0 if it was never trimmed, since then there is no such file."""
    path = folder / LOG_START_FILE
    data = read_checked(path, files)
    return decode(data, LogStart, str(path)).offset if data is not None else 0


def save_log_start(files: Files, folder: Path, offset: Offset) -> None:
    """Bring the log's start to the disk before this returns: what lies below is removed next."""
    value = encode(LogStart(offset=offset))
    files.with_reserve(lambda: write_checked(folder / LOG_START_FILE, value, durable=True, files=files))


def keep_log_start(files: Files, folder: Path, offset: Offset) -> None:
    """Bring to the disk that the log starts where it did, after a save of another start has failed somewhere. That
    takes no room if the save had none either."""
    try:
        is_stored = read_log_start(files, folder) == offset
    except CorruptState:
        is_stored = False
    if is_stored:
        files.sync_folder(folder)
    else:
        save_log_start(files, folder, offset)

"""Small files: written beside and renamed over, so that a reader sees the old or the new one, never half of one.

Those of a log carry a checksum in front: `1c291ca3 {"v":1,…}`. A person can read them, and damage to them is noticed.
"""

from __future__ import annotations

from pathlib import Path

from crc32c import crc32c

from spark_replication.errors import CorruptState
from spark_replication.storage.disk.files import Files, LocalFiles

_CHECKSUM_DIGITS = 8
BESIDE = ".tmp"

# For a process's own files beside the logs, which no simulator runs: they are not kept open.
LOCAL_FILES = LocalFiles(open_files_max=1)


def replace_file(path: Path, data: bytes, *, durable: bool, files: Files = LOCAL_FILES) -> None:
    """Write `data` in place of what the file had. With `durable` it is on the disk, name and all, before this returns;
    else it is handed to the kernel, like the log's bytes (F0)."""
    beside = path.with_name(path.name + BESIDE)
    files.create(beside, data)
    if durable:
        files.sync(beside)
    files.replace(beside, path)
    if durable:
        files.sync_folder(path.parent)


def remove_file(path: Path, *, files: Files = LOCAL_FILES) -> None:
    """Remove the file for good: it does not come back after a crash of the host."""
    files.remove(path)
    files.sync_folder(path.parent)


def read_file(path: Path, *, files: Files = LOCAL_FILES) -> bytes | None:
    try:
        return files.read_whole(path)
    except FileNotFoundError:
        return None


def checked(value: bytes) -> bytes:
    """A line with its checksum in front."""
    return b"%08x %s\n" % (crc32c(value), value)


def unchecked(line: bytes) -> bytes | None:
    """The value of such a line; None if it does not have its checksum."""
    value = line[_CHECKSUM_DIGITS + 1 : -1]
    return value if line == checked(value) else None


def write_checked(path: Path, value: bytes, *, durable: bool = False, files: Files) -> None:
    replace_file(path, checked(value), durable=durable, files=files)


def read_checked(path: Path, files: Files) -> bytes | None:
    """The value in the file; None if there is no such file. Raises CorruptState if its checksum does not hold."""
    data = read_file(path, files=files)
    if data is None:
        return None
    value = unchecked(data)
    if value is None:
        raise CorruptState(f"{path} does not have its checksum: remove it, if it cannot be rebuilt")
    return value

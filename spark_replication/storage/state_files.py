"""Small files: written beside and renamed over, so that a reader sees the old or the new one, never half of one.

Those of a log carry a checksum in front: `1c291ca3 {"v":1,…}`. A person can read them; damage to them is noticed.
"""

from __future__ import annotations

import os
from pathlib import Path

from crc32c import crc32c

from spark_replication.errors import CorruptState

_CHECKSUM_DIGITS = 8
BESIDE = ".tmp"


def replace_file(path: Path, data: bytes, *, durable: bool) -> None:
    """durable: on the disk, name and all, before it returns; else handed to the kernel, like the log's bytes (F0)."""
    beside = path.with_name(path.name + BESIDE)
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        write_fully(handle, data, 0)
        if durable:
            os.fsync(handle)
    finally:
        os.close(handle)
    beside.replace(path)
    if durable:
        sync_folder(path.parent)


def remove_file(path: Path) -> None:
    """For good: it does not come back after a crash of the host."""
    path.unlink(missing_ok=True)
    sync_folder(path.parent)


def read_file(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def write_checked(path: Path, value: bytes) -> None:
    replace_file(path, b"%08x %s\n" % (crc32c(value), value), durable=False)


def read_checked(path: Path) -> bytes | None:
    """None: there is no such file. CorruptState if its checksum does not hold."""
    data = read_file(path)
    if data is None:
        return None
    value = data[_CHECKSUM_DIGITS + 1 : -1]
    if data != b"%08x %s\n" % (crc32c(value), value):
        raise CorruptState(f"{path} does not have its checksum: remove it, if it cannot be rebuilt")
    return value


def sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_fully(handle: int, data: bytes | bytearray | memoryview, position: int) -> None:
    """The kernel may take less than it is given, above all when the disk is nearly full."""
    written = os.pwrite(handle, data, position)
    if written == len(data):
        return
    rest = memoryview(data)
    while written < len(rest):
        written += os.pwrite(handle, rest[written:], position + written)


def read_fully(handle: int, length: int, position: int) -> bytes:
    """Fewer bytes only where the file ends."""
    data = os.pread(handle, length, position)
    while len(data) < length:
        more = os.pread(handle, length - len(data), position + len(data))
        if not more:
            break
        data += more
    return data

"""A broker's log directory: its lock, its identity, and the proofs of the broker's last life that it lost nothing (I8).

Rules:
- One process lives in a directory, and holds the directory's lock for as long as it does. The kernel releases the lock
  when the process ends.
- The clean-shutdown file is written last, after the flush. Both proofs, that file and the start record, are gone from
  the disk before anything is cut.
- What the disk refuses is raised as StorageFailed. A proof that cannot be read proves nothing.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from spark_replication.errors import CorruptState, DirectoryInUse, StorageFailed, WrongCluster
from spark_replication.model import DirectoryIdentity, Epoch, Value, decode, encode
from spark_replication.process.files import OWNER_ALONE, is_lock_taken, own_directory, take_lock
from spark_replication.storage.disk.files import Files
from spark_replication.storage.disk.state_files import LOCAL_FILES, read_file, remove_file, replace_file

LOCK_FILE = "lock"
IDENTITY_FILE = "meta.json"
START_FILE = "start.json"
CLEAN_SHUTDOWN_FILE = "clean_shutdown.json"
MARK_FILE = "mark"

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_MARK_BYTES = 16

Proof = TypeVar("Proof")


class StartRecord(Value, frozen=True, kw_only=True):
    """start.json: host boot and directory of the last registration, and the broker epoch that it got."""

    boot_id: str
    directory_mark: str
    epoch: Epoch


class CleanShutdown(Value, frozen=True, kw_only=True):
    """clean_shutdown.json: the broker epoch whose log was flushed whole."""

    broker_epoch: Epoch


class DirectoryLock:
    """The lock of a directory, held from `take` until `release` or the end of the process.

    It can be probed without being taken: so a guardian's probe never makes a starting broker believe that the directory
    is in use.
    """

    def __init__(self, handle: int) -> None:
        self._handle = handle

    @classmethod
    def take(cls, directory: Path, mode: int | None = OWNER_ALONE) -> DirectoryLock:
        """Take the lock without waiting. Raises DirectoryInUse if another process has it. The directory gets this mode;
        None: it stays as it is, whoever owns it."""
        path = directory / LOCK_FILE
        try:
            if mode is None:
                directory.mkdir(parents=True, exist_ok=True)
            else:
                own_directory(directory, mode)
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StorageFailed(f"{path} cannot be opened: {error}. Check the directory's owner and disk") from error
        try:
            is_taken = take_lock(handle)
        except OSError as error:
            os.close(handle)
            raise StorageFailed(f"{path} cannot be locked: {error}. Its disk must know locks") from error
        if not is_taken:
            os.close(handle)
            raise DirectoryInUse(f"another broker lives in {directory}: stop it, or choose another log.dir")
        return cls(handle)

    def release(self) -> None:
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)


def probe(directory: Path) -> bool:
    """Whether a process lives in this directory. Takes no lock."""
    try:
        handle = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return is_lock_taken(handle)
    finally:
        os.close(handle)


def read_identity(directory: Path) -> DirectoryIdentity | None:
    path = directory / IDENTITY_FILE
    with _disk("read", path):
        data = read_file(path)
    return decode(data, DirectoryIdentity, str(path)) if data is not None else None


def write_identity(directory: Path, identity: DirectoryIdentity) -> None:
    """Write the identity of a new directory. Raises WrongCluster if the directory has another one."""
    known = read_identity(directory)
    if known is not None and known != identity:
        raise WrongCluster(
            f"{directory} belongs to broker {known.broker_id} of cluster {known.cluster_id}, "
            f"not to broker {identity.broker_id} of {identity.cluster_id}: choose another log.dir"
        )
    if known is None:  # a full disk would refuse to write the same again
        _replace(directory / IDENTITY_FILE, encode(identity), LOCAL_FILES)


def read_start_record(directory: Path) -> StartRecord | None:
    """The start record; None if there is none, or it is damaged and proves nothing."""
    return _read_proof(directory / START_FILE, StartRecord)


def write_start_record(directory: Path, record: StartRecord, files: Files = LOCAL_FILES) -> None:
    """Write the start record, after registration (I8). `files` has a reserve, once there is one."""
    _replace(directory / START_FILE, encode(record), files)


def read_clean_shutdown(directory: Path) -> CleanShutdown | None:
    """The clean-shutdown file; None if there is none, or it is damaged and proves nothing."""
    return _read_proof(directory / CLEAN_SHUTDOWN_FILE, CleanShutdown)


def write_clean_shutdown(directory: Path, record: CleanShutdown, files: Files = LOCAL_FILES) -> None:
    """Write the clean-shutdown file, last, after the flush (B3)."""
    _replace(directory / CLEAN_SHUTDOWN_FILE, encode(record), files)


def remove_clean_shutdown(directory: Path) -> None:
    """Remove the clean-shutdown file. Its epoch ends when the broker registers again: a file that stays proves
    nothing."""
    _remove(directory / CLEAN_SHUTDOWN_FILE)


def drop_proofs(directory: Path) -> None:
    """Remove both proofs, before recovery cuts anything: if that is interrupted, the next recovery does not see what
    the first one cut."""
    _remove(directory / START_FILE)
    _remove(directory / CLEAN_SHUTDOWN_FILE)


def boot_id() -> str:
    return _BOOT_ID.read_text().strip()


def directory_mark(directory: Path) -> str:
    """The directory's device and inode, and a random mark inside it: a copied, restored or replaced directory differs
    in at least one of them."""
    path = directory / MARK_FILE
    with _disk("read", path):
        data = read_file(path)
        status = directory.stat()
    if data is None:
        data = secrets.token_hex(_MARK_BYTES).encode()
        _replace(path, data, LOCAL_FILES)
    return f"{status.st_dev}:{status.st_ino}:{data.decode(errors='replace')}"


def _read_proof(path: Path, kind: type[Proof]) -> Proof | None:
    try:
        data = read_file(path)
        return None if data is None else decode(data, kind, str(path))
    except (CorruptState, OSError):
        return None


def _replace(path: Path, data: bytes, files: Files) -> None:
    with _disk("written", path):
        files.with_reserve(lambda: replace_file(path, data, durable=True, files=files))


def _remove(path: Path) -> None:
    with _disk("removed", path):
        remove_file(path)


@contextmanager
def _disk(done: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageFailed(f"{path} cannot be {done}: {error}. Free space or repair the disk") from error

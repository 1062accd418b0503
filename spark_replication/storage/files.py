"""What a log does to files, as one port: the kernel beneath it, or a simulator that loses, tears and refuses."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from spark_replication.ports import StoredBytes
from spark_replication.storage.index import Buffer
from spark_replication.storage.reserve import Reserve, with_reserve

WARM_BYTES = 256 << 10  # what `warm` reads at a time


class Files(Protocol):
    """The files and folders of a broker's logs, by path. What an implementation promises, and all that a log relies on:

    - Visible: what a call did, every later call sees, of any thread and of the next process too. No order is to be
      waited for, no handle to be given back.
    - A call that raises may have done a part: `write` and `create` some of their bytes, `truncate`, `remove`,
      `replace` and `rename_folder` all or nothing, `remove_folder` any of its files. Bytes outside those that a
      `write` names are never touched by it.
    - A process that dies loses nothing of the calls that returned, and may have done a part of the one that had not.
    - A host that dies keeps what was synced before, and of the rest any part, in no order: of each file any of its
      blocks old or new, zeros where there was none, and any size between the two; of each folder any of the names that
      came, went or were replaced. A name may be there without its bytes: `replace` of a file that was not synced may
      leave torn content under the new name.
    - `sync` covers what of that file had been written, cut or created before it was called, its size too, but not its
      name: that is `sync_folder`'s, of the folder that it stands in. A `sync` that raises says that nobody knows which
      of the bytes are kept; one that succeeds after it vouches for none of them.
    - Different files may be used by several threads at one time; of one file, any number of readers beside one writer,
      and a `sync` beside all of them.
    - Failures are OSError, its errno as the kernel's: ENOSPC, EDQUOT and EFBIG of a full disk, EIO of a broken one.
      FileNotFoundError where what is named is not there, unless it is said otherwise.
    """

    def read(self, path: Path, length: int, position: int) -> bytes:
        """Fewer bytes than `length` only where the file ends."""

    def stored(self, path: Path, length: int, position: int) -> StoredBytes:
        """A range that is read later; whatever happens to the name meanwhile, it is of the file that has it now."""

    def read_whole(self, path: Path) -> bytes: ...

    def size(self, path: Path) -> int | None:
        """None: there is no such file."""

    def create(self, path: Path, data: Buffer) -> None:
        """A file with this content, whatever was there before."""

    def write(self, path: Path, data: Buffer, position: int) -> None:
        """All of `data`, over whatever is there; the file grows as needed. It must exist."""

    def truncate(self, path: Path, size: int) -> None: ...

    def sync(self, path: Path) -> None: ...

    def replace(self, path: Path, target: Path) -> None:
        """`path` becomes `target`, whose file is gone, in one step."""

    def remove(self, path: Path) -> None:
        """No error if it is not there."""

    def release(self, path: Path) -> None:
        """Nobody will need it for a while: what keeps it at hand may be given back."""

    def file_names(self, folder: Path) -> list[str]:
        """In no order."""

    def folder_names(self, folder: Path) -> list[str]:
        """In no order."""

    def make_folder(self, folder: Path) -> None:
        """With those above it; no error if it is there."""

    def rename_folder(self, folder: Path, target: Path) -> None:
        """`target` is not there before. No file of it is in use."""

    def remove_folder(self, folder: Path) -> None:
        """With all that is in it."""

    def sync_folder(self, folder: Path) -> None:
        """The names in it, not their content."""

    def with_reserve(self, change: Callable[[], None]) -> None:
        """Performs `change`, which is small, and either makes room or keeps a broker serving. Where the disk is full it
        is performed again from its beginning, with room that was kept in reserve; OSError once that is used up, too."""

    def keep_reserve(self) -> None:
        """What of the reserve was used is kept aside again, as far as there is room. No error if there is none."""


class LocalFiles:
    """The kernel's files. Those that are read, written or cut stay open, at most `open_files_max` at a time: ten
    thousand logs need no more descriptors than a few hundred.

    A descriptor is closed when the last call that uses it lets go: a thread that opens one file never pulls away that
    of another in the midst of its write.
    """

    def __init__(self, *, open_files_max: int, reserve: Path | None = None) -> None:
        """reserve: the file that keeps room; None: there is none."""
        self._reserve = None if reserve is None else Reserve(reserve)
        self._open_files_max = open_files_max
        self._open: dict[Path, _Descriptor] = {}  # who comes first is asked first to make room
        self._changing = threading.Lock()  # of _open: it is looked into without

    def read(self, path: Path, length: int, position: int) -> bytes:
        used = self._used(path)  # held, not its number alone: it is closed once nobody refers to it
        return _read(used.number, length, position)

    def stored(self, path: Path, length: int, position: int) -> StoredBytes:
        return StoredRange(path, self._used(path), length, position)

    def read_whole(self, path: Path) -> bytes:
        return path.read_bytes()

    def size(self, path: Path) -> int | None:
        try:
            return path.stat().st_size
        except FileNotFoundError:
            return None

    def create(self, path: Path, data: Buffer) -> None:
        created = _Descriptor(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644))
        _write_rest(created.number, data, 0, 0)

    def write(self, path: Path, data: Buffer, position: int) -> None:
        used = self._used(path)
        written = os.pwrite(used.number, data, position)
        if written < len(data):
            _write_rest(used.number, data, position, written)

    def truncate(self, path: Path, size: int) -> None:
        used = self._open.get(path) or self._opened(path)
        os.ftruncate(used.number, size)

    def sync(self, path: Path) -> None:
        # Not kept open: beside it the file may be removed, and made anew under its name.
        used = self._open.get(path) or _Descriptor(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        os.fdatasync(used.number)

    def replace(self, path: Path, target: Path) -> None:
        path.replace(target)
        self.release(path)
        self.release(target)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self.release(path)

    def release(self, path: Path) -> None:
        with self._changing:
            self._open.pop(path, None)

    def file_names(self, folder: Path) -> list[str]:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if not entry.is_dir()]

    def folder_names(self, folder: Path) -> list[str]:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if entry.is_dir()]

    def make_folder(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)

    def rename_folder(self, folder: Path, target: Path) -> None:
        folder.rename(target)
        self._release_below(folder)

    def remove_folder(self, folder: Path) -> None:
        self._release_below(folder)
        shutil.rmtree(folder)

    def sync_folder(self, folder: Path) -> None:
        opened = _Descriptor(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        os.fsync(opened.number)

    def with_reserve(self, change: Callable[[], None]) -> None:
        reserve = self._reserve
        with_reserve(change, lambda: reserve is not None and reserve.give())

    def keep_reserve(self) -> None:
        if self._reserve is not None:
            self._reserve.make()

    def _release_below(self, folder: Path) -> None:
        below = f"{folder}/"
        with self._changing:
            for path in [path for path in self._open if str(path).startswith(below)]:
                del self._open[path]

    def _used(self, path: Path) -> _Descriptor:
        used = self._open.get(path) or self._opened(path)
        used.recently = True
        return used

    def _opened(self, path: Path) -> _Descriptor:
        opened = _Descriptor(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        with self._changing:
            self._open[path] = opened
            while len(self._open) > self._open_files_max:
                self._make_room()
        return opened

    def _make_room(self) -> None:
        """Who was used since it was asked last keeps its place once more: nearly the least recently used gives way."""
        first = next(iter(self._open))
        candidate = self._open.pop(first)
        if candidate.recently:
            candidate.recently = False
            self._open[first] = candidate


class _Descriptor:
    """Open for as long as somebody refers to it. recently: used since room was made last."""

    __slots__ = ("number", "recently")

    def __init__(self, number: int) -> None:
        self.number = number
        self.recently = True

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self.number)


class StoredRange:
    """ports.StoredBytes."""

    __slots__ = ("_descriptor", "_length", "_path", "_position")

    def __init__(self, path: Path, descriptor: _Descriptor, length: int, position: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self._length = length
        self._position = position

    def __len__(self) -> int:
        return self._length

    def read(self) -> bytes:
        data = _read(self._descriptor.number, self._length, self._position)
        if len(data) < self._length:
            raise OSError(errno.EIO, f"the file has {len(data)} of {self._length} bytes", str(self._path))
        return data

    @property
    def is_cached(self) -> bool:
        try:
            for position in (self._position, self._position + self._length - 1):
                os.preadv(self._descriptor.number, [bytearray(1)], position, os.RWF_NOWAIT)
        except OSError:  # it would wait, or this file system cannot tell
            return False
        return True

    def warm(self) -> None:
        scratch = bytearray(min(WARM_BYTES, self._length))
        with suppress(OSError):
            os.posix_fadvise(self._descriptor.number, self._position, self._length, os.POSIX_FADV_WILLNEED)
            for position in range(self._position, self._position + self._length, WARM_BYTES):
                os.preadv(self._descriptor.number, [scratch], position)

    def send_to(self, connection: int, position: int) -> int:
        try:
            return os.sendfile(connection, self._descriptor.number, self._position + position, self._length - position)
        except BlockingIOError:
            raise
        except OSError:  # of the file, or of the connection: then whoever goes on with it meets it again
            return 0


def _read(number: int, length: int, position: int) -> bytes:
    data = os.pread(number, length, position)
    while len(data) < length:
        more = os.pread(number, length - len(data), position + len(data))
        if not more:
            break
        data += more
    return data


def _write_rest(number: int, data: Buffer, position: int, written: int) -> None:
    """The kernel may take less than it is given, above all when the disk is nearly full."""
    rest = memoryview(data)
    while written < len(rest):
        written += os.pwrite(number, rest[written:], position + written)

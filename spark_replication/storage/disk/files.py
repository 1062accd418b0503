"""The file operations of a log, as one port: the kernel performs them, or a simulator that loses, tears and refuses."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TypeVar

from spark_replication.ports import StoredBytes
from spark_replication.storage.disk.reserve import Reserve, with_reserve
from spark_replication.storage.format.index import Buffer

WARM_BYTES = 256 << 10  # what `warm` reads at a time

_NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE})

Opened = TypeVar("Opened")


class Files(Protocol):
    """The files and folders of a broker's logs, by path. An implementation promises the following, and a log relies on
    nothing else:

    - Every later call sees what a call did, on any thread and in the next process, too. There is nothing to wait for,
      and no handle to give back.
    - A call that raises may be done in part. `write` and `create` may have done some of their bytes, `remove_folder`
      some of its files; `truncate`, `remove`, `replace` and `rename_folder` all or nothing. A `write` never touches
      bytes other than those that it names.
    - A process that dies loses nothing of the calls that returned. The call that had not may be done in part.
    - A host that dies keeps what was synced before. Of the rest it keeps any part, in no order: of each file any of its
      blocks old or new, zeros where there was none, and any size between the two; of each folder any of the names that
      came, went or were replaced. A name may be there without its bytes: `replace` of a file that was not synced may
      leave torn content under the new name.
    - `sync` covers what was written to the file, or cut off it, before the call, its size and its creation, too. It
      does not cover the name: `sync_folder` of the folder that it stands in does. After a `sync` that raises, nobody
      knows which of the bytes are on the disk; a later one that succeeds vouches for none of them.
    - Several threads may use different files at one time. One file may have any number of readers beside one writer,
      and a `sync` beside all of them.
    - Failures are OSError with the kernel's errno: ENOSPC, EDQUOT and EFBIG for a full disk, EIO for a broken one. It
      is FileNotFoundError where what is named is not there, unless the method says otherwise.
    """

    def read(self, path: Path, length: int, position: int) -> bytes:
        """Read `length` bytes, fewer only where the file ends."""

    def stored(self, path: Path, length: int, position: int) -> StoredBytes:
        """A range to be read later. It stays one of the file that this name has at the call, whatever happens to the
        name."""

    def read_whole(self, path: Path) -> bytes: ...

    def size(self, path: Path) -> int | None:
        """The size of the file; None if there is none."""

    def create(self, path: Path, data: Buffer) -> None:
        """Make a file with this content, whatever was there before."""

    def write(self, path: Path, data: Buffer, position: int) -> None:
        """Write all of `data`, over whatever is there. The file must exist, and grows as needed."""

    def truncate(self, path: Path, size: int) -> None: ...

    def sync(self, path: Path) -> None: ...

    def replace(self, path: Path, target: Path) -> None:
        """Rename `path` to `target` in one step, in place of a file that was there."""

    def remove(self, path: Path) -> None:
        """Remove the file. No error if it is not there."""

    def release(self, path: Path) -> None:
        """Give back what keeps the file at hand: nobody will need it for a while."""

    def file_names(self, folder: Path) -> list[str]:
        """The names of the files in a folder, in no order."""

    def folder_names(self, folder: Path) -> list[str]:
        """The names of the folders in a folder, in no order."""

    def make_folder(self, folder: Path) -> None:
        """Make the folder, and those above it. No error if it is there."""

    def rename_folder(self, folder: Path, target: Path) -> None:
        """Rename the folder. `target` must not be there, and no file of the folder in use."""

    def remove_folder(self, folder: Path) -> None:
        """Remove the folder with all that is in it."""

    def sync_folder(self, folder: Path) -> None:
        """Sync the names in the folder, not the content of its files."""

    def with_reserve(self, change: Callable[[], None]) -> None:
        """Perform `change`, a small one that either makes room or keeps a broker serving. If the disk is full, perform
        it again from its beginning, with room that was kept in reserve. Raises OSError once the reserve is used up,
        too."""

    def keep_reserve(self) -> None:
        """Fill the reserve again, as far as there is room. No error if there is none."""


class LocalFiles:
    """The kernel's files. Those that are read, written or cut stay open, at most `open_files_max` at a time: ten
    thousand logs need no more descriptors than a few hundred do.

    A descriptor is closed once no call uses it: a thread that opens one file never closes another thread's in the midst
    of its write. Those that are open are also what a process has left that has no other descriptor.
    """

    def __init__(self, *, open_files_max: int, reserve: Path | None = None) -> None:
        """`reserve` is the file that keeps room; with None there is none."""
        self._reserve = None if reserve is None else Reserve(reserve)
        self._open_files_max = open_files_max
        #: The first one is asked first to make room.
        self._open: dict[Path, _Descriptor] = {}
        #: Held while _open changes. Look-ups do without it.
        self._changing = threading.Lock()

    def read(self, path: Path, length: int, position: int) -> bytes:
        used = self._used(path)  # hold the object, not its number alone: it is closed once nobody refers to it
        return _read(used.number, length, position)

    def stored(self, path: Path, length: int, position: int) -> StoredBytes:
        return StoredRange(path, self._used(path), length, position)

    def read_whole(self, path: Path) -> bytes:
        return self._with_descriptor(path.read_bytes)

    def size(self, path: Path) -> int | None:
        try:
            return path.stat().st_size
        except FileNotFoundError:
            return None

    def create(self, path: Path, data: Buffer) -> None:
        created = self._descriptor(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
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
        # Not kept in _open: during the sync the file may be removed, and made anew under its name.
        used = self._open.get(path) or self._descriptor(path, os.O_RDONLY)
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
        with self._with_descriptor(lambda: os.scandir(folder)) as entries:
            return [entry.name for entry in entries if not entry.is_dir()]

    def folder_names(self, folder: Path) -> list[str]:
        with self._with_descriptor(lambda: os.scandir(folder)) as entries:
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
        opened = self._descriptor(folder, os.O_RDONLY | os.O_DIRECTORY)
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
        opened = self._descriptor(path, os.O_RDWR)
        with self._changing:
            self._open[path] = opened
            while len(self._open) > self._open_files_max:
                self._make_room()
        return opened

    def _descriptor(self, path: Path, flags: int) -> _Descriptor:
        return _Descriptor(self._with_descriptor(lambda: os.open(path, flags | os.O_CLOEXEC, 0o644)))

    def _with_descriptor(self, opens: Callable[[], Opened]) -> Opened:
        """What this opens. While the process has no descriptor left, because of connections say, an open file gives
        way: that is no failure of the disk."""
        while True:
            try:
                return opens()
            except OSError as error:
                if error.errno not in _NO_DESCRIPTOR or not self._give_way():
                    raise

    def _give_way(self) -> bool:
        with self._changing:
            if not self._open:
                return False
            del self._open[next(iter(self._open))]
            return True

    def _make_room(self) -> None:
        """Ask the first file to give way. One that was used since it was last asked goes to the end instead: so the
        file that gives way is nearly the least recently used."""
        first = next(iter(self._open))
        candidate = self._open.pop(first)
        if candidate.recently:
            candidate.recently = False
            self._open[first] = candidate


class _Descriptor:
    """A descriptor, open for as long as somebody refers to this object."""

    __slots__ = ("number", "recently")

    def __init__(self, number: int) -> None:
        self.number = number
        #: Whether it was used since it was last asked to make room.
        self.recently = True

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self.number)


class StoredRange:
    """A ports.StoredBytes of the kernel's files."""

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
        except OSError:  # the read would wait, or this file system cannot tell
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
        except OSError:  # of the file, or of the connection: its next use meets the error again
            return 0

    def read_into(self, room: memoryview, position: int) -> int:
        with suppress(OSError):
            return os.preadv(self._descriptor.number, [room[: self._length - position]], self._position + position)
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
    """Write the rest: the kernel may take less than it is given, above all when the disk is nearly full."""
    rest = memoryview(data)
    while written < len(rest):
        written += os.pwrite(number, rest[written:], position + written)

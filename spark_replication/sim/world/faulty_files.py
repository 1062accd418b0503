"""storage.disk.files.Files of one simulated host: in memory, and as bad as that port allows a disk to be.

A process that dies loses nothing that was written. A host that loses power keeps what was synced, and any part of the
rest: of a file, its first writes and a part of the next one, or any of its blocks; of a folder, any of the names that
came, went or were replaced. A full disk takes half of a write that does not fit, and has only the room that was freed
since it is full. A failed sync loses any of the blocks: they are read as they were written until the power goes, and
later syncs do not write them. Bits of a file may rot: they are read as others than were written, until they are written
again.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

from spark_replication.ports import StoredBytes
from spark_replication.sim.world.world import Killed
from spark_replication.storage.disk.reserve import with_reserve
from spark_replication.storage.format.index import Buffer

BLOCK_BYTES = 48  # small, as everything here is: an entry of the index may lie in two blocks
NAME_BYTES = BLOCK_BYTES  # the room that a name takes
RESERVE_BYTES, RESERVE_PART_BYTES = 4096, 512
# A loss of power that draws less than ALL_KEPT keeps all writes; less than FIRST_KEPT, the first ones; else any blocks.
ALL_KEPT, FIRST_KEPT = 0.3, 0.85


class InMemory(bytes):
    """ports.StoredBytes, read when they were asked for."""

    def read(self) -> bytes:
        return self

    @property
    def is_cached(self) -> bool:
        return True

    def warm(self) -> None:
        """Do nothing: the bytes are in memory."""

    def send_to(self, connection: int, position: int) -> int:
        return os.write(connection, self[position:])

    def read_into(self, room: memoryview, position: int) -> int:
        part = self[position : position + len(room)]
        room[: len(part)] = part
        return len(part)


class File:
    __slots__ = ("_doubtful", "_rotten", "_steps", "_synced", "content", "cuts")

    def __init__(self) -> None:
        #: The bytes as they were written. Every process sees them so, but for those that have rotted.
        self.content = bytearray()
        #: The places of bytes that have rotted.
        self._rotten: frozenset[int] = frozenset()
        #: How often it was changed elsewhere than at its end.
        self.cuts = 0
        self._synced = b""
        self._doubtful = False  # a sync has failed: the steps after what is synced do not make the content
        #: The changes since the last sync: a position and the bytes written there, or a size and None for a cut.
        self._steps: list[tuple[int, bytes | None]] = []

    def rot(self, position: int) -> None:
        self._rotten |= {position}

    def read(self, length: int, position: int) -> bytes:
        data = self.content[position : position + length]
        for place in self._rotten:
            if position <= place < position + len(data):
                data[place - position] ^= 1
        return bytes(data)

    def write(self, data: bytes, position: int) -> None:
        if position < len(self.content):
            self.cuts += 1
        if self._rotten:
            self._rotten -= {*range(position, position + len(data))}
        self._steps.append((position, data))
        _step(self.content, position, data)

    def truncate(self, size: int) -> None:
        if self._rotten:
            self._rotten = frozenset(place for place in self._rotten if place < size)
        if size != len(self.content):
            self.cuts += 1
            self._steps.append((size, None))
            _step(self.content, size, None)

    def sync(self) -> None:
        if self._steps:
            self._synced = self._written_back()
            self._steps.clear()

    def fail_sync(self, rng: random.Random) -> bool:
        """Lose any of the blocks, as a sync does that fails. False if there is nothing to sync."""
        if not self._steps:
            return False
        whole = self._written_back()
        lost = _mixed(self._synced, whole, rng)[: len(whole)]
        self._synced = bytes(lost.ljust(len(whole), b"\0"))
        self._steps.clear()
        self._doubtful = True
        return True

    def _written_back(self) -> bytes:
        if not self._doubtful:
            return bytes(self.content)
        whole = bytearray(self._synced)
        for position, data in self._steps:
            _step(whole, position, data)
        return bytes(whole)

    def lose_power(self, rng: random.Random) -> None:
        if not self._steps and not self._doubtful:
            return
        self.content = bytearray(self._written_back())
        fate = rng.random()
        if fate >= FIRST_KEPT:
            self.content = _mixed(self._synced, bytes(self.content), rng)
        elif fate >= ALL_KEPT:
            kept = rng.randrange(len(self._steps) + 1)
            self.content = bytearray(self._synced)
            for position, data in self._steps[:kept]:
                _step(self.content, position, data)
            position, data = self._steps[kept] if kept < len(self._steps) else (0, None)
            if data is not None:
                _step(self.content, position, data[: rng.randrange(len(data) + 1)])
        self.cuts += 1
        self._synced = bytes(self.content)
        self._steps.clear()
        self._doubtful = False


def _step(content: bytearray, position: int, data: bytes | None) -> None:
    content.extend(bytes(max(0, position - len(content))))
    if data is None:
        del content[position:]
    else:
        content[position : position + len(data)] = data


def _mixed(old: bytes, new: bytes, rng: random.Random) -> bytearray:
    """Mix two contents: each block is the old or the new one, or zeros without one; the size is any between the two."""
    size = rng.randint(min(len(old), len(new)), max(len(old), len(new)))
    mixed = bytearray()
    while len(mixed) < size:
        block = slice(len(mixed), min(len(mixed) + BLOCK_BYTES, size))
        chosen = rng.choice((old, new, new))
        mixed += chosen[block].ljust(block.stop - block.start, b"\0")
    return mixed


class Folder:
    __slots__ = ("_synced", "changes", "names")

    def __init__(self) -> None:
        #: The names as every process sees them.
        self.names: dict[str, File | Folder] = {}
        #: How often a name came, went or was replaced.
        self.changes = 0
        self._synced: dict[str, File | Folder] = {}

    def put(self, name: str, found: File | Folder) -> None:
        self.names[name] = found
        self.changes += 1

    def take(self, name: str) -> None:
        del self.names[name]
        self.changes += 1

    def sync(self) -> None:
        self._synced = dict(self.names)

    def lose_power(self, rng: random.Random) -> None:
        for name in sorted(self.names.keys() | self._synced.keys()):
            old, new = self._synced.get(name), self.names.get(name)
            kept = new if old is new or rng.random() < 0.5 else old
            if kept is None:
                self.names.pop(name, None)
            else:
                self.names[name] = kept
        self.changes += 1
        self.sync()
        for _, found in sorted(self.names.items()):
            found.lose_power(rng)


class FaultyFiles:
    def __init__(self) -> None:
        self.root = Folder()
        #: Whether only `_room` is left, which is what was freed since.
        self._full = False
        self._room = 0  # while it is full
        self._reserved = RESERVE_BYTES
        #: If set, every sync of a file fails, and this chooses what is lost.
        self.failing: random.Random | None = None
        #: The process is killed in the midst of the change after so many; None if in none.
        self.dies_in: int | None = None
        #: Called before each change.
        self.slowed: Callable[[], None] = lambda: None
        self.changes = 0  # how many there were of anything here
        self._found: dict[Path, File] = {}  # files that were looked up, until a name changes

    # What befalls the host

    @property
    def full(self) -> bool:
        return self._full

    @full.setter
    def full(self, full: bool) -> None:
        self._full, self._room = full, 0

    def lose_power(self, rng: random.Random) -> None:
        self.root.lose_power(rng)
        self.changes += 1
        self._found.clear()

    def rot(self, path: Path, position: int) -> None:
        self._file(path).rot(position)

    def write_back(self, keeps: Callable[[], bool] = lambda: True) -> None:
        """Write back what `keeps` chooses, as the kernel does now and then: such files and folders count as synced."""
        for folder in _folders(self.root):
            if keeps():
                folder.sync()
            for found in folder.names.values():
                if isinstance(found, File) and keeps():
                    found.sync()

    # storage.disk.files.Files

    def read(self, path: Path, length: int, position: int) -> bytes:
        return self._file(path).read(length, position)

    def stored(self, path: Path, length: int, position: int) -> StoredBytes:
        return InMemory(self.read(path, length, position))

    def read_whole(self, path: Path) -> bytes:
        return bytes(self._file(path).content)

    def size(self, path: Path) -> int | None:
        try:
            return len(self._file(path).content)
        except FileNotFoundError:
            return None

    def create(self, path: Path, data: Buffer) -> None:
        folder = self._folder(path.parent)
        dies = self._dies()
        found = folder.names.get(path.name)
        if not isinstance(found, File):
            self._take(NAME_BYTES, path)
            found = File()
            folder.put(path.name, found)
            self._found.clear()
        self._cut(found, 0)
        self._fill(found, path, bytes(data), 0, dies=dies)

    def write(self, path: Path, data: Buffer, position: int) -> None:
        found = self._file(path)
        self._fill(found, path, bytes(data), position, dies=self._dies())

    def _fill(self, found: File, path: Path, data: bytes, position: int, *, dies: bool) -> None:
        before = len(found.content)
        fits = not self._full or position + len(data) - before <= max(0, self._room)
        if dies or not fits:
            data = data[: len(data) // 2]
        if data:
            found.write(data, position)
        self._room -= len(found.content) - before
        if dies:
            raise Killed
        if not fits:
            raise _no_space(path)

    def truncate(self, path: Path, size: int) -> None:
        found = self._file(path)
        self._change()
        self._cut(found, size)

    def _cut(self, found: File, size: int) -> None:
        self._room += max(0, len(found.content) - size)
        found.truncate(size)

    def _take(self, wanted: int, path: Path) -> None:
        if self._full and wanted > self._room:
            raise _no_space(path)
        self._room -= wanted

    def sync(self, path: Path) -> None:
        found = self._file(path)
        self._change()
        if self.failing is not None and found.fail_sync(self.failing):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        found.sync()

    def replace(self, path: Path, target: Path) -> None:
        found, into = self._file(path), self._folder(target.parent)
        self._change()
        if path != target and (replaced := self.size(target)) is not None:
            self._room += replaced + NAME_BYTES
        self._folder(path.parent).take(path.name)
        into.put(target.name, found)
        self._found.clear()

    def remove(self, path: Path) -> None:
        self._change()
        size = self.size(path)
        if size is not None:
            self._room += size + NAME_BYTES
            self._folder(path.parent).take(path.name)
            self._found.clear()

    def release(self, path: Path) -> None:
        """Do nothing: no file is held open."""

    def file_names(self, folder: Path) -> list[str]:
        return [name for name, found in self._folder(folder).names.items() if isinstance(found, File)]

    def folder_names(self, folder: Path) -> list[str]:
        return [name for name, found in self._folder(folder).names.items() if isinstance(found, Folder)]

    def make_folder(self, folder: Path) -> None:
        self._change()
        above = self.root
        for name in folder.parts:
            found = above.names.get(name)
            if found is None:
                self._take(NAME_BYTES, folder)
                found = Folder()
                above.put(name, found)
            if not isinstance(found, Folder):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
            above = found

    def rename_folder(self, folder: Path, target: Path) -> None:
        found, into = self._folder(folder), self._folder(target.parent)
        self._change()
        self._folder(folder.parent).take(folder.name)
        into.put(target.name, found)
        self._found.clear()

    def remove_folder(self, folder: Path) -> None:
        removed = self._folder(folder)
        self._change()
        for within in _folders(removed):
            self._room += NAME_BYTES * (1 + len(within.names))
            self._room += sum(len(found.content) for found in within.names.values() if isinstance(found, File))
        self._folder(folder.parent).take(folder.name)
        self._found.clear()

    def sync_folder(self, folder: Path) -> None:
        found = self._folder(folder)
        self._change()
        found.sync()

    def with_reserve(self, change: Callable[[], None]) -> None:
        with_reserve(change, self._give)

    def keep_reserve(self) -> None:
        missing = RESERVE_BYTES - self._reserved
        made = min(missing, max(0, self._room)) if self._full else missing
        self._reserved += made
        self._room -= made

    def _give(self) -> bool:
        if self._reserved < RESERVE_PART_BYTES:
            return False
        self._reserved -= RESERVE_PART_BYTES
        self._room += RESERVE_PART_BYTES
        return True

    # Finding, and breaking

    def _file(self, path: Path) -> File:
        known = self._found.get(path)
        if known is None:
            found = self._folder(path.parent).names.get(path.name)
            if not isinstance(found, File):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            known = self._found[path] = found
        return known

    def _folder(self, path: Path) -> Folder:
        found: File | Folder | None = self.root
        for name in path.parts:
            found = found.names.get(name) if isinstance(found, Folder) else None
        if not isinstance(found, Folder):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return found

    def _change(self) -> None:
        """Begin a change of names or sizes, which is done whole or not at all."""
        if self._dies():
            raise Killed

    def _dies(self) -> bool:
        self.slowed()
        self.changes += 1
        if self.dies_in is None:
            return False
        self.dies_in -= 1
        if self.dies_in >= 0:
            return False
        self.dies_in = None
        return True


def _no_space(path: Path) -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def _folders(folder: Folder) -> Iterator[Folder]:
    yield folder
    for found in folder.names.values():
        if isinstance(found, Folder):
            yield from _folders(found)

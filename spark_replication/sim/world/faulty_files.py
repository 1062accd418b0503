"""storage.files.Files of one simulated host: in memory, and as bad as that port allows a disk to be.

A process that dies loses nothing that was written. A host that loses power keeps what was synced, and of the rest any
part: of a file its first writes and half of the next one, or any of its blocks; of a folder any of the names that came,
went or were replaced. A full disk takes half of what does not fit.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

from spark_replication.ports import StoredBytes
from spark_replication.sim.world.world import Killed
from spark_replication.storage.index import Buffer

BLOCK_BYTES = 48  # small, since everything here is: an entry of the index may lie in two
ALL_KEPT, FIRST_KEPT = 0.3, 0.85  # of the losses of power: those that keep all, and those that keep what came first


class InMemory(bytes):
    """ports.StoredBytes of what was read when it was asked for."""

    def read(self) -> bytes:
        return self

    def send_to(self, connection: int) -> int:
        return os.write(connection, self)


class File:
    """content: as every process sees it. cuts: how often it was changed otherwise than at its end."""

    __slots__ = ("_steps", "_synced", "content", "cuts")

    def __init__(self) -> None:
        self.content = bytearray()
        self.cuts = 0
        self._synced = b""
        self._steps: list[tuple[int, bytes | None]] = []  # since: what was written where, or None: cut to this size

    def write(self, data: bytes, position: int) -> None:
        if position < len(self.content):
            self.cuts += 1
        self._steps.append((position, data))
        _step(self.content, position, data)

    def truncate(self, size: int) -> None:
        if size != len(self.content):
            self.cuts += 1
            self._steps.append((size, None))
            _step(self.content, size, None)

    def sync(self) -> None:
        if self._steps:
            self._synced = bytes(self.content)
            self._steps.clear()

    def lose_power(self, rng: random.Random) -> None:
        if not self._steps:
            return
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
        self.sync()


def _step(content: bytearray, position: int, data: bytes | None) -> None:
    content.extend(bytes(max(0, position - len(content))))
    if data is None:
        del content[position:]
    else:
        content[position : position + len(data)] = data


def _mixed(old: bytes, new: bytes, rng: random.Random) -> bytearray:
    """Of each block the old or the new, zeros where there was none, and any size between the two."""
    size = rng.randint(min(len(old), len(new)), max(len(old), len(new)))
    mixed = bytearray()
    while len(mixed) < size:
        block = slice(len(mixed), min(len(mixed) + BLOCK_BYTES, size))
        chosen = rng.choice((old, new, new))
        mixed += chosen[block].ljust(block.stop - block.start, b"\0")
    return mixed


class Folder:
    """names: as every process sees them. changes: how often one of them came, went or was replaced."""

    __slots__ = ("_synced", "changes", "names")

    def __init__(self) -> None:
        self.names: dict[str, File | Folder] = {}
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
    """full: nothing more fits. dies_in: the process is killed in the midst of the change after so many; None: in none.
    slowed: called before each change."""

    def __init__(self) -> None:
        self.root = Folder()
        self.full = False
        self.dies_in: int | None = None
        self.slowed: Callable[[], None] = lambda: None
        self.changes = 0  # of anything here, up to now
        self._found: dict[Path, File] = {}  # what was looked up, until a name changes

    # What befalls the host

    def lose_power(self, rng: random.Random) -> None:
        self.root.lose_power(rng)
        self.changes += 1
        self._found.clear()

    def write_back(self) -> None:
        """The kernel does, now and then: everything is as if it had been synced."""
        for folder in _folders(self.root):
            folder.sync()
            for found in folder.names.values():
                if isinstance(found, File):
                    found.sync()

    # storage.files.Files

    def read(self, path: Path, length: int, position: int) -> bytes:
        return bytes(self._file(path).content[position : position + length])

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
            if self.full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            found = File()
            folder.put(path.name, found)
            self._found.clear()
        found.truncate(0)
        self._fill(found, path, bytes(data), 0, dies=dies)

    def write(self, path: Path, data: Buffer, position: int) -> None:
        found = self._file(path)
        self._fill(found, path, bytes(data), position, dies=self._dies())

    def _fill(self, found: File, path: Path, data: bytes, position: int, *, dies: bool) -> None:
        fits = not self.full or position + len(data) <= len(found.content)
        if dies or not fits:
            data = data[: len(data) // 2]
        if data:
            found.write(data, position)
        if dies:
            raise Killed
        if not fits:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def truncate(self, path: Path, size: int) -> None:
        found = self._file(path)
        self._change()
        found.truncate(size)

    def sync(self, path: Path) -> None:
        found = self._file(path)
        self._change()
        found.sync()

    def replace(self, path: Path, target: Path) -> None:
        found, into = self._file(path), self._folder(target.parent)
        self._change()
        self._folder(path.parent).take(path.name)
        into.put(target.name, found)
        self._found.clear()

    def remove(self, path: Path) -> None:
        self._change()
        if self.size(path) is not None:
            self._folder(path.parent).take(path.name)
            self._found.clear()

    def release(self, path: Path) -> None:
        """Nothing is held."""

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
                if self.full:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
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
        self._folder(folder)
        self._change()
        self._folder(folder.parent).take(folder.name)
        self._found.clear()

    def sync_folder(self, folder: Path) -> None:
        found = self._folder(folder)
        self._change()
        found.sync()

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
        """Of names and sizes: done whole, or not at all."""
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


def _folders(folder: Folder) -> Iterator[Folder]:
    yield folder
    for found in folder.names.values():
        if isinstance(found, Folder):
            yield from _folders(found)

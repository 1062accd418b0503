"""The folder of one topic's table, on a disk or in an object store, and what its failures mean.

Rules:
- What a library raises of it is StorageFailed here: whether it was written, nobody knows.
- On a disk, what is in the table survives a power failure: files are synced before they are committed, and the commit
  before it is answered, since the log below it may be deleted then.
- In an object store these keep Python's lock while they wait for it: `create`, `files`, `folders` and `remove`. All
  others let the threads beside them go on.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import pyarrow as pa
from deltalake._internal import DeltaFileSystemHandler
from deltalake.exceptions import DeltaError
from pyarrow.fs import FileType

from spark_replication.errors import StorageFailed
from spark_replication.mirror.delta.object_store import PATIENCE, StoreOptions
from spark_replication.mirror.delta.paths import is_remote
from spark_replication.mirror.tables.history import StoredFile

LOG = "_delta_log"
SMALL_BYTES_MAX = 1 << 20  # of what `read` takes with one request


class Sink(Protocol):
    """A file under way. Closed without an error, it is whole and durable."""

    def write(self, data: bytes | memoryview) -> int: ...
    def close(self) -> None: ...


class TableFolder:
    def __init__(self, uri: str, store: StoreOptions = PATIENCE) -> None:
        self.uri = uri
        self.store = dict(store)
        self.is_remote = is_remote(uri)
        self._local = Path(uri)

    def read(self, paths: Sequence[str]) -> Iterator[bytes | None]:
        """The contents of small files, one after the other; None: it is not there."""
        if not self.is_remote:
            yield from (_read_local(self._local / path) for path in paths)
            return
        # A file whose size is given is opened without a request. The store answers with what there is of it.
        handler = DeltaFileSystemHandler(self.uri, self.store, dict.fromkeys(paths, SMALL_BYTES_MAX))
        yield from (self._read_remote(handler, path) for path in paths)

    def _read_remote(self, handler: DeltaFileSystemHandler, path: str) -> bytes | None:
        try:
            found = handler.open_input_file(path).read(SMALL_BYTES_MAX)
            if len(found) < SMALL_BYTES_MAX:
                return found
            with self.opened(path) as whole:
                return bytes(whole.read(whole.size()))
        except FileNotFoundError:
            return None

    @contextlib.contextmanager
    def opened(self, path: str) -> Iterator[pa.NativeFile]:
        """A file to read parts of, by this thread alone. FileNotFoundError: it is not there."""
        if not self.is_remote:
            with pa.OSFile(str(self._local / path)) as file:
                yield file
            return
        (found,) = DeltaFileSystemHandler(self.uri, self.store).get_file_info([path])
        if found.type is not FileType.File:
            raise FileNotFoundError(f"{self.uri}/{path} is not there")
        handler = DeltaFileSystemHandler(self.uri, self.store, {path: found.size})
        with pa.PythonFile(handler.open_input_file(path), mode="r") as file:
            yield file

    def create(self, path: str) -> Sink:
        """A new file. It is there once it is closed. If it is not closed, parts of it may stay in an object store until
        that store drops what was begun and not ended."""
        if not self.is_remote:
            return _LocalSink(self._local / path)
        return _RemoteSink(DeltaFileSystemHandler(self.uri, self.store).open_output_stream(path, None))

    def files(self) -> list[StoredFile]:
        """All files below it."""
        found = DeltaFileSystemHandler(self.uri, self.store).get_file_info_selector(
            "", allow_not_found=True, recursive=True
        )
        return [StoredFile(each.path, each.size, _time(each.mtime)) for each in found if each.type is FileType.File]

    def folders(self) -> list[str]:
        """The names of the folders right below it."""
        if not self.is_remote:
            return sorted(each.name for each in self._local.iterdir() if each.is_dir()) if self._local.is_dir() else []
        found = DeltaFileSystemHandler(self.uri, self.store).get_file_info_selector("", allow_not_found=True)
        return sorted(each.path.rstrip("/") for each in found if each.type is FileType.Directory)

    def remove(self, path: str) -> None:
        """Remove a file, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            if self.is_remote:
                DeltaFileSystemHandler(self.uri, self.store).delete_file(path)
            else:
                (self._local / path).unlink()

    def sync_version(self, number: int) -> None:
        """Make sure that the commit which has made this version is on the disk, and the names of the files in it. An
        object store has no such step."""
        if self.is_remote:
            return
        log = self._local / LOG
        for each in (log / f"{number:020}.json", log, self._local):
            opened = os.open(each, os.O_RDONLY)
            try:
                os.fsync(opened)
            finally:
                os.close(opened)

    @contextlib.contextmanager
    def translated(self, what: str) -> Iterator[None]:
        """what: is to be done, as the failure tells it."""
        try:
            yield
        except (DeltaError, pa.ArrowException, OSError) as error:
            reason = " ".join(str(error).splitlines()[:2]) or type(error).__name__
            raise StorageFailed(
                f"the table at {self.uri} did not {what}: {reason}. Check that this process can write to table.path"
            ) from error


class _LocalSink:
    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._file: BinaryIO = path.open("xb")

    def write(self, data: bytes | memoryview) -> int:
        return self._file.write(data)

    def close(self) -> None:
        if not self._file.closed:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()


class _RemoteSink:
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, data: bytes | memoryview) -> int:
        return int(self._stream.write(bytes(data)))

    def close(self) -> None:
        self._stream.close()


def _read_local(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _time(found: object) -> datetime:
    assert isinstance(found, datetime)
    return found.astimezone(UTC)

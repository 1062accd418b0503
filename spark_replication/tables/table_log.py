"""What a Delta table's log names: all of its transactions, and all files that are or were in the table.

delta-rs tells one transaction at a time, by a name that the caller knows, and reads the store for each. Here a version
is read once: the last checkpoint and what was committed since; from then on, only what is new.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pyarrow.parquet as pq

from spark_replication.errors import StorageFailed
from spark_replication.tables.folder import LOG, TableFolder

#: In the commit's own description: which attempt it is.
COMMIT_ID = "spark_replication.commit_id"


class _Transaction(msgspec.Struct, frozen=True, rename="camel"):
    app_id: str
    version: int


class _Description(msgspec.Struct, frozen=True):
    commit_id: str | None = msgspec.field(name=COMMIT_ID, default=None)


class _Add(msgspec.Struct, frozen=True):
    path: str


class _Remove(msgspec.Struct, frozen=True, rename="camel"):
    path: str
    deletion_timestamp: int | None = None


class _Action(msgspec.Struct, frozen=True):
    """A line of a commit. What else there may be in it is skipped."""

    txn: _Transaction | None = None
    add: _Add | None = None
    remove: _Remove | None = None
    commit_info: _Description | None = msgspec.field(name="commitInfo", default=None)


class _LastCheckpoint(msgspec.Struct, frozen=True):
    version: int
    parts: int | None = None


_READ_OF = {"txn": ("appId", "version"), "add": ("path",), "remove": ("path", "deletionTimestamp")}
_ACTION = msgspec.json.Decoder(_Action)


class LogMoved(Exception):
    """The log no longer has this version, or has a later checkpoint: open the table again."""


class TableLog:
    """What was read of it is remembered for one table. Not thread-safe."""

    def __init__(self, folder: TableFolder) -> None:
        self._folder = folder
        self._table_id = ""
        self._version = -1
        self._found: dict[str, int] = {}

    def transactions(self, table_id: str, version: int) -> Mapping[str, int]:
        """The version of each transaction, by its name, as of this version of the table. LogMoved: see there.

        table_id: tells one table from another that was made later at the same place.
        """
        if table_id != self._table_id or version < self._version:
            self._forget(table_id)
        try:
            if self._version < 0:
                self._begin(version)
            for actions in _actions(self._folder, self._version + 1, version):
                self._found |= {each.txn.app_id: each.txn.version for each in actions if each.txn is not None}
        except LogMoved:
            self._forget(table_id)
            raise
        self._version = version
        return self._found

    def has_commit(self, commit_id: str, first: int, last: int) -> int | None:
        """The version that this commit has made, of these versions; None: none of them."""
        for version, actions in enumerate(_actions(self._folder, first, last), start=first):
            if any(each.commit_info is not None and each.commit_info.commit_id == commit_id for each in actions):
                return version
        return None

    def _forget(self, table_id: str) -> None:
        self._table_id, self._version, self._found = table_id, -1, {}

    def _begin(self, version: int) -> None:
        checkpoint = _last_checkpoint(self._folder, version)
        if checkpoint is not None:
            for each in _rows_of(self._folder, checkpoint, "txn"):
                self._found[each["appId"]] = each["version"]
            self._version = checkpoint.version


def files_of(folder: TableFolder, version: int) -> dict[str, int | None]:
    """The files that are in this version or were in an earlier one, by their names without folders: when each was
    removed, in ms; None: it is in this version."""
    found: dict[str, int | None] = {}
    checkpoint = _last_checkpoint(folder, version)
    if checkpoint is not None:
        for each in _rows_of(folder, checkpoint, "remove"):
            found[_base(each["path"])] = each["deletionTimestamp"] or 0
        for each in _rows_of(folder, checkpoint, "add"):
            found[_base(each["path"])] = None
    for actions in _actions(folder, 0 if checkpoint is None else checkpoint.version + 1, version):
        for action in actions:
            if action.remove is not None:
                found[_base(action.remove.path)] = action.remove.deletion_timestamp or 0
            if action.add is not None:
                found[_base(action.add.path)] = None
    return found


def _base(path: str) -> str:
    """Each file has a name of its own, which needs no escapes; folders are named for values."""
    return path.rpartition("/")[2]


def _last_checkpoint(folder: TableFolder, version: int) -> _LastCheckpoint | None:
    (text,) = folder.read([f"{LOG}/_last_checkpoint"])
    if text is None:
        return None
    last = msgspec.json.decode(text, type=_LastCheckpoint)
    if last.version > version:
        raise LogMoved
    return last


def _rows_of(folder: TableFolder, checkpoint: _LastCheckpoint, kind: str) -> Iterator[dict[str, Any]]:
    """The actions of this kind."""
    columns = [f"{kind}.{name}" for name in _READ_OF[kind]]
    for name in _names_of(checkpoint):
        try:
            with folder.opened(f"{LOG}/{name}") as file:
                read = pq.ParquetFile(file, pre_buffer=False).read(columns=columns, use_threads=False)
        except FileNotFoundError:
            raise LogMoved from None
        yield from read[kind].drop_null().to_pylist()


def _actions(folder: TableFolder, first: int, last: int) -> Iterator[list[_Action]]:
    """The actions of each of these commits."""
    for read in folder.read([f"{LOG}/{version:020}.json" for version in range(first, last + 1)]):
        if read is None:
            raise LogMoved
        try:
            yield [_ACTION.decode(line) for line in read.splitlines() if line]
        except msgspec.DecodeError as error:
            raise StorageFailed(f"{folder.uri} has a log that cannot be read: {error}") from error


def _names_of(checkpoint: _LastCheckpoint) -> list[str]:
    """The files of a checkpoint."""
    if checkpoint.parts is None:
        return [f"{checkpoint.version:020}.checkpoint.parquet"]
    return [
        f"{checkpoint.version:020}.checkpoint.{part:010}.{checkpoint.parts:010}.parquet"
        for part in range(1, checkpoint.parts + 1)
    ]

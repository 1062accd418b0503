"""What a table of the mirror is made of: its columns, each with its value of a row, in one place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Generic, TypeVar

import msgspec
import pyarrow as pa

from spark_replication.core.law.unreadable import Unreadable
from spark_replication.process.memory import uncollected

UTC_TIME = pa.timestamp("us", "UTC")

Live = TypeVar("Live")
Key = tuple[Any, ...]  # the values of a row's key columns
Face = dict[str, Any]  # the part of a row that events tell: some of its columns


class Tombstone(msgspec.Struct, frozen=True, kw_only=True):
    """A tombstone: ZooKeeper has nothing of that key, since `zxid` at the latest."""

    cluster_id: str
    key: Key
    zxid: int
    told_ms: int


def _nothing(_gone: Tombstone) -> None:
    """The value of a column that a tombstone leaves empty."""


class Column(msgspec.Struct, Generic[Live], frozen=True):
    name: str
    type: pa.DataType
    #: Stored in the table.
    comment: str
    #: Its value in the row of something that exists.
    live: Callable[[Live], Any]
    #: Its value in a tombstone.
    gone: Callable[[Tombstone], Any] = _nothing
    #: ZooKeeper has nothing to compare it with.
    is_mirrors: bool = False
    #: What `verify` expects, if `live` of a row that was just read from ZooKeeper does not say so. It returns None if
    #: any value will do.
    agreed: Callable[[Live], Any] | None = None

    @property
    def field(self) -> pa.Field:
        return pa.field(self.name, self.type, metadata={"comment": self.comment})


class Tells(msgspec.Struct, Generic[Live], frozen=True):
    """How a row's changes become events."""

    #: The columns that events tell, with values that JSON has.
    columns: tuple[str, ...]
    #: Their values in a row. Not made column by column, since thousands of rows may change together.
    face: Callable[[Live], Face]
    #: The name of a change from the one face to the other; None: there was, or is, no row.
    kind: Callable[[Face | None, Face | None], str]
    #: Why the row is as it is after a change of that kind.
    why: Callable[[Live, str], str | None]
    #: Since when it is so; 0: not known.
    at_ms: Callable[[Live], int]


class Table(Generic[Live]):
    """A table, with the rules by which its rows are merged."""

    def __init__(
        self,
        *,
        name: str,
        comment: str,
        columns: Sequence[Column[Live]],
        key: tuple[str, ...],
        order: tuple[str, ...],
        hides: Callable[[Unreadable, Key], bool] = lambda _unreadable, _key: False,
        special: Mapping[str, str] | None = None,
        last_wins: bool = False,
        keeps_gone: bool = False,
        tells: Tells[Live] | None = None,
    ) -> None:
        """key: the columns that identify a row. order: the columns by which the greater of two rows of one key counts;
        on a tie the stored row, or with last_wins the new one. special: SQL over `told` and `stored`, for columns that
        do not just take the new value. hides: whether the row of that key is among what cannot be read. keeps_gone:
        tombstones are for readers, too, and never forgotten."""
        self.name = name
        self.comment = comment
        self.columns = tuple(columns)
        self.key = key
        self.order = order
        self.hides = hides
        self.special = dict(special or {})
        self.keeps_gone = keeps_gone
        self.tells = tells
        self._last_wins = last_wins
        by_name = {column.name: column for column in self.columns}
        self._of_key = [by_name[each] for each in key]
        self._of_order = [by_name[each] for each in order]

    def path(self, mirror_path: str) -> str:
        return f"{mirror_path.rstrip('/')}/{self.name}"

    @property
    def keeps_versions(self) -> bool:
        """Whether its rows change, and somebody may ask what they were."""
        return self.tells is not None

    @cached_property
    def schema(self) -> pa.Schema:
        return pa.schema([column.field for column in self.columns])

    @cached_property
    def counts(self) -> str:
        """SQL over the rows `told` and `stored` of one key: whether the former is newer."""
        newer, equal = [], ""
        for column in self.order:
            newer.append(f"{equal}told.{column} > stored.{column}")
            equal += f"told.{column} = stored.{column} AND "
        if self._last_wins:
            newer.append(equal.removesuffix(" AND "))
        return " OR ".join(f"({each})" for each in newer)

    def rows(self, live: Sequence[Live], gone: Sequence[Tombstone]) -> pa.Table:
        with uncollected():
            arrays = [
                pa.array([*map(column.live, live), *map(column.gone, gone)], column.type) for column in self.columns
            ]
        return pa.Table.from_arrays(arrays, schema=self.schema)

    def key_of(self, row: Live | Tombstone) -> Key:
        return row.key if isinstance(row, Tombstone) else tuple(column.live(row) for column in self._of_key)

    def face(self, row: Live | Tombstone) -> Face | None:
        """What events tell of a row; None if it is gone."""
        return None if isinstance(row, Tombstone) or self.tells is None else self.tells.face(row)

    def order_of(self, row: Live | Tombstone) -> tuple[int, ...]:
        if isinstance(row, Tombstone):
            return tuple(column.gone(row) for column in self._of_order)
        return tuple(column.live(row) for column in self._of_order)


def told_columns(cluster_id: Callable[[Live], str], told_ms: Callable[[Live], int]) -> tuple[Column[Live], ...]:
    """The last columns of every table whose rows may become tombstones."""
    return (
        Column[Live](
            "updated_at",
            UTC_TIME,
            "when the mirror was told",
            lambda row: told_ms(row) * 1_000,
            lambda gone: gone.told_ms * 1_000,
            is_mirrors=True,
        ),
        Column[Live](
            "cluster_id", pa.string(), "whose row this is", cluster_id, lambda gone: gone.cluster_id, is_mirrors=True
        ),
        Column[Live]("deleted", pa.bool_(), "a tombstone: gone since zxid", lambda _row: False, lambda _gone: True),
    )

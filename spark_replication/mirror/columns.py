"""What a table of the mirror is made of: its columns, each with what it says of a row, in one place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import msgspec
import pyarrow as pa

Live = TypeVar("Live")
Gone = TypeVar("Gone")


def _nothing(_gone: object) -> None:
    """What a tombstone says nothing of."""


class Column(msgspec.Struct, Generic[Live, Gone], frozen=True):
    """live, gone: its value in the row of something that exists, and in a tombstone. comment: stored in the table."""

    name: str
    type: pa.DataType
    comment: str
    live: Callable[[Live], Any]
    gone: Callable[[Gone], Any] = _nothing

    @property
    def field(self) -> pa.Field:
        return pa.field(self.name, self.type, metadata={"comment": self.comment})


class Table(msgspec.Struct, Generic[Live, Gone], frozen=True, kw_only=True):
    """key: the columns that tell whose row it is. counts: SQL over the rows `told` and `stored` of one key: whether the
    former is newer. special: SQL for columns that do not just become what is told."""

    name: str
    comment: str
    columns: tuple[Column[Live, Gone], ...]
    key: tuple[str, ...]
    counts: str
    special: dict[str, str] = {}

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([column.field for column in self.columns])

    def rows(self, live: Sequence[Live], gone: Sequence[Gone]) -> pa.Table:
        return pa.Table.from_arrays(
            [pa.array([*map(column.live, live), *map(column.gone, gone)], column.type) for column in self.columns],
            schema=self.schema,
        )

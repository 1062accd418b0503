"""What a Delta table keeps of a file's columns, so that readers skip the file: from the Parquet footer. Pure.

Rules:
- Bounds may be wider than the values, never narrower. Texts are cut, and the upper bound is raised. Times are told in
  milliseconds, rounded outwards: some readers take no more digits.
- A column without bounds is always read. That is so if Parquet has none (long values, all null), for lists and maps,
  and for years that no reader shows.
- Spark takes NaN for the greatest of all numbers, and Arrow's Parquet leaves it out of its bounds: Spark would skip
  rows by these. So files have none of floating-point columns, and the table has those that are found here, if there is
  no NaN.
- Of the topic's columns the first COLUMNS_MAX are told, as Delta does by default, and ours always.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_replication.tables.types import OURS

COLUMNS_MAX = 32
TEXT_CHARACTERS_MAX = 32
_LAST_CHARACTER = "\U0010ffff"
_EPOCH = datetime(1970, 1, 1)
_JSON = msgspec.json.Encoder(decimal_format="number")
_WITHOUT_BOUNDS = (pa.types.is_binary, pa.types.is_boolean)


class FloatingColumn(msgspec.Struct, frozen=True):
    """What is known of a column of floating-point numbers."""

    null_count: int = 0
    least: float = math.inf
    greatest: float = -math.inf
    has_nan: bool = False

    def with_rows(self, column: pa.Array) -> FloatingColumn:
        seen = pc.min_max(column)
        least, greatest = seen["min"].as_py(), seen["max"].as_py()
        return FloatingColumn(
            self.null_count + column.null_count,
            self.least if least is None else min(self.least, least),
            self.greatest if greatest is None else max(self.greatest, greatest),
            self.has_nan or bool(pc.any(pc.is_nan(column)).as_py()),
        )

    @property
    def bounds(self) -> tuple[float, float] | None:
        """JSON has no infinity. Of the two zeros some readers take one for less."""
        if self.has_nan or not (math.isfinite(self.least) and math.isfinite(self.greatest)):
            return None
        return self.least or -0.0, self.greatest or 0.0


class _Leaf(NamedTuple):
    """A column of the Parquet file."""

    #: Its name there.
    name: str
    #: The names of the fields that lead to it.
    path: tuple[str, ...]
    type: pa.DataType
    #: Whether a row has one value of it, at most.
    is_single: bool


def with_bounds(schema: pa.Schema) -> list[str]:
    """The columns, as Parquet names them, that a file of this schema has bounds of."""
    leaves = (leaf for field in schema for leaf in _leaves(field.type, field.name, (field.name,)))
    return [leaf.name for leaf in leaves if leaf.is_single and not pa.types.is_floating(leaf.type)]


def statistics(footer: pq.FileMetaData, schema: pa.Schema, floating: Mapping[str, FloatingColumn]) -> str:
    """The statistics of a file with these columns, as Delta's JSON. floating: by name."""
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, Any] = {}
    for place, leaf in _told(schema):
        if len(leaf.path) == 1 and leaf.path[0] in floating:
            null_count, bounds = floating[leaf.path[0]].null_count, floating[leaf.path[0]].bounds
        else:
            found = [group.column(place).statistics for group in groups]
            if not found or any(each is None or not each.has_null_count for each in found):
                continue
            null_count, bounds = sum(each.null_count for each in found), _bounds(found, leaf)
        _put(nulls, leaf.path, null_count)
        if bounds is not None:
            _put(least, leaf.path, bounds[0])
            _put(greatest, leaf.path, bounds[1])
    told = {"numRecords": footer.num_rows, "minValues": least, "maxValues": greatest, "nullCount": nulls}
    return _JSON.encode(told).decode()


def _told(schema: pa.Schema) -> Iterator[tuple[int, _Leaf]]:
    """The columns of which something is told, and where each is in the file."""
    leaves = (
        (number, leaf) for number, field in enumerate(schema) for leaf in _leaves(field.type, field.name, (field.name,))
    )
    for place, (number, leaf) in enumerate(leaves):
        if leaf.is_single and (number < COLUMNS_MAX or leaf.path[0] in OURS.names):
            yield place, leaf


def _leaves(kind: pa.DataType, name: str, path: tuple[str, ...], *, is_single: bool = True) -> Iterator[_Leaf]:
    if pa.types.is_struct(kind):
        for field in kind:
            yield from _leaves(field.type, f"{name}.{field.name}", (*path, field.name), is_single=is_single)
    elif pa.types.is_list(kind):
        yield from _leaves(kind.value_type, f"{name}.list.element", path, is_single=False)
    elif pa.types.is_map(kind):
        yield from _leaves(kind.key_type, f"{name}.key_value.key", path, is_single=False)
        yield from _leaves(kind.item_type, f"{name}.key_value.value", path, is_single=False)
    else:
        yield _Leaf(name, path, kind, is_single)


def _bounds(found: Sequence[Any], leaf: _Leaf) -> tuple[Any, Any] | None:
    """The least and the greatest value, as Delta writes them. found: what Parquet says of each group of rows."""
    if any(has_none(leaf.type) for has_none in _WITHOUT_BOUNDS):
        return None
    with_values = [each for each in found if each.has_min_max]
    if not with_values or any(each.num_values and not each.has_min_max for each in found):
        return None
    if pa.types.is_temporal(leaf.type):
        times = min(each.min_raw for each in with_values), max(each.max_raw for each in with_values)
        return _days(*times) if pa.types.is_date(leaf.type) else _times(*times, has_zone=leaf.type.tz is not None)
    low, high = min(each.min for each in with_values), max(each.max for each in with_values)
    if pa.types.is_string(leaf.type):
        cut = _raised(high)
        return None if cut is None else (low[:TEXT_CHARACTERS_MAX], cut)
    return low, high


def _raised(text: str) -> str | None:
    """A text that is no less, and not long. None: none was found."""
    if len(text) <= TEXT_CHARACTERS_MAX:
        return text
    if text[TEXT_CHARACTERS_MAX] == _LAST_CHARACTER:
        return None
    return text[:TEXT_CHARACTERS_MAX] + _LAST_CHARACTER


def _times(low_us: int, high_us: int, *, has_zone: bool) -> tuple[str, str] | None:
    try:
        low, high = (_EPOCH + timedelta(milliseconds=each) for each in (low_us // 1000, -(-high_us // 1000)))
    except OverflowError:
        return None
    zone = "Z" if has_zone else ""
    return low.isoformat(timespec="milliseconds") + zone, high.isoformat(timespec="milliseconds") + zone


def _days(low: int, high: int) -> tuple[str, str] | None:
    try:
        return tuple((_EPOCH.date() + timedelta(days=each)).isoformat() for each in (low, high))  # type: ignore[return-value]
    except OverflowError:
        return None


def _put(tree: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = value

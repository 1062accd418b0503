"""A topic as a data set of pyarrow, for whoever hands over which columns and rows it wants: DuckDB does.

A filter is an expression of Arrow's, which does not say what it is made of. But Arrow knows whether an expression can
hold where another one does: so it leaves files out. Here it is asked so about offsets, times and partitions until it is
clear where the filter cannot hold, and no file is there. Rows that come all the same are filtered as ever.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem

from spark_replication.client.reading.bounds import EVERYTHING, Bounds, both
from spark_replication.client.reading.log_batch import METADATA, OFFSET, TIMESTAMP
from spark_replication.messages.records import PARTITION

_EVERY = range((1 << 63) - 1)  # offsets, and microseconds since 1970


_FORMAT, _FILES = ds.IpcFileFormat(), LocalFileSystem()


class ReadWithin(Protocol):
    def __call__(self, columns: Sequence[str] | None, within: Bounds) -> pa.RecordBatchReader: ...


class TopicDataset(ds.Dataset):  # type: ignore[misc]  # pyarrow has no types
    """Each scan reads what is committed then. Only these methods are for use: the others would look for files."""

    def __init__(
        self, schema: pa.Schema, told: Collection[str], partitions: Callable[[], Iterable[int]], read: ReadWithin
    ) -> None:
        """told: which of these columns are of METADATA, and none of the topic's own. partitions: finds their numbers.
        read: columns of all that is within the bounds, or more."""
        self._schema = schema
        self._told = told
        self._partitions = partitions
        self._read = read

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def scanner(
        self,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        **_: Any,
    ) -> ds.Scanner:
        """columns: all if None."""
        wanted, within = columns, EVERYTHING
        if filter is not None:
            shown = str(filter)  # it has the names of the columns that are looked at, and perhaps others
            wanted = [name for name in self._schema.names if columns is None or name in columns or name in shown]
            looked_at = [name for name in self._told if name in shown]
            within = filter_bounds(filter, self._schema, looked_at, self._partitions)
        return ds.Scanner.from_batches(self._read(wanted, within), columns=columns, filter=filter)


def filter_bounds(
    rows: pc.Expression, schema: pa.Schema, columns: Collection[str], partitions: Callable[[], Iterable[int]]
) -> Bounds:
    """Where this may hold of rows. columns: of METADATA, where it is worth a look. partitions: finds their numbers."""

    def may_hold(where: pc.Expression) -> bool:
        file = _FORMAT.make_fragment("", filesystem=_FILES, partition_expression=where)
        found = ds.FileSystemDataset([file], schema, _FORMAT, filesystem=_FILES).get_fragments(filter=rows)
        return next(found, None) is not None

    def ends(column: str) -> tuple[int, int | None]:
        """The least number with which it may hold, and the one above the greatest."""
        field, kind = pc.field(column), METADATA.field(column).type
        first = bisect_left(_EVERY, True, key=lambda number: may_hold(field <= pa.scalar(number, kind)))
        end = bisect_left(_EVERY, True, key=lambda number: not may_hold(field >= pa.scalar(number, kind)))
        return first, end if end < len(_EVERY) else None

    found = EVERYTHING
    if OFFSET in columns:
        start, end = ends(OFFSET)
        found = both(found, Bounds(offset_start=start, offset_end=end))
    if TIMESTAMP in columns:
        start, end = ends(TIMESTAMP)
        found = both(found, Bounds(time_start_us=start, time_end_us=end))
    if PARTITION in columns:
        field, kind = pc.field(PARTITION), METADATA.field(PARTITION).type
        numbers = (number for number in partitions() if may_hold(field == pa.scalar(number, kind)))
        found = both(found, Bounds(partitions=frozenset(numbers)))
    return found

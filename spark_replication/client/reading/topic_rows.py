"""A topic as a table: `sr.topic("orders", bootstrap)`, for whatever takes Arrow.

Each use reads what is committed at that moment: the ends of all partitions are asked once, and all rows up to there are
given, or an error. Rows come partition by partition, each in its order. What nobody asks for does not cross the wire:
neither columns, nor rows that conditions on _partition, _offset and _timestamp leave out.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import datetime
from itertools import chain, takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pyarrow as pa

from spark_replication.client.reading.bounds import EVERYTHING, Bounds, both
from spark_replication.client.reading.log_batch import OFFSET, TIMESTAMP
from spark_replication.client.reading.reader import DEADLINE_MS, Reader
from spark_replication.client.reading.selection import (
    SHOWN,
    Condition,
    RowsAsked,
    Selection,
    conditions,
    schema_of,
    selection,
)
from spark_replication.core.replica.epochs import NO_EPOCH
from spark_replication.core.replica.read_start import ReadPlace, time_in_ms
from spark_replication.engine.client.reading import Preference
from spark_replication.errors import OffsetOutOfRange, UnknownTopicOrPartition
from spark_replication.messages.descriptions import TopicMetadata
from spark_replication.messages.ranges import WantedRange
from spark_replication.model import Offset
from spark_replication.process.extras import importing_for
from spark_replication.storage.format.batches import topic_schema
from spark_replication.transport.security.security import Security

RANGES_AT_A_TIME = 4  # of `to_arrow`

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import polars as pl


class _Range(NamedTuple):
    """The rows of a partition from `start` on, up to `end`: all of them are committed."""

    partition: int
    start: ReadPlace
    end: Offset


class _Plan(NamedTuple):
    topic: TopicMetadata
    selected: Selection
    ranges: list[_Range]


def topic(
    name: str,
    bootstrap: str,
    *,
    columns: Sequence[str] | None = None,
    since: datetime | int | None = None,
    where: Sequence[Condition] = (),
    security: Security | Mapping[str, Any] | None = None,
    prefer: Preference = "leader",
    deadline_ms: int = DEADLINE_MS,
) -> TopicRows:
    """The rows of a topic, as a table. Nothing is asked of the cluster yet.

    - `columns`: the topic's own if None. What says where a row lies are columns, too: _topic, _partition, _offset,
      _timestamp, _leader_epoch.
    - `since`: a datetime with a time zone, or ms since 1970. Rows of batches that were appended before are left out.
    - `where`: conditions that all have to hold, as ("amount", ">", 5) or ("_partition", "in", [0, 1]). They compare by
      =, !=, <, <=, >, >=, in and not in.
    - the others: as Reader's.
    """
    reader = Reader(bootstrap, security=security, prefer=prefer, deadline_ms=deadline_ms)
    within = EVERYTHING if since is None else Bounds(time_start_us=time_in_ms(since) * 1_000)
    told = None if columns is None else tuple(columns)
    return TopicRows(name, reader, RowsAsked(columns=told, within=within, where=conditions(where)))


class TopicRows:
    """See topic(). pyarrow, polars, DuckDB and whoever else knows Arrow's C stream take it as it is."""

    def __init__(self, name: str, reader: Reader, asked: RowsAsked) -> None:
        self.name = name
        self._reader = reader
        self._asked = asked

    def __repr__(self) -> str:
        return f"<rows of topic {self.name}>"

    @property
    def schema(self) -> pa.Schema:
        """The columns that are given, as the topic is now."""
        return schema_of(self.name, self._own, self._asked)

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows batch by batch: they take no more memory than a few of these."""
        return self._given(self._planned())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def to_arrow(self) -> pa.Table:
        """All rows. A few partitions are read at a time, and stand one after the other."""
        plan, is_over = self._planned(), threading.Event()

        def read(wanted: _Range) -> list[pa.RecordBatch]:
            return [*takewhile(lambda _: not is_over.is_set(), self._range(plan, wanted))]

        with ThreadPoolExecutor(RANGES_AT_A_TIME) as threads:
            try:
                reads = [threads.submit(read, each) for each in plan.ranges]
                for ended in as_completed(reads):
                    ended.result()
            finally:
                is_over.set()  # one of them has failed, or all have ended
                threads.shutdown(wait=False, cancel_futures=True)  # those that have not begun
        return pa.Table.from_batches(chain.from_iterable(each.result() for each in reads), plan.selected.schema)

    def to_pandas(self) -> pd.DataFrame:
        with importing_for("to_pandas()"):
            return self.to_arrow().to_pandas()

    def to_polars(self) -> pl.DataFrame:
        with importing_for("to_polars()"):
            import polars as pl
        frame = pl.from_arrow(self.to_arrow())
        assert isinstance(frame, pl.DataFrame), "a table becomes a frame"
        return frame

    def lazy(self) -> pl.LazyFrame:
        """A frame of polars that reads once it is collected, and only the columns that are used then. It has those that
        say where a row lies, too, unless `columns` leaves them out. What a filter on _partition, _offset or _timestamp
        leaves out is not read."""
        with importing_for("lazy()"):
            import polars as pl
            from polars.io.plugins import register_io_source

            from spark_replication.client.reading.polars_bounds import predicate_bounds
        all_of_it, told = self._with_places()

        def source(
            with_columns: list[str] | None, predicate: pl.Expr | None, n_rows: int | None, _batch_size: int | None
        ) -> Iterator[pl.DataFrame]:
            left = n_rows
            chosen = all_of_it if with_columns is None else all_of_it._with(columns=tuple(with_columns))
            if predicate is not None:
                chosen = chosen._within(predicate_bounds(predicate, told))
            for batch in chosen.to_reader():
                frame = pl.from_arrow(batch)
                assert isinstance(frame, pl.DataFrame), "a batch becomes a frame"
                if predicate is not None:
                    frame = frame.filter(predicate)
                if left is not None:
                    frame = frame.head(left)
                    left -= len(frame)
                yield frame
                if left == 0:
                    return

        empty = pl.from_arrow(all_of_it.schema.empty_table())
        assert isinstance(empty, pl.DataFrame), "a table becomes a frame"
        return register_io_source(source, schema=empty.schema)

    def to_duckdb(self, connection: duckdb.DuckDBPyConnection | None = None) -> duckdb.DuckDBPyRelation:
        """A relation, which reads as often as it is asked, and only what a query needs: see `lazy`."""
        with importing_for("to_duckdb()"):
            import duckdb

            from spark_replication.client.reading.topic_dataset import TopicDataset
        all_of_it, told = self._with_places()

        def read(columns: Sequence[str] | None, within: Bounds) -> pa.RecordBatchReader:
            chosen = all_of_it if columns is None else all_of_it._with(columns=tuple(columns))
            return chosen._within(within).to_reader()

        found = TopicDataset(all_of_it.schema, told, lambda: self._reader.topic(self.name).numbers, read)
        return (connection or duckdb.connect()).from_arrow(found)

    def head(self, count: int = 10) -> pa.Table:
        """The first rows of the first partitions."""
        plan, found, left = self._planned(), [], count
        for batch in self._batches(plan):
            found.append(batch.slice(0, left))
            left -= len(found[-1])
            if left <= 0:
                break
        return pa.Table.from_batches(found, plan.selected.schema)

    def tail(self, count: int = 10) -> pa.Table:
        """The rows that were appended last, the newest at the end. The last ones of each partition are looked at; all
        rows if conditions are on the topic's own columns, or on times."""
        names = self.schema.names
        seen = self._with_all(names)
        plan = seen._planned()
        within = plan.selected.bounds
        if plan.selected.filter is None and (within.time_start_us, within.time_end_us) == (None, None):
            last = [each._replace(start=_from(each, each.end - count)) for each in plan.ranges]
            plan = plan._replace(ranges=last)
        newest = seen._given(plan).read_all().sort_by([(TIMESTAMP, "ascending"), (OFFSET, "ascending")])
        return newest.slice(max(0, len(newest) - count)).select(names)

    def close(self) -> None:
        self._reader.close()

    def __enter__(self) -> TopicRows:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # How it is read

    @property
    def _own(self) -> pa.Schema:
        """The topic's columns, as it is now."""
        return topic_schema(self._reader.topic(self.name).config).newest

    def _with_places(self) -> tuple[TopicRows, list[str]]:
        """These rows with all columns that say where a row lies, unless columns are named; and which of those columns
        are none of the topic's own."""
        own = self._own.names
        told = [name for name in SHOWN if name not in own]
        return self if self._asked.columns is not None else self._with_all(own), told

    def _within(self, narrower: Bounds) -> TopicRows:
        within = both(self._asked.within, narrower)
        return TopicRows(self.name, self._reader, msgspec.structs.replace(self._asked, within=within))

    def _with(self, *, columns: tuple[str, ...]) -> TopicRows:
        return TopicRows(self.name, self._reader, msgspec.structs.replace(self._asked, columns=columns))

    def _with_all(self, names: Sequence[str]) -> TopicRows:
        """These columns, and all that say where a row lies. A topic may have one of such a name."""
        return self._with(columns=(*names, *(name for name in SHOWN if name not in names)))

    def _planned(self) -> _Plan:
        found = self._reader.topic(self.name)
        selected = selection(self.name, topic_schema(found.config).newest, self._asked)
        return _Plan(found, selected, self._ranges(found, selected.bounds))

    def _ranges(self, found: TopicMetadata, within: Bounds) -> list[_Range]:
        wanted = [
            WantedRange(topic=self.name, partition=number, start="earliest", from_time=within.time_start_ms)
            for number in found.numbers
            if within.has_partition(number)
        ]
        told = self._reader.ranges(wanted) if wanted else {}
        if any(each.topic_id != found.topic_id for each in told.values()):
            raise UnknownTopicOrPartition(f"{self.name} has just been made again: read it anew")
        ranges = []
        for each in sorted(told.values(), key=lambda each: each.partition):
            end = each.end if within.offset_end is None else min(each.end, within.offset_end)
            whole = _Range(each.partition, ReadPlace(each.start, each.start_epoch), end)
            ranges.append(whole._replace(start=_from(whole, within.offset_start)))
        return [each for each in ranges if each.start.offset < each.end]

    def _given(self, plan: _Plan) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(plan.selected.schema, self._batches(plan))

    def _batches(self, plan: _Plan) -> Iterator[pa.RecordBatch]:
        return chain.from_iterable(self._range(plan, each) for each in plan.ranges)

    def _range(self, plan: _Plan, wanted: _Range) -> Iterator[pa.RecordBatch]:
        start = wanted.start
        found = self._reader.read(
            self.name,
            wanted.partition,
            start.offset,
            wanted.end,
            columns=plan.selected.read,
            topic_id=plan.topic.topic_id,
            last_epoch=None if start.last_epoch == NO_EPOCH else start.last_epoch,
            whole=True,
        )
        try:
            for each in found:
                yield plan.selected.rows(each)
        except OffsetOutOfRange as error:
            raise type(error)(f"{error.message}. {self.name} was to be read up to there: read it anew") from error


def _from(whole: _Range, offset: Offset) -> ReadPlace:
    """Where a read of this range begins that wants nothing below the offset."""
    return whole.start if offset <= whole.start.offset else ReadPlace(offset)

"""Reads records of a topic for a browser: from any place of its log, in either direction, and so much as it may hold.

| parameter | meaning |
| --- | --- |
| `partition` | one partition; all of them without it |
| `start` | `newest`, `earliest`, an offset of the partition, or a time, as 2026-11-03T10:00 (of UTC) |
| `older`, `newer`, `tail` | in place of `start`: where an earlier answer ended, in each partition, as 0:1200,1:800 |
| `column` | a column to show, as often as there are such; the first COLUMNS_MAX without it |
| `where` | what rows have to fulfil: see `conditions_of` |
| `last` | how many rows, ROWS_MAX at most |

Rules:
- An answer has at most ROWS_MAX rows and COLUMNS_MAX columns, and its values are shortened (page.shown_values). To find
  them, at most LOOK_BYTES_MAX of stored batches are read, and one batch more; and no read begins after LOOK_S.
- What was looked at is told of each partition. So answers join without a gap, however few rows one of them has. `tail`
  alone may leave a gap: it gives the newest rows, and not those that came before them.
- Rows of a partition stay in its order; whose row comes next is decided by their times.
"""

from __future__ import annotations

import heapq
import re
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from itertools import islice
from typing import Literal, NamedTuple

import msgspec
import pyarrow as pa
from starlette.datastructures import QueryParams

from spark_replication.client.reading.bounds import EVERYTHING
from spark_replication.client.reading.log_batch import METADATA, LogBatch, metadata_of
from spark_replication.client.reading.reader import Reader
from spark_replication.client.reading.row_conditions import ConditionText, condition_text
from spark_replication.client.reading.selection import parted
from spark_replication.core.replica.read_start import time_in_ms
from spark_replication.errors import InvalidRequest, LeaderNotAvailable, OffsetOutOfRange, UnknownTopicOrPartition
from spark_replication.messages.ranges import FoundRange, WantedRange
from spark_replication.model import Offset, TopicPartition, number_of
from spark_replication.page.answers import RecordRow, RecordsShown, SeenOffsets
from spark_replication.page.details import TYPE_CHARACTERS_MAX
from spark_replication.page.shown_values import shown_value
from spark_replication.storage.format.batches import topic_schema

ROWS_MAX = 200
COLUMNS_MAX = 50
PARTITIONS_MAX = 100  # that are read together
WHERE_CHARACTERS_MAX = 1_000
LOOK_BYTES_MAX = 32 << 20
LOOK_S = 2.0
PIECE_BYTES = 1 << 20
FILTERED_SPAN = 100_000  # records that are asked for at a time, the newest first, if a filter leaves some out
OFFSET_MAX = 1 << 53  # what a browser can count to

Way = Literal["older", "newer"]

_ROW = "\0row"  # no topic's column: where the row lies in its batch


class RecordsAsked(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partition: int | None
    #: Whether the newest rows before a place are wanted, or those that come after one.
    way: Way
    #: The place, if it is the same for all partitions. None: `places` has it.
    start: Literal["newest", "earliest"] | Offset | datetime | None
    #: Where an earlier answer ended.
    places: dict[int, Offset]
    #: Whether nothing below `places` is wanted, though the newest rows are.
    is_tail: bool
    #: Those that are shown. Empty: the first COLUMNS_MAX.
    columns: tuple[str, ...]
    where: tuple[ConditionText, ...]
    rows: int


def records_asked(topic: str, given: QueryParams) -> RecordsAsked:
    """What the parameters of a request ask for. Raises InvalidRequest if they ask for nothing that there could be."""
    named = [name for name in ("start", "older", "newer", "tail") if given.get(name)]
    if len(named) > 1:
        raise InvalidRequest(f"{named[0]} and {named[1]} are two places to look from: name one")
    place = named[0] if named else "start"
    partition = _number("partition", given.get("partition") or None)
    start = _start(given.get("start") or "newest", partition) if place == "start" else None
    columns = tuple(dict.fromkeys(given.getlist("column")))
    if len(columns) > COLUMNS_MAX:
        raise InvalidRequest(f"{len(columns)} columns are too many to show: name {COLUMNS_MAX} at most")
    rows = _number("last", given.get("last") or None)
    return RecordsAsked(
        topic=topic,
        partition=partition,
        way="older" if start == "newest" or place in ("older", "tail") else "newer",
        start=start,
        places={} if place == "start" else _places(given[place]),
        is_tail=place == "tail",
        columns=columns,
        where=conditions_of(given.get("where", "")),
        rows=ROWS_MAX if rows is None else max(1, min(rows, ROWS_MAX)),
    )


def _number(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    found = number_of(text, OFFSET_MAX)
    if found is None:
        raise InvalidRequest(f"{name}={text[:20]} is no number up to {OFFSET_MAX}")
    return found


def _start(text: str, partition: int | None) -> Literal["newest", "earliest"] | Offset | datetime:
    match text:
        case "newest" | "earliest":
            return text
    offset = number_of(text, OFFSET_MAX)
    if offset is not None:
        if partition is None:
            raise InvalidRequest(f"offset {offset} is of one partition: choose that, too")
        return offset
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(
            f"{text[:40]!r} is no place to start at: it is newest, earliest, an offset or a time, as 2026-11-03 10:00"
        ) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _places(text: str) -> dict[int, Offset]:
    found: dict[int, Offset] = {}
    for each in text.split(","):
        partition, _, offset = each.partition(":")
        of, at = number_of(partition, OFFSET_MAX), number_of(offset, OFFSET_MAX)
        if of is None or at is None:
            raise InvalidRequest(f"{each[:40]!r} is no offset of a partition: it is as 0:1200")
        found[of] = at
    return found


_AND = re.compile(r'\s+and\s+(?=(?:[^"]*"[^"]*")*[^"]*$)', re.IGNORECASE)  # outside of quotes


def conditions_of(text: str) -> tuple[ConditionText, ...]:
    """The conditions of a text as `amount > 5 and region in north,south and _timestamp >= 2026-11-03T10:00:00Z`: each
    is as a shell has it."""
    if len(text) > WHERE_CHARACTERS_MAX:
        raise InvalidRequest(f"the filter has {len(text):,} characters: use {WHERE_CHARACTERS_MAX:,} at most")
    return tuple(map(condition_text, _AND.split(text))) if text.strip() else ()


class _Row(NamedTuple):
    batch: LogBatch
    place: int

    @property
    def offset(self) -> Offset:
        return self.batch.base_offset + self.place


class _Sieve:
    """Which columns are read, and which rows of a batch are wanted."""

    def __init__(self, asked: RecordsAsked, own: pa.Schema) -> None:
        names = asked.columns or own.names[:COLUMNS_MAX]
        self.shown = [_own_field(own, name) for name in names] if asked.columns else list(own)[:COLUMNS_MAX]
        where = [each.read_for(_field(own, each.column)) for each in asked.where]
        looked_at = dict.fromkeys(column for column, *_ in where)
        more = [column for column in looked_at if column in own.names and column not in names]
        #: What is read: those that are shown come first. None: all of them.
        self.columns = None if len(names) == len(own) and not asked.columns else (*names, *more)
        self.within, self._filter = parted(own, ((_field(own, column), *rest) for column, *rest in where), EVERYTHING)
        self._looked_at = looked_at
        self._own = own

    @property
    def takes_all(self) -> bool:
        return self._filter is None and (self.within.time_start_us, self.within.time_end_us) == (None, None)

    def places(self, found: LogBatch) -> Sequence[int]:
        """Where the wanted rows lie in this batch."""
        if not self.within.has_time(found.timestamp):
            return ()
        if self._filter is None:
            return range(found.batch.num_rows)
        own = {name: found.batch.column(name) for name in self._looked_at if name in self._own.names}
        told = metadata_of(found, self._looked_at.keys() - own.keys())
        columns = {**own, **told, _ROW: pa.arange(0, found.batch.num_rows)}
        wanted = pa.RecordBatch.from_pydict(columns).filter(self._filter).column(_ROW)
        return [int(each) for each in wanted.to_pylist()]


def _field(own: pa.Schema, name: str) -> pa.Field:
    is_metadata = name in METADATA.names and name not in own.names
    return METADATA.field(name) if is_metadata else _own_field(own, name)


def _own_field(own: pa.Schema, name: str) -> pa.Field:
    if own.get_field_index(name) >= 0:
        return own.field(name)
    raise InvalidRequest(f"column {name[:100]!r} is not in the topic, or there twice: {', '.join(own.names)[:500]} are")


#: Batches with the places of their wanted rows, in the log's order, and the offset up to which that is all.
_Step = tuple[list[tuple[LogBatch, Sequence[int]]], Offset]


class _Budget:
    """What one answer may still take. Each partition gets the same share of what those before it have left."""

    def __init__(self) -> None:
        self._bytes = self._bytes_of_others = LOOK_BYTES_MAX
        self._ends_s = self._turn_ends_s = time.monotonic() + LOOK_S

    def next_turn(self, turns_left: int) -> None:
        """turns_left: with this one."""
        now_s = time.monotonic()
        self._bytes_of_others = self._bytes - self._bytes // turns_left
        self._turn_ends_s = now_s + (self._ends_s - now_s) / turns_left

    def take(self, count: int) -> None:
        self._bytes -= count

    @property
    def is_spent(self) -> bool:
        return self._bytes <= self._bytes_of_others or time.monotonic() >= self._turn_ends_s


class _Walk:
    """One partition's way away from a place. Invariant: everything between the place and `reached` was looked at."""

    def __init__(self, found: FoundRange, start: Offset, end: Offset, way: Way) -> None:
        """start, end: what may be looked at."""
        self.found, self.start, self.end, self.way = found, start, end, way
        #: Those that were found, the nearest to the place first.
        self.rows: list[_Row] = []
        self.reached = start if way == "newer" else end

    @property
    def is_over(self) -> bool:
        return self.reached >= self.end if self.way == "newer" else self.reached <= self.start

    def add(self, batches: Sequence[tuple[LogBatch, Sequence[int]]], reached: Offset) -> None:
        """What was found between `reached` and what was reached before, in the log's order."""
        rows = [_Row(batch, place) for batch, places in batches for place in places]
        self.rows += rows if self.way == "newer" else reversed(rows)
        self.reached = reached

    def keep(self, count: int) -> None:
        """Give the rows beyond the first `count` back: they were not reached."""
        if count < len(self.rows):
            self.reached = self.rows[count].offset + (self.way == "older")
            del self.rows[count:]

    @property
    def seen(self) -> SeenOffsets:
        start, end = (self.start, self.reached) if self.way == "newer" else (self.reached, self.end)
        return SeenOffsets(
            partition=self.found.partition,
            start=start,
            end=end,
            log_start=self.found.log_start,
            high_watermark=self.found.high_watermark,
        )


class RecordLook:
    """One answer to what was asked. Raises ReplicationError if there is none."""

    def __init__(self, reader: Reader, asked: RecordsAsked) -> None:
        self._reader = reader
        self._asked = asked
        self._topic = reader.topic(asked.topic)
        self._own = topic_schema(self._topic.config).newest
        self._sieve = _Sieve(asked, self._own)
        self._budget = _Budget()

    def shown(self) -> RecordsShown:
        led, leaderless = self._partitions()
        walks = [self._walk(each) for each in self._found(led)]
        is_cut = False
        for place, walk in enumerate(walks):
            self._budget.next_turn(len(walks) - place)
            self._go(walk)
            is_cut = is_cut or not (walk.is_over or len(walk.rows) >= self._asked.rows)
        nearest = _nearest(walks, self._asked.rows)
        rows = nearest if self._asked.way == "newer" else nearest[::-1]
        return RecordsShown(
            topic_id=self._topic.topic_id,
            columns=[(field.name, str(field.type)[:TYPE_CHARACTERS_MAX]) for field in self._sieve.shown],
            columns_in_all=len(self._own),
            rows=[self._shown(row) for row in rows],
            seen=[walk.seen for walk in walks],
            is_cut=is_cut,
            leaderless=leaderless,
        )

    def _partitions(self) -> tuple[list[int], list[int]]:
        """Which can be read, and which nobody leads."""
        name, wanted = self._asked.topic, self._asked.partition
        leaders = {each.partition: each.state.leader for each in self._topic.partitions}
        if wanted is not None and wanted not in self._topic.numbers:
            raise UnknownTopicOrPartition(f"{name} has no partition {wanted}, it has {len(self._topic.numbers)}")
        if wanted is not None and leaders.get(wanted) is None:
            raise LeaderNotAvailable(f"{name}-{wanted} has no leader: its records cannot be read until it has one")
        chosen = self._topic.numbers if wanted is None else (wanted,)
        chosen = tuple(each for each in chosen if self._sieve.within.has_partition(each))
        if len(chosen) > PARTITIONS_MAX:
            raise InvalidRequest(
                f"{name} has {len(chosen):,} partitions, and {PARTITIONS_MAX} at most are read together: choose one"
            )
        led = [each for each in chosen if leaders.get(each) is not None]
        return led, [each for each in chosen if each not in led]

    def _found(self, partitions: Iterable[int]) -> list[FoundRange]:
        at = self._asked.start
        time_ms = time_in_ms(at) if isinstance(at, datetime) else None
        wanted = [
            WantedRange(topic=self._asked.topic, partition=each, start="earliest", from_time=time_ms)
            for each in partitions
        ]
        found = self._reader.ranges(wanted) if wanted else {}
        if any(each.topic_id != self._topic.topic_id for each in found.values()):
            raise UnknownTopicOrPartition(f"{self._asked.topic} has just been made again: look anew")
        return [found[TopicPartition(self._asked.topic, each)] for each in partitions]

    def _walk(self, found: FoundRange) -> _Walk:
        """What is to be looked at of this partition."""
        asked, log_start, end = self._asked, found.log_start, found.high_watermark
        place = asked.places.get(found.partition, log_start)
        if isinstance(asked.start, int):
            place = asked.start
            if place < log_start:
                raise OffsetOutOfRange(f"{found.topic_partition} has the offsets from {log_start} on: start there")
        if place > end:
            raise OffsetOutOfRange(
                f"{found.topic_partition} ends at offset {end}, below {place}: look at the newest records"
            )
        if asked.start is None and asked.way == "older" and not asked.is_tail:
            end = max(place, log_start)
        elif asked.way == "newer" or asked.is_tail:
            log_start = max(place, found.start if isinstance(asked.start, datetime) else log_start)
        within = self._sieve.within
        start = max(log_start, min(within.offset_start, end))
        end = end if within.offset_end is None else min(end, max(log_start, within.offset_end))
        if start > end:  # the filter leaves nothing
            start, end = (end, end) if asked.way == "older" else (start, start)
        return _Walk(found, start, end, asked.way)

    def _go(self, walk: _Walk) -> None:
        """Look until there are enough rows, at the end of what there is, or until this takes too much."""
        with closing(self._forward(walk) if walk.way == "newer" else self._backward(walk)) as steps:
            while not (walk.is_over or len(walk.rows) >= self._asked.rows or self._budget.is_spent):
                walk.add(*next(steps))

    def _forward(self, walk: _Walk) -> Generator[_Step, None, None]:
        end = min(walk.end, walk.start + self._asked.rows) if self._sieve.takes_all else walk.end
        for each in self._read(walk, walk.start, end):
            self._budget.take(each.batch.nbytes)
            yield [(each, self._sieve.places(each))], each.last_offset + 1

    def _backward(self, walk: _Walk) -> Generator[_Step, None, None]:
        """Piece by piece, the newest first."""
        span = self._asked.rows if self._sieve.takes_all else FILTERED_SPAN
        while True:
            wanted = WantedRange(
                topic=self._asked.topic,
                partition=walk.found.partition,
                start=max(walk.start, walk.reached - span),
                to=walk.reached,
                piece_bytes=PIECE_BYTES,
            )
            (found,) = self._reader.ranges([wanted]).values()
            if not found.pieces:
                raise OffsetOutOfRange(
                    f"{found.topic_partition} has nothing below offset {walk.reached} any more: look at newer records"
                )
            starts = [found.start, *(piece.end for piece in found.pieces)]
            for start, piece in reversed([*zip(starts, found.pieces, strict=False)]):
                self._budget.take(piece.bytes)
                yield [(each, self._sieve.places(each)) for each in self._read(walk, start, piece.end)], start

    def _read(self, walk: _Walk, start: Offset, end: Offset) -> Iterator[LogBatch]:
        return self._reader.read(
            self._asked.topic,
            walk.found.partition,
            start,
            end,
            columns=self._sieve.columns,
            topic_id=self._topic.topic_id,
            whole=True,
        )

    def _shown(self, row: _Row) -> RecordRow:
        batch = row.batch
        return RecordRow(
            partition=batch.partition,
            offset=row.offset,
            at_ms=batch.timestamp,
            cells=[shown_value(batch.batch.column(each)[row.place]) for each in range(len(self._sieve.shown))],
        )


def _nearest(walks: Sequence[_Walk], count: int) -> list[_Row]:
    """The rows of all partitions that are the nearest to the place by their times. The others are given back."""

    def time_and_place(row: _Row) -> tuple[int, int, int]:
        return row.batch.timestamp, row.batch.partition, row.offset

    is_back = any(walk.way == "older" for walk in walks)
    found = list(islice(heapq.merge(*(walk.rows for walk in walks), key=time_and_place, reverse=is_back), count))
    taken: dict[int, int] = {}
    for row in found:
        taken[row.batch.partition] = taken.get(row.batch.partition, 0) + 1
    for walk in walks:
        walk.keep(taken.get(walk.found.partition, 0))
    return found

"""Reads of a stream: micro-batches from offset to offset, which Spark keeps in its checkpoint before it reads them.

The offset of a stream is `{"topic_id": …, "offsets": {"0": 17, …}, "epochs": {"0": 3, …}}`: the next offset of each
partition, and the leader epoch of the record before it, by which a log is known that was cut below. Checkpoints of
earlier releases have no epochs. A topic that was made again under its name has another id, and offsets of its own: a
checkpoint of the topic before is refused.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from spark_replication.core.replica.epochs import NO_EPOCH
from spark_replication.core.replica.read_start import ReadPlace
from spark_replication.errors import InvalidRequest, OffsetOutOfRange
from spark_replication.messages.descriptions import TopicMetadata
from spark_replication.messages.ranges import FoundRange
from spark_replication.model import AtTime, Offset
from spark_replication.spark.datasource.options import LogOptions
from spark_replication.spark.datasource.planning import limited, limited_by_bytes
from spark_replication.spark.datasource.positions import Place, place_of, refuse_others
from spark_replication.spark.datasource.tasks import Task, planned, rows_wanted
from spark_replication.spark.datasource.topic import Topic

Offsets = dict[int, Offset]
Places = dict[int, ReadPlace]

LOOK_S = 0.02  # between two looks at the ends: Spark asks every 10 ms
TOPIC_S = 1.0  # between two looks whether the topic has more partitions, or is another


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads a stream. It lives in a process of its own beside the driver, as long as the query, and Spark
    pickles it for its tasks."""

    def __init__(self, options: LogOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._topic = Topic(options)
        self._metadata: TopicMetadata | None = None
        self._metadata_s = 0.0
        self._seen: dict[int, FoundRange] = {}
        self._seen_s = 0.0
        #: Since when each of these partitions has had fewer records than were read of it.
        self._short_s: dict[int, float] = {}
        #: The ends of the newest micro-batch.
        self._ends: Offsets = {}
        #: The ends for Trigger.AvailableNow, beyond which nothing is read; None with another trigger.
        self._last: Offsets | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return StreamReader, (self._options, self._schema)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 (Spark's name, as are those below)
        found = self._found()
        numbers = _numbers(found)
        refuse_others(self._options.starting, numbers, found.name)
        places: dict[int, Place | AtTime | ReadPlace] = {
            each: place_of(self._options.starting, each, otherwise="earliest") for each in numbers
        }
        ranges = self._topic.found(places, topic_id=found.topic_id)
        for each in ranges.values():
            if each.start > each.high_watermark:
                raise InvalidRequest(
                    f"{each.topic_partition}: offset {each.start} was asked for, and {each.high_watermark} is the end "
                    "of what is committed: begin there at most"
                )
        return _told(found.topic_id, {number: self._topic.kept_from(each) for number, each in ranges.items()})

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.max_records_per_trigger is not None:
            return ReadMaxRows(self._options.max_records_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        topic_id, read = _heard(start)
        ends = self._committed(topic_id, read)
        starts = {partition: read[partition].offset if partition in read else 0 for partition in ends}
        # Spark knows only one of the two limits in the options.
        if not isinstance(limit, ReadAllAvailable) and self._options.max_bytes_per_trigger is not None:
            ends = self._within_bytes(topic_id, starts, ends, self._options.max_bytes_per_trigger)
        if isinstance(limit, ReadMaxRows):
            ends = limited(starts, ends, limit.max_rows)
        self._ends = ends
        return _told(topic_id, self._places(topic_id, read, ends))

    def _places(self, topic_id: str, read: Places, ends: Offsets) -> Places:
        """The ends with their epochs."""
        known = {(number, place.offset): place for number, place in read.items()}
        known |= {(number, each.high_watermark): _end(each) for number, each in self._seen.items()}
        within = {number: end for number, end in ends.items() if (number, end) not in known}
        found = self._topic.found(within, topic_id=topic_id, ends=within, may_lag=True)
        known |= {(number, each.start): ReadPlace(each.start, each.start_epoch) for number, each in found.items()}
        return {number: known[number, end] for number, end in ends.items()}

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The newest offsets, and as `behind` the records of each partition that the newest micro-batch leaves for the
        next."""
        if self._metadata is None or not self._seen:
            return None
        latest = {number: _end(each) for number, each in self._seen.items()}
        behind = {number: max(0, latest[number].offset - end) for number, end in self._ends.items() if number in latest}
        return {**_told(self._metadata.topic_id, latest), "behind": _by_text(behind)}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        found = self._found()
        ranges = self._topic.found(dict.fromkeys(_numbers(found), "latest"), topic_id=found.topic_id)
        self._last = {number: each.high_watermark for number, each in ranges.items()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        (topic_id, read), (_, ends) = _heard(start), _heard(end)
        rows = rows_wanted(self._found(topic_id), self._options, self._schema)
        starts = {partition: read.get(partition, ReadPlace(0)) for partition in ends}
        return planned(self._topic, rows, starts, ends, self._options.min_partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Task)
        return partition.read(self._options, self._schema)

    # What there is

    def _found(self, topic_id: str | None = None) -> TopicMetadata:
        """The topic's metadata, at most TOPIC_S old."""
        is_old = time.monotonic() - self._metadata_s > TOPIC_S
        if self._metadata is None or is_old or self._metadata.topic_id != (topic_id or self._metadata.topic_id):
            self._metadata, self._metadata_s = self._topic.metadata(topic_id), time.monotonic()
        return self._metadata

    def _committed(self, topic_id: str, read: Places) -> Offsets:
        """The end of what may be read of each partition. It never falls, unless a log was cut and that will do; that of
        a partition that is gone stays."""
        numbers = set(_numbers(self._found(topic_id)))
        if time.monotonic() - self._seen_s > LOOK_S or not numbers <= self._seen.keys():
            starts: dict[int, Place | AtTime | ReadPlace]
            starts = {number: read.get(number, ReadPlace(0)) for number in numbers}
            # A new leader may know less than was read: then there is nothing new of this partition.
            self._seen, self._seen_s = self._topic.found(starts, topic_id=topic_id, may_lag=True), time.monotonic()
        seen = {number: each for number, each in self._seen.items() if number in numbers}
        self._refuse_short(read, seen)
        ends = {number: place.offset for number, place in read.items()}
        for number, each in seen.items():
            if each.cut is not None:
                self._topic.kept_from(each)
                ends.pop(number, None)
            ends[number] = max(ends.get(number, 0), self._within_last(number, each.high_watermark))
        return ends

    def _within_last(self, number: int, end: Offset) -> Offset:
        return end if self._last is None else min(end, self._last.get(number, 0))

    def _refuse_short(self, read: Places, seen: Mapping[int, FoundRange]) -> None:
        """Raise OffsetOutOfRange if a partition has had fewer records than were read of it for longer than the
        deadline: it has lost records. For a while, a broker may know too few partitions. Of a checkpoint without
        epochs, only this tells that a log was cut."""
        now_s = time.monotonic()
        short = {number for number, place in read.items() if number not in seen or _is_short(seen[number], place)}
        self._short_s = {number: self._short_s.get(number, now_s) for number in short}
        for number, since_s in self._short_s.items():
            if self._options.fail_on_data_loss and now_s - since_s > self._options.deadline_ms / 1_000:
                name = f"{self._options.topic}-{number}"
                why = (
                    f"{seen[number].high_watermark} is the end of what is committed: an unclean election has lost "
                    "records"
                    if number in seen
                    else "there is no such partition any more: it was removed"
                )
                raise OffsetOutOfRange(
                    f"{name} was read up to offset {read[number].offset}, and {why}. Begin a new query, or go on "
                    "without them by failOnDataLoss=false"
                )

    def _within_bytes(self, topic_id: str, starts: Offsets, ends: Offsets, bytes_max: int) -> Offsets:
        """The ends within `bytes_max`. Stored batches stay whole: a partition exceeds its share by less than one."""
        there = {number: start for number, start in starts.items() if start < ends[number]}
        if not there:
            return ends
        whole = self._topic.found(there, topic_id=topic_id, ends=ends, may_lag=True)
        shares = limited_by_bytes(whole, bytes_max)
        if not shares:
            return ends
        cut = self._topic.found(
            {number: there[number] for number in shares},
            topic_id=topic_id,
            ends=ends,
            piece_bytes=shares,
            may_lag=True,
        )
        return {**ends, **{number: each.pieces[0].end for number, each in cut.items() if each.pieces}}


def _numbers(found: TopicMetadata) -> list[int]:
    return [command.partition for command in found.partitions]


def _told(topic_id: str, places: Mapping[int, ReadPlace]) -> dict[str, Any]:
    offsets = {number: place.offset for number, place in places.items()}
    epochs = {number: place.last_epoch for number, place in places.items() if place.last_epoch != NO_EPOCH}
    return {"topic_id": topic_id, "offsets": _by_text(offsets), "epochs": _by_text(epochs)}


def _by_text(numbers: Mapping[int, int]) -> dict[str, int]:
    return {str(number): numbers[number] for number in sorted(numbers)}


def _heard(told: dict[str, Any]) -> tuple[str, Places]:
    epochs = told.get("epochs", {})
    offsets = told["offsets"]
    places = {int(number): ReadPlace(int(offsets[number]), int(epochs.get(number, NO_EPOCH))) for number in offsets}
    return str(told["topic_id"]), places


def _end(found: FoundRange) -> ReadPlace:
    return ReadPlace(found.high_watermark, found.end_epoch)


def _is_short(found: FoundRange, read: ReadPlace) -> bool:
    return found.high_watermark < read.offset and not found.lags

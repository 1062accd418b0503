"""Reads of a batch: the range is decided once, when the query is planned."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from spark_replication.client.reading.bounds import EVERYTHING, Bounds
from spark_replication.core.replica.read_start import ReadPlace
from spark_replication.errors import InvalidRequest
from spark_replication.messages.descriptions import TopicMetadata
from spark_replication.messages.ranges import FoundRange
from spark_replication.model import AtTime, NamedOffset, Offset
from spark_replication.spark.datasource.filters import pushed
from spark_replication.spark.datasource.options import LogOptions, of_topic
from spark_replication.spark.datasource.planning import piece_bytes
from spark_replication.spark.datasource.positions import Place, Position, place_of, refuse_other_topics, refuse_others
from spark_replication.spark.datasource.reading import Rows
from spark_replication.spark.datasource.tasks import Task, planned, rows_wanted, tasks_of
from spark_replication.spark.datasource.topic import Topic, described


class BatchReader(DataSourceReader):
    """Plans and reads a batch. Spark pickles it for its tasks."""

    def __init__(self, options: LogOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._pushed = EVERYTHING

    def partitions(self) -> list[InputPartition]:
        every = described(self._options)
        for position in (self._options.starting, self._options.ending):
            refuse_other_topics(position, [found.name for found in every])
        tasks = [task for found in every for task in self._planned(found)]
        # With an empty list, Spark would make one task with a partition of its own.
        return tasks or [Task((), self._wanted(every[0]))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Task)
        return partition.read(self._options, self._schema)

    def _wanted(self, found: TopicMetadata) -> Rows:
        return rows_wanted(found, self._options, self._schema, self._pushed)

    def _planned(self, found: TopicMetadata) -> list[InputPartition]:
        topic, rows = Topic(of_topic(self._options, found.name)), self._wanted(found)
        topic.require_assigned(found)
        every = topic.numbers(found)
        for position in (self._options.starting, self._options.ending):
            refuse_others(position, every, topic.name)
        numbers = [number for number in every if self._pushed.has_partition(number)]
        starts, ends, whole = _starts_and_ends(topic, rows.topic_id, numbers, self._options)
        if self._pushed.time_start_ms is not None:
            after = AtTime(self._pushed.time_start_ms)
            late = topic.found(dict.fromkeys(numbers, after), topic_id=rows.topic_id)
            starts = {number: max(starts[number], _start(late[number])) for number in numbers}
        starts, ends = _within(self._pushed, starts, ends)
        if self._options.min_partitions is None and whole and _are_whole(whole, starts, ends):
            return tasks_of(whole, rows)
        return planned(topic, rows, starts, ends, self._options.min_partitions)


class FilteringReader(BatchReader):
    """The reader where Spark pushes conditions down. Where it does not, Spark refuses a reader that takes them."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 (Spark's name)
        if not self._options.include_metadata:
            return filters
        self._pushed, left = pushed(filters)
        return left


Places = dict[int, ReadPlace]


def _starts_and_ends(
    topic: Topic, topic_id: str, numbers: list[int], options: LogOptions
) -> tuple[Places, Places, dict[int, FoundRange]]:
    """Where each partition's rows begin and end, and the ranges as their leaders cut them, where one question answers
    both: a read up to what is committed asks no other."""

    def found(position: Position, otherwise: NamedOffset, size: int = 0) -> dict[int, FoundRange]:
        places: dict[int, Place | AtTime | ReadPlace] = {
            number: place_of(position, topic.name, number, otherwise=otherwise) for number in numbers
        }
        return topic.found(places, topic_id=topic_id, piece_bytes=dict.fromkeys(numbers, size))

    if options.ending == "latest":
        size = piece_bytes(0, None) if options.min_partitions is None else 0  # else it depends on what is found
        first = last = whole = found(options.starting, "earliest", size)
        ends = {number: ReadPlace(each.end, each.end_epoch) for number, each in whole.items()}
    else:
        last, first, whole = found(options.ending, "latest"), found(options.starting, "earliest"), {}
        ends = {number: _start(each) for number, each in last.items()}
    for each in (*first.values(), *last.values()):
        if each.start > each.high_watermark:
            raise InvalidRequest(
                f"{each.topic_partition}: offset {each.start} was asked for, and {each.high_watermark} is the end of "
                "what is committed: begin and end there at most"
            )
    return {number: topic.kept_from(each) for number, each in first.items()}, ends, whole


def _are_whole(found: Mapping[int, FoundRange], starts: Places, ends: Places) -> bool:
    """Whether these are the ranges that were found, in each partition."""
    return all((starts[number].offset, ends[number].offset) == (each.start, each.end) for number, each in found.items())


def _start(found: FoundRange) -> ReadPlace:
    return ReadPlace(found.start, found.start_epoch)


def _within(wanted: Bounds, starts: Places, ends: Places) -> tuple[Places, Places]:
    if wanted.offset_end is not None:
        end = ReadPlace(wanted.offset_end)
        ends = {number: min(each, end, key=_offset) for number, each in ends.items()}
    start = ReadPlace(wanted.offset_start)
    return {number: min(max(each, start), ends[number], key=_offset) for number, each in starts.items()}, ends


def _offset(place: ReadPlace) -> Offset:
    return place.offset

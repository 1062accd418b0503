"""Reads of a stream: micro-batches from offset to offset, which Spark keeps in its checkpoint before it reads them.

The offset of a stream of one topic is `{"topic_id": …, "offsets": {"0": 17, …}, "epochs": {"0": 3, …}}`: the next
offset of each partition, and the leader epoch of the record before it, by which a log is known that was cut below.
Checkpoints of earlier releases have no epochs. A topic that was made again under its name has another id, and offsets
of its own: a checkpoint of the topic before is refused.

The offset of a stream of several topics is `{"topics": {"orders": …, …}}`, with the same of each. Either kind of query
goes on from either kind of checkpoint: a topic in it that is not read any more keeps its place there, and one that it
does not have is read from its beginning.

Either has a `query_id` besides, made by the query's first micro-batch: a checkpoint is known by it, however often its
query is started. Spark tells its own id, and the query's name, to no source that is written in Python.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from spark_replication.errors import InvalidRequest
from spark_replication.messages.groups import ResetPlace
from spark_replication.messages.ranges import FoundRange
from spark_replication.model import Offset, TopicPartition
from spark_replication.spark.datasource.options import LogOptions, of_topic
from spark_replication.spark.datasource.planning import limited, limited_by_bytes
from spark_replication.spark.datasource.position_reports import PositionReports
from spark_replication.spark.datasource.positions import refuse_other_topics
from spark_replication.spark.datasource.tasks import Task
from spark_replication.spark.datasource.topic import topics_read
from spark_replication.spark.datasource.topic_stream import TopicPlaces, TopicStream, by_text

Read = dict[str, TopicPlaces]  # by topic
Offsets = dict[TopicPartition, Offset]
Value = TypeVar("Value")

PATTERN_S = 5.0  # between two looks whether a topic has appeared: each lists all that the cluster has


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads a stream. It lives in a process of its own beside the driver, as long as the query, and Spark
    pickles it for its tasks."""

    def __init__(self, options: LogOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._streams: dict[str, TopicStream] = {}
        #: The topics that there are of those to be read, when it was last asked.
        self._topics: list[str] = []
        self._topics_s = 0.0
        #: Whether nothing is read but what there was at the start of the query.
        self._ends_here = False
        #: The ends of the newest micro-batch, and when it was planned (before the first: when the query began).
        self._ends: Offsets = {}
        self._planned_s = time.monotonic()
        #: The id of a query whose checkpoint has none yet.
        self._query_id = uuid.uuid4().hex
        #: Where the query begins if it has no checkpoint yet.
        self._initial: dict[str, Any] | None = None
        self._reports: PositionReports | None = None
        #: The offset whose positions were reported last.
        self._reported: dict[str, Any] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return StreamReader, (self._options, self._schema)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 (Spark's name, as are those below)
        topics = self._there()
        refuse_other_topics(self._options.starting, topics)
        begins = {topic: self._stream(topic).beginning(self._options.starting) for topic in topics}
        self._initial = self._named(begins, {})
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.max_records_per_trigger is not None:
            return ReadMaxRows(self._options.max_records_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        if self._options.min_records_per_trigger is not None:
            return ReadMinRows(self._options.min_records_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        read = self._heard(start)
        topics = self._read_on(read)
        appeared = {topic: self._stream(topic).beginning("earliest") for topic in topics if topic not in read}
        if appeared:
            # The checkpoint has where they begin before any of their records is read.
            return self._named({**read, **appeared}, start)
        ends = _flat({topic: self._stream(topic).ends(read[topic]) for topic in topics})
        self._report(start, read, topics)
        places = {each: read[each.topic].places.get(each.partition) for each in ends}
        starts = {each: 0 if place is None else place.offset for each, place in places.items()}
        # Spark knows only one of the limits in the options.
        if not isinstance(limit, ReadAllAvailable):
            if self._waits_for_more(starts, ends):
                return start
            if self._options.max_bytes_per_trigger is not None:
                ends = self._within_bytes(read, starts, ends, self._options.max_bytes_per_trigger)
        if isinstance(limit, ReadMaxRows):
            ends = limited(starts, ends, limit.max_rows)
        if ends != starts:
            self._planned_s = time.monotonic()
        elif self._ends_here and self._reports is not None:
            self._reports.flush()  # Spark kills this process next
        self._ends = ends
        by_topic = _by_topic(ends)
        placed = {topic: self._stream(topic).placed(read[topic], by_topic.get(topic, {})) for topic in topics}
        return self._named({**read, **placed}, start)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The newest offsets, and as `behind` the records of each partition that the newest micro-batch leaves for the
        next: of several topics, by topic."""
        latest = {topic: found for topic in self._streams if (found := self._streams[topic].latest()) is not None}
        if not latest:
            return None
        known = _flat({topic: each.places for topic, each in latest.items()})
        left = {each: max(0, known[each].offset - end) for each, end in self._ends.items() if each in known}
        behind = {topic: by_text(found) for topic, found in sorted(_by_topic(left).items())}
        told = self._told(latest)
        return {**told, "behind": behind if "topics" in told else behind.get(self._options.topic, {})}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        for topic in self._there():
            self._stream(topic).end_here()
        self._ends_here = True

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        read, ends = self._heard(start), self._heard(end)
        return [
            task
            for topic in sorted(ends)
            if topic in read and read[topic] != ends[topic]
            for task in self._stream(topic).plan(read[topic], ends[topic], self._schema)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Task)
        return partition.read(self._options, self._schema)

    def stop(self) -> None:
        """Called if the driver is gone. Spark ends the process of a query that is stopped by a signal."""
        if self._reports is not None:
            self._reports.close()

    def _report(self, start: dict[str, Any], read: Read, topics: Iterable[str]) -> None:
        """Have it reported that all before `start` is committed: whoever asks what is behind it has written all of it.
        `commit` says no more, and later, and never of the last micro-batch."""
        name = self._options.query_name or (None if start == self._initial else start.get("query_id"))
        if not self._options.reports_group or name is None or start == self._reported:
            return
        self._reported = start
        self._reports = self._reports or PositionReports(self._options, name)
        known = _flat({topic: each.places for topic, each in read.items()})
        there = {
            TopicPartition(topic, number)
            for topic in topics
            for number in self._stream(topic).numbers(read[topic].topic_id)
        }
        places = {
            each: ResetPlace(
                topic=each.topic,
                partition=each.partition,
                topic_id=read[each.topic].topic_id,
                offset=place.offset,
                last_epoch=place.last_epoch,
            )
            for each, place in known.items()
            if each in there
        }
        self._reports.note(places, known.keys() - places.keys())

    def _stream(self, topic: str) -> TopicStream:
        if topic not in self._streams:
            self._streams[topic] = TopicStream(of_topic(self._options, topic))
        return self._streams[topic]

    def _there(self) -> list[str]:
        """The topics that there are of those to be read, as of at most PATTERN_S ago."""
        if not self._ends_here and (not self._topics or time.monotonic() - self._topics_s > PATTERN_S):
            self._topics, self._topics_s = topics_read(self._options), time.monotonic()
        return self._topics

    def _read_on(self, read: Read) -> list[str]:
        """The topics that are read from there on. One of the pattern that is gone is among them if that is to be an
        error: whoever asks for it raises that."""
        there = self._there()
        if self._options.pattern is None or not self._options.fail_on_data_loss:
            return there
        return sorted({*there, *(topic for topic in read if re.fullmatch(self._options.pattern, topic))})

    def _waits_for_more(self, starts: Offsets, ends: Offsets) -> bool:
        """Whether there is less than a micro-batch is to have at least, and time left to wait for more."""
        least = self._options.min_records_per_trigger
        if least is None or self._ends_here:
            return False
        rows = sum(max(0, ends[each] - start) for each, start in starts.items())
        return rows < least and time.monotonic() - self._planned_s < self._options.max_trigger_delay_ms / 1_000

    def _within_bytes(self, read: Read, starts: Offsets, ends: Offsets, bytes_max: int) -> Offsets:
        """The ends within `bytes_max`."""
        there = {each: start for each, start in starts.items() if start < ends[each]}
        by_topic = _by_topic(ends)
        found: dict[TopicPartition, FoundRange] = {}
        for topic, froms in _by_topic(there).items():
            whole = self._stream(topic).sizes(read[topic].topic_id, froms, by_topic[topic])
            found |= {each.topic_partition: each for each in whole.values()}
        shares = limited_by_bytes(found, bytes_max)
        cut: Offsets = {}
        for topic, bytes_of in _by_topic(shares).items():
            froms = {number: there[TopicPartition(topic, number)] for number in bytes_of}
            within = self._stream(topic).within_bytes(read[topic].topic_id, froms, by_topic[topic], bytes_of)
            cut |= _flat({topic: within})
        return {**ends, **cut}

    def _heard(self, told: dict[str, Any]) -> Read:
        if "topics" in told:
            return {topic: TopicPlaces.heard(each) for topic, each in told["topics"].items()}
        read = TopicPlaces.heard(told)
        if not self._options.reads_several:
            return {self._options.topic: read}
        topics = self._there()
        for topic in topics:
            if self._stream(topic).topic_id == read.topic_id:
                return {topic: read}
        raise InvalidRequest(
            f"the checkpoint is of one topic, with id {read.topic_id}, and none of {', '.join(topics)} has that: read "
            "that topic, too, or begin with a new checkpoint"
        )

    def _named(self, read: Read, start: Mapping[str, Any]) -> dict[str, Any]:
        """The offset, with the id of the query that has read up to `start`."""
        return {**self._told(read), "query_id": start.get("query_id", self._query_id)}

    def _told(self, read: Read) -> dict[str, Any]:
        if not self._options.reads_several and read.keys() == {self._options.topic}:
            return read[self._options.topic].told()
        return {"topics": {topic: read[topic].told() for topic in sorted(read)}}


def _flat(by_topic: Mapping[str, Mapping[int, Value]]) -> dict[TopicPartition, Value]:
    return {TopicPartition(topic, number): each for topic, found in by_topic.items() for number, each in found.items()}


def _by_topic(flat: Mapping[TopicPartition, Value]) -> dict[str, dict[int, Value]]:
    found: dict[str, dict[int, Value]] = {}
    for each, value in flat.items():
        found.setdefault(each.topic, {})[each.partition] = value
    return found

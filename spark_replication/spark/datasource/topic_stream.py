"""What a stream reads of one topic: how far its partitions go, and what of them is planned."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from spark_replication.core.replica.epochs import NO_EPOCH
from spark_replication.core.replica.read_start import ReadPlace
from spark_replication.errors import InvalidRequest, OffsetOutOfRange
from spark_replication.messages.descriptions import TopicMetadata
from spark_replication.messages.ranges import FoundRange
from spark_replication.model import AtTime, Offset
from spark_replication.spark.datasource.options import LogOptions
from spark_replication.spark.datasource.positions import Place, Position, place_of, refuse_others
from spark_replication.spark.datasource.tasks import planned, rows_wanted
from spark_replication.spark.datasource.topic import Topic

Offsets = dict[int, Offset]
Places = dict[int, ReadPlace]

LOOK_S = 0.02  # between two looks at the ends: Spark asks every 10 ms
TOPIC_S = 1.0  # between two looks whether the topic has more partitions, or is another


class TopicPlaces(NamedTuple):
    """The next place of each partition of a topic. In a checkpoint it is
    `{"topic_id": …, "offsets": {"0": 17, …}, "epochs": {"0": 3, …}}`."""

    topic_id: str
    places: Places

    @classmethod
    def heard(cls, told: Mapping[str, Any]) -> TopicPlaces:
        epochs, offsets = told.get("epochs", {}), told["offsets"]
        places = {int(number): ReadPlace(int(offsets[number]), int(epochs.get(number, NO_EPOCH))) for number in offsets}
        return cls(str(told["topic_id"]), places)

    def told(self) -> dict[str, Any]:
        offsets = {number: place.offset for number, place in self.places.items()}
        epochs = {number: place.last_epoch for number, place in self.places.items() if place.last_epoch != NO_EPOCH}
        return {"topic_id": self.topic_id, "offsets": by_text(offsets), "epochs": by_text(epochs)}


class TopicStream:
    """Lives as long as the query. `options` name the topic."""

    def __init__(self, options: LogOptions) -> None:
        self._options = options
        self._topic = Topic(options)
        self._metadata: TopicMetadata | None = None
        self._metadata_s = 0.0
        self._seen: dict[int, FoundRange] = {}
        self._seen_s = 0.0
        #: Since when each of these partitions has had fewer records than were read of it.
        self._short_s: dict[int, float] = {}
        #: The ends for Trigger.AvailableNow, beyond which nothing is read; None with another trigger.
        self._last: Offsets | None = None

    @property
    def topic_id(self) -> str:
        return self._found().topic_id

    def numbers(self, topic_id: str) -> set[int]:
        """The partitions that are read."""
        return set(self._topic.numbers(self._found(topic_id)))

    def beginning(self, position: Position) -> TopicPlaces:
        found = self._found()
        self._topic.require_assigned(found)
        numbers = self._topic.numbers(found)
        refuse_others(position, numbers, found.name)
        places: dict[int, Place | AtTime | ReadPlace] = {
            each: place_of(position, found.name, each, otherwise="earliest") for each in numbers
        }
        ranges = self._topic.found(places, topic_id=found.topic_id)
        for each in ranges.values():
            if each.start > each.high_watermark:
                raise InvalidRequest(
                    f"{each.topic_partition}: offset {each.start} was asked for, and {each.high_watermark} is the end "
                    "of what is committed: begin there at most"
                )
        return TopicPlaces(found.topic_id, {number: self._topic.kept_from(each) for number, each in ranges.items()})

    def ends(self, read: TopicPlaces) -> Offsets:
        """The end of what may be read of each partition. It never falls, unless a log was cut and that will do; that of
        a partition that is gone, or is no longer assigned, stays."""
        numbers = self.numbers(read.topic_id)
        if time.monotonic() - self._seen_s > LOOK_S or not numbers <= self._seen.keys():
            starts: dict[int, Place | AtTime | ReadPlace]
            starts = {number: read.places.get(number, ReadPlace(0)) for number in numbers}
            # A new leader may know less than was read: then there is nothing new of this partition.
            self._seen = self._topic.found(starts, topic_id=read.topic_id, may_lag=True)
            self._seen_s = time.monotonic()
        seen = {number: each for number, each in self._seen.items() if number in numbers}
        self._refuse_short(read.places, seen)
        ends = {number: place.offset for number, place in read.places.items()}
        for number, each in seen.items():
            if each.cut is not None:
                self._topic.kept_from(each)
                ends.pop(number, None)
            ends[number] = max(ends.get(number, 0), self._within_last(number, each.high_watermark))
        return ends

    def placed(self, read: TopicPlaces, ends: Offsets) -> TopicPlaces:
        """The ends with their epochs."""
        known = {(number, place.offset): place for number, place in read.places.items()}
        known |= {(number, each.high_watermark): _end(each) for number, each in self._seen.items()}
        within = {number: end for number, end in ends.items() if (number, end) not in known}
        found = self._topic.found(within, topic_id=read.topic_id, ends=within, may_lag=True)
        known |= {(number, each.start): ReadPlace(each.start, each.start_epoch) for number, each in found.items()}
        return TopicPlaces(read.topic_id, {number: known[number, end] for number, end in ends.items()})

    def sizes(self, topic_id: str, starts: Offsets, ends: Offsets) -> dict[int, FoundRange]:
        return self._topic.found(starts, topic_id=topic_id, ends=ends, may_lag=True)

    def within_bytes(self, topic_id: str, starts: Offsets, ends: Offsets, bytes_max: Mapping[int, int]) -> Offsets:
        """The ends that leave each partition its share of bytes. Stored batches stay whole: a partition exceeds its
        share by less than one."""
        cut = self._topic.found(starts, topic_id=topic_id, ends=ends, piece_bytes=bytes_max, may_lag=True)
        return {number: each.pieces[0].end for number, each in cut.items() if each.pieces}

    def latest(self) -> TopicPlaces | None:
        """The newest ends that were seen; None before the first look."""
        if self._metadata is None or not self._seen:
            return None
        return TopicPlaces(self._metadata.topic_id, {number: _end(each) for number, each in self._seen.items()})

    def end_here(self) -> None:
        """Read nothing beyond what there is."""
        found = self._found()
        ranges = self._topic.found(dict.fromkeys(self._topic.numbers(found), "latest"), topic_id=found.topic_id)
        self._last = {number: each.high_watermark for number, each in ranges.items()}

    def plan(self, read: TopicPlaces, end: TopicPlaces, schema: StructType) -> list[InputPartition]:
        rows = rows_wanted(self._found(read.topic_id), self._options, schema)
        starts = {partition: read.places.get(partition, ReadPlace(0)) for partition in end.places}
        return planned(self._topic, rows, starts, end.places, self._options.min_partitions)

    def _found(self, topic_id: str | None = None) -> TopicMetadata:
        """The topic's metadata, at most TOPIC_S old."""
        is_old = time.monotonic() - self._metadata_s > TOPIC_S
        if self._metadata is None or is_old or self._metadata.topic_id != (topic_id or self._metadata.topic_id):
            self._metadata, self._metadata_s = self._topic.metadata(topic_id), time.monotonic()
        return self._metadata

    def _within_last(self, number: int, end: Offset) -> Offset:
        return end if self._last is None else min(end, self._last.get(number, 0))

    def _refuse_short(self, read: Places, seen: Mapping[int, FoundRange]) -> None:
        """Raise OffsetOutOfRange if a partition has had fewer records than were read of it for longer than the
        deadline: it has lost records. For a while, a broker may know too few partitions. Of a checkpoint without
        epochs, only this tells that a log was cut."""
        now_s = time.monotonic()
        short = {
            number
            for number, place in read.items()
            if self._options.has_partition(number) and (number not in seen or _is_short(seen[number], place))
        }
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


def by_text(numbers: Mapping[int, int]) -> dict[str, int]:
    return {str(number): numbers[number] for number in sorted(numbers)}


def _end(found: FoundRange) -> ReadPlace:
    return ReadPlace(found.high_watermark, found.end_epoch)


def _is_short(found: FoundRange, read: ReadPlace) -> bool:
    return found.high_watermark < read.offset and not found.lags

"""A topic, for planners and tasks: the process has one connection to the cluster, and keeps it for the next task."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from spark_replication.client.finding.deadline import Deadline
from spark_replication.client.reading.log_batch import LogBatch
from spark_replication.client.reading.reader import Reader
from spark_replication.core.replica.epochs import NO_EPOCH
from spark_replication.core.replica.read_start import ReadPlace
from spark_replication.engine.client.pausing import back_off_s
from spark_replication.engine.client.reading import Preference
from spark_replication.errors import InvalidRequest, LogTruncated, OffsetOutOfRange, UnknownTopicOrPartition
from spark_replication.messages.descriptions import TopicMetadata
from spark_replication.messages.ranges import FoundRange, KnownAppends, WantedRange
from spark_replication.model import AtTime, Offset, TopicPartition
from spark_replication.spark.datasource.options import LogOptions, of_topic
from spark_replication.spark.datasource.planning import Range
from spark_replication.spark.datasource.positions import Place

HEARD_BY_ALL_MS = 3_000
ASK_AGAIN_S = 0.1

Answer = TypeVar("Answer")

log = logging.getLogger(__name__)


def topics_read(options: LogOptions) -> list[str]:
    """The topics that these options name, or that there are of their pattern, sorted."""
    if options.pattern is None:
        return sorted(options.topics) or [options.topic]
    return [name for name in _reader_of(options).topics() if re.fullmatch(options.pattern, name)]


def described(options: LogOptions) -> list[TopicMetadata]:
    """The topics that are read, sorted by name. Raises InvalidRequest if there are none of a pattern."""
    found = [Topic(of_topic(options, name)).metadata() for name in topics_read(options)]
    if not found:
        raise InvalidRequest(
            f"there is no topic that subscribePattern={options.pattern!r} matches, so nobody knows which columns there "
            "are: create one, or give .schema(…)"
        )
    return found


class Topic:
    """A topic of a cluster, stateless except for the connection."""

    def __init__(self, options: LogOptions) -> None:
        self.name = options.topic
        self._options = options
        self._reader = _reader_of(options)

    def numbers(self, found: TopicMetadata) -> list[int]:
        """The partitions that are read."""
        return [number for number in found.numbers if self._options.has_partition(number)]

    def require_assigned(self, found: TopicMetadata) -> None:
        """Raise InvalidRequest if partitions are to be read that the topic does not have."""
        there = found.numbers
        missing = sorted(set((self._options.assigned or {}).get(self.name, ())) - set(there))
        if missing:
            raise InvalidRequest(f"assign names partitions {missing} of {self.name}, which has {[*there]}: name these")

    def metadata(self, topic_id: str | None = None) -> TopicMetadata:
        """The topic's metadata. With `topic_id`, raises InvalidRequest if another topic has its name."""
        if topic_id is None:
            return self._reader.topic(self.name)
        return self._of(topic_id, lambda: self._reader.topic(self.name), lambda found: [found.topic_id])

    def known(self, producer: int) -> tuple[tuple[int, ...], dict[int, KnownAppends]]:
        """The topic's partitions, and what each of them has stored of a producer, as its leader says. Partitions that
        know nothing of the producer are left out."""
        partitions = self.metadata().numbers
        wanted = [
            WantedRange(topic=self.name, partition=partition, to=0, may_lag=True, producers=(producer,))
            for partition in partitions
        ]
        found = self._reader.ranges(wanted).values()
        return partitions, {each.partition: known for each in found for known in each.known}

    def found(
        self,
        starts: Mapping[int, Place | AtTime | ReadPlace],
        *,
        topic_id: str,
        ends: Mapping[int, Offset] | None = None,
        piece_bytes: Mapping[int, int] | None = None,
        may_lag: bool = False,
    ) -> dict[int, FoundRange]:
        """The ranges of these partitions, [start, end); without an end, up to what is committed. Raises InvalidRequest
        if another topic has its name. may_lag: see WantedRange."""
        wanted = [
            WantedRange(
                topic=self.name,
                partition=partition,
                to=None if ends is None else ends[partition],
                piece_bytes=(piece_bytes or {}).get(partition, 0),
                may_lag=may_lag,
                **_wanted(start),
            )
            for partition, start in starts.items()
        ]
        if not wanted:
            return {}

        def ask() -> dict[int, FoundRange]:
            return {each.partition: each for each in self._reader.ranges(wanted).values()}

        return self._of(topic_id, ask, lambda found: [each.topic_id for each in found.values()])

    def whole(
        self,
        starts: Mapping[int, ReadPlace],
        ends: Mapping[int, ReadPlace],
        *,
        topic_id: str,
        piece_bytes: int = 0,
    ) -> dict[int, FoundRange]:
        """The ranges of partitions that have any rows between `starts` and `ends`, all of each: their ends were
        committed once, and a leader that knows of less is asked again until the deadline. Raises LogTruncated if
        records are gone, or leaves these out, as failOnDataLoss says."""
        left = {partition: start for partition, start in starts.items() if start != ends[partition]}
        deadline, failures = Deadline(self._options.deadline_ms), 0
        while True:
            # Only a log that was cut ends below what was read of it, or there in another epoch.
            beyond = {partition: start for partition, start in left.items() if _is_beyond(start, ends[partition])}
            lost = self.found(beyond, topic_id=topic_id, may_lag=True)
            left |= {partition: self.kept_from(each) for partition, each in lost.items()}
            left = {partition: start for partition, start in left.items() if start.offset < ends[partition].offset}
            found = self.found(
                left,
                topic_id=topic_id,
                ends={partition: ends[partition].offset for partition in left},
                piece_bytes=dict.fromkeys(left, piece_bytes),
            )
            kept = {partition: self.kept_from(each) for partition, each in found.items()}
            moved = {partition: start for partition, start in kept.items() if start.offset != left[partition].offset}
            left |= moved
            short = [each for each in found.values() if not _reaches(each, ends[each.partition])]
            if not moved and (not short or deadline.passed):
                for each in short:
                    self._lost(each.topic_partition, ends[each.partition].offset, each.end)
                return {partition: each for partition, each in found.items() if each.start < each.end}
            if short and not moved:
                failures += 1
                time.sleep(min(back_off_s(failures), deadline.remaining_s))

    def _of(self, topic_id: str, ask: Callable[[], Answer], ids: Callable[[Answer], Iterable[str]]) -> Answer:
        """The answer, once it is about this topic. Raises InvalidRequest if a broker still answers about another one
        after HEARD_BY_ALL_MS: until then, some may not have heard yet that a topic was made again."""
        deadline = Deadline(HEARD_BY_ALL_MS)
        while True:
            answer = ask()
            others = sorted(set(ids(answer)) - {topic_id})
            if not others:
                return answer
            if deadline.passed:
                raise InvalidRequest(
                    f"{self.name} was deleted and made again (topic_id {topic_id} before, {others[0]} at present): its "
                    "offsets begin anew. Read it with a new query, and a stream with a new checkpoint"
                )
            time.sleep(ASK_AGAIN_S)

    def kept_from(self, found: FoundRange) -> ReadPlace:
        """The place to begin at: the log's start, if retention has removed the one wanted, or where the log was cut
        below it. Raises OffsetOutOfRange instead if failOnDataLoss is set."""
        if found.cut is not None:
            self._lost(found.topic_partition, found.start, found.cut)
            return ReadPlace(max(found.cut, found.log_start))
        if found.start >= found.log_start:
            return ReadPlace(found.start, found.start_epoch)
        name = found.topic_partition
        if self._options.fail_on_data_loss:
            raise OffsetOutOfRange(
                f"{name}: offset {found.start} was next, and the log begins at {found.log_start}: retention has "
                f"removed {found.log_start - found.start} records. Read on without them by failOnDataLoss=false, "
                "and keep records for longer (retention.ms, retention.bytes)"
            )
        log.warning(
            "%s: records from offset %d to %d are gone, removed by retention: they are left out",
            name,
            found.start,
            found.log_start - 1,
        )
        return ReadPlace(found.log_start)

    def _lost(self, name: TopicPartition, read: Offset, cut: Offset) -> None:
        """Raise LogTruncated, or leave out what is gone, as failOnDataLoss says."""
        why = (
            f"{name} was read or planned up to offset {read}, and its log was cut since, at {cut} or above: an unclean "
            "election has lost what was behind, or the partition was removed and added again"
        )
        if self._options.fail_on_data_loss:
            raise LogTruncated(
                f"{why}. Other records may have these offsets. Begin a new query, or read on from {cut} by "
                "failOnDataLoss=false"
            )
        log.warning("%s: it is read on from %d", why, cut)

    def read(self, wanted: Range, columns: Sequence[str], *, topic_id: str) -> Iterator[LogBatch]:
        """Read all of a range, which was committed when the read was planned, whoever leads meanwhile. What has become
        of it is asked only once the read has ended before the range: as a rule it does not."""
        partition, start, end = wanted.partition, wanted.start, wanted.end
        place, deadline, failures, is_doubtful = start, Deadline(self._options.deadline_ms), 0, False
        while True:
            if is_doubtful:
                (found,) = self.found({partition: place}, topic_id=topic_id, may_lag=True).values()
                kept = self.kept_from(found)
                if kept.offset != place.offset:
                    place = ReadPlace(min(end.offset, max(start.offset, kept.offset)))
            before, is_doubtful = place.offset, True
            try:
                for batch in self._reader.read(
                    self.name,
                    partition,
                    place.offset,
                    end.offset,
                    columns=columns,
                    topic_id=topic_id,
                    last_epoch=None if place.last_epoch == NO_EPOCH else place.last_epoch,
                ):
                    place = ReadPlace(batch.last_offset + 1, batch.leader_epoch)
                    yield batch
            except (OffsetOutOfRange, UnknownTopicOrPartition):
                pass  # retention was faster, or the log was cut, or the topic made again: the next turn finds out
            name = TopicPartition(self.name, partition)
            if place.offset >= end.offset:
                if NO_EPOCH not in (place.last_epoch, end.last_epoch) and place.last_epoch != end.last_epoch:
                    self._lost(name, end.offset, start.offset)  # other records have the offsets that were planned
                return
            if place.offset > before:
                deadline, failures = Deadline(self._options.deadline_ms), 0
            if deadline.passed:
                self._lost(name, end.offset, place.offset)
                return
            failures += 1
            time.sleep(min(back_off_s(failures), deadline.remaining_s))


def _wanted(start: Place | AtTime | ReadPlace) -> dict[str, Any]:
    """What a WantedRange says of its start."""
    match start:
        case AtTime(time_ms):
            return {"from_time": time_ms}
        case ReadPlace(offset, last_epoch):
            return {"start": offset, "last_epoch": None if last_epoch == NO_EPOCH else last_epoch}
        case place:
            return {"start": place}


def _is_beyond(start: ReadPlace, end: ReadPlace) -> bool:
    is_known = NO_EPOCH not in (start.last_epoch, end.last_epoch)
    return start.offset > end.offset or (start.offset == end.offset and is_known and start != end)


def _reaches(found: FoundRange, end: ReadPlace) -> bool:
    """Whether the range ends where it was to end, in the same log."""
    is_known = NO_EPOCH not in (found.end_epoch, end.last_epoch)
    return found.end == end.offset and (not is_known or found.end_epoch == end.last_epoch)


_readers: dict[tuple[object, ...], Reader] = {}


def _reader_of(options: LogOptions) -> Reader:
    """The process's reader for these options. Spark gives the next task to the same process, and to connect anew would
    take longer than a small task. A process that Spark forks later has a number of its own,
    and makes its own reader: the daemon that it is a fork of has asked nobody anything."""
    prefer: Preference = "near" if options.local_reads else "leader"
    key = (os.getpid(), options.bootstrap, prefer, options.deadline_ms, *sorted(options.security.items()))
    if key not in _readers:
        _readers[key] = Reader(
            options.bootstrap, security=options.security or None, prefer=prefer, deadline_ms=options.deadline_ms
        )
    return _readers[key]

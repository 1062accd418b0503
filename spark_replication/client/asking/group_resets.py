"""Sets the positions of a consumer group anew: leaders say which offsets there are, and its coordinator stores them.

A position travels with the leader epoch of the record before it (K2): whoever goes on there hears if the log was cut.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple, cast, get_args

import msgspec

from spark_replication.client.asking.groups import (
    GroupPartitionDescription,
    change_group,
    described_groups,
    told_groups,
    unknown_group,
)
from spark_replication.client.finding.deadline import Deadline
from spark_replication.client.finding.ranges import found_ranges
from spark_replication.client.finding.routes import Routes
from spark_replication.core.groups.deciding import require_empty
from spark_replication.core.replica.read_start import time_in_ms
from spark_replication.errors import InvalidRequest, OffsetOutOfRange, UnknownTopicOrPartition
from spark_replication.messages.groups import OF_SPARK, ResetGroup, ResetPlace
from spark_replication.messages.ranges import FoundRange, WantedRange
from spark_replication.model import (
    OFFSET_MAX,
    AtTime,
    Count,
    NamedOffset,
    Offset,
    PartitionNumber,
    Start,
    TopicPartition,
    in_ranges,
)

NAMED_MAX = 5  # partitions in a refusal


class PositionChange(msgspec.Struct, frozen=True, kw_only=True):
    """Where a group goes on in a partition, before and after a reset."""

    topic: str
    partition: PartitionNumber
    #: None: it had not committed there.
    before: Offset | None
    after: Offset
    #: How many records the group has not committed, and leaves out.
    skipped: Count
    #: How many records the group has committed, and reads again.
    read_again: Count


class ResetRequest(NamedTuple):
    """See Admin.reset_group."""

    group: str
    topic: str | None
    partitions: Collection[int] | None
    to: int | str | datetime


class PositionShift(NamedTuple):
    records: int


Positions = Mapping[TopicPartition, GroupPartitionDescription]


def reset_group(routes: Routes, asked: ResetRequest, deadline: Deadline, *, dry_run: bool) -> list[PositionChange]:
    to = _destination(asked.to)
    if asked.group.startswith(OF_SPARK):
        raise InvalidRequest(
            f"{asked.group} is a Spark query, which goes on where its checkpoint says: start it with another "
            "checkpoint, from startingOffsets or startingTimestamp"
        )
    if asked.partitions is not None and (asked.topic is None or not asked.partitions):
        raise InvalidRequest("partitions are of one topic: name it, and one partition at least")
    described = described_groups(routes, [asked.group], deadline)
    if not described and asked.topic is None:
        raise unknown_group(asked.group, [each.group for each in told_groups(routes, None, deadline)])
    for group in described:
        require_empty(group.group, {each.member: each.host for each in group.members}, "reset")
    known = {each.topic_partition: each for group in described for each in group.partitions if each.offset is not None}
    found = _places(routes, _chosen(routes, asked, to, known, deadline), to, known, deadline)
    if not dry_run:
        change_group(routes, ResetGroup(group=asked.group, places=tuple(map(_place, found))), deadline)
    return [_change(each, known.get(each.topic_partition)) for each in found]


def _destination(to: int | str | datetime) -> Start | PositionShift:
    if isinstance(to, datetime):
        return AtTime(time_in_ms(to))
    if isinstance(to, str) and re.fullmatch(r"[+-][0-9]{1,19}", to):
        return PositionShift(int(to))
    if isinstance(to, str) and to in get_args(NamedOffset):
        return cast(NamedOffset, to)
    if isinstance(to, (str, bool)) or not 0 <= to <= OFFSET_MAX:
        raise InvalidRequest(
            f'to={to!r}: it is an offset, "earliest", "latest", a datetime, or a shift of so many records as "-100"'
        )
    return to


def _chosen(
    routes: Routes, asked: ResetRequest, to: Start | PositionShift, known: Positions, deadline: Deadline
) -> list[TopicPartition]:
    """The partitions that are to get a position."""
    if asked.topic is not None:
        there = [TopicPartition(asked.topic, each) for each in routes.await_topic(asked.topic, deadline).numbers]
    else:
        topics = routes.metadata(sorted({each.topic for each in known}), deadline).topics
        there = [TopicPartition(topic.name, each) for topic in topics for each in topic.numbers]
    if asked.partitions is not None:
        missing = {*asked.partitions} - {each.partition for each in there}
        if missing:
            raise UnknownTopicOrPartition(
                f"{asked.topic} has no partition {in_ranges(missing)}, it has {in_ranges(p.partition for p in there)}: "
                "name one of these"
            )
        there = [each for each in there if each.partition in asked.partitions]
    if isinstance(to, PositionShift):
        without = [each for each in there if each not in known]
        if asked.partitions is not None and without:
            raise InvalidRequest(
                f"group {asked.group} has no position in {_named(without)} that can be shifted: set one first, as by "
                '"earliest"'
            )
        there = [each for each in there if each in known]
    if not there:
        where = "" if asked.topic is None else f" in {asked.topic}"
        raise InvalidRequest(
            f"group {asked.group} has no position{where} to go on from: name a topic, and a place in it"
        )
    return there


def _places(
    routes: Routes,
    partitions: Collection[TopicPartition],
    to: Start | PositionShift,
    known: Positions,
    deadline: Deadline,
) -> list[FoundRange]:
    """The ranges that start where the group is to go on, in the order of their partitions."""
    start = "earliest" if isinstance(to, PositionShift) else to
    found = found_ranges(routes, [_wanted(each, start) for each in partitions], deadline)
    if isinstance(to, PositionShift):
        starts = {each: _shifted(log, known[each].offset, to.records) for each, log in found.items()}
        found = found_ranges(routes, [_wanted(each, start) for each, start in starts.items()], deadline)
    places = [found[each] for each in sorted(found)]
    outside = [each for each in places if not each.log_start <= each.start <= each.high_watermark]
    if outside:
        told = _named([f"{each.topic_partition} with {each.log_start} to {each.high_watermark}" for each in outside])
        raise OffsetOutOfRange(
            f"offset {outside[0].start} is outside of {told}: choose one within, or name other partitions"
        )
    return places


def _wanted(partition: TopicPartition, start: Start) -> WantedRange:
    topic, number = partition
    if isinstance(start, AtTime):
        return WantedRange(topic=topic, partition=number, from_time=start.time_ms)
    return WantedRange(topic=topic, partition=number, start=start)


def _shifted(log: FoundRange, offset: Offset | None, records: int) -> Offset:
    """Kept within the log."""
    assert offset is not None, "only what has a position is shifted"
    return min(max(log.log_start, offset + records), log.high_watermark)


def _place(found: FoundRange) -> ResetPlace:
    return ResetPlace(
        topic=found.topic,
        partition=found.partition,
        topic_id=found.topic_id,
        offset=found.start,
        last_epoch=found.start_epoch,
    )


def _change(found: FoundRange, position: GroupPartitionDescription | None) -> PositionChange:
    before = None if position is None else position.offset
    reached = min(max(found.log_start, before or 0), found.high_watermark)
    return PositionChange(
        topic=found.topic,
        partition=found.partition,
        before=before,
        after=found.start,
        skipped=max(0, found.start - reached),
        read_again=max(0, reached - found.start),
    )


def _named(partitions: Sequence[object]) -> str:
    more = [f"{len(partitions) - NAMED_MAX} more"] if len(partitions) > NAMED_MAX else []
    return "; ".join([*map(str, partitions[:NAMED_MAX]), *more])

"""Asks coordinators for their consumer groups, and leaders for how much of a topic there is: who reads what, and how
far each is behind."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Literal

import msgspec

from spark_replication.client.asking.group_logs import GroupLogs, LogSeen
from spark_replication.client.finding.deadline import Deadline, persistently
from spark_replication.client.finding.routes import ASK_MS, Routes
from spark_replication.core.routing import Route, partition_of
from spark_replication.errors import (
    InvalidRequest,
    NotController,
    NotCoordinator,
    ReplicationError,
    TopicAuthorizationFailed,
    UnknownGroup,
    UnknownTopicOrPartition,
)
from spark_replication.messages.actions import (
    DELETE_GROUP,
    DESCRIBE_GROUPS,
    OPEN_GROUPS,
    RESET_GROUP,
)
from spark_replication.messages.descriptions import Metadata, TopicMetadata
from spark_replication.messages.groups import (
    GROUP_NAME,
    GROUPS_TOPIC,
    OF_SPARK,
    DeleteGroup,
    DescribedGroup,
    DescribedMember,
    DescribedPosition,
    DescribeGroups,
    OpenGroups,
    ResetGroup,
)
from spark_replication.model import (
    Count,
    EpochOrNone,
    Offset,
    PartitionNumber,
    TimeMs,
    TopicPartition,
    shortened,
)
from spark_replication.process.threads import now_ms

NAMED_MAX = 10  # groups in a refusal

GroupState = Literal["empty", "stable", "moving", "spark_query"]


class GroupMemberDescription(msgspec.Struct, frozen=True, kw_only=True):
    member: str
    #: What people know it by.
    name: str
    host: str
    topics: tuple[str, ...]
    partitions: tuple[TopicPartition, ...]
    #: The partitions of these that it is to hand over to others.
    hands_over: tuple[TopicPartition, ...]
    silent_ms: int
    is_connected: bool


class GroupPartitionDescription(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partition: PartitionNumber
    #: Where the group goes on. None: it has never committed here.
    offset: Offset | None
    #: The leader epoch of the record before it. -1: not known.
    last_epoch: EpochOrNone | None = None
    committed_ms: TimeMs | None
    #: What is committed in the log. None: its leader did not say.
    log_start: Offset | None
    end: Offset | None
    #: For how long the first record that is not committed by the group has been there, by the asker's clock: 0 without
    #: one, None if that is not known.
    lag_ms: Count | None
    #: The member that reads it. None: nobody does.
    member: str | None

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def lag(self) -> int | None:
        """How many records are there that the group has not committed. None: that is not known."""
        if self.end is None or self.log_start is None:
            return None
        return max(0, self.end - max(self.log_start, self.offset or 0))


class GroupDescription(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    state: GroupState
    members: tuple[GroupMemberDescription, ...]
    #: All of the topics that its members read, or that it has committed in; of a Spark query those that it reads.
    partitions: tuple[GroupPartitionDescription, ...]

    @property
    def lag(self) -> int | None:
        """How many records the group has not committed, of all partitions. None: that is not known of each."""
        lags = [each.lag for each in self.partitions]
        known = [lag for lag in lags if lag is not None]
        return sum(known) if len(known) == len(lags) else None

    @property
    def lag_ms(self) -> int | None:
        """For how long the oldest record has been there that the group has not committed. None: that is not known of
        each partition."""
        lags = [each.lag_ms for each in self.partitions]
        known = [lag_ms for lag_ms in lags if lag_ms is not None]
        return max(known, default=0) if len(known) == len(lags) else None


def require_group_name(name: str) -> None:
    if re.fullmatch(GROUP_NAME, name) is None:
        raise InvalidRequest(f"{shortened(name)} is no group's name: letters, digits, `.`, `_`, `:` and `-`")


def unknown_group(name: str, there: Sequence[str]) -> UnknownGroup:
    """there: the names of those that there are."""
    more = f" and {len(there) - NAMED_MAX} more" if len(there) > NAMED_MAX else ""
    known = f"there are {', '.join(there[:NAMED_MAX])}{more}" if there else "there is none at all"
    return UnknownGroup(f"there is no group {name}, {known}: check the name")


def described_groups(routes: Routes, names: Collection[str] | None, deadline: Deadline) -> list[GroupDescription]:
    """The groups of these names that there are, or all, sorted. Raises NotCoordinator if a coordinator cannot say: then
    a group might be missing."""
    groups = told_groups(routes, names, deadline)
    topics = {topic for group in groups for topic in _topics(group)}
    if not topics:
        return [_described(group, [], {}, GroupLogs((), {})) for group in groups]
    metadata = _metadata_seen(routes, topics, deadline)
    there = {each.name: each for each in metadata.topics}
    logs = GroupLogs(metadata.topics, metadata.brokers)
    read = [_read_by(group, there) for group in groups]
    logs.ask(routes, [*chain.from_iterable(read)], deadline)
    return [_described(group, its, there, logs) for group, its in zip(groups, read, strict=True)]


def told_groups(routes: Routes, names: Collection[str] | None, deadline: Deadline) -> list[DescribedGroup]:
    """As coordinators tell of them."""
    for name in names or ():
        require_group_name(name)
    return persistently(lambda: _told(routes, names, deadline), deadline)


def change_group(routes: Routes, asked: ResetGroup | DeleteGroup, deadline: Deadline) -> None:
    """Have the group's coordinator do it."""
    require_group_name(asked.group)

    def ask() -> None:
        route = coordinator_of(routes, asked.group, deadline)
        try:
            if isinstance(asked, ResetGroup):
                routes.call(route.address, RESET_GROUP, asked, deadline.within_ms(ASK_MS))
            else:
                routes.call(route.address, DELETE_GROUP, asked, deadline.within_ms(ASK_MS))
        except ReplicationError as error:
            if error.stale_routes:
                routes.stale(route)
            raise

    persistently(ask, deadline)


def coordinator_of(routes: Routes, group: str, deadline: Deadline) -> Route:
    """Who leads the group's partition of the groups' log, which is made if it is not there."""
    try:
        routes.topic(GROUPS_TOPIC, deadline)
    except UnknownTopicOrPartition:
        controller = routes.metadata((), deadline).controller
        if controller is None:
            raise NotController(
                "no group has been here yet, and no controller is there to make room for one: start one, or retry"
            ) from None
        routes.call(controller, OPEN_GROUPS, OpenGroups(), deadline)
        routes.await_topic(GROUPS_TOPIC, deadline)
    number = partition_of(routes.topic(GROUPS_TOPIC, deadline), group.encode())
    return routes.route(GROUPS_TOPIC, number, deadline)


def _told(routes: Routes, names: Collection[str] | None, deadline: Deadline) -> list[DescribedGroup]:
    metadata = routes.metadata((GROUPS_TOPIC,), deadline)
    if not metadata.topics:
        return []  # no group has been here yet
    asked = DescribeGroups(groups=None if names is None else tuple(names))
    leaders = {each.state.leader for topic in metadata.topics for each in topic.partitions}
    found: list[DescribedGroup] = []
    for leader in leaders:
        registered = None if leader is None else metadata.brokers.get(leader)
        if registered is None:
            raise NotCoordinator(f"a partition of {GROUPS_TOPIC} has no leader, and its groups cannot be told: retry")
        told = routes.call(registered.address, DESCRIBE_GROUPS, asked, deadline.within_ms(ASK_MS))
        if told.unread:
            raise NotCoordinator(f"broker {leader} is still reading {GROUPS_TOPIC}: retry")
        found += told.groups
    return sorted(found, key=lambda each: each.group)


def _metadata_seen(routes: Routes, topics: Collection[str], deadline: Deadline) -> Metadata:
    """What is known of these topics, without those that the asker may not see."""
    try:
        return routes.metadata(tuple(sorted(topics)), deadline)
    except TopicAuthorizationFailed:
        told = routes.metadata(None, deadline)
        return msgspec.structs.replace(told, topics=tuple(each for each in told.topics if each.name in topics))


def _topics(group: DescribedGroup) -> set[str]:
    """The topics that its members read, or that it has committed in."""
    read = {topic for member in group.members for topic in member.introduction.topics}
    return read.union(position.topic for position in group.positions)


#: The topics that there are, as far as the asker may see them.
There = Mapping[str, TopicMetadata]
#: What a group reads, and where it goes on there.
Read = list[tuple[TopicPartition, DescribedPosition | None]]


def _there(topics: Iterable[str], there: There) -> Iterator[TopicMetadata]:
    return (there[topic] for topic in topics if topic in there)


def _partitions_of(topics: Iterable[str], there: There) -> Iterator[TopicPartition]:
    return (TopicPartition(topic.name, number) for topic in _there(topics, there) for number in topic.numbers)


def _owners(group: DescribedGroup) -> dict[TopicPartition, str]:
    return {TopicPartition(*each): member.member for member in group.members for each in member.partitions}


def _read_by(group: DescribedGroup, there: There) -> Read:
    positions = {each.topic_partition: each for each in group.positions}
    # A Spark query reads no partition but those that it reports.
    topics = () if group.group.startswith(OF_SPARK) else _topics(group)
    read = sorted({*positions, *_owners(group), *_partitions_of(topics, there)})
    return [(each, positions.get(each)) for each in read]


def _described(group: DescribedGroup, read: Read, there: There, logs: GroupLogs) -> GroupDescription:
    owners = _owners(group)
    return GroupDescription(
        group=group.group,
        state=_state(group, owners, there),
        members=tuple(map(_member, group.members)),
        partitions=tuple(_partition(each, position, logs.seen(each, position), owners) for each, position in read),
    )


def _state(group: DescribedGroup, owners: Collection[TopicPartition], there: There) -> GroupState:
    if not group.members:
        return "spark_query" if group.group.startswith(OF_SPARK) else "empty"
    return "moving" if _is_moving(group, owners, there) else "stable"


def _is_moving(group: DescribedGroup, owners: Collection[TopicPartition], there: There) -> bool:
    read = {topic for member in group.members for topic in member.introduction.topics}
    unowned = any(each not in owners for each in _partitions_of(read, there))
    return unowned or any(member.hands_over for member in group.members)


def _member(told: DescribedMember) -> GroupMemberDescription:
    return GroupMemberDescription(
        member=told.member,
        name=told.introduction.name,
        host=told.introduction.host,
        topics=told.introduction.topics,
        partitions=tuple(TopicPartition(*each) for each in told.partitions),
        hands_over=tuple(TopicPartition(*each) for each in told.hands_over),
        silent_ms=told.silent_ms,
        is_connected=told.is_connected,
    )


def _partition(
    name: TopicPartition,
    position: DescribedPosition | None,
    log: LogSeen | None,
    owners: Mapping[TopicPartition, str],
) -> GroupPartitionDescription:
    if position is not None and log is not None and log.topic_id != position.topic_id:
        position = None  # of a topic that was made again since
    return GroupPartitionDescription(
        topic=name.topic,
        partition=name.partition,
        offset=None if position is None else position.offset,
        last_epoch=None if position is None else position.last_epoch,
        committed_ms=None if position is None else position.committed_ms,
        log_start=None if log is None else log.log_start,
        end=None if log is None else log.end,
        lag_ms=_lag_ms(log),
        member=owners.get(name),
    )


def _lag_ms(log: LogSeen | None) -> int | None:
    if log is None or not log.is_timed:
        return None
    return 0 if log.since_ms is None else max(0, now_ms() - log.since_ms)

"""What somebody wants a reassignment to bring about, and the plan that does (A4)."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from spark_replication.core.moves.moves import Assignment, Plan, drained, heading_for, planned
from spark_replication.core.moves.spreading import spread
from spark_replication.errors import InvalidRequest, UnknownTopicOrPartition
from spark_replication.messages.descriptions import Metadata
from spark_replication.model import BrokerId, TopicPartition


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """One of: targets, by partition (`orders-3`) the replicas that it is to have; over, the brokers that the topics are
    to be spread over; without, the brokers that they are to leave. topics: None = all."""

    targets: dict[str, tuple[BrokerId, ...]] | None = None
    over: tuple[BrokerId, ...] | None = None
    without: tuple[BrokerId, ...] | None = None
    topics: tuple[str, ...] | None = None


def plan_for(goal: Goal, metadata: Metadata, bytes_of: Mapping[TopicPartition, int]) -> Plan:
    known = {topic.name for topic in metadata.topics}
    unknown = sorted(set(goal.topics or ()) - known)
    if unknown:
        raise UnknownTopicOrPartition(f"there is no topic {', '.join(unknown)}: check its name")
    present = {command.topic_partition: command for topic in metadata.topics for command in topic.partitions}
    heading = {partition: heading_for(command) for partition, command in present.items()}
    return planned(_targets(goal, heading, metadata, bytes_of), present, bytes_of)


def _targets(goal: Goal, heading: Assignment, metadata: Metadata, bytes_of: Mapping[TopicPartition, int]) -> Assignment:
    match goal:
        case Goal(targets=dict() as targets, over=None, without=None, topics=None):
            return {named_partition(name): replicas for name, replicas in targets.items()}
        case Goal(targets=None, over=tuple() as over, without=None, topics=topics):
            moving = {p: replicas for p, replicas in heading.items() if topics is None or p.topic in topics}
            return spread(moving, over, metadata.brokers, bytes_of)
        case Goal(targets=None, over=None, without=tuple() as without, topics=topics):
            return drained(without, heading, metadata.brokers, topics)
        case _:
            raise InvalidRequest(
                "a plan has one goal: targets, or brokers that topics go over, or brokers that they are to be without"
            )


def named_partition(name: str) -> TopicPartition:
    try:
        return TopicPartition.parse(name)
    except ValueError as error:
        raise InvalidRequest(f"{error}") from error

"""Goals of a reassignment, and the plan that reaches one (A4)."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from spark_replication.core.moves.goals import drained, is_staying, named, replaced, resized
from spark_replication.core.moves.moves import Assignment, Plan, heading_for, planned
from spark_replication.core.moves.spreading import led_evenly, spread
from spark_replication.errors import InvalidRequest, UnknownTopicOrPartition
from spark_replication.messages.commands import PartitionCommand
from spark_replication.messages.descriptions import Metadata
from spark_replication.model import BrokerId, Registration, TopicPartition


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """What a reassignment is to bring about: one of these, for `topics`."""

    #: The replicas that each partition (`orders-3`) is to have.
    targets: dict[str, tuple[BrokerId, ...]] | None = None
    #: The brokers that the topics are to be spread over.
    over: tuple[BrokerId, ...] | None = None
    #: Brokers that are to get their share, beside those that have replicas.
    add: tuple[BrokerId, ...] | None = None
    #: The brokers that the topics are to leave.
    without: tuple[BrokerId, ...] | None = None
    #: The successor of each broker that is replaced, in every partition.
    replace: dict[BrokerId, BrokerId] | None = None
    #: How many replicas each partition is to have.
    replication_factor: int | None = None
    #: Change the order of replicas alone, so that every broker is preferred equally often.
    balance_leaders: bool | None = None
    #: The topics that the goal is about; None for all. Not with `targets`, which name their own.
    topics: tuple[str, ...] | None = None


def plan_for(goal: Goal, metadata: Metadata, bytes_of: Mapping[TopicPartition, int]) -> Plan:
    known = {topic.name for topic in metadata.topics}
    unknown = sorted(set(goal.topics or ()) - known)
    if unknown:
        raise UnknownTopicOrPartition(f"there is no topic {', '.join(unknown)}: check its name")
    present = {command.topic_partition: command for topic in metadata.topics for command in topic.partitions}
    return planned(_targets(goal, present, metadata.brokers, bytes_of), present, bytes_of)


def _targets(
    goal: Goal,
    present: Mapping[TopicPartition, PartitionCommand],
    brokers: Mapping[BrokerId, Registration],
    bytes_of: Mapping[TopicPartition, int],
) -> Assignment:
    given = [name for name in Goal.__struct_fields__ if name != "topics" and getattr(goal, name) is not None]
    if len(given) != 1 or (goal.targets is not None and goal.topics is not None):
        raise InvalidRequest(
            f"a plan has one goal, and {', '.join(given) or 'none'} is given: name one of targets (without topics), "
            "over, add, without, replace, replication_factor and balance_leaders"
        )
    heading = {partition: heading_for(command) for partition, command in present.items()}
    moving = {p: replicas for p, replicas in heading.items() if goal.topics is None or p.topic in goal.topics}
    if goal.targets is not None:
        return named({named_partition(name): of for name, of in goal.targets.items()}, heading, brokers)
    if goal.over is not None:
        return spread(moving, goal.over, brokers, bytes_of)
    if goal.add is not None:
        holding = {broker for replicas in heading.values() for broker in replicas if is_staying(broker, brokers)}
        return spread(moving, sorted(holding | set(goal.add)), brokers, bytes_of)
    if goal.without is not None:
        return drained(goal.without, heading, brokers, goal.topics)
    if goal.replace is not None:
        return replaced(goal.replace, moving, brokers)
    if goal.replication_factor is not None:
        in_sync = {partition: present[partition].state.isr for partition in moving}
        return resized(goal.replication_factor, moving, in_sync, heading, brokers)
    return led_evenly(moving)


def named_partition(name: str) -> TopicPartition:
    try:
        return TopicPartition.parse(name)
    except ValueError as error:
        raise InvalidRequest(f"{error}") from error

"""Moving a partition to other brokers (A1 to A3). The assignment of its topic has all that is known of it.

While it runs, `replicas` is the target in its order, then those that are being removed. The twelve steps of the source:

| step | here                                                                                                       |
| ---- | ---------------------------------------------------------------------------------------------------------- |
| 1-3  | `grown`: one multi() of assignment and leaderAndISR; all of old and new are told, the new ones follow       |
| 4-5  | `next_step` waits until every target replica is in the ISR; the leader's ISR writes bring it about          |
| 6-7  | `Lead`: one of the target replaces a leader outside of it; ISR and assignment stay as they are              |
| 8-11 | `CompleteMove`: one multi() drops the others from ISR, ELR and assignment; then they are told to delete    |
| 12   | metadata goes to every broker, as after each change                                                        |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from spark_replication.core.law.brokers import Brokers
from spark_replication.errors import NotEnoughReplicas
from spark_replication.model import BrokerId, PartitionState, TopicState


class Lead(msgspec.Struct, frozen=True):
    """Let one of the target lead, before the others are dropped."""

    leader: BrokerId


class CompleteMove(msgspec.Struct, frozen=True):
    """Make `replicas` the assignment, led by `leader`."""

    replicas: tuple[BrokerId, ...]
    leader: BrokerId


def in_flight(topic: TopicState, partition: int) -> bool:
    return partition in topic.adding or partition in topic.removing


def target(topic: TopicState, partition: int) -> tuple[BrokerId, ...]:
    removing = topic.removing.get(partition, ())
    return tuple(replica for replica in topic.partitions[partition] if replica not in removing)


def origin(topic: TopicState, partition: int) -> tuple[BrokerId, ...]:
    """The replicas before the reassignment, as stored with the first request; else those that are not being added."""
    stored = topic.origin.get(partition)
    if stored is not None:
        return stored
    adding = topic.adding.get(partition, ())
    return tuple(replica for replica in topic.partitions[partition] if replica not in adding)


def replication_factor(topic: TopicState, partition: int) -> int:
    """The replication factor in force: a reassignment changes it when it completes."""
    return len(origin(topic, partition) if in_flight(topic, partition) else topic.partitions[partition])


def grown(topic: TopicState, targets: Mapping[int, tuple[BrokerId, ...]]) -> TopicState:
    """The topic with these reassignments begun, or given other targets: what an earlier one added, and this one does
    not want, is being removed. One that adds and removes nothing is complete at once. Cost: the topic's partitions,
    once."""
    parts = _Parts.of(topic)
    for partition, wanted in targets.items():
        came_from = origin(topic, partition)
        adding = tuple(replica for replica in wanted if replica not in came_from)
        removing = tuple(replica for replica in topic.partitions[partition] if replica not in wanted)
        parts.set(partition, (*wanted, *removing), adding, removing, came_from)
    return parts.of_topic(topic)


def completed(topic: TopicState, assignments: Mapping[int, tuple[BrokerId, ...]]) -> TopicState:
    """The topic with these assignments, and no reassignment under way there."""
    parts = _Parts.of(topic)
    for partition, replicas in assignments.items():
        parts.set(partition, replicas, (), (), ())
    return parts.of_topic(topic)


def differs(before: TopicState, after: TopicState, partition: int) -> bool:
    return any(
        of_before.get(partition) != of_after.get(partition)
        for of_before, of_after in (
            (before.partitions, after.partitions),
            (before.adding, after.adding),
            (before.removing, after.removing),
            (before.origin, after.origin),
        )
    )


class _Parts(msgspec.Struct):
    """A TopicState in the making: many partitions of a large topic change at one time."""

    partitions: dict[int, tuple[BrokerId, ...]]
    adding: dict[int, tuple[BrokerId, ...]]
    removing: dict[int, tuple[BrokerId, ...]]
    origin: dict[int, tuple[BrokerId, ...]]

    @classmethod
    def of(cls, topic: TopicState) -> _Parts:
        return cls(dict(topic.partitions), dict(topic.adding), dict(topic.removing), dict(topic.origin))

    def set(
        self,
        partition: int,
        replicas: tuple[BrokerId, ...],
        adding: tuple[BrokerId, ...],
        removing: tuple[BrokerId, ...],
        came_from: tuple[BrokerId, ...],
    ) -> None:
        self.partitions[partition] = replicas
        under_way = ((self.adding, adding), (self.removing, removing))
        for kept, found in (*under_way, (self.origin, came_from if adding or removing else ())):
            if found:
                kept[partition] = found
            else:
                kept.pop(partition, None)

    def of_topic(self, topic: TopicState) -> TopicState:
        return replace(
            topic, partitions=self.partitions, adding=self.adding, removing=self.removing, origin=self.origin
        )


def next_step(topic: TopicState, partition: int, state: PartitionState, brokers: Brokers) -> Lead | CompleteMove | None:
    """The next step of a reassignment in flight; None if it waits (A1).

    It waits for the whole target: then the ISR within the target has min ISR members, or as many as the target has.
    """
    wanted = target(topic, partition)
    if not state.isr.issuperset(wanted):
        return None
    if state.leader in wanted:
        return CompleteMove(wanted, state.leader)
    leader = _in_sync(wanted, state, brokers)
    return None if leader is None else Lead(leader)


def cancelled(topic: TopicState, partition: int, state: PartitionState, brokers: Brokers, name: str) -> CompleteMove:
    """Go back to the origin. Raises NotEnoughReplicas, which says why, if too few of its replicas are in sync (A2)."""
    back = origin(topic, partition)
    in_sync = sorted(state.isr.intersection(back))
    needed = min(state.min_isr, len(back))
    if len(in_sync) < needed:
        raise NotEnoughReplicas(
            f"{name} came from {list(back)}, of which {in_sync} are in sync: {needed} are needed to go back. Wait "
            "until they have caught up, or let the reassignment complete"
        )
    leader = state.leader if state.leader in back else _in_sync(back, state, brokers)
    if leader is None:
        raise NotEnoughReplicas(
            f"{name} came from {list(back)}, of which none could lead now: {in_sync} are shutting down"
        )
    return CompleteMove(back, leader)


def _in_sync(replicas: Sequence[BrokerId], state: PartitionState, brokers: Brokers) -> BrokerId | None:
    return next((replica for replica in replicas if replica in state.isr and replica in brokers.electable), None)

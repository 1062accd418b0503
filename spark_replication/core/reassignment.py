"""Moving a partition to other brokers (A1 to A3), as the assignment of its topic tells it, and nothing else remembers.

While it runs, `replicas` is the target in its order, then those that are being removed. The twelve steps of the source:

| step | here                                                                                                       |
| ---- | ---------------------------------------------------------------------------------------------------------- |
| 1-3  | `grown`: one multi() of assignment and leaderAndISR; all of old and new are told, the new ones follow       |
| 4-5  | `next_step` waits until every target replica is in the ISR; the leader's ISR writes bring it about          |
| 6-7  | `Lead`: a leader outside the target is followed by one of it, ISR and assignment as they are                |
| 8-11 | `Complete`: one multi() drops the others from ISR, ELR and assignment; then they are told to delete         |
| 12   | metadata goes to every broker, as after each change                                                         |
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from spark_replication.core.brokers import Brokers
from spark_replication.errors import NotEnoughReplicas
from spark_replication.model import BrokerId, PartitionState, TopicState


class Lead(msgspec.Struct, frozen=True):
    """One of the target is to lead before the others are dropped."""

    leader: BrokerId


class Complete(msgspec.Struct, frozen=True):
    """The assignment becomes `replicas`, led by `leader`."""

    replicas: tuple[BrokerId, ...]
    leader: BrokerId


def in_flight(topic: TopicState, partition: int) -> bool:
    return partition in topic.adding or partition in topic.removing


def target(topic: TopicState, partition: int) -> tuple[BrokerId, ...]:
    removing = topic.removing.get(partition, ())
    return tuple(replica for replica in topic.partitions[partition] if replica not in removing)


def origin(topic: TopicState, partition: int) -> tuple[BrokerId, ...]:
    """What it came from, stored with the first request; else the replicas without those that are being added."""
    stored = topic.origin.get(partition)
    if stored is not None:
        return stored
    adding = topic.adding.get(partition, ())
    return tuple(replica for replica in topic.partitions[partition] if replica not in adding)


def replication_factor(topic: TopicState, partition: int) -> int:
    """Of the assignment that holds: a reassignment changes it when it completes."""
    return len(origin(topic, partition) if in_flight(topic, partition) else topic.partitions[partition])


def grown(topic: TopicState, partition: int, wanted: tuple[BrokerId, ...]) -> TopicState:
    """With the reassignment begun, or given another target: what an earlier one added, and this one does not want, is
    being removed. One that adds and removes nothing is complete at once."""
    came_from = origin(topic, partition)
    present = topic.partitions[partition]
    adding = tuple(replica for replica in wanted if replica not in came_from)
    removing = tuple(replica for replica in present if replica not in wanted)
    if not adding and not removing:
        return settled(topic, partition, wanted)
    return replace(
        topic,
        partitions={**topic.partitions, partition: (*wanted, *removing)},
        adding=_with(topic.adding, partition, adding),
        removing=_with(topic.removing, partition, removing),
        origin={**topic.origin, partition: came_from},
    )


def settled(topic: TopicState, partition: int, replicas: tuple[BrokerId, ...]) -> TopicState:
    """With this assignment, and nothing under way."""
    return replace(
        topic,
        partitions={**topic.partitions, partition: replicas},
        adding=_with(topic.adding, partition, ()),
        removing=_with(topic.removing, partition, ()),
        origin={other: stored for other, stored in topic.origin.items() if other != partition},
    )


def _with(
    of: dict[int, tuple[BrokerId, ...]], partition: int, replicas: tuple[BrokerId, ...]
) -> dict[int, tuple[BrokerId, ...]]:
    rest = {other: found for other, found in of.items() if other != partition}
    return {**rest, partition: replicas} if replicas else rest


def next_step(topic: TopicState, partition: int, state: PartitionState, brokers: Brokers) -> Lead | Complete | None:
    """What a reassignment in flight calls for now; None: it waits (A1).

    With the whole target in the ISR, the ISR within the target has min ISR members, or as many as the target has.
    """
    wanted = target(topic, partition)
    if not state.isr.issuperset(wanted):
        return None
    if state.leader in wanted:
        return Complete(wanted, state.leader)
    leader = _in_sync(wanted, state, brokers)
    return None if leader is None else Lead(leader)


def cancelled(topic: TopicState, partition: int, state: PartitionState, brokers: Brokers, name: str) -> Complete:
    """Back to the origin; NotEnoughReplicas, saying why, if too little of it is in sync (A2)."""
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
    return Complete(back, leader)


def _in_sync(replicas: Sequence[BrokerId], state: PartitionState, brokers: Brokers) -> BrokerId | None:
    return next((replica for replica in replicas if replica in state.isr and replica in brokers.electable), None)

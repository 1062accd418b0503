"""Targets for goals that change no more than they name: leave or replace a broker, more or fewer replicas (A4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain

from spark_replication.core.moves.moves import Assignment
from spark_replication.core.moves.placement import Racks
from spark_replication.errors import InvalidReplicaAssignment, InvalidReplicationFactor, InvalidRequest
from spark_replication.model import BrokerId, Registration, TopicPartition


def is_staying(broker: BrokerId, brokers: Mapping[BrokerId, Registration]) -> bool:
    return broker in brokers and not brokers[broker].shutting_down


def named(targets: Assignment, present: Assignment, brokers: Mapping[BrokerId, Registration]) -> Assignment:
    """These targets. A replica may stay on a broker that is away; a new one is put on a live broker."""
    for partition, replicas in sorted(targets.items()):
        for broker in replicas:
            if broker not in present.get(partition, ()) and not is_staying(broker, brokers):
                raise InvalidReplicaAssignment(
                    f"{partition}: broker {broker} is not live, or is shutting down: {_live(brokers)} are live"
                )
    return targets


def replaced(
    successors: Mapping[BrokerId, BrokerId], present: Assignment, brokers: Mapping[BrokerId, Registration]
) -> dict[TopicPartition, tuple[BrokerId, ...]]:
    """The targets that put each successor in its predecessor's place in the order. The predecessor need not live."""
    for old, new in successors.items():
        if not is_staying(new, brokers):
            raise InvalidReplicaAssignment(f"broker {new} is not live, or is shutting down: {_live(brokers)} are live")
        if old == new:
            raise InvalidRequest(f"broker {old} cannot take its own place: name another")
    targets = {}
    for partition, replicas in present.items():
        target = tuple(successors.get(replica, replica) for replica in replicas)
        if len(set(target)) < len(target):
            raise InvalidReplicaAssignment(
                f"{partition} has replicas on {list(replicas)}: a broker has one replica of it at most. Leave the old "
                "one by `without`, or choose another in its place"
            )
        targets[partition] = target
    return targets


def resized(
    factor: int,
    moving: Assignment,
    in_sync: Mapping[TopicPartition, Collection[BrokerId]],
    present: Assignment,
    brokers: Mapping[BrokerId, Registration],
) -> dict[TopicPartition, tuple[BrokerId, ...]]:
    """The targets with `factor` replicas each. Replicas that are out of sync go first, then the last in the order. New
    ones come to the racks that the partition uses least, on the brokers that hold least of `present`."""
    staying = {broker: found for broker, found in brokers.items() if is_staying(broker, brokers)}
    if not 1 <= factor <= len(staying):
        raise InvalidReplicationFactor(
            f"{factor} replicas of each partition need as many live brokers, and there are {len(staying)}: start more, "
            "or ask for fewer"
        )
    racks = Racks(staying)
    holding = Counter(chain.from_iterable(present.values()))
    targets = {}
    for partition, replicas in sorted(moving.items()):
        kept = _kept(replicas, factor, in_sync[partition])
        while len(kept) < factor:
            chosen = racks.next_for(kept, holding)
            if chosen is None:
                raise InvalidReplicationFactor(
                    f"{partition} has replicas on {list(replicas)}, and no other broker is live: start one"
                )
            kept.append(chosen)
            holding[chosen] += 1
        targets[partition] = tuple(kept)
    return targets


def _kept(replicas: Sequence[BrokerId], factor: int, in_sync: Collection[BrokerId]) -> list[BrokerId]:
    best = sorted(replicas, key=lambda replica: replica not in in_sync)[:factor]
    return [replica for replica in replicas if replica in best]


def drained(
    leaving: Iterable[BrokerId],
    present: Assignment,
    brokers: Mapping[BrokerId, Registration],
    topics: Collection[str] | None = None,
) -> dict[TopicPartition, tuple[BrokerId, ...]]:
    """The targets that leave nothing (or nothing of these topics) on these brokers. Each replica keeps its place in the
    order and moves to a live broker in the rack that the partition uses least; there, to the one that holds least.

    Cost: partitions with a replica there × brokers.
    """
    gone = frozenset(leaving)
    staying = {broker: found for broker, found in brokers.items() if broker not in gone and is_staying(broker, brokers)}
    racks = Racks(staying)
    holding = Counter(chain.from_iterable(present.values()))
    unknown = sorted(gone - brokers.keys() - holding.keys())
    if unknown:
        raise InvalidRequest(f"there is no broker {unknown[0]}, and nothing on it: {_live(brokers)} are live")
    targets: dict[TopicPartition, tuple[BrokerId, ...]] = {}
    for partition, replicas in sorted(present.items()):
        if not gone.intersection(replicas) or (topics is not None and partition.topic not in topics):
            continue
        target = list(replicas)
        for place, replica in enumerate(replicas):
            if replica in gone:
                used = [broker for broker in target if broker not in gone]
                chosen = racks.next_for(used, holding)
                if chosen is None:
                    raise InvalidReplicaAssignment(
                        f"{partition} has {len(replicas)} replicas, and without {sorted(gone)} there are only "
                        f"{len(staying)} live brokers: start another, or lower its replication factor"
                    )
                target[place] = chosen
                holding[chosen] += 1
        targets[partition] = tuple(target)
    return targets


def _live(brokers: Mapping[BrokerId, Registration]) -> Sequence[BrokerId]:
    return sorted(brokers)

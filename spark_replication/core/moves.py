"""What a reassignment would move, before anything moves (A4): targets, who is added and removed, and how many bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from spark_replication.core.placement import Racks
from spark_replication.errors import InvalidReplicaAssignment
from spark_replication.model import BrokerId, Registration, TopicPartition

Assignment = Mapping[TopicPartition, tuple[BrokerId, ...]]


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """bytes: what each of the added replicas will fetch."""

    partition: TopicPartition
    present: tuple[BrokerId, ...]
    target: tuple[BrokerId, ...]
    bytes: int = 0

    @property
    def adding(self) -> tuple[BrokerId, ...]:
        return tuple(replica for replica in self.target if replica not in self.present)

    @property
    def removing(self) -> tuple[BrokerId, ...]:
        return tuple(replica for replica in self.present if replica not in self.target)


class Moves(msgspec.Struct, frozen=True):
    moves: tuple[Move, ...]

    @property
    def targets(self) -> dict[TopicPartition, tuple[BrokerId, ...]]:
        return {move.partition: move.target for move in self.moves}

    @property
    def bytes_to_copy(self) -> int:
        return sum(move.bytes * len(move.adding) for move in self.moves)


def planned(targets: Assignment, present: Assignment, bytes_of: Mapping[TopicPartition, int]) -> Moves:
    """Those that change something, the largest first: it takes longest."""
    moves = [
        Move(partition=partition, present=present[partition], target=target, bytes=bytes_of.get(partition, 0))
        for partition, target in targets.items()
        if target != present[partition]
    ]
    return Moves(tuple(sorted(moves, key=lambda move: (-move.bytes * len(move.adding), move.partition))))


def drained(
    leaving: Iterable[BrokerId], present: Assignment, brokers: Mapping[BrokerId, Registration]
) -> dict[TopicPartition, tuple[BrokerId, ...]]:
    """The targets that leave nothing on these brokers. Each replica goes, in its place of the order, to the live broker
    in a rack that the partition does not use yet, if there is one, and of those to the one that holds least.

    Cost: partitions with a replica there × brokers.
    """
    gone = frozenset(leaving)
    staying = {broker: found for broker, found in brokers.items() if broker not in gone and not found.shutting_down}
    racks = Racks(staying)
    holding = Counter(replica for replicas in present.values() for replica in replicas)
    targets: dict[TopicPartition, tuple[BrokerId, ...]] = {}
    for partition, replicas in sorted(present.items()):
        if not gone.intersection(replicas):
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

"""Topics spread over chosen brokers (A4): every rack (else host) once before any twice, and equal numbers of replicas
and of leaders on all brokers. Of all such assignments, this finds one that moves little.

A replica that may stay does. Then gaps are filled, and then brokers that hold too much give to those that hold least:
first the replicas that would be copied anyway, then the smallest. Racks come before equal shares.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from functools import partial

from spark_replication.core.moves.moves import Assignment
from spark_replication.core.moves.placement import Racks
from spark_replication.errors import InvalidReplicaAssignment, InvalidReplicationFactor
from spark_replication.model import BrokerId, Registration, TopicPartition


def spread(
    present: Assignment,
    over: Collection[BrokerId],
    brokers: Mapping[BrokerId, Registration],
    bytes_of: Mapping[TopicPartition, int],
) -> dict[TopicPartition, tuple[BrokerId, ...]]:
    """The targets of all of `present`. Cost: partitions × brokers, and partitions² at worst."""
    live = {broker: found for broker, found in brokers.items() if not found.shutting_down}
    unfit = sorted(set(over) - live.keys())
    if unfit:
        raise InvalidReplicaAssignment(
            f"broker {unfit[0]} is not live, or is shutting down: {sorted(live)} can be given"
        )
    for partition, replicas in sorted(present.items()):
        if len(replicas) > len(set(over)):
            raise InvalidReplicationFactor(
                f"{partition} has {len(replicas)} replicas, and {sorted(set(over))} are {len(set(over))} brokers: name "
                "more, or lower its replication factor"
            )
    spreading = _Spreading(present, {broker: live[broker] for broker in over}, bytes_of)
    spreading.keep()
    spreading.fill()
    spreading.level()
    spreading.lead()
    return spreading.targets()


def led_evenly(present: Assignment) -> dict[TopicPartition, tuple[BrokerId, ...]]:
    """The same replicas, in an order in which no broker leads two partitions more than another that could lead one."""
    spreading = _Spreading(present, {}, {})
    spreading.keep_all()
    spreading.lead()
    return spreading.targets()


class _Spreading:
    """An assignment in the making."""

    def __init__(
        self,
        present: Assignment,
        brokers: Mapping[BrokerId, Registration],
        bytes_of: Mapping[TopicPartition, int],
    ) -> None:
        self._present = dict(sorted(present.items()))
        self._brokers = brokers
        self._bytes_of = bytes_of
        self._rack = {broker: found.rack or found.host for broker, found in brokers.items()}
        #: The replicas of each partition, in order; None for a gap.
        self._places: dict[TopicPartition, list[BrokerId | None]] = {}
        #: How many replicas each broker has so far.
        self._holding: Counter[BrokerId] = Counter(dict.fromkeys(brokers, 0))

    def targets(self) -> dict[TopicPartition, tuple[BrokerId, ...]]:
        return {partition: tuple(self._chosen(partition)) for partition in self._places}

    def _chosen(self, partition: TopicPartition) -> list[BrokerId]:
        return [broker for broker in self._places[partition] if broker is not None]

    def keep(self) -> None:
        """Keep the present replicas, as far as no rack has more than its share of a partition."""
        sizes = Counter(self._rack.values())
        shares = {factor: _share(factor, sizes) for factor in {len(each) for each in self._present.values()}}
        for partition, replicas in self._present.items():
            share, larger = shares[len(replicas)]
            used: Counter[str] = Counter()
            places: list[BrokerId | None] = []
            for replica in replicas:
                rack = self._rack.get(replica)
                stays = rack is not None and used[rack] < share + (larger > 0)
                if stays and rack is not None:
                    larger -= used[rack] == share
                    used[rack] += 1
                    self._holding[replica] += 1
                places.append(replica if stays else None)
            self._places[partition] = places

    def keep_all(self) -> None:
        self._places = {partition: [*replicas] for partition, replicas in self._present.items()}

    def fill(self) -> None:
        racks = Racks(self._brokers)
        for partition, places in self._places.items():
            for place, broker in enumerate(places):
                if broker is None:
                    found = racks.next_for(self._chosen(partition), self._holding)
                    assert found is not None, "there are as many brokers as replicas"
                    places[place] = found
                    self._holding[found] += 1

    def level(self) -> None:
        """Give replicas away until no broker has one that could go to a broker that holds at least two fewer."""
        hosted: dict[BrokerId, list[TopicPartition]] = {broker: [] for broker in self._brokers}
        for partition in self._places:
            for broker in self._chosen(partition):
                hosted[broker].append(partition)
        for broker, partitions in hosted.items():
            partitions.sort(key=partial(self._cost, broker))
        giving = set(self._brokers)
        while giving:
            giver = max(giving, key=lambda broker: (self._holding[broker], -broker))
            if not self._give(giver, hosted):
                giving.discard(giver)

    def _cost(self, broker: BrokerId, partition: TopicPartition) -> tuple[bool, float, TopicPartition]:
        """What taking the partition from this broker costs, to compare: nothing if it would be copied there, too."""
        size = self._bytes_of.get(partition)
        return broker in self._present[partition], float("inf") if size is None else size, partition

    def _give(self, giver: BrokerId, hosted: Mapping[BrokerId, list[TopicPartition]]) -> bool:
        """Give one replica to the broker that holds least and may take one. False if there is none."""
        for taker in sorted(self._brokers, key=lambda broker: (self._holding[broker], broker)):
            if self._holding[giver] - self._holding[taker] < 2:
                return False
            for partition in hosted[giver]:
                if self._may_take(partition, giver, taker):
                    places = self._places[partition]
                    places[places.index(giver)] = taker
                    hosted[giver].remove(partition)
                    hosted[taker].append(partition)
                    self._holding[giver] -= 1
                    self._holding[taker] += 1
                    return True
        return False

    def _may_take(self, partition: TopicPartition, giver: BrokerId, taker: BrokerId) -> bool:
        """Whether the taker has no replica of the partition, and racks would be used no less evenly."""
        chosen = self._chosen(partition)
        others = Counter(self._rack[broker] for broker in chosen if broker != giver)
        return taker not in chosen and others[self._rack[taker]] <= others[self._rack[giver]]

    def lead(self) -> None:
        """Choose the leaders. A first replica that stays leads on. Where it goes, the replica that leads least takes
        over. Then a broker that leads two more than another replica of a partition hands this partition over."""
        followed = [p for p, replicas in self._present.items() if self._chosen(p)[0] == replicas[0]]
        leading = Counter(self._chosen(partition)[0] for partition in followed)
        for partition in sorted(self._places.keys() - set(followed)):
            first = min(self._chosen(partition), key=lambda broker: (leading[broker], broker))
            self._put_first(partition, first)
            leading[first] += 1
        changed = True
        while changed:
            changed = False
            for partition in self._places:
                first = self._chosen(partition)[0]
                least = min(self._chosen(partition), key=lambda broker: (leading[broker], broker))
                if leading[first] - leading[least] >= 2:
                    self._put_first(partition, least)
                    leading[first] -= 1
                    leading[least] += 1
                    changed = True

    def _put_first(self, partition: TopicPartition, broker: BrokerId) -> None:
        places = self._places[partition]
        there = places.index(broker)
        places[0], places[there] = places[there], places[0]


def _share(replicas: int, sizes: Mapping[str, int]) -> tuple[int, int]:
    """The number of replicas that each rack gets if they are spread evenly, as far as it has brokers, and the number of
    racks that get one more."""
    share = 0
    while sum(min(size, share + 1) for size in sizes.values()) <= replicas and share < max(sizes.values()):
        share += 1
    return share, replicas - sum(min(size, share) for size in sizes.values())

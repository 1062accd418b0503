"""Where replicas go (T2): live brokers only, every rack (else host) once before any twice, leaders spread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from spark_replication.errors import InvalidReplicationFactor
from spark_replication.model import BrokerId, Registration


class Racks:
    """The brokers that may be chosen, and their racks: the host stands in for the rack of a broker that has none."""

    def __init__(self, brokers: Mapping[BrokerId, Registration]) -> None:
        self._rack = {broker: found.rack or found.host for broker, found in brokers.items()}

    def next_for(
        self,
        chosen: Collection[BrokerId],
        holding: Counter[BrokerId],
        standing_in: Mapping[BrokerId, int] = MappingProxyType({}),
    ) -> BrokerId | None:
        """The next replica beside `chosen`: in the rack that they use least; there, the broker that holds least; then
        the broker that is second replica least often for this leader (`standing_in`), so that a dead leader's
        partitions spread. None if no broker is left."""
        used = Counter(self._rack[broker] for broker in chosen if broker in self._rack)
        free = [broker for broker in self._rack if broker not in chosen]
        return min(
            free,
            key=lambda broker: (used[self._rack[broker]], holding[broker], standing_in.get(broker, 0), broker),
            default=None,
        )


def place(
    partitions: Iterable[int],
    replication_factor: int,
    brokers: Mapping[BrokerId, Registration],
    present: Iterable[tuple[BrokerId, ...]] = (),
) -> dict[int, tuple[BrokerId, ...]]:
    """An assignment for each partition, on the brokers that lead least and hold least of `present` so far. When a
    broker dies, the others share the partitions that it led.

    Cost: partitions × replication factor × brokers.
    """
    if not 1 <= replication_factor <= len(brokers):
        raise InvalidReplicationFactor(
            f"replication factor {replication_factor} needs that many live brokers, and there are {len(brokers)}: "
            "start more brokers or ask for fewer replicas"
        )
    racks = Racks(brokers)
    leading: Counter[BrokerId] = Counter()
    holding: Counter[BrokerId] = Counter()
    standing_in: dict[BrokerId, Counter[BrokerId]] = {broker: Counter() for broker in brokers}
    for replicas in present:
        leading[replicas[0]] += 1
        holding.update(replicas)
    placed: dict[int, tuple[BrokerId, ...]] = {}
    for partition in partitions:
        chosen = [min(brokers, key=lambda broker: (leading[broker], holding[broker], broker))]
        while (
            len(chosen) < replication_factor
            and (follower := racks.next_for(chosen, holding, standing_in[chosen[0]])) is not None
        ):
            chosen.append(follower)
        leading[chosen[0]] += 1
        standing_in[chosen[0]].update(chosen[1:2])
        holding.update(chosen)
        placed[partition] = tuple(chosen)
    return placed

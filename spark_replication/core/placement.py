"""Where replicas go (T2): live brokers only, every rack (else host) once before any twice, leaders spread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from spark_replication.errors import InvalidReplicationFactor
from spark_replication.model import BrokerId, Registration


def place(
    partitions: Iterable[int],
    replication_factor: int,
    brokers: Mapping[BrokerId, Registration],
    present: Iterable[tuple[BrokerId, ...]] = (),
) -> dict[int, tuple[BrokerId, ...]]:
    """An assignment for each partition, on the brokers that lead least and hold least of `present` so far.

    Cost: partitions × replication factor × brokers.
    """
    if not 1 <= replication_factor <= len(brokers):
        raise InvalidReplicationFactor(
            f"replication factor {replication_factor} needs that many live brokers, and there are {len(brokers)}: "
            "start more brokers or ask for fewer replicas"
        )
    racks = {broker: found.rack or found.host for broker, found in brokers.items()}
    leading: Counter[BrokerId] = Counter()
    holding: Counter[BrokerId] = Counter()
    for replicas in present:
        leading[replicas[0]] += 1
        holding.update(replicas)
    placed: dict[int, tuple[BrokerId, ...]] = {}
    for partition in partitions:
        chosen = [min(racks, key=lambda broker: (leading[broker], holding[broker], broker))]
        used = Counter([racks[chosen[0]]])
        while len(chosen) < replication_factor:
            free = [broker for broker in racks if broker not in chosen]
            follower = min(free, key=lambda broker: (used[racks[broker]], holding[broker], broker))
            chosen.append(follower)
            used[racks[follower]] += 1
        leading[chosen[0]] += 1
        holding.update(chosen)
        placed[partition] = tuple(chosen)
    return placed

"""What holds of a partition: the one table by which everybody shows, counts and filters partitions.

| condition | holds while |
| --- | --- |
| leaderless | nobody leads it |
| under_min_isr | fewer replicas are in sync than acks=all needs |
| under_replicated | a replica is out of sync, other than those that a reassignment is adding |
| moving | a reassignment is adding or removing replicas |
| in_sync | none of these holds |

Several may hold at once, and a partition counts for each of them. It is shown as the worst, which comes first.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, Protocol

from spark_replication.messages.commands import PartitionCommand
from spark_replication.model import BrokerId

Condition = Literal["leaderless", "under_min_isr", "under_replicated", "moving", "in_sync"]

#: In the words of people, the worst first.
WORDS: dict[Condition, str] = {
    "leaderless": "leaderless",
    "under_min_isr": "under min ISR",
    "under_replicated": "under replicated",
    "moving": "moving",
    "in_sync": "in sync",
}
#: What holds of a row of the mirror's table `partitions`, in Spark's SQL.
IN_SQL: dict[Condition, str] = {
    "leaderless": "leader IS NULL",
    "under_min_isr": "size(isr) < min_isr",
    "under_replicated": "size(array_except(array_except(replicas, adding), isr)) > 0",
    "moving": "size(adding) + size(removing) > 0",
}
#: The words of the worst that holds, likewise.
WORST_IN_SQL = (
    "CASE "
    + " ".join(f"WHEN {holds} THEN '{WORDS[name]}'" for name, holds in IN_SQL.items())
    + f" ELSE '{WORDS['in_sync']}' END"
)
_IN_SYNC: tuple[Condition, ...] = ("in_sync",)


class ShownPartition(Protocol):
    """A partition, as clients know it."""

    @property
    def leader(self) -> BrokerId | None: ...
    @property
    def isr(self) -> Collection[BrokerId]: ...
    @property
    def min_isr(self) -> int: ...
    @property
    def replicas(self) -> Collection[BrokerId]: ...
    @property
    def adding(self) -> Collection[BrokerId]: ...
    @property
    def removing(self) -> Collection[BrokerId]: ...


def conditions_of(partition: ShownPartition) -> tuple[Condition, ...]:
    """The worst first."""
    return holding(
        partition.leader,
        partition.isr,
        partition.min_isr,
        partition.replicas,
        adding=partition.adding,
        removing=partition.removing,
    )


def conditions_of_command(command: PartitionCommand) -> tuple[Condition, ...]:
    """The worst first."""
    state = command.state
    return holding(
        state.leader, state.isr, state.min_isr, command.replicas, adding=command.adding, removing=command.removing
    )


def holding(
    leader: BrokerId | None,
    isr: Collection[BrokerId],
    min_isr: int,
    replicas: Collection[BrokerId],
    *,
    adding: Collection[BrokerId] = (),
    removing: Collection[BrokerId] = (),
) -> tuple[Condition, ...]:
    """The worst first. Of most partitions all replicas are in sync: then this is two comparisons."""
    moves = bool(adding or removing)
    if leader is not None and len(isr) == len(replicas) >= min_isr and not moves:
        return _IN_SYNC
    found: list[Condition] = []
    if leader is None:
        found.append("leaderless")
    if len(isr) < min_isr:
        found.append("under_min_isr")
    if any(replica not in isr and replica not in adding for replica in replicas):
        found.append("under_replicated")
    if moves:
        found.append("moving")
    return tuple(found) or _IN_SYNC

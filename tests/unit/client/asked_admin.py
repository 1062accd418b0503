"""An Admin whose answers about moves are written down before it is asked."""

from __future__ import annotations

from spark_replication.client.asking.replica_sizes import ReassignmentDescription
from spark_replication.core.moves.moves import Move, Plan
from spark_replication.errors import ReplicationError

MIB = 1 << 20


class AskedAdmin:
    """refused, moving: what each answer is, the last again and again."""

    def __init__(self, *, refused: list[dict[str, ReplicationError]], moving: list[list[ReassignmentDescription]]):
        self.applied: list[Plan] = []
        self._refused = refused
        self._moving = moving

    def apply(self, plan: Plan) -> dict[str, ReplicationError]:
        self.applied.append(plan)
        return self._refused.pop(0) if len(self._refused) > 1 else self._refused[0]

    def reassignments(self) -> list[ReassignmentDescription]:
        return self._moving.pop(0) if len(self._moving) > 1 else self._moving[0]


def asked(
    refused: list[dict[str, ReplicationError]] | None = None,
    under_way: list[list[ReassignmentDescription]] | None = None,
) -> AskedAdmin:
    return AskedAdmin(refused=refused or [{}], moving=under_way or [[]])


def move(number: int, size: int | None = 100 * MIB) -> Move:
    return Move(partition=f"orders-{number}", topic_id="a", present=(1, 2), target=(1, 3), bytes=size, leader=1)


def under_way(number: int, bytes_left: int | None = MIB, time_left_ms: int | None = 2_000) -> ReassignmentDescription:
    return ReassignmentDescription(
        partition=f"orders-{number}",
        replicas=(1, 3, 2),
        adding=(3,),
        removing=(2,),
        isr=(1, 2),
        bytes_left=bytes_left,
        time_left_ms=time_left_ms,
    )

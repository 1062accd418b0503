"""Twelve partitions, and what holds of each, the worst first."""

from __future__ import annotations

from dataclasses import dataclass

from spark_replication.core.controller.cluster import ClusterState
from spark_replication.model import BrokerId
from spark_replication.view.conditions import Condition
from tests.unit.core.stories import cluster_of, state, topic

NOTHING: tuple[Condition, ...] = ("in_sync",)


@dataclass(frozen=True)
class Known:
    holds: tuple[Condition, ...]
    leader: BrokerId | None
    isr: tuple[BrokerId, ...]
    replicas: tuple[BrokerId, ...] = (1, 2, 3)
    min_isr: int = 2
    adding: tuple[BrokerId, ...] = ()
    removing: tuple[BrokerId, ...] = ()


KNOWN = (
    Known(NOTHING, 1, (1, 2, 3)),
    Known(NOTHING, 1, (1,), replicas=(1,), min_isr=1),
    Known(("under_replicated",), 1, (1, 2)),
    Known(("under_min_isr", "under_replicated"), 1, (1,)),
    Known(("under_min_isr",), 1, (1,), replicas=(1,)),  # it asks for more than there are
    Known(("leaderless", "under_min_isr", "under_replicated"), None, ()),
    Known(("leaderless", "under_replicated"), None, (2, 3)),
    Known(("moving",), 1, (1, 2, 3), replicas=(1, 2, 3, 4), adding=(4,), removing=(3,)),
    Known(("under_replicated", "moving"), 1, (1, 2), replicas=(1, 2, 3, 4), adding=(4,)),
    Known(("moving",), 1, (1, 2, 3, 4), replicas=(1, 2, 3, 4), adding=(4,)),
    Known(("moving",), 1, (1, 2, 3), removing=(3,)),
    Known(("leaderless", "under_min_isr", "under_replicated", "moving"), None, (), replicas=(1, 2, 3, 4), adding=(4,)),
)


def cluster_with(*known: Known) -> ClusterState:
    """A cluster whose topic `foo` has these partitions, in order."""
    numbered = dict(enumerate(known))
    described = topic(
        *(each.replicas for each in known),
        adding={number: each.adding for number, each in numbered.items() if each.adding},
        removing={number: each.removing for number, each in numbered.items() if each.removing},
        origin={
            number: tuple(broker for broker in each.replicas if broker not in each.adding)
            for number, each in numbered.items()
            if each.adding or each.removing
        },
    )
    states = {f"foo-{number}": state(each.leader, each.isr, min_isr=each.min_isr) for number, each in numbered.items()}
    return cluster_of(1, 2, 3, 4, topics={"foo": described}, states=states)

"""What the state of a cluster means: states of partitions and replicas, and the gauges that tell of trouble."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from spark_replication.core.cluster import ClusterState
from spark_replication.model import BrokerId, PartitionState

State = Literal["nonexistent", "new", "online", "offline"]


def partition_state(replicas: Sequence[BrokerId], state: PartitionState | None) -> State:
    """New: it has replicas and never had a leader. Offline: it had one."""
    if not replicas:
        return "nonexistent"
    if state is None:
        return "new"
    return "offline" if state.leader is None else "online"


def replica_state(replicas: Sequence[BrokerId], replica: BrokerId, live: frozenset[BrokerId]) -> State:
    if replica not in replicas:
        return "nonexistent"
    return "online" if replica in live else "offline"


def metrics(cluster: ClusterState) -> dict[str, int]:
    """Cost: one look at every partition."""
    states = [stored.state for stored in cluster.partitions.values()]
    return {
        "offline_partitions": sum(state.leader is None for state in states),
        "under_min_isr_partitions": sum(len(state.isr) < state.min_isr for state in states),
        "electable_leaders": sum(len(state.members) for state in states),
    }

"""What the state of a cluster means: states of partitions and replicas, and the gauges that tell of trouble."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from spark_replication.core.cluster import ClusterState
from spark_replication.messages import Metadata, TopicMetadata
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


def problems(metadata: Metadata, wanted: frozenset[BrokerId]) -> list[str]:
    """What keeps a cluster from being healthy, the worst first; none: every broker lives, every replica is in sync."""
    found = [f"broker {broker} is not registered" for broker in sorted(wanted - metadata.brokers.keys())]
    states = [partition for topic in metadata.topics for partition in topic.partitions]
    found.extend(f"{p.topic_partition} has no leader" for p in states if p.state.leader is None)
    found.extend(
        f"{p.topic_partition} has {len(p.state.isr)} of {len(p.replicas)} replicas in sync"
        for p in states
        if p.state.leader is not None and len(p.state.isr) < len(p.replicas)
    )
    return found


def described(cluster: ClusterState, topics: Sequence[str] | None, controller: str | None) -> Metadata:
    """As the controller knows it: newer than what any broker tells."""
    wanted = sorted(cluster.topics) if topics is None else [name for name in topics if name in cluster.topics]
    return Metadata(
        cluster_id=cluster.cluster_id,
        brokers=dict(cluster.registered),
        controller=controller,
        topics=tuple(
            TopicMetadata(
                name=name,
                topic_id=cluster.topics[name].state.topic_id,
                config=cluster.topics[name].config,
                partitions=tuple(cluster.command(p) for p in cluster.all_partitions(name) if p in cluster.partitions),
            )
            for name in wanted
        ),
    )

"""What the state of a cluster means for who looks at it: the gauges of trouble, and what keeps it from health."""

from __future__ import annotations

from collections.abc import Sequence

from spark_replication.core.controller.cluster import ClusterState
from spark_replication.core.controller.settling import waiting
from spark_replication.messages.commands import PartitionCommand
from spark_replication.messages.descriptions import Metadata, TopicMetadata
from spark_replication.model import BrokerId


def metrics(cluster: ClusterState) -> dict[str, int]:
    """Cost: one look at every partition."""
    states = [stored.state for partition, stored in cluster.partitions.items() if cluster.assigned(partition)]
    return {
        "offline_partitions": sum(state.leader is None for state in states),
        "under_min_isr_partitions": sum(len(state.isr) < state.min_isr for state in states),
        "electable_leaders": sum(len(state.members) for state in states),
        "reassigning_partitions": len(cluster.reassigning),
        "unclean_recovery_partitions": len(cluster.recoveries),
        "manual_leader_election_required_partitions": sum(
            found is not None and found.reason == "manual"
            for found in (waiting(cluster, partition) for partition in cluster.leaderless)
        ),
        "unclean_elections": cluster.unclean_elections,
    }


def problems(metadata: Metadata, wanted: frozenset[BrokerId]) -> list[str]:
    """What keeps a cluster from being healthy, and why, the worst first; none: every broker lives, every replica is in
    sync."""
    found = [f"broker {broker} is not registered" for broker in sorted(wanted - metadata.brokers.keys())]
    partitions = [partition for topic in metadata.topics for partition in topic.partitions]
    led = [partition for partition in partitions if partition.state.leader is not None]
    found.extend(f"{p.topic_partition} has no leader: {_awaited(p)}" for p in partitions if p.state.leader is None)
    for below in (True, False):
        found.extend(
            f"{p.topic_partition} has {len(p.state.isr)} of {len(p.replicas)} replicas in sync"
            + (f", and needs {p.state.min_isr} for acks=all" if below else "")
            for p in led
            if len(p.state.isr) < len(p.replicas) and (len(p.state.isr) < p.state.min_isr) is below
        )
    return found


def _awaited(partition: PartitionCommand) -> str:
    """What would give it a leader."""
    state = partition.state
    if state.recovering:
        return f"the longest log is looked for, of its replicas {list(partition.replicas)}"
    if state.members:
        return f"start one of the brokers {sorted(state.members)}, which hold every acknowledged record"
    return f"no broker is known to hold every acknowledged record: start {list(partition.replicas)}, or elect by hand"


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

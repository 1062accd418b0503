"""What the state of a cluster means for who looks at it: the gauges of trouble, and what keeps it from health."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import islice

from msgspec.structs import replace

from spark_replication.core.controller.cluster import ClusterState
from spark_replication.core.controller.settling import waiting
from spark_replication.messages.commands import PartitionCommand
from spark_replication.messages.descriptions import Awaited, Metadata, TopicMetadata
from spark_replication.model import BrokerId, shortened

REASONS_MAX = 100


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
    found = []
    if metadata.zookeeper_silent_ms:
        found.append(
            f"the controller has had no connection to ZooKeeper for {metadata.zookeeper_silent_ms / 1000:.0f} s: until "
            "it has one, no leader is elected and no topic changed. See that ZooKeeper runs"
        )
    found.extend(f"{unreadable} is left as it is" for unreadable in metadata.unreadable)
    found.extend(f"broker {broker} is not registered" for broker in sorted(wanted - metadata.brokers.keys()))
    partitions = [partition for topic in metadata.topics for partition in topic.partitions]
    led = [partition for partition in partitions if partition.state.leader is not None]
    found.extend(
        f"{p.topic_partition} has no leader: {_why(p, topic.waiting.get(p.partition), metadata.brokers.keys())}"
        for topic in metadata.topics
        for p in topic.partitions
        if p.state.leader is None
    )
    for below in (True, False):
        found.extend(
            f"{p.topic_partition} has {len(p.state.isr)} of {len(p.replicas)} replicas in sync"
            + (f", and needs {p.state.min_isr} for acks=all" if below else "")
            for p in led
            if len(p.state.isr) < len(p.replicas) and (len(p.state.isr) < p.state.min_isr) is below
        )
    if metadata.mirror_error:
        found.append(f"the mirror's tables lag behind: {metadata.mirror_error}")
    return found


def without_what_it_outlives(metadata: Metadata) -> Metadata:
    """No trouble of these keeps a cluster from starting, and serving."""
    return replace(metadata, unreadable=(), mirror_error="")


def _why(partition: PartitionCommand, awaited: Awaited | None, live: Collection[BrokerId]) -> str:
    """What would give it a leader. None: the controller waits for nothing, or who told this does not know."""
    state = partition.state
    match awaited:
        case None:
            return "the controller is about to elect one, or cannot be asked"
        case Awaited(reason="fenced_elr"):
            return f"start one of the brokers {sorted(state.members)}, which hold every acknowledged record"
        case Awaited(reason="log_info", required=required):
            asked = sorted(required or partition.replicas)
            down = sorted(set(asked) - set(live))
            start = f": start {down}" if down else ""
            return f"the longest log is looked for, of its replicas {asked}{start}"
        case Awaited(reason="last_known_elr"):
            return (
                f"start all of the brokers {sorted(state.last_known_elr)}, of which one may hold every acknowledged "
                "record, or elect by hand"
            )
        case Awaited(reason="last_known_leader") if state.last_known_leader is not None:
            return f"start broker {state.last_known_leader}, its last known leader, or elect by hand"
        case Awaited(reason="manual"):
            return "no broker is known to hold every acknowledged record: elect by hand"
        case Awaited(reason=reason):
            return f"it waits for {reason}: start {list(partition.replicas)}, or elect by hand"


def _unreadable(reasons: Mapping[str, str]) -> tuple[str, ...]:
    """The first of them, each in one line that a terminal can show."""
    told = [f"{shortened(path)} cannot be read: {shortened(why)}" for path, why in islice(reasons.items(), REASONS_MAX)]
    if len(reasons) > REASONS_MAX:
        told.append(f"{len(reasons) - REASONS_MAX} more nodes cannot be read")
    return tuple(told)


def described(cluster: ClusterState, topics: Sequence[str] | None, controller: str | None) -> Metadata:
    """As the controller knows it: newer than what any broker tells."""
    wanted = sorted(cluster.topics) if topics is None else [name for name in topics if name in cluster.topics]
    return Metadata(
        cluster_id=cluster.cluster_id,
        brokers=dict(cluster.registered),
        controller=controller,
        unreadable=_unreadable(cluster.reasons),
        topics=tuple(
            TopicMetadata(
                name=name,
                topic_id=cluster.topics[name].state.topic_id,
                config=cluster.topics[name].config,
                partitions=tuple(cluster.command(p) for p in cluster.all_partitions(name) if p in cluster.partitions),
                waiting={
                    p.partition: Awaited(reason=awaited.reason, required=awaited.required)
                    for p in cluster.all_partitions(name)
                    if p in cluster.leaderless and (awaited := waiting(cluster, p)) is not None
                },
            )
            for name in wanted
        ),
    )

"""A controller's metrics: of its process always, of the whole cluster while it commands.

The cluster is copied on the controller's thread (one pointer for each partition), and looked at on the asking thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from prometheus_client.metrics_core import Metric

from spark_replication.core.controller.cluster import ClusterState
from spark_replication.live.exposition import (
    counter,
    counter_named_by_kip,
    counters,
    exposition,
    gauge,
    gauges,
    requests,
    secrets_refused,
    throttled,
)
from spark_replication.mirror.telling.feed import MirrorThread
from spark_replication.transport.meter import Meter
from spark_replication.transport.security.quotas import Quotas
from spark_replication.view.cluster_metrics import ClusterMetrics, metrics


class ControllerView(NamedTuple):
    #: A copy; None while this process does not command.
    cluster: ClusterState | None
    #: That of the present candidacy, if there is one.
    mirror: MirrorThread | None
    zookeeper_silent_s: float
    #: Of its files of secrets; empty if they can be used.
    secrets_trouble: str
    meter: Meter
    quotas: Quotas


def controller_exposition(view: ControllerView, *, per_partition: bool) -> str:
    return exposition(_families(view, per_partition=per_partition))


def _families(view: ControllerView, *, per_partition: bool) -> Iterator[Metric]:
    cluster = view.cluster
    yield gauge("active_controller", "1 if this process commands, 0 if it stands by.", cluster is not None)
    yield gauge(
        "zookeeper_silent_seconds",
        "For how long the controller has had no connection to ZooKeeper; 0: it has one.",
        view.zookeeper_silent_s,
    )
    yield secrets_refused(view.secrets_trouble)
    yield from requests(view.meter)
    yield throttled(view.quotas)
    if cluster is None:
        return
    yield gauge("controller_epoch", "Rises with each take-over.", cluster.controller_epoch)
    yield from _of_brokers(cluster)
    yield from _of_partitions(found := metrics(cluster))
    yield from _of_elections(found)
    if view.mirror is not None:
        yield from _of_mirror(view.mirror)
    if per_partition:
        yield from _of_each(cluster)


def _of_brokers(cluster: ClusterState) -> Iterator[Metric]:
    holding = cluster.needed_brokers(0)
    yield gauge("registered_brokers", "Brokers that live.", len(cluster.registered))
    yield gauge(
        "missing_brokers",
        "Brokers that are assigned replicas, and are not registered.",
        sum(registered is None for registered in holding.values()),
    )
    yield gauge("topics", "Topics.", len(cluster.topics))
    yield gauge("unreadable_nodes", "Nodes of ZooKeeper that the controller cannot read.", len(cluster.reasons))


def _of_partitions(found: ClusterMetrics) -> Iterator[Metric]:
    yield gauge("partitions", "Partitions of all topics.", found.partitions)
    yield gauge("offline_partitions", "Partitions without a leader.", found.offline_partitions)
    yield gauge(
        "under_replicated_partitions",
        "Partitions with a replica out of sync, other than those that a reassignment is adding.",
        found.under_replicated_partitions,
    )
    yield gauge(
        "global_under_min_isr_partition_count",
        "Partitions whose ISR is smaller than min.insync.replicas: they take no acks=all.",
        found.under_min_isr_partitions,
    )
    yield gauge(
        "electable_leaders", "Replicas in ISR or ELR, over all partitions: each could lead.", found.electable_leaders
    )
    yield gauge(
        "unclean_recovery_partitions_count",
        "Partitions whose leader is looked for by the logs; with the balanced strategy also those that wait for "
        "replicas that may have the longest.",
        found.unclean_recovery_partitions,
    )
    yield gauge(
        "manual_leader_election_required_partition_count",
        "Partitions without a leader that wait for a person to elect one.",
        found.manual_leader_election_required_partitions,
    )
    yield gauges(
        "leaderless_partitions",
        "Partitions without a leader, by what they wait for.",
        ["waiting_for"],
        {(reason,): count for reason, count in found.waiting.items()},
    )
    yield gauge(
        "possible_loss_partitions",
        "Partitions led from outside ISR and ELR since a person last acknowledged such a loss: acknowledged records "
        "may be gone.",
        found.possible_loss_partitions,
    )
    yield gauge("reassigning_partitions", "Partitions on their way to other replicas.", found.reassigning_partitions)
    yield gauge(
        "failed_replicas",
        "Replicas that a broker's disk refuses, until they are in sync again.",
        found.failed_replicas,
    )
    yield gauge(
        "damaged_replicas",
        "Replicas of which a broker's disk does not give back some batches as they were written.",
        found.damaged_replicas,
    )


def _of_elections(found: ClusterMetrics) -> Iterator[Metric]:
    yield counter_named_by_kip(
        "unclean_recovery_finished_count",
        "Unclean recoveries that elected a leader since this controller took over.",
        found.unclean_recoveries_finished,
    )
    yield counters(
        "elections",
        "Leaders elected since this controller took over, by how they were chosen.",
        ["how"],
        {(how,): count for how, count in found.elections.items()},
    )
    yield counter(
        "unclean_elections",
        "Of those, the leaders from outside ISR and ELR: they may lack acknowledged records.",
        found.unclean_elections,
    )
    yield counter(
        "isr_shrinks", "Changes by which a replica left an ISR, as this controller heard of them.", found.isr_shrinks
    )
    yield counter(
        "isr_expands", "Changes by which a replica joined an ISR, as this controller heard of them.", found.isr_expands
    )


def _of_mirror(mirror: MirrorThread) -> Iterator[Metric]:
    yield gauge(
        "mirror_lag_seconds",
        "For how long the oldest change that the Delta tables lack has waited.",
        mirror.lag_ms() / 1000,
    )
    yield gauge("mirror_pending_rows", "Rows that the Delta tables lack.", mirror.pending)
    yield gauge("mirror_failed", "1 if the last write to the Delta tables failed.", mirror.error is not None)


def _of_each(cluster: ClusterState) -> Iterator[Metric]:
    names = ["topic", "partition"]
    known = {
        (partition.topic, str(partition.partition)): stored.state
        for partition, stored in sorted(cluster.partitions.items())
        if cluster.assigned(partition)
    }
    nobody = -1
    leaders = {of: nobody if state.leader is None else state.leader for of, state in known.items()}
    yield gauges("partition_leader", "The broker that leads it; -1: nobody.", names, leaders)
    epochs = {of: state.leader_epoch for of, state in known.items()}
    yield gauges("partition_leader_epoch", "Rises with each change of leader.", names, epochs)
    sizes = {of: len(state.isr) for of, state in known.items()}
    yield gauges("partition_isr_size", "Replicas in the ISR.", names, sizes)
    electable = {of: len(state.isr) + len(state.elr) for of, state in known.items()}
    yield gauges("partition_electable_leaders", "Replicas in ISR or ELR.", names, electable)

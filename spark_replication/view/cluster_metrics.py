"""The state of a cluster in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import get_args

import msgspec
from msgspec import UNSET

from spark_replication.core.controller.cluster import ClusterState
from spark_replication.core.controller.settling import waiting
from spark_replication.core.law.election import Reason
from spark_replication.model import How
from spark_replication.view.conditions import Condition, holding


class ClusterMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a cluster in numbers, with the names and meanings of KIP-966 where it has one.

    Counters, from unclean_recoveries_finished on, begin at the take-over of this controller.
    """

    partitions: int
    #: Partitions without a leader.
    offline_partitions: int
    #: Partitions with a replica out of sync, other than those that a reassignment is adding.
    under_replicated_partitions: int
    #: Partitions whose ISR is too small for acks=all.
    under_min_isr_partitions: int
    #: Members of ISR and ELR, over all partitions.
    electable_leaders: int
    reassigning_partitions: int
    #: Leaderless partitions, by what each waits for (L4). A partition that is about to be led waits for nothing.
    waiting: dict[Reason, int]
    #: Partitions whose leader is being chosen by the logs; with `balanced` also those that wait for the replicas that
    #: may have the longest log.
    unclean_recovery_partitions: int
    manual_leader_election_required_partitions: int
    #: Partitions whose possible loss no person has acknowledged yet (D2).
    possible_loss_partitions: int
    #: Replicas that their broker's disk refuses.
    failed_replicas: int
    #: Replicas of which their broker's disk has damaged batches.
    damaged_replicas: int
    unclean_recoveries_finished: int
    unclean_elections: int
    elections: dict[How, int]
    isr_shrinks: int
    isr_expands: int


def metrics(cluster: ClusterState) -> ClusterMetrics:
    """Cost: one look at every partition, one `elect` for each that has no leader."""
    conditions: Counter[Condition] = Counter()
    partitions = electable = lossy = 0
    for partition, stored in cluster.partitions.items():
        topic = cluster.topics.get(partition.topic)
        replicas = None if topic is None else topic.state.partitions.get(partition.partition)
        if topic is None or replicas is None:
            continue  # a tombstone
        state, moves = stored.state, topic.state
        partitions += 1
        conditions.update(
            holding(
                state.leader,
                state.isr,
                state.min_isr,
                replicas,
                adding=moves.adding.get(partition.partition, ()),
                removing=moves.removing.get(partition.partition, ()),
            )
        )
        electable += len(state.isr) + len(state.elr)
        lossy += state.loss is not UNSET
    found = (waiting(cluster, partition) for partition in cluster.leaderless)
    waits = Counter(each.reason for each in found if each is not None)
    return ClusterMetrics(
        partitions=partitions,
        offline_partitions=conditions["leaderless"],
        under_replicated_partitions=conditions["under_replicated"],
        under_min_isr_partitions=conditions["under_min_isr"],
        electable_leaders=electable,
        reassigning_partitions=len(cluster.reassigning),
        waiting={reason: waits[reason] for reason in get_args(Reason)},
        unclean_recovery_partitions=_recovering(waits, enabled=cluster.settings.unclean_recovery_enabled),
        manual_leader_election_required_partitions=waits["manual"],
        possible_loss_partitions=lossy,
        failed_replicas=cluster.failed_replicas,
        damaged_replicas=cluster.damaged_replicas,
        unclean_recoveries_finished=cluster.elections["unclean_recovery"],
        unclean_elections=cluster.unclean_elections,
        elections={how: cluster.elections[how] for how in get_args(How)},
        isr_shrinks=cluster.isr_shrinks,
        isr_expands=cluster.isr_expands,
    )


def _recovering(waits: Mapping[Reason, int], *, enabled: bool) -> int:
    """The partitions in recovery. With `balanced`, those that wait for the replicas that may have the longest log
    count, too (KIP-966)."""
    return waits["log_info"] + (waits["last_known_elr"] + waits["last_known_leader"] if enabled else 0)

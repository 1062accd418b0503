"""Elections that a person asks for (L5): who may be chosen, and why not.

Preferred elections move a leadership; the other kinds act on leaderless partitions alone.

An election by hand loses no records without need. While a member of ISR or ELR lives, and is not void, an unclean
election elects that member, as the controller is about to, and a designation of any other replica is refused. KIP-966
says nothing of that case: its designation is for partitions that cannot be led without loss.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import assert_never

from spark_replication.config import RecoveryStrategy
from spark_replication.core.controller.cluster import ClusterState
from spark_replication.core.controller.plan import Decision, Recover, Reply, Step
from spark_replication.core.controller.settling import began, due_seal, goes_on, is_settled_here, write_of
from spark_replication.core.law import election
from spark_replication.core.law.election import Elected
from spark_replication.core.law.partition_change import elected, waits_for_table, without_void
from spark_replication.core.law.writes import PartitionWrite, StoredPartition
from spark_replication.core.tables.sealing import NO_TABLE
from spark_replication.errors import (
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    InvalidReplicaAssignment,
    InvalidRequest,
    PreferredLeaderNotAvailable,
    TableNotSealed,
)
from spark_replication.messages.descriptions import TOPICS_A_REQUEST_MAX
from spark_replication.messages.requests import ElectLeaders
from spark_replication.model import Epoch, TopicPartition


def check_topics(names: Collection[str]) -> None:
    topics = {name.rpartition("-")[0] for name in names}
    if len(topics) > TOPICS_A_REQUEST_MAX:
        raise InvalidRequest(f"{len(topics)} topics: this takes at most {TOPICS_A_REQUEST_MAX} a request")


def candidates(cluster: ClusterState, asked: ElectLeaders) -> list[TopicPartition]:
    """The partitions for which this kind of election can do something, if a request names none."""
    if asked.kind == "preferred":
        return [p for p in cluster.all_partitions() if is_settled_here(cluster, p) and _preferred_write(cluster, p)]
    return sorted(p for p in cluster.leaderless if is_settled_here(cluster, p) and p in cluster.partitions)


def elect_by_hand(
    cluster: ClusterState, partition: TopicPartition, stored: StoredPartition, asked: ElectLeaders
) -> Decision:
    if asked.kind == "preferred":
        return _elect_preferred(cluster, partition, stored)
    if stored.state.leader is not None:
        raise ElectionNotNeeded(
            f"{partition} is led by broker {stored.state.leader} at epoch {stored.state.leader_epoch}"
        )
    match asked.kind:
        case "longest_log_proactive":
            return _ask_logs(cluster, partition, stored, asked, "proactive")
        case "longest_log_balanced":
            return _ask_logs(cluster, partition, stored, asked, "balanced")
        case "designation":
            return _elect_as(cluster, partition, stored, _designated(cluster, partition, stored, asked), asked)
        case "unclean":
            return _elect_as(cluster, partition, stored, _any_live(cluster, partition, stored), asked)
        case _:
            assert_never(asked.kind)


def _elect_as(
    cluster: ClusterState, partition: TopicPartition, stored: StoredPartition, outcome: Elected, asked: ElectLeaders
) -> Decision:
    brokers = cluster.brokers_of(partition)
    members = without_void(stored.state, brokers)
    epoch = stored.state.leader_epoch
    sealing = NO_TABLE if asked.without_table else cluster.sealing_of(partition)
    if waits_for_table(members, epoch, outcome, sealing):
        return unsealed(cluster, partition, epoch + 1, str(partition))
    after = elected(members, epoch, outcome, brokers, sealing, now_ms=cluster.now_ms)
    return _decided(cluster, write_of(cluster, partition, stored, after))


def unsealed(
    cluster: ClusterState, partition: TopicPartition, epoch: Epoch, name: str, others: Decision | None = None
) -> Decision:
    """Refuse for now the part `name` of a request, before which the partition's table must be sealed; and ask for that,
    beside what is asked for `others` (TB5)."""
    known = cluster.seals.get(partition)
    trouble = f": {known.why}" if known is not None and known.why else ""
    if cluster.may_be_table(partition.topic):
        trouble = ": the cluster's settings, which say whether it is one, cannot be read"
    error = TableNotSealed(
        f"the table of {partition.topic} is being sealed at leader epoch {epoch} of {partition}, so that no offset "
        f"that it has is given again{trouble}: ask again in a moment"
    )
    asked = {} if others is None else others.seals
    return Decision(seals={**asked, **due_seal(cluster, partition, epoch)}, reply=Reply(errors={name: error}))


def _decided(cluster: ClusterState, write: PartitionWrite) -> Decision:
    """The election, and, if the partition is being reassigned, the step that waited for a leader."""
    return Decision(steps=(Step((write,)),), then=goes_on(cluster, (write.partition,)))


def _clean(cluster: ClusterState, partition: TopicPartition, stored: StoredPartition) -> Elected | None:
    """Elect a replica that can lead without loss; None if there is none."""
    brokers = cluster.brokers_of(partition)
    return election.within(cluster.replicas(partition), without_void(stored.state, brokers), brokers.electable)


def _any_live(cluster: ClusterState, partition: TopicPartition, stored: StoredPartition) -> Elected:
    replicas, electable = cluster.replicas(partition), cluster.brokers_of(partition).electable
    found = _clean(cluster, partition, stored) or election.any_live(replicas, stored.state, electable)
    if found is None:
        raise EligibleLeadersNotAvailable(f"no replica of {partition} is alive: start one of {list(replicas)}")
    return found


def _elect_preferred(cluster: ClusterState, partition: TopicPartition, stored: StoredPartition) -> Decision:
    preferred = cluster.replicas(partition)[0]
    if stored.state.leader == preferred:
        raise ElectionNotNeeded(f"{partition} is led by its preferred replica, broker {preferred}")
    write = _preferred_write(cluster, partition)
    if write is None:
        raise PreferredLeaderNotAvailable(
            f"broker {preferred}, which {partition} prefers, is not in its ISR {sorted(stored.state.isr)}, or not "
            "alive: wait until it has caught up"
        )
    return _decided(cluster, write)


def _preferred_write(cluster: ClusterState, partition: TopicPartition) -> PartitionWrite | None:
    """The write that makes the preferred replica leader; None if it leads, or cannot lead."""
    stored = cluster.partitions.get(partition)
    preferred = cluster.replicas(partition)[0]
    brokers = cluster.brokers_of(partition)
    if stored is None or stored.state.leader == preferred or preferred not in stored.state.isr & brokers.electable:
        return None
    outcome = Elected(preferred, "isr")
    after = elected(stored.state, stored.state.leader_epoch, outcome, brokers, NO_TABLE, now_ms=cluster.now_ms)
    return write_of(cluster, partition, stored, after)


def _designated(
    cluster: ClusterState, partition: TopicPartition, stored: StoredPartition, asked: ElectLeaders
) -> Elected:
    desired = asked.desired.get(str(partition))
    if desired is None:
        raise InvalidRequest(f"{partition}: a designation names the desired leader")
    replicas = cluster.replicas(partition)
    if desired not in replicas:
        raise InvalidReplicaAssignment(f"broker {desired} is no replica of {partition}: choose one of {list(replicas)}")
    brokers = cluster.brokers_of(partition)
    if desired not in brokers.electable:
        raise EligibleLeadersNotAvailable(
            f"broker {desired} is not alive: start it, or designate another for {partition}"
        )
    members = without_void(stored.state, brokers)
    if desired in members.members:
        return Elected(desired, "isr" if desired in members.isr else "elr")
    clean = _clean(cluster, partition, stored)
    if clean is not None:
        raise ElectionNotNeeded(
            f"broker {clean.leader} is alive and holds every acknowledged record of {partition}, broker {desired} may "
            f"not: designate {clean.leader}, or wait until the controller elects it"
        )
    return Elected(desired, "designated")


def _ask_logs(
    cluster: ClusterState,
    partition: TopicPartition,
    stored: StoredPartition,
    asked: ElectLeaders,
    strategy: RecoveryStrategy,
) -> Decision:
    replicas, electable = cluster.replicas(partition), cluster.brokers_of(partition).electable
    policy = election.Policy(strategy=strategy)
    wanted = election.outside(replicas, stored.state, electable, policy)
    if isinstance(wanted, Elected) or wanted.reason != "log_info":
        needed = sorted(stored.state.elr or stored.state.last_known_elr or replicas)
        raise EligibleLeadersNotAvailable(
            f"{partition} cannot be recovered by {strategy} choice before all of {needed} are alive: start them, or "
            "ask for longest_log_proactive"
        )
    if not electable.intersection(replicas):
        raise EligibleLeadersNotAvailable(f"no replica of {partition} is alive: start one of {list(replicas)}")
    begun = began(stored.state, wanted.required, by_hand=True, without_table=asked.without_table)
    return Decision(recoveries={partition: begun}, then=(Recover((partition,)),))

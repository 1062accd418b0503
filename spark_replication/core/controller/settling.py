"""The writes that bring partitions to what the state of brokers, settings and logs calls for. They depend on what is,
never on what happened. So it does not matter who decides them, how often, or who crashed in between (C4).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from spark_replication.core.controller import reassignment
from spark_replication.core.controller.cluster import ClusterState
from spark_replication.core.controller.plan import Advance, Decision, Step, Stop
from spark_replication.core.controller.reassignment import CompleteMove, Lead
from spark_replication.core.law import unclean_recovery
from spark_replication.core.law.election import Elected, Waiting, elect
from spark_replication.core.law.partition_change import (
    created,
    effective_min_isr,
    elected,
    first_epoch,
    narrowed,
    restored,
    settled,
    waits_for_table,
    without_void,
)
from spark_replication.core.law.unclean_recovery import UncleanRecovery
from spark_replication.core.law.writes import PartitionWrite, StoredPartition, TopicWrite
from spark_replication.core.tables.sealing import NO_TABLE, is_due
from spark_replication.messages.commands import StopPartition
from spark_replication.model import BrokerId, Epoch, PartitionState, TopicPartition, TopicState

# Reassignments of one topic that complete in one multi(): its assignment and so many leaderAndISRs.
COMPLETED_TOGETHER_MAX = 200
# A table that has not answered for so long is asked again.
SEAL_RETRY_MS = 5_000


def settle(cluster: ClusterState, partitions: Iterable[TopicPartition]) -> list[PartitionWrite]:
    writes = (settling_write(cluster, partition) for partition in partitions if is_settled_here(cluster, partition))
    return [write for write in writes if write is not None]


def is_settled_here(cluster: ClusterState, partition: TopicPartition) -> bool:
    """Whether anybody decides about it: not about a topic that is being deleted, a tombstone, or what cannot be read
    (Z1)."""
    is_decided = partition.topic not in cluster.deleting and not cluster.unreadable.hides(partition)
    return is_decided and cluster.assigned(partition)


def settling_write(cluster: ClusterState, partition: TopicPartition) -> PartitionWrite | None:
    stored = cluster.partitions.get(partition)
    if stored is None and partition in cluster.removed:
        return _recovering_write(cluster, partition)
    if stored is None:
        return creating_write(cluster, partition, cluster.replicas(partition), None)
    after = settled(
        cluster.replicas(partition),
        stored.state,
        cluster.brokers_of(partition),
        cluster.policy_of(partition.topic),
        min_isr=min_isr_of(cluster, partition),
        now_ms=cluster.now_ms,
        sealing=cluster.sealing_of(partition),
    ).state
    return None if after == stored.state else write_of(cluster, partition, stored, after)


def min_isr_of(cluster: ClusterState, partition: TopicPartition) -> int:
    """The min ISR for leaderAndISR: the setting, at most the replication factor (I5). While the setting cannot be read,
    the one in leaderAndISR stays."""
    stored = cluster.partitions.get(partition)
    if stored is not None and not knows_min_isr(cluster, partition.topic):
        return stored.state.min_isr
    factor = reassignment.replication_factor(cluster.topics[partition.topic].state, partition.partition)
    return effective_min_isr(cluster.settings_of(partition.topic).min_insync_replicas, factor)


def knows_min_isr(cluster: ClusterState, topic: str) -> bool:
    return not cluster.unreadable.settings or "min.insync.replicas" in cluster.topics[topic].config.settings


def creating_write(
    cluster: ClusterState,
    partition: TopicPartition,
    replicas: tuple[BrokerId, ...],
    tombstone: StoredPartition | None,
) -> PartitionWrite | None:
    if not knows_min_isr(cluster, partition.topic) or unsealed_epoch(cluster, partition, tombstone) is not None:
        return None
    state = created(
        replicas,
        cluster.brokers_of(partition),
        min_insync_replicas=cluster.settings_of(partition.topic).min_insync_replicas,
        controller_epoch=cluster.controller_epoch,
        tombstone=None if tombstone is None else tombstone.state,
        sealing=cluster.sealing_of(partition),
    )
    if state is None:
        return None
    if tombstone is None:
        return PartitionWrite(partition=partition, state=state, relies_on=state.epochs)
    return PartitionWrite(partition=partition, state=state, version=tombstone.version, relies_on=state.epochs)


def unsealed_epoch(cluster: ClusterState, partition: TopicPartition, tombstone: StoredPartition | None) -> Epoch | None:
    """The leader epoch at which the table must be sealed before this partition is made, or made again (TB5, TB7); None
    if nothing keeps it from being made."""
    sealing = cluster.sealing_of(partition)
    if tombstone is None and not sealing.is_restored:
        return None
    epoch = first_epoch(None if tombstone is None else tombstone.state, sealing)
    return epoch if sealing.is_needed(epoch) else None


def _recovering_write(cluster: ClusterState, partition: TopicPartition) -> PartitionWrite | None:
    """Make a leaderAndISR that somebody has removed again: as one of a partition that has records (Z2)."""
    if not knows_min_isr(cluster, partition.topic):
        return None
    state = restored(
        cluster.replicas(partition),
        leader_epoch=cluster.removed[partition],
        min_isr=min_isr_of(cluster, partition),
        controller_epoch=cluster.controller_epoch,
    )
    return PartitionWrite(partition=partition, state=state)


def write_of(
    cluster: ClusterState, partition: TopicPartition, stored: StoredPartition, after: PartitionState
) -> PartitionWrite:
    epochs = cluster.brokers.epochs
    return PartitionWrite(
        partition=partition,
        state=replace(after, controller_epoch=cluster.controller_epoch),
        version=stored.version,
        # A member whose epoch cannot be read counts as absent: no decision relied on it.
        relies_on={member: epochs[member] for member in sorted(after.isr) if member in epochs},
    )


# Leaderless partitions (L4)


def waiting(cluster: ClusterState, partition: TopicPartition) -> Waiting | None:
    """Why this partition has no leader; None if it has one, or is about to have one."""
    stored = cluster.partitions.get(partition)
    if stored is None:
        return Waiting("table") if _unmade_epoch(cluster, partition) is not None else None
    if stored.state.leader is not None:
        return None
    if partition in cluster.recoveries:
        is_chosen = partition in cluster.seals and cluster.seals[partition].told is None
        return Waiting("table") if is_chosen else Waiting("log_info", cluster.recoveries[partition].required)
    electable = cluster.brokers_of(partition).electable
    outcome = elect(cluster.replicas(partition), stored.state, electable, cluster.policy_of(partition.topic))
    if not isinstance(outcome, Elected):
        return outcome
    sealing, state = cluster.sealing_of(partition), stored.state
    return Waiting("table") if waits_for_table(state, state.leader_epoch, outcome, sealing) else None


def _unmade_epoch(cluster: ClusterState, partition: TopicPartition) -> Epoch | None:
    """`unsealed_epoch` of a partition without a state; None if another reason than the table keeps it from one."""
    is_new = cluster.assigned(partition) and partition not in cluster.removed
    return unsealed_epoch(cluster, partition, None) if is_new else None


def recover(cluster: ClusterState, partitions: Iterable[TopicPartition]) -> Decision:
    """Recover these partitions: ask replicas that were not asked yet, and elect where enough have answered. A table is
    sealed before anybody is elected whom it might not know."""
    steps: list[Step] = []
    recoveries: dict[TopicPartition, UncleanRecovery | None] = {}
    asks: dict[BrokerId, list[TopicPartition]] = {}
    seals: dict[TopicPartition, Epoch] = {}
    now_ms, timeout_ms = cluster.now_ms, cluster.settings.unclean_recovery_timeout_ms
    most_ms = timeout_ms + cluster.settings.disk_retry_ms
    for partition in partitions:
        stored = cluster.partitions.get(partition)
        if not is_settled_here(cluster, partition):
            continue
        if stored is None:
            unmade = _unmade_epoch(cluster, partition)
            seals.update({} if unmade is None else due_seal(cluster, partition, unmade))
            continue
        if stored.state.leader is not None:
            continue
        under_way = _recovery(cluster, partition, stored.state)
        if under_way is None:
            recoveries[partition] = None
            seals.update(_seal_of_elected(cluster, partition, stored.state))
            continue
        replicas, brokers = cluster.replicas(partition), cluster.brokers_of(partition)
        under_way = unclean_recovery.timed(under_way, replicas, brokers)
        found = unclean_recovery.winner(under_way, replicas, brokers, now_ms=now_ms, timeout_ms=timeout_ms)
        if found is not None and not unclean_recovery.is_put_off(
            under_way, found, replicas, brokers, now_ms=now_ms, most_ms=most_ms
        ):
            known = without_void(stored.state, brokers)
            outcome = unclean_recovery.elected(under_way, found, known, replicas, brokers)
            sealing = NO_TABLE if under_way.without_table else cluster.sealing_of(partition)
            if waits_for_table(stored.state, stored.state.leader_epoch, outcome, sealing):
                seals.update(due_seal(cluster, partition, stored.state.leader_epoch + 1))
                recoveries[partition] = under_way
                continue
            after = elected(stored.state, stored.state.leader_epoch, outcome, brokers, sealing, now_ms=now_ms)
            steps.append(Step((write_of(cluster, partition, stored, after),)))
            continue
        asked = unclean_recovery.to_ask(under_way, replicas, brokers, now_ms=now_ms, timeout_ms=timeout_ms)
        for broker in asked:
            asks.setdefault(broker, []).append(partition)
        recoveries[partition] = unclean_recovery.asking(under_way, asked, brokers, now_ms) if asked else under_way
    chosen = tuple(write.partition for step in steps for write in step.writes if isinstance(write, PartitionWrite))
    return Decision(
        steps=tuple(steps),
        recoveries=recoveries,
        asks={broker: tuple(partitions) for broker, partitions in sorted(asks.items())},
        seals=seals,
        then=goes_on(cluster, chosen),
    )


def _seal_of_elected(
    cluster: ClusterState, partition: TopicPartition, state: PartitionState
) -> dict[TopicPartition, Epoch]:
    """The seal to ask for if a leader from outside would be elected but for the table."""
    found = waiting(cluster, partition)
    is_chosen = found is not None and found.reason == "table"
    return due_seal(cluster, partition, state.leader_epoch + 1) if is_chosen else {}


def due_seal(cluster: ClusterState, partition: TopicPartition, epoch: Epoch) -> dict[TopicPartition, Epoch]:
    """The seal to ask for, if it is time."""
    is_asked = is_due(cluster.seals.get(partition), epoch, cluster.now_ms, SEAL_RETRY_MS)
    return {partition: epoch} if is_asked and not cluster.may_be_table(partition.topic) else {}


def _recovery(cluster: ClusterState, partition: TopicPartition, state: PartitionState) -> UncleanRecovery | None:
    """The recovery under way, or the one that begins; None if nobody is to be asked."""
    known = cluster.recoveries.get(partition)
    if known is not None and known.leader_epoch != state.leader_epoch:
        known = None
    if known is not None and known.by_hand:
        return known
    electable = cluster.brokers_of(partition).electable
    outcome = elect(cluster.replicas(partition), state, electable, cluster.policy_of(partition.topic))
    if not isinstance(outcome, Waiting) or outcome.reason != "log_info":
        return None
    return began(state, outcome.required) if known is None else replace(known, required=outcome.required)


def began(
    state: PartitionState, required: frozenset[BrokerId], *, by_hand: bool = False, without_table: bool = False
) -> UncleanRecovery:
    return UncleanRecovery(
        leader_epoch=state.leader_epoch, required=required, by_hand=by_hand, without_table=without_table
    )


# Reassignments (A1)


def goes_on(cluster: ClusterState, elected_now: Iterable[TopicPartition]) -> tuple[Advance, ...]:
    """What follows the controller's own elections. A reassignment may have waited for just that leader, and nobody
    reports the controller's own writes to it."""
    moving = tuple(partition for partition in elected_now if partition in cluster.reassigning)
    return (Advance(moving),) if moving else ()


def advance(cluster: ClusterState, partitions: Iterable[TopicPartition]) -> tuple[Step, ...]:
    """The next step of each reassignment. Those of a topic complete together: they share its assignment."""
    steps: list[Step] = []
    completing: dict[str, dict[TopicPartition, CompleteMove]] = {}
    for partition in partitions:
        stored = cluster.partitions.get(partition)
        if stored is None or partition not in cluster.reassigning or not is_settled_here(cluster, partition):
            continue
        topic, brokers = cluster.topics[partition.topic].state, cluster.brokers_of(partition)
        step = reassignment.next_step(topic, partition.partition, stored.state, brokers)
        if isinstance(step, Lead):
            outcome = Elected(step.leader, "isr")
            epoch = stored.state.leader_epoch
            after = elected(stored.state, epoch, outcome, brokers, NO_TABLE, now_ms=cluster.now_ms)
            steps.append(Step((write_of(cluster, partition, stored, after),)))
        elif isinstance(step, CompleteMove):
            completing.setdefault(partition.topic, {})[partition] = step
    for topic_name, found in completing.items():
        steps.extend(complete_together(cluster, topic_name, found))
    return tuple(steps)


def complete_together(
    cluster: ClusterState, topic_name: str, completing: Mapping[TopicPartition, CompleteMove]
) -> Iterable[Step]:
    """One step for each COMPLETED_TOGETHER_MAX partitions: the final assignment, and leaderAndISR without the dropped
    replicas, in one multi() (A1)."""
    stored = cluster.topics[topic_name]
    state, version = stored.state, stored.version
    ordered = sorted(completing)
    for start in range(0, len(ordered), COMPLETED_TOGETHER_MAX):
        writes: list[PartitionWrite] = []
        stops: list[Stop] = []
        together = ordered[start : start + COMPLETED_TOGETHER_MAX]
        for partition in together:
            write, stopped = _completion(cluster, state, partition, completing[partition])
            writes.append(write)
            stops.extend(stopped)
        state = reassignment.completed(state, {p.partition: completing[p].replicas for p in together})
        names = tuple(str(write.partition) for write in writes)
        yield Step((TopicWrite(topic=topic_name, state=state, version=version), *writes), tuple(stops), names)
        version += 1


def _completion(
    cluster: ClusterState, topic: TopicState, partition: TopicPartition, complete: CompleteMove
) -> tuple[PartitionWrite, list[Stop]]:
    stored = cluster.partitions[partition]
    factor = len(complete.replicas)
    known = knows_min_isr(cluster, partition.topic)
    wanted = cluster.settings_of(partition.topic).min_insync_replicas if known else stored.state.min_isr
    min_isr = effective_min_isr(wanted, factor)
    dropped = set(topic.partitions[partition.partition]) - set(complete.replicas)
    after = narrowed(stored.state, complete.replicas, complete.leader, drops=bool(dropped), min_isr=min_isr)
    write = write_of(cluster, partition, stored, after)
    # A replica that is assigned again may have the same leader epoch, but a higher partition epoch: it ignores this.
    stops = stops_of(cluster, partition, dropped, after.leader_epoch, partition_epoch=stored.version + 1)
    return write, stops


def stops_of(
    cluster: ClusterState,
    partition: TopicPartition,
    brokers: Iterable[BrokerId],
    leader_epoch: int,
    *,
    partition_epoch: int | None = None,
    delete: bool = True,
) -> list[Stop]:
    """The stops for the brokers that live; the others find out when they start (B1)."""
    stop = StopPartition(
        topic=partition.topic,
        partition=partition.partition,
        topic_id=cluster.topics[partition.topic].state.topic_id,
        leader_epoch=leader_epoch,
        partition_epoch=partition_epoch,
        delete=delete,
    )
    return [Stop(broker, stop) for broker in sorted(brokers) if broker in cluster.brokers.live]

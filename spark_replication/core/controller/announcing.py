"""The commands that follow what is stored (C2): LeaderAndIsr first, then StopReplica, then metadata, then questions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from spark_replication.core.controller.cluster import ClusterState
from spark_replication.core.controller.events import Requested, TookOver
from spark_replication.core.controller.plan import BrokersMoved, Cause, DeletePartitions, PartitionsChanged, Stop
from spark_replication.messages.commands import (
    LOG_INFO_PARTITIONS_MAX,
    Command,
    GetReplicaLogInfo,
    LeaderAndIsr,
    LogInfoWanted,
    PartitionCommand,
    StopReplica,
    UpdateMetadata,
)
from spark_replication.messages.requests import ChangeAcls, Configure, SetQuota, WidenTopic
from spark_replication.model import BrokerId, TopicConfig, TopicPartition

Commands = list[tuple[BrokerId, Command]]


def announce(
    cluster: ClusterState,
    cause: Cause,
    written: Iterable[TopicPartition],
    stops: Sequence[Stop] = (),
    removed: Sequence[TopicPartition] = (),
) -> Commands:
    """The commands after a decision is stored. ZooKeeper and ClusterState have what is `written` and `removed`."""
    changed = tuple(cluster.command(partition) for partition in written if cluster.assigned(partition))
    stopped = {(stop.broker, stop.partition.topic, stop.partition.partition) for stop in stops}
    leader_and_isr = _for_replicas(cluster, changed, stopped)
    metadata: dict[BrokerId, tuple[PartitionCommand, ...]] = {}
    everything = _told_everything(cluster, cause)
    if isinstance(cause, PartitionsChanged):
        known = {command.topic_partition for command in changed}
        read = (partition for partition in cause.partitions if partition not in known and _is_told(cluster, partition))
        changed += tuple(cluster.command(partition) for partition in read)
    deleted = (cause.topic,) if isinstance(cause, DeletePartitions) and cause.topic not in cluster.topics else ()
    configured = _configured(cluster, cause)
    tells_settings = _is_about_cluster(cause)
    news = bool(changed or removed or deleted or configured or tells_settings) or isinstance(cause, BrokersMoved)
    complete = _complete(cluster) if everything else {}
    for broker in sorted(cluster.brokers.live):
        if broker in everything:
            leader_and_isr[broker] = tuple(complete[p] for p in cluster.hosted_by([broker]) if p in complete)
            metadata[broker] = tuple(complete.values())
        elif news:
            metadata[broker] = changed
    init = isinstance(cause, TookOver)
    settings = None if cluster.unreadable.settings else cluster.stored_settings.settings
    commands: Commands = [
        (broker, _leader_and_isr(cluster, partitions, init=init and broker in everything))
        for broker, partitions in sorted(leader_and_isr.items())
    ]
    commands.extend(_stop_replica(cluster, stops))
    if not metadata:
        return commands
    topics = _topics(cluster, {command.topic for command in changed} | configured.keys())
    unmade, all_unmade = cluster.unmade(topics), cluster.unmade(cluster.topics) if everything else ()
    all_topics = _topics(cluster, {each.topic for each in (*complete, *all_unmade)})
    commands.extend(
        (
            broker,
            UpdateMetadata(
                controller_epoch=cluster.controller_epoch,
                partitions=partitions,
                topics=all_topics if broker in everything else topics,
                brokers=cluster.registered,
                deleted=deleted,
                removed=tuple(removed),
                complete=broker in everything,
                settings=settings if tells_settings or broker in everything else None,
                unreadable_topics=tuple(sorted(cluster.unreadable.topics)),
                unreadable_partitions=tuple(sorted(cluster.unreadable.partitions)),
                unmade=all_unmade if broker in everything else unmade,
            ),
        )
        for broker, partitions in sorted(metadata.items())
    )
    return commands


def ask(cluster: ClusterState, broker: BrokerId, partitions: Sequence[TopicPartition]) -> list[GetReplicaLogInfo]:
    wanted = [
        LogInfoWanted(
            topic=partition.topic,
            partition=partition.partition,
            topic_id=cluster.topics[partition.topic].state.topic_id,
            leader_epoch=cluster.leader_epoch(partition),
        )
        for partition in partitions
    ]
    return [
        GetReplicaLogInfo(
            controller_epoch=cluster.controller_epoch,
            partitions=tuple(wanted[start : start + LOG_INFO_PARTITIONS_MAX]),
        )
        for start in range(0, len(wanted), LOG_INFO_PARTITIONS_MAX)
    ]


def _told_everything(cluster: ClusterState, cause: Cause) -> frozenset[BrokerId]:
    match cause:
        case TookOver():
            return cluster.brokers.live
        case BrokersMoved(started=started):
            return started & cluster.brokers.live
        case _:
            return frozenset()


def _configured(cluster: ClusterState, cause: Cause) -> dict[str, TopicConfig]:
    """The topics whose settings or schema changed: to be announced even if no partition changed."""
    match cause:
        case Requested(asked=Configure(topic=str() as topic) | WidenTopic(topic=topic)) if topic in cluster.topics:
            return {topic: cluster.topics[topic].config}
        case Requested(asked=Configure(topic=None)):
            return {topic: stored.config for topic, stored in sorted(cluster.topics.items())}
        case _:
            return {}


def _is_about_cluster(cause: Cause) -> bool:
    match cause:
        case Requested(asked=Configure(topic=None) | ChangeAcls() | SetQuota()):
            return True
        case _:
            return False


def _for_replicas(
    cluster: ClusterState, changed: tuple[PartitionCommand, ...], stopped: set[tuple[BrokerId, str, int]]
) -> dict[BrokerId, tuple[PartitionCommand, ...]]:
    receiving: dict[BrokerId, list[PartitionCommand]] = {}
    for command in changed:
        for replica in command.replicas:
            if replica in cluster.brokers.live and (replica, command.topic, command.partition) not in stopped:
                receiving.setdefault(replica, []).append(command)
    return {broker: tuple(commands) for broker, commands in receiving.items()}


def _complete(cluster: ClusterState) -> dict[TopicPartition, PartitionCommand]:
    """The command of every partition, built once for all brokers."""
    return {p: cluster.command(p) for p in sorted(cluster.partitions) if _is_told(cluster, p)}


def _is_told(cluster: ClusterState, partition: TopicPartition) -> bool:
    """Whether brokers hear of it: not if it was never made, is a tombstone, or cannot be read (Z1)."""
    is_known = partition in cluster.partitions and cluster.assigned(partition)
    return is_known and not cluster.unreadable.hides(partition)


def _topics(cluster: ClusterState, names: Iterable[str]) -> dict[str, TopicConfig]:
    return {topic: cluster.topics[topic].config for topic in sorted(names)}


def _leader_and_isr(cluster: ClusterState, partitions: tuple[PartitionCommand, ...], *, init: bool) -> LeaderAndIsr:
    return LeaderAndIsr(
        controller_epoch=cluster.controller_epoch,
        partitions=partitions,
        topics=_topics(cluster, {command.topic for command in partitions}),
        brokers=cluster.registered,
        init=init,
    )


def _stop_replica(cluster: ClusterState, stops: Sequence[Stop]) -> Commands:
    of: dict[BrokerId, list[Stop]] = {}
    for stop in stops:
        of.setdefault(stop.broker, []).append(stop)
    return [
        (
            broker,
            StopReplica(
                controller_epoch=cluster.controller_epoch, partitions=tuple(stop.partition for stop in of[broker])
            ),
        )
        for broker in sorted(of)
        if broker in cluster.brokers.live
    ]

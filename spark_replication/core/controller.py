"""What a controller does about an event: which writes, and, once they are stored, who is told what.

`plan` decides; the engine stores the plan's groups and applies what ZooKeeper accepted; `announce` then says who hears
of it (C2: persist, then tell). Both read ClusterState and change nothing. After its own decision every event asks what
the state calls for (`settled`), so the steps of the sources come out as follows:

| event               | writes                                    | told                                       |
| ------------------- | ----------------------------------------- | ------------------------------------------ |
| TookOver            | partitions with dead or void members, one | LeaderAndIsr INIT and all metadata to all  |
|                     | change each                               | brokers; then Elect                        |
| Elect               | new partitions; leaderless ones that can  | their replicas; metadata to all            |
|                     | be led                                    |                                            |
| BrokersMoved, lost  | its partitions: out of the ISR, elections | their live replicas; metadata to all       |
| BrokersMoved,       | leaderless or void partitions of it       | all its partitions and all metadata to it; |
| started             |                                           | the changed ones to their replicas         |
| PartitionsChanged   | those that a dead or void member is in    | metadata to all                            |
| TopicRequested      | the topic, its id and config              | nobody yet; then Elect of this topic       |
| BrokerDeathReported | /brokers/ids/[id], if that life is the    | nobody: the watch will tell of it          |
|                     | one that is registered                    |                                            |
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

import msgspec
from msgspec.structs import replace

from spark_replication.core.cluster import BrokerDeathReported, ClusterState, TookOver, TopicRequested
from spark_replication.core.election import Elected, Waiting, elect
from spark_replication.core.partition_change import created, settled
from spark_replication.core.topics import assignment_for
from spark_replication.core.writes import BrokerRemoval, Group, PartitionWrite, TopicWrite
from spark_replication.errors import ReplicationError
from spark_replication.messages import Command, LeaderAndIsr, PartitionCommand, UpdateMetadata
from spark_replication.model import ABSENT, BrokerId, TopicConfig, TopicPartition, TopicState


class BrokersMoved(msgspec.Struct, frozen=True):
    """Registrations as they are now are in ClusterState; these ended, and these are new (a new life may be both)."""

    lost: frozenset[BrokerId]
    started: frozenset[BrokerId]


class PartitionsChanged(msgspec.Struct, frozen=True):
    """These are newer in ClusterState than they were, by somebody else's write."""

    partitions: tuple[TopicPartition, ...]


class Elect(msgspec.Struct, frozen=True):
    """Lead what has no leader and could have one: of this topic, or of all (None)."""

    topic: str | None = None


Cause = TookOver | Elect | BrokersMoved | PartitionsChanged | TopicRequested | BrokerDeathReported


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """groups: to be stored. refusal: the answer to a request that is not allowed. then: what follows at once."""

    groups: tuple[Group, ...] = ()
    refusal: ReplicationError | None = None
    then: Elect | None = None


def plan(cluster: ClusterState, cause: Cause) -> Plan:
    match cause:
        case TookOver():
            led = [p for p in cluster.all_partitions() if p in cluster.partitions and _is_led(cluster, p)]
            return Plan(groups=settle(cluster, led), then=Elect())
        case Elect(topic=topic):
            leaderless = (p for p in cluster.all_partitions(topic) if not _is_led(cluster, p))
            return Plan(groups=settle(cluster, leaderless))
        case BrokersMoved(lost=lost, started=started):
            return Plan(groups=settle(cluster, cluster.hosted_by(lost | started)))
        case PartitionsChanged(partitions=partitions):
            return Plan(groups=settle(cluster, partitions))
        case TopicRequested():
            return _plan_topic(cluster, cause)
        case BrokerDeathReported(broker=broker, epoch=epoch):
            registered = cluster.registered.get(broker)
            if registered is None or registered.epoch != epoch:
                return Plan()  # that life is known to have ended, or another has begun
            return Plan(groups=((BrokerRemoval(broker=broker, epoch=epoch),),))
        case _:
            assert_never(cause)


def settle(cluster: ClusterState, partitions: Iterable[TopicPartition]) -> tuple[Group, ...]:
    """The writes that bring these partitions to what the state of the brokers calls for."""
    writes = (_settling_write(cluster, partition) for partition in partitions)
    return tuple((write,) for write in writes if write is not None)


def _settling_write(cluster: ClusterState, partition: TopicPartition) -> PartitionWrite | None:
    replicas = cluster.replicas(partition)
    stored = cluster.partitions.get(partition)
    settings = cluster.settings_of(partition.topic)
    if stored is None:
        state = created(
            replicas,
            cluster.brokers,
            min_insync_replicas=settings.min_insync_replicas,
            controller_epoch=cluster.controller_epoch,
        )
        return None if state is None else PartitionWrite(partition=partition, state=state, relies_on=state.epochs)
    after = settled(replicas, stored.state, cluster.brokers, settings.unclean_recovery_strategy).state
    if after == stored.state:
        return None
    return PartitionWrite(
        partition=partition,
        state=replace(after, controller_epoch=cluster.controller_epoch),
        version=stored.version,
        relies_on={member: cluster.brokers.epochs[member] for member in sorted(after.isr)},
    )


def _is_led(cluster: ClusterState, partition: TopicPartition) -> bool:
    stored = cluster.partitions.get(partition)
    return stored is not None and stored.state.leader is not None


def _plan_topic(cluster: ClusterState, cause: TopicRequested) -> Plan:
    creation = cause.creation
    try:
        assignment = assignment_for(creation, cluster)
    except ReplicationError as refusal:
        return Plan(refusal=refusal)
    config = TopicConfig(settings=creation.config, schema=creation.schema)
    topic = TopicWrite(
        topic=creation.name,
        state=TopicState(topic_id=cause.topic_id, partitions=assignment),
        config=config,
        version=ABSENT,
    )
    return Plan(groups=((topic,),), then=Elect(creation.name))


def announce(cluster: ClusterState, cause: Cause, written: Iterable[TopicPartition]) -> list[tuple[BrokerId, Command]]:
    """Who is told what, now that `written` is stored and in ClusterState. LeaderAndIsr goes before metadata."""
    changed = tuple(cluster.command(partition) for partition in written)
    leader_and_isr = _for_replicas(cluster, changed)
    metadata: dict[BrokerId, tuple[PartitionCommand, ...]] = {}
    everything: frozenset[BrokerId] = frozenset()
    match cause:
        case TookOver():
            everything = cluster.brokers.live
        case BrokersMoved(started=started):
            everything = started & cluster.brokers.live
        case PartitionsChanged(partitions=partitions):
            known = {command.topic_partition for command in changed}
            changed += tuple(cluster.command(partition) for partition in partitions if partition not in known)
        case Elect() | TopicRequested() | BrokerDeathReported():
            pass
    moved = isinstance(cause, BrokersMoved)
    for broker in sorted(cluster.brokers.live):
        if broker in everything:
            leader_and_isr[broker] = _hosted(cluster, broker)
            metadata[broker] = tuple(cluster.command(p) for p in sorted(cluster.partitions))
        elif changed or moved:
            metadata[broker] = changed
    init = isinstance(cause, TookOver)
    commands: list[tuple[BrokerId, Command]] = [
        (broker, _leader_and_isr(cluster, partitions, init=init and broker in everything))
        for broker, partitions in sorted(leader_and_isr.items())
    ]
    commands.extend((broker, _update_metadata(cluster, partitions)) for broker, partitions in sorted(metadata.items()))
    return commands


def _for_replicas(
    cluster: ClusterState, changed: tuple[PartitionCommand, ...]
) -> dict[BrokerId, tuple[PartitionCommand, ...]]:
    receiving: dict[BrokerId, list[PartitionCommand]] = {}
    for command in changed:
        for replica in command.replicas:
            if replica in cluster.brokers.live:
                receiving.setdefault(replica, []).append(command)
    return {broker: tuple(commands) for broker, commands in receiving.items()}


def _hosted(cluster: ClusterState, broker: BrokerId) -> tuple[PartitionCommand, ...]:
    return tuple(cluster.command(p) for p in cluster.hosted_by([broker]) if p in cluster.partitions)


def _topics(cluster: ClusterState, partitions: tuple[PartitionCommand, ...]) -> dict[str, TopicConfig]:
    return {topic: cluster.topics[topic].config for topic in sorted({command.topic for command in partitions})}


def _leader_and_isr(cluster: ClusterState, partitions: tuple[PartitionCommand, ...], *, init: bool) -> LeaderAndIsr:
    return LeaderAndIsr(
        controller_epoch=cluster.controller_epoch,
        partitions=partitions,
        topics=_topics(cluster, partitions),
        brokers=cluster.registered,
        init=init,
    )


def _update_metadata(cluster: ClusterState, partitions: tuple[PartitionCommand, ...]) -> UpdateMetadata:
    return UpdateMetadata(
        controller_epoch=cluster.controller_epoch,
        partitions=partitions,
        topics=_topics(cluster, partitions),
        brokers=cluster.registered,
    )


def waiting(cluster: ClusterState, partition: TopicPartition) -> Waiting | None:
    """Why this partition has no leader; None if it has one, or is about to."""
    stored = cluster.partitions.get(partition)
    if stored is None or stored.state.leader is not None:
        return None
    strategy = cluster.settings_of(partition.topic).unclean_recovery_strategy
    outcome = elect(cluster.replicas(partition), stored.state, cluster.brokers.electable, strategy)
    return None if isinstance(outcome, Elected) else outcome

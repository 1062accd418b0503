"""What brokers and tables tell a controller, taken into what it knows: it may be too late, or news of nothing."""

from __future__ import annotations

import msgspec

from spark_replication.core.controller.cluster import ClusterState
from spark_replication.core.controller.events import (
    BrokerNoted,
    Event,
    LogsAhead,
    NodesUnreadable,
    ReplicasDamaged,
    ReplicasFailed,
    TableAnswered,
)
from spark_replication.core.controller.plan import Cause, PartitionsChanged
from spark_replication.model import BrokerId, Epoch


def took_in(cluster: ClusterState, event: Event | Cause) -> Cause | None:
    """Apply what was told. Returns the cause to decide on; None if nothing follows from it.

    | told of                                  | counts if                                    | then decided is      |
    | ---------------------------------------- | -------------------------------------------- | -------------------- |
    | nodes that cannot be read                | always                                       | nothing              |
    | damage, or notes for people, of a broker | that life of it is registered                | nothing              |
    | replicas that a disk refuses             | likewise, and the replicas are of this topic | about the partitions |
    | logs of a later leader epoch             | likewise                                     | about the logs       |
    | a table that was sealed, or not          | it is this topic's, and partitions wait      | about the partitions |
    """
    match event:
        case NodesUnreadable() | ReplicasDamaged() | BrokerNoted():
            _note(cluster, event)
            return None
        case ReplicasFailed() | LogsAhead():
            return _told_of_logs(cluster, event)
        case TableAnswered():
            return _told_of_table(cluster, event)
        case _:
            return event  # type: ignore[return-value]  # the loop has taken in the other events


def _lives(cluster: ClusterState, broker: BrokerId, epoch: Epoch) -> bool:
    registered = cluster.registered.get(broker)
    return registered is not None and registered.epoch == epoch


def _note(cluster: ClusterState, event: NodesUnreadable | ReplicasDamaged | BrokerNoted) -> None:
    """Apply what is told to people, and decide nothing."""
    if isinstance(event, NodesUnreadable):
        cluster.apply_reasons(event.folder, event.reasons)
    elif not _lives(cluster, event.broker, event.epoch):
        return
    elif isinstance(event, BrokerNoted):
        cluster.apply_noted(event.broker, event.notes)
    else:
        cluster.apply_damaged(event.broker, event.replicas)


def _told_of_logs(cluster: ClusterState, event: ReplicasFailed | LogsAhead) -> PartitionsChanged | LogsAhead | None:
    if not _lives(cluster, event.broker, event.epoch):
        return None
    if isinstance(event, LogsAhead):
        return event
    failed = tuple(each.partition for each in event.replicas if cluster.has(each))
    cluster.apply_failed(event.broker, failed)
    return PartitionsChanged(failed) if failed else None


def _told_of_table(cluster: ClusterState, event: TableAnswered) -> TableAnswered | None:
    known = cluster.topics.get(event.topic)
    if known is None or known.state.topic_id != event.topic_id:
        return None
    cluster.apply_unsealed(event.topic, event.failed, event.why)
    waited = cluster.apply_sealed(event.topic, event.told)
    told = {each.partition: event.told[each.partition] for each in waited}
    return msgspec.structs.replace(event, told=told) if told else None

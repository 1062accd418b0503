"""What brokers, controller and guardians tell each other. If they believed it of anybody else, each of these would do
harm until a person comes by."""

from __future__ import annotations

from typing import Any

from spark_replication.client.asking.descriptions import BrokerDescription
from spark_replication.messages.actions import (
    BROKER_DIED,
    DISK_FAILED,
    GET_REPLICA_LOG_INFO,
    LEADER_AND_ISR,
    RENEW_LEASE,
    SHUTDOWN,
    STOP_REPLICA,
    UPDATE_METADATA,
    Action,
)
from spark_replication.messages.commands import (
    GetReplicaLogInfo,
    LeaderAndIsr,
    LogInfoWanted,
    PartitionCommand,
    StopPartition,
    StopReplica,
    UpdateMetadata,
)
from spark_replication.messages.guarding import BrokerDied, DiskFailed, RenewLease, Shutdown
from spark_replication.model import EPOCH_MAX, PartitionState, ReplicaOf, TopicPartition


def orders(broker: int, topic: str, topic_id: str) -> list[tuple[Action[Any, Any], Any]]:
    """To this broker: of partition 0 of the topic, and of itself."""
    mine = PartitionState(
        leader=broker, leader_epoch=EPOCH_MAX, isr=frozenset((broker,)), min_isr=1, epochs={broker: EPOCH_MAX}
    )
    lead = PartitionCommand(
        topic=topic, partition=0, topic_id=topic_id, replicas=(broker,), state=mine, partition_epoch=EPOCH_MAX
    )
    stop = StopPartition(topic=topic, partition=0, topic_id=topic_id, leader_epoch=EPOCH_MAX, delete=True)
    wanted = LogInfoWanted(topic=topic, partition=0, topic_id=topic_id, leader_epoch=EPOCH_MAX)
    return [
        (RENEW_LEASE, RenewLease(controller_epoch=EPOCH_MAX, attempt=0, lease_ms=1)),
        (SHUTDOWN, Shutdown(controller_epoch=EPOCH_MAX, attempt=0)),
        (UPDATE_METADATA, UpdateMetadata(controller_epoch=EPOCH_MAX, brokers={}, topics={}, partitions=())),
        (LEADER_AND_ISR, LeaderAndIsr(controller_epoch=EPOCH_MAX, partitions=(lead,), topics={}, brokers={})),
        (STOP_REPLICA, StopReplica(controller_epoch=EPOCH_MAX, partitions=(stop,))),
        (GET_REPLICA_LOG_INFO, GetReplicaLogInfo(controller_epoch=EPOCH_MAX, partitions=(wanted,))),
    ]


def reports(broker: BrokerDescription, topic: str, topic_id: str) -> list[tuple[Action[Any, Any], Any]]:
    """To the controller: of this broker, and of its replicas of the topic."""
    lost = tuple(ReplicaOf(TopicPartition(topic, number), topic_id) for number in range(3))
    return [
        (BROKER_DIED, BrokerDied(broker_id=broker.id, incarnation="any")),
        (DISK_FAILED, DiskFailed(broker_id=broker.id, broker_epoch=broker.epoch, replicas=lost)),
        (DISK_FAILED, DiskFailed(broker_id=broker.id, broker_epoch=EPOCH_MAX, replicas=lost)),
    ]

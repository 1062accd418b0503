"""What a cluster is told to be, for who reads it: topics, partitions, brokers, each a value."""

from __future__ import annotations

import msgspec
import pyarrow as pa

from spark_replication.messages.commands import PartitionCommand
from spark_replication.messages.descriptions import TopicMetadata
from spark_replication.model import BrokerId, How, Scalar
from spark_replication.storage.batches import schema_of_text


class PartitionDescription(msgspec.Struct, frozen=True, kw_only=True):
    """As the broker that answered last heard of it. elected: how the present or last leader was chosen; None: as the
    partition was made."""

    partition: int
    leader: BrokerId | None
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    elr: tuple[BrokerId, ...]
    last_known_elr: tuple[BrokerId, ...]
    last_known_leader: BrokerId | None
    min_isr: int
    recovering: bool
    adding: tuple[BrokerId, ...] = ()
    removing: tuple[BrokerId, ...] = ()
    elected: How | None = None


class TopicDescription(msgspec.Struct, frozen=True, kw_only=True):
    """schema: of the newest version, IPC, base64; empty for a topic without one. schema_version: how often it has been
    widened."""

    name: str
    topic_id: str
    partitions: tuple[PartitionDescription, ...]
    config: dict[str, Scalar]
    schema: str = ""
    schema_version: int = 0

    @property
    def arrow_schema(self) -> pa.Schema:
        """`schema`, as create_topic takes it."""
        return schema_of_text(self.schema, f"the description of {self.name}")


class BrokerDescription(msgspec.Struct, frozen=True, kw_only=True):
    id: BrokerId
    host: str
    port: int
    replication_port: int
    rack: str | None
    epoch: int
    shutting_down: bool


class ClusterDescription(msgspec.Struct, frozen=True, kw_only=True):
    """controller: host:port, None while there is none. unreadable: what of ZooKeeper's it cannot read, and why."""

    cluster_id: str
    controller: str | None
    brokers: tuple[BrokerDescription, ...]
    unreadable: tuple[str, ...] = ()


def described(topic: TopicMetadata) -> TopicDescription:
    return TopicDescription(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=tuple(_partition(command) for command in sorted(topic.partitions, key=lambda each: each.partition)),
        config=dict(topic.config.settings),
        schema=topic.config.schema,
        schema_version=topic.config.schema_version,
    )


def _partition(command: PartitionCommand) -> PartitionDescription:
    state = command.state
    return PartitionDescription(
        partition=command.partition,
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        partition_epoch=command.partition_epoch,
        replicas=command.replicas,
        isr=tuple(broker for broker in command.replicas if broker in state.isr),
        elr=tuple(broker for broker in command.replicas if broker in state.elr),
        last_known_elr=tuple(sorted(state.last_known_elr)),
        last_known_leader=state.last_known_leader,
        min_isr=state.min_isr,
        recovering=state.recovering,
        adding=command.adding,
        removing=command.removing,
        elected=state.elected,
    )

"""Descriptions of topics, partitions and brokers, as values that a person can read."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pyarrow as pa

from spark_replication.client.asking.markup import Markup, joined, paragraph, table
from spark_replication.errors import ReplicationError
from spark_replication.messages.commands import PartitionCommand
from spark_replication.messages.descriptions import Metadata, TopicMetadata
from spark_replication.model import BrokerId, Epoch, How, Offset, PossibleLoss, Scalar
from spark_replication.storage.format.batches import schema_of_text

# How much is shown to people. The values hold everything.
SHOWN_PARTITIONS_MAX = 100
SHOWN_BROKERS_MAX = 10
SHOWN_COLUMNS_MAX = 20
_SHOWN = ("partition", "leader", "leader_epoch", "isr", "elr", "replicas", "min_isr", "elected")


class PartitionDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A partition, as whoever answered knows it."""

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
    #: How the present or last leader was chosen. None if it was chosen when the partition was made.
    elected: How | None = None
    #: What it may have lost. None if nothing, or if a person has acknowledged it.
    possible_loss: PossibleLoss | None = None
    #: Its log begins at or above this offset; all below is in the topic's table alone. None if no offset was set.
    start_at: Offset | None = None


class TopicDescription(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    topic_id: str
    partitions: tuple[PartitionDescription, ...]
    config: dict[str, Scalar]
    #: The newest version of the schema (IPC, base64); empty for a topic without a schema.
    schema: str = ""
    #: How often the schema has been widened.
    schema_version: int = 0

    @property
    def arrow_schema(self) -> pa.Schema:
        """`schema` in the form that create_topic takes."""
        return schema_of_text(self.schema, f"the description of {self.name}")

    def __repr__(self) -> str:
        told = [self._size, f"schema {self._columns}", *(f"{name}={value}" for name, value in self.config.items())]
        return f"TopicDescription({self.name}: {'; '.join(told)})"

    def _repr_html_(self) -> str:
        settings = ", ".join(f"{name}={value}" for name, value in self.config.items()) or "none of its own"
        heading = paragraph(Markup("<b>"), self.name, Markup("</b>"), f": {self._size}")
        about = paragraph(f"schema, version {self.schema_version}: {self._columns}; settings: {settings}")
        rows = [[getattr(each, name) for name in _SHOWN] for each in self.partitions[:SHOWN_PARTITIONS_MAX]]
        left = len(self.partitions) - len(rows)
        more = paragraph(f"and {left} more partitions") if left else Markup()
        return joined(heading, about, table(_SHOWN, rows), more)

    @property
    def _size(self) -> str:
        leaderless = sum(each.leader is None for each in self.partitions)
        led = f"{leaderless} of them without a leader" if leaderless else "each with a leader"
        return f"{len(self.partitions)} partitions, {led}"

    @property
    def _columns(self) -> str:
        try:
            found = [*self.arrow_schema] if self.schema else []
        except ReplicationError as error:
            return str(error)
        more = ["…"] if len(found) > SHOWN_COLUMNS_MAX else []
        return ", ".join([f"{each.name}:{each.type}" for each in found[:SHOWN_COLUMNS_MAX]] + more) or "none"


class BrokerDescription(msgspec.Struct, frozen=True, kw_only=True):
    id: BrokerId
    host: str
    port: int
    replication_port: int
    rack: str | None
    epoch: int
    shutting_down: bool


class ClusterDescription(msgspec.Struct, frozen=True, kw_only=True):
    cluster_id: str
    #: The controller's host:port; None while there is none.
    controller: str | None
    brokers: tuple[BrokerDescription, ...]
    #: What the controller cannot read in ZooKeeper, and why.
    unreadable: tuple[str, ...] = ()

    def __repr__(self) -> str:
        live = ", ".join(f"{each.id} at {each.host}:{each.port}" for each in self.brokers[:SHOWN_BROKERS_MAX])
        more = ", …" if len(self.brokers) > SHOWN_BROKERS_MAX else ""
        unreadable = f"; unreadable: {', '.join(self.unreadable)}" if self.unreadable else ""
        return (
            f"ClusterDescription({self.cluster_id}: controller {self.controller or 'none'}, "
            f"{len(self.brokers)} brokers: {live}{more}{unreadable})"
        )

    def _repr_html_(self) -> str:
        rows = [
            (each.id, f"{each.host}:{each.port}", each.rack, "shutting down" if each.shutting_down else "live")
            for each in self.brokers
        ]
        heading = paragraph(f"cluster {self.cluster_id}, controller {self.controller or 'none'}")
        return joined(heading, table(("broker", "address", "rack", "state"), rows), *map(paragraph, self.unreadable))


def described_cluster(metadata: Metadata) -> ClusterDescription:
    return ClusterDescription(
        cluster_id=metadata.cluster_id,
        controller=metadata.controller,
        unreadable=metadata.unreadable,
        brokers=tuple(
            BrokerDescription(
                id=broker,
                host=registration.host,
                port=registration.port,
                replication_port=registration.replication_port,
                rack=registration.rack,
                epoch=registration.epoch,
                shutting_down=registration.shutting_down,
            )
            for broker, registration in sorted(metadata.brokers.items())
        ),
    )


def described(topic: TopicMetadata) -> TopicDescription:
    return TopicDescription(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=tuple(_partition(command) for command in sorted(topic.partitions, key=lambda each: each.partition)),
        config=dict(topic.config.settings),
        schema=topic.config.schema,
        schema_version=topic.config.schema_version,
    )


def known_losses(topics: Iterable[TopicDescription]) -> dict[str, Epoch]:
    """The partitions with possible loss, and the last leader epoch of each, by which it is acknowledged."""
    return {
        f"{topic.name}-{each.partition}": each.possible_loss.last_epoch
        for topic in topics
        for each in topic.partitions
        if each.possible_loss is not None
    }


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
        possible_loss=None if state.loss is msgspec.UNSET else state.loss,
        start_at=state.lowest_offset or None,
    )

"""What administrators and programs ask of a cluster. Requests that change something go to the controller.

Each call finds the controller or a broker by itself, and tries again until its deadline whatever may pass by itself.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from types import TracebackType

import msgspec
import pyarrow as pa

from spark_replication.client.deadline import Deadline, persistently
from spark_replication.client.routes import Routes
from spark_replication.errors import (
    LeaderNotAvailable,
    NotController,
    ReplicationError,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from spark_replication.messages import CreateTopic, Done, Metadata, PartitionCommand, TopicMetadata
from spark_replication.model import BrokerId, Scalar
from spark_replication.storage.batches import stored_schema

DEADLINE_MS = 30_000
TRY_MS = 10_000  # how long one controller has to answer, before it is looked for again


class PartitionDescription(msgspec.Struct, frozen=True, kw_only=True):
    """As the broker that answered last heard of it."""

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


class TopicDescription(msgspec.Struct, frozen=True, kw_only=True):
    """schema: IPC, base64; empty for a topic without one."""

    name: str
    topic_id: str
    partitions: tuple[PartitionDescription, ...]
    config: dict[str, Scalar]
    schema: str = ""


class BrokerDescription(msgspec.Struct, frozen=True, kw_only=True):
    id: BrokerId
    host: str
    port: int
    replication_port: int
    rack: str | None
    epoch: int
    shutting_down: bool


class ClusterDescription(msgspec.Struct, frozen=True, kw_only=True):
    """controller: host:port, None while there is none."""

    cluster_id: str
    controller: str | None
    brokers: tuple[BrokerDescription, ...]


class Admin:
    """Thread-safe. deadline_ms: of each call, with all its tries."""

    def __init__(self, bootstrap: str, *, deadline_ms: int = DEADLINE_MS) -> None:
        self._routes = Routes(bootstrap)
        self._deadline_ms = deadline_ms

    def create_topic(
        self,
        name: str,
        schema: pa.Schema,
        partitions: int | None = 3,
        replication_factor: int | None = 3,
        config: Mapping[str, Scalar] = {},
    ) -> TopicDescription:
        """Returns once every partition has a leader that brokers know of."""
        request = CreateTopic(
            name=name,
            schema=_schema_text(stored_schema(schema)),
            partitions=partitions,
            replication_factor=replication_factor,
            config=dict(config),
        )
        deadline = Deadline(self._deadline_ms)
        maybe_created = False

        def create() -> None:
            nonlocal maybe_created
            try:
                self._ask_controller(request, deadline)
            except TopicAlreadyExists:
                if not maybe_created or not self._is_as_asked(request, deadline):
                    raise
            except ReplicationError as error:
                maybe_created = maybe_created or error.maybe_written
                raise

        persistently(create, deadline)
        return persistently(lambda: self._created(request, deadline), deadline)

    def describe_topics(self, names: Sequence[str] | None = None) -> list[TopicDescription]:
        """In the order of `names`; None: all, sorted. UnknownTopicOrPartition names those that no broker knows."""
        deadline = Deadline(self._deadline_ms)
        if names is None:
            metadata = persistently(lambda: self._metadata(None, deadline), deadline)
            return [_described(topic) for topic in sorted(metadata.topics, key=lambda each: each.name)]
        for name in names:
            self._routes.await_topic(name, deadline)
        found = {topic.name: topic for topic in persistently(lambda: self._known(names, deadline), deadline)}
        return [_described(found[name]) for name in names]

    def describe_cluster(self) -> ClusterDescription:
        deadline = Deadline(self._deadline_ms)
        metadata = persistently(lambda: self._metadata((), deadline), deadline)
        return ClusterDescription(
            cluster_id=metadata.cluster_id,
            controller=metadata.controller,
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

    def close(self) -> None:
        self._routes.close()

    def __enter__(self) -> Admin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _ask_controller(self, request: CreateTopic, deadline: Deadline) -> None:
        """Its address is asked for each time: after any failure it may be another."""
        address = self._metadata((), deadline).controller
        if address is None:
            raise NotController("no broker knows of a controller: start one, or wait until a standby takes over")
        self._routes.call(address, "create_topic", request, Done, deadline.within_ms(TRY_MS))

    def _created(self, request: CreateTopic, deadline: Deadline) -> TopicDescription:
        (topic,) = self._known((request.name,), deadline)
        led = [command.partition for command in topic.partitions if command.state.leader is not None]
        if not led or len(led) != len(topic.partitions) or request.partitions not in (None, len(led)):
            raise LeaderNotAvailable(
                f"{request.name} is created, and so far its partitions {led} have leaders: look again",
                maybe_written=True,
            )
        return _described(topic)

    def _is_as_asked(self, request: CreateTopic, deadline: Deadline) -> bool:
        """Whether the topic that exists is the one that an unanswered try of ours made."""
        (found,) = persistently(lambda: self._known((request.name,), deadline), deadline)
        return found.config.schema == request.schema and request.partitions in (None, len(found.partitions))

    def _known(self, names: Sequence[str], deadline: Deadline) -> tuple[TopicMetadata, ...]:
        """Of all these topics, from one broker."""
        found = self._metadata(names, deadline).topics
        unknown = set(names) - {topic.name for topic in found}
        if unknown:
            raise UnknownTopicOrPartition(
                f"the broker that was asked does not know {', '.join(sorted(unknown))}: retry"
            )
        return found

    def _metadata(self, names: Sequence[str] | None, deadline: Deadline) -> Metadata:
        return self._routes.metadata(names, deadline)


def _schema_text(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize().to_pybytes()).decode("ascii")


def _described(topic: TopicMetadata) -> TopicDescription:
    return TopicDescription(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=tuple(_partition(command) for command in sorted(topic.partitions, key=lambda each: each.partition)),
        config=dict(topic.config.settings),
        schema=topic.config.schema,
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
    )

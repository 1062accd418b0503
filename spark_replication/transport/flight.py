"""What a broker serves over Arrow Flight: producers, consumers, and the requests of controller, guardians and admins.

produce: DoPut → put_stream → ReplicaLoop.produce. consume: DoGet → read_stream → ReplicaLoop.read. Anything else is an
action of `broker_actions`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

import pyarrow as pa
from pyarrow import flight

from spark_replication.config import Settings
from spark_replication.engine.broker_loop import BrokerLoop
from spark_replication.engine.replica_loop import ReplicaLoop
from spark_replication.errors import (
    InvalidRequest,
    LeaderNotAvailable,
    NotReady,
    Overloaded,
    UnknownTopicOrPartition,
)
from spark_replication.messages.commands import (
    CommandAnswer,
    GetReplicaLogInfo,
    LeaderAndIsr,
    PartitionCommand,
    StopReplica,
    UpdateMetadata,
)
from spark_replication.messages.descriptions import (
    DescribeReplicas,
    DescribeTopics,
    Metadata,
    ReplicaSizes,
    TopicMetadata,
)
from spark_replication.messages.envelope import Done, from_json, to_json
from spark_replication.messages.guarding import LeaseAnswer, RenewLease, Shutdown
from spark_replication.messages.records import InitProducer, ProducerId, ReadTicket
from spark_replication.model import TopicPartition
from spark_replication.process.load import Load
from spark_replication.storage.batches import TopicSchema, topic_schema
from spark_replication.transport.actions import Action, ActionServer, call, error_of_flight, told_to_client
from spark_replication.transport.put_stream import AnswersInOrder, AnswersTogether, MetadataWriter, PutStream
from spark_replication.transport.read_stream import ReadStream
from spark_replication.transport.security import Security

GATHER_BUSY_S = 0.002  # between two messages of answers of a broker that is busy

__all__ = [
    "Action",
    "ActionServer",
    "BrokerFlightServer",
    "BrokerServices",
    "broker_actions",
    "call",
    "error_of_flight",
]


class BrokerServices(Protocol):
    """What a broker process answers besides its engine."""

    def controller_address(self) -> str | None: ...
    def new_producer(self) -> ProducerId: ...
    def renew_lease(self, request: RenewLease) -> LeaseAnswer: ...
    def begin_stop(self) -> None: ...
    def initialized(self, told: Iterable[PartitionCommand]) -> None:
        """An INIT that told of these was carried out."""


def broker_actions(broker: BrokerLoop, services: BrokerServices, now_ms: Callable[[], int]) -> dict[str, Action]:
    def leader_and_isr(request: LeaderAndIsr) -> CommandAnswer:
        answer = broker.leader_and_isr(request, now_ms())
        if request.init:
            services.initialized(request.partitions)
        return answer

    def metadata(request: DescribeTopics) -> Metadata:
        _require_ready(broker)
        return broker.metadata(request.topics, services.controller_address())

    def replica_sizes(request: DescribeReplicas) -> ReplicaSizes:
        _require_ready(broker)
        return broker.replica_sizes(request)

    def shutdown(_request: Shutdown) -> Done:
        services.begin_stop()
        return Done()

    return {
        "metadata": Action(DescribeTopics, metadata),
        "init_producer": Action(InitProducer, lambda _request: services.new_producer()),
        "leader_and_isr": Action(LeaderAndIsr, leader_and_isr),
        "update_metadata": Action(UpdateMetadata, broker.update_metadata),
        "stop_replica": Action(StopReplica, broker.stop_replica),
        "get_replica_log_info": Action(GetReplicaLogInfo, broker.replica_log_info),
        "describe_replicas": Action(DescribeReplicas, replica_sizes),
        "renew_lease": Action(RenewLease, services.renew_lease),
        "shutdown": Action(Shutdown, shutdown),
    }


class BrokerFlightServer(ActionServer):
    def __init__(
        self,
        host: str,
        broker: BrokerLoop,
        services: BrokerServices,
        *,
        settings: Settings,
        security: Security,
        now_ms: Callable[[], int],
        port: int = 0,
    ) -> None:
        self._broker = broker
        self._settings = settings
        self._security = security
        self._now_ms = now_ms
        self._load = Load()
        self._streams = threading.Semaphore(settings.flight_streams_max)
        super().__init__(host, broker_actions(broker, services, now_ms), security=security, port=port)

    def do_put(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: MetadataWriter,
    ) -> None:
        with told_to_client(), self._stream():
            topic, number = _path_of(descriptor)

            def replica_of(named: int | None) -> ReplicaLoop:
                return self._replica(_meant(topic, number, named))

            self._schema(topic)  # of a topic that is not known here, the stream is refused as a whole
            answers = AnswersTogether if number is None else AnswersInOrder
            stream = PutStream(
                replica_of, lambda: self._schema(topic), answers, self._settings, self._now_ms, self._gather
            )
            stream.run(reader, writer)

    def _gather(self) -> None:
        if self._load.is_busy:
            time.sleep(GATHER_BUSY_S)

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        with told_to_client():
            request = from_json(ticket.ticket, ReadTicket)
            partition = TopicPartition(request.topic, request.partition)
            stream = ReadStream(lambda: self._replica(partition), self._schema(request.topic).newest, request)
            return flight.GeneratorStream(stream.schema, self._counted(stream))

    def get_flight_info(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor
    ) -> flight.FlightInfo:
        with told_to_client():
            topic, number = _path_of(descriptor)
            (found,) = self._described((topic,)) or (None,)
            if found is None:
                raise UnknownTopicOrPartition(f"this broker knows no topic {topic}: check its name, or retry")
            partitions = [known for known in found.partitions if number is None or known.partition == number]
            if not partitions:
                raise UnknownTopicOrPartition(f"{topic} has no partition {number}: reload routes and retry")
            for known in partitions:
                if self._leader_address(known) is None:
                    raise LeaderNotAvailable(f"{known.topic_partition} has no leader at the moment: retry")
            return self._info(topic, partitions, descriptor)

    def list_flights(self, context: flight.ServerCallContext, criteria: bytes) -> Iterator[flight.FlightInfo]:
        with told_to_client():
            # A partition without a leader has no endpoint; the list is whole all the same.
            for found in self._described(None):
                led = [known for known in found.partitions if self._leader_address(known) is not None]
                yield self._info(found.name, led, flight.FlightDescriptor.for_path(found.name))

    def _info(
        self, topic: str, partitions: list[PartitionCommand], descriptor: flight.FlightDescriptor
    ) -> flight.FlightInfo:
        endpoints = [
            flight.FlightEndpoint(
                to_json(ReadTicket(topic=topic, partition=known.partition, from_offset="earliest")),
                [self._security.location(address)],
            )
            for known in partitions
            if (address := self._leader_address(known)) is not None
        ]
        return flight.FlightInfo(self._schema(topic).newest, descriptor, endpoints, -1, -1)

    def _described(self, topics: tuple[str, ...] | None) -> tuple[TopicMetadata, ...]:
        _require_ready(self._broker)
        return self._broker.metadata(topics, None).topics

    def _leader_address(self, partition: PartitionCommand) -> str | None:
        leader = partition.state.leader
        registration = self._broker.brokers.get(leader) if leader is not None else None
        return registration.address if registration is not None else None

    def _replica(self, partition: TopicPartition) -> ReplicaLoop:
        _require_ready(self._broker)
        return self._broker.replica(partition)

    def _schema(self, topic: str) -> TopicSchema:
        _require_ready(self._broker)
        return topic_schema(self._broker.config(topic))

    @contextmanager
    def _stream(self) -> Iterator[None]:
        if not self._streams.acquire(blocking=False):
            raise Overloaded(
                f"{self._settings.flight_streams_max} streams (flight.streams.max) are open on this broker: retry later"
            )
        try:
            yield
        finally:
            self._streams.release()

    def _counted(self, stream: ReadStream) -> Iterator[tuple[pa.RecordBatch, bytes]]:
        with told_to_client(), self._stream():
            yield from stream.batches()


def _require_ready(broker: BrokerLoop) -> None:
    if broker.me is None:
        raise NotReady("this broker is starting or stopping: ask another, or retry")


def _path_of(descriptor: flight.FlightDescriptor) -> tuple[str, int | None]:
    """[topic] or [topic, partition]."""
    path = [part.decode(errors="replace") for part in descriptor.path or []]
    if len(path) == 1:
        return path[0], None
    if len(path) == 2 and path[1].isdecimal():
        return path[0], int(path[1])
    raise InvalidRequest(f'the descriptor\'s path is {path}, not ["topic", "0"]')


def _meant(topic: str, in_path: int | None, in_metadata: int | None) -> TopicPartition:
    """The partition of a batch, which either the stream's path names or the batch itself."""
    found = in_metadata if in_path is None else in_path
    if found is None or None not in (in_path, in_metadata):
        raise InvalidRequest(
            f'which partition of {topic}? Either the path names it, as ["{topic}", "0"], or each batch does, as '
            '{"partition": 0} in its metadata'
        )
    return TopicPartition(topic, found)

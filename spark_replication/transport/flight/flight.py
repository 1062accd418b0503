"""What a broker serves over Arrow Flight: producers, consumers, and the requests of controller, guardians and admins.

produce: DoPut → put_stream → ReplicaLoop.produce. consume: DoGet → read_stream → ReplicaLoop.read. Anything else is an
action of `broker_actions`.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing
from typing import Protocol

import msgspec
from pyarrow import flight

from spark_replication.config import Settings
from spark_replication.engine.broker.broker_loop import BrokerLoop
from spark_replication.engine.broker.found_ranges import found_range
from spark_replication.engine.broker.table_ends import take_table_ends
from spark_replication.engine.replica.partition import FindPartition, Partition
from spark_replication.errors import (
    InvalidRequest,
    LeaderNotAvailable,
    NotReady,
    ReplicationError,
    UnknownTopicOrPartition,
)
from spark_replication.messages import actions
from spark_replication.messages.acls import Right
from spark_replication.messages.actions import Sees
from spark_replication.messages.commands import (
    BrokerNotes,
    CommandAnswer,
    LeaderAndIsr,
    PartitionCommand,
    UpdateMetadata,
)
from spark_replication.messages.descriptions import (
    DescribeReplicas,
    DescribeTopics,
    GetMetadata,
    Metadata,
    ReplicaSizes,
    TopicMetadata,
    TopicPage,
)
from spark_replication.messages.envelope import NONE, Done, from_json, to_json
from spark_replication.messages.groups import DeleteGroup, DescribedGroups, DescribeGroups, ResetGroup
from spark_replication.messages.guarding import LeaseAnswer, RenewLease, Shutdown
from spark_replication.messages.mending import BatchCopy, CopyBatch
from spark_replication.messages.observing import DescribeSettings, GetMetrics, MetricsText, ToldSettings
from spark_replication.messages.ranges import DescribeRanges, FoundRange, FoundRanges, ReplicaFolder, WantedRange
from spark_replication.messages.records import PRODUCER_ID_BITS, InitProducer, ProducerId, ReadTicket
from spark_replication.messages.tables import TableEndsTaken, TellTableEnds
from spark_replication.model import TopicPartition, number_of, shortened
from spark_replication.process.threads import Load
from spark_replication.storage.format.batches import TopicSchema, topic_schema
from spark_replication.storage.format.soundness import require_shown
from spark_replication.transport.flight.actions import ActionServer, Handled, handled, handled_seen, told_to_client
from spark_replication.transport.flight.batch_copies import copy_of
from spark_replication.transport.flight.limits import Room, Slots
from spark_replication.transport.flight.put_stream import FlightPutStream, MetadataWriter, QueueInOrder, QueueTogether
from spark_replication.transport.flight.read_stream import BatchWithMetadata, ReadStream
from spark_replication.transport.meter import GET, INFO, PUT, Traffic
from spark_replication.transport.proofs.caller import Caller
from spark_replication.transport.security.quotas import Share
from spark_replication.transport.security.rights import Rights

GATHER_BUSY_S = 0.002  # between two messages with answers, if this broker is busy

log = logging.getLogger(__name__)


class BrokerServices(Protocol):
    """What a broker process answers besides its engine."""

    def controller_address(self) -> str | None: ...
    def folder(self, partition: TopicPartition, topic_id: str) -> ReplicaFolder | None:
        """The folder with that replica's files."""

    def renew_lease(self, request: RenewLease) -> LeaseAnswer: ...
    def shut_down(self, request: Shutdown) -> None: ...
    def metrics(self, request: GetMetrics) -> MetricsText: ...
    def settings(self, request: DescribeSettings) -> ToldSettings: ...
    def initialized(self, told: Iterable[PartitionCommand]) -> None:
        """An INIT command that named these was carried out."""

    def notes(self) -> BrokerNotes: ...
    def describe_groups(self, request: DescribeGroups) -> DescribedGroups: ...
    def change_group(self, request: ResetGroup | DeleteGroup) -> Done: ...


def broker_actions(broker: BrokerLoop, services: BrokerServices, now_ms: Callable[[], int]) -> list[Handled]:
    def metadata(request: GetMetadata) -> Metadata:
        _require_ready(broker)
        return broker.metadata(request.topics, services.controller_address(), request.only)

    def topics(request: DescribeTopics, sees: Sees) -> TopicPage:
        _require_ready(broker)
        return broker.topics(request, sees)

    def replica_sizes(request: DescribeReplicas) -> ReplicaSizes:
        _require_ready(broker)
        return broker.replica_sizes(request, now_ms())

    def ranges(request: DescribeRanges) -> FoundRanges:
        _require_ready(broker)
        return FoundRanges(ranges=tuple(map(a_range, request.ranges)))

    def a_range(wanted: WantedRange) -> FoundRange:
        found = found_range(broker.partition, wanted)
        if not wanted.files or found.error != NONE:
            return found
        return msgspec.structs.replace(found, folder=services.folder(found.topic_partition, found.topic_id))

    def table_ends(request: TellTableEnds) -> TableEndsTaken:
        _require_ready(broker)
        return take_table_ends(broker.partition, request)

    def settings(request: DescribeSettings) -> ToldSettings:
        _require_ready(broker)
        return services.settings(request)

    def copy(request: CopyBatch) -> BatchCopy:
        _require_ready(broker)
        return copy_of(broker.partition, request)

    def shutdown(request: Shutdown) -> Done:
        services.shut_down(request)
        return Done()

    def init_producer(_request: InitProducer) -> ProducerId:
        return ProducerId(producer=secrets.randbits(PRODUCER_ID_BITS))

    return [
        handled(actions.METADATA, metadata),
        handled_seen(actions.DESCRIBE_TOPICS, topics),
        handled(actions.METRICS, services.metrics),
        handled(actions.DESCRIBE_SETTINGS, settings),
        handled(actions.INIT_PRODUCER, init_producer),
        *_commands(broker, services),
        handled(actions.COPY_BATCH, copy),
        handled(actions.DESCRIBE_REPLICAS, replica_sizes),
        handled(actions.DESCRIBE_RANGES, ranges),
        handled(actions.TABLE_ENDS, table_ends),
        handled(actions.DESCRIBE_GROUPS, services.describe_groups),
        handled(actions.RESET_GROUP, services.change_group),
        handled(actions.DELETE_GROUP, services.change_group),
        handled(actions.RENEW_LEASE, services.renew_lease),
        handled(actions.SHUTDOWN, shutdown),
    ]


def _commands(broker: BrokerLoop, services: BrokerServices) -> list[Handled]:
    """The controller's."""

    def leader_and_isr(request: LeaderAndIsr) -> CommandAnswer:
        answer = broker.leader_and_isr(request)
        if request.init:
            services.initialized(request.partitions)
        return answer

    def update_metadata(request: UpdateMetadata) -> CommandAnswer:
        answer = broker.update_metadata(request)
        return msgspec.structs.replace(answer, notes=services.notes()) if request.complete else answer

    return [
        handled(actions.LEADER_AND_ISR, leader_and_isr),
        handled(actions.UPDATE_METADATA, update_metadata),
        handled(actions.STOP_REPLICA, broker.stop_replica),
        handled(actions.GET_REPLICA_LOG_INFO, broker.replica_log_info),
    ]


class BrokerFlightServer(ActionServer):
    def __init__(
        self,
        host: str,
        broker: BrokerLoop,
        services: BrokerServices,
        *,
        settings: Settings,
        rights: Rights,
        now_ms: Callable[[], int],
        port: int = 0,
    ) -> None:
        self._broker = broker
        self._settings = settings
        self._security = rights.security
        self._now_ms = now_ms
        self._load = Load()
        # Reads may wait for records for a long time, so they take nothing that a write needs.
        self._reads = Slots(settings.flight_reads_max, "flight.reads.max", "reads")
        self._writes = Slots(settings.flight_writes_max, "flight.writes.max", "writes")
        wait_s = settings.request_timeout_ms / 2000  # without room a request is refused before it is out of time
        self._read_room = Room(settings.flight_read_bytes_max, "flight.read.bytes.max", wait_s=wait_s)
        self._write_room = Room(settings.flight_write_bytes_max, "flight.write.bytes.max", wait_s=wait_s)
        self.produced, self.consumed = Traffic(), Traffic()
        served = broker_actions(broker, services, now_ms)
        super().__init__(host, served, rights=rights, port=port, kinds=(PUT, GET))

    def do_put(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: MetadataWriter,
    ) -> None:
        with told_to_client(), self.meter.refusing(PUT), self._writes.one():
            topic, number = _path_of(descriptor)
            caller = self._caller(context)
            share = self._rights.quotas.of(caller)
            share.request()
            found = self._found_for(caller, "write")

            def find(named: int | None) -> Partition:
                return found(_meant(topic, number, named))

            def pace(count: int) -> None:
                share.take("producer_byte_rate", count)
                share.take("request_rate", 1)
                share.pause("producer_byte_rate", "request_rate", until=self._stopped, unwanted=context.is_cancelled)

            self._rights.check_of(caller, "write")(topic)
            self._schema(topic)  # raises for an unknown topic, which refuses the stream as a whole
            require_shown(reader.schema)
            answers = QueueTogether if number is None else QueueInOrder
            stream = FlightPutStream(
                find,
                lambda: self._schema(topic),
                answers,
                self._settings,
                self._now_ms,
                self._gather,
                room=self._write_room,
                meter=self.meter,
                traffic=self.produced,
                pace=pace,
            )
            with share.stream(), self._streaming(context, caller):
                stream.run(reader, writer)

    def _gather(self) -> None:
        if self._load.is_busy:
            time.sleep(GATHER_BUSY_S)

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        with told_to_client(), self.meter.timing(GET):
            with self.meter.refusing(GET):
                request = from_json(ticket.ticket, ReadTicket)
                caller = self._caller(context)
                share = self._rights.quotas.of(caller)
                share.request()
                self._rights.check_of(caller, "read")(request.topic)
                find = self._found_for(caller, "read")
                stream = self._stream(find, request, share, context.is_cancelled)
            served = self._served(stream, share, self._streaming(context, caller))
            next(served)
            return flight.GeneratorStream(stream.schema, served)

    def _stream(
        self, find: FindPartition, request: ReadTicket, share: Share, is_cancelled: Callable[[], bool]
    ) -> ReadStream:
        def pace(count: int) -> None:
            share.take("consumer_byte_rate", count)
            share.pause("consumer_byte_rate", until=self._stopped, unwanted=is_cancelled)

        partition = TopicPartition(request.topic, request.partition)
        schema = self._schema(request.topic).newest
        return ReadStream(
            lambda: find(partition),
            schema,
            request,
            self._read_room,
            is_cancelled,
            traffic=self.consumed,
            pace=pace,
        )

    def get_flight_info(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor
    ) -> flight.FlightInfo:
        with told_to_client(), self.meter.refusing(INFO):
            topic, number = _path_of(descriptor)
            caller = self._caller(context)
            self._rights.quotas.of(caller).request()
            self._rights.check_of(caller, "describe")(topic)
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
        with told_to_client(), self.meter.refusing(INFO):
            # A partition without a leader has no endpoint, and its topic is listed all the same. A topic whose schema
            # cannot be read is left out.
            caller = self._caller(context)
            self._rights.quotas.of(caller).request()
            sees = self._rights.seen_by(caller)
            for found in self._described(None):
                if not sees(found.name):
                    continue
                led = [known for known in found.partitions if self._leader_address(known) is not None]
                try:
                    shown = self._info(found.name, led, flight.FlightDescriptor.for_path(found.name))
                except ReplicationError as error:
                    log.warning("topic %s is left out of ListFlights: %s", found.name, error)
                else:
                    yield shown

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

    def _found_for(self, caller: Caller, right: Right) -> FindPartition:
        """For the whole of a stream, however long that is open."""
        guarded = self._rights.guarded(self._partition, caller, right)

        def found(partition: TopicPartition) -> Partition:
            self._rights.require_known(caller)
            return guarded(partition)

        return found

    def _partition(self, name: TopicPartition) -> Partition:
        _require_ready(self._broker)
        return self._broker.partition(name)

    def _schema(self, topic: str) -> TopicSchema:
        _require_ready(self._broker)
        return topic_schema(self._broker.config(topic))

    def _served(
        self, stream: ReadStream, share: Share, streaming: AbstractContextManager[None]
    ) -> Iterator[BatchWithMetadata | None]:
        """Yield None once the stream has its slot and its first look. From then on its end, whatever the cause, gives
        everything back, even if nobody asks for a batch."""
        with told_to_client(), self.meter.refusing(GET), self._reads.one(), share.stream(), streaming, closing(stream):
            stream.begin()
            yield None
            yield from stream.batches()


def _require_ready(broker: BrokerLoop) -> None:
    if broker.me is None:
        raise NotReady("this broker is starting or stopping: ask another, or retry")


def _path_of(descriptor: flight.FlightDescriptor) -> tuple[str, int | None]:
    """The descriptor's path: [topic] or [topic, partition]."""
    path = [part.decode(errors="replace") for part in descriptor.path or []]
    if len(path) == 1:
        return path[0], None
    if len(path) == 2 and (number := number_of(path[1])) is not None:
        return path[0], number
    raise InvalidRequest(f'the descriptor\'s path is {shortened("/".join(path))}, not ["topic", "0"]')


def _meant(topic: str, in_path: int | None, in_metadata: int | None) -> TopicPartition:
    """The partition of a batch. Either the stream's path names it, or the batch itself."""
    found = in_metadata if in_path is None else in_path
    if found is None or None not in (in_path, in_metadata):
        raise InvalidRequest(
            f'which partition of {topic}? Either the path names it, as ["{topic}", "0"], or each batch does, as '
            '{"partition": 0} in its metadata'
        )
    return TopicPartition(topic, found)

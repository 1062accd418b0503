"""Brokers and a controller in this process that speak the clients' protocol and keep logs in memory.

A log is shared by all brokers, as if each batch were replicated at once; who leads it is the test's to say. Batches of
idempotent producers are recognised by the same code as in a real broker.
"""

from __future__ import annotations

import base64
import os
import socket
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

import msgspec
import pyarrow as pa
from crc32c import crc32c
from msgspec.structs import replace
from pyarrow import flight

from spark_replication.core.groups.deciding import require_empty
from spark_replication.core.replica.epochs import NO_EPOCH, EpochHistory
from spark_replication.core.replica.producers import OffsetSpan, Producers
from spark_replication.core.replica.read_start import ReadPlace, cut_below, start_of
from spark_replication.core.replica.replica import LogView
from spark_replication.core.routing import NO_CHOICE, partition_of_key
from spark_replication.core.topic_pages import page_of
from spark_replication.engine.replica.reads import is_over
from spark_replication.errors import (
    AuthenticationFailed,
    BrokerNotAvailable,
    InvalidRequest,
    LogTruncated,
    NotController,
    NotCoordinator,
    NotLeader,
    OffsetNotAvailable,
    OffsetOutOfRange,
    ReplicationError,
    TopicAlreadyExists,
    TopicAuthorizationFailed,
    UnknownTopicOrPartition,
)
from spark_replication.messages.actions import (
    ADMIN_REQUESTS,
    DELETE_GROUP,
    DESCRIBE_ACLS,
    DESCRIBE_EVENTS,
    DESCRIBE_GROUPS,
    DESCRIBE_PAGE,
    DESCRIBE_QUOTAS,
    DESCRIBE_RANGES,
    DESCRIBE_REPLICAS,
    DESCRIBE_SETTINGS,
    DESCRIBE_TOKENS,
    DESCRIBE_TOPICS,
    INTRODUCE,
    METADATA,
    METRICS,
    OPEN_GROUPS,
    PROVE,
    RESET_GROUP,
)
from spark_replication.messages.commands import BrokerNotes, PartitionCommand
from spark_replication.messages.descriptions import (
    DescribeReplicas,
    DescribeTopics,
    GetMetadata,
    Metadata,
    ReplicaSizes,
    TopicMetadata,
    TopicPage,
)
from spark_replication.messages.envelope import Done, from_json, to_json
from spark_replication.messages.groups import (
    GROUPS_PARTITIONS,
    GROUPS_TOPIC,
    DeleteGroup,
    DescribedGroup,
    DescribedGroups,
    DescribedPosition,
    DescribeGroups,
    Holding,
    ResetGroup,
)
from spark_replication.messages.introducing import Introduce, Prove
from spark_replication.messages.lane import (
    PutAnswer,
    PutAnswersFrame,
    PutFrame,
    ReadAnswerFrame,
    ReadFrame,
    StreamFrame,
    WelcomeFrame,
)
from spark_replication.messages.mirroring import DescribeEvents, ToldEvent, ToldEvents
from spark_replication.messages.observing import (
    DescribePage,
    DescribeSettings,
    DescribeTokens,
    GetMetrics,
    KnownTokens,
    MetricsText,
    PageDescription,
    ToldSettings,
)
from spark_replication.messages.ranges import DescribeRanges, FoundRange, FoundRanges, Piece, WantedRange
from spark_replication.messages.records import BatchMetadata, ReadTicket
from spark_replication.messages.replication import ErrorFrame
from spark_replication.messages.requests import (
    CreateTopic,
    Request,
    RequestAnswer,
    ToldAcls,
    ToldQuotas,
)
from spark_replication.model import Offset, PartitionState, PossibleLoss, Registration, TopicConfig, TopicPartition
from spark_replication.process.threads import now_ms
from spark_replication.storage.format.batches import schema_to_bytes, serialized, topic_schema
from spark_replication.storage.format.index import NO_PRODUCER, IndexEntry, encode_entry
from spark_replication.transport.proofs.answer_proofs import NONCE_HEADER, Question, nonce_of
from spark_replication.transport.proofs.call_check import TICKET_SCHEME
from spark_replication.transport.proofs.handshake import admitted
from spark_replication.transport.proofs.tickets import Tickets
from spark_replication.transport.proofs.token import AUTHORIZATION, Token
from spark_replication.transport.proofs.tokens import Tokens
from spark_replication.transport.sockets.frames import FrameReceiver, Part, ReceivedFrame, encoded, hang_up, send
from tests.unit.client.tcp_proxy import TcpProxies

REQUESTS = {action.name: kind for kind, action in ADMIN_REQUESTS.items()}

SCHEMA = pa.schema([("number", pa.int64())])
PASSES_MS = 3_000  # a deadline that is to pass, but not before brokers of a busy machine were found and asked


class StoredBatch(NamedTuple):
    batch: pa.RecordBatch
    base_offset: int
    leader_epoch: int
    metadata: BatchMetadata
    timestamp_ms: int


class FakeLog:
    def __init__(self) -> None:
        self.batches: list[StoredBatch] = []
        self.producers = Producers()
        self.leader: int | None = 1
        self.leader_epoch = 0
        self.loss: PossibleLoss | msgspec.UnsetType = msgspec.UNSET
        self.start_at: Offset | msgspec.UnsetType = msgspec.UNSET
        self.followers_end: int | None = None  # how far followers know it; None: as far as the leader
        self.now_ms = 7
        self.knows_the_end = True  # whether its leader does
        self.leads_up_to: int | None = None  # how far its leader knows it; None: to its end
        self.asked_ranges = 0
        self.refused_ends = 0  # how many reads did not end because it does not

    @property
    def view(self) -> LogView:
        epochs: dict[int, int] = {}
        for each in self.batches:
            epochs.setdefault(each.leader_epoch, each.base_offset)
        return LogView(self.start, self.end, EpochHistory.of([*epochs.items()]).begun(self.leader_epoch, self.end))

    def within(self, start: int, end: int) -> list[StoredBatch]:
        return [each for each in self.batches if each.base_offset < end and start < each.base_offset + len(each.batch)]

    def pieces(self, start: int, end: int, piece_bytes: int) -> tuple[Piece, ...]:
        """A batch each."""
        return tuple(
            Piece(
                end=min(end, each.base_offset + len(each.batch)),
                bytes=each.batch.nbytes,
                last_epoch=each.leader_epoch,
            )
            for each in self.within(start, end)
            if piece_bytes
        )

    def cut(self, count: int, leader_epoch: int) -> None:
        """An unclean election: so many batches are left."""
        self.batches, self.leader_epoch, self.producers = self.batches[:count], leader_epoch, Producers()
        for each in self.batches:
            of, place = each.metadata, OffsetSpan(each.base_offset, each.base_offset + each.batch.num_rows - 1)
            assert of.producer is not None
            assert of.sequence is not None
            self.producers.wrote(of.producer, of.epoch, of.sequence, place)

    @property
    def start(self) -> int:
        return 0 if not self.batches else self.batches[0].base_offset

    @property
    def end(self) -> int:
        return 0 if not self.batches else self.batches[-1].base_offset + self.batches[-1].batch.num_rows

    @property
    def numbers(self) -> list[int]:
        return [number for stored in self.batches for number in stored.batch.column(0).to_pylist()]

    def end_at(self, broker: int) -> int:
        if broker == self.leader and self.leads_up_to is not None:
            return self.leads_up_to
        known = self.followers_end
        return self.end if known is None or broker == self.leader else min(known, self.end)

    def offset_of_time(self, timestamp_ms: int) -> int:
        return next((each.base_offset for each in self.batches if each.timestamp_ms >= timestamp_ms), self.end)

    def append(self, batch: pa.RecordBatch, metadata: BatchMetadata) -> OffsetSpan:
        assert metadata.producer is not None
        assert metadata.sequence is not None
        known = self.producers.check(metadata.producer, metadata.epoch, metadata.sequence, rows=batch.num_rows, crc=0)
        if known is not None:
            return known
        place = OffsetSpan(self.end, self.end + batch.num_rows - 1)
        self.batches.append(StoredBatch(batch, place.base_offset, self.leader_epoch, metadata, self.now_ms))
        self.producers.wrote(metadata.producer, metadata.epoch, metadata.sequence, place)
        return place


class FakeCluster:
    """refuse: asked before each append. before_answer: called with (broker, how many appends this log has seen)."""

    def __init__(self, brokers: int = 2) -> None:
        self.changed = threading.Condition()  # guards all state; told of every change
        self.topics: dict[str, TopicConfig] = {}
        self.logs: dict[TopicPartition, FakeLog] = {}
        self.controller: int | None = 1
        self.tokens: Tokens | None = None
        #: Broker ids whose ports somebody else has, who does not know the tokens.
        self.impostors: set[int] = set()
        #: Once a broker's lane has let somebody not in.
        self.after_refusal: Callable[[], None] = lambda: None
        #: What each broker, and the controller as the broker that it is, says of tokens.
        self.known_tokens: Callable[[int, DescribeTokens], KnownTokens] = lambda _broker, asked: KnownTokens(
            marks=asked.marks, trouble=""
        )
        self.files_uid: int | None = os.geteuid()  # to whom the files of brokers belong, as they say
        self.acls = ToldAcls(acls=(), super_users=())
        self.quotas = ToldQuotas(quotas=(), count=False)
        self.asked_metadata = 0
        self.asked_topics: list[tuple[str, ...] | None] = []  # of each question for metadata; None: of all
        self.asked_only: dict[str, tuple[int, ...]] = {}  # of the last question for metadata
        self.refuse_metadata: ReplicationError | None = None
        #: The topics that clients may not see.
        self.unseen: set[str] = set()
        self.received: list[tuple[int, BatchMetadata]] = []
        self.streams: list[tuple[int, str]] = []  # that were opened: the broker, and the topic
        self.served: list[int] = []  # who served the batches that were read
        self.first_number = 0  # what the first batch of a connection is called in its answer
        self.batch_bytes_max = 16 << 20
        self.hosted: tuple[int, ...] | None = None  # who has replicas; None: every broker
        self.in_sync: set[int] | None = None  # None: every replica
        self.registered: set[int] | None = None  # None: every broker
        self.adding: dict[TopicPartition, tuple[int, ...]] = {}
        self.serving = True
        self.closed = False
        self.refuse: Callable[[pa.RecordBatch, BatchMetadata], ReplicationError | None] = lambda _batch, _metadata: None
        self.before_answer: Callable[[FakeBroker], None] = lambda _broker: None
        self.before_read: Callable[[FakeBroker, StoredBatch], None] = lambda _broker, _stored: None
        # What a replica says of its files.
        self.before_range: Callable[[FakeBroker, FoundRange], FoundRange] = lambda _broker, found: found
        self.before_beginning: Callable[[FakeBroker], None] = lambda _broker: None
        self.after_create: Callable[[FakeBroker], None] = lambda _broker: None
        self.sizes: dict[int, ReplicaSizes | ReplicationError] = {}  # what each broker says of its logs
        self.events: list[ToldEvent] = []  # whatever they are about
        self.asked_events: list[DescribeEvents] = []
        self.page: str | None = None
        self.tells_page = True  # a controller of an older version does not
        #: What each broker, and the controller as the broker that it is, tells of its settings. None: an older one.
        self.settings: Callable[[int, DescribeSettings], ToldSettings] | None = None
        # What the controller makes of the other requests.
        self.carry_out: Callable[[FakeBroker, Request], RequestAnswer] = lambda _broker, _request: RequestAnswer()
        self.groups = FakeGroups(self)
        #: What no broker can read the state of.
        self.hidden: set[TopicPartition] = set()
        self.brokers = {id_: FakeBroker(self, id_) for id_ in range(1, brokers + 1)}
        self.create("orders", partitions=3)

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.address for broker in self.brokers.values())

    def create(self, topic: str, partitions: int = 1, schema: pa.Schema = SCHEMA) -> None:
        with self.changed:
            self.topics[topic] = TopicConfig(schema=base64.b64encode(schema.serialize().to_pybytes()).decode())
            for partition in range(partitions):
                self.logs[TopicPartition(topic, partition)] = FakeLog()

    def widen(self, topic: str, schema: pa.Schema) -> None:
        with self.changed:
            before = topic_schema(self.topics[topic])
            text = base64.b64encode(schema.serialize().to_pybytes()).decode()
            earlier = (*self.topics[topic].earlier_columns, len(before.newest))
            self.topics[topic] = TopicConfig(schema=text, earlier_columns=earlier)

    def log(self, topic: str = "orders", partition: int = 0) -> FakeLog:
        return self.logs[TopicPartition(topic, partition)]

    def lead(self, broker: int | None, topic: str = "orders", partition: int = 0) -> None:
        with self.changed:
            log = self.log(topic, partition)
            log.leader = broker
            log.leader_epoch += 1
            self.changed.notify_all()

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Brokers take batches from their connections, and neither store nor answer them."""
        with self.changed:
            self.serving = False
        try:
            yield
        finally:
            with self.changed:
                self.serving = True
                self.changed.notify_all()

    def metadata(self, topics: tuple[str, ...] | None, only: Mapping[str, Collection[int]] = NO_CHOICE) -> Metadata:
        with self.changed:
            self.asked_metadata += 1
            self.asked_topics.append(topics)
            self.asked_only = {topic: tuple(numbers) for topic, numbers in only.items()}
            self.changed.notify_all()
            if self.refuse_metadata is not None:
                raise self.refuse_metadata
            for topic in self.unseen.intersection(topics or ()):
                raise TopicAuthorizationFailed(f"may not describe topic {topic}")
            controller = None if self.controller is None else self.brokers[self.controller].address
            return Metadata(
                cluster_id="fake",
                brokers={
                    id_: broker.registration
                    for id_, broker in self.brokers.items()
                    if self.registered is None or id_ in self.registered
                },
                controller=controller,
                topics=tuple(
                    TopicMetadata(
                        name=name,
                        topic_id=f"id-{name}",
                        config=config,
                        partitions=tuple(
                            each
                            for each in self._commands(name, only.get(name))
                            if each.topic_partition not in self.hidden
                        ),
                        hidden=tuple(sorted(each.partition for each in self.hidden if each.topic == name)),
                    )
                    for name, config in sorted(self.topics.items())
                    if name not in self.unseen and (topics is None or name in topics)
                ),
            )

    def initialized(self, told: Iterable[PartitionCommand]) -> None: ...

    def notes(self) -> BrokerNotes:
        return BrokerNotes()

    def close(self) -> None:
        with self.changed:
            self.serving = True
            self.closed = True
            self.refuse = lambda _batch, _metadata: InvalidRequest("the test is over")
            self.changed.notify_all()
        for broker in self.brokers.values():
            broker.close()

    def _commands(self, topic: str, only: Collection[int] | None) -> tuple[PartitionCommand, ...]:
        replicas = tuple(self.brokers) if self.hosted is None else self.hosted
        isr = frozenset(replicas if self.in_sync is None else self.in_sync)
        return tuple(
            PartitionCommand(
                topic=topic,
                partition=partition.partition,
                topic_id=f"id-{topic}",
                replicas=replicas,
                state=PartitionState(
                    leader=log.leader,
                    leader_epoch=log.leader_epoch,
                    loss=log.loss,
                    start_at=log.start_at,
                    isr=isr,
                    min_isr=1,
                    epochs=dict.fromkeys(isr, 0),
                ),
                partition_epoch=log.leader_epoch,
                adding=self.adding.get(partition, ()),
            )
            for partition, log in sorted(self.logs.items())
            if partition.topic == topic and (only is None or partition.partition in only)
        )


class FakeGroups:
    """What coordinators know: who leads a group's partition of the groups' log is its coordinator."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self.by_name: dict[str, DescribedGroup] = {}

    def add(self, group: DescribedGroup) -> None:
        self.open()
        self.by_name[group.group] = group

    def open(self) -> Done:
        if GROUPS_TOPIC not in self._cluster.topics:
            self._cluster.create(GROUPS_TOPIC, GROUPS_PARTITIONS)
        return Done()

    def describe(self, broker: int, asked: DescribeGroups) -> DescribedGroups:
        names = self.by_name if asked.groups is None else asked.groups
        found = [each for name, each in sorted(self.by_name.items()) if name in names and self._leads(broker, name)]
        return DescribedGroups(groups=tuple(found))

    def reset(self, broker: int, asked: ResetGroup) -> Done:
        group = self._changed(broker, asked.group, "reset")
        positions = {Holding(each.topic, each.partition): each for each in group.positions}
        for place in asked.places:
            positions[Holding(place.topic, place.partition)] = DescribedPosition(
                **msgspec.structs.asdict(place), committed_ms=now_ms()
            )
        for each in asked.dropped:
            positions.pop(each, None)
        self.by_name[group.group] = replace(group, positions=tuple(each for _, each in sorted(positions.items())))
        return Done()

    def delete(self, broker: int, asked: DeleteGroup) -> Done:
        self._changed(broker, asked.group, "deleted")
        self.by_name.pop(asked.group, None)
        return Done()

    def _changed(self, broker: int, name: str, what: str) -> DescribedGroup:
        if not self._leads(broker, name):
            raise NotCoordinator(f"broker {broker} does not coordinate {name}")
        group = self.by_name.get(name) or DescribedGroup(group=name, epoch=0, members=(), positions=())
        require_empty(name, {each.member: each.introduction.host for each in group.members}, what)
        return group

    def _leads(self, broker: int, name: str) -> bool:
        number = partition_of_key(range(GROUPS_PARTITIONS), name.encode())
        return self._cluster.log(GROUPS_TOPIC, number).leader == broker


class _Heard(flight.ServerMiddleware):  # type: ignore[misc]  # pyarrow has no types
    def __init__(self, headers: Mapping[str, list[str]]) -> None:
        super().__init__()
        self.headers = headers


class _Hears(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # pyarrow has no types
    def start_call(self, info: flight.CallInfo, headers: Mapping[str, list[str]]) -> _Heard:
        return _Heard({name.lower(): values for name, values in headers.items()})


class FakeBroker(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    def __init__(self, cluster: FakeCluster, id_: int) -> None:
        super().__init__("grpc://127.0.0.1:0", middleware={"hears": _Hears()})
        self.id = id_
        self.cluster = cluster
        self.frozen_metadata: Metadata | None = None  # what a broker that hears nothing goes on saying
        self.other_replication_port: int | None = None  # told in place of its own
        self.lane = FakeLane(self)
        self.proxy = TcpProxies(self.port, self.lane.port)
        self._tickets = tickets = Tickets(self.tokens_of, port=lambda: self.proxy.ports[0], now_ms=now_ms)
        self._answers: dict[str, Callable[[bytes], msgspec.Struct]] = {
            INTRODUCE.name: lambda body: tickets.challenge(from_json(body, Introduce)),
            PROVE.name: lambda body: tickets.admitted(from_json(body, Prove)),
            DESCRIBE_ACLS.name: lambda _body: cluster.acls,
            DESCRIBE_QUOTAS.name: lambda _body: cluster.quotas,
            DESCRIBE_TOKENS.name: lambda body: cluster.known_tokens(self.id, from_json(body, DescribeTokens)),
            OPEN_GROUPS.name: lambda _body: cluster.groups.open(),
            DESCRIBE_GROUPS.name: lambda body: cluster.groups.describe(self.id, from_json(body, DescribeGroups)),
            RESET_GROUP.name: lambda body: cluster.groups.reset(self.id, from_json(body, ResetGroup)),
            DELETE_GROUP.name: lambda body: cluster.groups.delete(self.id, from_json(body, DeleteGroup)),
        }

    @property
    def registration(self) -> Registration:
        port, replication_port = self.proxy.ports
        told = self.other_replication_port or replication_port
        return Registration(
            host="127.0.0.1",
            port=port,
            replication_port=told,
            epoch=1,
            incarnation="one",
            files_uid=self.cluster.files_uid,
        )

    def tokens_of(self, *, is_of_cluster: bool = False) -> Tokens | None:
        return Tokens.of(Token("of-somebody-else")) if self.id in self.cluster.impostors else self.cluster.tokens

    @property
    def address(self) -> str:
        return self.registration.address

    def close(self) -> None:
        self.proxy.down()
        self.lane.close()
        ending = threading.Thread(target=self.shutdown, daemon=True)
        ending.start()
        ending.join(5)

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> list[bytes]:
        """With a proof, if the caller wants one."""
        headers = context.get_middleware("hears").headers
        nonce, shown = nonce_of(headers.get(NONCE_HEADER, [])), headers.get(AUTHORIZATION, [""])[0]
        caller, tokens = self._tickets.caller(shown.removeprefix(TICKET_SCHEME)), self.tokens_of()
        token = None if caller is None or tokens is None else tokens.of_mark(caller.mark)
        if nonce is None or caller is None or token is None:
            return [self._answer(action)]
        question = Question(token.session_key(caller.session), nonce, action.type, action.body.to_pybytes())
        try:
            return question.answered(self._answer(action))
        except flight.FlightServerError as error:
            return question.answered(str(error).encode(), is_error=True)

    def _answer(self, action: flight.Action) -> bytes:
        body = action.body.to_pybytes()
        with _told():
            if action.type in self._answers:
                answer: msgspec.Struct = self._answers[action.type](body)
            elif action.type == METADATA.name:
                question = from_json(body, GetMetadata)
                answer = self.frozen_metadata or self.cluster.metadata(question.topics, question.only)
            elif action.type == DESCRIBE_TOPICS.name:
                answer = self._page(from_json(body, DescribeTopics))
            elif action.type == METRICS.name:
                asked = from_json(body, GetMetrics)
                answer = MetricsText(text=f"broker {self.id}, per partition: {asked.per_partition}\n")
            elif action.type == DESCRIBE_REPLICAS.name:
                answer = self._sizes(from_json(body, DescribeReplicas))
            elif action.type == DESCRIBE_EVENTS.name:
                events = from_json(body, DescribeEvents)
                self.cluster.asked_events.append(events)
                answer = ToldEvents(events=tuple(self.cluster.events[-events.last :]))
            elif action.type == DESCRIBE_PAGE.name and self.cluster.tells_page:
                from_json(body, DescribePage)
                answer = PageDescription(url=self.cluster.page)
            elif action.type == DESCRIBE_SETTINGS.name and self.cluster.settings is not None:
                answer = self.cluster.settings(self.id, from_json(body, DescribeSettings))
            elif action.type == DESCRIBE_RANGES.name:
                wanted = from_json(body, DescribeRanges).ranges
                answer = FoundRanges(ranges=tuple(self._range(each) for each in wanted))
            elif action.type == ADMIN_REQUESTS[CreateTopic].name:
                answer = self._create(from_json(body, CreateTopic))
            elif action.type in REQUESTS:
                answer = self.cluster.carry_out(self, from_json(body, REQUESTS[action.type]))
            else:
                raise InvalidRequest(f"no action {action.type}")
            return to_json(answer)

    def _range(self, wanted: WantedRange) -> FoundRange:
        log = self.cluster.logs[wanted.topic_partition]
        found = FoundRange(topic=wanted.topic, partition=wanted.partition, topic_id=f"id-{wanted.topic}")
        if log.leader != self.id and not wanted.files:
            return replace(found, error=NotLeader.code, message="another leads")
        log.asked_ranges += 1
        served = log.end_at(self.id)
        if not (log.knows_the_end or wanted.may_lag) and (wanted.to is None or wanted.to > served):
            log.refused_ends += 1
            return replace(found, error=OffsetNotAvailable.code, message="it has only begun to lead")
        start = start_of(wanted.beginning, log_start=log.start, end=served, offset_of_time=log.offset_of_time)
        end = served if wanted.to is None else min(served, wanted.to)
        place = ReadPlace(start, NO_EPOCH if wanted.last_epoch is None else wanted.last_epoch)
        found = replace(
            found,
            log_start=log.start,
            high_watermark=served,
            start=start,
            end=end,
            start_epoch=log.view.epoch_before(start) if start <= served else NO_EPOCH,
            end_epoch=log.view.epoch_before(end),
            start_ms=next((each.timestamp_ms for each in log.within(start, served)), None) if wanted.timed else None,
            cut=cut_below(place, log.view),
            lags=not log.knows_the_end,
            bytes=sum(each.batch.nbytes for each in log.within(start, end)),
            pieces=log.pieces(start, end, wanted.piece_bytes),
        )
        return self.cluster.before_range(self, found) if wanted.files else found

    def _page(self, asked: DescribeTopics) -> TopicPage:
        known = {each.name: each for each in (self.frozen_metadata or self.cluster.metadata(asked.topics)).topics}
        counts = {name: len(each.partitions) for name, each in known.items()}
        return page_of(asked, counts, lambda names: [known[name] for name in names], lambda _topic: True)

    def _sizes(self, asked: DescribeReplicas) -> ReplicaSizes:
        found = self.cluster.sizes.get(self.id, ReplicaSizes(replicas=()))
        if isinstance(found, ReplicationError):
            raise found
        named = asked.partitions
        return ReplicaSizes(
            replicas=tuple(each for each in found.replicas if named is None or each.topic_partition in named)
        )

    def _create(self, request: CreateTopic) -> Done:
        if self.cluster.controller != self.id:
            raise NotController(f"broker {self.id} is not the controller: ask who is")
        if request.name in self.cluster.topics:
            raise TopicAlreadyExists(f"{request.name} exists: choose another name")
        assert request.partitions is not None
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(request.schema)))
        self.cluster.create(request.name, request.partitions, schema)
        self.cluster.after_create(self)
        return Done()

    def append(self, partition: TopicPartition, batch: pa.RecordBatch, metadata: BatchMetadata) -> PutAnswer:
        """The answer lacks its number."""
        cluster = self.cluster
        with cluster.changed:
            cluster.received.append((self.id, metadata))
            cluster.changed.notify_all()
            cluster.changed.wait_for(lambda: cluster.serving)
            try:
                refusal = cluster.refuse(batch, metadata)
                if refusal is not None:
                    raise refusal
                log = cluster.logs.get(partition)
                if log is None:
                    raise UnknownTopicOrPartition(f"no {partition}")
                if log.leader != self.id:
                    raise NotLeader(f"broker {self.id} does not lead {partition}: reload routes and retry")
                place = log.append(batch, metadata)
            except ReplicationError as error:
                return PutAnswer(
                    number=0,
                    error=error.code,
                    message=error.message,
                    retriable=error.retriable,
                    maybe_written=error.maybe_written,
                )
            cluster.changed.notify_all()
            return PutAnswer(number=0, base_offset=place.base_offset, last_offset=place.last_offset)

    def read(self, frame: ReadFrame) -> Sequence[Part]:
        """The frame of the answer: one batch, as it is stored, so that it may start too early and end too late."""
        ticket = frame.ticket
        log = self.cluster.log(ticket.topic, ticket.partition)
        try:
            end = self._readable_end(log, ticket)
            start = start_of(ticket.start, log_start=log.start, end=end, offset_of_time=log.offset_of_time)
            if not log.start <= start <= end:
                _refuse_cut(log, start, ticket)
                raise OffsetOutOfRange(f"offset {start} is outside {log.start} to {end}")
            if not isinstance(ticket.start, int):
                self.cluster.before_beginning(self)
            stored = None if is_over(ticket, start) else self._next_batch(log, ticket, start)
        except ReplicationError as error:
            return encoded(ReadAnswerFrame(number=frame.number, error=error.code, message=error.message))
        schema = topic_schema(self.cluster.topics[ticket.topic]).newest
        told = ReadAnswerFrame(
            number=frame.number,
            offset=start,
            next_offset=start,
            last_epoch=log.view.epoch_before(start),
            high_watermark=log.end_at(self.id),
            width=len(schema),
        )
        if stored is None:
            return encoded(told)
        self.cluster.before_read(self, stored)
        self.cluster.served.append(self.id)
        return _with_records(told, ticket, stored)

    def _readable_end(self, log: FakeLog, ticket: ReadTicket) -> int:
        if log.leader != self.id and not ticket.any_replica:
            raise NotLeader(f"broker {self.id} does not lead {ticket.topic}: reload routes and retry")
        return log.end_at(self.id)

    def _next_batch(self, log: FakeLog, ticket: ReadTicket, offset: int) -> StoredBatch | None:
        with self.cluster.changed:
            self._wait_for_more(log, offset, ticket.max_wait_ms / 1000)
            _refuse_cut(log, offset, ticket)
            end = self._readable_end(log, ticket)
            beyond = ((stored, stored.base_offset + stored.batch.num_rows) for stored in log.batches)
            found = next((stored for stored, after in beyond if offset < after <= end), None)
            if found is None and not ticket.max_wait_ms and not log.knows_the_end:
                log.refused_ends += 1
                raise OffsetNotAvailable(f"broker {self.id} has only begun to lead")
            return found

    def _wait_for_more(self, log: FakeLog, offset: int, timeout_s: float) -> None:
        leader = log.leader
        self.cluster.changed.wait_for(
            lambda: log.end_at(self.id) > offset or log.leader != leader or self.cluster.closed, timeout_s
        )


def _refuse_cut(log: FakeLog, offset: int, ticket: ReadTicket) -> None:
    cut = cut_below(ReadPlace(offset, NO_EPOCH if ticket.last_epoch is None else ticket.last_epoch), log.view)
    if cut is not None:
        raise LogTruncated(f"cut at {cut}")


def _with_records(told: ReadAnswerFrame, ticket: ReadTicket, stored: StoredBatch) -> Sequence[Part]:
    batch = stored.batch if ticket.columns is None else stored.batch.select(list(ticket.columns))
    message, crc = serialized(batch)
    head = schema_to_bytes(batch.schema)
    after = stored.base_offset + batch.num_rows
    entry = IndexEntry(
        base_offset=stored.base_offset,
        last_offset=after - 1,
        position=0,
        timestamp_ms=stored.timestamp_ms,
        timestamp_max_ms=stored.timestamp_ms,
        producer=NO_PRODUCER,
        sequence=NO_PRODUCER,
        bytes=len(message),
        crc=crc,
        leader_epoch=stored.leader_epoch,
        producer_epoch=NO_PRODUCER,
        schema_crc=crc32c(head),
    )
    entries = encode_entry(entry)
    told = replace(
        told,
        next_offset=after if ticket.to is None else min(after, ticket.to),
        last_epoch=stored.leader_epoch,
        schema_bytes=len(head),
        entry_bytes=len(entries),
        data_bytes=len(message),
    )
    return encoded(told, head, entries, message)


class FakeLane:
    """Takes clients' frames for a broker, a thread for each connection."""

    def __init__(self, broker: FakeBroker) -> None:
        self._broker = broker
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="fake-lane", daemon=True).start()

    def close(self) -> None:
        hang_up(self._listener)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), name="fake-lane", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        streams: dict[int, tuple[str, pa.Schema]] = {}
        with connection, suppress(OSError, BrokerNotAvailable):
            receiver = FrameReceiver(connection, 64 << 20)
            try:
                admitted(connection, receiver, lambda _: self._broker.tokens_of(), self._broker.proxy.ports[1], 5.0)
            except AuthenticationFailed as error:
                send(connection, encoded(ErrorFrame(error=error.code, message=error.message)))
                self._broker.cluster.after_refusal()
                return
            except InvalidRequest:
                return  # a stranger, such as a broker of another test that looks for a dead one, which had this port
            send(connection, encoded(WelcomeFrame(batch_bytes_max=self._broker.cluster.batch_bytes_max)))
            frames = receiver.whole()
            while True:
                for received in frames:
                    self._take(connection, streams, received)
                frames = receiver.receive()

    def _take(
        self, connection: socket.socket, streams: dict[int, tuple[str, pa.Schema]], received: ReceivedFrame
    ) -> None:
        frame, payload = received
        cluster = self._broker.cluster
        if isinstance(frame, ReadFrame):
            send(connection, self._broker.read(frame))
            return
        if isinstance(frame, StreamFrame):
            streams[frame.stream] = frame.topic, pa.ipc.read_schema(pa.py_buffer(bytes(payload)))
            cluster.streams.append((self._broker.id, frame.topic))
            return
        assert isinstance(frame, PutFrame)
        assert frame.batch.partition is not None
        assert crc32c(payload) == frame.crc
        topic, schema = streams[frame.stream]
        batch = pa.ipc.read_record_batch(pa.py_buffer(bytes(payload)), schema)
        answer = self._broker.append(TopicPartition(topic, frame.batch.partition), batch, frame.batch)
        cluster.before_answer(self._broker)
        answers = (replace(answer, number=cluster.first_number + frame.number),)
        send(connection, encoded(PutAnswersFrame(answers=answers)))


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except ReplicationError as error:
        raise flight.FlightServerError(str(error)) from error

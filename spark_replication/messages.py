"""What processes say to each other: versioned msgspec structs, whole and checked from birth.

Between brokers they travel as msgpack before the stored bytes they describe (transport/replication); from controller,
guardians and clients as JSON in the body of a Flight action (transport/flight). An unknown version is refused with
UNSUPPORTED_VERSION, an unknown key with INVALID_REQUEST.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Annotated, Literal, TypeVar

import msgspec

from spark_replication import decoding
from spark_replication.decoding import UNDECODABLE
from spark_replication.errors import InvalidRequest, UnsupportedVersion
from spark_replication.model import (
    AtTime,
    BrokerId,
    Epoch,
    NamedOffset,
    Offset,
    PartitionState,
    Registration,
    ReplicaOf,
    Scalar,
    Start,
    TimeMs,
    TopicConfig,
    TopicPartition,
    require,
)

VERSION = 1
NONE = "NONE"  # the error code of success, as Kafka has it
NONCE_BYTES = 32


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    v: int = VERSION


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A piece of a message: its version is the message's."""


# Controller to broker. Every command carries the controller's epoch; a lower one than known is refused (C1).


class PartitionCommand(Part, frozen=True, kw_only=True):
    """A partition as persisted. (state.leader_epoch, partition_epoch) orders commands (E2).

    adding, removing: of `replicas`, while it is being reassigned.
    """

    topic: str
    partition: int
    topic_id: str
    replicas: tuple[BrokerId, ...]
    state: PartitionState
    partition_epoch: Epoch
    adding: tuple[BrokerId, ...] = ()
    removing: tuple[BrokerId, ...] = ()

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def order(self) -> tuple[int, int]:
        return self.state.leader_epoch, self.partition_epoch


class ToBroker(Message, frozen=True, kw_only=True):
    """A command of the controller of that epoch. The sender says the rest: for which life of the broker it is (None:
    whoever hears it), and its number among all that this controller sends, repetitions not counted."""

    controller_epoch: Epoch
    broker_epoch: Epoch | None = None
    number: int = 0


class LeaderAndIsr(ToBroker, frozen=True, kw_only=True):
    """Lead or follow these. init: the first command of a controller to this broker, naming all its partitions."""

    partitions: tuple[PartitionCommand, ...]
    topics: dict[str, TopicConfig]
    brokers: dict[BrokerId, Registration]
    init: bool = False


class StopPartition(Part, frozen=True, kw_only=True):
    """Stop what is of this leader epoch, up to this partition epoch (None: all of it): what a replica was told later
    than that makes the stop an old one (E2)."""

    topic: str
    partition: int
    topic_id: str
    leader_epoch: Epoch
    delete: bool
    partition_epoch: Epoch | None = None

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def order(self) -> tuple[int, float]:
        """The latest that it covers."""
        return self.leader_epoch, math.inf if self.partition_epoch is None else self.partition_epoch

    def covers(self, order: tuple[int, float]) -> bool:
        """Whether a replica that was last told at `order` is to stop."""
        return order <= self.order


class StopReplica(ToBroker, frozen=True, kw_only=True):
    partitions: tuple[StopPartition, ...]


class UpdateMetadata(ToBroker, frozen=True, kw_only=True):
    """What any broker tells clients: these partitions changed; these are all the brokers that live.

    deleted: topics that are no more; removed: partitions of topics that live on. complete: `partitions` are all there
    are, whatever an earlier controller had no time to take back. settings: of the cluster, all that are set; None: as
    they were.
    """

    partitions: tuple[PartitionCommand, ...]
    brokers: dict[BrokerId, Registration]
    topics: dict[str, TopicConfig] = {}
    deleted: tuple[str, ...] = ()
    removed: tuple[TopicPartition, ...] = ()
    complete: bool = False
    settings: dict[str, Scalar] | None = None


LOG_INFO_PARTITIONS_MAX = 2_000  # of one GetReplicaLogInfo


class LogInfoWanted(Part, frozen=True, kw_only=True):
    """leader_epoch: of the leaderless partition: a replica that knows a later one goes on as it is."""

    topic: str
    partition: int
    topic_id: str
    leader_epoch: Epoch

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class GetReplicaLogInfo(ToBroker, frozen=True, kw_only=True):
    """How much of these is in your log? Who answers stops following: the answer must not go stale (L4)."""

    partitions: tuple[LogInfoWanted, ...]

    def __post_init__(self) -> None:
        require(
            len(self.partitions) <= LOG_INFO_PARTITIONS_MAX,
            f"{len(self.partitions)} partitions: at most {LOG_INFO_PARTITIONS_MAX} a request",
        )


class ReplicaLogInfo(Part, frozen=True, kw_only=True):
    """last_epoch: of the last record in the log (-1: it is empty). current_epoch: the leader epoch known last."""

    topic: str
    partition: int
    topic_id: str
    last_epoch: int = -1
    current_epoch: int = -1
    end: Offset = 0
    error: str = NONE

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class ReplicaLogInfos(Message, frozen=True, kw_only=True):
    """The answer to GetReplicaLogInfo, of this life of the broker."""

    broker_epoch: Epoch
    partitions: tuple[ReplicaLogInfo, ...]


class CommandAnswer(Message, frozen=True, kw_only=True):
    """Per partition (`orders-3`) an error code, NONE for those carried out; `broker_epoch` says which life answered."""

    broker_epoch: Epoch
    errors: dict[str, str] = {}


Command = LeaderAndIsr | StopReplica | UpdateMetadata | GetReplicaLogInfo


# Guardian to broker and controller.


class RenewLease(Message, frozen=True, kw_only=True):
    """(controller_epoch, attempt) orders leases: a later one takes over, an earlier one is refused."""

    controller_epoch: Epoch
    attempt: int
    lease_ms: int


class LeaseAnswer(Message, frozen=True, kw_only=True):
    broker_id: BrokerId
    broker_epoch: Epoch
    pid: int


class BrokerDied(Message, frozen=True, kw_only=True):
    """A guardian saw this life of the broker end."""

    broker_id: BrokerId
    broker_epoch: Epoch


class DiskFailed(Message, frozen=True, kw_only=True):
    """This life of the broker cannot keep these: its disk is full or failing."""

    broker_id: BrokerId
    broker_epoch: Epoch
    replicas: tuple[ReplicaOf, ...]


class Serving(msgspec.Struct, frozen=True, kw_only=True):
    """Where a broker serves, or did until its end."""

    broker_epoch: Epoch
    host: str
    port: int
    pid: int


class Guarding(Message, frozen=True, kw_only=True):
    """A guardian says, again and again, whom it guards; the answer says whether it is still to. submission: of the
    fleet's job that it belongs to. trouble: why its broker does not start, or nothing."""

    guardian: int
    controller_epoch: Epoch
    submission: int
    broker_id: BrokerId
    serving: Serving | None
    log_dir: str
    adopted: bool
    restarts: int
    trouble: str


Order = Literal["guard", "leave", "shut_down"]


class GuardingAnswer(Message, frozen=True, kw_only=True):
    """leave: the broker serves on under its lease. shut_down: it stops, and so does its guardian."""

    order: Order


# Follower to leader. One connection a pair; each partition's fetch is answered on its own, when there is something.


class Hello(Message, frozen=True, kw_only=True):
    cluster_id: str
    broker_id: BrokerId
    broker_epoch: Epoch


class FetchPartition(Part, frozen=True, kw_only=True):
    """I have everything below `offset`; the record before it is of `last_epoch` (-1: my log is empty).

    clean_since: of my registration: what I was a member of since before that, I may have lost (I8).
    """

    topic: str
    partition: int
    topic_id: str
    leader_epoch: Epoch
    offset: Offset
    last_epoch: int
    clean_since: Epoch
    high_watermark: Offset = 0

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class ReplicaFetch(Message, frozen=True, kw_only=True):
    partitions: tuple[FetchPartition, ...]


class Diverging(Part, frozen=True, kw_only=True):
    """Your log and mine part at the end of `epoch`, which is at `end` in mine (epoch -1: below all I know)."""

    epoch: int
    end: Offset


class FetchedPartition(Part, frozen=True, kw_only=True):
    """The answer to one FetchPartition. Stored bytes follow it on the wire: schema, entries, data, as they lie on disk.

    segment_base: the offset that names the segment they lie in; its schema comes along when the data starts there.
    log_start: of the leader's log. Whoever ends below it begins anew there; others need nothing below it.
    """

    topic: str
    partition: int
    topic_id: str
    leader_epoch: Epoch
    error: str = NONE
    message: str = ""
    diverging: Diverging | None = None
    high_watermark: Offset = 0
    log_start: Offset = 0
    offset: Offset = 0
    segment_base: Offset = 0
    schema_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    entry_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    data_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


# Clients and admins.


class BatchMetadata(Part, frozen=True, kw_only=True):
    """What a producer says beside a batch; none of it = acks=all, not idempotent.

    partition: named by each batch of a topic's stream, and by none of a partition's.
    """

    partition: Annotated[int, msgspec.Meta(ge=0)] | None = None
    acks: Literal["all", 0, 1] = "all"
    producer: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)] | None = None
    epoch: Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)] = 0
    sequence: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)] | None = None

    def __post_init__(self) -> None:
        require((self.producer is None) == (self.sequence is None), "producer and sequence come together")


class Ack(Part, frozen=True, kw_only=True):
    """number: of the batch in its stream, from 0, where answers come together."""

    number: int | msgspec.UnsetType = msgspec.UNSET
    base_offset: Offset
    last_offset: Offset


class Refusal(Part, frozen=True, kw_only=True):
    number: int | msgspec.UnsetType = msgspec.UNSET
    error: str
    message: str
    retriable: bool
    maybe_written: bool = False


class AnswersTogether(Part, frozen=True, kw_only=True):
    """Of a topic's stream: as they come."""

    answers: tuple[Ack | Refusal, ...]


class ReadTicket(Part, frozen=True, kw_only=True):
    """DoGet. `to` is exclusive; without it the stream ends when caught up, or after max_wait_ms.

    `from` (an offset, "earliest" or "latest") or from_time, in ms since 1970; neither: from 0. What a stream that does
    not begin at an offset gives first is a batch without rows: its base_offset says where it begins.
    any_replica: a follower serves it, too, as far as it knows records to be committed; its leader may know more.
    """

    topic: str
    partition: int
    from_offset: Offset | NamedOffset | None = msgspec.field(name="from", default=None)
    from_time: TimeMs | None = None
    to: Offset | None = None
    max_wait_ms: Annotated[int, msgspec.Meta(ge=0, le=300_000)] = 0
    columns: tuple[str, ...] | None = None
    any_replica: bool = False

    def __post_init__(self) -> None:
        require(
            self.from_offset is None or self.from_time is None,
            f"it begins at from={self.from_offset!r} and at from_time={self.from_time}: name one of the two",
        )

    @property
    def start(self) -> Start:
        return AtTime(self.from_time) if self.from_time is not None else self.from_offset or 0


class BatchPosition(Part, frozen=True, kw_only=True):
    """What DoGet says beside a batch. timestamp: when its leader appended it, in ms since 1970.

    leader_epoch and timestamp are -1 beside the batch without rows that only says where a stream begins.
    """

    base_offset: Offset
    leader_epoch: int
    timestamp: int
    high_watermark: Offset


class CreateTopic(Message, frozen=True, kw_only=True):
    """With `assignment`, or with `partitions` and `replication_factor` (None: the cluster's defaults)."""

    name: str
    schema: str = ""
    partitions: int | None = None
    replication_factor: int | None = None
    assignment: dict[int, tuple[BrokerId, ...]] | None = None
    config: dict[str, Scalar] = {}


class DeleteTopic(Message, frozen=True, kw_only=True):
    topic: str


class AddPartitions(Message, frozen=True, kw_only=True):
    """Per topic, how many there are to be in all, or the replicas of each new partition: one of the two."""

    counts: dict[str, int] = {}
    assignments: dict[str, dict[int, tuple[BrokerId, ...]]] = {}


class RemovePartitions(Message, frozen=True, kw_only=True):
    """From the tail only (T3): any other would move keys."""

    partitions: dict[str, tuple[int, ...]]


class PlannedFrom(Part, frozen=True, kw_only=True):
    """How a partition was when its move was planned."""

    topic_id: str
    replicas: tuple[BrokerId, ...]


class Reassign(Message, frozen=True, kw_only=True):
    """By partition (`orders-3`), the replicas that it is to have, in order of preference.

    planned_from: of those that a plan says: one that is otherwise by now is refused.
    """

    targets: dict[str, tuple[BrokerId, ...]]
    planned_from: dict[str, PlannedFrom] = {}


class CancelReassignment(Message, frozen=True, kw_only=True):
    partitions: tuple[str, ...]


ElectionKind = Literal["preferred", "unclean", "longest_log_proactive", "longest_log_balanced", "designation"]


class ElectLeaders(Message, frozen=True, kw_only=True):
    """desired: by partition, whom a designation makes leader. None: all partitions that the kind can act on."""

    kind: ElectionKind
    partitions: tuple[str, ...] | None = None
    desired: dict[str, BrokerId] = {}


class Configure(Message, frozen=True, kw_only=True):
    """Of a topic, or (None) of the cluster. A setting that is None goes back to what holds without it."""

    topic: str | None = None
    settings: dict[str, Scalar | None]


class WidenTopic(Message, frozen=True, kw_only=True):
    """schema: the topic's own (IPC, base64) with nullable columns after its last."""

    topic: str
    schema: str


Request = (
    CreateTopic
    | DeleteTopic
    | AddPartitions
    | RemovePartitions
    | Reassign
    | CancelReassignment
    | ElectLeaders
    | Configure
    | WidenTopic
)


class RequestAnswer(Message, frozen=True, kw_only=True):
    """A request is carried out, but for what of it (`orders-3`, or a topic) was refused."""

    errors: dict[str, Refusal] = {}


class DescribeTopics(Message, frozen=True, kw_only=True):
    """None: all topics."""

    topics: tuple[str, ...] | None = None


class TopicMetadata(Part, frozen=True, kw_only=True):
    name: str
    topic_id: str
    config: TopicConfig
    partitions: tuple[PartitionCommand, ...]


class Metadata(Message, frozen=True, kw_only=True):
    """Topics with their partitions, and who lives: what routing needs. `controller` is host:port, if there is one."""

    cluster_id: str
    brokers: dict[BrokerId, Registration]
    topics: tuple[TopicMetadata, ...]
    controller: str | None = None


class DescribeReplicas(Message, frozen=True, kw_only=True):
    """How large are the logs of these that you have (None: of all)?"""

    partitions: tuple[TopicPartition, ...] | None = None


class CopySize(Part, frozen=True, kw_only=True):
    """Of a replica that is being added: what it lacks, and by how much that became less each second, copied less
    appended; None: that is not known yet."""

    bytes_left: Annotated[int, msgspec.Meta(ge=0)]
    bytes_per_second: int | None


class ReplicaSize(Part, frozen=True, kw_only=True):
    """leads: this broker does, and so it knows best. copies: of the replicas that are being added and are not in the
    ISR yet, as their leader sees them."""

    topic: str
    partition: int
    topic_id: str
    leads: bool
    bytes: Annotated[int, msgspec.Meta(ge=0)]
    copies: dict[BrokerId, CopySize] = {}

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class ReplicaSizes(Message, frozen=True, kw_only=True):
    """The answer to DescribeReplicas: of those that are here."""

    replicas: tuple[ReplicaSize, ...]


class InitProducer(Message, frozen=True, kw_only=True):
    """Asks for a producer id that nobody has."""


class Shutdown(Message, frozen=True, kw_only=True):
    """Asks a broker for a controlled stop (B3), which begins after the answer."""


class ProducerId(Message, frozen=True, kw_only=True):
    producer: int
    epoch: int = 0


class Done(Message, frozen=True, kw_only=True):
    """The answer that says nothing but that it is done."""


Kind = TypeVar("Kind", bound=msgspec.Struct)
_json = msgspec.json.Encoder()


class _Versioned(msgspec.Struct):
    v: int = VERSION


def to_json(message: msgspec.Struct) -> bytes:
    return _json.encode(message)


def from_json(data: bytes, kind: type[Kind]) -> Kind:
    try:
        message = decoding.from_json(data, kind)
    except UNDECODABLE as error:
        with suppress(*UNDECODABLE):  # a newer version may have other fields: that it is newer is the better answer
            _check_version(decoding.from_json(data, _Versioned).v, kind)
        raise InvalidRequest(f"not a {kind.__name__}: {error}") from error
    if isinstance(message, Message):
        _check_version(message.v, kind)
    return message


def _check_version(found: int, kind: type[msgspec.Struct]) -> None:
    if found != VERSION and issubclass(kind, Message):
        raise UnsupportedVersion(f"{kind.__name__} version {found} is not known here, {VERSION} is: upgrade this side")


# Frames between brokers are a union told apart by `type`; a version that is not known fails before the body is read.


Nonce = Annotated[bytes, msgspec.Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]


class HelloFrame(Hello, frozen=True, kw_only=True, tag_field="type", tag="hello"):
    """nonce: only of a follower that has a token: both sides are to prove it then (transport.handshake)."""

    nonce: Nonce | msgspec.UnsetType = msgspec.UNSET


class ChallengeFrame(Message, frozen=True, kw_only=True, tag_field="type", tag="challenge"):
    """A leader's answer to a Hello with a nonce."""

    nonce: Nonce


class ProofFrame(Message, frozen=True, kw_only=True, tag_field="type", tag="proof"):
    """The sender knows the token. First the follower's; the leader's follows only if that one holds."""

    proof: bytes


class FetchFrame(ReplicaFetch, frozen=True, kw_only=True, tag_field="type", tag="fetch"):
    """number: rises on a connection. A follower believes only the answer to a partition's last fetch."""

    number: int


class FetchedFrame(Message, frozen=True, kw_only=True, tag_field="type", tag="fetched"):
    """number: of the fetch that this answers."""

    number: int
    partition: FetchedPartition


class ErrorFrame(Message, frozen=True, kw_only=True, tag_field="type", tag="error"):
    """The connection is refused or given up."""

    error: str
    message: str


Frame = HelloFrame | ChallengeFrame | ProofFrame | FetchFrame | FetchedFrame | ErrorFrame
_frame_encoder = msgspec.msgpack.Encoder()


def to_frame(frame: Frame) -> bytes:
    return _frame_encoder.encode(frame)


def from_frame(data: bytes | memoryview) -> Frame:
    try:
        frame: Frame = decoding.from_msgpack(data, Frame)
    except UNDECODABLE as error:
        with suppress(*UNDECODABLE):  # a newer version may have other fields: that it is newer is the better answer
            _check_version(decoding.from_msgpack(data, _Versioned).v, Message)
        raise InvalidRequest(f"not a replication frame: {error}") from error
    _check_version(frame.v, type(frame))
    return frame

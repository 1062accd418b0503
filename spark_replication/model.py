"""The values that the whole system speaks of: partitions, topics, brokers, and what ZooKeeper holds of each.

Every value is frozen and whole from birth. One that comes from ZooKeeper, disk or wire checks itself: a ValueError in
`__post_init__` becomes a decode error that names the path inside the value.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal, NamedTuple, TypeVar

import msgspec

from spark_replication.decoding import UNDECODABLE, from_json
from spark_replication.errors import CorruptState

Scalar = str | int | float | bool  # a setting's value
# Epochs are znode versions, and fields of an index entry: both have 31 bits. Offsets have 63.
EPOCH_MAX = (1 << 31) - 1
OFFSET_MAX = (1 << 63) - 1
NUMBER_MAX = (1 << 31) - 1  # of a partition, or of a broker
BrokerId = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]
PartitionNumber = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]
Epoch = Annotated[int, msgspec.Meta(ge=0, le=EPOCH_MAX)]
EpochOrNone = Annotated[int, msgspec.Meta(ge=-1, le=EPOCH_MAX)]  # -1: of an empty log
Offset = Annotated[int, msgspec.Meta(ge=0, le=OFFSET_MAX)]
Port = Annotated[int, msgspec.Meta(ge=0, le=(1 << 16) - 1)]
Count = Annotated[int, msgspec.Meta(ge=0, le=OFFSET_MAX)]

# A place in a log that moves: its first record, and where the next one will be.
NamedOffset = Literal["earliest", "latest"]
TIME_MS_MAX = 253_402_300_799_999  # the end of the year 9999, beyond which Python knows no time
TimeMs = Annotated[int, msgspec.Meta(ge=0, le=TIME_MS_MAX)]

# What an election chose from. The last four are from outside ISR and ELR.
How = Literal["isr", "elr", "last_known_leader", "unclean", "unclean_recovery", "designated"]
# From outside ISR and ELR: acknowledged records may be missing.
UNCLEAN: frozenset[How] = frozenset({"last_known_leader", "unclean", "unclean_recovery", "designated"})

QUOTED_CHARACTERS_MAX = 300  # the longest sound name has 249, and a number

# The version of a znode or message that has none yet: created by the write that names it.
ABSENT = -1


def shortened(name: str) -> str:
    """As a message quotes it, however long it is."""
    return repr(name) if len(name) <= QUOTED_CHARACTERS_MAX else f"{name[:QUOTED_CHARACTERS_MAX]!r}…"


def number_of(name: str) -> int | None:
    """The number of a partition or broker whose name this is; None: it is no such name. Bounded before it is parsed:
    int() takes the time of the square of its digits, and refuses some 4,300 of them."""
    if not (name.isascii() and name.isdecimal() and len(name) <= len(str(NUMBER_MAX))):
        return None
    number = int(name)
    return number if str(number) == name and number <= NUMBER_MAX else None


class TopicPartition(NamedTuple):
    topic: str
    partition: PartitionNumber

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @classmethod
    def parse(cls, text: str) -> TopicPartition:
        """The inverse of `str()`: `orders-3`. A topic's name may itself hold a dash."""
        topic, dash, partition = text.rpartition("-")
        number = number_of(partition)
        if not (dash and topic) or number is None:
            raise ValueError(f"{shortened(text)} is not of the form TOPIC-PARTITION")
        return cls(topic, number)


class ReplicaOf(NamedTuple):
    """A broker's replica, of this topic and not of another under the same name."""

    partition: TopicPartition
    topic_id: str


class AtTime(NamedTuple):
    """Of a read: from the first batch on that was appended at this time or later, in ms since 1970."""

    time_ms: int


Start = Offset | NamedOffset | AtTime


def require(condition: bool, message: str) -> None:  # noqa: FBT001 (reads as an assertion)
    """Like assert, but for values from outside: they are refused, whatever flags Python runs with."""
    if not condition:
        raise ValueError(message)


class Value(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """What is stored as JSON that a person can read. `v` is the version of the layout."""

    v: int = 1

    def __post_init__(self) -> None:
        require(self.v == 1, f"version {self.v} is not known here (1 is): a newer release wrote this")


class PartitionState(Value, frozen=True, kw_only=True):
    """leaderAndISR. Its znode version is the partition epoch, which rises on every change (E2).

    leader_epoch rises by one per decision that changes the leader or drops replicas from the assignment (E1).
    epochs: of each member of isr and elr, the broker epoch at which it joined (I8).
    min_isr: the effective one; leader and controller use this and no setting (I5).
    created: the leader epoch at which the partition was made (again) (E4).
    elected: how the present or last leader was chosen (L3); None: it was chosen as the partition was made.
    """

    leader: BrokerId | None
    leader_epoch: Epoch
    isr: frozenset[BrokerId]
    min_isr: Annotated[int, msgspec.Meta(ge=1, le=NUMBER_MAX)]
    elr: frozenset[BrokerId] = frozenset()
    epochs: dict[BrokerId, Epoch] = {}
    created: Epoch = 0
    last_known_elr: frozenset[BrokerId] = frozenset()
    last_known_leader: BrokerId | None = None
    recovering: bool = False
    elected: How | None = None
    controller_epoch: Epoch = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.leader is None or self.leader in self.isr, f"leader {self.leader} is outside the ISR")
        require(not self.elr & self.isr, f"{sorted(self.elr & self.isr)} are in the ISR and in the ELR")
        require(not self.last_known_elr & self.members, "last_known_elr holds members of the ISR or the ELR")
        require(self.epochs.keys() == self.members, "epochs are not those of the members of ISR and ELR")

    @property
    def members(self) -> frozenset[BrokerId]:
        return self.isr | self.elr


class TopicState(Value, frozen=True, kw_only=True):
    """The replication assignment of a topic. The first replica of a partition is its preferred leader."""

    topic_id: str
    partitions: dict[PartitionNumber, tuple[BrokerId, ...]]
    adding: dict[PartitionNumber, tuple[BrokerId, ...]] = {}
    removing: dict[PartitionNumber, tuple[BrokerId, ...]] = {}
    origin: dict[PartitionNumber, tuple[BrokerId, ...]] = {}

    def __post_init__(self) -> None:
        super().__post_init__()
        for partition, replicas in self.partitions.items():
            require(len(replicas) > 0, f"partition {partition} has no replicas")
            require(len(set(replicas)) == len(replicas), f"partition {partition} names a broker twice: {replicas}")


class Registration(Value, frozen=True, kw_only=True):
    """/brokers/ids/[id]: a broker that lives. `continues`: the epoch that its clean proof names, or none (I8)."""

    host: str
    port: Port
    replication_port: Port
    epoch: Epoch
    incarnation: str
    rack: str | None = None
    continues: Epoch | None = None
    boot_id: str = ""
    directory_mark: str = ""
    shutting_down: bool = False

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


class BrokerEpoch(Value, frozen=True, kw_only=True):
    """/brokers/epochs/[id]. epoch is its own znode's version; clean_since starts the unbroken chain up to it (I8)."""

    epoch: Epoch
    incarnation: str
    clean_since: Epoch

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.clean_since <= self.epoch, f"clean since epoch {self.clean_since}, which is after {self.epoch}")


class HeldDirectory(msgspec.Struct, frozen=True, kw_only=True):
    """Of a directory whose lock this process holds: who finds a node with the same knows that its writer is dead."""

    boot_id: str
    directory_mark: str


class ControllerInfo(Value, frozen=True, kw_only=True):
    """/controller: who commands, and where its admin requests go. held: None, if it holds no directory's lock."""

    id: str
    host: str
    port: Port
    epoch: Epoch
    held: HeldDirectory | None = None

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


class ControllerEpoch(Value, frozen=True, kw_only=True):
    """/controller_epoch. Its znode version is what every multi() of a controller checks (C1)."""

    epoch: Epoch


class ClusterInfo(Value, frozen=True, kw_only=True):
    """/cluster."""

    cluster_id: str
    features: dict[str, int] = {}


class DirectoryIdentity(Value, frozen=True, kw_only=True):
    """meta.json of a log directory: who lives there, of which cluster."""

    cluster_id: str
    broker_id: BrokerId


class TopicConfig(Value, frozen=True, kw_only=True):
    """/config/topics/[topic]: settings that differ from the cluster's, and the topic's Arrow schema (IPC, base64).

    schema: of the newest version. earlier_columns: how many of its columns each version before that had, oldest first.
    """

    settings: dict[str, Scalar] = {}
    schema: str = ""
    earlier_columns: tuple[Annotated[int, msgspec.Meta(ge=0)], ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        rising = all(before < after for before, after in pairwise(self.earlier_columns))
        require(rising, f"versions of a schema only gain columns, not {list(self.earlier_columns)}")

    @property
    def schema_version(self) -> int:
        return len(self.earlier_columns)


class ClusterSettings(Value, frozen=True, kw_only=True):
    """/config/cluster: settings that hold for the whole cluster, over the defaults of config.py."""

    settings: dict[str, Scalar] = {}


class BrokerSequence(Value, frozen=True, kw_only=True):
    """/brokers/seqid: the next broker id that nobody has."""

    next: BrokerId


Decoded = TypeVar("Decoded")
_encoder = msgspec.json.Encoder()


def encode(value: Value) -> bytes:
    """As it is stored: the same value always gives the same bytes."""
    # Ordered here, since the encoder itself orders no keys but strings: broker ids and partitions are numbers.
    return _encoder.encode(msgspec.to_builtins(value, order="deterministic"))


def decode(data: bytes, kind: type[Decoded], path: str) -> Decoded:
    """The value at `path`; CorruptState, naming the path, if it is none."""
    try:
        return from_json(data, kind)
    except UNDECODABLE as error:
        raise CorruptState(f"{path} is not a {kind.__name__}: {error}. Repair or remove it") from error

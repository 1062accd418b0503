"""The values that the whole system shares: partitions, topics, brokers, and their state in ZooKeeper.

Every value is frozen and whole when it is made. A value that comes from ZooKeeper, disk or wire checks itself: a
ValueError in `__post_init__` becomes a decode error that names the path inside the value.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Annotated, Literal, NamedTuple, TypeVar

import msgspec

from spark_replication.decoding import UNDECODABLE, from_json
from spark_replication.errors import CorruptState

Scalar = str | int | float | bool  # a setting's value
# Epochs are znode versions and fields of an index entry, which both have 31 bits. Offsets have 63.
EPOCH_MAX = (1 << 31) - 1
OFFSET_MAX = (1 << 63) - 1
PORT_MAX = (1 << 16) - 1
NUMBER_MAX = (1 << 31) - 1  # the greatest number of a partition or a broker
BrokerId = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]
PartitionNumber = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]
Epoch = Annotated[int, msgspec.Meta(ge=0, le=EPOCH_MAX)]
EpochOrNone = Annotated[int, msgspec.Meta(ge=-1, le=EPOCH_MAX)]  # -1 for an empty log
Offset = Annotated[int, msgspec.Meta(ge=0, le=OFFSET_MAX)]
Port = Annotated[int, msgspec.Meta(ge=0, le=PORT_MAX)]
Count = Annotated[int, msgspec.Meta(ge=0, le=OFFSET_MAX)]

# A moving place in a log: its first record, or where its next record will be.
NamedOffset = Literal["earliest", "latest"]
TIME_MS_MAX = 253_402_300_799_999  # the end of the year 9999, beyond which Python knows no time
TimeMs = Annotated[int, msgspec.Meta(ge=0, le=TIME_MS_MAX)]

# How an election chose the leader. The last four chose from outside ISR and ELR.
How = Literal["isr", "elr", "last_known_leader", "unclean", "unclean_recovery", "designated"]
# Elections from outside ISR and ELR: acknowledged records may be missing.
UNCLEAN: frozenset[How] = frozenset({"last_known_leader", "unclean", "unclean_recovery", "designated"})

QUOTED_CHARACTERS_MAX = 300  # the longest valid name has 249 characters and a number

RANGES_MAX = 10

# The version of a znode that is not there yet: the write that names this version creates it.
ABSENT = -1


def shortened(name: str) -> str:
    """Quote a name for a message, cut to QUOTED_CHARACTERS_MAX."""
    return repr(name) if len(name) <= QUOTED_CHARACTERS_MAX else f"{name[:QUOTED_CHARACTERS_MAX]!r}…"


def in_ranges(numbers: Iterable[int]) -> str:
    """Name numbers in a message, as ranges, of which the first RANGES_MAX are told: "0 to 4, 7"."""
    found: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    told = [str(first) if first == last else f"{first} to {last}" for first, last in found[:RANGES_MAX]]
    return ", ".join(told + ["…"] * (len(found) > RANGES_MAX)) or "none"


def number_of(name: str, most: int = NUMBER_MAX) -> int | None:
    """The number of the partition or broker of this name, or another number up to `most`. None if it is no such name.
    The length is checked before the name is parsed: the time of int() grows with the square of the digits, and it
    refuses more than about 4,300."""
    if not (name.isascii() and name.isdecimal() and len(name) <= len(str(most))):
        return None
    number = int(name)
    return number if str(number) == name and number <= most else None


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
    """A broker's replica of a partition of this topic, and not of another topic of the same name."""

    partition: TopicPartition
    topic_id: str


class AtTime(NamedTuple):
    """The start of a read at the first batch that was appended at this time or later, in ms since 1970."""

    time_ms: int


Start = Offset | NamedOffset | AtTime


def require(condition: bool, message: str) -> None:  # noqa: FBT001 (reads as an assertion)
    """Like assert, but for values from outside: a false condition raises whatever flags Python runs with."""
    if not condition:
        raise ValueError(message)


class Value(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """A value that is stored as JSON that a person can read. `v` is the version of its layout."""

    v: int = 1

    def __post_init__(self) -> None:
        require(self.v == 1, f"version {self.v} is not known here (1 is): a newer release wrote this")


class PossibleLoss(msgspec.Struct, frozen=True, kw_only=True):
    """What elections from outside ISR and ELR may have cost a partition, until a person has acknowledged it."""

    #: When the first of them was decided, by the controller's clock.
    since_ms: TimeMs
    #: The leader epoch of the first of them.
    first_epoch: Epoch
    #: The leader epoch of the last of them, which is what a person acknowledges. Invariant: first_epoch <= last_epoch.
    last_epoch: Epoch
    #: Acknowledged records at and after this offset may be gone, or others in their place. None if nobody knows.
    from_offset: Offset | None = None
    #: How many acknowledged records are gone at most. None if nobody knows.
    records_max: Count | None = None

    def __post_init__(self) -> None:
        require(self.first_epoch <= self.last_epoch, f"epoch {self.first_epoch} is after {self.last_epoch}")


class PartitionState(Value, frozen=True, kw_only=True):
    """leaderAndISR. Its znode version is the partition epoch, which rises on every change (E2)."""

    leader: BrokerId | None
    #: Rises by one with each decision that changes the leader or drops replicas from the assignment (E1).
    leader_epoch: Epoch
    isr: frozenset[BrokerId]
    #: The effective min ISR. Leader and controller use this value, and no setting (I5).
    min_isr: Annotated[int, msgspec.Meta(ge=1, le=NUMBER_MAX)]
    elr: frozenset[BrokerId] = frozenset()
    #: The broker epoch at which each member of isr and elr joined (I8).
    epochs: dict[BrokerId, Epoch] = {}
    #: The leader epoch at which the partition was made, or made again (E4).
    created: Epoch = 0
    last_known_elr: frozenset[BrokerId] = frozenset()
    last_known_leader: BrokerId | None = None
    recovering: bool = False
    #: Left out while there is none: releases that do not know it read and write the same bytes.
    loss: PossibleLoss | msgspec.UnsetType = msgspec.UNSET
    #: The log begins at or above this offset; all below it is in the topic's table alone (TB5). It never falls. Left
    #: out while there is none, as `loss` is.
    start_at: Offset | msgspec.UnsetType = msgspec.UNSET
    #: How the present or last leader was chosen (L3). None if it was chosen when the partition was made.
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

    @property
    def lowest_offset(self) -> Offset:
        """No log of the partition has anything below it: `start_at`, or 0 where there is none."""
        return 0 if self.start_at is msgspec.UNSET else self.start_at


class TableOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """The topic that a table is of, as the table names it."""

    cluster_id: str
    topic_id: str


class TopicState(Value, frozen=True, kw_only=True):
    """The replication assignment of a topic. The first replica of a partition is its preferred leader."""

    topic_id: str
    partitions: dict[PartitionNumber, tuple[BrokerId, ...]]
    adding: dict[PartitionNumber, tuple[BrokerId, ...]] = {}
    removing: dict[PartitionNumber, tuple[BrokerId, ...]] = {}
    origin: dict[PartitionNumber, tuple[BrokerId, ...]] = {}
    #: Whose table this topic goes on with (TB7). No partition of it is made before that table is sealed. It never
    #: changes. Left out while there is none, as `loss` is.
    restores: TableOrigin | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        super().__post_init__()
        for partition, replicas in self.partitions.items():
            require(len(replicas) > 0, f"partition {partition} has no replicas")
            require(len(set(replicas)) == len(replicas), f"partition {partition} names a broker twice: {replicas}")


class Registration(Value, frozen=True, kw_only=True):
    """/brokers/ids/[id]: a live broker."""

    host: str
    port: Port
    replication_port: Port
    epoch: Epoch
    incarnation: str
    rack: str | None = None
    #: The epoch that the broker's clean proof names; None without a proof (I8).
    continues: Epoch | None = None
    boot_id: str = ""
    directory_mark: str = ""
    #: The user to whom its files belong: nobody's else are read as its own. None: it is of an earlier release.
    files_uid: int | None = None
    shutting_down: bool = False

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


class BrokerEpoch(Value, frozen=True, kw_only=True):
    """/brokers/epochs/[id]."""

    #: The version of this znode.
    epoch: Epoch
    incarnation: str
    #: The first epoch of the unbroken chain of clean registrations up to `epoch` (I8).
    clean_since: Epoch

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.clean_since <= self.epoch, f"clean since epoch {self.clean_since}, which is after {self.epoch}")


class HeldDirectory(msgspec.Struct, frozen=True, kw_only=True):
    """A directory whose lock this process holds. If this process finds a node with the same values, the writer of that
    node is dead."""

    boot_id: str
    directory_mark: str


class ControllerInfo(Value, frozen=True, kw_only=True):
    """/controller: which process commands, and where it takes admin requests."""

    id: str
    host: str
    port: Port
    epoch: Epoch
    #: None if the process holds no directory's lock.
    held: HeldDirectory | None = None

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


class ControllerEpoch(Value, frozen=True, kw_only=True):
    """/controller_epoch. Every multi() of a controller checks the version of this znode (C1)."""

    epoch: Epoch


class ClusterInfo(Value, frozen=True, kw_only=True):
    """/cluster."""

    cluster_id: str
    features: dict[str, int] = {}


class DirectoryIdentity(Value, frozen=True, kw_only=True):
    """meta.json of a log directory: the broker that lives there, and its cluster."""

    cluster_id: str
    broker_id: BrokerId


class TopicConfig(Value, frozen=True, kw_only=True):
    """/config/topics/[topic]: the topic's settings and its Arrow schema."""

    #: The settings that the topic overrides.
    settings: dict[str, Scalar] = {}
    #: The newest version of the schema (IPC, base64).
    schema: str = ""
    #: How many of its columns each earlier version had, the oldest first.
    earlier_columns: tuple[Annotated[int, msgspec.Meta(ge=0)], ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        rising = all(before < after for before, after in pairwise(self.earlier_columns))
        require(rising, f"versions of a schema only gain columns, not {list(self.earlier_columns)}")

    @property
    def schema_version(self) -> int:
        return len(self.earlier_columns)


class ClusterSettings(Value, frozen=True, kw_only=True):
    """/config/cluster: the settings of the whole cluster, which override the defaults of config.py."""

    settings: dict[str, Scalar] = {}


class BrokerSequence(Value, frozen=True, kw_only=True):
    """/brokers/seqid: the next free broker id."""

    next: BrokerId


Decoded = TypeVar("Decoded")
_encoder = msgspec.json.Encoder()


def encode(value: Value) -> bytes:
    """Encode a value for storage. The same value always gives the same bytes."""
    # The keys are sorted here, since the encoder itself sorts only strings: broker ids and partitions are numbers.
    return _encoder.encode(msgspec.to_builtins(value, order="deterministic"))


def decode(data: bytes, kind: type[Decoded], path: str) -> Decoded:
    """Decode the value at `path`. CorruptState, which names the path, if the bytes are no such value."""
    try:
        return from_json(data, kind)
    except UNDECODABLE as error:
        raise CorruptState(f"{path} is not a {kind.__name__}: {error}. Repair it: write it as it was") from error

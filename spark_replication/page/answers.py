"""What the page's server answers, as JSON. Times are milliseconds since 1970, sizes bytes; null: it is not known.

| path | answer |
| --- | --- |
| `/api/view?since=VERSION` | View; Unchanged, if nothing has changed for two seconds |
| `/api/topics/NAME` | TopicDetail |
| `/api/topics/NAME/NUMBER` | PartitionDetail |
| `/api/brokers/ID` | BrokerDetail |
| `/api/events?partition=&topic=&broker=&cause=&last=` | Events |
| `/metrics`, `/brokers/ID/metrics` | Prometheus' text, of the controller and of a broker |
| `/healthz`, `/readyz` | text: 200 if the process lives; if the cluster has a controller, and was just asked |

Whatever of these fails is `{"error", "message"}` with a status of HTTP: 404 if there is no such thing.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from spark_replication.client.health import Health
from spark_replication.client.replica_sizes import ReassignmentDescription
from spark_replication.messages.mirroring import ToldEvent
from spark_replication.model import BrokerId, Scalar

PartitionCondition = Literal["leaderless", "under_min_isr", "under_replicated", "moving", "in_sync"]
BrokerCondition = Literal["live", "stopping", "gone"]
Role = Literal["leader", "in sync", "eligible", "not in sync"]


class Age(msgspec.Struct, frozen=True, kw_only=True):
    #: When the last answer came.
    as_of_ms: int | None = None
    #: Why there was none since then; empty: there was.
    error: str = ""


class PartitionRow(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A list in this order, since there may be 10,000."""

    partition: int
    condition: PartitionCondition
    leader: BrokerId | None
    leader_epoch: int
    partition_epoch: int
    min_isr: int
    #: The preferred leader first.
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    elr: tuple[BrokerId, ...]
    #: How its leader was chosen.
    elected: str | None
    #: Why it has no leader.
    waits: str | None


class TopicRow(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    partitions: int
    #: The most that a partition has.
    replicas: int
    leaderless: int
    under_min_isr: int
    under_replicated: int
    moving: int
    #: Of its leaders' logs, and how fast they grow.
    bytes: int | None = None
    bytes_per_s: float | None = None
    records_per_s: float | None = None
    #: The most that a follower lacks.
    lag: int | None = None


class BrokerRow(msgspec.Struct, frozen=True, kw_only=True):
    """gone: it has replicas, and is not registered."""

    id: BrokerId
    condition: BrokerCondition
    address: str | None
    rack: str | None
    epoch: int | None
    leads: int
    hosts: int
    #: Its replicas that are not in sync.
    lacking: int
    bytes: int | None = None
    #: Why it does not say how large its logs are.
    error: str = ""


class View(msgspec.Struct, frozen=True, kw_only=True):
    """whole: everything; else topics and partitions have only what has changed since the version that was asked for."""

    version: int
    whole: bool
    now_ms: int
    ages: dict[str, Age]
    health: Health | None
    brokers: tuple[BrokerRow, ...]
    moves: tuple[ReassignmentDescription, ...]
    topics: tuple[TopicRow, ...]
    #: By topic.
    partitions: dict[str, list[PartitionRow]]


class Unchanged(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    now_ms: int
    ages: dict[str, Age]


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """Of the last ten minutes, as far as somebody was looking. Each list has a value for each of at_ms."""

    at_ms: list[int]
    bytes: list[int | None]
    bytes_per_s: list[float | None]
    records_per_s: list[float | None]
    lag: list[int | None]


class PartitionSize(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    partition: int
    bytes: int | None
    bytes_per_s: float | None
    lag: int | None


class TopicDetail(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    topic_id: str
    #: Those that it sets for itself.
    settings: dict[str, Scalar]
    #: Name and type of each column; a sentence in its place if it cannot be read.
    columns: list[tuple[str, str]]
    schema_error: str
    schema_version: int
    sizes: list[PartitionSize]
    series: Series
    age: Age


class ReplicaRow(msgspec.Struct, frozen=True, kw_only=True):
    broker: BrokerId
    role: Role
    is_live: bool
    is_adding: bool
    is_removing: bool
    bytes: int | None
    #: Records that it lacks, as its leader sees it.
    lag: int | None
    error: str


class PartitionDetail(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    row: PartitionRow
    replicas: list[ReplicaRow]
    last_known_leader: BrokerId | None
    last_known_elr: list[BrokerId]
    recovering: bool
    #: What keeps it from health, and what mends that.
    trouble: str
    mend: str
    move: ReassignmentDescription | None
    series: Series
    age: Age


class Hosted(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    topic: str
    partition: int
    role: Role
    bytes: int | None


class BrokerDetail(msgspec.Struct, frozen=True, kw_only=True):
    row: BrokerRow
    #: The first of them, those that are not in sync before all others; row.hosts says how many there are.
    hosted: list[Hosted]
    series: Series
    age: Age


class Events(msgspec.Struct, frozen=True, kw_only=True):
    """The oldest first."""

    events: tuple[ToldEvent, ...]
    age: Age

"""The JSON answers of the page's server. Times are milliseconds since 1970, sizes are bytes, null means unknown.

| path | answer |
| --- | --- |
| `/api/view?since=VERSION` | View; Unchanged, if nothing has changed for two seconds |
| `/api/topics/NAME` | TopicDetail |
| `/api/topics/NAME/NUMBER` | PartitionDetail |
| `/api/brokers/ID` | BrokerDetail |
| `/api/events?partition=&topic=&broker=&cause=&last=` | Events |
| `/metrics`, `/brokers/ID/metrics` | Prometheus' text, of the controller and of a broker |
| `/healthz` | text: 200 if the process lives |
| `/readyz` | text: 200 if the cluster has a controller, and has answered within the last 10 s; else 503 |

A failure is answered with `{"error", "message"}` and a status of HTTP: 404 if there is no such thing.
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
    #: Why the newest question has no answer; empty if it has one.
    error: str = ""


class PartitionRow(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Encoded as a list in this order, since there may be 10,000 rows."""

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
    #: The most replicas that one of its partitions has.
    replicas: int
    leaderless: int
    under_min_isr: int
    under_replicated: int
    moving: int
    #: The size of its leaders' logs.
    bytes: int | None = None
    #: How fast these logs grow.
    bytes_per_s: float | None = None
    records_per_s: float | None = None
    #: The largest lag of a follower, in records.
    lag: int | None = None


class BrokerRow(msgspec.Struct, frozen=True, kw_only=True):
    id: BrokerId
    #: `gone` if it has replicas and is not registered.
    condition: BrokerCondition
    address: str | None
    rack: str | None
    epoch: int | None
    leads: int
    hosts: int
    #: How many of its replicas are not in the ISR.
    lacking: int
    bytes: int | None = None
    #: Why the broker did not tell the sizes of its logs; empty if it did.
    error: str = ""


class View(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    #: Whether this is everything; else topics and partitions have only what has changed since the viewer's version.
    whole: bool
    now_ms: int
    ages: dict[str, Age]
    health: Health | None
    brokers: tuple[BrokerRow, ...]
    moves: tuple[ReassignmentDescription, ...]
    topics: tuple[TopicRow, ...]
    #: The rows of each topic.
    partitions: dict[str, list[PartitionRow]]


class Unchanged(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    now_ms: int
    ages: dict[str, Age]


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """Measures of the last ten minutes, as far as somebody was looking. Each list has a value for each of at_ms."""

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
    #: The settings that the topic overrides.
    settings: dict[str, Scalar]
    #: Name and type of each column.
    columns: list[tuple[str, str]]
    #: Why the schema cannot be read; empty if it can.
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
    #: How many records it lacks, as its leader sees it.
    lag: int | None
    error: str


class PartitionDetail(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    row: PartitionRow
    replicas: list[ReplicaRow]
    last_known_leader: BrokerId | None
    last_known_elr: list[BrokerId]
    recovering: bool
    #: Why the partition is not healthy; empty if it is.
    trouble: str
    #: What mends that trouble.
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
    #: At most HOSTED_MAX of its replicas, those that are not in sync first; row.hosts counts all of them.
    hosted: list[Hosted]
    series: Series
    age: Age


class Events(msgspec.Struct, frozen=True, kw_only=True):
    #: The oldest first.
    events: tuple[ToldEvent, ...]
    age: Age

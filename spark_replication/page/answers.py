"""The JSON answers of the page's server. Times are milliseconds since 1970, sizes are bytes, null means unknown.

| path | answer |
| --- | --- |
| `/api/view?since=VERSION` | View; Unchanged, if nothing has changed for two seconds |
| `/api/topics/NAME` | TopicDetail |
| `/api/topics/NAME/NUMBER` | PartitionDetail |
| `/api/topics/NAME/records` | RecordsShown; page.records has the parameters |
| `/api/brokers/ID` | BrokerDetail |
| `/api/groups?topic=` | GroupsShown, of all groups, or of those that read a topic, as they do it |
| `/api/groups/NAME` | GroupDetail |
| `/api/events?partition=&topic=&broker=&cause=&last=` | Events |
| `/api/settings?topic=&broker=` | SettingsInForce, of all processes, of a broker, or of a topic by the controller |
| `/api/acls` | AclsShown |
| `/docs`, `/docs/PAGE` | HTML: the guide |
| `/metrics`, `/brokers/ID/metrics` | Prometheus' text, of the controller and of a broker |
| `/groups/metrics` | the same, of how far consumer groups are behind |
| `/healthz` | text: 200 if the process lives |
| `/readyz` | text: 200 if the cluster has a controller, and has answered within the last 10 s; else 503 |

A failure is answered with `{"error", "message"}` and a status of HTTP: 404 if there is no such thing.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from spark_replication.client.asking.health import Health
from spark_replication.client.asking.replica_sizes import ReassignmentDescription
from spark_replication.messages.mirroring import ToldEvent
from spark_replication.model import BrokerId, Scalar
from spark_replication.view.conditions import Condition
from spark_replication.view.groups import GroupSummary
from spark_replication.view.problem import Mend
from spark_replication.view.table_lags import TopicTableLag

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
    #: The worst that holds first; it is shown as that.
    conditions: tuple[Condition, ...]
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
    """Measures of the last minutes, since the page's process has run. Each list has a value for each of at_ms."""

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
    #: As its leader has them; without one, as its largest replica does.
    log_start: int | None = None
    high_watermark: int | None = None
    log_end: int | None = None


class PartitionTable(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """How far the table is behind a partition, as its leader tells."""

    partition: int
    table_end: int | None
    rows_behind: int | None
    ms_behind: int | None
    held_back_bytes: int | None


class ShownTable(msgspec.Struct, frozen=True, kw_only=True):
    whole: TopicTableLag
    partitions: list[PartitionTable]


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
    #: None if the topic is no table.
    table: ShownTable | None
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
    log_start: int | None
    high_watermark: int | None
    log_end: int | None
    error: str


class PartitionDetail(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    row: PartitionRow
    replicas: list[ReplicaRow]
    last_known_leader: BrokerId | None
    last_known_elr: list[BrokerId]
    recovering: bool
    #: Its log begins there or above: all below is in the topic's table alone. None if no offset was set.
    start_at: int | None
    #: Why the partition is not healthy; empty if it is.
    trouble: str
    #: What mends that trouble.
    mend: str
    #: The same, with each command by itself.
    mends: list[Mend]
    #: Where the guide tells more, as `operate#a-clock-is-wrong`; empty if nowhere.
    guide: str
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


class GroupsShown(msgspec.Struct, frozen=True, kw_only=True):
    #: Those most behind first, at most groups.GROUPS_MAX.
    groups: tuple[GroupSummary, ...]
    #: How many there are.
    count: int
    age: Age


class GroupMemberRow(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    name: str
    host: str
    partitions: int
    #: How many of these it is to hand over to others.
    hands_over: int
    heard_ms: int
    is_connected: bool


class GroupPartitionRow(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    topic: str
    partition: int
    #: Where the group goes on. None: it has never committed here.
    offset: int | None
    end: int | None
    behind: int | None
    committed_ms: int | None
    #: The name of the member that reads it. None: nobody does.
    member: str | None


class GroupDetail(msgspec.Struct, frozen=True, kw_only=True):
    summary: GroupSummary
    #: At most groups.MEMBERS_MAX.
    members: list[GroupMemberRow]
    #: Those most behind first, at most groups.PARTITIONS_MAX.
    partitions: list[GroupPartitionRow]
    age: Age


class SettingRow(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    setting: str
    value: Scalar
    #: Where the value comes from, as core.settings_in_force has it.
    origin: str
    #: Who has it so: `controller`, `broker 1`.
    processes: tuple[str, ...]


class SettingsInForce(msgspec.Struct, frozen=True, kw_only=True):
    #: Those that are no default first.
    rows: tuple[SettingRow, ...] = ()
    #: Where the topic's table lies, if the settings are a topic's that is a table.
    table_uri: str | None = None
    #: What is set for the cluster, as the controller has it, or else a broker. None: nobody says.
    of_cluster: dict[str, Scalar] | None = None
    #: Where each process keeps its files, a broker its logs: on its own host.
    directories: dict[str, str] = {}
    #: Why each of the others does not tell.
    errors: dict[str, str] = {}
    age: Age


class AclRow(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """As messages.acls.Acl has it."""

    principal: str
    effect: str
    right: str
    kind: str
    name: str
    host: str


class AclsShown(msgspec.Struct, frozen=True, kw_only=True):
    """Empty, with the error, if whoever this page asks as may not see them."""

    acls: tuple[AclRow, ...] = ()
    #: They may do everything that clients may. Empty: ACLs do not count.
    super_users: tuple[str, ...] = ()
    age: Age


class Events(msgspec.Struct, frozen=True, kw_only=True):
    #: The oldest first.
    events: tuple[ToldEvent, ...]
    age: Age


class RecordRow(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    partition: int
    offset: int
    at_ms: int
    #: What is shown of its columns: a shortened text, or null.
    cells: list[str | None]


class SeenOffsets(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The records of [start, end) were looked at, and those of them that fulfil the filter are in the answer."""

    partition: int
    start: int
    end: int
    log_start: int
    high_watermark: int


class RecordsShown(msgspec.Struct, frozen=True, kw_only=True):
    topic_id: str
    #: Name and type of each column that is shown.
    columns: list[tuple[str, str]]
    #: How many columns the topic has.
    columns_in_all: int
    #: The oldest first. Rows of a partition are in its order.
    rows: list[RecordRow]
    seen: list[SeenOffsets]
    #: Whether the look at a partition ended early, since it took too much: it goes on from `seen`.
    is_cut: bool
    #: Partitions that are not shown, since nobody leads them.
    leaderless: list[int]

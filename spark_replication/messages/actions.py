"""Every request that is a Flight action: its name on the wire, the type of its answer, and who may ask.

No other module knows these names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from spark_replication.messages.acls import Need, Right
from spark_replication.messages.commands import (
    CommandAnswer,
    GetReplicaLogInfo,
    LeaderAndIsr,
    ReplicaLogInfos,
    StopReplica,
    TellNotes,
    UpdateMetadata,
)
from spark_replication.messages.descriptions import (
    DescribeReplicas,
    DescribeTopics,
    GetMetadata,
    Metadata,
    ReplicaSizes,
    TopicPage,
)
from spark_replication.messages.envelope import Done
from spark_replication.messages.groups import DeleteGroup, DescribedGroups, DescribeGroups, OpenGroups, ResetGroup
from spark_replication.messages.guarding import (
    BrokerDied,
    DiskFailed,
    Guarding,
    GuardingAnswer,
    LeaseAnswer,
    RenewLease,
    Shutdown,
)
from spark_replication.messages.introducing import Admission, Challenge, Introduce, Prove
from spark_replication.messages.mending import BatchCopy, CopyBatch, DiskDamaged
from spark_replication.messages.mirroring import DescribeEvents, RebuildMirror, ToldEvents
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
from spark_replication.messages.ranges import DescribeRanges, FoundRanges
from spark_replication.messages.records import InitProducer, ProducerId
from spark_replication.messages.requests import (
    AcknowledgeLoss,
    AddPartitions,
    CancelReassignment,
    ChangeAcls,
    Configure,
    CreateTopic,
    DeleteTopic,
    DescribeAcls,
    DescribeQuotas,
    ElectLeaders,
    Reassign,
    RemovePartitions,
    Request,
    RequestAnswer,
    SetQuota,
    ToldAcls,
    ToldQuotas,
    WidenTopic,
)
from spark_replication.messages.tables import OpenTable, TableEndsTaken, TellTableEnds

Asked = TypeVar("Asked", bound=msgspec.Struct)
Told = TypeVar("Told", bound=msgspec.Struct)


#: Whether the topic, or the group, of this name may be seen.
Sees = Callable[[str], bool]


class Action(NamedTuple, Generic[Asked, Told]):
    name: str
    request: type[Asked]
    answer: type[Told]
    #: What whoever asks has to have. None: nothing, not even a name.
    needs: Callable[[Asked], Iterable[Need]] | None
    #: What of the answer is told to an asker that may not see all topics.
    seen: Callable[[Told, Sees], Told] = lambda told, _sees: told
    #: What of the answer is told to an asker that may not see all groups.
    seen_groups: Callable[[Told, Sees], Told] = lambda told, _sees: told
    #: It changes nothing: whoever got no answer is as before.
    only_asks: bool = False


# Needs. Whoever gives orders to brokers, or takes their place, can lose what was acknowledged: cluster_action.


def _of_cluster(right: Right) -> Callable[[Any], Iterable[Need]]:
    needed = (Need(right),)
    return lambda _asked: needed


def _nothing(_asked: Any) -> Iterable[Need]:
    """But a name, where callers have one."""
    return ()


def _altered(topics: Iterable[str]) -> Iterable[Need]:
    return [Need("alter", topic) for topic in topics]


def _described(topics: Iterable[str] | None) -> Iterable[Need]:
    """topics: None means every topic that the caller may see."""
    return [Need("describe", topic) for topic in dict.fromkeys(topics or ())]


def _of_replicas(asked: DescribeReplicas) -> Iterable[Need]:
    return _described(None if asked.partitions is None else (partition.topic for partition in asked.partitions))


def _of_ranges(asked: DescribeRanges) -> Iterable[Need]:
    """Who has the files reads them."""
    return [Need("read" if wanted.files else "describe", wanted.topic_partition.topic) for wanted in asked.ranges]


def _of_settings(asked: Configure) -> Iterable[Need]:
    return (Need("alter", asked.topic),)


def _of_settings_in_force(asked: DescribeSettings) -> Iterable[Need]:
    return (Need("describe"), *_described(None if asked.topic is None else [asked.topic]))


# What is seen of an answer.


def _seen_metadata(told: Metadata, sees: Sees) -> Metadata:
    """Without the mark, which another answer would have, too."""
    return replace(told, topics=tuple(topic for topic in told.topics if sees(topic.name)), mark="")


def _seen_sizes(told: ReplicaSizes, sees: Sees) -> ReplicaSizes:
    return ReplicaSizes(replicas=tuple(replica for replica in told.replicas if sees(replica.topic)))


def _seen_groups(told: DescribedGroups, sees: Sees) -> DescribedGroups:
    return replace(told, groups=tuple(group for group in told.groups if sees(group.group)))


# Served by every broker and by the controller.
INTRODUCE = Action("introduce", Introduce, Challenge, None)
PROVE = Action("prove", Prove, Admission, None)
METADATA = Action(
    "metadata", GetMetadata, Metadata, lambda asked: _described(asked.topics), _seen_metadata, only_asks=True
)
# Whoever answers leaves out what may not be seen, before it makes pages of the rest.
DESCRIBE_TOPICS = Action(
    "describe_topics", DescribeTopics, TopicPage, lambda asked: _described(asked.topics), only_asks=True
)
METRICS = Action("metrics", GetMetrics, MetricsText, _of_cluster("describe"), only_asks=True)
DESCRIBE_SETTINGS = Action("describe_settings", DescribeSettings, ToldSettings, _of_settings_in_force, only_asks=True)
DESCRIBE_TOKENS = Action("describe_tokens", DescribeTokens, KnownTokens, _of_cluster("describe"), only_asks=True)

# Served by brokers.
INIT_PRODUCER = Action("init_producer", InitProducer, ProducerId, _nothing)
DESCRIBE_RANGES = Action("describe_ranges", DescribeRanges, FoundRanges, _of_ranges, only_asks=True)
# Who tells of more than the table has lets rows be deleted that nobody has.
TABLE_ENDS = Action("table_ends", TellTableEnds, TableEndsTaken, lambda asked: _altered([asked.topic]))
DESCRIBE_REPLICAS = Action(
    "describe_replicas", DescribeReplicas, ReplicaSizes, _of_replicas, _seen_sizes, only_asks=True
)
RENEW_LEASE = Action("renew_lease", RenewLease, LeaseAnswer, _of_cluster("cluster_action"))
SHUTDOWN = Action("shutdown", Shutdown, Done, _of_cluster("cluster_action"))
LEADER_AND_ISR = Action("leader_and_isr", LeaderAndIsr, CommandAnswer, _of_cluster("cluster_action"))
UPDATE_METADATA = Action("update_metadata", UpdateMetadata, CommandAnswer, _of_cluster("cluster_action"))
STOP_REPLICA = Action("stop_replica", StopReplica, CommandAnswer, _of_cluster("cluster_action"))
COPY_BATCH = Action("copy_batch", CopyBatch, BatchCopy, _of_cluster("cluster_action"), only_asks=True)
GET_REPLICA_LOG_INFO = Action("get_replica_log_info", GetReplicaLogInfo, ReplicaLogInfos, _of_cluster("cluster_action"))

# Served by brokers, of the groups that they coordinate.
DESCRIBE_GROUPS = Action(
    "describe_groups",
    DescribeGroups,
    DescribedGroups,
    lambda asked: [Need("describe", group=group) for group in asked.groups or ()],
    seen_groups=_seen_groups,
    only_asks=True,
)
RESET_GROUP = Action("reset_group", ResetGroup, Done, lambda asked: [Need("read", group=asked.group)])
DELETE_GROUP = Action("delete_group", DeleteGroup, Done, lambda asked: [Need("read", group=asked.group)])

# Served by the controller.
BROKER_DIED = Action("broker_died", BrokerDied, Done, _of_cluster("cluster_action"))
BROKER_NOTED = Action("broker_noted", TellNotes, Done, _of_cluster("cluster_action"))
DISK_FAILED = Action("disk_failed", DiskFailed, Done, _of_cluster("cluster_action"))
DISK_DAMAGED = Action("disk_damaged", DiskDamaged, Done, _of_cluster("cluster_action"))
GUARDING = Action("guarding", Guarding, GuardingAnswer, _of_cluster("cluster_action"))
REBUILD_MIRROR = Action("rebuild_mirror", RebuildMirror, Done, _of_cluster("alter"))
OPEN_GROUPS = Action("open_groups", OpenGroups, Done, _nothing)
OPEN_TABLE = Action("open_table", OpenTable, Done, lambda asked: _altered([asked.topic]))
DESCRIBE_EVENTS = Action("describe_events", DescribeEvents, ToldEvents, _of_cluster("describe"), only_asks=True)
DESCRIBE_PAGE = Action("describe_page", DescribePage, PageDescription, _of_cluster("describe"), only_asks=True)
DESCRIBE_ACLS = Action("describe_acls", DescribeAcls, ToldAcls, _of_cluster("describe"), only_asks=True)
DESCRIBE_QUOTAS = Action("describe_quotas", DescribeQuotas, ToldQuotas, _of_cluster("describe"), only_asks=True)

_COMMANDS: dict[type[msgspec.Struct], Action[Any, CommandAnswer]] = {
    action.request: action for action in (LEADER_AND_ISR, UPDATE_METADATA, STOP_REPLICA)
}


def _admin(name: str, request: type[Asked], needs: Callable[[Asked], Iterable[Need]]) -> Action[Asked, RequestAnswer]:
    return Action(name, request, RequestAnswer, needs)


# Served by the controller, for administrators.
ADMIN_REQUESTS: dict[type[Request], Action[Any, RequestAnswer]] = {
    CreateTopic: _admin("create_topic", CreateTopic, lambda asked: _altered([asked.name])),
    DeleteTopic: _admin("delete_topic", DeleteTopic, lambda asked: _altered([asked.topic])),
    AddPartitions: _admin("add_partitions", AddPartitions, lambda asked: _altered([*asked.counts, *asked.assignments])),
    RemovePartitions: _admin("remove_partitions", RemovePartitions, lambda asked: _altered(asked.partitions)),
    Reassign: _admin("reassign", Reassign, _of_cluster("alter")),
    CancelReassignment: _admin("cancel_reassignment", CancelReassignment, _of_cluster("alter")),
    AcknowledgeLoss: _admin("acknowledge_loss", AcknowledgeLoss, _of_cluster("alter")),
    ElectLeaders: _admin("elect_leaders", ElectLeaders, _of_cluster("alter")),
    Configure: _admin("configure", Configure, _of_settings),
    WidenTopic: _admin("widen_topic", WidenTopic, lambda asked: _altered([asked.topic])),
    ChangeAcls: _admin("change_acls", ChangeAcls, _of_cluster("alter")),
    SetQuota: _admin("set_quota", SetQuota, _of_cluster("alter")),
}


def action_of(command: LeaderAndIsr | StopReplica | UpdateMetadata) -> Action[Any, CommandAnswer]:
    return _COMMANDS[type(command)]

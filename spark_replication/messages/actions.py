"""Every request that is a Flight action, with its name on the wire and the type of its answer.

No other module knows these names.
"""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from spark_replication.messages.commands import (
    CommandAnswer,
    GetReplicaLogInfo,
    LeaderAndIsr,
    ReplicaLogInfos,
    StopReplica,
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
from spark_replication.messages.guarding import (
    BrokerDied,
    DiskFailed,
    Guarding,
    GuardingAnswer,
    LeaseAnswer,
    RenewLease,
    Shutdown,
)
from spark_replication.messages.mirroring import DescribeEvents, RebuildMirror, ToldEvents
from spark_replication.messages.observing import DescribePage, GetMetrics, MetricsText, PageDescription
from spark_replication.messages.ranges import DescribeRanges, FoundRanges
from spark_replication.messages.records import InitProducer, ProducerId
from spark_replication.messages.requests import (
    AddPartitions,
    CancelReassignment,
    Configure,
    CreateTopic,
    DeleteTopic,
    ElectLeaders,
    Reassign,
    RemovePartitions,
    Request,
    RequestAnswer,
    WidenTopic,
)

Asked = TypeVar("Asked", bound=msgspec.Struct)
Told = TypeVar("Told", bound=msgspec.Struct)


class Action(NamedTuple, Generic[Asked, Told]):
    name: str
    request: type[Asked]
    answer: type[Told]


# Served by every broker and by the controller.
METADATA = Action("metadata", GetMetadata, Metadata)
DESCRIBE_TOPICS = Action("describe_topics", DescribeTopics, TopicPage)
METRICS = Action("metrics", GetMetrics, MetricsText)

# Served by brokers.
INIT_PRODUCER = Action("init_producer", InitProducer, ProducerId)
DESCRIBE_RANGES = Action("describe_ranges", DescribeRanges, FoundRanges)
DESCRIBE_REPLICAS = Action("describe_replicas", DescribeReplicas, ReplicaSizes)
RENEW_LEASE = Action("renew_lease", RenewLease, LeaseAnswer)
SHUTDOWN = Action("shutdown", Shutdown, Done)
LEADER_AND_ISR = Action("leader_and_isr", LeaderAndIsr, CommandAnswer)
UPDATE_METADATA = Action("update_metadata", UpdateMetadata, CommandAnswer)
STOP_REPLICA = Action("stop_replica", StopReplica, CommandAnswer)
GET_REPLICA_LOG_INFO = Action("get_replica_log_info", GetReplicaLogInfo, ReplicaLogInfos)

# Served by the controller.
BROKER_DIED = Action("broker_died", BrokerDied, Done)
DISK_FAILED = Action("disk_failed", DiskFailed, Done)
GUARDING = Action("guarding", Guarding, GuardingAnswer)
REBUILD_MIRROR = Action("rebuild_mirror", RebuildMirror, Done)
DESCRIBE_EVENTS = Action("describe_events", DescribeEvents, ToldEvents)
DESCRIBE_PAGE = Action("describe_page", DescribePage, PageDescription)

_COMMANDS: dict[type[msgspec.Struct], Action[Any, CommandAnswer]] = {
    action.request: action for action in (LEADER_AND_ISR, UPDATE_METADATA, STOP_REPLICA)
}
# Served by the controller, for administrators.
ADMIN_REQUESTS: dict[type[Request], Action[Any, RequestAnswer]] = {
    CreateTopic: Action("create_topic", CreateTopic, RequestAnswer),
    DeleteTopic: Action("delete_topic", DeleteTopic, RequestAnswer),
    AddPartitions: Action("add_partitions", AddPartitions, RequestAnswer),
    RemovePartitions: Action("remove_partitions", RemovePartitions, RequestAnswer),
    Reassign: Action("reassign", Reassign, RequestAnswer),
    CancelReassignment: Action("cancel_reassignment", CancelReassignment, RequestAnswer),
    ElectLeaders: Action("elect_leaders", ElectLeaders, RequestAnswer),
    Configure: Action("configure", Configure, RequestAnswer),
    WidenTopic: Action("widen_topic", WidenTopic, RequestAnswer),
}


def action_of(command: LeaderAndIsr | StopReplica | UpdateMetadata) -> Action[Any, CommandAnswer]:
    return _COMMANDS[type(command)]

"""Every request that is a Flight action, with its name on the wire and the type of its answer.

No other module knows these names.
"""

from __future__ import annotations

from typing import Any, Generic, Literal, NamedTuple, TypeVar

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


#: Who may ask. `cluster`: brokers, controllers and guardians alone, since whoever gives orders to them, or takes their
#: place, can lose what was acknowledged.
Asker = Literal["client", "cluster"]


class Action(NamedTuple, Generic[Asked, Told]):
    name: str
    request: type[Asked]
    answer: type[Told]
    asker: Asker


# Served by every broker and by the controller.
METADATA = Action("metadata", GetMetadata, Metadata, "client")
DESCRIBE_TOPICS = Action("describe_topics", DescribeTopics, TopicPage, "client")
METRICS = Action("metrics", GetMetrics, MetricsText, "client")

# Served by brokers.
INIT_PRODUCER = Action("init_producer", InitProducer, ProducerId, "client")
DESCRIBE_RANGES = Action("describe_ranges", DescribeRanges, FoundRanges, "client")
DESCRIBE_REPLICAS = Action("describe_replicas", DescribeReplicas, ReplicaSizes, "client")
RENEW_LEASE = Action("renew_lease", RenewLease, LeaseAnswer, "cluster")
SHUTDOWN = Action("shutdown", Shutdown, Done, "cluster")
LEADER_AND_ISR = Action("leader_and_isr", LeaderAndIsr, CommandAnswer, "cluster")
UPDATE_METADATA = Action("update_metadata", UpdateMetadata, CommandAnswer, "cluster")
STOP_REPLICA = Action("stop_replica", StopReplica, CommandAnswer, "cluster")
GET_REPLICA_LOG_INFO = Action("get_replica_log_info", GetReplicaLogInfo, ReplicaLogInfos, "cluster")

# Served by the controller.
BROKER_DIED = Action("broker_died", BrokerDied, Done, "cluster")
DISK_FAILED = Action("disk_failed", DiskFailed, Done, "cluster")
GUARDING = Action("guarding", Guarding, GuardingAnswer, "cluster")
REBUILD_MIRROR = Action("rebuild_mirror", RebuildMirror, Done, "client")
DESCRIBE_EVENTS = Action("describe_events", DescribeEvents, ToldEvents, "client")
DESCRIBE_PAGE = Action("describe_page", DescribePage, PageDescription, "client")

_COMMANDS: dict[type[msgspec.Struct], Action[Any, CommandAnswer]] = {
    action.request: action for action in (LEADER_AND_ISR, UPDATE_METADATA, STOP_REPLICA)
}
# Served by the controller, for administrators.
ADMIN_REQUESTS: dict[type[Request], Action[Any, RequestAnswer]] = {
    CreateTopic: Action("create_topic", CreateTopic, RequestAnswer, "client"),
    DeleteTopic: Action("delete_topic", DeleteTopic, RequestAnswer, "client"),
    AddPartitions: Action("add_partitions", AddPartitions, RequestAnswer, "client"),
    RemovePartitions: Action("remove_partitions", RemovePartitions, RequestAnswer, "client"),
    Reassign: Action("reassign", Reassign, RequestAnswer, "client"),
    CancelReassignment: Action("cancel_reassignment", CancelReassignment, RequestAnswer, "client"),
    ElectLeaders: Action("elect_leaders", ElectLeaders, RequestAnswer, "client"),
    Configure: Action("configure", Configure, RequestAnswer, "client"),
    WidenTopic: Action("widen_topic", WidenTopic, RequestAnswer, "client"),
}


def action_of(command: LeaderAndIsr | StopReplica | UpdateMetadata) -> Action[Any, CommandAnswer]:
    return _COMMANDS[type(command)]

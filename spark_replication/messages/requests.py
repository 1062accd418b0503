"""What administrators ask the controller to change."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from spark_replication.messages.acls import Acl
from spark_replication.messages.envelope import Message, Part
from spark_replication.messages.introducing import PrincipalName
from spark_replication.messages.quotas import Limit, Quota, QuotaKind
from spark_replication.messages.records import Refusal
from spark_replication.model import BrokerId, Count, Epoch, PartitionNumber, Scalar, TableOrigin


class RestoredTable(Part, frozen=True, kw_only=True):
    #: Whose it is. The table of any other topic is left as it is.
    origin: TableOrigin
    #: How many columns each earlier version of the schema had, the oldest first.
    earlier_columns: tuple[Count, ...] = ()


class CreateTopic(Message, frozen=True, kw_only=True):
    """Create a topic: with `assignment`, or with `partitions` and `replication_factor`."""

    name: str
    schema: str = ""
    #: None for one partition.
    partitions: int | None = None
    #: None for the cluster's default.replication.factor.
    replication_factor: int | None = None
    assignment: dict[PartitionNumber, tuple[BrokerId, ...]] | None = None
    config: dict[str, Scalar] = msgspec.field(default_factory=dict)
    #: Go on with the table below table.path that an earlier topic of this name has left (TB7). Left out otherwise:
    #: releases that do not know it refuse this alone.
    restores: RestoredTable | UnsetType = UNSET


class DeleteTopic(Message, frozen=True, kw_only=True):
    topic: str


class AddPartitions(Message, frozen=True, kw_only=True):
    """Add partitions to topics: each topic is named in one of the two fields."""

    #: How many partitions a topic is to have in all.
    counts: dict[str, Count] = msgspec.field(default_factory=dict)
    #: The replicas of each new partition.
    assignments: dict[str, dict[PartitionNumber, tuple[BrokerId, ...]]] = msgspec.field(default_factory=dict)


class RemovePartitions(Message, frozen=True, kw_only=True):
    """Remove partitions from the tail of topics (T3): removing any other would move keys."""

    partitions: dict[str, tuple[PartitionNumber, ...]]


class PlannedFrom(Part, frozen=True, kw_only=True):
    """The state of a partition when its move was planned."""

    topic_id: str
    replicas: tuple[BrokerId, ...]


class Reassign(Message, frozen=True, kw_only=True):
    """Move partitions to other replicas."""

    #: The replicas that each partition (`orders-3`) is to have, in order of preference.
    targets: dict[str, tuple[BrokerId, ...]]
    #: What the plan of each move began from. The move of a partition that has changed since is refused, unless the
    #: partition is on its way to this target already.
    planned_from: dict[str, PlannedFrom] = msgspec.field(default_factory=dict)


class CancelReassignment(Message, frozen=True, kw_only=True):
    partitions: tuple[str, ...]


ElectionKind = Literal["preferred", "unclean", "longest_log_proactive", "longest_log_balanced", "designation"]


class ElectLeaders(Message, frozen=True, kw_only=True):
    """Elect leaders of partitions."""

    kind: ElectionKind
    #: None for all partitions that the kind can act on.
    partitions: tuple[str, ...] | None = None
    #: The leader that a designation chooses for each partition.
    desired: dict[str, BrokerId] = msgspec.field(default_factory=dict)
    #: Do not wait for a table that cannot be sealed: offsets that it has may be given again, to other records (TB5).
    without_table: bool = False


class AcknowledgeLoss(Message, frozen=True, kw_only=True):
    """Say that a person knows of the possible loss of partitions: nothing shows it any more."""

    #: Of each partition (`orders-3`), the last leader epoch of the loss that the person knows of. A later election from
    #: outside ISR and ELR is not acknowledged with it.
    known: dict[str, Epoch]


class Configure(Message, frozen=True, kw_only=True):
    """Change settings of a topic, or of the cluster."""

    #: None for the cluster.
    topic: str | None = None
    #: None removes a setting: what is set for the cluster holds again, or the default.
    settings: dict[str, Scalar | None]


class WidenTopic(Message, frozen=True, kw_only=True):
    """Add nullable columns at the end of a topic's schema."""

    topic: str
    #: The topic's schema (IPC, base64), with the new columns after its last.
    schema: str


class ChangeAcls(Message, frozen=True, kw_only=True):
    """Change who may do what: all of it at once, or nothing."""

    add: tuple[Acl, ...] = ()
    #: One that is not there is removed already.
    remove: tuple[Acl, ...] = ()


class SetQuota(Message, frozen=True, kw_only=True):
    """Set how much a principal may take."""

    #: Or EVERYBODY.
    principal: PrincipalName
    kind: QuotaKind
    #: None: no limit of its own, so that the one for everybody holds, if there is one.
    limit: Limit | None = None


Request = (
    CreateTopic
    | DeleteTopic
    | AddPartitions
    | RemovePartitions
    | Reassign
    | CancelReassignment
    | ElectLeaders
    | AcknowledgeLoss
    | Configure
    | WidenTopic
    | ChangeAcls
    | SetQuota
)


class RequestAnswer(Message, frozen=True, kw_only=True):
    """The answer to a request, once it is carried out."""

    #: The refused parts of the request, by partition (`orders-3`) or topic.
    errors: dict[str, Refusal] = msgspec.field(default_factory=dict)


class DescribeAcls(Message, frozen=True, kw_only=True):
    """Describe who may do what."""


class ToldAcls(Message, frozen=True, kw_only=True):
    """The answer to DescribeAcls."""

    acls: tuple[Acl, ...]
    #: They may do what clients may, whatever the ACLs say. Empty: ACLs do not count.
    super_users: tuple[str, ...]


class DescribeQuotas(Message, frozen=True, kw_only=True):
    """Describe how much principals may take."""


class ToldQuotas(Message, frozen=True, kw_only=True):
    """The answer to DescribeQuotas."""

    quotas: tuple[Quota, ...]
    #: Whether clients prove who they are: otherwise quotas do not count.
    count: bool

"""What admins ask of the controller."""

from __future__ import annotations

from typing import Literal

import msgspec

from spark_replication.messages.envelope import Message, Part
from spark_replication.messages.records import Refusal
from spark_replication.model import BrokerId, Count, PartitionNumber, Scalar


class CreateTopic(Message, frozen=True, kw_only=True):
    """With `assignment`, or with `partitions` and `replication_factor` (None: the cluster's defaults)."""

    name: str
    schema: str = ""
    partitions: int | None = None
    replication_factor: int | None = None
    assignment: dict[PartitionNumber, tuple[BrokerId, ...]] | None = None
    config: dict[str, Scalar] = msgspec.field(default_factory=dict)


class DeleteTopic(Message, frozen=True, kw_only=True):
    topic: str


class AddPartitions(Message, frozen=True, kw_only=True):
    """Per topic, how many there are to be in all, or the replicas of each new partition: one of the two."""

    counts: dict[str, Count] = msgspec.field(default_factory=dict)
    assignments: dict[str, dict[PartitionNumber, tuple[BrokerId, ...]]] = msgspec.field(default_factory=dict)


class RemovePartitions(Message, frozen=True, kw_only=True):
    """From the tail only (T3): any other would move keys."""

    partitions: dict[str, tuple[PartitionNumber, ...]]


class PlannedFrom(Part, frozen=True, kw_only=True):
    """How a partition was when its move was planned."""

    topic_id: str
    replicas: tuple[BrokerId, ...]


class Reassign(Message, frozen=True, kw_only=True):
    """By partition (`orders-3`), the replicas that it is to have, in order of preference.

    planned_from: of those that a plan says: one that is otherwise by now is refused.
    """

    targets: dict[str, tuple[BrokerId, ...]]
    planned_from: dict[str, PlannedFrom] = msgspec.field(default_factory=dict)


class CancelReassignment(Message, frozen=True, kw_only=True):
    partitions: tuple[str, ...]


ElectionKind = Literal["preferred", "unclean", "longest_log_proactive", "longest_log_balanced", "designation"]


class ElectLeaders(Message, frozen=True, kw_only=True):
    """desired: by partition, whom a designation makes leader. None: all partitions that the kind can act on."""

    kind: ElectionKind
    partitions: tuple[str, ...] | None = None
    desired: dict[str, BrokerId] = msgspec.field(default_factory=dict)


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

    errors: dict[str, Refusal] = msgspec.field(default_factory=dict)

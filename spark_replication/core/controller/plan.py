"""Causes, and the decisions about them, as values: what is stored, who is stopped, what follows, what is answered."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from spark_replication.core.controller.events import (
    BrokerDeathReported,
    LogInfoRead,
    LogsAhead,
    Requested,
    TableAnswered,
    Ticked,
    TookOver,
)
from spark_replication.core.law.unclean_recovery import UncleanRecovery
from spark_replication.core.law.writes import Group
from spark_replication.errors import ReplicationError, TableNotSealed
from spark_replication.messages.commands import StopPartition
from spark_replication.model import BrokerId, Epoch, TopicPartition

NOBODY: frozenset[BrokerId] = frozenset()


class BrokersMoved(msgspec.Struct, frozen=True):
    """Registrations changed, and ClusterState has the present ones. A broker in a new life may be lost and started."""

    #: The brokers whose registration ended.
    lost: frozenset[BrokerId]
    #: The brokers whose registration is new.
    started: frozenset[BrokerId]
    #: The brokers that began to shut down.
    stopping: frozenset[BrokerId] = NOBODY


class PartitionsChanged(msgspec.Struct, frozen=True):
    """ClusterState has newer states of these partitions, by somebody else's write."""

    partitions: tuple[TopicPartition, ...]


class Elect(msgspec.Struct, frozen=True):
    """Elect leaders where there is none and could be one: for this topic, or for all (None)."""

    topic: str | None = None


class Reconsider(msgspec.Struct, frozen=True):
    """The settings of these topics changed."""

    topics: tuple[str, ...]


class Recover(msgspec.Struct, frozen=True):
    """Ask for the logs of these leaderless partitions, or elect by the answers."""

    partitions: tuple[TopicPartition, ...]


class Advance(msgspec.Struct, frozen=True):
    """Take the next step of these reassignments, if it is time."""

    partitions: tuple[TopicPartition, ...]


class Resume(msgspec.Struct, frozen=True):
    """Take up what the controller before left undone, and the requests below /admin (C3)."""


class DeletePartitions(msgspec.Struct, frozen=True):
    """Remove the partitions of a topic that is marked, or with `last` the topic."""

    topic: str
    last: bool = False


class Dismiss(msgspec.Struct, frozen=True):
    """Remove the request below /admin: it is done."""

    path: str


# These follow from what happened, and are carried out before anything newer.
FollowUp = Elect | Reconsider | Recover | Advance | Resume | DeletePartitions | Dismiss
Happened = (
    TookOver
    | BrokersMoved
    | PartitionsChanged
    | Requested
    | BrokerDeathReported
    | LogsAhead
    | LogInfoRead
    | TableAnswered
    | Ticked
)
Cause = Happened | FollowUp


class Stop(msgspec.Struct, frozen=True):
    broker: BrokerId
    partition: StopPartition


class Step(msgspec.Struct, frozen=True):
    """Writes that are stored together or not at all, and who is told to stop once they are (C2)."""

    writes: Group
    stops: tuple[Stop, ...] = ()
    #: The parts of a request (`orders-3`, or a topic) that this step carries out. They are requested again if the step
    #: meets another's write.
    names: tuple[str, ...] = ()


class Reply(msgspec.Struct, frozen=True):
    """The answer to a request."""

    #: Why it was refused as a whole.
    error: ReplicationError | None = None
    #: Why parts of it (`orders-3`, or a topic) were refused.
    errors: Mapping[str, ReplicationError] = {}

    @property
    def waits(self) -> bool:
        """Whether a part of it can be done once a table is sealed."""
        return any(isinstance(error, TableNotSealed) for error in self.errors.values())


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    steps: tuple[Step, ...] = ()
    stops: tuple[Stop, ...] = ()
    #: The recoveries that change; one that is None is over.
    recoveries: Mapping[TopicPartition, UncleanRecovery | None] = {}
    #: The brokers that are asked for their logs, and of which partitions.
    asks: Mapping[BrokerId, tuple[TopicPartition, ...]] = {}
    #: The partitions whose table is to be sealed, and the leader epoch that the seal names (TB5).
    seals: Mapping[TopicPartition, Epoch] = {}
    #: What follows at once, in this order.
    then: tuple[Cause, ...] = ()
    #: The answer to a request, once all of that is done.
    reply: Reply = Reply()

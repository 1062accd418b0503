"""What is decided about a cause, as values: what is stored, who is stopped, what follows, and what is answered."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from spark_replication.core.controller.events import BrokerDeathReported, LogInfoRead, Requested, Ticked, TookOver
from spark_replication.core.law.unclean_recovery import UncleanRecovery
from spark_replication.core.law.writes import Group
from spark_replication.errors import ReplicationError
from spark_replication.messages.commands import StopPartition
from spark_replication.model import BrokerId, TopicPartition

NOBODY: frozenset[BrokerId] = frozenset()


class BrokersMoved(msgspec.Struct, frozen=True):
    """Registrations as they are now are in ClusterState; these ended, these are new (a new life may be both), and these
    began to shut down."""

    lost: frozenset[BrokerId]
    started: frozenset[BrokerId]
    stopping: frozenset[BrokerId] = NOBODY


class PartitionsChanged(msgspec.Struct, frozen=True):
    """These are newer in ClusterState than they were, by somebody else's write."""

    partitions: tuple[TopicPartition, ...]


class Elect(msgspec.Struct, frozen=True):
    """Lead what has no leader and could have one: of this topic, or of all (None)."""

    topic: str | None = None


class Reconsider(msgspec.Struct, frozen=True):
    """The settings of these topics changed."""

    topics: tuple[str, ...]


class Recover(msgspec.Struct, frozen=True):
    """These have no leader: ask for logs, or elect by what was answered."""

    partitions: tuple[TopicPartition, ...]


class Advance(msgspec.Struct, frozen=True):
    """These are being reassigned: take the next step, if it is time."""

    partitions: tuple[TopicPartition, ...]


class Resume(msgspec.Struct, frozen=True):
    """What the controller before left undone, and what lies below /admin (C3)."""


class Delete(msgspec.Struct, frozen=True):
    """The topic is marked: remove its partitions, and last the topic."""

    topic: str
    last: bool = False


class Dismiss(msgspec.Struct, frozen=True):
    """The request below /admin is done."""

    path: str


# What follows from what happened, and is carried out before anything newer.
FollowUp = Elect | Reconsider | Recover | Advance | Resume | Delete | Dismiss
Happened = TookOver | BrokersMoved | PartitionsChanged | Requested | BrokerDeathReported | LogInfoRead | Ticked
Cause = Happened | FollowUp


class Stop(msgspec.Struct, frozen=True):
    broker: BrokerId
    partition: StopPartition


class Step(msgspec.Struct, frozen=True):
    """Writes that are stored together or not at all, and who is told to stop once they are (C2).

    names: what of a request (`orders-3`, or a topic) this step carries out: it is asked for again if it meets another.
    """

    writes: Group
    stops: tuple[Stop, ...] = ()
    names: tuple[str, ...] = ()


class Reply(msgspec.Struct, frozen=True):
    """The answer to a request: why it was refused as a whole, or what of it (`orders-3`, or a topic) was."""

    error: ReplicationError | None = None
    errors: Mapping[str, ReplicationError] = {}


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """recoveries: as they are from now on (None: over). asks: whose logs are asked for. then: what follows at once, in
    this order. reply: of a request, once all of that is done."""

    steps: tuple[Step, ...] = ()
    stops: tuple[Stop, ...] = ()
    recoveries: Mapping[TopicPartition, UncleanRecovery | None] = {}
    asks: Mapping[BrokerId, tuple[TopicPartition, ...]] = {}
    then: tuple[Cause, ...] = ()
    reply: Reply = Reply()

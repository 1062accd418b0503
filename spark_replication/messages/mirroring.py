"""What administrators ask of the controller's mirror."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from spark_replication.messages.commands import PartitionCommand
from spark_replication.messages.envelope import Message, Part
from spark_replication.model import BrokerId, PartitionNumber, TimeMs, TopicPartition

EVENTS_MAX = 1_000


class RebuildMirror(Message, frozen=True, kw_only=True):
    """Compare the tables with everything that is known, and write what they lack. Done: they have it."""


class DescribeEvents(Message, frozen=True, kw_only=True):
    """The newest events that are about any of these partitions, topics and brokers.

    Without any of them: about anything.
    """

    partitions: tuple[TopicPartition, ...] = ()
    #: Events of the topic itself, and of each of its partitions.
    topics: tuple[str, ...] = ()
    brokers: tuple[BrokerId, ...] = ()
    #: Only what this set off.
    cause: str | None = None
    #: At most so many.
    last: Annotated[int, msgspec.Meta(ge=1, le=EVENTS_MAX)] = 50


def partition_face(command: PartitionCommand) -> dict[str, Any]:
    """What an event says that a partition was or became, in values that JSON has."""
    state = command.state
    return {
        "topic_id": command.topic_id,
        "leader": state.leader,
        "leader_epoch": state.leader_epoch,
        "isr": sorted(state.isr),
        "elr": sorted(state.elr) if state.elr else [],
        "last_known_elr": sorted(state.last_known_elr) if state.last_known_elr else [],
        "replicas": [*command.replicas],
        "adding": [*command.adding],
        "removing": [*command.removing],
        "recovering": state.recovering,
        "min_isr": state.min_isr,
    }


class ToldEvent(Part, frozen=True, kw_only=True, omit_defaults=True):
    """A row of the table `events`, whose columns say what each field means."""

    number: int
    at_ms: TimeMs
    kind: str
    topic: str | None = None
    partition: PartitionNumber | None = None
    broker: BrokerId | None = None
    was: dict[str, Any] | None = None
    became: dict[str, Any] | None = None
    leader: BrokerId | None = None
    leader_epoch: int | None = None
    why: str | None = None
    because: str | None = None
    cause: str | None = None

    @property
    def subject(self) -> str | None:
        """By the name that people have for it; None: it is about the whole cluster."""
        if self.broker is not None:
            return f"broker {self.broker}"
        return self.topic if self.partition is None else f"{self.topic}-{self.partition}"

    @property
    def changes(self) -> list[str]:
        """What became different; of what is new, what there is."""
        if self.was is None:
            return [f"{name} {value}" for name, value in (self.became or {}).items() if value not in (None, [], False)]
        was = self.was
        return [
            f"{name} {was.get(name)} → {value}" for name, value in (self.became or {}).items() if was.get(name) != value
        ]


class ToldEvents(Message, frozen=True, kw_only=True):
    """The answer to DescribeEvents, the oldest first."""

    events: tuple[ToldEvent, ...]

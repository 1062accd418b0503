"""What administrators ask the controller about its mirror."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from spark_replication.messages.commands import PartitionCommand
from spark_replication.messages.envelope import Message, Part
from spark_replication.model import BrokerId, PartitionNumber, TimeMs, TopicPartition

EVENTS_MAX = 1_000


class RebuildMirror(Message, frozen=True, kw_only=True):
    """Compare the tables with everything that is known, and write what they lack. The answer comes after the write."""


class DescribeEvents(Message, frozen=True, kw_only=True):
    """Read the newest events about any of these partitions, topics and brokers.

    A request that names none of them reads events about anything.
    """

    partitions: tuple[TopicPartition, ...] = ()
    #: Events about the topic itself, and about each of its partitions.
    topics: tuple[str, ...] = ()
    brokers: tuple[BrokerId, ...] = ()
    #: Only events that this cause set off.
    cause: str | None = None
    #: How many events to read at most.
    last: Annotated[int, msgspec.Meta(ge=1, le=EVENTS_MAX)] = 50


def partition_face(command: PartitionCommand) -> dict[str, Any]:
    """The state of a partition as an event has it, before or after the change: in values that JSON has."""
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
        "start_at": state.lowest_offset or None,
    }


class ToldEvent(Part, frozen=True, kw_only=True, omit_defaults=True):
    """A row of the table `events`. The columns of the table say what each field means."""

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
        """What the event is about, by the name that people use. None if it is about the whole cluster."""
        if self.broker is not None:
            return f"broker {self.broker}"
        return self.topic if self.partition is None else f"{self.topic}-{self.partition}"

    @property
    def changes(self) -> list[str]:
        """The columns that changed. For something new, the columns that have a value."""
        if self.was is None:
            return [f"{name} {value}" for name, value in (self.became or {}).items() if value not in (None, [], False)]
        was = self.was
        return [
            f"{name} {was.get(name)} → {value}" for name, value in (self.became or {}).items() if was.get(name) != value
        ]


class ToldEvents(Message, frozen=True, kw_only=True):
    """The answer to DescribeEvents."""

    #: The oldest first.
    events: tuple[ToldEvent, ...]

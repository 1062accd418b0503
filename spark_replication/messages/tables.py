"""What a table's writer tells leaders: how far the table has their partitions, so that retention may go on (TB4); and
what it asks the controller: to make the table."""

from __future__ import annotations

import msgspec

from spark_replication.messages.envelope import Message, Part
from spark_replication.messages.records import Refusal
from spark_replication.model import Epoch, Offset, PartitionNumber


class OpenTable(Message, frozen=True, kw_only=True):
    """Make the topic's table, unless it is there, and have it say what the topic is by now. The controller alone makes
    tables: a writer that does not find what the controller has made is on a host that does not share table.path, and
    would write a table of its own."""

    topic: str


class ToldTableEnd(Part, frozen=True, kw_only=True):
    partition: PartitionNumber
    #: The epoch at which the leader has said that it leads.
    leader_epoch: Epoch
    #: The table has every row below, as it was loaded or committed.
    end: Offset


class TellTableEnds(Message, frozen=True, kw_only=True):
    topic: str
    topic_id: str
    ends: tuple[ToldTableEnd, ...]


class TableEndsTaken(Message, frozen=True, kw_only=True):
    #: Of each partition that is led elsewhere, or at another epoch.
    errors: dict[PartitionNumber, Refusal] = msgspec.field(default_factory=dict)

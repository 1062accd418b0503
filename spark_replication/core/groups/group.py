"""What is known of one consumer group, and the changes that make it, which are the rows of a log.

Rules:
- Nothing but a change makes or changes a group, in the order of the log (`apply`): whoever reads all of it knows the
  group as the coordinator does.
- The group's epoch rises with each change of a member or of what it owns, and no two of these have the same. A member
  has that of its joining, and each partition that it owns has that of its grant: whoever comes with an earlier one has
  been fenced (G3).
- A partition has one owner at most.
- Owner epoch and sequence of a position never fall: a commit that comes late changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import msgspec

from spark_replication.messages.groups import Introduction
from spark_replication.model import Count, EpochOrNone, Offset, PartitionNumber, TimeMs, TopicPartition

OWNER_OF_RESETS = ""  # no member has this name


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """How far a group has come in a partition."""

    #: The id of the topic of which this is a position: one that was made again has other records.
    topic_id: str
    #: The offset of the next record.
    offset: Offset
    #: The leader epoch of the record before it; -1 if that is not known.
    last_epoch: EpochOrNone
    #: The epoch of the grant under which it was committed, or of the reset.
    owner_epoch: Count
    #: The number of the commit, among those of one member.
    sequence: Count
    #: When it was committed, by the coordinator's clock.
    committed_ms: TimeMs

    @property
    def order(self) -> tuple[int, int]:
        return self.owner_epoch, self.sequence


class Placed(NamedTuple):
    topic: str
    partition: PartitionNumber
    position: Position

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class PartitionGrant(NamedTuple):
    topic: str
    partition: PartitionNumber
    #: The group's epoch at which it was granted.
    epoch: Count

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class Member(msgspec.Struct, frozen=True, kw_only=True):
    #: The group's epoch at which it joined.
    epoch: Count
    introduction: Introduction
    owned: Mapping[TopicPartition, int]


# Changes. Each has the group's epoch after it, if it raises that.


class GroupChange(msgspec.Struct, frozen=True, kw_only=True, tag_field="change"):
    group: str


class MemberJoined(GroupChange, frozen=True, kw_only=True, tag="joined"):
    """It owns nothing, whatever a member of this name owned before."""

    epoch: Count
    member: str
    introduction: Introduction


class MemberLeft(GroupChange, frozen=True, kw_only=True, tag="left"):
    epoch: Count
    member: str
    #: The reason, for people.
    why: str
    #: By the coordinator's clock.
    left_ms: TimeMs = 0


class PartitionsGranted(GroupChange, frozen=True, kw_only=True, tag="granted"):
    epoch: Count
    member: str
    partitions: tuple[tuple[str, PartitionNumber], ...]


class PartitionsReleased(GroupChange, frozen=True, kw_only=True, tag="released"):
    epoch: Count
    member: str
    partitions: tuple[tuple[str, PartitionNumber], ...]


class PositionsCommitted(GroupChange, frozen=True, kw_only=True, tag="committed"):
    positions: tuple[Placed, ...]


class PositionsReset(GroupChange, frozen=True, kw_only=True, tag="reset"):
    """A person has set positions, or a Spark query has reported them."""

    epoch: Count
    positions: tuple[Placed, ...]
    #: Those that have none from here on.
    dropped: tuple[tuple[str, PartitionNumber], ...] = ()


class GroupDeleted(GroupChange, frozen=True, kw_only=True, tag="deleted"):
    pass


class KeptMember(NamedTuple):
    member: str
    epoch: Count
    introduction: Introduction
    owned: tuple[PartitionGrant, ...]


class GroupKept(GroupChange, frozen=True, kw_only=True, tag="kept"):
    """All of a group, as a part of a snapshot: what is before it in the log may go."""

    epoch: Count
    members: tuple[KeptMember, ...]
    positions: tuple[Placed, ...]
    left_ms: TimeMs = 0


class SnapshotBegun(msgspec.Struct, frozen=True, kw_only=True, tag_field="change", tag="snapshot"):
    """Each group that is there follows as GroupKept, unless it is deleted first, and then the end of this snapshot.
    Other changes may come between: each group is as of its own place in the log."""

    snapshot: str


class SnapshotEnded(msgspec.Struct, frozen=True, kw_only=True, tag_field="change", tag="snapshot_ended"):
    snapshot: str


Change = (
    MemberJoined
    | MemberLeft
    | PartitionsGranted
    | PartitionsReleased
    | PositionsCommitted
    | PositionsReset
    | GroupDeleted
    | GroupKept
)
Row = Change | SnapshotBegun | SnapshotEnded


class ConsumerGroup:
    """Only `apply` changes it. It is no frozen value, since a group may have 10,000 positions, and a commit changes a
    few."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.epoch = 0
        self.members: dict[str, Member] = {}
        self.positions: dict[TopicPartition, Position] = {}
        #: When a member has left it last; 0: none has.
        self.left_ms: TimeMs = 0

    @property
    def used_ms(self) -> TimeMs:
        """When it was used last, if it has no members."""
        return max(self.left_ms, *(each.committed_ms for each in self.positions.values()), 0)

    def owners(self) -> Iterator[tuple[TopicPartition, str]]:
        return ((partition, name) for name, member in self.members.items() for partition in member.owned)

    def apply(self, change: Change) -> None:
        match change:
            case MemberJoined():
                self.epoch = change.epoch
                self.members[change.member] = Member(epoch=change.epoch, introduction=change.introduction, owned={})
            case MemberLeft():
                self.epoch = change.epoch
                self.members.pop(change.member, None)
                self.left_ms = max(self.left_ms, change.left_ms)
            case PartitionsGranted():
                self.epoch = change.epoch
                granted = {TopicPartition(*each): change.epoch for each in change.partitions}
                self._own(change.member, granted, frozenset())
            case PartitionsReleased():
                self.epoch = change.epoch
                self._own(change.member, {}, {TopicPartition(*each) for each in change.partitions})
            case PositionsCommitted():
                self._place(change.positions)
            case PositionsReset():
                self.epoch = change.epoch
                self._place(change.positions)
                for each in change.dropped:
                    self.positions.pop(TopicPartition(*each), None)
            case GroupKept():
                self.epoch = change.epoch
                self.members = {
                    name: Member(
                        epoch=epoch,
                        introduction=introduction,
                        owned={grant.topic_partition: grant.epoch for grant in owned},
                    )
                    for name, epoch, introduction, owned in change.members
                }
                self.positions = {each.topic_partition: each.position for each in change.positions}
                self.left_ms = change.left_ms
            case GroupDeleted():
                self.members, self.positions = {}, {}

    def _own(self, name: str, granted: Mapping[TopicPartition, int], released: Collection[TopicPartition]) -> None:
        member = self.members.get(name)
        if member is not None:  # it has joined before the log begins, and the next snapshot has it
            kept = {each: epoch for each, epoch in member.owned.items() if each not in released}
            self.members[name] = Member(epoch=member.epoch, introduction=member.introduction, owned={**kept, **granted})

    def _place(self, positions: tuple[Placed, ...]) -> None:
        self.positions.update({each.topic_partition: each.position for each in positions})

    def kept(self) -> GroupKept:
        members = tuple(
            KeptMember(
                name,
                member.epoch,
                member.introduction,
                tuple(PartitionGrant(*partition, epoch) for partition, epoch in member.owned.items()),
            )
            for name, member in self.members.items()
        )
        positions = tuple(Placed(*partition, position) for partition, position in self.positions.items())
        return GroupKept(group=self.name, epoch=self.epoch, members=members, positions=positions, left_ms=self.left_ms)


class Groups:
    """The groups of one partition of the log, by name.

    A log may begin anywhere before the last whole snapshot. Rows before a group's own row in that may be about members
    that are not known here: what they leave is replaced by that row, or deleted before it."""

    def __init__(self) -> None:
        self.by_name: dict[str, ConsumerGroup] = {}

    def apply(self, row: Row) -> None:
        if isinstance(row, (SnapshotBegun, SnapshotEnded)):
            return
        group = self.by_name.get(row.group)
        if group is None:
            group = self.by_name[row.group] = ConsumerGroup(row.group)
        group.apply(row)
        if isinstance(row, GroupDeleted):
            del self.by_name[row.group]

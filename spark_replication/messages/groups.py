"""What members of consumer groups and their coordinator say to each other.

A member's connection carries requests, each of which is answered once, and news: what the member is to hold from here
on. News may come at any time, also before the answer to a request that was sent earlier.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import msgspec

from spark_replication.messages.envelope import Message, Part
from spark_replication.model import Count, EpochOrNone, Offset, PartitionNumber, TimeMs, TopicPartition, require

#: The topic in which groups are stored. Only the leaders of its partitions write to it.
GROUPS_TOPIC = "__groups"
GROUPS_PARTITIONS = 16
GROUPS_REPLICAS = 3  # or as many as there are brokers
SESSION_MS = (500, 3_600_000)  # least and most
ASKED_MAX = 1_000  # requests of a connection that are not answered

GROUP_NAME = r"[A-Za-z0-9._:-]{1,249}"
GroupName = Annotated[str, msgspec.Meta(pattern=f"^{GROUP_NAME}$")]
MemberName = Annotated[str, msgspec.Meta(min_length=1, max_length=249)]


#: How the names of Spark's queries begin: they go on where their checkpoints say, and have no members.
OF_SPARK = "spark:"


class OpenGroups(Message, frozen=True, kw_only=True):
    """Make the topic in which groups are stored, unless it is there."""


class Introduction(Part, frozen=True, kw_only=True):
    """What a member says of itself as it joins."""

    #: It reads these, once they exist.
    topics: tuple[str, ...]
    #: Where it runs: it is given partitions that have a replica there, if that is as even.
    host: str
    #: What people know it by.
    name: str
    #: It is out of the group once it has been silent for so long.
    session_ms: Annotated[int, msgspec.Meta(ge=SESSION_MS[0], le=SESSION_MS[1])]

    def __post_init__(self) -> None:
        require(bool(self.topics), "it reads no topic: name one at least")
        require(len(set(self.topics)) == len(self.topics), "a topic is named twice: name each once")


class Commit(Part, frozen=True, kw_only=True):
    """How far a member has come in a partition that it owns."""

    topic: str
    partition: PartitionNumber
    topic_id: str
    #: The epoch of the grant under which it owns the partition.
    owner_epoch: Count
    #: The offset of the next record.
    offset: Offset
    #: The leader epoch of the record before that.
    last_epoch: EpochOrNone = -1

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class Holding(NamedTuple):
    topic: str
    partition: PartitionNumber


# Requests of a member.


class JoinGroup(Part, frozen=True, kw_only=True, tag="join"):
    """Become a member that holds nothing, whatever a member of this name held before."""

    group: GroupName
    member: MemberName
    introduction: Introduction


class Beat(Part, frozen=True, kw_only=True, tag="beat", omit_defaults=True):
    """Sign of life."""

    group: GroupName
    member: MemberName
    epoch: Count
    #: The group's epoch of the newest news that the member has taken in.
    heard: Count
    #: What it holds. None: as it said before, over this connection.
    held: tuple[Holding, ...] | None = None


class CommitPositions(Part, frozen=True, kw_only=True, tag="commit", omit_defaults=True):
    group: GroupName
    member: MemberName
    epoch: Count
    #: Rises with each commit of a member.
    sequence: Count
    positions: tuple[Commit, ...]
    #: Whether somebody waits for it. Others are stored a little later, together.
    is_awaited: bool = False


class LeaveGroup(Part, frozen=True, kw_only=True, tag="leave"):
    group: GroupName
    member: MemberName
    epoch: Count


GroupRequest = JoinGroup | Beat | CommitPositions | LeaveGroup


# What a coordinator says.


class Joined(Part, frozen=True, kw_only=True, tag="joined"):
    #: The member's, until it joins again.
    epoch: Count


class Beaten(Part, frozen=True, kw_only=True, tag="beaten"):
    """The member is one, and what it was told to hold is as it was."""


class CommitTaken(Part, frozen=True, kw_only=True, tag="committed"):
    #: The partitions that the member does not own any longer: nothing was committed there.
    refused: tuple[Holding, ...] = ()


class Left(Part, frozen=True, kw_only=True, tag="left"):
    pass


class GroupRefusal(Part, frozen=True, kw_only=True, tag="refused"):
    error: str
    message: str


GroupAnswer = Joined | Beaten | CommitTaken | Left | GroupRefusal


class HeldPartition(Part, frozen=True, kw_only=True, omit_defaults=True):
    topic: str
    partition: PartitionNumber
    #: The epoch of its grant.
    owner_epoch: Count
    #: Where the group goes on: None if it has not committed there.
    topic_id: str | None = None
    offset: Offset = 0
    last_epoch: EpochOrNone = -1

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class GroupNews(Part, frozen=True, kw_only=True):
    """All that a member is to hold. What it holds besides it hands over: it ends what it does with that, commits, and
    says that it does not hold it any longer."""

    group: GroupName
    member: MemberName
    epoch: Count
    #: The group's.
    heard: Count
    partitions: tuple[HeldPartition, ...]


class GroupFrame(Message, frozen=True, kw_only=True, tag_field="type", tag="group"):
    """A request, by a member or on its way to become one."""

    #: The request's name on this connection until it is answered.
    number: Count
    asked: GroupRequest


class GroupAnswerFrame(Message, frozen=True, kw_only=True, tag_field="type", tag="group_answer"):
    number: Count
    told: GroupAnswer


class GroupNewsFrame(Message, frozen=True, kw_only=True, tag_field="type", tag="group_news"):
    news: GroupNews


# What people ask of a coordinator.


class DescribeGroups(Message, frozen=True, kw_only=True):
    #: None for all that the broker coordinates. One that nobody has heard of is left out.
    groups: tuple[GroupName, ...] | None = None


class DescribedMember(Part, frozen=True, kw_only=True):
    member: str
    introduction: Introduction
    #: What it owns.
    partitions: tuple[Holding, ...]
    #: What of that it is to hand over.
    hands_over: tuple[Holding, ...]
    #: How long it has not been heard of.
    silent_ms: Count
    #: Whether it is connected.
    is_connected: bool


class DescribedPosition(Part, frozen=True, kw_only=True):
    topic: str
    partition: PartitionNumber
    topic_id: str
    offset: Offset
    last_epoch: EpochOrNone
    committed_ms: TimeMs

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class DescribedGroup(Part, frozen=True, kw_only=True):
    group: str
    epoch: Count
    members: tuple[DescribedMember, ...]
    #: In the order of their partitions.
    positions: tuple[DescribedPosition, ...]


class DescribedGroups(Message, frozen=True, kw_only=True):
    #: In the order of their names.
    groups: tuple[DescribedGroup, ...]
    #: The partitions of the groups' log that this broker leads and cannot tell of yet.
    unread: tuple[PartitionNumber, ...] = ()


class ResetPlace(Part, frozen=True, kw_only=True):
    topic: str
    partition: PartitionNumber
    topic_id: str
    offset: Offset
    last_epoch: EpochOrNone = -1


class ResetGroup(Message, frozen=True, kw_only=True):
    """Set positions of a group without members, or make one that has these: a person says so, or a Spark query tells
    how far it is."""

    group: GroupName
    places: tuple[ResetPlace, ...] = ()
    #: Those that are to have no position any longer.
    dropped: tuple[Holding, ...] = ()


class DeleteGroup(Message, frozen=True, kw_only=True):
    """Forget a group without members."""

    group: GroupName

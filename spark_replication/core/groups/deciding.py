"""What a coordinator decides about one group: each function takes what was asked, and returns the changes to store.

The caller appends the changes to the group's log, and then applies them (core.groups.group). It answers once they are
committed. A refusal raises, and changes nothing.

| event                                      | changes                                                              |
| ------------------------------------------ | -------------------------------------------------------------------- |
| joins                                      | MemberJoined; it owns nothing yet                                    |
| says what it holds                         | PartitionsReleased, of what it was told to own and holds no longer   |
| leaves, or is silent for its session       | MemberLeft                                                           |
| keeps a partition that it is to hand over  | MemberLeft, after HANDOVER_MS                                        |
| a partition has no owner, and one is due   | PartitionsGranted                                                    |
| commits                                    | PositionsCommitted, of what it owns and has not committed beyond     |
| a person resets positions, or a Spark      | PositionsReset, if the group has no members                          |
| query reports its own                      |                                                                      |
| a person deletes it, or it has been of no  | GroupDeleted, if the group has no members                            |
| use for long (core.groups.idle)            |                                                                      |
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from spark_replication.core.groups.group import (
    OWNER_OF_RESETS,
    Change,
    ConsumerGroup,
    GroupDeleted,
    Member,
    MemberJoined,
    MemberLeft,
    PartitionsGranted,
    PartitionsReleased,
    Placed,
    Position,
    PositionsCommitted,
    PositionsReset,
)
from spark_replication.core.groups.sharing import Hosts, Wish, shares
from spark_replication.errors import FencedMemberEpoch, GroupNotEmpty, InvalidRequest, UnknownMember
from spark_replication.messages.groups import OF_SPARK, Commit, Introduction
from spark_replication.model import Offset, TopicPartition

HANDOVER_MS = 60_000  # so long a member may work on what it has of a partition that another one is to have
MEMBERS_MAX = 1_000  # of a group
POSITIONS_MAX = 100_000  # of a group
NAMED_MAX = 5  # members in a refusal


class MemberShares(NamedTuple):
    """What each member is to own in the end, and what of it nobody owns yet."""

    targets: Mapping[str, frozenset[TopicPartition]]

    def keeps(self, name: str, member: Member) -> dict[TopicPartition, int]:
        """What the member is to hold of what it owns, with the epochs of the grants."""
        target = self.targets.get(name, frozenset())
        return {partition: epoch for partition, epoch in member.owned.items() if partition in target}

    def hands_over(self, name: str, member: Member) -> list[TopicPartition]:
        target = self.targets.get(name, frozenset())
        return [partition for partition in member.owned if partition not in target]


def member_of(group: ConsumerGroup, name: str, epoch: int) -> Member:
    """The member that this is. Raises UnknownMember or FencedMemberEpoch."""
    member = group.members.get(name)
    if member is None:
        raise UnknownMember(
            f"{name} is no member of group {group.name}: it has left, or was silent for its session. Join again; what "
            "was not committed is read by who owns its partitions"
        )
    if member.epoch != epoch:
        raise FencedMemberEpoch(
            f"{name} has joined group {group.name} again since, at epoch {member.epoch}: what it knows of epoch "
            f"{epoch} is over"
        )
    return member


def joins(group: ConsumerGroup, name: str, introduction: Introduction) -> list[Change]:
    if name == OWNER_OF_RESETS:
        raise InvalidRequest("a member has a name: choose one that nobody else has")
    if group.name.startswith(OF_SPARK):
        raise InvalidRequest(
            f"group {group.name} is a Spark query, which shares nothing: a consumer of it would be told positions that "
            "the query sets. Choose another name"
        )
    if name not in group.members and len(group.members) >= MEMBERS_MAX:
        raise InvalidRequest(f"group {group.name} has {MEMBERS_MAX} members: use another group")
    joined = MemberJoined(group=group.name, epoch=group.epoch + 1, member=name, introduction=introduction)
    return [joined]


def leaves(group: ConsumerGroup, name: str, why: str, now_ms: int) -> list[Change]:
    left_ms = max(0, now_ms)
    return [MemberLeft(group=group.name, epoch=group.epoch + 1, member=name, why=why, left_ms=left_ms)]


def holds(group: ConsumerGroup, name: str, epoch: int, held: Collection[TopicPartition], heard: int) -> list[Change]:
    """held: what the member holds, as of the group's epoch that it has `heard` of. What was granted after that it
    cannot hold yet."""
    member = member_of(group, name, epoch)
    released = sorted(each for each, granted in member.owned.items() if granted <= heard and each not in held)
    if not released:
        return []
    return [PartitionsReleased(group=group.name, epoch=group.epoch + 1, member=name, partitions=tuple(released))]


def assignment(group: ConsumerGroup, partitions: Hosts) -> MemberShares:
    """partitions: all that exist of the topics that its members read, with the hosts of their replicas in sync."""
    wishes = {
        name: Wish(member.introduction.topics, member.introduction.host, member.owned)
        for name, member in group.members.items()
    }
    return MemberShares(shares(wishes, partitions))


def grants(group: ConsumerGroup, assigned: MemberShares) -> list[Change]:
    """Whoever is to own a partition that nobody owns gets it."""
    owned = {partition for partition, _ in group.owners()}
    found: list[Change] = []
    for name, target in sorted(assigned.targets.items()):
        free = tuple(sorted(target - owned))
        if free:
            epoch = group.epoch + 1 + len(found)
            found.append(PartitionsGranted(group=group.name, epoch=epoch, member=name, partitions=free))
    return found


class TakenCommit(NamedTuple):
    changes: list[Change]
    #: The partitions that the member does not own any longer: nothing was committed there.
    refused: tuple[TopicPartition, ...]


def commits(
    group: ConsumerGroup, name: str, epoch: int, sequence: int, wanted: Sequence[Commit], now_ms: int
) -> TakenCommit:
    """A commit that is older than what is stored is taken, and changes nothing."""
    member = member_of(group, name, epoch)
    refused = tuple(
        each.topic_partition for each in wanted if member.owned.get(each.topic_partition) != each.owner_epoch
    )
    placed: list[Placed] = []
    for each in wanted:
        known = group.positions.get(each.topic_partition)
        if each.topic_partition in refused or (known is not None and known.order >= (each.owner_epoch, sequence)):
            continue
        position = Position(
            topic_id=each.topic_id,
            offset=each.offset,
            last_epoch=each.last_epoch,
            owner_epoch=each.owner_epoch,
            sequence=sequence,
            committed_ms=max(0, now_ms),
        )
        placed.append(Placed(each.topic, each.partition, position))
    if len(group.positions) + len(placed) > POSITIONS_MAX:
        raise InvalidRequest(f"group {group.name} has {POSITIONS_MAX} positions: use another group")
    committed: list[Change] = [PositionsCommitted(group=group.name, positions=tuple(placed))]
    return TakenCommit(committed if placed else [], refused)


def resets(
    group: ConsumerGroup,
    places: Mapping[TopicPartition, tuple[str, Offset, int]],
    dropped: Collection[TopicPartition],
    now_ms: int,
) -> list[Change]:
    """places: topic_id, offset, and the leader epoch of the record before it. Raises GroupNotEmpty: its members would
    go on where they are, and commit that."""
    require_empty(group.name, _hosts(group), "reset")
    epoch = group.epoch + 1
    placed = tuple(
        Placed(
            *partition,
            Position(
                topic_id=topic_id,
                offset=offset,
                last_epoch=last_epoch,
                owner_epoch=epoch,
                sequence=0,
                committed_ms=max(0, now_ms),
            ),
        )
        for partition, (topic_id, offset, last_epoch) in sorted(places.items())
    )
    return [PositionsReset(group=group.name, epoch=epoch, positions=placed, dropped=tuple(sorted(dropped)))]


def deletes(group: ConsumerGroup) -> list[Change]:
    require_empty(group.name, _hosts(group), "deleted")
    return [GroupDeleted(group=group.name)]


def require_empty(group: str, hosts: Mapping[str, str], what: str) -> None:
    """hosts: of each member. what: is done to its positions. Raises GroupNotEmpty."""
    if hosts:
        named = ", ".join(f"{name} on {host}" for name, host in [*hosts.items()][:NAMED_MAX])
        raise GroupNotEmpty(
            f"group {group} has {len(hosts)} members ({named}): its positions are {what} once they have left. Stop "
            "them, and try again"
        )


def _hosts(group: ConsumerGroup) -> dict[str, str]:
    return {name: member.introduction.host for name, member in group.members.items()}

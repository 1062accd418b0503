"""Coordinates the groups of one partition of their log, as long as its replica here leads (G2).

| event                              | what follows                                                                   |
| ---------------------------------- | ------------------------------------------------------------------------------ |
| the log is read                    | each member has a session from here on                                         |
| a request                          | core.groups decides; it is answered once the changes, and all that was decided |
|                                    | before, are committed                                                          |
| what a member may hold has changed | news for it, once that is committed                                            |
| a member's session is over         | it has left                                                                    |
| a member's connection ends         | its session ends soon, unless it comes back                                    |
| nobody has used a group for long   | it is forgotten (core.groups.idle)                                             |

What is decided counts for the next decision at once, and for nobody else before it is committed: it is lost with the
leadership, together with all that followed from it (engine.groups.group_log).

All is done on the broker's loop. Whoever calls a method that takes a replica has its partition.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple, Protocol

from spark_replication.core.groups import deciding
from spark_replication.core.groups.deciding import HANDOVER_MS, MemberShares
from spark_replication.core.groups.group import (
    Change,
    ConsumerGroup,
    Groups,
    MemberJoined,
    MemberLeft,
    PartitionsGranted,
    PartitionsReleased,
)
from spark_replication.core.groups.idle import IdleGroups
from spark_replication.core.groups.sharing import Hosts
from spark_replication.engine.groups.group_log import SNAPSHOT_ROWS_MIN, GroupLog, Load, Soon
from spark_replication.engine.replica.replica_loop import ReplicaLoop
from spark_replication.errors import ReplicationError
from spark_replication.messages.groups import (
    Beat,
    Beaten,
    CommitPositions,
    CommitTaken,
    DeleteGroup,
    DescribedGroup,
    DescribedMember,
    DescribedPosition,
    GroupAnswer,
    GroupNews,
    GroupRequest,
    HeldPartition,
    Holding,
    Joined,
    JoinGroup,
    LeaveGroup,
    Left,
    ResetGroup,
)
from spark_replication.model import Offset, TopicPartition
from spark_replication.ports import GroupRows

LATE_MS = 1_000  # a tick that comes so late: this process was stopped, and the members were not heard
HUNG_UP_PARTS = 4  # of a session: what is left of it once its connection has ended

log = logging.getLogger(__name__)


class MemberLink(Protocol):
    """The connection that a member's requests come over."""

    def answer(self, number: int, told: GroupAnswer | ReplicationError) -> None: ...
    def tell(self, news: GroupNews) -> None: ...


class Around(Protocol):
    """What a coordinator needs of its broker."""

    @property
    def version(self) -> object:
        """Another object once there are other partitions."""

    def hosts(self, topics: Iterable[str]) -> Hosts:
        """The partitions of these topics, each with the hosts of its replicas in sync."""

    def clock_ms(self) -> float:
        """Never goes back."""

    def now_ms(self) -> int: ...


class GroupGauges(NamedTuple):
    """What metrics tell of a group, committed or not."""

    group: str
    members: int
    positions: Mapping[TopicPartition, Offset]


class MemberSession:
    """What a coordinator knows of a member besides its log."""

    def __init__(self, heard_ms: float, session_ms: int) -> None:
        self.heard_ms = heard_ms
        self.deadline_ms = heard_ms + session_ms
        self.link: MemberLink | None = None
        #: Since when it is to hand over partitions.
        self.handing_over: dict[TopicPartition, float] = {}
        #: What it was last told to hold. None: nothing yet, as far as this coordinator knows.
        self.told: dict[TopicPartition, int] | None = None


class Coordinator:
    def __init__(
        self,
        rows: GroupRows,
        load: Load,
        around: Around,
        soon: Soon,
        *,
        retention_ms: int,
        snapshot_rows_min: int = SNAPSHOT_ROWS_MIN,
    ) -> None:
        """retention_ms: so long groups are kept that nobody uses; -1: for ever."""
        self._around = around
        self._soon = soon
        self._retention_ms = retention_ms
        self._log = GroupLog(
            rows,
            load,
            soon,
            around.now_ms,
            began=self._begin,
            ended=self._forget,
            snapshot_rows_min=snapshot_rows_min,
        )
        self._forget()

    def _forget(self) -> None:
        self._sessions: dict[tuple[str, str], MemberSession] = {}
        self._assigned: dict[str, MemberShares] = {}
        #: The groups whose members, or whose partitions, have changed since.
        self._unsettled: set[str] = set()
        self._version: object = None
        self._ticked_ms: float | None = None
        self._due_ms = 0.0  # no session ends before

    def _begin(self) -> None:
        clock_ms = self._around.clock_ms()
        self._ticked_ms, self._due_ms = clock_ms, 0.0
        self._idle = IdleGroups(self._retention_ms, clock_ms=clock_ms, now_ms=self._around.now_ms())
        for group in self._groups.by_name.values():
            self._unsettled.add(group.name)
            for name, member in group.members.items():
                self._sessions[group.name, name] = MemberSession(clock_ms, member.introduction.session_ms)

    @property
    def _groups(self) -> Groups:
        return self._log.groups

    # Requests

    def ask(self, replica: ReplicaLoop, number: int, asked: GroupRequest, link: MemberLink) -> None:
        try:
            self._log.check(replica)
            told = self._decided(asked, link)
        except ReplicationError as error:
            link.answer(number, error)
        else:
            self._log.once_committed(lambda error: link.answer(number, told if error is None else error))
            self._settle(asked.group)
        self._log.gather(is_awaited=_is_awaited(asked))

    def _decided(self, asked: GroupRequest, link: MemberLink) -> GroupAnswer:
        match asked:
            case JoinGroup():
                return self._joins(asked, link)
            case Beat():
                return self._beats(asked, link)
            case CommitPositions():
                return self._commits(asked)
            case LeaveGroup():
                return self._leaves(asked)

    def _joins(self, asked: JoinGroup, link: MemberLink) -> Joined:
        group = self._groups.by_name.get(asked.group) or ConsumerGroup(asked.group)
        self._take(deciding.joins(group, asked.member, asked.introduction))
        session = MemberSession(self._around.clock_ms(), asked.introduction.session_ms)
        session.link = link
        self._sessions[asked.group, asked.member] = session
        self._due_ms = min(self._due_ms, session.deadline_ms)
        return Joined(epoch=self._groups.by_name[asked.group].epoch)

    def _beats(self, asked: Beat, link: MemberLink) -> Beaten:
        group = self._group(asked.group)
        session = self._heard_of(group, asked)
        is_another = session.link is not link
        session.link = link
        if asked.held is not None:
            held = {TopicPartition(*each) for each in asked.held}
            self._take(deciding.holds(group, asked.member, asked.epoch, held, asked.heard))
        if is_another:  # what it was told may have been lost with the other connection
            session.told = None
            self._unsettled.add(group.name)
        return Beaten()

    def _heard_of(self, group: ConsumerGroup, asked: Beat | CommitPositions) -> MemberSession:
        """Begin the session of the member anew. Raises UnknownMember or FencedMemberEpoch."""
        member = deciding.member_of(group, asked.member, asked.epoch)
        session = self._sessions[group.name, asked.member]
        session.heard_ms = self._around.clock_ms()
        session.deadline_ms = session.heard_ms + member.introduction.session_ms
        return session

    def _commits(self, asked: CommitPositions) -> CommitTaken:
        group = self._group(asked.group)
        self._heard_of(group, asked)
        taken = deciding.commits(
            group,
            asked.member,
            asked.epoch,
            asked.sequence,
            asked.positions,
            self._around.now_ms(),
        )
        self._take(taken.changes)
        return CommitTaken(refused=tuple(Holding(*each) for each in taken.refused))

    def _leaves(self, asked: LeaveGroup) -> Left:
        group = self._group(asked.group)
        deciding.member_of(group, asked.member, asked.epoch)
        self._part_with(group, asked.member, "it left")
        return Left()

    def _part_with(self, group: ConsumerGroup, name: str, why: str) -> None:
        self._take(deciding.leaves(group, name, why, self._around.now_ms()))
        del self._sessions[group.name, name]

    def _group(self, name: str) -> ConsumerGroup:
        """A group without anything if nobody knows it."""
        return self._groups.by_name.get(name) or ConsumerGroup(name)

    def _take(self, changes: Sequence[Change]) -> None:
        self._log.take(changes)
        for change in changes:
            if isinstance(change, (MemberJoined, MemberLeft)):
                self._assigned.pop(change.group, None)
            if isinstance(change, (MemberJoined, MemberLeft, PartitionsGranted, PartitionsReleased)):
                self._unsettled.add(change.group)

    # Who is to hold what

    def _note_version(self) -> None:
        version = self._around.version
        if version is not self._version:
            self._version = version
            self._assigned.clear()
            self._unsettled.update(self._groups.by_name)

    def _settle(self, name: str) -> None:
        """Grant what nobody owns, and tell the members of the group what has changed for them."""
        if name not in self._unsettled:
            return
        group = self._groups.by_name.get(name)
        if group is not None and group.members:
            assigned = self._assigned.get(name)
            if assigned is None:
                topics = {topic for member in group.members.values() for topic in member.introduction.topics}
                assigned = self._assigned[name] = deciding.assignment(group, self._around.hosts(topics))
            self._take(deciding.grants(group, assigned))
            for member in group.members:
                self._tell(group, member)
        self._unsettled.discard(name)

    def _keeps(self, group: ConsumerGroup, name: str) -> dict[TopicPartition, int]:
        member, assigned = group.members[name], self._assigned.get(group.name)
        return dict(member.owned) if assigned is None else assigned.keeps(name, member)

    def _tell(self, group: ConsumerGroup, name: str) -> None:
        member, session = group.members[name], self._sessions[group.name, name]
        clock_ms = self._around.clock_ms()
        leaving = self._assigned[group.name].hands_over(name, member)
        session.handing_over = {each: session.handing_over.get(each, clock_ms) for each in leaving}
        if leaving:
            self._due_ms = min(self._due_ms, min(session.handing_over.values()) + HANDOVER_MS)
        kept = self._keeps(group, name)
        if session.told == kept:
            return
        session.told = kept
        news = GroupNews(
            group=group.name,
            member=name,
            epoch=member.epoch,
            heard=group.epoch,
            partitions=tuple(_held(group, partition, epoch) for partition, epoch in sorted(kept.items())),
        )

        def tell(error: ReplicationError | None) -> None:
            if error is None and session.link is not None:
                session.link.tell(news)

        self._log.once_committed(tell)

    # People

    def describe(
        self, replica: ReplicaLoop, names: Collection[str] | None, then: Callable[[list[DescribedGroup]], None]
    ) -> None:
        """`then` is called once all that is told is committed. Raises NotCoordinator."""
        self._log.check(replica)
        found = sorted(name for name in self._groups.by_name if names is None or name in names)
        told = [self._described(self._groups.by_name[name]) for name in found]
        self._log.once_committed(lambda error: then(told) if error is None else None)
        self._log.gather()

    def gauges(self, replica: ReplicaLoop, positions_max: int) -> list[GroupGauges]:
        """positions_max: of all groups. Raises NotCoordinator."""
        self._log.check(replica)
        found: list[GroupGauges] = []
        left = positions_max
        for name, group in sorted(self._groups.by_name.items()):
            positions = {partition: each.offset for partition, each in islice(group.positions.items(), left)}
            found.append(GroupGauges(name, len(group.members), positions))
            left -= len(positions)
        return found

    def change(
        self,
        replica: ReplicaLoop,
        asked: ResetGroup | DeleteGroup,
        then: Callable[[ReplicationError | None], None],
    ) -> None:
        """`then` is called once it is committed, or refused."""
        try:
            self._log.check(replica)
            group = self._group(asked.group)
            if isinstance(asked, ResetGroup):
                places = {
                    TopicPartition(each.topic, each.partition): (each.topic_id, each.offset, each.last_epoch)
                    for each in asked.places
                }
                dropped = [TopicPartition(*each) for each in asked.dropped]
                self._take(deciding.resets(group, places, dropped, self._around.now_ms()))
            elif asked.group in self._groups.by_name:
                self._take(deciding.deletes(group))
        except ReplicationError as error:
            then(error)
            return
        self._log.once_committed(then)
        self._log.gather()

    def _described(self, group: ConsumerGroup) -> DescribedGroup:
        clock_ms = self._around.clock_ms()
        return DescribedGroup(
            group=group.name,
            epoch=group.epoch,
            members=tuple(self._described_member(group, name, clock_ms) for name in sorted(group.members)),
            positions=tuple(
                DescribedPosition(
                    topic=partition.topic,
                    partition=partition.partition,
                    topic_id=position.topic_id,
                    offset=position.offset,
                    last_epoch=position.last_epoch,
                    committed_ms=position.committed_ms,
                )
                for partition, position in sorted(group.positions.items())
            ),
        )

    def _described_member(self, group: ConsumerGroup, name: str, clock_ms: float) -> DescribedMember:
        member, session = group.members[name], self._sessions[group.name, name]
        return DescribedMember(
            member=name,
            introduction=member.introduction,
            partitions=tuple(Holding(*each) for each in sorted(member.owned)),
            hands_over=tuple(Holding(*each) for each in sorted(session.handing_over)),
            silent_ms=max(0, round(clock_ms - session.heard_ms)),
            is_connected=session.link is not None,
        )

    # Time

    def tick(self, replica: ReplicaLoop) -> None:
        try:
            self._log.check(replica)
        except ReplicationError:
            return
        clock_ms = self._around.clock_ms()
        self._judge_itself(clock_ms)
        self._note_version()
        if clock_ms >= self._due_ms:
            self._expire(clock_ms)
        for group in self._idle.over(self._groups.by_name.values(), clock_ms=clock_ms, now_ms=self._around.now_ms()):
            log.info("group %s is forgotten: nobody has used it for %d ms", group.name, self._retention_ms)
            self._take(deciding.deletes(group))
        for name in sorted(self._unsettled):
            self._settle(name)
        self._log.keep(replica)
        self._log.gather()

    def _judge_itself(self, clock_ms: float) -> None:
        """Nobody was heard while this process stood still: that is no member's fault."""
        late_ms = 0.0 if self._ticked_ms is None else clock_ms - self._ticked_ms
        self._ticked_ms = clock_ms
        if late_ms >= LATE_MS:
            for session in self._sessions.values():
                session.deadline_ms += late_ms

    def _expire(self, clock_ms: float) -> None:
        for (group_name, name), session in [*self._sessions.items()]:
            group = self._groups.by_name[group_name]
            if clock_ms >= session.deadline_ms:
                self._part_with(group, name, f"silent for {group.members[name].introduction.session_ms} ms")
            elif any(clock_ms >= since + HANDOVER_MS for since in session.handing_over.values()):
                kept = ", ".join(map(str, sorted(session.handing_over)))
                self._part_with(group, name, f"did not hand over {kept} within {HANDOVER_MS} ms")
        dues = [session.deadline_ms for session in self._sessions.values()]
        dues += [since + HANDOVER_MS for each in self._sessions.values() for since in each.handing_over.values()]
        self._due_ms = min(dues, default=float("inf"))

    def hung_up(self, link: MemberLink) -> None:
        """A member that lives comes back at once."""
        clock_ms = self._around.clock_ms()
        for (group, name), session in self._sessions.items():
            if session.link is link:
                session.link = None
                left_ms = self._groups.by_name[group].members[name].introduction.session_ms / HUNG_UP_PARTS
                session.deadline_ms = min(session.deadline_ms, clock_ms + left_ms)
                self._due_ms = min(self._due_ms, session.deadline_ms)
                self._soon(self.tick, left_ms)  # whoever is to read its partitions waits


def _is_awaited(asked: GroupRequest) -> bool:
    """Whether somebody waits until what follows from it is stored."""
    match asked:
        case CommitPositions(is_awaited=is_awaited):
            return is_awaited
        case Beat(held=held):
            return held is not None
        case JoinGroup() | LeaveGroup():
            return True


def _held(group: ConsumerGroup, partition: TopicPartition, epoch: int) -> HeldPartition:
    position = group.positions.get(partition)
    if position is None:
        return HeldPartition(topic=partition.topic, partition=partition.partition, owner_epoch=epoch)
    return HeldPartition(
        topic=partition.topic,
        partition=partition.partition,
        owner_epoch=epoch,
        topic_id=position.topic_id,
        offset=position.offset,
        last_epoch=position.last_epoch,
    )

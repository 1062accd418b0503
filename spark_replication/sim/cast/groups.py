"""Members of consumer groups: engine.client.{membership,coordinator_search} against engine.groups.coordinator, over
simulated connections.

A member asks the leaders of what it holds for committed records, one batch at a time of each partition, gives them to
somebody who takes a while over each, and has committed what is done with. The rows of the groups' log are as in the
product, one a batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial

from spark_replication.core.replica.read_start import ReadPlace
from spark_replication.core.routing import partition_of
from spark_replication.engine.client.coordinator_search import CoordinatorSearch
from spark_replication.engine.client.membership import BeginReading, EndReading, Membership
from spark_replication.engine.replica.reads import look
from spark_replication.errors import BrokerNotAvailable, ReplicationError
from spark_replication.messages.groups import (
    GROUPS_TOPIC,
    CommitPositions,
    GroupAnswer,
    GroupFrame,
    GroupNews,
    GroupRefusal,
    HeldPartition,
    Introduction,
)
from spark_replication.messages.records import ReadTicket
from spark_replication.model import Offset, TopicPartition
from spark_replication.ports import LogSlice
from spark_replication.sim.cast.broker import BrokerProcess
from spark_replication.sim.cast.clients import Client, Cluster
from spark_replication.sim.judges.groups import GroupsJudge
from spark_replication.sim.world.disk import contents_of
from spark_replication.sim.world.network import Stream
from spark_replication.storage.format.index import decode_entries

SESSION_MS = 600
COMMIT_INTERVAL_S = 0.06
TURN_MS = (10, 50)
BREAK_NOTICED_MS = (10, 80)
LATE_PROBABILITY = 0.05
BREAK_PROBABILITY = 0.3  # of a connection that holds something
LATE_MS = (50, 900)  # how long a connection may hold what is sent over it
READ_BYTES_MAX = 30  # five records
ASKS_AGAIN_MS = (30, 120)
ANSWER_MS = 200
LETS_IN_MS = 300  # so long a handshake may take
WORKS_MS = (0, 25)  # how long somebody takes over a batch
WORKS_LONG_PROBABILITY = 0.03
WORKS_LONG_MS = (100, 900)
WAITING_MAX = 4  # batches that were read and not given out
RESTART_MS = (30, 400)


GONE = BrokerNotAvailable("nobody is there")


class SimulatedMemberLink:
    """A member's connection to one process: at that side, it is an engine.groups.coordinator.MemberLink."""

    def __init__(self, member: GroupMember, broker: BrokerProcess) -> None:
        self.member = member
        self.broker = broker
        self.open = True
        world, network = member.world, member.cluster.network
        self._world, self._network = world, network
        self._forth = Stream(world, network, member.name, broker.place, broker)
        self._back = Stream(world, network, broker.place, member.name, member)
        self._asked: dict[int, GroupFrame] = {}
        self._held_until_ms = 0

    def ask(self, frame: GroupFrame) -> None:
        if not self._network.is_healed and self._world.chance(LATE_PROBABILITY):
            self._held_until_ms = self._world.now_ms + self._world.between(*LATE_MS)
        late_ms = 0 if self._network.is_healed else max(0, self._held_until_ms - self._world.now_ms)
        came = partial(self._world.after, late_ms, "asks its coordinator", partial(self._came, frame), on=self.broker)
        breaks = late_ms > 0 and self._world.chance(BREAK_PROBABILITY)
        if not self.open or not self._forth.send("asks", came, frame.asked) or breaks:
            self.break_off()

    def _came(self, frame: GroupFrame) -> None:
        """It may be long since the member has broken off, and connected anew."""
        self._asked[frame.number] = frame
        if isinstance(frame.asked, CommitPositions):
            self.member.judge.is_sent(frame.asked)
        self.broker.coordinators.ask(frame.number, frame.asked, self)

    def answer(self, number: int, told: GroupAnswer | ReplicationError) -> None:
        frame = self._asked.pop(number)
        if isinstance(told, ReplicationError):
            answer: GroupAnswer = GroupRefusal(error=told.code, message=told.message)
        else:
            answer = told
            if isinstance(frame.asked, CommitPositions):
                self.member.judge.is_committed(frame.asked, told)
        self._send("is answered by its coordinator", partial(self._told, number, answer), answer)

    def tell(self, news: GroupNews) -> None:
        self.member.judge.is_told(news)
        self._send("hears what it may hold", partial(self._heard, news), news)

    def _send(self, what: str, action: partial[None], about: object) -> None:
        if not self.open or not self._back.send(what, action, about):
            self.break_off()

    def _told(self, number: int, answer: GroupAnswer) -> None:
        if self.member.connection is self:
            self.member.membership.answered(number, answer, self.member.now_s)

    def _heard(self, news: GroupNews) -> None:
        if self.member.connection is self:
            self.member.membership.news(news)

    def break_off(self) -> None:
        """Both sides notice after a while."""
        if self.open:
            self.open = False
            for side, noticed in ((self.member, self._member_notices), (self.broker, self._broker_notices)):
                delay_ms = self._world.between(*BREAK_NOTICED_MS)
                self._world.after(delay_ms, "its member's connection broke", noticed, on=side)

    def _member_notices(self) -> None:
        if self.member.connection is self:
            self.member.connection = None
            self.member.membership.disconnected(self.member.now_s)
            self.member.search.failed(GONE, self.member.now_s)

    def _broker_notices(self) -> None:
        self.broker.coordinators.hung_up(self)


class _PartitionRead:
    """What a member reads of a partition under one grant."""

    def __init__(self, held: HeldPartition) -> None:
        self.partition = held.topic_partition
        self.owner_epoch = held.owner_epoch
        has_position = held.topic_id is not None
        self.place = ReadPlace(held.offset, held.last_epoch) if has_position else None
        self.topic_id = held.topic_id
        self.asked = 0
        self.is_asking = False


class _GivenBatch:
    def __init__(self, read: _PartitionRead, topic_id: str, offset: Offset, contents: list[bytes], epoch: int) -> None:
        self.read = read
        self.topic_id = topic_id
        self.offset = offset
        self.contents = contents
        self.last_epoch = epoch


class GroupMember(Client):
    def __init__(
        self, number: int, group: str, topic: str, cluster: Cluster, judge: GroupsJudge, life: int = 0
    ) -> None:
        super().__init__(f"m{number}.{life}", cluster)
        self.number, self.group, self.topic, self.life = number, group, topic, life
        self.judge = judge
        self.search = CoordinatorSearch()
        self._attempts = 0
        self.connection: SimulatedMemberLink | None = None
        introduction = Introduction(
            topics=(topic,), host=f"host-{1 + number % 4}", name=self.name, session_ms=SESSION_MS
        )
        self.membership = Membership(
            group, self.name, introduction, commit_interval_s=COMMIT_INTERVAL_S, now_s=self.now_s
        )
        self._reads: dict[TopicPartition, _PartitionRead] = {}
        self._waiting: deque[_GivenBatch] = deque()
        self._in_hand: _GivenBatch | None = None

    @property
    def now_s(self) -> float:
        return self.world.now_ms / 1000

    def start(self) -> None:
        self.world.after(self.world.between(*TURN_MS), "a member's turn", self._turn, on=self)

    def ended(self) -> None:
        super().ended()
        if self.connection is not None:
            self.connection.break_off()

    def leave(self) -> None:
        self.membership.leave()

    def _turn(self) -> None:
        membership = self.membership
        assert membership.error is None, f"it is refused for good: {membership.error}"
        if membership.is_over:
            self.ended()
            return
        if self.connection is not None and (not self.connection.broker.alive or membership.has_lost_coordinator):
            self.connection.break_off()
        if self.connection is None:
            if self.search.begins(self.now_s):
                self._connect()
        elif self.connection.open:
            for frame in membership.frames(self.now_s):
                self.connection.ask(frame)
        for reading in membership.reads():
            match reading:
                case BeginReading(held):
                    self._begin(held)
                case EndReading(partition):
                    self._reads.pop(partition, None)
                    self._waiting = deque(each for each in self._waiting if each.read.partition != partition)
        for read in [*self._reads.values()]:
            self._ask(read)
        self._give_next()
        self.start()

    def _connect(self) -> None:
        self._attempts += 1
        attempt = self._attempts
        self.world.after(LETS_IN_MS, "nobody lets it in", partial(self._not_let_in, attempt), on=self)
        if self.search.doubts_route or GROUPS_TOPIC not in self.routing.topics:
            self.reload(GROUPS_TOPIC, partial(self._shakes_hands, attempt))
        else:
            self._shakes_hands(attempt)

    def _shakes_hands(self, attempt: int) -> None:
        try:
            number = partition_of(self.routing.topic(GROUPS_TOPIC), self.group.encode())
        except ReplicationError:
            return
        leader = self.leader_of(TopicPartition(GROUPS_TOPIC, number))
        if leader is None:
            return

        def answers() -> None:
            self.cluster.network.send(
                leader.place, self.name, "lets it in", partial(self._let_in, attempt, leader), to=self
            )

        self.cluster.network.send(self.name, leader.place, "shakes hands for its group", answers, to=leader)

    def _let_in(self, attempt: int, leader: BrokerProcess) -> None:
        if attempt == self._attempts and self.connection is None:
            self._attempts += 1  # no answer is waited for any longer
            self.search.connected()
            self.connection = SimulatedMemberLink(self, leader)
            self.membership.connected(self.now_s)

    def _not_let_in(self, attempt: int) -> None:
        if attempt == self._attempts:
            self._attempts += 1
            self.search.failed(GONE, self.now_s)

    # Reading

    def _begin(self, held: HeldPartition) -> None:
        self._reads[held.topic_partition] = _PartitionRead(held)

    def _ask(self, read: _PartitionRead) -> None:
        if read.is_asking or len(self._waiting) >= WAITING_MAX:
            return
        leader = self.leader_of(read.partition)
        if leader is None:
            self.reload(self.topic)
            return
        read.is_asking = True
        read.asked += 1
        asked, place = read.asked, read.place
        ticket = ReadTicket(topic=read.partition.topic, partition=read.partition.partition, from_offset="earliest")

        def came() -> None:
            try:
                replica = leader.loop.partition(read.partition).unguarded
                looked = look(replica, ticket, place, READ_BYTES_MAX)
                found = None if looked.records is None else looked.records.loaded()
            except ReplicationError as error:
                self._answers(leader, read, asked, error)
                return
            self._answers(leader, read, asked, (looked.place, found, replica.topic_id))

        self.cluster.network.send(self.name, leader.place, "reads for its group", came, to=leader)
        self.world.after(ANSWER_MS, "waits no longer for records", partial(self._gives_up, read, asked), on=self)

    def _answers(
        self,
        leader: BrokerProcess,
        read: _PartitionRead,
        asked: int,
        found: tuple[ReadPlace, LogSlice | None, str] | ReplicationError,
    ) -> None:
        took = partial(self._took, read, asked, found)
        self.cluster.network.send(leader.place, self.name, "gets records for its group", took, to=self)

    def _took(
        self, read: _PartitionRead, asked: int, found: tuple[ReadPlace, LogSlice | None, str] | ReplicationError
    ) -> None:
        if not read.is_asking or asked != read.asked or self._reads.get(read.partition) is not read:
            return
        if isinstance(found, ReplicationError):
            self.world.note(f"{self.name} cannot read {read.partition} at {read.place}: {found}")
            self.reload(self.topic)
            self._rest(read, asked)
            return
        place, records, topic_id = found
        read.place = place
        if records is None:
            self._rest(read, asked)
            return
        read.is_asking = False
        entries = list(decode_entries(records.entries))
        first = next(number for number, entry in enumerate(entries) if entry.last_offset >= place.offset)
        contents = contents_of(records)[first:]
        read.place = ReadPlace(records.next_offset, entries[-1].leader_epoch)
        self._waiting.append(_GivenBatch(read, topic_id, place.offset, contents, entries[-1].leader_epoch))

    def _rest(self, read: _PartitionRead, asked: int) -> None:
        self.world.after(
            self.world.between(*ASKS_AGAIN_MS), "asks its leader again", partial(self._gives_up, read, asked), on=self
        )

    def _gives_up(self, read: _PartitionRead, asked: int) -> None:
        if read.asked == asked:
            read.is_asking = False

    # Giving out

    def _give_next(self) -> None:
        while self._in_hand is None and self._waiting:
            given = self._waiting.popleft()
            if self.membership.gives_out(given.read.partition, given.read.owner_epoch):
                self._in_hand = given
                self.judge.is_given(self.group, given.read.partition, given.offset, given.contents)
                works = WORKS_LONG_MS if self.world.chance(WORKS_LONG_PROBABILITY) else WORKS_MS
                self.world.after(self.world.between(*works), "is done with a batch", self._is_done, on=self)

    def _is_done(self) -> None:
        given = self._in_hand
        assert given is not None, "it works on it"
        self._in_hand = None
        self.membership.processed(
            given.read.partition,
            given.read.owner_epoch,
            given.topic_id,
            given.offset + len(given.contents),
            given.last_epoch,
            self.now_s,
        )
        self.membership.done()
        self._give_next()


class Groups:
    """All members, and who starts another in the place of one that has ended."""

    def __init__(self, cluster: Cluster, judge: GroupsJudge, topic: str, groups: Sequence[str], members: int) -> None:
        self.cluster = cluster
        self.judge = judge
        self.members = [
            GroupMember(number, groups[number % len(groups)], topic, cluster, judge) for number in range(members)
        ]

    def start(self) -> None:
        for member in self.members:
            member.start()

    def living(self) -> list[GroupMember]:
        return [member for member in self.members if member.alive]

    def restart(self, member: GroupMember) -> None:
        world = self.cluster.world
        place = self.members.index(member)

        def start() -> None:
            again = GroupMember(
                member.number, member.group, member.topic, self.cluster, self.judge, life=member.life + 1
            )
            self.members[place] = again
            again.start()

        world.after(world.between(*RESTART_MS), "a member comes", start)

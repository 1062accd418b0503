"""A coordinator over one replica with a real log: broker 1 leads, and broker 2 has what it says it has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path

from spark_replication.core.groups.idle import FOR_EVER_MS
from spark_replication.core.groups.sharing import Hosts
from spark_replication.core.replica.replica import Me
from spark_replication.engine.groups.coordinator import Coordinator
from spark_replication.engine.groups.group_log import ReadRows
from spark_replication.engine.replica.copy_throttle import CopyThrottle
from spark_replication.engine.replica.replica_loop import ReplicaLoop
from spark_replication.errors import ReplicationError
from spark_replication.messages.groups import (
    Beat,
    Commit,
    CommitPositions,
    GroupAnswer,
    GroupNews,
    GroupRequest,
    HeldPartition,
    Holding,
    Introduction,
    Joined,
    JoinGroup,
    LeaveGroup,
)
from spark_replication.messages.replication import FetchPartition
from spark_replication.model import TopicPartition
from spark_replication.sim.world.one_at_a_time import at_once
from spark_replication.storage.format.group_rows import StoredGroupRows
from tests.unit.core.stories import FOO, FOO_ID, command, settings, state
from tests.unit.engine.ports_in_memory import Failures, HeldFlushes, IsrWrites, Links
from tests.unit.storage.storage_stories import StoryLog, log_in

A0, A1, A2 = (TopicPartition("a", number) for number in range(3))
SESSION_MS = 6_000
ME = Me(1, 0, 0)


class MemberLinkStory:
    """engine.groups.coordinator.MemberLink."""

    def __init__(self) -> None:
        self.answers: dict[int, GroupAnswer | ReplicationError] = {}
        self.told: list[GroupNews] = []

    def answer(self, number: int, told: GroupAnswer | ReplicationError) -> None:
        assert number not in self.answers, "each request is answered once"
        self.answers[number] = told

    def tell(self, news: GroupNews) -> None:
        self.told.append(news)

    @property
    def held(self) -> dict[TopicPartition, int]:
        """What the newest news says, with the epochs of the grants."""
        return {each.topic_partition: each.owner_epoch for each in self.told[-1].partitions}

    def place(self, partition: TopicPartition) -> HeldPartition:
        return next(each for each in self.told[-1].partitions if each.topic_partition == partition)


class CoordinatorStory:
    """engine.groups.coordinator.Around."""

    def __init__(
        self,
        folder: Path,
        *,
        snapshot_rows_min: int = 1_000,
        segment_bytes: int = 1 << 20,
        batch_bytes_max: int = 1 << 20,
        retention_ms: int = FOR_EVER_MS,
    ) -> None:
        self.folder = folder
        self.log = log_in(folder, segment_bytes=segment_bytes)
        self.links, self.isr_store = Links(), IsrWrites()
        self.replica = self._replica(self.log)
        self.there: Mapping[TopicPartition, frozenset[str]] = {A0: frozenset(), A1: frozenset()}
        self.time_ms, self.wall_ms = 1_000.0, 77
        self.version = object()
        #: What the loop is to do soon.
        self.posted: list[Callable[[ReplicaLoop], None]] = []
        #: What it is to do at a time.
        self.timers: list[tuple[float, Callable[[ReplicaLoop], None]]] = []
        self.loads = 0
        self.snapshot_rows_min = snapshot_rows_min
        self.batch_bytes_max = batch_bytes_max
        self.retention_ms = retention_ms
        self.coordinator = self.another()
        self._numbers = 0

    def _replica(self, log: StoryLog) -> ReplicaLoop:
        return ReplicaLoop(
            FOO,
            FOO_ID,
            log,
            settings=settings(),
            isr_store=self.isr_store,
            links=self.links,
            flusher=HeldFlushes(),
            failures=Failures(),
            throttle=CopyThrottle(self.links, nullcontext()),
            post=at_once,
        )

    def another(self) -> Coordinator:
        """Another broker's, of the same log."""
        self.coordinator = Coordinator(
            StoredGroupRows(self.batch_bytes_max),
            self._load,
            self,
            self._soon,
            retention_ms=self.retention_ms,
            snapshot_rows_min=self.snapshot_rows_min,
        )
        return self.coordinator

    def _load(self, load: Callable[[], ReadRows], then: Callable[[ReadRows | ReplicationError], None]) -> None:
        self.loads += 1
        try:
            found = load()
        except ReplicationError as error:
            then(error)
        else:
            then(found)

    def _soon(self, call: Callable[[ReplicaLoop], None], in_ms: float) -> None:
        if in_ms:
            self.timers.append((self.time_ms + in_ms, call))
        else:
            self.posted.append(call)

    def hosts(self, topics: Iterable[str]) -> Hosts:
        return {partition: hosts for partition, hosts in self.there.items() if partition.topic in topics}

    def clock_ms(self) -> float:
        return self.time_ms

    def now_ms(self) -> int:
        return self.wall_ms

    # What happens

    def leads(self, *, leader_epoch: int = 4, partition_epoch: int = 7) -> CoordinatorStory:
        self.replica.command(command(state(1, [1, 2], leader_epoch=leader_epoch), partition_epoch), ME, 0)
        return self

    def serves(self) -> CoordinatorStory:
        """It leads, knows what is committed, and has read all."""
        self.leads().commits()
        for _ in range(3):
            self.coordinator.tick(self.replica)
        self.posts().commits()
        return self

    def posts(self) -> CoordinatorStory:
        while self.posted:
            self.posted.pop(0)(self.replica)
        return self

    def commits(self, end: int | None = None) -> CoordinatorStory:
        """Broker 2 has all of the log, or all below `end`."""
        end = self.log.log_end if end is None else end
        fetch = FetchPartition(
            topic="foo",
            partition=0,
            topic_id=FOO_ID,
            leader_epoch=self.replica.leading().state.leader_epoch,
            offset=end,
            last_epoch=self.replica.view.epoch_before(end),
            clean_since=0,
        )
        self.replica.fetch(fetch, by=2, broker_epoch=0, now_ms=0)
        return self

    def ask(self, asked: GroupRequest, link: MemberLinkStory) -> int:
        self._numbers += 1
        self.coordinator.ask(self.replica, self._numbers, asked, link)
        return self._numbers

    def asks(self, asked: GroupRequest, link: MemberLinkStory) -> GroupAnswer | ReplicationError:
        """Ask, and let it be committed."""
        number = self.ask(asked, link)
        self.posts().commits()
        return link.answers[number]

    def after(self, ms: float) -> CoordinatorStory:
        """Time passes, and ticks come."""
        until_ms = self.time_ms + ms
        while self.time_ms < until_ms:
            self.time_ms = min(until_ms, self.time_ms + 100)
            self.timers_ring().tick()
        return self

    def timers_ring(self) -> CoordinatorStory:
        due = [call for due_ms, call in self.timers if due_ms <= self.time_ms]
        self.timers = [each for each in self.timers if each[0] > self.time_ms]
        for call in due:
            call(self.replica)
        return self

    def tick(self) -> CoordinatorStory:
        self.coordinator.tick(self.replica)
        return self.posts().commits()

    def joins(self, member: str = "x") -> MemberStory:
        link = MemberLinkStory()
        introduction = Introduction(topics=("a",), host=f"h-{member}", name=member, session_ms=SESSION_MS)
        told = self.asks(JoinGroup(group="etl", member=member, introduction=introduction), link)
        assert isinstance(told, Joined), told
        return MemberStory(self, member, told.epoch, link)


class MemberStory:
    def __init__(self, story: CoordinatorStory, member: str, epoch: int, link: MemberLinkStory) -> None:
        self.story, self.member, self.epoch, self.link = story, member, epoch, link
        self._sequence = 0

    def beat(
        self, *held: TopicPartition, heard: int | None = None, says: bool = True, link: MemberLinkStory | None = None
    ) -> GroupAnswer | ReplicationError:
        link = link or self.link
        heard = self.link.told[-1].heard if heard is None else heard
        asked = Beat(
            group="etl",
            member=self.member,
            epoch=self.epoch,
            heard=heard,
            held=tuple(Holding(*each) for each in held) if says else None,
        )
        return self.story.asks(asked, link)

    def commit(
        self,
        offset: int,
        partition: TopicPartition = A0,
        *,
        owner_epoch: int | None = None,
        is_awaited: bool = True,
    ) -> CommitPositions:
        self._sequence += 1
        owner_epoch = self.link.held[partition] if owner_epoch is None else owner_epoch
        commit = Commit(
            topic=partition.topic,
            partition=partition.partition,
            topic_id="id-a",
            owner_epoch=owner_epoch,
            offset=offset,
            last_epoch=3,
        )
        return CommitPositions(
            group="etl",
            member=self.member,
            epoch=self.epoch,
            sequence=self._sequence,
            positions=(commit,),
            is_awaited=is_awaited,
        )

    def leave(self) -> LeaveGroup:
        return LeaveGroup(group="etl", member=self.member, epoch=self.epoch)

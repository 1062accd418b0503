"""A leader and its follower with real logs: what retention takes, and a follower that comes too late for it."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from spark_replication.core.law.writes import IsrRefused, StoredPartition
from spark_replication.core.replica.producers import OffsetSpan
from spark_replication.core.replica.replica import Following, Leading, Me
from spark_replication.engine.replica.copy_throttle import CopyThrottle
from spark_replication.engine.replica.replica_loop import ReplicaLoop
from spark_replication.errors import OffsetOutOfRange, ReplicationError, StorageFailed, UnknownProducerId
from spark_replication.messages.replication import Diverging, FetchedPartition
from spark_replication.sim.world.one_at_a_time import at_once
from spark_replication.storage.disk.flush_threads import FlushAtOnce
from spark_replication.storage.log.leftover import REMOVED_AT_ONCE_MAX
from spark_replication.storage.log.partition_log import PartitionLog
from tests.unit.core.stories import FOO, FOO_ID, command, settings, state
from tests.unit.engine.ports_in_memory import Failures, IsrWrites, Links
from tests.unit.storage.failing_files import FailingFiles
from tests.unit.storage.storage_stories import Open, files_of, prepared

HOUR_MS = 3_600_000
LED = state(1, [1], min_isr=1)


class Replicas:
    """Broker 1 leads and 2 follows, with two rows to a segment, unless `segment_bytes` says otherwise."""

    def __init__(self, open_log: Open, folder: Path, *, segment_bytes: int = 1, **given: object) -> None:
        self._segment_bytes = segment_bytes
        self._settings = settings(log_retention_check_interval_ms=1, **given)
        self._open_log, self._folder = open_log, folder
        self.isr_store = IsrWrites()
        self.answers: list[OffsetSpan | ReplicationError] = []
        self.disk = FailingFiles()  # the follower's
        self.leader, self.follower = self.opened(1), self.opened(2)

    def opened(self, broker: int, leader_epoch: int = LED.leader_epoch) -> ReplicaLoop:
        log: PartitionLog = self._open_log(
            str(broker), segment_bytes=self._segment_bytes, files=self.disk if broker == 2 else None
        )
        assert log.recovery.lossless
        replica = ReplicaLoop(
            FOO,
            FOO_ID,
            log,
            settings=self._settings,
            isr_store=self.isr_store,
            links=Links(),
            flusher=FlushAtOnce(),
            failures=Failures(),
            throttle=CopyThrottle(Links(), nullcontext()),
            post=at_once,
        )
        replica.command(command(replace(LED, leader_epoch=leader_epoch), 7), Me(broker, 0, 0), 0)
        return replica

    def produce(self, count: int, now_ms: int) -> None:
        for _ in range(count):
            end = self.leader.log.log_end
            batch = prepared(end, producer=9, sequence=end // 2)
            self.leader.produce(batch, acks="all", now_ms=now_ms, acknowledge=self.answers.append)

    def send(
        self, replica: ReplicaLoop, *, producer: int, sequence: int, start: int = 0
    ) -> OffsetSpan | ReplicationError:
        batch = prepared(start, producer=producer, sequence=sequence)
        replica.produce(batch, acks=1, now_ms=0, acknowledge=self.answers.append)
        return self.answers[-1]

    def replicate(self) -> None:
        """Until there is nothing new."""
        while (fetch := self.follower.next_fetch()) is not None:
            self.leader.fetch(fetch, by=2, broker_epoch=0, now_ms=0)
            taken = self.leader.take_answer(2, 0)
            assert taken is not None
            answer, records = taken
            assert answer.error == "NONE"
            before = (self.follower.log.log_start, self.follower.log.log_end, self.follower.high_watermark)
            self.follower.fetch_answered(fetch, answer, records.loaded() if records is not None else None)
            if before == (self.follower.log.log_start, self.follower.log.log_end, self.follower.high_watermark):
                return

    def files(self, broker: int) -> dict[str, bytes]:
        return files_of(self._folder / str(broker))


def test_very_many_segments_go_a_few_at_each_tick(open_log: Open, tmp_path: Path) -> None:
    replicas = Replicas(open_log, tmp_path, retention_ms=HOUR_MS)
    gone = 2 * REMOVED_AT_ONCE_MAX + 1
    replicas.produce(gone, now_ms=0)
    replicas.produce(1, now_ms=HOUR_MS)
    replicas.replicate()
    replicas.leader.tick(HOUR_MS + 1)
    replicas.replicate()
    for broker, replica in ((1, replicas.leader), (2, replicas.follower)):
        assert (replica.log.log_start, replica.waits_for_time) == (2 * gone, True)
        left = gone - REMOVED_AT_ONCE_MAX
        while left:
            assert len(replicas.files(broker)) == 2 * (left + 1)
            assert min(replicas.files(broker)) == f"{2 * (gone - left):020}.arrow", "the oldest go first"
            replica.tick(HOUR_MS + 1)
            left = max(0, left - REMOVED_AT_ONCE_MAX)
        assert (len(replicas.files(broker)), replica.waits_for_time) == (2, False)


def test_a_log_that_is_closed_removes_no_more(open_log: Open, tmp_path: Path) -> None:
    replicas = Replicas(open_log, tmp_path, retention_ms=HOUR_MS)
    replicas.produce(REMOVED_AT_ONCE_MAX + 2, now_ms=0)
    replicas.leader.tick(HOUR_MS + 1)
    replicas.leader.log.close()
    assert not replicas.leader.log.has_leftover
    left = replicas.files(1)
    assert len(left) == 4
    replicas.leader.tick(HOUR_MS + 2)
    assert replicas.files(1) == left
    replicas.leader = replicas.opened(1)
    assert len(replicas.files(1)) == 2, "recovery removes the rest"


@pytest.mark.parametrize("flush", ["none", "always"])
def test_followers_forget_with_their_leader_and_both_come_back_as_they_were(
    open_log: Open, tmp_path: Path, flush: str
) -> None:
    replicas = Replicas(open_log, tmp_path, retention_ms=HOUR_MS, flush=flush)
    replicas.produce(5, now_ms=0)
    replicas.produce(3, now_ms=HOUR_MS)
    replicas.replicate()
    assert replicas.files(1) == replicas.files(2)
    replicas.leader.tick(HOUR_MS)
    assert replicas.leader.log.log_start == 0
    replicas.leader.tick(HOUR_MS + 1)
    replicas.replicate()
    for _ in range(2):
        for replica in (replicas.leader, replicas.follower):
            assert (replica.log.log_start, replica.log.log_end, replica.view.epochs[0].start) == (10, 16, 10)
            assert replica.high_watermark >= 10
        assert replicas.files(1) == replicas.files(2)
        with pytest.raises(OffsetOutOfRange, match="offset 9 is outside 10 to 16"):
            replicas.leader.read(9, bytes_max=1, to=None)
        for replica in (replicas.leader, replicas.follower):
            replica.checkpoint()
            replica.resign("restarting")
            replica.log.close()
        replicas.leader, replicas.follower = replicas.opened(1), replicas.opened(2)
    assert isinstance(replicas.leader.part, Leading)
    replicas.produce(1, now_ms=HOUR_MS)
    assert replicas.answers[-1] == OffsetSpan(16, 17)


@pytest.mark.parametrize("flush", ["none", "always"])
@pytest.mark.parametrize("start_at", [4, 5, 10, 30])
def test_replicas_that_are_to_start_at_an_offset_are_identical_there_and_stay_so(
    open_log: Open, tmp_path: Path, start_at: int, flush: str
) -> None:
    replicas = Replicas(open_log, tmp_path, segment_bytes=1_000, flush=flush)
    replicas.produce(6, now_ms=0)
    replicas.replicate()
    led, end = replace(LED, leader_epoch=5, start_at=start_at), 12 if start_at in (4, 10) else start_at
    for _ in range(2):
        for broker, replica in ((1, replicas.leader), (2, replicas.follower)):
            replica.command(command(led, 9), Me(broker, 0, 0), 0)
            assert (replica.log.log_start, replica.log.log_end) == (start_at, end)
            assert replica.high_watermark >= start_at
        replicas.replicate()
        assert replicas.files(1) == replicas.files(2)
        for replica in (replicas.leader, replicas.follower):
            replica.checkpoint()
            replica.resign("restarting")
            replica.log.close()
        replicas.leader, replicas.follower = replicas.opened(1, leader_epoch=5), replicas.opened(2, leader_epoch=5)
    assert replicas.send(replicas.leader, producer=9, sequence=1, start=2) == OffsetSpan(2, 3), "it is below"
    following = 2 if start_at == 5 else 6  # the batch that spans 5 is gone, and so is what followed
    assert replicas.send(replicas.leader, producer=9, sequence=following, start=end) == OffsetSpan(end, end + 1)
    replicas.replicate()
    assert replicas.files(1) == replicas.files(2)
    assert replicas.follower.log.log_end == end + 2


@pytest.mark.parametrize("has", [0, 2])
def test_a_follower_that_comes_too_late_begins_where_its_leader_does(open_log: Open, tmp_path: Path, has: int) -> None:
    replicas = Replicas(open_log, tmp_path, retention_bytes=0)
    replicas.produce(has, now_ms=0)
    if has:
        replicas.replicate()
        replicas.isr_store.answer(IsrRefused(StoredPartition(LED, 7)))  # it does not join: nobody waits for it
    replicas.produce(6 - has, now_ms=0)
    replicas.leader.tick(1)
    assert replicas.leader.log.log_start == 10
    replicas.replicate()
    assert (replicas.follower.log.log_start, replicas.follower.log.log_end) == (10, 12)
    assert replicas.files(1) == replicas.files(2)
    # It leads as well as any: producers go on where they were.
    replicas.follower.command(command(state(2, [2], min_isr=1, leader_epoch=5), 8), Me(2, 0, 0), 0)
    batch = prepared(12, producer=9, sequence=6)
    replicas.follower.produce(batch, acks="all", now_ms=0, acknowledge=replicas.answers.append)
    assert replicas.answers[-1] == OffsetSpan(12, 13)
    with pytest.raises(UnknownProducerId):
        replicas.send(replicas.follower, producer=8, sequence=40)
    assert replicas.follower.log.log_end == 14
    # What it never had it knows of its leader: no batch is stored again, and no producer is new that is not.
    assert replicas.send(replicas.follower, producer=9, sequence=4, start=8) == OffsetSpan(8, 9)


def test_who_wrote_only_what_retention_has_removed_is_known_to_replicas_that_never_had_it(
    open_log: Open, tmp_path: Path
) -> None:
    replicas = Replicas(open_log, tmp_path, retention_bytes=0)
    assert replicas.send(replicas.leader, producer=5, sequence=0) == OffsetSpan(0, 1)
    for sequence in range(3):
        replicas.send(replicas.leader, producer=9, sequence=sequence)
    replicas.leader.tick(1)
    assert replicas.leader.log.log_start == 6
    replicas.replicate()
    replicas.leader.resign("restarting")
    replicas.leader.log.close()
    replicas.leader = replicas.opened(1)
    replicas.follower.command(command(state(2, [2], min_isr=1, leader_epoch=5), 8), Me(2, 0, 0), 0)
    for replica in (replicas.leader, replicas.follower):
        assert replicas.send(replica, producer=5, sequence=0) == OffsetSpan(0, 1)
        assert replica.log.log_end == 8, "it is not stored again"
        assert replicas.send(replica, producer=5, sequence=1, start=8) == OffsetSpan(8, 9)


def test_a_replica_whose_history_parts_below_its_start_knows_no_producer(open_log: Open, tmp_path: Path) -> None:
    replicas = Replicas(open_log, tmp_path, retention_bytes=0)
    replicas.produce(3, now_ms=0)
    replicas.replicate()
    replicas.leader.tick(1)
    replicas.replicate()
    assert replicas.follower.log.log_start == 4
    answered(replicas.follower, diverging=Diverging(epoch=-1, end=0))
    assert (replicas.follower.log.log_start, replicas.follower.log.log_end) == (0, 0)
    replicas.follower.command(command(state(2, [2], min_isr=1, leader_epoch=5), 8), Me(2, 0, 0), 0)
    assert replicas.send(replicas.follower, producer=9, sequence=0) == OffsetSpan(0, 1)
    replicas.follower.resign("restarting")
    replicas.follower.log.close()
    assert replicas.opened(2, leader_epoch=5).log.saved_producers() == b""


def answered(follower: ReplicaLoop, **given: Any) -> None:
    """By a leader that says this, and sends no records."""
    fetch = follower.next_fetch()
    assert fetch is not None
    answer = FetchedPartition(topic="foo", partition=0, topic_id=FOO_ID, leader_epoch=fetch.leader_epoch, **given)
    follower.fetch_answered(fetch, answer, None)


@pytest.mark.parametrize("operation", ["remove", "truncate"])
@pytest.mark.parametrize("given", [{"diverging": Diverging(epoch=4, end=4)}, {"diverging": Diverging(epoch=4, end=0)}])
def test_a_cut_that_the_disk_refuses_half_way_ends_no_broker(
    open_log: Open, tmp_path: Path, operation: str, given: dict[str, Any]
) -> None:
    replicas = Replicas(open_log, tmp_path)
    replicas.produce(5, now_ms=0)
    replicas.replicate()
    follower = replicas.follower
    answered(follower, high_watermark=10)
    assert follower.high_watermark == 10
    replicas.disk.refuse(operation, ".index")
    with pytest.raises(StorageFailed):
        answered(follower, **given)
    assert follower.log.log_start <= follower.high_watermark <= follower.log.log_end
    assert isinstance(follower.part, Following)
    assert follower.part.served is not None
    assert follower.part.served <= follower.log.log_end
    follower.checkpoint()
    follower.resign("the session expired")


@pytest.mark.parametrize(("end", "log"), [(2, (4, 4)), (4, (4, 4)), (5, (2, 4)), (6, (4, 6))])
def test_a_follower_keeps_nothing_that_its_leader_cannot_vouch_for(
    open_log: Open, tmp_path: Path, end: int, log: tuple[int, int]
) -> None:
    """The leader's log starts at 4: of what parts there, or below, nobody can say what is right."""
    replicas = Replicas(open_log, tmp_path)
    replicas.produce(5, now_ms=0)
    replicas.replicate()
    answered(replicas.follower, diverging=Diverging(epoch=4, end=end), log_start=4)
    assert (replicas.follower.log.log_start, replicas.follower.log.log_end) == log


@pytest.mark.parametrize("operation", ["remove", "truncate"])
def test_a_follower_begins_anew_although_what_it_had_cannot_be_removed(
    open_log: Open, tmp_path: Path, operation: str
) -> None:
    replicas = Replicas(open_log, tmp_path)
    replicas.produce(3, now_ms=0)
    replicas.replicate()
    follower = replicas.follower
    replicas.disk.refuse(operation, ".index")
    answered(follower, log_start=9)
    assert (follower.log.log_start, follower.high_watermark, follower.log.log_end) == (9, 9, 9)
    follower.checkpoint()
    follower.command(command(state(2, [2], min_isr=1, leader_epoch=5), 8), Me(2, 0, 0), 0)
    follower.produce(
        prepared(9, producer=9, sequence=0), acks=1, now_ms=0, acknowledge=replicas.answers.append
    )  # it knows the producer of what is gone no longer
    assert replicas.answers[-1] == OffsetSpan(9, 10)

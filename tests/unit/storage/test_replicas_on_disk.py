"""A leader and its follower with real logs: what retention takes, and a follower that comes too late for it."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from spark_replication.core.law.writes import IsrRefused, StoredPartition
from spark_replication.core.producers import Place
from spark_replication.core.replica.replica import Leading, Me
from spark_replication.engine.copy_throttle import CopyThrottle
from spark_replication.engine.replica_loop import ReplicaLoop
from spark_replication.errors import OffsetOutOfRange, ReplicationError
from spark_replication.storage.flush_threads import FlushAtOnce
from spark_replication.storage.partition_log import PartitionLog
from tests.unit.core.stories import FOO, FOO_ID, command, settings, state
from tests.unit.engine.ports_in_memory import Failures, IsrWrites, Links
from tests.unit.storage.storage_stories import Open, files_of, prepared

HOUR_MS = 3_600_000
LED = state(1, [1], min_isr=1)


class Replicas:
    """Broker 1 leads and 2 follows, with two rows to a segment."""

    def __init__(self, open_log: Open, folder: Path, **given: object) -> None:
        self._settings = settings(log_retention_check_interval_ms=1, **given)
        self._open_log, self._folder = open_log, folder
        self.isr_store = IsrWrites()
        self.answers: list[Place | ReplicationError] = []
        self.leader, self.follower = self.opened(1), self.opened(2)

    def opened(self, broker: int) -> ReplicaLoop:
        log: PartitionLog = self._open_log(str(broker), segment_bytes=1)
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
            guard=nullcontext(),
        )
        replica.command(command(LED, 7), Me(broker, 0, 0), 0)
        return replica

    def produce(self, count: int, now_ms: int) -> None:
        for _ in range(count):
            end = self.leader.log.log_end
            batch = prepared(end, producer=9, sequence=end // 2)
            self.leader.produce(batch, acks="all", now_ms=now_ms, acknowledge=self.answers.append)

    def replicate(self) -> None:
        """Until there is nothing new."""
        while (fetch := self.follower.next_fetch()) is not None:
            self.leader.fetch(fetch, by=2, broker_epoch=0, now_ms=0)
            taken = self.leader.take_answer(2, 0)
            assert taken is not None
            answer, records = taken
            assert answer.error == "NONE"
            before = (self.follower.log.log_start, self.follower.log.log_end, self.follower.high_watermark)
            self.follower.fetched(answer, records.loaded() if records is not None else None)
            if before == (self.follower.log.log_start, self.follower.log.log_end, self.follower.high_watermark):
                return

    def files(self, broker: int) -> dict[str, bytes]:
        return files_of(self._folder / str(broker))


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
    assert replicas.answers[-1] == Place(16, 17)


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
    batch = prepared(12, producer=8, sequence=40)  # it was silent for longer than anything is kept
    replicas.follower.produce(batch, acks="all", now_ms=0, acknowledge=replicas.answers.append)
    assert replicas.answers[-2:] == [Place(12, 13), Place(14, 15)]

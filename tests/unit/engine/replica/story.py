"""One replica over a log in memory: what it answers, whom it wakes, what it asks of ZooKeeper."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from msgspec.structs import replace

from spark_replication.core.replica.producers import OffsetSpan
from spark_replication.core.replica.replica import Leading, Me
from spark_replication.engine.replica.copy_throttle import CopyThrottle
from spark_replication.engine.replica.replica_loop import ReplicaLoop
from spark_replication.errors import ReplicationError
from spark_replication.messages.replication import FetchedPartition, FetchPartition
from spark_replication.model import BrokerId, PartitionState
from spark_replication.ports import PreparedBatch
from spark_replication.sim.scenarios.memory_log import MemoryLog
from spark_replication.sim.world.one_at_a_time import at_once
from tests.unit.core.stories import FOO, FOO_ID, command, settings, state
from tests.unit.engine.ports_in_memory import FailingLog, Failures, HeldFlushes, IsrWrites, Links

ME = Me(1, 0, 0)
LED = state(1, [1, 2])
DISK_RETRY_MS = settings().disk_retry_ms


class Story:
    """Broker 1's replica of foo-0, of 1, 2 and 3, over an empty log."""

    def __init__(self, *records: tuple[int, int, int], **given: Any) -> None:
        runs = MemoryLog.of_runs(list(records), 0)
        self.log = FailingLog(runs.log_start, runs.records, runs.epochs, 0)
        self.isr_store, self.links, self.flushes, self.failures = IsrWrites(), Links(), HeldFlushes(), Failures()
        self.throttle = CopyThrottle(self.links, nullcontext())
        self.loop = ReplicaLoop(
            FOO,
            FOO_ID,
            self.log,
            settings=settings(**given),
            isr_store=self.isr_store,
            links=self.links,
            flusher=self.flushes,
            failures=self.failures,
            throttle=self.throttle,
            post=at_once,
        )
        self.answers: list[OffsetSpan | ReplicationError] = []
        self.progress = 0

    def told(self, stored: PartitionState = LED, partition_epoch: int = 7, *, me: Me = ME, now_ms: int = 0) -> Story:
        self.loop.command(command(stored, partition_epoch), me, now_ms)
        return self

    def produce(self, rows: int = 1, *, acks: int | str = "all", sequence: int = -1, now_ms: int = 0) -> None:
        producer, epoch = (9, 0) if sequence >= 0 else (-1, -1)
        batch = PreparedBatch(rows, b"x", 0, b"", producer, epoch, sequence)
        self.loop.produce(batch, acks=acks, now_ms=now_ms, acknowledge=self.answers.append)

    def fetch(self, by: BrokerId, offset: int, *, now_ms: int = 0, **changed: Any) -> None:
        asked = FetchPartition(
            topic="foo",
            partition=0,
            topic_id=FOO_ID,
            leader_epoch=4,
            offset=offset,
            last_epoch=self.loop.view.epoch_before(offset),
            clean_since=0,
        )
        self.loop.fetch(replace(asked, **changed), by=by, broker_epoch=0, now_ms=now_ms)

    def answer(self, by: BrokerId) -> FetchedPartition:
        taken = self.loop.take_answer(by, 0)
        assert taken is not None
        answer, records = taken
        assert answer.data_bytes == (0 if records is None else len(records.data))
        return answer

    def errors(self) -> list[tuple[str, bool]]:
        return [(each.code, each.maybe_written) for each in self.answers if isinstance(each, ReplicationError)]

    def on_progress(self) -> None:
        def call() -> None:
            self.progress += 1

        self.loop.progress.await_next(call)

    @property
    def leading(self) -> Leading:
        assert isinstance(self.loop.part, Leading)
        return self.loop.part


def fetched(story: Story, leader: Story, **changed: Any) -> None:
    """What the leader of the other story has for this one's next fetch."""
    fetch = story.loop.next_fetch()
    assert fetch is not None
    leader.loop.fetch(fetch, by=2, broker_epoch=0, now_ms=0)
    taken = leader.loop.take_answer(2, 0)
    assert taken is not None
    answer, records = taken
    story.loop.fetch_answered(fetch, replace(answer, **changed), records.loaded() if records is not None else None)


def follower(*records: tuple[int, int, int]) -> Story:
    story = Story(*records)
    story.loop.command(command(LED, 7), Me(2, 0, 0), 0)
    return story

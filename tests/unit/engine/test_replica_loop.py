"""One replica, step by step: what it answers, whom it wakes, and what it asks of ZooKeeper."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
from msgspec.structs import replace

from spark_replication.core.epochs import EpochHistory
from spark_replication.core.producers import Place
from spark_replication.core.replica import Follower, Following, Leading, Me
from spark_replication.core.writes import IsrCommitted, IsrRefused, IsrUnanswered, IsrWrite, StoredPartition
from spark_replication.engine.copy_throttle import CopyThrottle
from spark_replication.engine.replica_loop import ReplicaLoop
from spark_replication.errors import (
    CorruptLog,
    NotEnoughReplicas,
    NotLeader,
    OffsetOutOfRange,
    Overloaded,
    ReplicationError,
    StorageFailed,
)
from spark_replication.messages import (
    CopySize,
    Diverging,
    FetchedPartition,
    FetchPartition,
    PartitionCommand,
    ReplicaLogInfo,
)
from spark_replication.model import AtTime, BrokerId, PartitionState
from spark_replication.ports import PreparedBatch
from spark_replication.sim.memory_log import MemoryLog
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
            guard=nullcontext(),
        )
        self.answers: list[Place | ReplicationError] = []
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


# Commands


def test_it_leads_where_it_is_told_to_and_its_epoch_is_on_disk_first() -> None:
    story = Story((0, 4, 3)).told()
    assert story.log.epochs == EpochHistory.of([(3, 0), (4, 5)])
    assert (story.leading.epoch_start, story.leading.end_at_start, story.loop.order) == (5, 5, (4, 7))


def test_who_lost_its_log_since_it_joined_leads_nobody_though_it_is_named() -> None:
    story = Story((0, 4, 3)).told(me=Me(1, 1, 1))
    assert (story.loop.part, story.links.following) == (None, {})
    with pytest.raises(NotLeader, match="does not lead foo-0, nobody does"):
        story.produce()


@pytest.mark.parametrize("partition_epoch", [6, 7])
def test_an_older_or_equal_command_changes_nothing(partition_epoch: int) -> None:
    story = Story().told()
    story.told(state(2, [2]), partition_epoch)
    assert story.leading.state == LED


def test_a_command_that_the_disk_stopped_is_carried_out_when_it_comes_again() -> None:
    story = Story()
    story.log.failing = frozenset({"begin_epoch"})
    for _ in range(2):
        with pytest.raises(StorageFailed):
            story.told()
    assert (story.loop.part, story.loop.order) == (None, (-1, -1))
    story.log.failing = frozenset()
    assert story.told().leading.state == LED


def test_a_later_leader_epoch_goes_before_a_higher_partition_epoch() -> None:
    story = Story().told(state(2, [2], leader_epoch=5), 3)
    story.told(LED, 9)
    assert (story.loop.order, story.links.following) == ((5, 3), {FOO: 2})
    story.told(LED, 9).told(state(1, [1, 2], leader_epoch=6), 1)
    assert (story.loop.order, story.leading.state.leader_epoch) == ((6, 1), 6)


def test_in_the_same_leadership_replicas_are_added_and_dropped() -> None:
    story = Story().told()
    story.fetch(2, 0)
    two = story.leading.followers[2]
    story.loop.command(command(LED, 8, replicas=(1, 2, 4)), ME, 50)
    assert story.leading.replicas == (1, 2, 4)
    assert story.leading.followers == {2: two, 4: Follower(-1, -1, caught_up_ms=50)}
    # A member of the ISR is followed whatever the assignment says.
    story.loop.command(command(LED, 9, replicas=(1,)), ME, 60)
    assert story.leading.followers == {2: two}


def test_a_newer_state_of_the_same_leadership_is_taken_over() -> None:
    story = Story().told()
    before = story.leading
    story.told(state(1, [1], elr=[2]), 8)
    assert story.leading == replace(before, state=state(1, [1], elr=[2]), partition_epoch=8)


def test_it_follows_a_new_leader_once_and_nobody_where_nobody_leads() -> None:
    story = Story((0, 4, 3)).told(state(2, [2]))
    assert story.loop.part == Following(leader=2, leader_epoch=4, partition_epoch=7, high_watermark=0)
    assert story.links.following == {FOO: 2}
    story.links.following.clear()
    story.told(state(2, [2, 3]), 8)
    assert story.links.following == {}  # it follows already
    story.told(state(None, [3], leader_epoch=5), 9)
    assert (story.loop.next_fetch(), story.links.following) == (None, {})
    story.told(state(2, [2], leader_epoch=6), 10)
    assert story.links.following == {FOO: 2}
    with pytest.raises(NotLeader, match="broker 2 does"):
        story.produce()


def test_a_new_epoch_of_its_own_begins_anew() -> None:
    story = Story().told()
    story.fetch(2, 0)
    assert story.links.take() == []
    story.told(state(1, [1, 2], leader_epoch=5), 8)
    assert story.links.take() == [2]  # its fetch is of an earlier epoch
    assert story.answer(2).error == "FENCED_LEADER_EPOCH"
    assert story.leading.followers[2].end == -1


# Producers


def test_acks_all_waits_for_the_isr_and_others_do_not() -> None:
    story = Story().told()
    story.produce(2, acks="all")
    story.produce(1, acks=1)
    story.produce(1, acks=0)
    assert story.answers == [Place(2, 2), Place(3, 3)]
    story.fetch(2, 1)
    assert story.answers[2:] == []
    story.fetch(2, 4)
    assert (story.answers[2:], story.loop.high_watermark) == ([Place(0, 1)], 4)


def test_acks_all_is_refused_below_min_isr_and_nothing_is_stored() -> None:
    story = Story().told(state(1, [1], elr=[2]))
    with pytest.raises(NotEnoughReplicas):
        story.produce()
    assert story.log.log_end == 0
    story.produce(acks=1)
    assert (story.answers, story.loop.high_watermark) == ([Place(0, 0)], 0)


def test_only_so_many_appends_wait_at_one_time() -> None:
    story = Story(partition_waiters_max=2).told()
    story.produce()
    story.produce()
    with pytest.raises(Overloaded, match="2 appends of foo-0 wait"):
        story.produce()
    assert story.log.log_end == 2
    story.produce(acks=1)
    story.fetch(2, 3)
    story.produce()
    assert story.answers == [Place(2, 2), Place(0, 0), Place(1, 1)]


def test_a_batch_without_rows_is_stored_nowhere_and_answered_at_once() -> None:
    story = Story().told()
    story.produce(0)
    assert (story.answers, story.log.log_end) == ([Place(0, -1)], 0)


def test_a_batch_that_is_sent_again_waits_for_its_own_place() -> None:
    story = Story().told()
    for sequence in range(3):
        story.produce(sequence=sequence)
    story.produce(sequence=0)
    story.fetch(2, 1)
    assert (story.answers, story.log.log_end) == ([Place(0, 0), Place(0, 0)], 3)
    story.produce(sequence=0)
    assert story.answers[2:] == [Place(0, 0)]  # it is committed


def test_what_producers_wrote_before_is_read_from_the_log() -> None:
    story = Story().told()
    story.produce(sequence=0)
    again = ReplicaLoop(
        FOO,
        FOO_ID,
        story.log,
        settings=settings(),
        isr_store=story.isr_store,
        links=story.links,
        flusher=story.flushes,
        failures=story.failures,
        throttle=story.throttle,
        guard=nullcontext(),
    )
    again.command(command(LED, 7), ME, 0)
    again.produce(PreparedBatch(1, b"x", 0, b"", 9, 0, 0), acks=1, now_ms=0, acknowledge=story.answers.append)
    assert (story.answers, story.log.log_end) == ([Place(0, 0)], 1)


def test_batches_are_compressed_as_the_topic_says_now() -> None:
    loop = Story(compression="lz4").loop
    before = loop.compression
    loop.configure(settings(compression="zstd"))
    assert (before, loop.compression) == ("lz4", "zstd")


def test_a_follower_that_the_controller_dropped_is_answered_so_that_it_asks_again_and_is_back() -> None:
    """Else one that lives would wait at the log end for the next batch, and be out of the ISR until then."""
    story = Story().told(state(1, [1, 2, 3]))
    for follower in (2, 3):
        story.fetch(follower, 0)
    story.links.take()
    story.told(state(1, [1, 2]), 8)
    assert (story.links.take(), story.isr_store.asked) == ([3], [])
    assert story.answer(3).error == "NONE"
    story.fetch(3, 0)
    ((write, _),) = story.isr_store.asked
    assert write.state.isr == {1, 2, 3}


def test_a_disk_that_refuses_an_append_refuses_it_to_the_producer() -> None:
    story = Story().told()
    story.log.failing = frozenset({"append"})
    with pytest.raises(StorageFailed):
        story.produce()
    assert (story.answers, story.log.log_end) == ([], 0)
    assert story.failures.told == [FOO], "the controller may have another one lead"


def test_a_leader_that_is_alone_in_sync_keeps_what_its_disk_refuses_to_itself() -> None:
    """Nobody could take over: what it has can be read, and it goes on when its disk does."""
    story = Story(min_insync_replicas=1).told(state(1, [1], min_isr=1))
    story.log.failing = frozenset({"append"})
    with pytest.raises(StorageFailed):
        story.produce()
    assert story.failures.told == []
    story.log.failing = frozenset()
    story.produce()
    assert story.answers == [Place(0, 0)]


def test_a_follower_whose_disk_refuses_says_so_and_takes_the_same_records_later() -> None:
    leader, story = Story().told(), Story().told(state(2, [1, 2]))
    leader.produce()
    story.log.failing = frozenset({"append_slice"})
    with pytest.raises(StorageFailed):
        fetched(story, leader)
    assert (story.failures.told, story.log.log_end) == ([FOO], 0)
    story.log.failing = frozenset()
    asked = story.links.asked
    story.loop.tick(1_000)
    story.loop.tick(1_000 + DISK_RETRY_MS - 1)
    assert (story.loop.waits_for_time, story.loop.next_fetch(), story.links.asked) == (True, None, asked), (
        "it would be in sync"
    )
    story.loop.tick(1_000 + DISK_RETRY_MS)
    assert (story.loop.waits_for_time, story.links.asked) == (False, asked + 1)
    fetched(story, leader)
    assert (story.failures.told, story.log.log_end) == ([FOO], 1)


def test_who_leads_by_the_time_that_its_disk_is_tried_again_asks_nobody() -> None:
    story = Story().told(state(1, [1, 2]))
    story.log.failing = frozenset({"append"})
    with pytest.raises(StorageFailed):
        story.produce()
    story.loop.tick(1_000)
    story.loop.tick(1_000 + DISK_RETRY_MS)
    assert story.links.asked == 0


def test_what_is_about_to_be_closed_is_flushed_whatever_its_setting() -> None:
    story = Story().told()
    story.produce()
    assert story.log.flushing is None
    story.loop.flush_soon()
    story.flushes.end()
    assert story.log.flushed_end == 1


def test_a_flush_that_failed_is_told_of() -> None:
    story = Story(flush="always").told()
    story.produce()
    story.flushes.end(StorageFailed("the disk refuses to flush"))
    assert story.failures.told == [FOO]


@pytest.mark.parametrize(
    "order",
    [
        command(state(2, [1, 2], leader_epoch=5), 8),
        command(state(None, [2], leader_epoch=5), 8),
    ],
)
def test_who_waits_is_told_when_the_leadership_ends_and_that_it_may_be_written(order: PartitionCommand) -> None:
    story = Story().told()
    story.produce()
    story.produce()
    story.fetch(3, 2)
    story.on_progress()
    story.loop.command(order, ME, 0)
    assert story.errors() == [("NOT_LEADER_OR_FOLLOWER", True)] * 2
    assert (story.progress, story.links.take()) == (1, [3])
    assert story.answer(3).error == "NOT_LEADER_OR_FOLLOWER"


def test_who_resigns_tells_who_waits_and_keeps_how_far_it_was_committed() -> None:
    story = Story().told()
    story.produce()
    story.fetch(2, 1)
    story.produce()
    story.loop.resign("gone")
    assert (story.loop.part, story.errors()) == (None, [("NOT_LEADER_OR_FOLLOWER", True)])
    assert story.loop.high_watermark == story.log.high_watermark == 1
    # What is read after the next registration counts, whatever its epoch.
    assert story.told().leading.state == LED
    assert story.leading.high_watermark == 1


# Followers


def test_a_fetch_at_the_end_waits_and_one_below_is_answered() -> None:
    story = Story().told()
    story.produce(3)
    story.fetch(2, 3)
    assert story.links.take() == []
    story.fetch(3, 1)
    assert story.links.take() == [3]
    answer = story.answer(3)
    assert (answer.offset, answer.high_watermark, answer.error) == (1, 3, "NONE")
    assert answer.data_bytes > 0
    assert story.loop.take_answer(3, 0) is None  # it has been answered
    story.produce()
    assert story.links.take() == [2]
    assert story.answer(2).offset == 3


def test_who_fetches_past_an_append_is_not_woken_by_it() -> None:
    story = Story().told()
    story.fetch(2, 5)
    story.links.take()
    story.produce()
    assert story.links.take() == []


def test_a_follower_whose_log_parts_is_told_where() -> None:
    story = Story((0, 4, 3)).told()
    story.fetch(2, 7, last_epoch=3)
    assert story.links.take() == [2]
    assert story.answer(2).diverging == Diverging(epoch=3, end=5)
    assert story.leading.followers[2].end == -1


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"leader_epoch": 3}, "FENCED_LEADER_EPOCH"),
        ({"leader_epoch": 5}, "UNKNOWN_LEADER_EPOCH"),
        ({"topic_id": "another"}, "NOT_LEADER_OR_FOLLOWER"),
    ],
)
def test_a_fetch_that_is_refused_says_why(changed: dict[str, Any], error: str) -> None:
    story = Story((0, 4, 3)).told()
    story.fetch(2, 5, **changed)
    assert story.links.take() == [2]
    answer = story.answer(2)
    assert (answer.error, answer.leader_epoch) == (error, changed.get("leader_epoch", 4))


@pytest.mark.parametrize(("offset", "last_epoch"), [(3, -1), (3, 3), (4, 9)])
def test_a_fetch_below_the_logs_start_is_told_where_it_starts_and_reports_no_end(offset: int, last_epoch: int) -> None:
    story = Story((5, 9, 3)).told()
    story.fetch(2, offset, last_epoch=last_epoch)
    assert story.links.take() == [2]
    answer = story.answer(2)
    assert (answer.error, answer.diverging, answer.log_start, answer.data_bytes) == ("NONE", None, 5, 0)
    assert story.leading.followers[2].end == -1


def test_a_follower_that_waits_hears_of_the_high_watermark_once_it_has_moved() -> None:
    story = Story().told()
    story.produce()
    story.fetch(3, 1)
    story.fetch(2, 1, high_watermark=1)
    story.loop.tell_high_watermark()
    assert story.links.take() == [3]
    answer = story.answer(3)
    assert (answer.high_watermark, answer.data_bytes) == (1, 0)


def test_that_a_follower_is_to_be_answered_is_said_once_for_each_of_its_fetches() -> None:
    story = Story().told()
    story.fetch(2, 0)
    story.produce()
    story.produce()
    assert story.links.take() == [2]
    story.fetch(2, 0)  # over another connection: of the one before nobody hears any longer
    assert story.links.take() == [2]
    story.answer(2)
    story.fetch(2, 2)
    assert story.links.take() == []
    story.produce()
    assert story.links.take() == [2]


# Following


def fetched(story: Story, leader: Story, **changed: Any) -> None:
    """What the leader of the other story has for this one's next fetch."""
    fetch = story.loop.next_fetch()
    assert fetch is not None
    leader.loop.fetch(fetch, by=2, broker_epoch=0, now_ms=0)
    taken = leader.loop.take_answer(2, 0)
    assert taken is not None
    answer, records = taken
    story.loop.fetched(replace(answer, **changed), records.loaded() if records is not None else None)


def follower(*records: tuple[int, int, int]) -> Story:
    story = Story(*records)
    story.loop.command(command(LED, 7), Me(2, 0, 0), 0)
    return story


def test_a_follower_cuts_what_parts_appends_the_same_and_knows_the_producers() -> None:
    leader, story = Story((0, 4, 3)).told(), follower((0, 6, 3))
    leader.produce(2, sequence=0)
    fetched(story, leader)
    assert story.log.log_end == 5
    fetched(story, leader)
    assert story.log.records == leader.log.records
    # It cuts them again, and so its producers' batches too, when another leads without them.
    other = Story((0, 4, 3)).told(state(1, [1, 2], leader_epoch=6), 9)
    story.loop.command(command(state(1, [1, 2], leader_epoch=6), 9), Me(2, 0, 0), 0)
    fetched(story, other)
    assert story.log.log_end == 5
    story.loop.command(command(state(2, [2], min_isr=1, leader_epoch=7), 10), Me(2, 0, 0), 0)
    story.produce(sequence=0)
    assert story.answers == [Place(5, 5)]


def test_a_follower_that_ends_below_its_leaders_start_begins_anew_there() -> None:
    leader, story = Story((5, 9, 3)).told(), follower((0, 3, 2))
    fetched(story, leader)
    assert (story.log.log_start, story.log.log_end, story.log.epochs) == (5, 5, EpochHistory())
    assert story.loop.high_watermark == 5
    fetched(story, leader)
    assert (story.log.records, story.log.epochs) == (leader.log.records, EpochHistory.of([(3, 5)]))


def test_a_follower_whose_whole_log_parts_from_its_leaders_begins_anew() -> None:
    leader, story = Story((0, 9, 3)).told(), follower((5, 7, 2))
    for _ in range(3):
        fetched(story, leader)
    assert (story.log.log_start, story.log.records) == (0, leader.log.records)


def test_a_follower_forgets_what_its_leader_has_forgotten_as_far_as_it_is_committed() -> None:
    leader, story = Story((0, 9, 3)).told(), follower((0, 9, 3))
    story.log.rows_per_segment = leader.log.rows_per_segment = 2
    leader.log.forget(6)
    fetched(story, leader, high_watermark=5)
    assert (story.log.log_start, story.log.log_end) == (4, 10)
    fetched(story, leader, high_watermark=8)
    assert (story.log.log_start, story.log.epochs) == (6, EpochHistory.of([(3, 6)]))


def test_where_nothing_parts_nothing_is_cut() -> None:
    leader, story = Story((0, 4, 3)).told(), follower((0, 4, 3))
    fetched(story, leader, diverging=Diverging(epoch=3, end=9))
    assert story.log.log_end == 5


def test_a_followers_high_watermark_is_within_its_log_and_never_falls() -> None:
    leader, story = Story((0, 4, 3)).told(), follower((0, 1, 3))
    fetched(story, leader, high_watermark=9)
    assert story.loop.high_watermark == 5
    fetched(story, leader, high_watermark=2)
    assert story.loop.high_watermark == 5


def test_an_answer_of_another_epoch_or_to_who_follows_no_more_says_nothing() -> None:
    leader, story = Story((0, 4, 3)).told(), follower()
    fetched(story, leader, leader_epoch=3)
    assert story.log.log_end == 0
    leader.loop.fetched(FetchedPartition(topic="foo", partition=0, topic_id=FOO_ID, leader_epoch=4), None)
    assert leader.leading.state == LED


def test_records_that_do_not_continue_the_log_are_refused() -> None:
    leader, story = Story((0, 4, 3)).told(), follower()
    records = leader.log.find(2, bytes_max=9, end=5)
    assert records is not None
    answer = FetchedPartition(topic="foo", partition=0, topic_id=FOO_ID, leader_epoch=4)
    with pytest.raises(CorruptLog, match="asked for 0, got 2"):
        story.loop.fetched(answer, records.loaded())


# Recovery


def test_who_follows_tells_of_its_log_and_follows_no_longer_until_something_newer() -> None:
    story = Story((0, 4, 3)).told(state(2, [2]))
    info = ReplicaLogInfo(topic="foo", partition=0, topic_id=FOO_ID, last_epoch=3, current_epoch=4, end=5)
    assert story.loop.log_info(4) == info
    assert (story.loop.next_fetch(), story.links.following) == (None, {})
    assert story.loop.log_info(4) == info  # again: it is the same
    story.told(state(2, [2, 3]), 8)
    assert story.links.following == {FOO: 2}


def test_a_late_question_stops_nobody_who_follows_a_leader_elected_since() -> None:
    story = Story((0, 4, 3)).told(state(2, [2]))
    assert story.loop.log_info(3).current_epoch == 4
    assert story.links.following == {FOO: 2}


def test_who_leads_tells_of_its_log_and_leads_on() -> None:
    story = Story((0, 4, 3)).told()
    story.produce()
    assert (story.loop.log_info(4).last_epoch, story.loop.log_info(4).end) == (4, 6)
    assert story.leading.state == LED


def test_who_was_told_nothing_knows_no_epoch() -> None:
    info = ReplicaLogInfo(topic="foo", partition=0, topic_id=FOO_ID, last_epoch=-1, current_epoch=-1, end=0)
    assert Story().loop.log_info(4) == info


# Consumers


def test_a_consumer_reads_below_the_high_watermark_only() -> None:
    story = Story().told()
    story.produce(3)
    assert story.loop.read(0, bytes_max=9, to=None) is None
    story.fetch(2, 2)
    found = story.loop.read(0, bytes_max=9, to=None)
    assert found is not None
    assert (found.first_offset, found.next_offset) == (0, 2)
    assert story.loop.read(1, bytes_max=9, to=1) is None
    assert story.loop.read(2, bytes_max=9, to=None) is None
    with pytest.raises(OffsetOutOfRange):
        story.loop.read(4, bytes_max=9, to=None)


def test_a_consumer_is_woken_once_when_the_high_watermark_moves() -> None:
    story = Story().told()
    story.produce(2)
    story.on_progress()
    story.fetch(2, 0)
    assert story.progress == 0
    story.fetch(2, 1)
    story.fetch(2, 2)
    assert story.progress == 1


def test_a_consumer_that_waits_no_longer_is_not_called() -> None:
    story = Story().told()
    called: list[str] = []
    waiting, gone = (lambda: called.append("waiting")), (lambda: called.append("gone"))
    story.loop.progress.await_next(waiting)
    story.loop.progress.await_next(gone)
    story.loop.progress.leave(gone)
    story.produce()
    story.fetch(2, 1)
    story.loop.progress.leave(waiting)
    assert called == ["waiting"]


def test_a_follower_serves_what_it_knows_to_be_committed_to_whom_any_replica_will_do() -> None:
    leader, story = Story((0, 4, 3)).told(), follower((0, 1, 3))
    with pytest.raises(NotLeader):
        story.loop.read(0, bytes_max=9, to=None)
    with pytest.raises(NotLeader):
        story.loop.read(0, bytes_max=9, to=None, any_replica=True)  # its leader has not seen its log
    story.on_progress()
    fetched(story, leader, high_watermark=4)
    assert story.progress == 1
    found = story.loop.read(1, bytes_max=9, to=None, any_replica=True)
    assert found is not None
    assert (found.first_offset, found.next_offset) == (1, 4)
    assert story.loop.read(4, bytes_max=9, to=None, any_replica=True) is None
    with pytest.raises(NotLeader):
        Story().loop.read(0, bytes_max=9, to=None, any_replica=True)


def test_a_follower_serves_nothing_before_its_leader_has_found_its_whole_log() -> None:
    leader, story = Story((0, 4, 3)).told(), follower((0, 6, 3))
    fetched(story, leader, high_watermark=4)
    assert (story.log.log_end, story.loop.high_watermark) == (5, 4)
    with pytest.raises(NotLeader):
        story.loop.read(0, bytes_max=9, to=None, any_replica=True)
    fetched(story, leader)
    assert story.loop.read(0, bytes_max=9, to=None, any_replica=True) is not None
    # It stays so while this leader leads, whatever else changes, and has to be found again by the next one.
    story.loop.command(command(LED, 8), Me(2, 0, 0), 0)
    assert story.loop.read(0, bytes_max=9, to=None, any_replica=True) is not None
    story.loop.command(command(state(1, [1, 2], leader_epoch=6), 9), Me(2, 0, 0), 0)
    with pytest.raises(NotLeader):
        story.loop.read(0, bytes_max=9, to=None, any_replica=True)


def test_a_read_begins_within_what_a_consumer_may_see() -> None:
    story = Story().told()
    assert [story.loop.start_of(start) for start in ("earliest", "latest", AtTime(0))] == [0, 0, 0]
    for now_ms in (10, 30, 20, 40):
        story.produce(now_ms=now_ms)
    assert [story.loop.start_of(start) for start in ("earliest", "latest", AtTime(0))] == [0, 0, 0]
    story.fetch(2, 3)
    assert [story.loop.start_of(start) for start in ("earliest", "latest", 7)] == [0, 3, 7]
    assert [story.loop.start_of(AtTime(at)) for at in (0, 10, 11, 30, 31, 40, 41)] == [0, 0, 1, 1, 3, 3, 3]
    story.fetch(2, 4)
    assert [story.loop.start_of(AtTime(at)) for at in (31, 41)] == [3, 4]


def test_a_read_begins_where_retention_has_left_something() -> None:
    story = Story((5, 9, 3)).told()
    story.fetch(2, 10)
    assert [story.loop.start_of(start) for start in ("earliest", "latest", AtTime(0))] == [5, 10, 5]


def test_a_read_from_a_follower_begins_within_what_that_one_serves() -> None:
    leader, story = Story((0, 4, 3)).told(), follower((0, 1, 3))
    for any_replica in (False, True):
        with pytest.raises(NotLeader):
            story.loop.start_of("latest", any_replica=any_replica)
    fetched(story, leader, high_watermark=4)
    assert [story.loop.start_of(start, any_replica=True) for start in ("earliest", "latest", AtTime(1))] == [0, 4, 4]
    with pytest.raises(NotLeader):
        story.loop.start_of("earliest")
    with pytest.raises(NotLeader):
        Story().loop.start_of("earliest", any_replica=True)


# Time, and ZooKeeper's answers


JOINED = state(1, [1, 2, 3])


def joining() -> Story:
    """3 has caught up, and the leader has asked for it."""
    story = Story().told()
    story.fetch(3, 0)
    return story


def test_who_caught_up_is_asked_for_and_counts_from_then_on() -> None:
    story = joining()
    story.produce()
    story.fetch(2, 1)
    assert story.answers == []
    assert story.isr_store.answer(IsrCommitted(8)) == IsrWrite(
        partition=FOO, topic_id=FOO_ID, broker=1, broker_epoch=0, state=JOINED, version=7, joining={3: 0}
    )
    assert (story.leading.state, story.leading.partition_epoch, story.answers) == (JOINED, 8, [])
    story.fetch(3, 1)
    assert story.answers == [Place(0, 0)]


def test_an_answer_that_shrinks_what_is_waited_for_acknowledges() -> None:
    story = joining()
    story.produce()
    story.fetch(2, 1)
    story.isr_store.answer(IsrRefused(StoredPartition(LED, 7)))
    assert (story.answers, story.leading.pending) == ([Place(0, 0)], None)


def test_a_change_without_an_answer_is_asked_again_as_it_was_and_once_a_tick() -> None:
    story = joining()
    story.loop.tick(1)
    assert len(story.isr_store.asked) == 1  # it is in flight
    first = story.isr_store.answer(IsrUnanswered())
    assert story.leading.maximal_isr == {1, 2, 3}
    story.loop.tick(2)
    story.loop.tick(3)
    assert len(story.isr_store.asked) == 1
    assert story.isr_store.answer(IsrCommitted(8)) == first


def test_who_is_silent_leaves_and_one_that_follows_asks_nothing() -> None:
    story = Story(replica_lag_time_ms=100).told(now_ms=50)
    story.produce(acks=1, now_ms=60)
    story.loop.tick(149)
    assert story.isr_store.asked == []
    story.loop.tick(150)
    assert story.isr_store.answer(IsrCommitted(8)).state == state(1, [1], elr=[2])
    other = follower()
    other.loop.tick(10_000)
    assert other.isr_store.asked == []


def test_a_refusal_that_names_another_leader_ends_the_leadership() -> None:
    story = joining()
    story.produce()
    story.isr_store.answer(IsrRefused(StoredPartition(state(2, [2], leader_epoch=5), 8)))
    assert (story.loop.part, story.errors()) == (None, [("NOT_LEADER_OR_FOLLOWER", True)])
    # An old command does not bring it back; the new one is obeyed.
    assert story.told().loop.part is None
    assert story.told(state(2, [2], leader_epoch=5), 8).links.following == {FOO: 2}


@pytest.mark.parametrize("answer", [IsrCommitted(8), IsrRefused(None), IsrUnanswered()])
@pytest.mark.parametrize("stored", [state(2, [2], leader_epoch=5), state(1, [1, 2], leader_epoch=5)])
def test_an_answer_that_comes_after_the_leadership_ended_says_nothing(
    answer: IsrCommitted | IsrRefused | IsrUnanswered, stored: PartitionState
) -> None:
    story = joining().told(stored, 9)
    part = story.loop.part
    story.isr_store.answer(answer)
    assert story.loop.part is part
    story.loop.tick(0)
    assert story.isr_store.asked == []


def test_an_answer_that_was_overtaken_by_the_controllers_next_change_does_not_bring_back_the_old_isr() -> None:
    story = joining().told(state(1, [1, 3], elr=[], min_isr=2), 9)
    story.isr_store.answer(IsrCommitted(8))
    assert (story.leading.state, story.leading.partition_epoch, story.leading.pending) == (state(1, [1, 3]), 9, None)


def test_a_change_left_unanswered_by_an_earlier_leadership_is_not_asked_in_the_next() -> None:
    story = joining()
    story.isr_store.answer(IsrUnanswered())
    story.told(state(1, [1, 2], leader_epoch=5), 8)
    story.loop.tick(0)
    assert story.isr_store.asked == []


def retaining(**given: Any) -> Story:
    """Ten committed batches of producer 9, two to a segment, at time 0."""
    story = Story(log_retention_check_interval_ms=100, **given)
    story.log.rows_per_segment = 2
    story.told(state(1, [1], min_isr=1))
    for sequence in range(10):
        story.produce(sequence=sequence)
    story.answers.clear()
    return story


def test_a_leader_forgets_on_its_tick_what_its_topic_keeps_no_longer() -> None:
    story = retaining(retention_bytes=5)
    story.loop.tick(99)
    assert story.log.log_start == 0
    story.loop.tick(100)
    assert (story.log.log_start, story.log.log_end, story.loop.view.epochs) == (4, 10, EpochHistory.of([(4, 4)]))
    with pytest.raises(OffsetOutOfRange, match="offset 3 is outside 4 to 10"):
        story.loop.read(3, bytes_max=9, to=None)
    story.loop.configure(settings(retention_ms=50, log_retention_check_interval_ms=100))
    story.loop.tick(199)
    assert story.log.log_start == 4
    story.loop.tick(200)
    assert story.log.log_start == 8


def test_nothing_is_forgotten_that_followers_may_not_have() -> None:
    story = Story(retention_bytes=0, log_retention_check_interval_ms=1).told()
    story.log.rows_per_segment = 1
    story.produce(5)
    story.fetch(2, 3)
    story.loop.tick(1)
    assert (story.log.log_start, story.loop.high_watermark) == (3, 3)


def test_a_producer_whose_batches_are_forgotten_goes_on() -> None:
    story = retaining(retention_bytes=0)
    story.loop.tick(100)
    story.produce(sequence=9)
    story.produce(sequence=10)
    assert story.answers == [Place(9, 9), Place(10, 10)]


def test_a_disk_that_lets_nothing_go_is_asked_again() -> None:
    story = retaining(retention_bytes=0)
    story.log.failing = frozenset({"forget"})
    story.loop.tick(100)
    assert story.log.log_start == 0
    story.log.failing = frozenset()
    story.loop.tick(200)
    assert story.log.log_start == 8


def test_a_follower_forgets_nothing_by_itself() -> None:
    story = follower((0, 9, 3))
    story.log.rows_per_segment = 1
    story.loop.configure(settings(retention_bytes=0, log_retention_check_interval_ms=1))
    story.loop.tick(1 << 50)
    assert story.log.log_start == 0


def test_the_high_watermark_is_checkpointed_once_it_moved() -> None:
    story = Story()
    story.loop.checkpoint()
    story.told()
    story.produce()
    story.fetch(2, 1)
    assert story.log.high_watermark == 0
    story.loop.checkpoint()
    assert story.log.high_watermark == 1


# Replicas that are being added (A3). The throttle's bucket begins full, with 10 bytes, and refills with 10 a second.


def copied(*records: tuple[int, int, int], bytes_per_second: int = 10) -> Story:
    """Broker 1 leads, 2 is in sync, and 3 is being added."""
    story = Story(*records)
    story.throttle.configure(bytes_per_second)
    story.loop.command(command(LED, 7, adding=(3,)), ME, 1_000)
    return story


def test_a_replica_that_is_being_added_gets_as_much_as_the_throttle_allows_and_then_waits() -> None:
    story = copied((0, 99, 4))
    story.fetch(3, 0, now_ms=1_000)
    assert (story.links.take(), story.answer(3).data_bytes > 0) == ([3], True)
    story.fetch(3, 10, now_ms=1_000)
    assert story.links.take() == []
    story.throttle.tick(100_000)
    assert story.links.take() == [3]


def test_what_is_in_sync_does_not_wait_for_a_throttle() -> None:
    story = copied((0, 99, 4), bytes_per_second=1)
    for _ in range(3):
        story.fetch(2, 50, now_ms=1_000)
        assert story.links.take() == [2]
        assert story.answer(2).data_bytes > 0


def test_a_copy_that_asks_out_of_turn_hears_of_the_high_watermark_alone() -> None:
    story = copied((0, 99, 4))
    story.throttle.take(3, FOO)
    story.fetch(2, 100, now_ms=1_000)
    story.fetch(3, 0, now_ms=1_000)
    story.answer(3)
    story.fetch(3, 10, now_ms=1_000)
    story.links.take()
    found = story.answer(3)
    assert (found.data_bytes, found.high_watermark, found.error) == (0, 100, "NONE")


def test_a_copy_that_waits_for_its_turn_is_not_woken_for_the_high_watermark() -> None:
    story = copied((0, 99, 4))
    story.fetch(3, 0, now_ms=1_000)
    story.answer(3)
    story.fetch(3, 10, now_ms=1_000)
    story.fetch(2, 100, now_ms=1_000)
    story.links.take()
    story.loop.tell_high_watermark()
    assert story.links.take() == [2]


def test_what_is_appended_goes_to_a_copy_when_it_is_its_turn() -> None:
    """It is at the log end, and ZooKeeper refused to let it join."""
    story = copied(bytes_per_second=1)
    story.fetch(3, 0, now_ms=1_000)
    story.isr_store.answer(IsrRefused(StoredPartition(LED, 7)))
    assert story.links.take() == []
    story.produce(5, acks=1, now_ms=1_000)
    assert story.links.take() == [3]
    story.answer(3)
    story.fetch(3, 1, now_ms=1_000)
    story.produce(5, acks=1, now_ms=1_000)
    assert story.links.take() == []
    story.throttle.tick(1_000_000)
    assert story.links.take() == [3]


def test_a_copy_that_joins_the_isr_waits_no_longer_since_acknowledgements_wait_for_it() -> None:
    """It has everything below the high watermark, and not what came after that."""
    story = copied((0, 9, 4), bytes_per_second=1)
    story.fetch(2, 10, now_ms=1_000)
    story.produce(20, acks=1, now_ms=1_000)
    story.fetch(3, 0, now_ms=1_000)
    story.answer(3)
    story.links.take()
    story.fetch(3, 10, now_ms=1_000)
    assert story.leading.pending is not None
    assert story.leading.pending.state.isr == {1, 2, 3}
    assert story.links.take() == [3]
    assert story.answer(3).data_bytes > 0


@pytest.mark.parametrize(
    ("told", "partition_epoch"),
    [(LED, 8), (state(1, [1, 2, 3]), 8), (state(1, [1, 2], leader_epoch=5), 1), (state(2, [1, 2], leader_epoch=5), 1)],
)
def test_who_is_no_copy_any_longer_or_of_another_leader_is_answered(told: PartitionState, partition_epoch: int) -> None:
    story = copied((0, 99, 4), bytes_per_second=1)
    story.fetch(3, 0, now_ms=1_000)
    story.answer(3)
    story.fetch(3, 1, now_ms=1_000)
    story.links.take()
    story.told(told, partition_epoch)
    assert story.links.take() == [3]


def test_without_a_limit_nobody_waits_any_longer() -> None:
    story = copied((0, 99, 4), bytes_per_second=1)
    story.fetch(3, 0, now_ms=1_000)
    story.answer(3)
    story.fetch(3, 1, now_ms=1_000)
    assert story.links.take() == [3]
    story.throttle.configure(0)
    assert story.links.take() == [3]
    assert story.answer(3).data_bytes > 0
    story.fetch(3, 2, now_ms=1_000)
    assert story.links.take() == [3]


def test_an_answer_that_fails_leaves_its_turn_to_the_next() -> None:
    story = copied((0, 99, 4))
    story.fetch(3, 0, now_ms=1_000)
    story.told(state(2, [1, 2], leader_epoch=5), 1)
    assert story.loop.take_answer(3, 0) is not None
    story.throttle.wait(4, FOO, 1_000)
    assert story.links.take()[-1] == 4


def test_its_leader_tells_how_a_copy_gets_on() -> None:
    story = copied((0, 99, 4))
    assert story.loop.size().copies == {3: CopySize(bytes_left=100, bytes_per_second=None)}
    story.fetch(3, 10, now_ms=1_000)
    story.loop.tick(1_000)
    story.fetch(3, 40, now_ms=2_000)
    story.loop.tick(7_000)
    assert story.loop.size().copies == {3: CopySize(bytes_left=60, bytes_per_second=5)}
    story.told(state(1, [1, 2, 3]), 8)
    assert story.loop.size().copies == {}
    story.told(state(2, [1, 2], leader_epoch=5), 1)
    assert story.loop.size().copies == {}

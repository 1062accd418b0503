"""TB5: a replica whose partition is to start at an offset obeys before it leads or follows, whoever leads."""

from __future__ import annotations

import pytest

from spark_replication.core.replica.epochs import EpochHistory
from spark_replication.core.replica.producers import OffsetSpan
from spark_replication.core.replica.replica import Following, Me
from spark_replication.engine.replica.numbered_log import NumberedLog
from spark_replication.errors import EpochBehindLog, NotLeader, OffsetOutOfRange, StorageFailed
from spark_replication.model import BrokerId, PartitionState
from spark_replication.ports import PreparedBatch
from tests.unit.core.stories import FOO, command, settings, state
from tests.unit.engine.replica.story import Story, fetched, follower


def led(start_at: int, *, leader: BrokerId | None = 1, leader_epoch: int = 5) -> PartitionState:
    """As an unclean election leaves it, or a later loss of that leader."""
    isr = [] if leader is None else [leader]
    return state(leader, isr, min_isr=1, leader_epoch=leader_epoch, start_at=start_at)


def log_of(story: Story) -> tuple[int, int, list[tuple[int, int]]]:
    return story.log.log_start, story.log.log_end, [(each.epoch, each.start) for each in story.log.epochs]


LOGS = [
    ("it ends below", 20, (20, 20, [(5, 20)])),
    ("it ends there", 10, (10, 10, [(5, 10)])),
    ("a batch begins there", 6, (6, 10, [(3, 6), (5, 10)])),
    ("it starts there", 2, (2, 10, [(3, 2), (5, 10)])),
    ("it starts above", 1, (2, 10, [(3, 2), (5, 10)])),
]


@pytest.mark.parametrize(("start_at", "found"), [each[1:] for each in LOGS], ids=[each[0] for each in LOGS])
def test_a_leader_starts_its_log_there_and_appends_at_its_end(
    start_at: int, found: tuple[int, int, list[tuple[int, int]]]
) -> None:
    story = Story((2, 9, 3)).told(led(start_at))
    assert log_of(story) == found
    assert (story.leading.epoch_start, story.leading.end_at_start) == (found[1], found[1])
    assert story.loop.high_watermark == found[1], "it is alone in the ISR"
    story.produce(2)
    assert story.answers == [OffsetSpan(found[1], found[1] + 1)]
    with pytest.raises(OffsetOutOfRange):
        story.loop.read(found[0] - 1, bytes_max=9, to=None)


def test_of_a_log_in_which_a_batch_spans_it_nothing_is_kept() -> None:
    story = Story((0, 3, 3)).told()
    for rows in (4, 4):  # [4, 8) and [8, 12)
        story.produce(rows)
    story.told(led(6, leader_epoch=6))
    assert log_of(story) == (6, 6, [(6, 6)])


@pytest.mark.parametrize("leader", [2, None])
@pytest.mark.parametrize(
    ("start_at", "found"),
    [(20, (20, 20, [(0, 20)])), (10, (10, 10, [(3, 10)])), (6, (6, 10, [(3, 6)]))],
)
def test_a_follower_starts_its_log_there_whoever_leads(
    leader: BrokerId | None, start_at: int, found: tuple[int, int, list[tuple[int, int]]]
) -> None:
    story = Story((2, 9, 3)).told(led(start_at, leader=leader))
    assert log_of(story) == found
    assert isinstance(story.loop.part, Following)
    assert story.links.following == ({} if leader is None else {FOO: 2})
    assert story.loop.high_watermark == start_at
    fetch = story.loop.next_fetch()
    assert (None if fetch is None else fetch.offset) == (None if leader is None else found[1])


def test_who_may_not_lead_starts_its_log_there_too() -> None:
    story = Story((2, 9, 3)).told(led(6), me=Me(1, 1, 1))
    assert (story.loop.part, log_of(story)) == (None, (6, 10, [(3, 6)]))


def test_an_empty_log_gets_the_epoch_at_which_the_partition_was_made() -> None:
    """Else it would be taken for one of a partition that was there before (E4)."""
    story = Story().told(state(2, [2], min_isr=1, leader_epoch=5, created=4, start_at=9))
    assert (log_of(story), story.loop.is_of_before(4), story.loop.is_of_before(5)) == ((9, 9, [(4, 9)]), False, True)


# Who had this replica before


@pytest.mark.parametrize("start_at", [4, 5, 6, 9])
def test_an_append_that_waits_is_not_acknowledged_because_the_log_starts_above_it(start_at: int) -> None:
    """Its records are no longer here, or nobody can say whether the table has them."""
    story = Story((0, 3, 3)).told()
    story.produce()
    story.produce()
    assert story.answers == []
    story.told(led(start_at))
    assert story.errors() == [(NotLeader.code, True)] * 2
    assert story.loop.high_watermark == max(6, start_at)


def test_through_an_epoch_that_starts_nothing_anew_it_waits_on() -> None:
    story = Story((0, 3, 3)).told()
    story.produce()
    story.told(led(0))
    assert story.answers == [OffsetSpan(4, 4)]


def test_what_was_known_of_committed_records_stays_known() -> None:
    story = Story((0, 9, 3)).told()
    story.fetch(2, 8)
    assert (story.loop.high_watermark, story.log.high_watermark) == (8, 0)
    story.told(state(2, [1, 2], leader_epoch=5, start_at=6))
    assert story.loop.high_watermark == 8


def test_fetches_and_readers_that_wait_are_answered() -> None:
    story = Story((0, 9, 3)).told()
    story.fetch(2, 10)
    story.on_progress()
    story.told(led(6, leader=2))
    assert story.answer(2).error == NotLeader.code
    assert story.progress == 1


def test_an_answer_from_before_says_nothing_any_more() -> None:
    leader, story = Story((0, 9, 3)).told(), follower((0, 4, 3))
    fetch = story.loop.next_fetch()
    assert fetch is not None
    story.loop.command(command(led(7, leader=1), 9), Me(2, 0, 0), 0)
    leader.loop.fetch(fetch, by=2, broker_epoch=0, now_ms=0)
    answer, records = leader.loop.take_answer(2, 0) or (None, None)
    assert answer is not None
    assert records is not None
    story.loop.fetch_answered(fetch, answer, records.loaded())
    assert log_of(story) == (7, 7, [(0, 7)])


def test_a_start_that_rises_in_one_leader_epoch_begins_the_leadership_anew() -> None:
    story = Story((0, 3, 3)).told(state(1, [1, 2], leader_epoch=5))
    story.produce()
    before = story.loop.leadership
    story.told(state(1, [1, 2], leader_epoch=5, start_at=9), 8)
    assert log_of(story) == (9, 9, [(5, 9)])
    assert (story.errors(), story.loop.leadership is before) == ([(NotLeader.code, True)], False)
    story.produce()
    story.fetch(2, 10, leader_epoch=5)
    assert story.answers[1:] == [OffsetSpan(9, 9)]


# The other replicas


def test_a_stale_replica_drops_what_it_has_below_and_takes_the_leaders_records() -> None:
    leader = Story((0, 6, 3)).told(led(10))
    leader.produce(3)
    story = Story((0, 3, 3), (4, 14, 4))
    story.loop.command(command(led(10), 7), Me(2, 0, 0), 0)
    assert log_of(story) == (10, 15, [(4, 10)])
    for _ in range(2):
        fetched(story, leader)
    assert (log_of(story), story.log.records) == ((10, 13, [(5, 10)]), leader.log.records)


def test_a_replica_with_the_leaders_records_keeps_them() -> None:
    leader = Story((0, 14, 3)).told(led(10))
    leader.produce()
    story = Story((0, 12, 3))
    story.loop.command(command(led(10), 7), Me(2, 0, 0), 0)
    assert log_of(story) == (10, 13, [(3, 10)])
    fetched(story, leader)
    assert (log_of(story), story.log.records) == ((10, 16, [(3, 10), (5, 15)]), leader.log.records)


# Again


def test_a_process_that_hears_it_again_does_nothing() -> None:
    story = Story((0, 9, 3)).told(led(6))
    story.produce()
    again = Story()
    again.log.log_start, again.log.records, again.log.epochs = 6, story.log.records, story.log.epochs
    again.told(led(6))
    assert log_of(again) == log_of(story) == (6, 11, [(3, 6), (5, 10)])


def test_a_command_of_an_earlier_time_drops_nothing() -> None:
    story = Story((0, 9, 6))
    with pytest.raises(EpochBehindLog):
        story.told(led(6))
    assert log_of(story) == (0, 10, [(6, 0)])


# A disk that refuses


@pytest.mark.parametrize(
    ("refused", "start_at", "found"),
    [
        ("read", 6, (6, 10, [(3, 6), (5, 10)])),
        ("drop_below", 6, (6, 10, [(3, 6), (5, 10)])),
        ("drop_below", 10, (10, 10, [(5, 10)])),
        ("begin_anew", 20, (20, 20, [(5, 20)])),
        ("begin_epoch", 20, (20, 20, [(5, 20)])),
    ],
)
@pytest.mark.parametrize("led_before", [False, True])
def test_while_the_disk_refuses_nothing_is_served_and_then_it_is_done(
    refused: str, start_at: int, found: tuple[int, int, list[tuple[int, int]]], *, led_before: bool
) -> None:
    story = Story((0, 9, 3)).told(state(1 if led_before else 2, [1, 2]))
    story.log.epochs = EpochHistory.of([(3, 0)])  # without the empty one that it began
    story.log.failing = frozenset({refused})
    for _ in range(2):
        with pytest.raises(StorageFailed):
            story.told(led(start_at), 9)
        assert (story.loop.part, story.links.following) == (None, {})
        with pytest.raises(NotLeader):
            story.loop.read(0, bytes_max=9, to=None, any_replica=True)
        with pytest.raises(NotLeader):
            story.produce()
    story.log.failing = frozenset()
    story.told(led(start_at), 9)
    assert log_of(story) == found


def test_a_log_that_was_cut_and_not_begun_anew_is_begun_anew_the_next_time() -> None:
    """What is known of producers below the cut outlives that."""
    story = Story().told()
    for sequence, rows in enumerate((2, 4)):
        story.produce(rows, sequence=sequence, acks=1)
    story.log.failing = frozenset({"begin_anew"})
    with pytest.raises(StorageFailed):
        story.told(led(4))
    assert story.log.log_end <= 4, "the batch that spans it has gone"
    story.log.failing = frozenset()
    story.told(led(4))
    story.answers.clear()
    story.produce(2, sequence=0)
    assert (story.answers, story.log.log_end) == ([OffsetSpan(0, 1)], 4)
    story.produce(4, sequence=1)
    assert story.answers[1:] == [OffsetSpan(4, 7)]


@pytest.mark.parametrize("start_at", [4, 6, 8])
def test_what_is_known_of_producers_below_the_start_stays_known(start_at: int) -> None:
    story = Story().told(state(1, [1], min_isr=1))
    for sequence in range(3):
        story.produce(2, sequence=sequence)
    story.told(led(start_at))
    story.answers.clear()
    story.produce(2, sequence=2)
    assert story.answers == [OffsetSpan(4, 5)]
    restarted = NumberedLog(story.log, settings())
    assert restarted.known(PreparedBatch(2, b"x", 0, b"", 9, 0, 2)) == OffsetSpan(4, 5)


def numbered(sequence: int, *, rows: int = 2) -> PreparedBatch:
    return PreparedBatch(rows, b"x", 0, b"", 9, 0, sequence)


@pytest.mark.parametrize("start_at", [6, 7, 9])
def test_a_follower_that_keeps_no_records_knows_the_producers_that_its_leader_knows(start_at: int) -> None:
    """Else it would take other batches for stored once it leads: those that it had itself, and the table has not."""
    leader = Story().told(state(1, [1], min_isr=1))
    story = Story().told(state(1, [1], min_isr=1))
    for sequence in range(2):
        leader.produce(2, sequence=sequence)
    for sequence in range(3):
        story.produce(2, sequence=sequence)
    leader.told(led(start_at))
    story.loop.command(command(led(start_at), 8), Me(2, 0, 0), 0)
    restarted = NumberedLog(story.log, settings())
    assert restarted.known(numbered(2)) == OffsetSpan(4, 5), "of a log that nobody has any longer"
    fetch = story.loop.next_fetch()
    leader.produce(3)
    for _ in range(2):
        fetched(story, leader)
    assert (fetch is not None, story.log.records) == (True, leader.log.records)
    for found in (NumberedLog(story.log, settings()), NumberedLog(leader.log, settings())):
        assert (found.known(numbered(1)), found.known(numbered(2))) == (OffsetSpan(2, 3), None)
    story.loop.command(command(state(2, [2], min_isr=1, leader_epoch=6, start_at=start_at), 9), Me(2, 0, 0), 0)
    story.answers.clear()
    story.produce(2, sequence=2)
    assert story.answers == [OffsetSpan(start_at + 3, start_at + 4)], "it is new, and stored"


@pytest.mark.parametrize(
    ("start_at", "offset", "last_epoch", "is_told"),
    [
        (6, 6, -1, True),
        (6, 7, 5, False),
        (6, 6, 5, False),  # it has the record before, and its own knowledge of it
        (0, 0, -1, False),  # a log with its head needs no more than its batches
    ],
)
def test_only_the_first_records_of_a_log_tell_of_producers(
    start_at: int, offset: int, last_epoch: int, *, is_told: bool
) -> None:
    leader = Story().told(state(1, [1], min_isr=1))
    leader.produce(2, sequence=0)
    leader.told(led(start_at))
    leader.produce(3)
    leader.fetch(2, offset, leader_epoch=5, last_epoch=last_epoch)
    answer = leader.answer(2)
    assert (answer.data_bytes > 0 or answer.diverging is not None, answer.producers != b"") == (True, is_told)


def test_a_fetch_that_waits_for_the_first_record_is_told_with_it() -> None:
    leader = Story().told(state(1, [1], min_isr=1))
    leader.produce(2, sequence=0)
    leader.told(led(6))
    leader.fetch(2, 6, leader_epoch=5, last_epoch=-1)
    leader.loop.tell_high_watermark()
    answer = leader.answer(2)
    assert (answer.data_bytes, answer.high_watermark, answer.producers) == (0, 6, b"")
    leader.fetch(2, 6, leader_epoch=5, last_epoch=-1, high_watermark=6)
    leader.produce(1)
    assert leader.answer(2).producers != b""


def test_what_was_written_is_on_its_way_to_the_disk() -> None:
    story = Story((0, 9, 3), flush="always").told(led(6))
    assert story.log.flushing is not None
    story.flushes.end()
    assert story.log.flushed_end == 10

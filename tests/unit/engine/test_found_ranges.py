"""What a leader tells of a range of its log, and what others do: nothing, but to who would read their files."""

from __future__ import annotations

from typing import Any

import pytest

from spark_replication.core.replica.epochs import NO_EPOCH
from spark_replication.engine.broker.found_ranges import found_range
from spark_replication.engine.replica.partition import Partition
from spark_replication.errors import UnknownTopicOrPartition
from spark_replication.messages.ranges import FoundRange, KnownAppends, Piece, WantedRange
from spark_replication.model import TopicPartition
from tests.unit.core.stories import FOO, FOO_ID
from tests.unit.engine.ports_in_memory import alone
from tests.unit.engine.replica.story import LED, Story, fetched, follower

ROWS = 10
EPOCH = LED.leader_epoch


def led() -> Story:
    """Ten records that a follower has, too, but for the last."""
    story = Story().told()
    for _ in range(ROWS):
        story.produce()
    story.fetch(2, ROWS - 1)
    return story


def ask(story: Story, partition: int = 0, **wanted: Any) -> FoundRange:
    partitions = {FOO: alone(story.loop)}

    def find(named: TopicPartition) -> Partition:
        if named not in partitions:
            raise UnknownTopicOrPartition(f"{named} is not here")
        return partitions[named]

    return found_range(find, WantedRange(topic=FOO.topic, partition=partition, **wanted))


def found(start: int, end: int, **others: Any) -> FoundRange:
    epochs = {"start_epoch": EPOCH if 0 < start < ROWS else NO_EPOCH, "end_epoch": EPOCH}
    bytes_there = max(0, end - start)
    known: dict[str, Any] = {"topic_id": FOO_ID, "leader_epoch": EPOCH, "high_watermark": ROWS - 1}
    known |= {"bytes": bytes_there, **epochs, **others}
    return FoundRange(topic="foo", partition=0, start=start, end=end, **known)


def piece(end: int, size: int) -> Piece:
    return Piece(end=end, bytes=size, last_epoch=EPOCH)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({}, found(0, 9)),
        ({"start": "earliest"}, found(0, 9)),
        ({"start": "latest"}, found(9, 9)),
        ({"start": 3}, found(3, 9)),
        ({"start": 3, "to": 5}, found(3, 5)),
        ({"start": 3, "to": 50}, found(3, 9)),
        ({"start": 20}, found(20, 9)),  # whoever has read that far hears that there is less
        (
            {"start": 3, "to": 8, "piece_bytes": 3},
            found(3, 8, pieces=(Piece(end=6, bytes=3, last_epoch=EPOCH), Piece(end=8, bytes=2, last_epoch=EPOCH))),
        ),
        ({"start": 9, "piece_bytes": 3}, found(9, 9)),
    ],
)
def test_a_range_ends_at_the_high_watermark(wanted: dict[str, Any], expected: FoundRange) -> None:
    assert ask(led(), **wanted) == expected


def test_what_retention_has_removed_is_asked_for_in_vain_and_it_is_told_so() -> None:
    story = led()
    story.log.rows_per_segment = 2
    story.log.forget(4)
    gone = {"log_start": 4, "start_epoch": NO_EPOCH}
    assert ask(story, start=1) == found(1, 9, bytes=5, **gone)
    assert ask(story, start="earliest") == found(4, 9, **gone)


def test_it_is_told_when_the_first_record_of_a_range_was_appended_if_it_is_committed_and_asked_for() -> None:
    story = Story().told()
    for number in range(4):
        story.produce(now_ms=number * 100)
    story.fetch(2, 3)
    told = [ask(story, start=start, timed=True).start_ms for start in (0, 2, 3, 4)]
    assert told == [0, 200, None, None]
    assert ask(story, start="earliest", from_time=150, timed=True).start_ms == 200
    assert ask(story, start=2).start_ms is None, "nobody has asked"
    story.log.rows_per_segment = 1
    story.log.forget(1)
    assert ask(story, start=0, timed=True).start_ms == 100, "the first that is left"


def test_of_its_files_a_follower_tells_as_much_as_it_serves() -> None:
    leader, story = Story((0, 4, 3)).told(), follower((0, 1, 3))
    assert ask(story, files=True).error == "NOT_LEADER_OR_FOLLOWER", "its leader has not seen its log"
    fetched(story, leader, high_watermark=4)
    told = ask(story, files=True, to=50)
    assert (told.error, told.topic_id, told.start, told.end, told.high_watermark) == ("NONE", FOO_ID, 0, 4, 4)
    assert ask(story, files=True, start="latest").start == 4
    assert ask(story).error == "NOT_LEADER_OR_FOLLOWER"
    assert ask(led(), files=True) == found(0, 9)


def test_who_does_not_lead_it_tells_nothing_of_it() -> None:
    told = ask(follower((0, 4, 3)))
    assert (told.error, told.end) == ("NOT_LEADER_OR_FOLLOWER", 0)
    assert told.message
    told = ask(led(), 5)
    assert (told.error, told.partition) == ("UNKNOWN_TOPIC_OR_PARTITION", 5)


def test_a_leader_tells_what_it_has_stored_of_a_producer_committed_or_not() -> None:
    story = Story().told()
    for sequence, rows in enumerate((3, 1, 2)):
        story.produce(rows, sequence=sequence)
    known = KnownAppends(producer=9, epoch=0, last_sequence=2, rows=(3, 1, 2))
    told = ask(story, to=0, may_lag=True, producers=(8, 9))
    assert (told.error, told.end, told.known) == ("NONE", 0, (known,))
    assert ask(story, may_lag=True).known == (), "nobody has asked"
    assert ask(follower((0, 4, 3)), producers=(9,)).error == "NOT_LEADER_OR_FOLLOWER"


def test_a_disk_that_fails_is_told_of() -> None:
    story = led()
    story.log.failing = frozenset({"read"})
    assert ask(story).error == "KAFKA_STORAGE_ERROR"


@pytest.mark.parametrize(
    ("wanted", "is_told"),
    [
        ({}, False),
        ({"start": "latest"}, False),
        ({"from_time": 0}, False),
        ({"start": 1, "to": 4}, False),
        ({"start": 1, "to": 3}, True),
        ({"start": "earliest", "to": 3}, True),
        ({"may_lag": True}, True),
        ({"may_lag": True, "start": 1, "to": 4}, True),
    ],
)
def test_a_new_leader_tells_of_no_end_before_it_knows_what_is_committed(wanted: dict[str, Any], is_told: bool) -> None:
    """Five records, of which its last checkpoint says that three are committed. There may be more."""
    story = Story((0, 4, 3))
    story.log.checkpoint(3)
    story.told()
    told = ask(story, **wanted)
    assert (told.error, bool(told.message)) == (("NONE", False) if is_told else ("OFFSET_NOT_AVAILABLE", True))
    if is_told:
        assert (told.high_watermark, told.end, told.lags) == (3, 3, True)
    story.fetch(2, 5)
    told = ask(story, **wanted)
    assert (told.error, told.lags, told.high_watermark) == ("NONE", False, 5)


def test_whoever_names_the_epoch_of_what_it_has_read_hears_that_it_is_gone() -> None:
    """Offsets 0 and 1 are of epoch 2, later ones of epoch 4: whoever has read more of epoch 2 has read what is gone."""
    story = Story((0, 1, 2), (2, 5, 4)).told()
    story.fetch(2, 6)
    cuts = [ask(story, start=start, last_epoch=epoch).cut for start, epoch in ((2, 2), (3, 2), (3, 4), (6, 2), (6, 4))]
    assert cuts == [None, 2, None, 2, None]
    assert ask(story, start=3).cut is None, "it says nothing of what it has read"
    assert ask(story, start=3, last_epoch=9).error == "UNKNOWN_LEADER_EPOCH"
    told = ask(story, start=1, to=2)
    assert (told.start_epoch, told.end_epoch) == (2, 2)


def test_an_epoch_is_told_of_what_is_committed_alone() -> None:
    """Another record may take the place of one that is not."""
    story = led()
    assert (ask(story, start=9).start_epoch, ask(story, start=10).start_epoch) == (EPOCH, NO_EPOCH)

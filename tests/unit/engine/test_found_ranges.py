"""What a leader tells of a range of its log, and what others do: nothing, but to who would read their files."""

from __future__ import annotations

from typing import Any

import pytest

from spark_replication.engine.found_ranges import found_range
from spark_replication.engine.partition import Partition
from spark_replication.errors import UnknownTopicOrPartition
from spark_replication.messages.ranges import FoundRange, Piece, WantedRange
from spark_replication.model import TopicPartition
from tests.unit.core.stories import FOO, FOO_ID
from tests.unit.engine.ports_in_memory import alone
from tests.unit.engine.replica.story import Story, fetched, follower

ROWS = 10


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
    known: dict[str, Any] = {"topic_id": FOO_ID, "high_watermark": ROWS - 1, "bytes": max(0, end - start), **others}
    return FoundRange(topic="foo", partition=0, start=start, end=end, **known)


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
        ({"start": 3, "to": 8, "piece_bytes": 3}, found(3, 8, pieces=(Piece(end=6, bytes=3), Piece(end=8, bytes=2)))),
        ({"start": 9, "piece_bytes": 3}, found(9, 9)),
    ],
)
def test_a_range_ends_at_the_high_watermark(wanted: dict[str, Any], expected: FoundRange) -> None:
    assert ask(led(), **wanted) == expected


def test_what_retention_has_removed_is_asked_for_in_vain_and_it_is_told_so() -> None:
    story = led()
    story.log.rows_per_segment = 2
    story.log.forget(4)
    assert ask(story, start=1) == found(1, 9, log_start=4, bytes=5)
    assert ask(story, start="earliest") == found(4, 9, log_start=4)


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


def test_a_disk_that_fails_is_told_of() -> None:
    story = led()
    story.log.failing = frozenset({"read"})
    assert ask(story).error == "KAFKA_STORAGE_ERROR"

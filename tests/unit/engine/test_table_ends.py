"""What leaders make of a writer's word how far the table has their partitions (TB4)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from spark_replication.core.replica.replica import Me
from spark_replication.engine.broker.table_ends import take_table_ends
from spark_replication.engine.replica.partition import Partition
from spark_replication.errors import UnknownTopicOrPartition
from spark_replication.messages.tables import TellTableEnds, ToldTableEnd
from spark_replication.model import TopicPartition
from tests.unit.core.stories import FOO, FOO_ID
from tests.unit.engine.ports_in_memory import alone
from tests.unit.engine.replica.story import LED, Story, follower

EPOCH = LED.leader_epoch


def led() -> Story:
    """Nine committed records, of ten; what is older than now may go."""
    story = Story(table=True, retention_bytes=0, log_retention_check_interval_ms=1).told()
    story.log.rows_per_segment = 2
    for _ in range(10):
        story.produce()
    story.fetch(2, 9)
    return story


def tell(story: Story, end: int, *, leader_epoch: int = EPOCH, partition: int = 0, topic_id: str = FOO_ID) -> list[str]:
    def find(named: TopicPartition) -> Partition:
        if named != FOO:
            raise UnknownTopicOrPartition(f"{named} is not here")
        return alone(story.loop)

    told = ToldTableEnd(partition=partition, leader_epoch=leader_epoch, end=end)
    answer = take_table_ends(find, TellTableEnds(topic="foo", topic_id=topic_id, ends=(told,)))
    return [each.error for each in answer.errors.values()]


def test_a_leader_keeps_everything_until_it_is_told_and_only_what_the_table_lacks_from_then_on() -> None:
    story = led()
    story.loop.tick(10)
    assert (story.loop.table_end, story.log.log_start) == (None, 0)
    assert tell(story, 6) == []
    story.loop.tick(20)
    assert (story.loop.table_end, story.log.log_start) == (6, 6)


def test_an_earlier_word_takes_nothing_back() -> None:
    story = led()
    tell(story, 6)
    assert tell(story, 4) == []
    assert story.loop.table_end == 6


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"leader_epoch": EPOCH - 1}, "FENCED_LEADER_EPOCH"),
        ({"leader_epoch": EPOCH + 1}, "FENCED_LEADER_EPOCH"),
        ({"topic_id": "another"}, "UNKNOWN_TOPIC_OR_PARTITION"),
        ({"partition": 1}, "UNKNOWN_TOPIC_OR_PARTITION"),
        ({"end": 10}, "OFFSET_NOT_AVAILABLE"),  # it is not known to be committed
    ],
)
def test_a_word_that_is_not_meant_for_it_is_refused(changed: dict[str, object], error: str) -> None:
    story = led()
    assert tell(story, **{"end": 6, **changed}) == [error]  # type: ignore[arg-type]
    assert story.loop.table_end is None


def test_whoever_does_not_lead_is_told_nothing() -> None:
    assert tell(follower(), 6) == ["NOT_LEADER_OR_FOLLOWER"]
    assert follower().loop.table_end is None


def test_a_later_epoch_begins_without_a_word() -> None:
    story = led()
    tell(story, 6)
    story.told(replace(LED, leader_epoch=EPOCH + 1), 8, me=Me(1, 0, 0))
    assert story.loop.table_end is None

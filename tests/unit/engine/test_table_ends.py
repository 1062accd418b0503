"""What leaders make of a writer's word how far the table has their partitions (TB4)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from spark_replication.core.replica.replica import Me
from spark_replication.engine.broker import tables_behind
from spark_replication.engine.broker.table_ends import take_table_ends
from spark_replication.engine.broker.tables_behind import TablesBehind
from spark_replication.engine.replica.partition import Partition
from spark_replication.errors import StorageFailed, UnknownTopicOrPartition
from spark_replication.messages.commands import TableBehind
from spark_replication.messages.descriptions import TableLag
from spark_replication.messages.groups import GROUPS_TOPIC
from spark_replication.messages.tables import TellTableEnds, ToldTableEnd
from spark_replication.model import TopicPartition
from tests.unit.core.stories import FOO, FOO_ID
from tests.unit.engine.ports_in_memory import alone
from tests.unit.engine.replica.story import LED, Story, follower

EPOCH = LED.leader_epoch


def led(**given: object) -> Story:
    """Nine committed records, of ten; what is older than now may go."""
    story = Story(**{"table": True, "retention_bytes": 0, "log_retention_check_interval_ms": 1, **given}).told()
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


def test_how_far_a_table_is_behind_is_what_its_leader_has_and_was_not_told_of() -> None:
    story = led(retention_bytes=-1)
    tell(story, 6)
    story.log.records[6] = replace(story.log.records[6], timestamp_ms=5)
    assert story.loop.table_lag(12) == TableLag(end=6, rows=3, ms=7, held_back_bytes=0)
    assert story.loop.table_lag(4) == TableLag(end=6, rows=3, ms=0, held_back_bytes=0), "a clock went back"
    tell(story, 9)
    assert story.loop.table_lag(12) == TableLag(end=9, rows=0, ms=0, held_back_bytes=0)


def test_what_retention_would_remove_is_held_back_until_the_table_has_it() -> None:
    story = led()
    size = {segment.base: segment.bytes for segment in story.log.segments()}
    assert size.keys() == {0, 2, 4, 6, 8}

    def held() -> int:
        lag = story.loop.table_lag(10)
        assert lag is not None
        return lag.held_back_bytes

    assert held() == sum(size[base] for base in (0, 2, 4, 6))
    tell(story, 4)
    assert held() == size[4] + size[6]
    tell(story, 8)
    assert held() == 0


def test_the_end_of_a_table_is_not_known_after_an_election_and_is_not_0() -> None:
    story = led()
    tell(story, 9)
    story.told(replace(LED, leader_epoch=EPOCH + 1), 8, me=Me(1, 0, 0))
    lag = story.loop.table_lag(10)
    assert lag is not None
    assert (lag.end, lag.rows, lag.ms) == (None, None, None)
    fresh = Story(table=True).told()
    assert fresh.loop.table_lag(10) == TableLag(end=None, rows=0, ms=0, held_back_bytes=0), "it has had no record"
    fresh.produce()
    assert fresh.leading.high_watermark == 0
    lag = fresh.loop.table_lag(10)
    assert lag is not None
    assert lag.rows is None, "what is committed is not known either"


def test_a_disk_that_does_not_say_how_old_a_row_is(monkeypatch: pytest.MonkeyPatch) -> None:
    story = led(retention_bytes=-1)
    tell(story, 6)

    def refused(_offset: int) -> int:
        raise StorageFailed("the disk refuses to read")

    monkeypatch.setattr(story.log, "time_of", refused)
    assert story.loop.table_lag(10) == TableLag(end=6, rows=3, ms=None, held_back_bytes=0)


def test_nobody_tells_of_the_table_of_a_topic_that_is_none_nor_does_a_follower() -> None:
    assert led(table=False).loop.table_lag(10) is None
    assert led(table=False).loop.size(10).table is None
    assert follower().loop.table_lag(10) is None
    assert led().loop.size(10).table == led().loop.table_lag(10) is not None


FLUSH_MS = 1_000
GRACE_MS = tables_behind.GRACE_MS


def test_a_table_lacks_what_its_leader_was_not_told_of_once_that_is_older_than_it_may_be() -> None:
    story = led(table_flush_ms=FLUSH_MS)
    assert story.loop.table_lacks_since(FLUSH_MS) is None
    assert story.loop.table_lacks_since(FLUSH_MS + 1) == 0
    tell(story, 6)
    story.log.records[6] = replace(story.log.records[6], timestamp_ms=5)
    assert story.loop.table_lacks_since(FLUSH_MS + 5) is None
    assert story.loop.table_lacks_since(FLUSH_MS + 6) == 5
    tell(story, 9)
    assert story.loop.table_lacks_since(1 << 40) is None, "the tenth is not committed"


def test_nothing_is_behind_of_a_topic_that_is_no_table_nor_of_a_follower() -> None:
    assert led(table=False).loop.table_lacks_since(1 << 40) is None
    assert follower().loop.table_lacks_since(1 << 40) is None


def test_a_table_is_told_as_behind_once_it_has_been_so_for_a_while() -> None:
    story, behind = led(table_flush_ms=FLUSH_MS), TablesBehind()
    late = FLUSH_MS + 1
    for now_ms, names in ((0, ""), (late, ""), (late + GRACE_MS - 1, ""), (late + GRACE_MS, "foo")):
        behind.look([alone(story.loop)], now_ms)
        assert behind.names == names
    assert [(each.partitions, each.since_ms) for each in behind.told] == [(1, 0)]
    tell(story, 9)
    behind.look([alone(story.loop)], late + GRACE_MS + 1)
    assert behind.told == ()


def test_partitions_of_one_topic_are_told_together_and_groups_not_at_all() -> None:
    behind = TablesBehind()
    first, second = led(table_flush_ms=FLUSH_MS), led(table_flush_ms=FLUSH_MS)
    first.log.records[0] = replace(first.log.records[0], timestamp_ms=7)
    groups = alone(led(table_flush_ms=FLUSH_MS).loop)
    groups.topic_partition = TopicPartition(GROUPS_TOPIC, 0)
    for now_ms in (2 * FLUSH_MS, 2 * FLUSH_MS + GRACE_MS):
        behind.look([alone(first.loop), alone(second.loop), groups], now_ms)
    assert behind.told == (TableBehind(topic="foo", partitions=2, since_ms=0),)


def test_how_far_tables_are_behind_is_told_at_once_of_what_is_led_and_is_a_table() -> None:
    behind, story = TablesBehind(), led(table_flush_ms=FLUSH_MS)
    groups = alone(led().loop)
    groups.topic_partition = TopicPartition(GROUPS_TOPIC, 0)
    behind.look([alone(story.loop), alone(led(table=False).loop), alone(follower().loop), groups], 0)
    assert behind.lags == {"foo": [story.loop.table_lag(0)]}
    assert behind.told == ()
    behind.look([], 0)
    assert behind.lags == {}


def test_a_disk_that_does_not_answer_keeps_no_other_partition_from_being_told_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken, well, behind = led(table_flush_ms=FLUSH_MS), led(table_flush_ms=FLUSH_MS), TablesBehind()
    tell(broken, 6)

    def refused(_offset: int) -> int:
        raise StorageFailed("the disk refuses to read")

    monkeypatch.setattr(broken.log, "time_of", refused)
    for now_ms in (2 * FLUSH_MS, 2 * FLUSH_MS + GRACE_MS):
        with pytest.raises(StorageFailed):
            behind.look([alone(broken.loop), alone(well.loop)], now_ms)
    assert [(each.topic, each.partitions) for each in behind.told] == [("foo", 1)]
    assert [(each.rows, each.ms) for each in behind.lags["foo"]] == [(3, None), (None, None)]

"""Of how much a broker remembers that it is over."""

from __future__ import annotations

from spark_replication.engine.broker.late_commands import LateCommands
from spark_replication.model import TopicPartition
from tests.unit.core.stories import FOO, command, state


def test_what_ended_longest_ago_is_forgotten_first() -> None:
    late = LateCommands(entries_max=2)
    told = [command(state(1, [1]), partition=TopicPartition("foo", number)) for number in range(3)]
    for number in (0, 1, 0, 2):
        late.end(told[number].topic_partition, told[number].topic_id, told[number].order)
    assert [late.is_late(each) for each in told] == [True, False, True]


def test_of_names_that_were_given_again_longest_ago_the_earlier_topics_are_forgotten_first() -> None:
    late = LateCommands(entries_max=2)
    for topic in ("a", "b"):
        for topic_id in ("id-2", "id-1"):
            late.told_of(topic, topic_id)
    late.told_of("a", "id-3")
    late.told_of("c", "id-2")
    earlier = [command(state(1, [1]), partition=TopicPartition(topic, 0), topic_id="id-1") for topic in "abc"]
    assert [late.is_late(each) for each in earlier] == [True, False, True]
    assert [late.is_new(topic, "id-2") for topic in "abc"] == [False, True, False]
    assert not late.is_late(command(state(1, [1]), partition=FOO))

"""Pages of topics: put together they are what one answer would be, whatever a page has room for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from spark_replication.client.finding.topic_pages import topics_by_pages
from spark_replication.core.controller.describing import described, described_page
from spark_replication.core.topic_pages import page_of
from spark_replication.engine.broker.known_topics import KnownTopics
from spark_replication.errors import InvalidRequest
from spark_replication.messages.actions import Sees
from spark_replication.messages.commands import PartitionCommand
from spark_replication.messages.descriptions import (
    PARTITIONS_A_PAGE_MAX,
    TOPICS_A_REQUEST_MAX,
    Awaited,
    DescribeTopics,
    PageStart,
    TopicMetadata,
    TopicPage,
)
from spark_replication.messages.envelope import from_json, to_json
from spark_replication.model import TopicConfig
from tests.unit.core.stories import cluster_of, state, topic


def command(name: str, partition: int, topic_id: str | None = None) -> PartitionCommand:
    return PartitionCommand(
        topic=name,
        partition=partition,
        topic_id=topic_id or f"id-{name}",
        state=state(1, [1]),
        replicas=(1,),
        partition_epoch=0,
    )


def topics_of(counts: Mapping[str, int]) -> dict[str, TopicMetadata]:
    return {
        name: TopicMetadata(
            name=name,
            topic_id=f"id-{name}",
            config=TopicConfig(),
            partitions=tuple(command(name, number) for number in range(count)),
            waiting={number: Awaited(reason="manual") for number in range(0, count, 2)},
        )
        for name, count in counts.items()
    }


def all_seen(_topic: str) -> bool:
    return True


def page(topics: Mapping[str, TopicMetadata], asked: DescribeTopics, sees: Sees = all_seen) -> TopicPage:
    def some(names: Sequence[str]) -> list[TopicMetadata]:
        return [topics[name] for name in names]

    return page_of(asked, {name: len(topic.partitions) for name, topic in topics.items()}, some, sees)


COUNTS = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(min_value=0, max_value=9))


@given(COUNTS, st.integers(min_value=1, max_value=12))
def test_pages_of_any_size_are_all_topics_when_they_are_put_together(counts: dict[str, int], size: int) -> None:
    topics, sizes = topics_of(counts), []

    def ask(asked: DescribeTopics) -> TopicPage:
        told = page(topics, replace(asked, partitions_max=size))
        sizes.append(sum(len(topic.partitions) for topic in told.topics))
        return told

    assert topics_by_pages(None, ask) == [topics[name] for name in sorted(topics)]
    assert all(found == size for found in sizes[:-1]), "each page but the last is full"
    assert sizes[-1] <= size


@given(COUNTS, st.integers(min_value=1, max_value=12), st.sets(st.sampled_from("abcdefgh")))
def test_no_page_tells_of_what_is_not_seen(counts: dict[str, int], size: int, seen: set[str]) -> None:
    """It is as if there were nothing else: neither the begin of the next page, nor how full a page is, says so."""
    topics = topics_of(counts)
    there = {name: topic for name, topic in topics.items() if name in seen}
    asked: DescribeTopics | None = DescribeTopics(partitions_max=size)
    while asked is not None:
        told = page(topics, asked, lambda name: name in seen)
        assert told == page(there, asked)
        asked = None if told.next is None else replace(asked, start=told.next)


def test_whoever_begins_at_what_it_does_not_see_is_told_of_what_follows() -> None:
    topics = topics_of({"a": 3, "b": 3, "c": 1})
    for start in (PageStart(topic="b"), PageStart(topic="b", topic_id="id-b", partition=1)):
        told = page(topics, DescribeTopics(start=start), lambda name: name != "b")
        assert ([topic.name for topic in told.topics], told.next) == (["c"], None)


def test_named_topics_are_told_by_name_and_unknown_ones_are_left_out() -> None:
    topics = topics_of({"a": 1, "b": 2, "c": 1})
    assert topics_by_pages(["c", "x", "a", "c"], lambda asked: page(topics, asked)) == [topics["a"], topics["c"]]


def test_no_request_of_ours_names_more_topics_than_a_server_takes() -> None:
    topics, asked = topics_of({f"t{number:02}": 1 for number in range(45)}), []

    def ask(request: DescribeTopics) -> TopicPage:
        asked.append(len(request.topics or ()))
        return page(topics, request)

    assert topics_by_pages(list(topics), ask) == list(topics.values())
    assert asked == [20, 20, 5]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b'{"topics":["%s"]}' % b'","'.join(b"t%d" % number for number in range(21)), "21 topics: at most 20"),
        (b'{"partitions_max":0}', "partitions_max"),
        (b'{"partitions_max":2001}', "partitions_max"),
        (b'{"start":{"topic":"a","partition":-1}}', "start.partition"),
    ],
)
def test_a_request_beyond_the_limits_is_refused(body: bytes, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        from_json(body, DescribeTopics)


def test_a_request_at_the_limits_is_taken() -> None:
    asked = DescribeTopics(
        topics=tuple(f"t{number}" for number in range(TOPICS_A_REQUEST_MAX)), partitions_max=PARTITIONS_A_PAGE_MAX
    )
    assert from_json(to_json(asked), DescribeTopics) == asked


def test_a_topic_that_is_made_again_between_two_pages_is_told_as_it_is_now() -> None:
    topics = topics_of({"a": 4, "b": 1})
    asked = DescribeTopics(partitions_max=3)
    first = page(topics, asked)
    assert first.next == PageStart(topic="a", topic_id="id-a", partition=3)
    again = tuple(command("a", number, "another") for number in range(2))
    topics["a"] = replace(topics["a"], topic_id="another", partitions=again, waiting={})
    pages = iter([first, page(topics, replace(asked, start=first.next))])
    assert topics_by_pages(None, lambda _: next(pages)) == [topics["a"], topics["b"]]


def test_pages_go_on_behind_a_topic_that_is_deleted_meanwhile() -> None:
    topics = topics_of({"a": 2, "b": 2, "c": 1})
    first = page(topics, DescribeTopics(partitions_max=3))
    del topics["b"]
    second = page(topics, DescribeTopics(partitions_max=3, start=first.next))
    assert [topic.name for topic in second.topics] == ["c"]
    assert second.next is None


def test_the_controller_tells_by_pages_what_it_tells_at_once() -> None:
    cluster = cluster_of(
        1, 2, topics={"foo": topic((1, 2), (2, 1)), "bar": topic((2, 1), name="bar")},
        states={"foo-0": state(1, [1, 2]), "foo-1": state(None, [], elr=[2]), "bar-0": state(2, [1, 2])},
    )  # fmt: skip
    told = topics_by_pages(None, lambda asked: described_page(cluster, replace(asked, partitions_max=1), all_seen))
    assert told == list(described(cluster, None, None).topics)


def test_a_broker_tells_by_pages_what_it_tells_at_once() -> None:
    configs = {"a": TopicConfig(), "b": TopicConfig(), "not told of yet": TopicConfig()}
    known = {each.topic_partition: each for each in (command("a", 1), command("a", 0), command("b", 0))}
    topics = KnownTopics(known, configs)
    told = topics_by_pages(None, lambda asked: topics.page(replace(asked, partitions_max=1), all_seen))
    assert told == list(topics.told())

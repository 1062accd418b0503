"""Describes any number of topics by pages: a request names at most twenty topics, and the size of an answer is
limited."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from spark_replication.messages.descriptions import TOPICS_A_REQUEST_MAX, DescribeTopics, TopicMetadata, TopicPage


def topics_by_pages(names: Sequence[str] | None, ask: Callable[[DescribeTopics], TopicPage]) -> list[TopicMetadata]:
    """Describe topics, sorted by name. An unknown topic is left out. Pages are read one after another, so the cluster
    may change between two."""
    found: dict[str, TopicMetadata] = {}
    for request in _requests(names):
        page = ask(request)
        _add(found, page)
        while page.next is not None:
            page = ask(replace(request, start=page.next))
            _add(found, page)
    return [found[name] for name in sorted(found)]


def _requests(names: Sequence[str] | None) -> Iterator[DescribeTopics]:
    if names is None:
        yield DescribeTopics()
        return
    wanted = sorted(set(names))
    for begin in range(0, len(wanted), TOPICS_A_REQUEST_MAX):
        yield DescribeTopics(topics=tuple(wanted[begin : begin + TOPICS_A_REQUEST_MAX]))


def _add(found: dict[str, TopicMetadata], page: TopicPage) -> None:
    """Add the topics of a page. A topic that was made again between two pages is described from its first partition
    on."""
    for topic in page.topics:
        before = found.get(topic.name)
        if before is not None and before.topic_id == topic.topic_id:
            partitions, waiting = before.partitions + topic.partitions, before.waiting | topic.waiting
            topic = replace(topic, partitions=partitions, waiting=waiting)  # noqa: PLW2901
        found[topic.name] = topic

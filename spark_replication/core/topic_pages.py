"""Descriptions of topics, a page at a time (KIP-966's DescribeTopic): small answers describe a cluster of any size.

A page ends after `partitions_max` partitions, within a topic if need be, and names where the next page begins.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from spark_replication.messages.actions import Sees
from spark_replication.messages.commands import PartitionCommand
from spark_replication.messages.descriptions import DescribeTopics, PageStart, TopicMetadata, TopicPage


def page_of(
    asked: DescribeTopics,
    partitions: Mapping[str, int],
    described: Callable[[Sequence[str]], Sequence[TopicMetadata]],
    sees: Sees,
) -> TopicPage:
    """The page that was asked for. `partitions` has the number of partitions of every known topic. `described` returns
    the descriptions of these topics, in this order. Whoever asks is told of no other topics than it sees: neither on
    the page, nor as the begin of the next one, nor by how full a page is.

    Cost: a sort of the names, and a description of the topics on the page.
    """
    wanted = sorted(partitions.keys() if asked.topics is None else set(asked.topics))
    start = 0 if asked.start is None else bisect_left(wanted, asked.start.topic)
    known = (name for name in wanted[start:] if name in partitions and sees(name))
    room = asked.partitions_max + (0 if asked.start is None else asked.start.partition)
    taken: list[str] = []
    while room > 0 and (name := next(known, None)) is not None:
        taken.append(name)
        room -= partitions[name]
    topics: list[TopicMetadata] = []
    room = asked.partitions_max
    for topic in described(taken):
        begun = _since(topic, asked.start)
        if len(begun.partitions) > room:
            return TopicPage(
                topics=(*topics, _cut(begun, begun.partitions[:room])),
                next=PageStart(topic=topic.name, topic_id=topic.topic_id, partition=begun.partitions[room].partition),
            )
        topics.append(begun)
        room -= len(begun.partitions)
    left = next(known, None)
    return TopicPage(topics=tuple(topics), next=None if left is None else PageStart(topic=left))


def _since(topic: TopicMetadata, start: PageStart | None) -> TopicMetadata:
    """The topic from the partition on where the page starts. A topic that was made again since is not cut."""
    if start is None or (topic.name, topic.topic_id) != (start.topic, start.topic_id):
        return topic
    return _cut(topic, [command for command in topic.partitions if command.partition >= start.partition])


def _cut(topic: TopicMetadata, partitions: Sequence[PartitionCommand]) -> TopicMetadata:
    kept = {command.partition for command in partitions}
    waiting = {number: awaited for number, awaited in topic.waiting.items() if number in kept}
    return replace(topic, partitions=tuple(partitions), waiting=waiting)

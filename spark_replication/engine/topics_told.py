"""What a broker tells clients of topics: their configs, and where their partitions are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from spark_replication.core.topic_pages import page_of
from spark_replication.messages.commands import PartitionCommand
from spark_replication.messages.descriptions import DescribeTopics, TopicMetadata, TopicPage
from spark_replication.model import TopicConfig, TopicPartition


def topics_told(
    names: Iterable[str], configs: Mapping[str, TopicConfig], known: Mapping[TopicPartition, PartitionCommand]
) -> tuple[TopicMetadata, ...]:
    """In order of name and partition; one without a config is not known here, and left out."""
    partitions: dict[str, list[PartitionCommand]] = {name: [] for name in names if name in configs}
    for partition, command in sorted(each for each in known.items() if each[0].topic in partitions):
        partitions[partition.topic].append(command)
    return tuple(
        TopicMetadata(
            name=name, topic_id=found[0].topic_id if found else "", config=configs[name], partitions=tuple(found)
        )
        for name, found in partitions.items()
    )


def topics_page(
    asked: DescribeTopics, configs: Mapping[str, TopicConfig], known: Mapping[TopicPartition, PartitionCommand]
) -> TopicPage:
    """Cost: a look at every partition that is known."""
    counts = Counter(partition.topic for partition in known)
    return page_of(asked, {name: counts[name] for name in configs}, lambda names: topics_told(names, configs, known))

"""What a broker knows of topics, for clients: their configs, and where their partitions are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from spark_replication.core.routing import NO_CHOICE
from spark_replication.core.topic_pages import page_of
from spark_replication.messages.actions import Sees
from spark_replication.messages.commands import PartitionCommand
from spark_replication.messages.descriptions import DescribeTopics, TopicMetadata, TopicPage
from spark_replication.model import TopicConfig, TopicPartition


class KnownTopics(msgspec.Struct, frozen=True):
    """The topics at one moment. A command that changes them makes another value, so that no question waits for one."""

    partitions: Mapping[TopicPartition, PartitionCommand]
    configs: Mapping[str, TopicConfig]

    def told(
        self, names: Iterable[str] | None = None, only: Mapping[str, Iterable[int]] = NO_CHOICE
    ) -> tuple[TopicMetadata, ...]:
        """In order of name and partition. names: None for all. only: the partitions of a topic that are wanted, if not
        all. A topic without a config is not known here, and left out."""
        wanted = self.configs if names is None else names
        partitions: dict[str, list[PartitionCommand]] = {name: [] for name in sorted(wanted) if name in self.configs}
        whole = partitions.keys() - only.keys()
        chosen = [TopicPartition(name, number) for name in partitions.keys() & only.keys() for number in only[name]]
        found = {each: self.partitions[each] for each in chosen if each in self.partitions}
        if whole:
            found |= {partition: command for partition, command in self.partitions.items() if partition.topic in whole}
        for partition, command in sorted(found.items()):
            partitions[partition.topic].append(command)
        return tuple(
            TopicMetadata(
                name=name,
                topic_id=found[0].topic_id if found else "",
                config=self.configs[name],
                partitions=tuple(found),
            )
            for name, found in partitions.items()
        )

    def page(self, asked: DescribeTopics, sees: Sees) -> TopicPage:
        """Cost: a look at every partition that is known."""
        counts = Counter(partition.topic for partition in self.partitions)
        return page_of(asked, {name: counts[name] for name in self.configs}, self.told, sees)


NO_TOPICS = KnownTopics({}, {})

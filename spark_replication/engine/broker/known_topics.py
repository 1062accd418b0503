"""What a broker knows of topics, for clients: their configs, and where their partitions are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

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
    #: Partitions of which nothing else is known.
    hidden: Collection[TopicPartition] = ()

    def told(
        self, names: Iterable[str] | None = None, only: Mapping[str, Iterable[int]] = NO_CHOICE
    ) -> tuple[TopicMetadata, ...]:
        """In order of name and partition. names: None for all. only: the partitions of a topic that are wanted, if not
        all. A topic is left out as long as its config, or each of its partitions, is not known here."""
        wanted = self.configs if names is None else names
        partitions: dict[str, list[PartitionCommand]] = {name: [] for name in sorted(wanted) if name in self.configs}
        whole = partitions.keys() - only.keys()
        chosen = [TopicPartition(name, number) for name in partitions.keys() & only.keys() for number in only[name]]
        found = {each: self.partitions[each] for each in chosen if each in self.partitions}
        if whole:
            found |= {partition: command for partition, command in self.partitions.items() if partition.topic in whole}
        for partition, command in sorted(found.items()):
            partitions[partition.topic].append(command)
        hidden: dict[str, list[int]] = {}
        for partition in sorted(self.hidden):
            if partition.topic in whole or partition in chosen:
                hidden.setdefault(partition.topic, []).append(partition.partition)
        ids = {name: self._topic_id(name, found) for name, found in partitions.items()}
        return tuple(
            TopicMetadata(
                name=name,
                topic_id=ids[name],
                config=self.configs[name],
                partitions=tuple(found),
                hidden=tuple(hidden.get(name, ())),
            )
            for name, found in partitions.items()
            if ids[name]
        )

    def _topic_id(self, name: str, found: Sequence[PartitionCommand]) -> str:
        """Empty if none of its partitions says so."""
        if found:
            return found[0].topic_id
        return next((each.topic_id for partition, each in self.partitions.items() if partition.topic == name), "")

    def page(self, asked: DescribeTopics, sees: Sees) -> TopicPage:
        """Cost: a look at every partition that is known."""
        counts = Counter(partition.topic for partition in self.partitions)
        return page_of(asked, {name: counts[name] for name in self.configs}, self.told, sees)


NO_TOPICS = KnownTopics({}, {})

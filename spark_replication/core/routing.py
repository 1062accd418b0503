"""Who leads what, and where: a value, of which `learned` makes the next one with the metadata that a broker answers.

Nothing else may change a route. Within one topic_id, an older state (by leader epoch, then partition epoch) never
replaces a newer one: brokers hear of changes at different times, and a client asks any of them.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from spark_replication.errors import LeaderNotAvailable, UnknownTopicOrPartition, WrongCluster
from spark_replication.messages.commands import PartitionCommand
from spark_replication.messages.descriptions import Metadata, TopicMetadata
from spark_replication.model import BrokerId, Epoch, Registration, TopicPartition, in_ranges

NO_CHOICE: Mapping[str, Collection[int]] = MappingProxyType({})


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """The leader of a partition, its address (host:port), and the port for frames at the same host."""

    topic: str
    partition: int
    topic_id: str
    leader: BrokerId
    leader_epoch: Epoch
    address: str
    replication_port: int
    #: See Registration.
    files_uid: int | None = None

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0]


class Routing(msgspec.Struct, frozen=True, kw_only=True):
    cluster_id: str = ""
    topics: dict[str, TopicMetadata] = {}
    #: Topics that the last broker asked for them does not know. What `topics` holds of them is kept, so that a broker
    #: that lags cannot bring an older epoch back.
    missing: frozenset[str] = frozenset()
    brokers: dict[BrokerId, Registration] = {}
    controller: str | None = None

    def topic(self, name: str) -> TopicMetadata:
        found = self.topics.get(name)
        if found is None or name in self.missing:
            raise UnknownTopicOrPartition(f"nobody knows a topic {name!r}: check its name, or create it")
        if not found.numbers:  # whoever went by that would read nothing, and never ask again
            raise UnknownTopicOrPartition(f"topic {name} has no partitions yet: retry")
        return found

    def route(self, topic: str, partition: int) -> Route:
        """The route to the leader. Raises UnknownTopicOrPartition or LeaderNotAvailable: then ask for metadata again,
        it may have changed."""
        command = self.partition(topic, partition)
        name, state = command.topic_partition, command.state
        if state.leader is None:
            raise LeaderNotAvailable(
                f"{name} has no leader (leader epoch {state.leader_epoch}, ISR {sorted(state.isr)}, "
                f"ELR {sorted(state.elr)}, replicas {list(command.replicas)}): retry, and start those brokers again"
            )
        registration = self.brokers.get(state.leader)
        if registration is None:
            raise LeaderNotAvailable(
                f"{name} is led by broker {state.leader} (leader epoch {state.leader_epoch}), which is not registered: "
                "retry, another will be elected or that one comes back"
            )
        return Route(
            topic=topic,
            partition=partition,
            topic_id=command.topic_id,
            leader=state.leader,
            leader_epoch=state.leader_epoch,
            address=registration.address,
            replication_port=registration.replication_port,
            files_uid=registration.files_uid,
        )

    def followers(self, topic: str, partition: int) -> dict[BrokerId, Registration]:
        """The in-sync replicas that do not lead."""
        state = self.partition(topic, partition).state
        members = sorted(state.isr - {state.leader})
        return {member: self.brokers[member] for member in members if member in self.brokers}

    def partition(self, topic: str, partition: int) -> PartitionCommand:
        found = self.topic(topic)
        partitions = found.partitions
        if 0 <= partition < len(partitions) and partitions[partition].partition == partition:
            return partitions[partition]
        for command in partitions:
            if command.partition == partition:
                return command
        if partition in found.hidden:
            raise LeaderNotAvailable(
                f"the state of {TopicPartition(topic, partition)} in ZooKeeper is being made, or cannot be read: "
                "retry, and see what spark-replication health says of it"
            )
        known = in_ranges(found.numbers)
        raise UnknownTopicOrPartition(
            f"there is no {TopicPartition(topic, partition)}, {topic} has the partitions {known}: choose one of them"
        )


def partition_of(topic: TopicMetadata, key: bytes) -> int:
    """The partition of this key, for as long as the topic keeps its partitions. They are those that a broker tells of,
    so all that were ever alive. The hash is CRC-32, as Spark's crc32() computes it, so that a job finds the same
    partition without a call to here."""
    return partition_of_key(topic.numbers, key)


def partition_of_key(numbers: Sequence[int], key: bytes) -> int:
    """numbers: of all partitions of the topic."""
    return numbers[zlib.crc32(key) % len(numbers)]


def learned(
    routing: Routing, metadata: Metadata, asked: Iterable[str], only: Mapping[str, Collection[int]] = NO_CHOICE
) -> Routing:
    """The routing after a broker has answered. The topics in `asked` that are not in the answer are missing. So is a
    topic of which only some partitions were asked for, if it was made again since: how many it has is not known then.
    """
    if routing.cluster_id not in ("", metadata.cluster_id):
        raise WrongCluster(
            f"a broker of cluster {metadata.cluster_id} answered, the others are of {routing.cluster_id}: "
            "name the brokers of one cluster"
        )
    answered = {
        topic.name: topic
        for topic in metadata.topics
        if topic.name not in only or _is_same(routing.topics.get(topic.name), topic)
    }
    newest = {name: _newest(routing.topics.get(name), topic, only.get(name)) for name, topic in answered.items()}
    return Routing(
        cluster_id=metadata.cluster_id,
        topics={**routing.topics, **newest},
        missing=(routing.missing | set(asked)) - answered.keys(),
        brokers=metadata.brokers,
        controller=metadata.controller,
    )


def _is_same(known: TopicMetadata | None, answered: TopicMetadata) -> bool:
    return known is not None and known.topic_id == answered.topic_id


def _newest(known: TopicMetadata | None, answered: TopicMetadata, only: Collection[int] | None) -> TopicMetadata:
    """The newest state of each partition. Another topic_id is another topic: nothing of the old one holds (E4)."""
    if known is None or known.topic_id != answered.topic_id:
        return answered
    before = {command.partition: command for command in known.partitions}
    told = {
        command.partition: max(before.get(command.partition, command), command, key=lambda each: each.order)
        for command in answered.partitions
    }
    hidden = set(answered.hidden)
    kept = {number: command for number, command in before.items() if number in hidden}
    if only is not None:
        kept |= {number: command for number, command in before.items() if number not in only}
        hidden |= {number for number in known.hidden if number not in only}
    told = dict(sorted((kept | told).items()))
    return msgspec.structs.replace(
        answered, partitions=tuple(told.values()), hidden=tuple(sorted(hidden - told.keys()))
    )

"""A broker's coordinators: one for each partition of the groups' log that it leads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Protocol, TypeVar

from spark_replication.core.groups.sharing import Hosts
from spark_replication.core.routing import partition_of_key
from spark_replication.engine.groups.coordinator import Coordinator, GroupGauges, MemberLink
from spark_replication.engine.groups.group_log import SNAPSHOT_ROWS_MIN, Load, Soon
from spark_replication.engine.replica.partition import Partition
from spark_replication.engine.replica.replica_loop import ReplicaLoop
from spark_replication.errors import NotCoordinator, ReplicationError
from spark_replication.messages.commands import PartitionCommand
from spark_replication.messages.groups import (
    GROUPS_TOPIC,
    DeleteGroup,
    DescribedGroup,
    DescribedGroups,
    GroupRequest,
    ResetGroup,
)
from spark_replication.model import BrokerId, Registration, TopicPartition
from spark_replication.ports import GroupRows

Found = TypeVar("Found")


class Topics(Protocol):
    """What clients are told of topics. It never changes: after a change there is another."""

    @property
    def partitions(self) -> Mapping[TopicPartition, PartitionCommand]: ...

    @property
    def hidden(self) -> Collection[TopicPartition]:
        """Partitions of which nothing else is known."""


class KnownPartitions:
    """The partitions of topics, as clients are told of them (engine.groups.coordinator.Around)."""

    def __init__(
        self,
        topics: Callable[[], Topics],
        brokers: Callable[[], Mapping[BrokerId, Registration]],
        *,
        clock_ms: Callable[[], float],
        now_ms: Callable[[], int],
    ) -> None:
        self._topics = topics
        self._brokers = brokers
        self.clock_ms = clock_ms
        self.now_ms = now_ms
        self._known: Topics | None = None
        self._names: frozenset[TopicPartition] = frozenset()
        self._by_topic: dict[str, dict[int, PartitionCommand]] = {}
        self._numbers: dict[str, list[int]] = {}
        self._version = object()

    @property
    def version(self) -> object:
        self._look()
        return self._version

    def numbers(self, topic: str) -> list[int]:
        """The numbers of all its partitions, also of those of which no more is known: keys are placed by how many
        there are."""
        self._look()
        return self._numbers.get(topic, [])

    def hosts(self, topics: Iterable[str]) -> Hosts:
        """A partition of which no more is known is there, too: nobody has to hand it over."""
        self._look()
        brokers = self._brokers()
        found: dict[TopicPartition, frozenset[str]] = {}
        for topic in topics:
            known = self._by_topic.get(topic, {})
            for number in self._numbers.get(topic, ()):
                isr = known[number].state.isr if number in known else ()
                found[TopicPartition(topic, number)] = frozenset(
                    brokers[replica].host for replica in isr if replica in brokers
                )
        return found

    def _look(self) -> None:
        """Costs a look at each partition, after a change of any."""
        topics = self._topics()
        if topics is self._known:
            return
        names = frozenset(topics.partitions) | frozenset(topics.hidden)
        if names != self._names:
            self._names, self._version = names, object()
        self._known = topics
        self._by_topic, self._numbers = {}, {}
        for name in sorted(names):
            self._numbers.setdefault(name.topic, []).append(name.partition)
            if name in topics.partitions:
                self._by_topic.setdefault(name.topic, {})[name.partition] = topics.partitions[name]


class Coordinators:
    """All is done on the broker's loop."""

    def __init__(
        self,
        replicas: Callable[[], dict[TopicPartition, Partition]],
        known: KnownPartitions,
        rows: GroupRows,
        load: Load,
        *,
        soon_at: Callable[[Partition], Soon],
        retention_ms: int,
        snapshot_rows_min: int = SNAPSHOT_ROWS_MIN,
    ) -> None:
        self._replicas = replicas
        self._known = known
        self._rows = rows
        self._load = load
        self._soon_at = soon_at
        self._retention_ms = retention_ms
        self._snapshot_rows_min = snapshot_rows_min
        self._coordinators: dict[Partition, Coordinator] = {}

    @property
    def all(self) -> Mapping[Partition, Coordinator]:
        return self._coordinators

    def ask(self, number: int, asked: GroupRequest, link: MemberLink) -> None:
        try:
            partition = self._partition_of(asked.group)
        except ReplicationError as error:
            link.answer(number, error)
            return
        coordinator = self._coordinator(partition)
        partition.do(lambda replica: coordinator.ask(replica, number, asked, link))

    def describe(self, names: Collection[str] | None, then: Callable[[DescribedGroups], None]) -> None:
        """What this broker coordinates of these groups; None: all. `then` is called once all of that is committed. A
        partition of the log that cannot be told of is named."""

        def told(found: list[DescribedGroup], unread: list[int]) -> None:
            then(DescribedGroups(groups=tuple(sorted(found, key=lambda each: each.group)), unread=tuple(unread)))

        self._ask_each(lambda coordinator, replica, one: coordinator.describe(replica, names, one), told)

    def gauges(self, positions_max: int, then: Callable[[list[GroupGauges]], None]) -> None:
        """What this broker coordinates, as far as it has read it. positions_max: of each partition of the log."""

        def told(found: list[GroupGauges], _unread: list[int]) -> None:
            then(sorted(found))

        self._ask_each(lambda coordinator, replica, one: one(coordinator.gauges(replica, positions_max)), told)

    def _ask_each(
        self,
        ask: Callable[[Coordinator, ReplicaLoop, Callable[[list[Found]], None]], None],
        then: Callable[[list[Found], list[int]], None],
    ) -> None:
        """Ask each coordinator here, and tell what all of them have told, and which partitions of the log cannot be
        told of."""
        found: list[Found] = []
        led = [(name, partition) for name, partition in self._of_log() if partition.leads]
        waiting = {name.partition for name, _ in led}
        unread: list[int] = []

        def told(number: int, groups: list[Found]) -> None:
            found.extend(groups)
            over(number)

        def over(number: int) -> None:
            waiting.discard(number)
            if not waiting:
                then(found, unread)

        def ask_one(number: int, partition: Partition, replica: ReplicaLoop) -> None:
            try:
                ask(self._coordinator(partition), replica, partial(told, number))
            except ReplicationError:
                unread.append(number)
                over(number)

        for name, partition in led:
            partition.do(partial(ask_one, name.partition, partition))
        if not led:
            then(found, unread)

    def change(self, asked: ResetGroup | DeleteGroup, then: Callable[[ReplicationError | None], None]) -> None:
        try:
            partition = self._partition_of(asked.group)
        except ReplicationError as error:
            then(error)
            return
        coordinator = self._coordinator(partition)
        partition.do(lambda replica: coordinator.change(replica, asked, then))

    def _of_log(self) -> list[tuple[TopicPartition, Partition]]:
        replicas = self._replicas().copy()  # another thread opens and closes them
        return [(name, partition) for name, partition in replicas.items() if name.topic == GROUPS_TOPIC]

    def hung_up(self, link: MemberLink) -> None:
        for coordinator in self._coordinators.values():
            coordinator.hung_up(link)

    def tick(self) -> None:
        """Costs a look at each of this broker's partitions: few are the groups'."""
        found = [partition for _, partition in self._of_log()]
        self._coordinators = {each: known for each, known in self._coordinators.items() if each in found}
        for partition in found:
            if partition.leads or partition in self._coordinators:
                partition.try_do(self._coordinator(partition).tick)

    def _coordinator(self, partition: Partition) -> Coordinator:
        found = self._coordinators.get(partition)
        if found is None:
            soon = self._soon_at(partition)
            found = Coordinator(
                self._rows,
                self._load,
                self._known,
                soon,
                retention_ms=self._retention_ms,
                snapshot_rows_min=self._snapshot_rows_min,
            )
            self._coordinators[partition] = found
        return found

    def _partition_of(self, group: str) -> Partition:
        numbers = self._known.numbers(GROUPS_TOPIC)
        if not numbers:
            raise NotCoordinator("this broker knows of no groups' log yet: ask for it, and retry")
        name = TopicPartition(GROUPS_TOPIC, partition_of_key(numbers, group.encode()))
        found = self._replicas().get(name)
        if found is None:
            raise NotCoordinator(f"group {group} is coordinated by whoever leads {name}: reload routes and retry")
        return found

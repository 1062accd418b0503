"""The people of the simulated cluster: what they ask of the controller, at any moment, wise or not."""

from __future__ import annotations

from collections.abc import Callable

from spark_replication.messages.requests import (
    AddPartitions,
    CancelReassignment,
    Configure,
    CreateTopic,
    DeleteTopic,
    ElectionKind,
    ElectLeaders,
    Reassign,
    RemovePartitions,
    RestoredTable,
    WidenTopic,
)
from spark_replication.model import BrokerId, Scalar, TableOrigin, TopicPartition
from spark_replication.sim.cast.cluster import TOPIC, SimulatedCluster
from spark_replication.sim.faults import Fault
from spark_replication.sim.world.disk import SCHEMAS
from spark_replication.sim.world.stored import CLUSTER_ID

OTHER = "other"
PARTITIONS_MAX = 3
RESTORE_TRIES = 12


class Operators:
    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster

    def action(self, kind: str) -> Callable[[Fault], bool]:
        found: Callable[[Fault], bool] = getattr(self, kind)
        return found

    def _partition(self, fault: Fault) -> TopicPartition | None:
        there = self._cluster.partitions()
        return there[fault.pick % len(there)] if there else None

    def _count(self, topic: str) -> int:
        stored = self._cluster.store.topics.get(topic)
        return 0 if stored is None else len(stored.state.partitions)

    def create_topic(self, fault: Fault) -> bool:
        self._cluster.ask(
            CreateTopic(name=OTHER, schema=SCHEMAS[0], partitions=1, replication_factor=1 + fault.pick % 3)
        )
        return True

    def delete_topic(self, fault: Fault) -> bool:
        self._cluster.ask(DeleteTopic(topic=OTHER))
        return OTHER in self._cluster.store.topics

    def remake_topic(self, fault: Fault) -> bool:
        """Delete the topic, and create it again while some brokers may not know of the one or the other."""
        if OTHER not in self._cluster.store.topics:
            return self.create_topic(fault)
        self._cluster.ask(DeleteTopic(topic=OTHER))
        world = self._cluster.world
        again = CreateTopic(name=OTHER, schema=SCHEMAS[0], partitions=1, replication_factor=1 + fault.pick % 3)
        world.after(world.between(5, 150), "asks for it again", lambda: self._cluster.ask(again))
        return True

    def restore_topic(self, fault: Fault) -> bool:
        """Delete the topic, and make it again of its table, by as many tries as that takes."""
        stored = self._cluster.store.topics.get(OTHER)
        if stored is None:
            return self.create_topic(fault)
        topic_id = stored.state.topic_id
        if self._cluster.tables.table(topic_id).version.number is None:
            return False
        self._cluster.ask(DeleteTopic(topic=OTHER))
        again = CreateTopic(
            name=OTHER,
            schema=stored.config.schema,
            partitions=len(stored.state.partitions),
            replication_factor=1 + fault.pick % 3,
            config={"table": True},
            restores=RestoredTable(
                origin=TableOrigin(cluster_id=CLUSTER_ID, topic_id=topic_id),
                earlier_columns=stored.config.earlier_columns,
            ),
        )
        world = self._cluster.world

        def ask(tries: int) -> None:
            now = self._cluster.store.topics.get(OTHER)
            if tries and (now is None or now.state.topic_id == topic_id):
                self._cluster.ask(again)
                world.after(world.between(5, 150), "asks for it again", lambda: ask(tries - 1))

        ask(RESTORE_TRIES)
        return True

    def widen_topic(self, fault: Fault) -> bool:
        """Widen a topic to its next version or the one after that, or to an earlier one, which is refused."""
        topic = OTHER if fault.pick & 1 and OTHER in self._cluster.store.topics else TOPIC
        self._cluster.ask(WidenTopic(topic=topic, schema=SCHEMAS[(fault.pick >> 1) % len(SCHEMAS)]))
        return topic in self._cluster.store.topics

    def add_partitions(self, fault: Fault) -> bool:
        count = self._count(TOPIC)
        if 0 < count < PARTITIONS_MAX:
            self._cluster.ask(AddPartitions(counts={TOPIC: count + 1}))
        return 0 < count < PARTITIONS_MAX

    def remove_partitions(self, fault: Fault) -> bool:
        count = self._count(TOPIC)
        if count > 1:
            self._cluster.ask(RemovePartitions(partitions={TOPIC: (count - 1,)}))
        return count > 1

    def readd_partitions(self, fault: Fault) -> bool:
        """Remove a partition, and add it again on the same brokers, some of which may not know of either."""
        if not self.remove_partitions(fault):
            return False
        count = self._count(TOPIC)
        replicas = self._cluster.store.topics[TOPIC].state.partitions[count - 1]
        again = AddPartitions(assignments={TOPIC: {count - 1: replicas}})
        world = self._cluster.world
        world.after(world.between(20, 200), "asks for it again", lambda: self._cluster.ask(again))
        return True

    def reassign(self, fault: Fault) -> bool:
        """Reassign one partition, or all of its topic at once."""
        partition = self._partition(fault)
        if partition is None:
            return False
        brokers = sorted(self._cluster.hosts)
        turn = (fault.pick >> 4) % len(brokers)
        turned = brokers[turn:] + brokers[:turn]
        size = 3 if (fault.pick >> 8) % 4 else 2
        everywhere = (fault.pick >> 10) % 4 == 0
        moved = (
            [each for each in self._cluster.partitions() if each.topic == partition.topic]
            if everywhere
            else [partition]
        )
        self._cluster.ask(Reassign(targets={str(each): tuple(turned[:size]) for each in moved}))
        return True

    def cancel_reassignment(self, fault: Fault) -> bool:
        moving = [
            str(TopicPartition(name, number))
            for name, topic in sorted(self._cluster.store.topics.items())
            for number in sorted({*topic.state.adding, *topic.state.removing})
        ]
        if moving:
            self._cluster.ask(CancelReassignment(partitions=tuple(moving)))
        return bool(moving)

    # Elections by hand

    def elect_preferred(self, fault: Fault) -> bool:
        return self._elect("preferred")

    def elect_unclean(self, fault: Fault) -> bool:
        return self._elect("unclean")

    def elect_proactive(self, fault: Fault) -> bool:
        return self._elect("longest_log_proactive")

    def elect_balanced(self, fault: Fault) -> bool:
        return self._elect("longest_log_balanced")

    def elect_designated(self, fault: Fault) -> bool:
        leaderless = self.leaderless()
        desired: dict[str, BrokerId] = {}
        for partition in leaderless:
            replicas = self._cluster.store.topics[partition.topic].state.partitions[partition.partition]
            desired[str(partition)] = replicas[fault.pick % len(replicas)]
        self._cluster.ask(ElectLeaders(kind="designation", partitions=tuple(desired), desired=desired))
        return bool(desired)

    def _elect(self, kind: ElectionKind) -> bool:
        self._cluster.ask(ElectLeaders(kind=kind))
        return True

    def acknowledge_loss(self, fault: Fault) -> bool:
        """Acknowledge all possible loss that is shown; now and then as it was shown before the last of it."""
        before = fault.pick % 4 == 0
        known = {partition: max(0, epoch - before) for partition, epoch in self._cluster.losses().items()}
        self._cluster.acknowledge(known)
        return bool(known)

    def leaderless(self) -> list[TopicPartition]:
        partitions = self._cluster.store.partitions
        return [p for p in self._cluster.partitions() if p not in partitions or partitions[p].state.leader is None]

    # Settings

    def min_isr(self, fault: Fault) -> bool:
        settings: dict[str, Scalar | None] = {"min.insync.replicas": 1 + fault.pick % 3}
        topic = TOPIC if fault.pick & 4 and TOPIC in self._cluster.store.topics else None
        self._cluster.ask(Configure(topic=topic, settings=settings))
        return True

    def strategy(self, fault: Fault) -> bool:
        strategy = ("manual", "balanced", "proactive")[fault.pick % 3]
        unclean = bool(fault.pick & 8)
        settings: dict[str, Scalar | None] = {
            "unclean.recovery.strategy": strategy,
            "unclean.leader.election.enable": unclean,
        }
        self._cluster.ask(Configure(settings=settings))
        return True

    def recovery_enabled(self, fault: Fault) -> bool:
        enabled = self._cluster.store.stored_settings.settings.get("unclean.recovery.enabled", True)
        self._cluster.ask(Configure(settings={"unclean.recovery.enabled": not enabled}))
        return True

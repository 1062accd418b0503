"""The simulated cluster: hosts, brokers, candidates and clients, wired to one world."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from spark_replication.config import settings_from
from spark_replication.core.controller.events import BrokerDeathReported, Event, ReplicasFailed, Requested
from spark_replication.messages.groups import GROUPS_TOPIC
from spark_replication.messages.requests import (
    AcknowledgeLoss,
    AddPartitions,
    CreateTopic,
    DeleteTopic,
    Reassign,
    RemovePartitions,
    Request,
)
from spark_replication.model import BrokerId, Epoch, ReplicaOf, Scalar, TopicPartition
from spark_replication.sim.cast.broker import BrokerProcess, Host, ProcessCallbacks
from spark_replication.sim.cast.clients import Client, Cluster, Producer
from spark_replication.sim.cast.controllers import Candidate
from spark_replication.sim.cast.groups import Groups
from spark_replication.sim.cast.mirror import MirrorTables
from spark_replication.sim.cast.pipelined import PipelinedProducer
from spark_replication.sim.cast.queries import EXPIRE_MS, Query
from spark_replication.sim.cast.readers import Reader
from spark_replication.sim.cast.tables import TableWriter, TopicTables
from spark_replication.sim.judges.checkers import Checkers
from spark_replication.sim.judges.groups import GroupsJudge
from spark_replication.sim.judges.story import loss_of
from spark_replication.sim.world.disk import HEADS, SCHEMAS, Disk
from spark_replication.sim.world.network import Network
from spark_replication.sim.world.stored import Stored
from spark_replication.sim.world.world import World
from spark_replication.sim.world.zookeeper import ZooKeeper
from spark_replication.zk import paths
from spark_replication.zk.operations import Create

SETTINGS: dict[str, Scalar] = {
    "replica.lag.time.ms": 450,
    "disk.retry.ms": 600,
    "unclean.recovery.timeout.ms": 250,
    "zookeeper.session.ms": 500,
    "controlled.shutdown.timeout.ms": 480,
    "replica.fetch.bytes.max": 60,
    "segment.bytes": len(HEADS[0]) + 60,  # ten records
    "log.delete.delay.ms": 700,
    "log.unassigned.delay.ms": 1_400,
    "flush.interval.ms": 200,
    "log.retention.check.interval.ms": 300,
}
OF_STREAMS: dict[str, Scalar] = {"producer.id.expiration.ms": EXPIRE_MS}
QUERIES = 3
TOPIC = "orders"
GROUPS = ("etl", "alerts")
MEMBERS = 5
GUARDIAN_MS = (2, 60)
RESPAWN_MS = (20, 120)
BY_NODE = 0.3  # what a node below /admin can ask for is asked so


class SimulatedCluster:
    def __init__(
        self,
        world: World,
        *,
        brokers: int,
        candidates: int,
        settings: dict[str, Scalar],
        queries: Literal["streams", "jobs"] | None = None,
        groups: bool = False,
        writers: int = 0,
    ) -> None:
        """Only `queries` write, which are streams or jobs. If it is None, ordinary producers write. groups: whether
        consumer groups read. writers: how many write topics' tables."""
        self.world = world
        self.network = Network(world)
        self.settings = settings_from(SETTINGS, settings, OF_STREAMS if queries == "streams" else {})
        self.store = Stored(self.settings, lambda: world.now_ms)
        self.hosts = {broker: Host(broker) for broker in range(1, brokers + 1)}
        self.checkers = Checkers(
            world, self.store, self.hosts, flushed=self.settings.flush == "always", have_tables=writers > 0
        )
        self.zookeeper = ZooKeeper(world, self.store, self.settings.zookeeper_session_ms)
        self.mirror = MirrorTables(world)
        self.tables = TopicTables(world, self.checkers.tables)
        self.candidates: dict[str, Candidate | None] = {f"c{number}": None for number in range(1, candidates + 1)}
        self.requests = 0
        self.cluster = Cluster(
            world,
            self.network,
            self.checkers,
            find=self.find,
            brokers=self.living,
            topics=self.written,
            topic_ids=lambda: {topic.state.topic_id: name for name, topic in self.store.topics.items()},
        )
        acks: tuple[int | str, ...] = () if queries else ("all", "all", "all", 1, 0)
        self.producers = [Producer(number, self.cluster, acks=asked) for number, asked in enumerate(acks)]
        self.pipelined = [PipelinedProducer(number, self.cluster) for number in range(0 if queries else 2)]
        self.queries = [
            Query(number, self.cluster, are_jobs=queries == "jobs") for number in range(QUERIES if queries else 0)
        ]
        self.readers = [Reader(0, self.cluster)]
        self.groups = Groups(
            self.cluster,
            GroupsJudge(world, may_be_cut=self._may_be_cut),
            TOPIC,
            GROUPS,
            MEMBERS if groups else 0,
        )
        self.writers = [TableWriter(number, self.cluster, self.tables, self._disks) for number in range(writers)]
        world.check = self.checkers.after_event

    def _disks(self) -> list[Disk]:
        return [host.disk for host in self.hosts.values()]

    def start(self) -> None:
        for name in self.candidates:
            self.start_candidate(name)
        for broker in self.hosts:
            self.start_broker(broker)
        self.world.after(60, "asks for its topic", self._ensure_topic)
        for client in self.clients:
            client.start()
        self.groups.start()
        for writer in self.writers:
            writer.start()
        if self.groups.members:
            self.world.after(60, "asks for the groups' log", self._ensure_groups)

    def _ensure_topic(self) -> None:
        if TOPIC not in self.store.topics and len(self.store.registered) >= 3:
            self.ask(CreateTopic(name=TOPIC, schema=SCHEMAS[0], partitions=2, replication_factor=3))
        if TOPIC not in self.store.topics:
            self.world.after(60, "asks for its topic", self._ensure_topic)

    def _ensure_groups(self) -> None:
        if GROUPS_TOPIC not in self.store.topics:
            if len(self.store.registered) >= 3:
                creation = CreateTopic(
                    name=GROUPS_TOPIC,
                    schema=SCHEMAS[0],
                    partitions=2,
                    replication_factor=3,
                    config={"segment.bytes": 900, "retention.bytes": -1, "min.insync.replicas": 2},
                )
                self.ask(creation)
            self.world.after(60, "asks for the groups' log", self._ensure_groups)

    def _may_be_cut(self, _group: str) -> bool:
        """Whether an election from outside ISR and ELR may have cut what groups go by, or their log."""
        return any(story.since for story in self.checkers.stories())

    def written(self) -> list[TopicPartition]:
        """The partitions that clients write to."""
        return [each for each in self.partitions() if each.topic != GROUPS_TOPIC]

    @property
    def clients(self) -> tuple[Client, ...]:
        return (*self.producers, *self.pipelined, *self.queries, *self.readers)

    # Processes

    def start_broker(self, broker: BrokerId) -> None:
        host = self.hosts[broker]
        if host.process is not None:
            return
        if host.disk.has_rotted:  # a recovery cuts the log there, and the broker registers uncleanly
            self.checkers.lost.add(broker)
        process = host.process = BrokerProcess(
            host,
            world=self.world,
            network=self.network,
            zookeeper=self.zookeeper,
            settings=self.settings,
            find=self.find,
            told=ProcessCallbacks(
                failed=self._failed,
                died=self._died,
                respawn=lambda: self._respawn(broker),
                recovered=lambda: self.checkers.recovered(broker),
                registered=lambda: self.checkers.lost.discard(broker),
                appended=lambda process, replica, offset: self.checkers.appended(
                    process.broker, replica, offset, HEADS[0]
                ),
            ),
        )
        process.start()

    def _respawn(self, broker: BrokerId) -> None:
        delay_ms = self.world.between(*RESPAWN_MS)
        self.world.after(delay_ms, "its guardian starts it again", lambda: self.start_broker(broker))

    def start_candidate(self, name: str) -> None:
        known = self.candidates[name]
        if known is None or not known.alive:
            candidate = self.candidates[name] = Candidate(
                name,
                world=self.world,
                network=self.network,
                zookeeper=self.zookeeper,
                find=self.find,
                observer=self.checkers,
                mirror=self.mirror,
                tables=self.tables,
            )
            candidate.start()

    def find(self, broker: BrokerId, life: int) -> BrokerProcess | None:
        process = self.hosts[broker].process
        return process if process is not None and process.life == life else None

    def living(self) -> list[BrokerProcess]:
        return [host.process for host in self.hosts.values() if host.process is not None]

    def controller(self) -> Candidate | None:
        """The living candidate that holds /controller in ZooKeeper, and commands. None if there is none."""
        found = self.winner()
        return found if found is not None and found.loop is not None else None

    def winner(self) -> Candidate | None:
        """The living candidate that holds /controller. It may be loading."""
        session = self.zookeeper.controller
        process = session.process if session is not None else None
        return process if isinstance(process, Candidate) and process.alive else None

    def tell_controller(self, event: Event, what: str) -> None:
        controller = self.controller()
        if controller is not None:
            self.world.after(
                self.world.between(*GUARDIAN_MS), what, lambda: controller.handle(event), on=controller, about=event
            )

    def _died(self, process: BrokerProcess) -> None:
        """Let a guardian report the death, as often as one is there."""
        if process.epoch is not None and self.world.chance(0.6):
            self.tell_controller(BrokerDeathReported(process.broker, process.incarnation), "a guardian reports a death")

    def _failed(self, process: BrokerProcess, replica: ReplicaOf) -> None:
        if process.epoch is not None:
            self.checkers.refused(process.broker, process.epoch, replica)
            event = ReplicasFailed(process.broker, process.epoch, (replica,))
            self.tell_controller(event, "a broker reports its disk")

    # What people ask for

    def ask(self, asked: Request) -> None:
        """Ask by a call, or by nodes below /admin, which the present or the next controller finds."""
        nodes = _nodes(asked)
        if nodes and self.world.chance(BY_NODE):
            self.world.counts["asked_by_node"] += 1
            for path, data in nodes.items():
                folder = path.rpartition("/")[0]
                missing = [each for each in (folder, path) if self.store.tree.read(each) is None]
                self.zookeeper.multi([Create(each, data if each == path else b"") for each in missing])
            return
        self.requests += 1
        self.tell_controller(Requested(asked=asked, request=self.requests), "a request")

    def losses(self) -> dict[TopicPartition, Epoch]:
        """The possible loss that is shown, by the last leader epoch of each."""
        found = {p: self.store.partitions[p].state for p in self.partitions() if p in self.store.partitions}
        losses = {partition: loss_of(state) for partition, state in found.items()}
        return {partition: loss.last_epoch for partition, loss in losses.items() if loss is not None}

    def acknowledge(self, known: Mapping[TopicPartition, Epoch]) -> None:
        for partition, last_epoch in known.items():
            self.checkers.loss_is_known(partition, self.store.topics[partition.topic].state.topic_id, last_epoch)
        self.ask(AcknowledgeLoss(known={str(partition): epoch for partition, epoch in known.items()}))

    def partitions(self) -> list[TopicPartition]:
        return [
            TopicPartition(topic, number)
            for topic, stored in sorted(self.store.topics.items())
            for number in sorted(stored.state.partitions)
        ]


def _nodes(asked: Request) -> dict[str, bytes]:
    """The nodes that ask for it, with their data; none if it can only be asked for by a call."""
    match asked:
        case DeleteTopic(topic=topic):
            return {paths.deletion_mark(topic): b""}
        case Reassign(targets=targets):
            found = {TopicPartition.parse(name): replicas for name, replicas in targets.items()}
            return {f"{paths.REASSIGNED}/{of.topic}/{of.partition}": _listed(to) for of, to in found.items()}
        case AddPartitions(assignments=assignments):
            return {
                f"{paths.ADDED}/{topic}/{number}": _listed(replicas)
                for topic, of in assignments.items()
                for number, replicas in of.items()
            }
        case RemovePartitions(partitions=partitions):
            return {f"{paths.REMOVED}/{topic}/{number}": b"" for topic, of in partitions.items() for number in of}
    return {}


def _listed(replicas: Sequence[BrokerId]) -> bytes:
    return b"[%s]" % b",".join(b"%d" % replica for replica in replicas)

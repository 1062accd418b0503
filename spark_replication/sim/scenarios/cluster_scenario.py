"""The scenarios of a cluster: the production controller loop and core, over ZooKeeper in memory.

The controller is told what a live one is told, and nothing else. Brokers carry out what they are sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from spark_replication.config import TopicSettings, settings_from, with_topic
from spark_replication.core.controller import reassignment
from spark_replication.core.controller.answers import outcome
from spark_replication.core.controller.cluster import ClusterState
from spark_replication.core.controller.events import (
    Event,
    LogInfoRead,
    LogsAhead,
    PartitionsRead,
    ReplicasFailed,
    Requested,
    TookOver,
)
from spark_replication.core.controller.plan import Reconsider, Reply
from spark_replication.core.controller.settling import advance, recover, settle
from spark_replication.core.law.brokers import Brokers
from spark_replication.core.law.partition_change import effective_min_isr
from spark_replication.core.law.writes import IsrCommitted, IsrWrite, StoredPartition
from spark_replication.core.replica.isr import changed
from spark_replication.engine.controller.controller_loop import ControllerLoop
from spark_replication.errors import (
    EpochBehindLog,
    FencedLeaderEpoch,
    IneligibleReplica,
    InvalidUpdateVersion,
    ReplicationError,
    StaleBrokerEpoch,
)
from spark_replication.messages.commands import Command, CommandAnswer, LeaderAndIsr, ReplicaLogInfo, ReplicaLogInfos
from spark_replication.messages.requests import (
    AcknowledgeLoss,
    AddPartitions,
    CancelReassignment,
    Configure,
    CreateTopic,
    DeleteTopic,
    ElectLeaders,
    Reassign,
    RemovePartitions,
    Request,
)
from spark_replication.model import BrokerId, PartitionState, Registration, TopicConfig, TopicPartition, TopicState
from spark_replication.ports import NoMirror
from spark_replication.sim.scenarios.cluster_expectations import ClusterExpectations
from spark_replication.sim.scenarios.expectation import (
    BadScenario,
    Mismatch,
    expect_int,
    expect_ints,
    expect_keys,
    expect_mapping,
    milliseconds,
)
from spark_replication.sim.scenarios.scenario_tables import ScenarioTables
from spark_replication.sim.scenarios.zookeeper_at_once import ControllerDied, ZooKeeperAtOnce
from spark_replication.sim.world.topic_tables import anything_fits
from spark_replication.storage.format.batches import schema_change

_NO_LEADER = -1
_PARTITION_KEYS = {
    "replicas", "isr", "leader", "leader_epoch", "elr", "last_known_elr", "last_known_leader", "recovering",
    "partition_epoch", "adding", "removing", "start_at",
}  # fmt: skip


class ClusterScenario:
    def __init__(self, document: dict[str, Any]) -> None:
        expect_keys(document, "the scenario", set(document), {"brokers", "steps"})
        self._racks = _racks(document["brokers"])
        self._store = ZooKeeperAtOnce(settings_from(expect_mapping(document.get("config", {}), "config")))
        for broker, rack in self._racks.items():
            self._store.register(broker, clean=True, rack=rack)
        for topic, found in expect_mapping(document.get("topics", {}), "topics").items():
            self._store_topic(str(topic), found)
        self._tables = ScenarioTables(document.get("tables", {}))
        for broker in expect_ints(document.get("down", []), "down"):
            self._store.remove_registration(self._known(broker))
        self._now_ms = 0
        self._sent: list[tuple[BrokerId, Command]] = []
        self._told: dict[tuple[BrokerId, TopicPartition], LeaderAndIsr] = {}
        self._reply = Reply()
        self._remaining: list[TopicPartition] | None = None
        self._dies_after: int | None = None
        self._loop = self._controller()
        # A file may tell of a start that nobody has settled: the controller does so with the first step.
        self._begins_settled = _is_settled(self._loop.cluster)
        self._expectations = ClusterExpectations(self._store, self._tables, self._racks, _names(document, self._store))
        self.events: dict[str, Callable[[Any], None]] = {
            "broker_down": self._broker_down,
            "broker_up": self._broker_up,
            "controlled_shutdown": self._controlled_shutdown,
            "create_topic": lambda argument: self._ask(_creation(argument)),
            "delete_topic": lambda argument: self._ask(DeleteTopic(topic=str(argument))),
            "add_partitions": lambda argument: self._ask(_addition(argument)),
            "remove_partitions": lambda argument: self._ask(_removal(argument)),
            "reassign": lambda argument: self._ask(_reassignment(argument)),
            "cancel_reassignment": lambda argument: self._ask(_cancellation(argument)),
            "elect": lambda argument: self._ask(_election(argument)),
            "acknowledge_loss": lambda argument: self._ask(_acknowledgement(argument)),
            "configure": self._configure,
            "isr": self._isr,
            "stale_isr": self._stale_isr,
            "log_info": self._log_info,
            "refuse": self._refuse,
            "table": self._change_tables,
            "remove_leader_and_isr": lambda argument: self._store.remove(self._stored_partition(argument)),
            "wait": self._wait,
            "controller_failover": self._failover,
            "crash_after_writes": self._crash_after_writes,
        }

    # The start

    def _known(self, broker: Any) -> BrokerId:
        if expect_int(broker, "a broker") not in self._racks:
            raise BadScenario(f"broker {broker} is not among {sorted(self._racks)}")
        return int(broker)

    def _all_known(self, value: Any, where: str) -> list[BrokerId]:
        return [self._known(broker) for broker in expect_ints(value, where)]

    def _store_topic(self, topic: str, document: Any) -> None:
        keys = expect_keys(document, topic, {"config", "partitions"}, {"partitions"})
        config = TopicConfig(settings=expect_mapping(keys.get("config", {}), f"config of {topic}"))
        settings = with_topic(self._store.settings, config.settings)
        found: dict[int, dict[str, Any]] = {}
        for number, given in expect_mapping(keys["partitions"], f"partitions of {topic}").items():
            name = f"{topic}-{expect_int(number, f'a partition of {topic}')}"
            found[number] = expect_keys(given, name, _PARTITION_KEYS, {"replicas"})
        of = {key: self._replicas(key, topic, found) for key in ("replicas", "adding", "removing")}
        topic_id, adding, removing = f"id-{topic}", of["adding"], of["removing"]
        state = TopicState(topic_id=topic_id, partitions=of["replicas"], adding=adding, removing=removing)
        states = {
            number: self._partition(TopicPartition(topic, number), partition_keys, state, settings)
            for number, partition_keys in found.items()
        }
        self._store.place(topic, state, states, config)

    def _replicas(self, key: str, topic: str, found: dict[int, dict[str, Any]]) -> dict[int, tuple[BrokerId, ...]]:
        replicas = {}
        for number, keys in found.items():
            named = tuple(self._all_known(keys.get(key, []), f"{key} of {topic}-{number}"))
            outside = sorted(set(named) - set(keys["replicas"]))
            if outside:
                raise BadScenario(f"{topic}-{number}: {outside} are not among its replicas {keys['replicas']}")
            if named or key == "replicas":
                replicas[number] = named
        return replicas

    def _partition(
        self, partition: TopicPartition, keys: dict[str, Any], topic: TopicState, settings: TopicSettings
    ) -> tuple[PartitionState, int]:
        """As it is stored, and at which version."""
        members = {
            name: frozenset(self._all_known(keys.get(name, []), name)) for name in ("isr", "elr", "last_known_elr")
        }
        replicas = topic.partitions[partition.partition]
        outside = (members["isr"] | members["elr"] | members["last_known_elr"]) - set(replicas)
        if outside:
            raise BadScenario(f"{partition}: {sorted(outside)} are not among its replicas {list(replicas)}")
        factor = reassignment.replication_factor(topic, partition.partition)
        state = PartitionState(
            leader=self._leader(keys.get("leader", _NO_LEADER)),
            leader_epoch=expect_int(keys.get("leader_epoch", 0), "leader_epoch"),
            isr=members["isr"],
            elr=members["elr"],
            last_known_elr=members["last_known_elr"],
            last_known_leader=self._leader(keys.get("last_known_leader", _NO_LEADER)),
            recovering=bool(keys.get("recovering", False)),
            start_at=expect_int(keys.get("start_at", 0), "start_at") or msgspec.UNSET,
            min_isr=effective_min_isr(settings.min_insync_replicas, factor),
            epochs={broker: self._store.broker_epochs[broker].epoch for broker in members["isr"] | members["elr"]},
        )
        return state, expect_int(keys.get("partition_epoch", 0), "partition_epoch")

    def _leader(self, value: Any) -> BrokerId | None:
        return None if expect_int(value, "a leader") == _NO_LEADER else self._known(value)

    def _controller(self) -> ControllerLoop:
        return ControllerLoop(
            self._store.load(),
            store=self._store.session(),
            sender=self,
            mirror=NoMirror(),
            sealer=self._tables,
            answer=self._answered,
            deposed=lambda: None,
            now_ms=self._now_ms,
            compare_schemas=schema_change,
            fits_table=anything_fits,
        )

    def send(self, broker: BrokerId, registration: Registration, command: Command) -> None:
        """ports.CommandSender: keep the command, for the expectation `sent`."""
        self._sent.append((broker, command))
        if isinstance(command, LeaderAndIsr):
            self._told.update({(broker, partition.topic_partition): command for partition in command.partitions})

    def gone(self, broker: BrokerId) -> None:
        """Do nothing: what was sent in this step stays in `sent`."""

    def _answered(self, request: int, reply: Reply) -> None:
        self._reply = reply

    # Events

    def happen(self, event: str, argument: Any) -> None:
        self._sent.clear()
        self._reply = Reply()
        self._remaining = None
        self._store.round_trips = 0
        self._store.dies_after, self._dies_after = self._dies_after, None
        try:
            self.events[event](argument)
        except ControllerDied:
            self._store.dies_after = None
            self._failover({})
        self._store.dies_after = None
        self._check_settled()

    def _check_settled(self) -> None:
        """Settling everything again changes and asks nothing. Nobody asks a live controller to: what a step calls for
        and does not do would never be done."""
        checks, self._begins_settled = self._begins_settled, True
        before, sent = dict(self._store.partitions), len(self._sent)
        topics, round_trips = dict(self._store.topics), self._store.round_trips
        self._tell(Reconsider(tuple(sorted(topics))))
        if not checks or (self._store.round_trips == round_trips and len(self._sent) == sent):
            return
        found: dict[str, Any] = {
            str(each): now for each, now in self._store.partitions.items() if now != before.get(each)
        }
        found |= {name: now.state for name, now in self._store.topics.items() if now != topics.get(name)}
        asked = [f"{type(command).__name__} to {broker}" for broker, command in self._sent[sent:]]
        raise Mismatch("settling everything again", "nothing changes, nobody is asked", found or asked)

    def _tell(self, event: Event | Reconsider) -> None:
        self._loop.handle(event, self._now_ms)
        self._tell_of_tables()

    def _tell_of_tables(self) -> None:
        while (answer := self._tables.answer()) is not None:
            self._loop.handle(answer, self._now_ms)

    def _change_tables(self, argument: Any) -> None:
        """Change what tables say, or whether they can be reached. Nobody is told of that."""
        self._tables.change(argument)

    def _ask(self, asked: Request) -> None:
        self._tell(Requested(asked=asked, request=1))

    def _broker_down(self, argument: Any) -> None:
        broker = self._known(argument)
        if not self._store.remove_registration(broker):
            raise BadScenario(f"broker {broker} is down already")
        self._tell(self._store.brokers_read())

    def _broker_up(self, argument: Any) -> None:
        keys = argument if isinstance(argument, dict) else {"id": argument}
        expect_keys(keys, "broker_up", {"id", "clean"}, {"id"})
        broker = self._known(keys["id"])
        self._store.register(broker, clean=bool(keys.get("clean", False)), rack=self._racks[broker])
        self._tell(self._store.brokers_read())

    def _controlled_shutdown(self, argument: Any) -> None:
        broker = self._known(argument)
        if broker not in self._store.registered:
            raise BadScenario(f"broker {broker} is down already")
        self._store.shut_down(broker)
        self._tell(self._store.brokers_read())
        self._remaining = self._loop.cluster.led_by(broker)

    def _configure(self, argument: Any) -> None:
        keys = expect_mapping(argument, "configure")
        topic = keys.get("topic")
        if topic is not None and str(topic) not in self._store.topics:
            raise BadScenario(f"configure: there is no topic {topic!r}")
        settings = {str(name): value for name, value in keys.items() if name != "topic"}
        self._ask(Configure(topic=None if topic is None else str(topic), settings=settings))

    def _isr(self, argument: Any) -> None:
        for name, wanted in expect_mapping(argument, "isr").items():
            partition = self._stored_partition(name)
            version = self._store.partitions[partition].version
            self._write_isr(partition, frozenset(self._all_known(wanted, "isr")), version, {})

    def _stale_isr(self, argument: Any) -> None:
        for name, wanted in expect_mapping(argument, "stale_isr").items():
            keys = expect_keys(wanted, f"stale_isr {name}", {"isr", "epoch", "version", "fetched_at"}, {"isr"})
            partition = self._stored_partition(name)
            before = self._store.partitions[partition]
            fetched_at = {
                self._known(broker): self._broker_epoch(broker, epoch)
                for broker, epoch in expect_mapping(keys.get("fetched_at", {}), "fetched_at").items()
            }
            self._write_isr(
                partition,
                frozenset(expect_ints(keys["isr"], "isr")),
                expect_int(keys.get("version", before.version), "version"),
                fetched_at,
                leader_epoch=expect_int(keys.get("epoch", before.state.leader_epoch), "epoch"),
            )
            if self._reply.error is None or self._store.partitions[partition] != before:
                raise Mismatch(f"stale_isr of {name}", "refused, nothing changed", self._store.partitions[partition])

    def _stored_partition(self, name: Any) -> TopicPartition:
        partition = self._expectations.partition_named(str(name))
        if partition not in self._store.partitions:
            raise BadScenario(f"{name} does not exist (yet)")
        return partition

    def _broker_epoch(self, broker: BrokerId, given: Any) -> int:
        current = self._store.broker_epochs[broker].epoch
        if given == "current":
            return current
        return current - 1 if given == "old" else expect_int(given, "a broker epoch")

    def _write_isr(
        self,
        partition: TopicPartition,
        isr: frozenset[BrokerId],
        version: int,
        fetched_at: dict[BrokerId, int],
        leader_epoch: int | None = None,
    ) -> None:
        state = self._store.partitions[partition].state
        # A leader of another epoch knows nothing of the present epoch.
        is_stale = leader_epoch not in (None, state.leader_epoch)
        writer = min(isr, default=None) if is_stale and state.leader not in isr else state.leader
        if writer is None:
            raise BadScenario(f"{partition} has no leader that could write its ISR")
        if writer not in isr:
            raise BadScenario(f"{partition} is led by {state.leader}, which cannot leave the ISR by itself")
        epochs = {broker: found.epoch for broker, found in self._store.broker_epochs.items()}
        joining = {broker: fetched_at.get(broker, epochs.get(broker, 0)) for broker in sorted(isr - state.isr)}
        wanted = changed(state, isr, joining)
        if leader_epoch is not None:
            wanted = msgspec.structs.replace(wanted, leader_epoch=leader_epoch)
        write = IsrWrite(
            partition=partition,
            topic_id=self._store.topics[partition.topic].state.topic_id,
            broker=writer,
            broker_epoch=epochs[writer],
            state=wanted,
            version=version,
            joining=joining,
        )
        refused = _why_refused(write, self._store.partitions[partition], self._store.brokers)
        answer = self._store.change_isr(write)
        if isinstance(answer, IsrCommitted) == (refused is not None):
            raise Mismatch(f"the ISR of {partition} that its leader writes", refused or "stored", answer)
        if refused is not None:
            self._reply = Reply(refused)
        else:
            self._tell(PartitionsRead({partition: self._store.partitions[partition]}))

    def _log_info(self, argument: Any) -> None:
        keys = expect_keys(argument, "log_info", {"broker", "broker_epoch", "partitions"}, {"broker", "partitions"})
        broker = self._known(keys["broker"])
        infos = []
        for name, found in expect_mapping(keys["partitions"], "partitions of log_info").items():
            known = {"last_epoch", "current_epoch", "end"}
            info = expect_keys(found, f"log_info of {name}", known, {"last_epoch", "end"})
            partition = self._stored_partition(name)
            current = self._store.partitions[partition].state.leader_epoch
            given = info.get("current_epoch", "current")
            forged = {"current": current, "old": current - 1}
            infos.append(
                ReplicaLogInfo(
                    topic=partition.topic,
                    partition=partition.partition,
                    topic_id=self._store.topics[partition.topic].state.topic_id,
                    last_epoch=expect_int(info["last_epoch"], "last_epoch"),
                    current_epoch=expect_int(forged.get(given, given), "current_epoch"),
                    end=expect_int(info["end"], "end"),
                )
            )
        epoch = self._broker_epoch(broker, keys.get("broker_epoch", "current"))
        self._tell(LogInfoRead(broker, ReplicaLogInfos(broker_epoch=epoch, partitions=tuple(infos))))

    def _refuse(self, argument: Any) -> None:
        """Refuse a command, and do what a command sender does: send it again after a retriable error, and report a
        failed disk, or a log with a later epoch (`{last_epoch: 9}`), to the controller."""
        keys = expect_keys(argument, "refuse", {"broker", "partitions"}, {"broker", "partitions"})
        broker = self._known(keys["broker"])
        for name, code in expect_mapping(keys["partitions"], "partitions of refuse").items():
            partition = self._expectations.partition_named(str(name))
            told = self._told.get((broker, partition))
            if told is None:
                raise BadScenario(f"broker {broker} was sent no LeaderAndIsr for {name}")
            epoch = self._store.broker_epochs[broker].epoch
            found = outcome(broker, told, _refusal(epoch, str(partition), code))
            if found.failed:
                self._tell(ReplicasFailed(broker, epoch, found.failed))
            if found.ahead:
                self._tell(LogsAhead(broker, epoch, found.ahead))
            if found.again is not None:
                self.send(broker, self._store.registered[broker], found.again)

    def _failover(self, argument: Any) -> None:
        expect_keys(argument, "controller_failover", set())
        self._loop = self._controller()
        self._tell(TookOver())

    def _wait(self, argument: Any) -> None:
        self._now_ms += milliseconds(argument, "wait")
        self._loop.tick(self._now_ms)
        self._tell_of_tables()

    def _crash_after_writes(self, argument: Any) -> None:
        self._dies_after = expect_int(argument, "crash_after_writes")

    # Expectations

    def check_names(self, expected: dict[Any, Any]) -> None:
        self._expectations.check_names(expected)

    def expect(self, key: Any, wanted: Any) -> None:
        self._expectations.expect(str(key), wanted, self._loop.cluster, self._sent, self._reply, self._remaining)


def _names(document: dict[str, Any], store: ZooKeeperAtOnce) -> set[str]:
    """The topics that exist, and those that a step creates: expectations may name no other."""
    steps = document["steps"] if isinstance(document["steps"], list) else []
    made = (step["create_topic"] for step in steps if isinstance(step, dict) and "create_topic" in step)
    return {*store.topics, *(str(found["name"]) for found in made if isinstance(found, dict) and "name" in found)}


def _why_refused(write: IsrWrite, stored: StoredPartition, brokers: Brokers) -> ReplicationError | None:
    """The condition of a leader's write that fails (I1, I3), by its name in Kafka. A leader is told only how its
    partition is stored."""
    if write.state.leader_epoch != stored.state.leader_epoch:
        return FencedLeaderEpoch(f"{write.partition} is at leader epoch {stored.state.leader_epoch}")
    if write.version != stored.version:
        return InvalidUpdateVersion(f"{write.partition} is at partition epoch {stored.version}, not {write.version}")
    if brokers.epochs.get(write.broker) != write.broker_epoch:
        return StaleBrokerEpoch(f"broker {write.broker} has registered again since epoch {write.broker_epoch}")
    for replica, epoch in sorted(write.joining.items()):
        if replica not in brokers.electable or brokers.epochs[replica] != epoch:
            return IneligibleReplica(f"broker {replica} is not registered at epoch {epoch}, or is shutting down")
    return None


def _refusal(broker_epoch: int, partition: str, refusal: Any) -> CommandAnswer:
    if not isinstance(refusal, dict):
        return CommandAnswer(broker_epoch=broker_epoch, errors={partition: str(refusal)})
    keys = expect_keys(refusal, f"refuse {partition}", {"last_epoch"}, {"last_epoch"})
    last_epochs = {partition: expect_int(keys["last_epoch"], "last_epoch")}
    errors = {partition: EpochBehindLog.code}
    return CommandAnswer(broker_epoch=broker_epoch, errors=errors, last_epochs=last_epochs)


def _is_settled(cluster: ClusterState) -> bool:
    partitions = cluster.all_partitions()
    return (
        not settle(cluster, partitions) and not recover(cluster, partitions).asks and not advance(cluster, partitions)
    )


def _racks(document: Any) -> dict[BrokerId, str | None]:
    if isinstance(document, list):
        return dict.fromkeys(expect_ints(document, "brokers"))
    found = expect_mapping(document, "brokers").items()
    return {
        expect_int(broker, "a broker"): expect_keys(keys or {}, f"broker {broker}", {"rack"}).get("rack")
        for broker, keys in found
    }


# Requests: their arguments may name what does not exist or is not allowed; the core answers.


def _creation(argument: Any) -> CreateTopic:
    known = {"name", "partitions", "count", "replication_factor", "config"}
    keys = expect_keys(argument, "create_topic", known, {"name"})
    assignment = keys.get("partitions")
    return CreateTopic(
        name=str(keys["name"]),
        partitions=keys.get("count"),
        replication_factor=keys.get("replication_factor"),
        assignment=None if assignment is None else _assignment(assignment, "partitions of create_topic"),
        config=expect_mapping(keys.get("config", {}), "config"),
    )


def _assignment(argument: Any, where: str) -> dict[int, tuple[BrokerId, ...]]:
    return {
        expect_int(number, "a partition"): tuple(expect_ints(replicas, where))
        for number, replicas in expect_mapping(argument, where).items()
    }


def _addition(argument: Any) -> AddPartitions:
    counts: dict[str, int] = {}
    assignments: dict[str, dict[int, tuple[BrokerId, ...]]] = {}
    for topic, wanted in expect_mapping(argument, "add_partitions").items():
        if isinstance(wanted, dict) and "count" in wanted:
            keys = expect_keys(wanted, f"add_partitions {topic}", {"count"})
            counts[str(topic)] = expect_int(keys["count"], "count")
        else:
            assignments[str(topic)] = _assignment(wanted, f"add_partitions {topic}")
    return AddPartitions(counts=counts, assignments=assignments)


def _removal(argument: Any) -> RemovePartitions:
    found = expect_mapping(argument, "remove_partitions")
    return RemovePartitions(partitions={str(t): tuple(expect_ints(n, "partitions")) for t, n in found.items()})


def _reassignment(argument: Any) -> Reassign:
    found = expect_mapping(argument, "reassign")
    return Reassign(targets={str(name): tuple(expect_ints(replicas, "replicas")) for name, replicas in found.items()})


def _cancellation(argument: Any) -> CancelReassignment:
    if not isinstance(argument, list):
        raise BadScenario(f"cancel_reassignment is {argument!r}, not a list of partitions")
    return CancelReassignment(partitions=tuple(str(name) for name in argument))


def _acknowledgement(argument: Any) -> AcknowledgeLoss:
    found = expect_mapping(argument, "acknowledge_loss")
    return AcknowledgeLoss(known={str(name): expect_int(epoch, "a leader epoch") for name, epoch in found.items()})


_KINDS = ("preferred", "unclean", "longest_log_proactive", "longest_log_balanced", "designation")


def _election(argument: Any) -> ElectLeaders:
    keys = expect_keys(argument, "elect", {"type", "partitions", "desired", "without_table"}, {"type"})
    kind = keys["type"]
    if kind not in _KINDS:
        raise BadScenario(f"elect: type {kind!r} does not exist; there are {', '.join(_KINDS)}")
    desired = {
        str(name): expect_int(broker, "desired")
        for name, broker in expect_mapping(keys.get("desired", {}), "desired").items()
    }
    partitions = keys.get("partitions", list(desired) or None)
    if partitions is not None and not isinstance(partitions, list):
        raise BadScenario(f"elect: partitions are {partitions!r}, not a list")
    named = None if partitions is None else tuple(str(name) for name in partitions)
    without_table = bool(keys.get("without_table", False))
    return ElectLeaders(kind=kind, partitions=named, desired=desired, without_table=without_table)

"""The scenarios of a cluster: the production controller loop and core, over ZooKeeper in memory.

A step's event is decided first, then what the state calls for. Brokers carry out what they are sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from spark_replication.config import TopicSettings, settings_from, with_topic
from spark_replication.core import health
from spark_replication.core.cluster import (
    Event,
    PartitionsRead,
    StoredTopic,
    TookOver,
    TopicRequested,
)
from spark_replication.core.controller import waiting
from spark_replication.core.isr import changed
from spark_replication.core.partition_change import effective_min_isr
from spark_replication.core.writes import IsrWrite, StoredPartition
from spark_replication.engine.controller_loop import ControllerLoop
from spark_replication.errors import ReplicationError
from spark_replication.messages import Command, CreateTopic, LeaderAndIsr, StopReplica, UpdateMetadata
from spark_replication.model import BrokerId, PartitionState, Registration, TopicConfig, TopicPartition, TopicState
from spark_replication.ports import NoMirror
from spark_replication.sim.expectation import (
    BadScenario,
    Mismatch,
    check_error,
    check_fields,
    expect_int,
    expect_ints,
    expect_keys,
    expect_mapping,
    milliseconds,
)
from spark_replication.sim.memory_store import ControllerDied, MemoryStore

_NO_LEADER = -1
_PARTITION_KEYS = {
    "replicas", "isr", "leader", "leader_epoch", "elr", "last_known_elr", "last_known_leader", "recovering",
    "partition_epoch",
}  # fmt: skip
_KINDS = {LeaderAndIsr: "leader_and_isr", StopReplica: "stop_replica", UpdateMetadata: "update_metadata"}


class ClusterScenario:
    def __init__(self, document: dict[str, Any]) -> None:
        expect_keys(document, "the scenario", set(document), {"brokers", "steps"})
        self._racks = _racks(document["brokers"])
        self._store = MemoryStore(settings_from(expect_mapping(document.get("config", {}), "config")))
        for broker, rack in self._racks.items():
            self._store.register(broker, clean=True, rack=rack)
        for topic, found in expect_mapping(document.get("topics", {}), "topics").items():
            self._store_topic(str(topic), found)
        for broker in expect_ints(document.get("down", []), "down"):
            del self._store.registered[self._known(broker)]
        created = (
            step["create_topic"] for step in document["steps"] if isinstance(step, dict) and "create_topic" in step
        )
        self._names = {*self._store.topics, *(str(c["name"]) for c in created if isinstance(c, dict) and "name" in c)}
        self._sent: list[tuple[BrokerId, Command]] = []
        self._errors: dict[str, str] | str = "none"
        self._dies_after: int | None = None
        self._loop = self._controller()
        self.events: dict[str, Callable[[Any], None]] = {
            "broker_down": self._broker_down,
            "broker_up": self._broker_up,
            "create_topic": self._create_topic,
            "isr": self._isr,
            "stale_isr": self._stale_isr,
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
        replicas: dict[int, tuple[BrokerId, ...]] = {}
        for number, found in expect_mapping(keys["partitions"], f"partitions of {topic}").items():
            partition = TopicPartition(topic, expect_int(number, f"a partition of {topic}"))
            stored = self._partition(partition, found, settings)
            replicas[partition.partition] = tuple(found["replicas"])
            self._store.partitions[partition] = stored
        state = TopicState(topic_id=f"id-{topic}", partitions=replicas)
        self._store.topics[topic] = StoredTopic(state, 0, config)

    def _partition(self, partition: TopicPartition, document: Any, settings: TopicSettings) -> StoredPartition:
        keys = expect_keys(document, str(partition), _PARTITION_KEYS, {"replicas"})
        members = {
            name: frozenset(self._all_known(keys.get(name, []), name)) for name in ("isr", "elr", "last_known_elr")
        }
        replicas = self._all_known(keys["replicas"], "replicas")
        outside = (members["isr"] | members["elr"] | members["last_known_elr"]) - set(replicas)
        if outside:
            raise BadScenario(f"{partition}: {sorted(outside)} are not among its replicas {replicas}")
        state = PartitionState(
            leader=_leader(keys.get("leader", _NO_LEADER)),
            leader_epoch=expect_int(keys.get("leader_epoch", 0), "leader_epoch"),
            isr=members["isr"],
            elr=members["elr"],
            last_known_elr=members["last_known_elr"],
            last_known_leader=_leader(keys.get("last_known_leader", _NO_LEADER)),
            recovering=bool(keys.get("recovering", False)),
            min_isr=effective_min_isr(settings.min_insync_replicas, replicas),
            epochs={broker: self._store.broker_epochs[broker].epoch for broker in members["isr"] | members["elr"]},
        )
        return StoredPartition(state, expect_int(keys.get("partition_epoch", 0), "partition_epoch"))

    def _controller(self) -> ControllerLoop:
        loaded = self._store.load()
        return ControllerLoop(
            loaded,
            store=self._store.session(loaded.controller_epoch),
            sender=self,
            mirror=NoMirror(),
            answer=self._answered,
            deposed=lambda: None,
        )

    def send(self, broker: BrokerId, registration: Registration, command: Command) -> None:
        """ports.CommandSender: kept, for `sent`."""
        self._sent.append((broker, command))

    def gone(self, broker: BrokerId) -> None:
        """What was sent in this step stays told."""

    def _answered(self, request: int, error: ReplicationError | None) -> None:
        self._errors = "none" if error is None else error.code

    # Events

    def happen(self, event: str, argument: Any) -> None:
        self._sent.clear()
        self._errors = "none"
        self._store.round_trips = 0
        self._store.dies_after, self._dies_after = self._dies_after, None
        try:
            self.events[event](argument)
        except ControllerDied:
            self._store.dies_after = None
            self._failover({})
        self._store.dies_after = None

    def _tell(self, event: Event) -> None:
        self._loop.handle(event)

    def _broker_down(self, argument: Any) -> None:
        broker = self._known(argument)
        if self._store.registered.pop(broker, None) is None:
            raise BadScenario(f"broker {broker} is down already")
        self._tell(self._store.brokers_read())

    def _broker_up(self, argument: Any) -> None:
        keys = argument if isinstance(argument, dict) else {"id": argument}
        expect_keys(keys, "broker_up", {"id", "clean"}, {"id"})
        broker = self._known(keys["id"])
        self._store.register(broker, clean=bool(keys.get("clean", False)), rack=self._racks[broker])
        self._tell(self._store.brokers_read())

    def _create_topic(self, argument: Any) -> None:
        known = {"name", "partitions", "count", "replication_factor", "config"}
        keys = expect_keys(argument, "create_topic", known, {"name"})
        assignment = keys.get("partitions")
        creation = CreateTopic(
            name=str(keys["name"]),
            partitions=keys.get("count"),
            replication_factor=keys.get("replication_factor"),
            assignment=None if assignment is None else {p: tuple(found) for p, found in assignment.items()},
            config=expect_mapping(keys.get("config", {}), "config"),
        )
        self._tell(
            TopicRequested(request=1, creation=creation, topic_id=f"id-{creation.name}-{len(self._store.topics)}")
        )

    def _isr(self, argument: Any) -> None:
        for name, wanted in expect_mapping(argument, "isr").items():
            partition = self._partition_named(str(name))
            stored = self._store.partitions[partition]
            self._write_isr(partition, frozenset(self._all_known(wanted, "isr")), stored.version, {})

    def _stale_isr(self, argument: Any) -> None:
        for name, wanted in expect_mapping(argument, "stale_isr").items():
            keys = expect_keys(wanted, f"stale_isr {name}", {"isr", "epoch", "version", "fetched_at"}, {"isr"})
            partition = self._partition_named(str(name))
            stored = self._store.partitions[partition]
            before = stored
            fetched_at = {
                self._known(broker): self._broker_epoch(broker, epoch)
                for broker, epoch in expect_mapping(keys.get("fetched_at", {}), "fetched_at").items()
            }
            self._write_isr(
                partition,
                frozenset(expect_ints(keys["isr"], "isr")),
                expect_int(keys.get("version", stored.version), "version"),
                fetched_at,
                leader_epoch=expect_int(keys.get("epoch", stored.state.leader_epoch), "epoch"),
            )
            if self._errors == "none" or self._store.partitions[partition] != before:
                raise Mismatch(f"stale_isr of {name}", "refused, nothing changed", self._store.partitions[partition])

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
        if state.leader is None:
            raise BadScenario(f"{partition} has no leader that could write its ISR")
        epochs = {broker: found.epoch for broker, found in self._store.broker_epochs.items()}
        joining = {broker: fetched_at.get(broker, epochs.get(broker, 0)) for broker in sorted(isr - state.isr)}
        wanted = changed(state, isr, joining)
        if leader_epoch is not None:
            wanted = msgspec.structs.replace(wanted, leader_epoch=leader_epoch)
        write = IsrWrite(
            partition=partition,
            topic_id=self._store.topics[partition.topic].state.topic_id,
            broker=state.leader,
            broker_epoch=epochs[state.leader],
            state=wanted,
            version=version,
            joining=joining,
        )
        refused = self._store.change_isr(write)
        if refused is not None:
            self._errors = refused.code
        else:
            self._tell(PartitionsRead({partition: self._store.partitions[partition]}))

    def _failover(self, argument: Any) -> None:
        expect_keys(argument, "controller_failover", set())
        self._loop = self._controller()
        self._tell(TookOver())

    def _wait(self, argument: Any) -> None:
        milliseconds(argument, "wait")  # a controller that runs no unclean recovery has no timers

    def _crash_after_writes(self, argument: Any) -> None:
        self._dies_after = expect_int(argument, "crash_after_writes")

    # Expectations

    def _partition_named(self, name: str) -> TopicPartition:
        topic, _, number = name.rpartition("-")
        if topic not in self._names or not number.isdecimal():
            raise BadScenario(f"{name!r} is no partition of {sorted(self._names)}")
        return TopicPartition(topic, int(number))

    def check_names(self, expected: dict[Any, Any]) -> None:
        for key in expected:
            self._expectation(str(key))

    def _expectation(self, key: str) -> Callable[[Any], None]:
        plain: dict[str, Callable[[Any], None]] = {
            "sent": self._expect_sent,
            "not_sent": self._expect_not_sent,
            "writes_at_most": self._expect_writes,
            "error": lambda wanted: check_error(wanted, self._errors),
            "config": self._expect_config,
            "metrics": lambda wanted: check_fields("metrics", wanted, health.metrics(self._loop.cluster)),
        }
        if key in plain:
            return plain[key]
        if key in self._names:
            return lambda wanted: check_fields(key, wanted, self._topic_found(key))
        name, at, broker = key.partition("@")
        partition = self._partition_named(name)
        if at:
            replica = self._known(int(broker) if broker.isdecimal() else broker)
            return lambda wanted: check_fields(key, wanted, {"state": self._replica_state(partition, replica)})
        return lambda wanted: check_fields(key, wanted, self._partition_found(partition))

    def expect(self, key: Any, wanted: Any) -> None:
        self._expectation(str(key))(wanted)

    def _partition_found(self, partition: TopicPartition) -> dict[str, Any]:
        """As persisted: read from the store, not from the controller's memory."""
        topic = self._store.topics.get(partition.topic)
        replicas = () if topic is None else topic.state.partitions.get(partition.partition, ())
        stored = self._store.partitions.get(partition)
        state = stored.state if stored is not None else None
        waits = waiting(self._loop.cluster, partition) if replicas else None
        return {
            "state": health.partition_state(replicas, state),
            "replicas": replicas,
            "racks": len({self._racks.get(broker) or broker for broker in replicas}),
            "leader": _NO_LEADER if state is None or state.leader is None else state.leader,
            "leader_epoch": None if state is None else state.leader_epoch,
            "partition_epoch": None if stored is None else stored.version,
            "isr": frozenset() if state is None else state.isr,
            "elr": frozenset() if state is None else state.elr,
            "last_known_elr": frozenset() if state is None else state.last_known_elr,
            "last_known_leader": _NO_LEADER
            if state is None or state.last_known_leader is None
            else state.last_known_leader,
            "recovering": state is not None and state.recovering,
            "waiting_for": None if waits is None else waits.reason,
        }

    def _replica_state(self, partition: TopicPartition, replica: BrokerId) -> str:
        topic = self._store.topics.get(partition.topic)
        replicas = () if topic is None else topic.state.partitions.get(partition.partition, ())
        return health.replica_state(replicas, replica, self._store.brokers.live)

    def _topic_found(self, topic: str) -> dict[str, Any]:
        stored = self._store.topics.get(topic)
        return {
            "state": "nonexistent" if stored is None else "online",
            "partitions": 0 if stored is None else len(stored.state.partitions),
        }

    def _expect_sent(self, wanted: Any) -> None:
        for one in _commands_wanted(wanted):
            if not self._was_sent(one):
                raise Mismatch("sent", one, self._sent_shown())

    def _expect_not_sent(self, wanted: Any) -> None:
        for one in _commands_wanted(wanted):
            if self._was_sent(one):
                raise Mismatch("not_sent", one, self._sent_shown())

    def _was_sent(self, wanted: dict[str, Any]) -> bool:
        reached: set[str] = set()
        found = False
        for broker, command in self._sent:
            if wanted.get("to", broker) != broker or wanted["kind"] != _KINDS[type(command)]:
                continue
            if wanted.get("init", getattr(command, "init", False)) != getattr(command, "init", False):
                continue
            found = True
            reached.update(f"{partition.topic}-{partition.partition}" for partition in command.partitions)
        return found and reached.issuperset(wanted.get("partitions", ()))

    def _sent_shown(self) -> list[str]:
        return [
            f"{_KINDS[type(command)]} to {broker}: {[f'{p.topic}-{p.partition}' for p in command.partitions]}"
            for broker, command in self._sent
        ]

    def _expect_writes(self, wanted: Any) -> None:
        if self._store.round_trips > expect_int(wanted, "writes_at_most"):
            raise Mismatch("writes_at_most", wanted, self._store.round_trips)

    def _expect_config(self, wanted: Any) -> None:
        check_fields("config", wanted, msgspec.to_builtins(self._loop.cluster.settings))


def _racks(document: Any) -> dict[BrokerId, str | None]:
    if isinstance(document, list):
        return dict.fromkeys(expect_ints(document, "brokers"))
    found = expect_mapping(document, "brokers").items()
    return {
        expect_int(broker, "a broker"): expect_keys(keys or {}, f"broker {broker}", {"rack"}).get("rack")
        for broker, keys in found
    }


def _leader(value: Any) -> BrokerId | None:
    return None if expect_int(value, "a leader") == _NO_LEADER else int(value)


def _commands_wanted(wanted: Any) -> list[dict[str, Any]]:
    if not isinstance(wanted, list):
        raise BadScenario(f"`sent` is a list of commands, not {wanted!r}")
    known = {"to", "kind", "partitions", "init", "delete"}
    found = [expect_keys(one, "a command", known, {"kind"}) for one in wanted]
    for one in found:
        if one["kind"] not in _KINDS.values():
            raise BadScenario(f"no command is of kind {one['kind']!r}; there are {', '.join(sorted(_KINDS.values()))}")
        if "delete" in one:
            raise BadScenario("`delete` belongs to stop_replica, which the controller does not send yet")
    return found

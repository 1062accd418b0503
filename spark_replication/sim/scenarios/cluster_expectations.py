"""What a cluster scenario may expect of the state after a step, and how that is found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import asdict

from spark_replication.core.controller.cluster import ClusterState
from spark_replication.core.controller.plan import Reply
from spark_replication.core.controller.settling import waiting
from spark_replication.core.law.states import partition_state
from spark_replication.messages.commands import Command, GetReplicaLogInfo, LeaderAndIsr, StopReplica, UpdateMetadata
from spark_replication.model import BrokerId, PossibleLoss, TopicPartition
from spark_replication.sim.judges.story import loss_of
from spark_replication.sim.scenarios.expectation import (
    BadScenario,
    Mismatch,
    check_error,
    check_fields,
    expect_int,
    expect_keys,
    same,
)
from spark_replication.sim.scenarios.scenario_tables import ScenarioTables
from spark_replication.sim.scenarios.zookeeper_at_once import ZooKeeperAtOnce
from spark_replication.view.cluster_metrics import metrics

_NO_LEADER = -1
_KINDS: dict[type, str] = {
    LeaderAndIsr: "leader_and_isr",
    StopReplica: "stop_replica",
    UpdateMetadata: "update_metadata",
    GetReplicaLogInfo: "get_replica_log_info",
}
_FLAGS = {"init": "leader_and_isr", "delete": "stop_replica"}


class StepResult(msgspec.Struct):
    """What a step has come to."""

    cluster: ClusterState
    sent: Sequence[tuple[BrokerId, Command]]
    reply: Reply
    remaining: Sequence[TopicPartition] | None


class ClusterExpectations:
    """The expectations of a cluster scenario. Partitions are read from the store, not from a controller's memory: what
    is persisted counts."""

    def __init__(
        self,
        store: ZooKeeperAtOnce,
        tables: ScenarioTables,
        racks: Mapping[BrokerId, str | None],
        names: set[str],
    ) -> None:
        self._store = store
        self._tables = tables
        self._racks = racks
        #: The topics that expectations may name.
        self._names = names

    def partition_named(self, name: str) -> TopicPartition:
        topic, _, number = name.rpartition("-")
        if topic not in self._names or not number.isdecimal():
            raise BadScenario(f"{name!r} is no partition of {sorted(self._names)}")
        return TopicPartition(topic, int(number))

    def check_names(self, expected: dict[Any, Any]) -> None:
        for key in expected:
            self._expectation(str(key))

    def expect(
        self,
        key: str,
        wanted: Any,
        cluster: ClusterState,
        sent: Sequence[tuple[BrokerId, Command]],
        reply: Reply,
        remaining: Sequence[TopicPartition] | None,
    ) -> None:
        self._expectation(key)(wanted, StepResult(cluster, sent, reply, remaining))

    def _expectation(self, key: str) -> Callable[[Any, StepResult], None]:
        plain: dict[str, Callable[[Any, StepResult], None]] = {
            "sent": _expect_sent,
            "not_sent": _expect_not_sent,
            "writes_at_most": self._expect_writes,
            "error": _expect_error,
            "remaining": _expect_remaining,
            "config": _expect_config,
            "metrics": lambda wanted, found: check_fields("metrics", wanted, asdict(metrics(found.cluster))),
        }
        if key in plain:
            return plain[key]
        if key in self._names:
            return lambda wanted, _: check_fields(key, wanted, self._topic_found(key))
        name, at, broker = key.partition("@")
        partition = self.partition_named(name)
        if not at:
            return lambda wanted, found: check_fields(key, wanted, self._partition_found(partition, found.cluster))
        if not broker.isdecimal() or int(broker) not in self._racks:
            raise BadScenario(f"broker {broker} of {key!r} is not among {sorted(self._racks)}")
        return lambda wanted, found: check_fields(
            key, wanted, {"state": found.cluster.replica_state(partition, int(broker))}
        )

    def _expect_writes(self, wanted: Any, found: StepResult) -> None:
        if self._store.round_trips > expect_int(wanted, "writes_at_most"):
            raise Mismatch("writes_at_most", wanted, self._store.round_trips)

    def _partition_found(self, partition: TopicPartition, cluster: ClusterState) -> dict[str, Any]:
        topic = self._store.topics.get(partition.topic)
        replicas = () if topic is None else topic.state.partitions.get(partition.partition, ())
        stored = self._store.partitions.get(partition) if replicas else None
        state = stored.state if stored is not None else None
        waits = waiting(cluster, partition) if replicas else None

        def moving(of: str) -> frozenset[BrokerId]:
            return frozenset() if topic is None else frozenset(getattr(topic.state, of).get(partition.partition, ()))

        return {
            "state": partition_state(replicas, state),
            "replicas": replicas,
            "adding": moving("adding"),
            "removing": moving("removing"),
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
            "start_at": 0 if state is None else state.lowest_offset,
            "possible_loss": _told_loss(None if state is None else loss_of(state)),
            "waiting_for": None if waits is None else waits.reason,
            "table_end": self._tables.version(partition).end_of(partition.partition) or 0,
            "table_epoch": self._tables.version(partition).epoch_of(partition.partition),
        }

    def _topic_found(self, topic: str) -> dict[str, Any]:
        stored = self._store.topics.get(topic)
        return {
            "state": "nonexistent" if stored is None else "online",
            "partitions": 0 if stored is None else len(stored.state.partitions),
        }


def _told_loss(loss: PossibleLoss | None) -> dict[str, Any] | str:
    if loss is None:
        return "none"
    return {
        "from_offset": "unknown" if loss.from_offset is None else loss.from_offset,
        "records_max": "unknown" if loss.records_max is None else loss.records_max,
        "epochs": [loss.first_epoch, loss.last_epoch],
    }


def _expect_error(wanted: Any, found: StepResult) -> None:
    """Check the error of the whole request or, if errors are given by name, of each named partition or topic."""
    whole = "none" if found.reply.error is None else found.reply.error.code
    codes = {name: error.code for name, error in found.reply.errors.items()}
    if isinstance(wanted, dict) and "one_of" not in wanted and "not" not in wanted:
        for name, code in wanted.items():
            check_error(code, codes.get(str(name), whole))
    elif wanted == "any" or len(set(codes.values())) <= 1:
        check_error(wanted, next(iter(codes.values()), whole))
    else:
        raise Mismatch("error", wanted, codes)


def _expect_remaining(wanted: Any, found: StepResult) -> None:
    if found.remaining is None:
        raise BadScenario("`remaining` belongs to a step with controlled_shutdown")
    remaining = frozenset(str(partition) for partition in found.remaining)
    if not same(wanted, remaining):
        raise Mismatch("remaining", wanted, sorted(remaining))


def _expect_config(wanted: Any, found: StepResult) -> None:
    check_fields("config", wanted, msgspec.to_builtins(found.cluster.settings))


def _expect_sent(wanted: Any, found: StepResult) -> None:
    for one in _commands_wanted(wanted):
        reached = _reached(one, found.sent)
        if reached is None or not reached.issuperset(one.get("partitions", ())):
            raise Mismatch("sent", one, _shown(found.sent))


def _expect_not_sent(wanted: Any, found: StepResult) -> None:
    for one in _commands_wanted(wanted):
        reached = _reached(one, found.sent)
        if reached is not None and (not one.get("partitions") or reached.intersection(one["partitions"])):
            raise Mismatch("not_sent", one, _shown(found.sent))


def _reached(wanted: dict[str, Any], sent: Sequence[tuple[BrokerId, Command]]) -> set[str] | None:
    """The partitions of all such commands. None if there was no such command."""
    reached: set[str] = set()
    found = False
    for broker, command in sent:
        if wanted.get("to", broker) != broker or wanted["kind"] != _KINDS[type(command)]:
            continue
        if "init" in wanted and getattr(command, "init", None) != wanted["init"]:
            continue
        for partition in command.partitions:
            if "delete" not in wanted or getattr(partition, "delete", None) == wanted["delete"]:
                found = True
                reached.add(str(partition.topic_partition))
        found = found or not command.partitions
    return reached if found else None


def _shown(sent: Sequence[tuple[BrokerId, Command]]) -> list[str]:
    return [
        f"{_KINDS[type(command)]} to {broker}: {[str(partition.topic_partition) for partition in command.partitions]}"
        for broker, command in sent
    ]


def _commands_wanted(wanted: Any) -> list[dict[str, Any]]:
    if not isinstance(wanted, list):
        raise BadScenario(f"`sent` is a list of commands, not {wanted!r}")
    known = {"to", "kind", "partitions", *_FLAGS}
    found = [expect_keys(one, "a command", known, {"kind"}) for one in wanted]
    for one in found:
        if one["kind"] not in _KINDS.values():
            raise BadScenario(f"no command is of kind {one['kind']!r}; there are {', '.join(sorted(_KINDS.values()))}")
        for flag, kind in _FLAGS.items():
            if flag in one and one["kind"] != kind:
                raise BadScenario(f"`{flag}` belongs to {kind}, not to {one['kind']}")
    return found

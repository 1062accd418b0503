"""What follows in our cluster when a broker or the controller is lost, until every change is stored, every new leader
has confirmed, and the Delta table shows it.

No measured process is asked anything meanwhile. Afterwards ZooKeeper tells when each leaderAndISR was written, the
controller's log when each broker's answer came, and the table's own history what it showed since when.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Literal

from deltalake import DeltaTable

from spark_replication.admin.bench.harness import Measure, Measured
from spark_replication.admin.bench.side import BROKERS, Led
from spark_replication.admin.bench.zookeeper_view import (
    ControllerLog,
    FirstSeen,
    eventually,
    sequential_write_s,
    session_with,
    stored,
)
from spark_replication.live.local_cluster import LocalCluster
from spark_replication.mirror.delta.reading import rows_of
from spark_replication.mirror.tables.partitions import PARTITIONS
from spark_replication.model import BrokerId, Epoch, PartitionState, Scalar, TopicPartition, decode, encode
from spark_replication.zk import paths
from spark_replication.zk.operations import Node
from spark_replication.zk.session import Session

LED = Measure("partitions that it led", "", None)
CHANGED = Measure("leaderAndISRs that changed", "", None)
GONE = Measure("its registration is gone", "ms")
ELECTED = Measure("each has a new leader", "ms")
ACTIVE = Measure("each new leader has confirmed", "ms")
STORED = Measure("all changes are stored", "ms")
SHOWN = Measure("the Delta table shows them", "ms")
SINCE_GONE = {each: Measure(f"{each.name}, since it was gone", "ms") for each in (ELECTED, ACTIVE, STORED)}
SEQUENTIAL = Measure("as many conditional writes, one at a time", "ms", None)
SEQUENTIAL_RATIO = Measure("these, by what storing took", "", None)

WON = Measure("another holds /controller", "ms")
LOADED = Measure("it has read everything", "ms")
TOLD = Measure("each broker has been told", "ms")
END_TIMEOUT_S = 30.0

#: restarted: the process that LocalCluster starts in place of the dead one. It knows by the lock on its directory that
#: its predecessor is dead. standby: as the driver of another Spark application, which only the session's end tells.
Successor = Literal["restarted", "standby"]


class BrokerLoss:
    def __init__(self, cluster: LocalCluster, topic: str, led: Led, *, silently: bool) -> None:
        self._cluster = cluster
        self._led = {TopicPartition(topic, partition) for partition in led.partitions}
        self._topic = topic
        self._victim = led.broker
        self._running = ExitStack()
        self._session = self._running.enter_context(session_with(cluster))
        self._before = stored(self._session, topic)
        first = TopicPartition(topic, led.partitions[0])
        self._gone = FirstSeen(self._session, paths.broker_id(led.broker), lambda node: node is None)
        is_led = partial(_is_led_by_another, first, led.broker)
        self._elected = FirstSeen(self._session, paths.leader_and_isr(first), is_led)
        self._log = ControllerLog(cluster.directory / "controller" / "log")
        self.at_ns = time.time_ns()
        if silently:
            os.kill(cluster.brokers[led.broker].pid, signal.SIGSTOP)
        else:
            cluster.kill_broker(led.broker)

    def wait_led(self) -> None:
        _ = self._active_s

    @cached_property
    def _active_s(self) -> float:
        """When the last new leader had confirmed."""
        self._elected.wait("has another leader")
        assert self._elected.node is not None, "it is led"
        confirmed = partial(self._log.first_told, self._elected.node.modified_ms / 1_000)
        eventually(lambda: len(confirmed()) == BROKERS - 1, "all new leaders have confirmed")
        return max(confirmed().values())

    def measured(self) -> Measured:
        with self._running:
            return self._measured(self._session)

    def _measured(self, session: Session) -> Measured:
        gone_s, active_s = self._gone.wait("is gone"), self._active_s
        leader_epochs = {
            partition: found.state.leader_epoch
            for partition, found in stored(session, self._topic).items()
            if partition in self._led
        }
        shown_s = confirmed_in_table_s(self._cluster.mirror_path, leader_epochs)
        after = stored(session, self._topic)
        for partition in self._led:
            leader = after[partition].state.leader
            assert leader not in (None, self._victim), f"{partition} is led by {leader}"
        changed = [found for partition, found in after.items() if found.state != self._before[partition].state]
        sequential_ms = 1_000 * sequential_write_s(session, encode(changed[0].state), len(changed))
        at_s = {
            GONE: gone_s,
            ELECTED: max(after[partition].at_s for partition in self._led),
            ACTIVE: active_s,
            STORED: max(found.at_s for found in changed),
            SHOWN: shown_s,
        }
        took_ms = {measure: 1_000 * found_s - self.at_ns / 1e6 for measure, found_s in at_s.items()}
        return of_loss(took_ms, led=len(self._led), changed=len(changed), sequential_ms=sequential_ms)


def of_loss(took_ms: Measured, *, led: int, changed: int, sequential_ms: float) -> Measured:
    """took_ms: since the loss. What it took since the broker was gone is a millisecond at least: ZooKeeper tells times
    in whole ones."""
    since_gone = {other: max(1.0, took_ms[each] - took_ms[GONE]) for each, other in SINCE_GONE.items()}
    return {
        LED: led,
        CHANGED: changed,
        **took_ms,
        **since_gone,
        SEQUENTIAL: sequential_ms,
        SEQUENTIAL_RATIO: sequential_ms / since_gone[SINCE_GONE[STORED]],
    }


def _is_led_by_another(partition: TopicPartition, victim: BrokerId, node: Node | None) -> bool:
    return node is not None and decode(node.data, PartitionState, str(partition)).leader != victim


def confirmed_in_table_s(mirror_path: str, leader_epochs: Mapping[TopicPartition, Epoch]) -> float:
    """When the table came to show that the leader of each partition has confirmed at this epoch."""
    table = DeltaTable(PARTITIONS.path(mirror_path))

    def shows_all() -> bool:
        rows = rows_of(table, ["topic", "partition", "active_epoch"], "NOT deleted").to_pylist()
        shown = {TopicPartition(row["topic"], row["partition"]): row["active_epoch"] for row in rows}
        return all(shown.get(partition) == epoch for partition, epoch in leader_epochs.items())

    def newest_shows_all() -> bool:
        table.update_incremental()
        return shows_all()

    eventually(newest_shows_all, "the table shows every new leader as confirmed")
    shown_s = 0.0
    for commit in table.history():  # the newest first
        table.load_as_version(commit["version"])
        if not shows_all():
            break
        shown_s = commit["timestamp"] / 1_000
    return shown_s


def controller_lost(cluster: LocalCluster, successor: Successor, settings: Mapping[str, Scalar]) -> Measured:
    """Kill the controller: what its successor took. settings: those that the other one starts with."""
    log = cluster.directory / "controller" / "log"
    with session_with(cluster) as session:
        resigned = cluster.controller_pid
        assert resigned is not None, "a healthy cluster has a controller"
        if successor == "restarted":
            return _killed(session, log, resigned)
        with _other_controller(cluster, settings) as (other, other_log):
            stood_by = _stood_by(log)
            os.kill(resigned, signal.SIGTERM)  # the other one takes over, and the first stands by
            ControllerLog(other_log, from_start=True).wait_init(BROKERS)
            eventually(lambda: _stood_by(log) > stood_by, "the first controller's process is there again")
            return _killed(session, log, other.pid)


def _killed(session: Session, path: Path, pid: int) -> Measured:
    """Kill the controller of this pid, whose successor logs to this path."""
    holder = session.read_now(paths.CONTROLLER)
    assert holder is not None, "it is held"
    won = FirstSeen(session, paths.CONTROLLER, lambda node: node is not None and node.owner != holder.owner)
    log = ControllerLog(path)
    killed_s = time.time()
    os.kill(pid, signal.SIGKILL)
    won_s = won.wait("is another's")
    log.wait_init(BROKERS)
    at_s = {WON: won_s, LOADED: log.loaded_s[-1], TOLD: log.told[-1].at_s}
    return {measure: max(1.0, 1_000 * (found_s - killed_s)) for measure, found_s in at_s.items()}


@contextmanager
def _other_controller(
    cluster: LocalCluster, settings: Mapping[str, Scalar]
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Another controller of the same cluster, in a directory of its own."""
    directory = cluster.directory / f"standby-{time.time_ns()}"
    directory.mkdir()
    command = (
        sys.executable,
        "-m",
        "spark_replication.live.controller.process",
        f"--directory={directory}",
        f"--mirror={cluster.mirror_path}",
        f"--zookeeper={cluster.zookeeper.removeprefix('zk://').partition('/')[0]}",
        f"--settings={json.dumps(dict(settings))}",
    )
    path = directory / "log"
    with path.open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        eventually(lambda: _stood_by(path) > 0, "the other controller stands by")
        yield process, path
    finally:
        process.kill()
        process.wait(END_TIMEOUT_S)


def _stood_by(log: Path) -> int:
    """How often the controller that logs to this path stood by."""
    return log.read_bytes().count(b"standing by")

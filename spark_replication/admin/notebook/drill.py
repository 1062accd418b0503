"""A small drill: kill -9 of a leader's broker under load, in a cluster that this process has started.

admin.drill kills executors and drivers, too, and so starts a Spark cluster of its own, for minutes. This drill takes
seconds, and ends no process but a broker of the LocalCluster or SparkCluster that it is given.
"""

from __future__ import annotations

import io
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec

from spark_replication.admin.drill.figures import History, Line, history, led_by, longest_wait_ms
from spark_replication.admin.drill.load import SCHEMA, Record, lines_of, produce
from spark_replication.client.asking.admin import Admin
from spark_replication.client.asking.descriptions import PartitionDescription
from spark_replication.client.asking.markup import joined, paragraph, styled, table
from spark_replication.client.finding.deadline import Deadline
from spark_replication.client.producing.producer import Producer
from spark_replication.client.reading.reader import Reader
from spark_replication.errors import InvalidRequest, ReplicationError, RequestTimedOut
from spark_replication.model import BrokerId, PartitionNumber
from spark_replication.process.loopback import require_loopback

if TYPE_CHECKING:
    from spark_replication.live.local_cluster import LocalCluster
    from spark_replication.spark.cluster import SparkCluster

PARTITIONS = 6
REPLICAS_MAX = 3
QUIET_S = 2.0
WATCHED_S_MIN = 2.0  # after the kill, even if all is well before
SETTLE_TIMEOUT_S = 60.0
PRODUCER_DEADLINE_MS = 60_000
POLL_S = 0.05


class DrillResult(msgspec.Struct, frozen=True, kw_only=True):
    broker: BrokerId
    pid: int
    #: The partitions of the drill's topic that it led.
    led: tuple[PartitionNumber, ...]
    #: The longest wait of each partition for an acknowledgement, while all was quiet.
    quiet_ms: dict[PartitionNumber, float]
    #: The same from the kill on.
    killed_ms: dict[PartitionNumber, float]
    #: From the kill until every replica was in sync again.
    in_sync_s: float
    #: How many rows were acknowledged.
    acknowledged: int
    #: What was read after the end, compared with what was acknowledged.
    read: History
    problems: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return not self.problems and not self.read.lost and not self.read.doubled

    def __repr__(self) -> str:
        return f"DrillResult({self._verdict}: {'; '.join(f'{what} {found}' for what, found in self._rows())})"

    def _repr_html_(self) -> str:
        verdict = styled("healthy" if self.passed else "critical", self._verdict)
        return joined(paragraph("drill: ", verdict), table(("what", "measured"), self._rows()))

    @property
    def _verdict(self) -> str:
        return "passed" if self.passed else "failed"

    def _rows(self) -> list[tuple[str, str]]:
        others = self.killed_ms.keys() - set(self.led)
        waits = [("partitions that it led", self.led), ("other partitions", sorted(others))]
        return [
            ("kill -9 of", f"broker {self.broker}, process {self.pid}"),
            *((f"longest wait, {name}", _longest(self.killed_ms, numbers)) for name, numbers in waits if numbers),
            ("longest wait before, all partitions", _longest(self.quiet_ms, [*self.quiet_ms])),
            ("every replica in sync again after", f"{self.in_sync_s:.1f} s"),
            ("rows acknowledged", str(self.acknowledged)),
            ("rows read again", f"{self.read.read}, lost {self.read.lost}, doubled {self.read.doubled}"),
            *(("problem", problem) for problem in self.problems),
        ]


def _longest(waits: Mapping[PartitionNumber, float], of: Sequence[PartitionNumber]) -> str:
    return f"{max(waits[number] for number in of):.0f} ms"


def chosen(leaders: Mapping[PartitionNumber, BrokerId | None], owned: Collection[BrokerId]) -> BrokerId:
    """A leader whose process belongs to the cluster that is drilled."""
    found = next((leader for leader in leaders.values() if leader in owned), None)
    if found is None:
        raise InvalidRequest(f"no broker of {sorted(owned)} leads a partition of the drill: wait until it is healthy")
    return found


class Drill:
    def __init__(self, admin: Admin, cluster: LocalCluster | SparkCluster) -> None:
        if admin.describe_cluster().cluster_id != cluster.admin.describe_cluster().cluster_id:
            raise InvalidRequest(f"{cluster!r} is another cluster than this one: connect to its bootstrap")
        hosts = {info.host for info in cluster.brokers.values()}
        if len(cluster.brokers) < 2:
            raise InvalidRequest("a drill kills one broker of several: start a cluster with brokers=3")
        for host in sorted(hosts):
            require_loopback(host, "a drill ends a process of this host")
        #: The connection that asks for the drill.
        self._admin = admin
        #: The cluster whose broker is killed.
        self._cluster = cluster
        self._topic = f"drill-{uuid4().hex[:8]}"

    def run(self) -> DrillResult:
        """Run the drill, on a topic of its own, which it deletes."""
        replicas = min(REPLICAS_MAX, len(self._cluster.brokers))
        config = {"min.insync.replicas": replicas - 1}
        self._admin.create_topic(self._topic, SCHEMA, PARTITIONS, replicas, config)
        try:
            return self._under_load()
        finally:
            with suppress(ReplicationError):
                self._admin.delete_topic(self._topic)

    def _under_load(self) -> DrillResult:
        lines = io.StringIO()
        record, stopping = Record(lines), threading.Event()
        where, security = self._cluster.zookeeper, self._cluster.security
        with Producer(where, security=security, deadline_ms=PRODUCER_DEADLINE_MS) as producer:
            load = threading.Thread(
                target=produce, args=(producer, self._topic, PARTITIONS, record, stopping), name="drill-load"
            )
            load.start()
            try:
                self._wait(
                    "the first rows",
                    lambda: len({line.partition for line in lines_of(lines.getvalue())}) == PARTITIONS,
                )
                began = time.time()
                time.sleep(QUIET_S)
                leaders = {each.partition: each.leader for each in self._partitions()}
                broker = chosen(leaders, self._cluster.brokers)
                pid, at = self._cluster.brokers[broker].pid, time.time()
                os.kill(pid, signal.SIGKILL)
                led = led_by(broker, leaders)
                self._wait("the killed broker to be back in sync", lambda: self._is_in_sync(led))
                in_sync_s = time.time() - at
                time.sleep(max(0.0, WATCHED_S_MIN - in_sync_s))
                until = time.time()
            finally:
                stopping.set()
                load.join()
        acknowledged = list(lines_of(lines.getvalue()))
        return DrillResult(
            broker=broker,
            pid=pid,
            led=led,
            quiet_ms=_waits(acknowledged, began, at),
            killed_ms=_waits(acknowledged, at, until),
            in_sync_s=in_sync_s,
            acknowledged=len(acknowledged),
            read=history(acknowledged, self._read()),
            problems=("the producer met an error",) if record.failed else (),
        )

    def _partitions(self) -> tuple[PartitionDescription, ...]:
        (topic,) = self._admin.describe_topics([self._topic])
        return topic.partitions

    def _is_in_sync(self, led: tuple[PartitionNumber, ...]) -> bool:
        """Whether every replica is in sync, and others lead what the broker led: before that, the controller may not
        know of the death."""
        found = self._partitions()
        moved = all(each.leader_epoch > 0 for each in found if each.partition in led)
        return moved and all(len(each.isr) == len(each.replicas) for each in found)

    def _wait(self, what: str, holds: Callable[[], bool]) -> None:
        deadline = Deadline(SETTLE_TIMEOUT_S * 1_000)
        while not holds():
            if deadline.passed:
                raise RequestTimedOut(f"the drill waited {SETTLE_TIMEOUT_S:.0f} s for {what}: see {self._cluster!r}")
            time.sleep(POLL_S)

    def _read(self) -> list[Line]:
        with Reader(self._cluster.zookeeper, security=self._cluster.security) as reader:
            return [
                Line(partition, number, offset, 0.0)
                for partition in range(PARTITIONS)
                for found in reader.read(self._topic, partition=partition)
                for offset, number in enumerate(found.batch.column(0).to_pylist(), found.base_offset)
            ]


def _waits(lines: Sequence[Line], since: float, until: float) -> dict[PartitionNumber, float]:
    times = {number: [line.at for line in lines if line.partition == number] for number in range(PARTITIONS)}
    return {number: longest_wait_ms(found, since, until) for number, found in times.items()}

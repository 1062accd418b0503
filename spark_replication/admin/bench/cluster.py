"""A cluster of many partitions to measure, and what it shows without asking the processes that are measured:
ZooKeeper's nodes with the times of their writes, and the controller's log."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from spark_replication.admin.bench import probes
from spark_replication.admin.bench.load import fill
from spark_replication.admin.bench.replicate import BROKERS, OPEN_MS, SCHEMA, Lanes, Progress, batch_of
from spark_replication.client.asking.admin import Admin
from spark_replication.client.finding.deadline import Deadline, persistently
from spark_replication.errors import RequestTimedOut
from spark_replication.live.local_cluster import LocalCluster
from spark_replication.model import BrokerId, PartitionState, Scalar, TopicPartition, decode
from spark_replication.zk import paths
from spark_replication.zk.node_watch import NodeWatch
from spark_replication.zk.operations import EXISTS, Committed, Create, Delete, Node, SetData
from spark_replication.zk.reading import Reading
from spark_replication.zk.session import Session

TOPIC = "bench"
BATCH_BYTES = 1_024
# Brokers, ZooKeeper and the load share this machine: first writes to thousands of partitions make as many files.
PATIENT = {"request.timeout.ms": 60_000}
NO_SECRETS: Mapping[str, Scalar] = {}
HEALTHY_TIMEOUT_S = 300.0
CREATE_TIMEOUT_MS = 300_000
SEEN_TIMEOUT_S = 60.0
POLL_S = 0.01
ZOOKEEPER_TIMEOUT_MS = 30_000
_TOLD = re.compile(
    r"^(?P<at>\S+ \S+) INFO \S+ broker (?P<broker>\d+) leads (?P<leads>\d+) of \d+ partitions as told(?P<init>, INIT)?$"
)
_LOADED = re.compile(r"^(?P<at>\S+ \S+) INFO \S+ controller at epoch \d+, \d+ partitions$")


class LeadershipAnswer(NamedTuple):
    """A broker's answer to a LeaderAndIsr."""

    at_s: float
    broker: BrokerId
    #: How many of the command's partitions it leads.
    leads: int
    init: bool


class Stored(NamedTuple):
    """A leaderAndISR in ZooKeeper, and when it was written."""

    state: PartitionState
    at_s: float


class Filled(NamedTuple):
    """A cluster with a topic of many partitions, of which each broker has a replica, and a record in each."""

    cluster: LocalCluster
    partitions: int
    session_ms: int
    #: The memory of each process when there was no partition: units of 1,024 bytes.
    empty_kb: Mapping[str, int]


@contextmanager
def filled(
    partitions: int, session_ms: int, progress: Progress, security: Mapping[str, Scalar] = NO_SECRETS
) -> Iterator[Filled]:
    """Start such a cluster. For a minute or more after tens of thousands of files were removed, ext4 takes long to make
    new ones: so what is measured after each other uses one cluster."""
    config = {**PATIENT, "zookeeper.session.ms": session_ms, **security}
    with LocalCluster.start(brokers=BROKERS, config=config) as cluster:
        empty_kb = {name: probes.memory_kb(pid) for name, pid in processes(cluster).items()}
        _make_topic(cluster, partitions, progress)
        yield Filled(cluster, partitions, session_ms, empty_kb)


def processes(cluster: LocalCluster) -> dict[str, int]:
    """The pid of each broker, and of the controller."""
    assert cluster.controller_pid is not None, "a healthy cluster has a controller"
    brokers = {f"broker {broker.id}": broker.pid for broker in cluster.brokers.values()}
    return {**brokers, "controller": cluster.controller_pid}


def _make_topic(cluster: LocalCluster, partitions: int, progress: Progress) -> None:
    began = time.perf_counter()
    with Admin(cluster.zookeeper, security=cluster.security, deadline_ms=CREATE_TIMEOUT_MS) as admin:
        admin.create_topic(TOPIC, SCHEMA, partitions=partitions, replication_factor=len(cluster.brokers))
    cluster.wait_healthy(HEALTHY_TIMEOUT_S)
    progress(f"{partitions} partitions are led and in sync after {time.perf_counter() - began:.1f} s")
    began = time.perf_counter()
    with session_with(cluster) as session:
        write_to_each(cluster, {partition: found.state for partition, found in stored(session).items()})
    progress(f"each has a record after {time.perf_counter() - began:.1f} s more")


@contextmanager
def session_with(cluster: LocalCluster) -> Iterator[Session]:
    address, _, chroot = cluster.zookeeper.removeprefix("zk://").partition("/")
    session = Session.connect(
        address,
        f"/{chroot}",
        session_timeout_ms=ZOOKEEPER_TIMEOUT_MS,
        request_timeout_ms=ZOOKEEPER_TIMEOUT_MS,
        login=cluster.security.zookeeper,
    )
    try:
        yield session
    finally:
        session.close()


def stored(session: Session, topic: str = TOPIC) -> dict[TopicPartition, Stored]:
    """All leaderAndISRs of the topic."""
    wanted = [TopicPartition(topic, number) for number in Reading(session).topics()[topic].state.partitions]
    nodes = session.read_many([paths.leader_and_isr(partition) for partition in wanted])
    return {
        partition: Stored(decode(node.data, PartitionState, paths.leader_and_isr(partition)), node.modified_ms / 1_000)
        for partition, node in zip(wanted, nodes, strict=True)
        if node is not None
    }


def write_to_each(cluster: LocalCluster, partitions: Mapping[TopicPartition, PartitionState]) -> None:
    """Write a batch to each partition, acks=all, by a thread for each leader. A refusal raises: all have one."""
    led: dict[BrokerId, list[int]] = {}
    for partition, state in partitions.items():
        assert state.leader is not None, f"{partition} has no leader"
        led.setdefault(state.leader, []).append(partition.partition)
    with ThreadPoolExecutor(len(led)) as writers:
        for written in [writers.submit(_write, cluster, leader, numbers) for leader, numbers in led.items()]:
            written.result()


def _write(cluster: LocalCluster, leader: BrokerId, numbers: list[int]) -> None:
    broker = cluster.brokers[leader]

    def write() -> None:
        streams = Lanes(cluster, TOPIC, numbers, batch_of(BATCH_BYTES), pids=(broker.pid,))
        try:
            fill(streams, len(numbers))
        finally:
            streams.close()

    # They are led in ZooKeeper, but the broker may not have opened all of them yet.
    persistently(write, Deadline(OPEN_MS))


def eventually(holds: Callable[[], bool], what: str, timeout_s: float = SEEN_TIMEOUT_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            raise RequestTimedOut(f"not within {timeout_s} s: {what}")
        time.sleep(POLL_S)


class FirstSeen:
    """When a node was first seen to be so. It is read at once, and by a watch whenever it changes."""

    def __init__(self, session: Session, path: str, is_so: Callable[[Node | None], bool]) -> None:
        self.at_s: float | None = None
        self.node: Node | None = None
        self._is_so = is_so
        self._path = path
        if not NodeWatch(session, path, self._read).wait_first(SEEN_TIMEOUT_S):
            raise RequestTimedOut(f"{path} was not read within {SEEN_TIMEOUT_S} s")

    def wait(self, what: str) -> float:
        eventually(lambda: self.at_s is not None, f"{self._path} {what}")
        assert self.at_s is not None, "it was seen"
        return self.at_s

    def _read(self, node: Node | None) -> None:
        if self.at_s is None and self._is_so(node):
            self.at_s, self.node = time.time(), node


class ControllerLog:
    """The log of a controller's process, from its start or from the present end on."""

    def __init__(self, path: Path, *, from_start: bool = False) -> None:
        self._path = path
        self._position = 0 if from_start else path.stat().st_size
        self._unfinished = b""
        self.told: list[LeadershipAnswer] = []
        self.loaded_s: list[float] = []

    def read(self) -> None:
        with self._path.open("rb") as log:
            log.seek(self._position)
            new = log.read()
        self._position += len(new)
        *lines, self._unfinished = (self._unfinished + new).split(b"\n")
        for line in lines:
            self._take(line.decode(errors="replace"))

    def _take(self, line: str) -> None:
        if told := _TOLD.match(line):
            self.told.append(
                LeadershipAnswer(
                    _at_s(told["at"]), int(told["broker"]), int(told["leads"]), init=told["init"] is not None
                )
            )
        elif loaded := _LOADED.match(line):
            self.loaded_s.append(_at_s(loaded["at"]))


def _at_s(text: str) -> float:
    """The time of a log line as `logging` writes it: local time, to the millisecond."""
    return datetime.strptime(text, "%Y-%m-%d %H:%M:%S,%f").astimezone().timestamp()


def sequential_write_s(session: Session, data: bytes, writes: int) -> float:
    """How long so many conditional writes take, one after the other, each of which waits for its answer. They go to a
    node of their own."""
    path = "/bench"
    session.commit_now((Create(path, data),))
    began = time.perf_counter()
    for version in range(writes):
        assert isinstance(session.commit_now((SetData(path, data, version),)), Committed), "nobody else writes it"
    took_s = time.perf_counter() - began
    session.commit_now((Delete(path, EXISTS),))
    return took_s

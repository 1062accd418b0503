"""What a cluster shows without asking the processes that are measured: ZooKeeper's nodes with the times of their
writes, and the controller's log."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from spark_replication.errors import RequestTimedOut
from spark_replication.live.local_cluster import LocalCluster
from spark_replication.model import BrokerId, PartitionState, TopicPartition, decode
from spark_replication.zk import paths
from spark_replication.zk.node_watch import NodeWatch
from spark_replication.zk.operations import EXISTS, Committed, Create, Delete, Node, SetData
from spark_replication.zk.reading import Reading
from spark_replication.zk.session import Session

HEALTHY_TIMEOUT_S = 300.0
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


def stored(session: Session, topic: str) -> dict[TopicPartition, Stored]:
    """All leaderAndISRs of the topic."""
    wanted = [TopicPartition(topic, number) for number in Reading(session).topics()[topic].state.partitions]
    nodes = session.read_many([paths.leader_and_isr(partition) for partition in wanted])
    return {
        partition: Stored(decode(node.data, PartitionState, paths.leader_and_isr(partition)), node.modified_ms / 1_000)
        for partition, node in zip(wanted, nodes, strict=True)
        if node is not None
    }


def eventually(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SEEN_TIMEOUT_S
    while not holds():
        if time.monotonic() > deadline:
            raise RequestTimedOut(f"not within {SEEN_TIMEOUT_S} s: {what}")
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

    def first_told(self, since_s: float) -> dict[BrokerId, float]:
        """When each broker first answered after an election. A living broker is told of what it leads by the election
        before anything else. Its answers to earlier commands may come at any time before that."""
        self.read()
        return {told.broker: told.at_s for told in reversed(self.told) if told.at_s >= since_s}

    def wait_init(self, brokers: int) -> None:
        """Wait until so many brokers have answered the INIT."""

        def told() -> bool:
            self.read()
            return len({each.broker for each in self.told if each.init}) == brokers

        eventually(told, "every broker has answered the INIT")

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

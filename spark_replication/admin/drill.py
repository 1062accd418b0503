"""The failover drill: kill -9 of the leader's broker, then of the driver, under load; then everything is counted.

It ends by itself, and returns 0 only if every acknowledged row is read once, at its offset, brokers were adopted, the
controller epoch rose by one, and the Delta table shows the leaders that ZooKeeper has.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console
from rich.table import Table

import spark_replication as sr
from spark_replication.admin.drill_load import SCHEMA
from spark_replication.client.settings_file import read_settings
from spark_replication.errors import RequestTimedOut, StartFailed
from spark_replication.model import BrokerId, TopicPartition
from spark_replication.spark.cluster import ClusterFile, read_cluster_file
from spark_replication.transport.security import read_security
from spark_replication.zk.broker_store import BrokerStore
from spark_replication.zk.session import Session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Leaders = dict[TopicPartition, tuple[BrokerId | None, int]]

TOPIC = "drill"
PARTITIONS = 3
START_TIMEOUT_S = 180.0
SETTLE_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
WARM_UP_S = 3.0
AFTER_BROKER_KILL_S = 8.0
HEADLESS_S = 8.0
AFTER_RESTART_S = 3.0
POLL_S = 0.05
ZOOKEEPER_MS = 10_000


class Line(msgspec.Struct, frozen=True):
    """An acknowledgement, or a row that was read."""

    partition: int
    number: int
    offset: int
    at: float


class Kill(msgspec.Struct, frozen=True):
    what: str
    at: float
    watched_s: float


class Drill:
    def __init__(self, start_cluster: Path, config: str, directory: Path, console: Console) -> None:
        self._start_cluster = start_cluster
        self._config = config
        self._security = read_security(read_settings(config))
        self._directory = directory
        self._data = directory / "data"
        self._console = console
        self._problems: list[str] = []
        self._kills: list[Kill] = []
        self._facts: list[tuple[str, str]] = []

    def run(self) -> int:
        with contextlib.ExitStack() as stack:
            driver, cluster = self._start_driver(stack)
            admin = stack.enter_context(contextlib.closing(sr.Admin(cluster.zookeeper, security=self._security)))
            admin.create_topic(TOPIC, SCHEMA, partitions=PARTITIONS)
            producer = self._load(stack, "produce", cluster)
            follower = self._load(stack, "follow", cluster)
            self._say("load runs: numbered rows with acks=all into 3 partitions, and a reader behind")
            self._wait("the first rows", lambda: len(self._lines("produce")) > PARTITIONS)
            time.sleep(WARM_UP_S)
            self._kill_leader(admin, cluster)
            pids = self._broker_pids()
            driver, after = self._kill_driver(stack, driver, cluster)
            self._compare_brokers(pids, cluster, after)
            time.sleep(AFTER_RESTART_S)
            self._end_load(producer, follower)
            self._check_rows(after)
            self._check_mirror(after)
            self._stop_driver(driver)
            self._check_nothing_is_left()
        return self._report()

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)

    def _fact(self, name: str, value: object) -> None:
        self._facts.append((name, str(value)))

    def _check(self, holds: bool, problem: str) -> None:  # noqa: FBT001 (reads as an assertion)
        if not holds:
            self._problems.append(problem)

    def _wait(self, what: str, holds: Callable[[], bool], timeout_s: float = SETTLE_TIMEOUT_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not holds():
            if time.monotonic() > deadline:
                raise RequestTimedOut(f"the drill waited {timeout_s} s for {what}: see {self._directory}")
            time.sleep(POLL_S)

    # Processes

    def _start_driver(self, stack: contextlib.ExitStack) -> tuple[subprocess.Popen[bytes], ClusterFile]:
        began = time.monotonic()
        command = [sys.executable, str(self._start_cluster), "--no-load", "--config", self._config]
        driver = self._spawn(stack, "driver", [*command, "--set", f"data.dir={self._data}"])

        def ready() -> bool:
            if driver.poll() is not None:
                raise StartFailed(f"the driver ended with {driver.poll()}: see {self._directory / 'driver.log'}")
            found = read_cluster_file(self._data)
            return found is not None and found.driver_pid == driver.pid

        self._wait("the driver", ready, START_TIMEOUT_S)
        found = read_cluster_file(self._data)
        assert found is not None
        self._say(f"driver {driver.pid} commands at epoch {found.controller_epoch}, {time.monotonic() - began:.1f} s")
        return driver, found

    def _load(self, stack: contextlib.ExitStack, what: str, cluster: ClusterFile) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "spark_replication.admin.drill_load", what, "--bootstrap", cluster.zookeeper]
        options = [
            "--config",
            self._config,
            "--topic",
            TOPIC,
            "--partitions",
            str(PARTITIONS),
            "--record",
            str(self._directory / what),
        ]
        return self._spawn(stack, what, [*command, *options])

    def _spawn(self, stack: contextlib.ExitStack, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        with (self._directory / f"{name}.log").open("ab") as output:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        stack.callback(self._end, process)
        return process

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """Only what this drill started, by its own handle."""
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _broker_pids(self) -> dict[int, int]:
        files = sorted((self._data / "logs").glob("broker-*/broker.json"))
        return {
            int(path.parent.name.removeprefix("broker-")): msgspec.json.decode(path.read_bytes())["pid"]
            for path in files
        }

    # The kills

    def _kill_leader(self, admin: sr.Admin, cluster: ClusterFile) -> None:
        leader = self._leaders(cluster)[TopicPartition(TOPIC, 0)][0]
        assert leader is not None
        pid = self._broker_pids()[leader]
        self._killed(f"broker {leader}, leader of {TOPIC}-0", pid, AFTER_BROKER_KILL_S)
        time.sleep(AFTER_BROKER_KILL_S)
        self._wait("the killed broker to be back in sync", lambda: self._all_in_sync(admin))

    def _all_in_sync(self, admin: sr.Admin) -> bool:
        (topic,) = admin.describe_topics([TOPIC])
        return all(len(p.isr) == len(p.replicas) for p in topic.partitions)

    def _kill_driver(
        self, stack: contextlib.ExitStack, driver: subprocess.Popen[bytes], before: ClusterFile
    ) -> tuple[subprocess.Popen[bytes], ClusterFile]:
        self._killed("the driver", driver.pid, HEADLESS_S)
        driver.wait()
        time.sleep(HEADLESS_S)
        driver, after = self._start_driver(stack)
        self._check(
            after.controller_epoch == before.controller_epoch + 1,
            f"the controller epoch went from {before.controller_epoch} to {after.controller_epoch}, not up by one",
        )
        return driver, after

    def _killed(self, what: str, pid: int, watched_s: float) -> None:
        self._kills.append(Kill(what, time.time(), watched_s))
        os.kill(pid, signal.SIGKILL)
        self._say(f"kill -9 {pid}: {what}")

    def _compare_brokers(self, pids: dict[int, int], before: ClusterFile, after: ClusterFile) -> None:
        now = self._broker_pids()
        self._check(now == pids, f"brokers were not adopted but started anew: {pids} became {now}")
        self._fact(
            "brokers adopted by the restarted driver", f"{sum(now.get(b) == p for b, p in pids.items())} of {len(pids)}"
        )
        self._fact("controller epoch", f"{before.controller_epoch} → {after.controller_epoch}")

    def _end_load(self, producer: subprocess.Popen[bytes], follower: subprocess.Popen[bytes]) -> None:
        producer.terminate()
        self._check(producer.wait(STOP_TIMEOUT_S) == 0, f"the producer met an error: see {self._directory}/produce.log")
        acknowledged = len(self._lines("produce"))

        def caught_up() -> bool:
            if follower.poll() is not None:
                raise StartFailed(f"the follower ended with {follower.poll()}: see {self._directory}/follow.log")
            return len(self._lines("follow")) >= acknowledged

        self._wait("the follower", caught_up)
        follower.terminate()
        self._check(follower.wait(STOP_TIMEOUT_S) == 0, f"the reader met an error: see {self._directory}/follow.log")

    # What must hold

    def _lines(self, what: str) -> list[Line]:
        return list(_lines_of(self._directory / what))

    def _check_rows(self, cluster: ClusterFile) -> None:
        """Every acknowledged row is read once, at its offset: by who followed, and by who reads from the start."""
        acknowledged = self._lines("produce")
        again = [
            Line(partition, number, offset, 0.0)
            for partition in range(PARTITIONS)
            for found in sr.Reader(cluster.zookeeper, security=self._security).read(TOPIC, partition=partition)
            for offset, number in enumerate(found.batch.column(0).to_pylist(), found.base_offset)
        ]
        for name, read in (("followed", self._lines("follow")), ("read again", again)):
            at = {(line.partition, line.offset): line.number for line in read}
            lost = sum(at.get((line.partition, line.offset)) != line.number for line in acknowledged)
            doubled = len(read) - len({(line.partition, line.number) for line in read})
            self._check(lost == 0, f"{name}: {lost} acknowledged rows are not at their offsets")
            self._check(doubled == 0, f"{name}: {doubled} rows were read twice")
            self._fact(f"rows {name}", f"{len(read)}, lost {lost}, doubled {doubled}")
        self._fact("rows acknowledged", len(acknowledged))

    def _leaders(self, cluster: ClusterFile) -> Leaders:
        """As ZooKeeper has them."""
        address, slash, chroot = cluster.zookeeper.removeprefix("zk://").partition("/")
        store = BrokerStore(
            lambda: Session.connect(
                address, slash + chroot, session_timeout_ms=ZOOKEEPER_MS, request_timeout_ms=ZOOKEEPER_MS
            )
        )
        with contextlib.closing(store):
            read = store.read_all().partitions
        return {p.topic_partition: (p.state.leader, p.state.leader_epoch) for p in read}

    def _stop_driver(self, driver: subprocess.Popen[bytes]) -> None:
        began = time.monotonic()
        driver.send_signal(signal.SIGINT)
        self._check(
            driver.wait(STOP_TIMEOUT_S) == 0, f"the driver did not stop cleanly: see {self._directory}/driver.log"
        )
        self._say(f"driver, brokers and ZooKeeper stopped, {time.monotonic() - began:.1f} s")

    def _check_mirror(self, cluster: ClusterFile) -> None:
        """The table may lag, so it has a while to show what ZooKeeper has."""
        from spark_replication.spark.session import build_session

        spark = build_session("drill", "local[1]")
        shown: Leaders = {}

        def as_in_zookeeper() -> bool:
            shown.update(_leaders_shown(spark, self._data / "mirror"))
            return shown == self._leaders(cluster)

        try:
            self._wait("the Delta table", as_in_zookeeper)
            self._fact("leaders in the Delta table", "as in ZooKeeper")
        except RequestTimedOut:
            self._check(False, f"the Delta table shows {shown}, ZooKeeper {self._leaders(cluster)}")
        finally:
            spark.stop()

    def _check_nothing_is_left(self) -> None:
        left = [pid for pid in _pids() if str(self._data).encode() in _command_line(pid)]
        self._check(not left, f"processes {left} are left")
        self._fact("processes left", len(left))

    def _report(self) -> int:
        table = Table("kill -9 of", "unavailable p50 ms", "max ms", title="longest wait for an acknowledgement")
        for kill in self._kills:
            gaps = self._gaps(kill)
            table.add_row(kill.what, f"{median(gaps):.0f}", f"{max(gaps):.0f}")
        self._console.print(table)
        for name, value in self._facts:
            self._say(f"{name}: {value}")
        for problem in self._problems:
            self._say(f"FAILED: {problem}")
        self._say("the drill failed" if self._problems else "the drill passed: nothing lost, nothing doubled")
        return 1 if self._problems else 0

    def _gaps(self, kill: Kill) -> list[float]:
        """Of each partition the longest wait for an acknowledgement around the kill."""
        longest = []
        for partition in range(PARTITIONS):
            times = [line.at for line in self._lines("produce") if line.partition == partition]
            around = [at for at in times if kill.at - 1 <= at <= kill.at + kill.watched_s]
            pairs = zip(around, [*around[1:], kill.at + kill.watched_s], strict=True)
            longest.append(max((after - before for before, after in pairs), default=kill.watched_s) * 1000)
        return longest


def _leaders_shown(spark: SparkSession, mirror: Path) -> Leaders:
    from spark_replication.mirror.load import load_partitions

    rows = load_partitions(spark, str(mirror)).collect()
    return {TopicPartition(row.topic, row.partition): (row.leader, row.leader_epoch) for row in rows}


def _lines_of(path: Path) -> Iterator[Line]:
    if not path.exists():
        return
    for text in path.read_text().splitlines():
        words = text.split(" ")
        if len(words) == 4 and words[3]:
            yield Line(int(words[0]), int(words[1]), int(words[2]), float(words[3]))


def _pids() -> list[int]:
    return [
        int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal() and int(path.name) != os.getpid()
    ]


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def run(start_cluster: Path, config: str) -> int:
    """What is in the drill's directory stays if it fails."""
    console = Console()
    directory = Path(tempfile.mkdtemp(prefix="spark_replication-drill-"))
    code = Drill(start_cluster, config, directory, console).run()
    if code == 0:
        shutil.rmtree(directory)
    else:
        console.print(f"logs and data are in {directory}", markup=False, highlight=False, soft_wrap=True)
    return code

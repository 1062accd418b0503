"""The failover drill: kill -9 of a leader's broker, of an executor and of the driver, under load; then all is counted.

It runs on a standalone Spark cluster of its own, and ends by itself. It returns 0 only if every acknowledged row is
read once, at its offset; brokers were adopted and not started anew; the controller epoch rose by one; and the Delta
table shows the leaders that ZooKeeper has.
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
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec
from rich.console import Console

import spark_replication as sr
from spark_replication.admin.drill.figures import (
    Figures,
    History,
    Kill,
    Line,
    by_partition,
    history,
    led_by,
    summary,
    waits,
)
from spark_replication.admin.drill.load import SCHEMA, lines_of
from spark_replication.admin.jobs.status_view import says_up_to_date
from spark_replication.client.finding.settings_file import read_settings
from spark_replication.errors import ReplicationError, RequestTimedOut, StartFailed
from spark_replication.live.broker.lease import LEASE_FILE, LeaseFile
from spark_replication.live.guarding.broker_file import read_broker_file
from spark_replication.live.guarding.guardian import DIRECTORY
from spark_replication.live.own_secrets import with_own_secrets
from spark_replication.mirror.asking.load import read_partitions
from spark_replication.model import BrokerId, TopicPartition, decode
from spark_replication.spark.cluster_file import ClusterFile, read_cluster_file
from spark_replication.spark.standalone import HOST, Standalone
from spark_replication.storage.disk.state_files import read_file
from spark_replication.transport.security.security import read_security
from spark_replication.zk.broker.store import BrokerStore
from spark_replication.zk.session import Session

Leaders = dict[TopicPartition, tuple[BrokerId | None, int]]

TOPIC = "drill"
PARTITIONS = 6
BROKERS = 3
SLOTS = BROKERS + 1  # one to spare, as for a user's jobs
BROKER_AIM_MS = 1_000
START_TIMEOUT_S = 240.0
SETTLE_TIMEOUT_S = 90.0
MIRROR_TIMEOUT_S = 240.0  # a MERGE has one core, which other executors share
STOP_TIMEOUT_S = 60.0
QUIET_S = 4.0
WATCHED_S_MIN = 4.0  # after a kill, even if all is well before
HEADLESS_S = 5.0
POLL_S = 0.05
ZOOKEEPER_MS = 10_000


class Lease(msgspec.Struct, frozen=True, order=True):
    """The lease of a broker, by its guardian's controller epoch and attempt."""

    controller_epoch: int
    attempt: int
    #: When the guardian took it.
    taken_at: float


class Drill:
    def __init__(self, start_cluster: Path, config: str, directory: Path, progress: Console) -> None:
        self._start_cluster = start_cluster
        self._config = config
        self._directory = directory
        self._data = directory / "data"
        self._security = read_security(with_own_secrets(read_settings(config), self._data))
        self._progress = progress
        self._began = time.monotonic()
        self._problems: list[str] = []
        self._kills: list[Kill] = []
        self._seconds: dict[str, float] = {}
        self._facts: dict[str, str] = {}

    def run(self) -> Figures:
        with contextlib.ExitStack() as stack:
            stack.callback(self._end_what_is_left)
            self._say(f"a standalone Spark cluster starts: a Master, {SLOTS} Workers with an executor each")
            spark = Standalone(self._directory, [HOST] * SLOTS)
            stack.callback(spark.stop)
            driver, cluster = self._start_driver(stack, spark, "first start")
            admin = stack.enter_context(contextlib.closing(sr.Admin(cluster.zookeeper, security=self._security)))
            admin.create_topic(TOPIC, SCHEMA, partitions=PARTITIONS)
            producer = self._load(stack, "produce", cluster)
            follower = self._load(stack, "follow", cluster)
            self._say(f"load runs: numbered rows with acks=all into {PARTITIONS} partitions, and a reader behind")
            self._wait(
                "the first rows", lambda: {line.partition for line in self._lines("follow")} == set(range(PARTITIONS))
            )
            self._stay_quiet()
            self._kill_leader(admin, cluster)
            self._kill_executor(spark, cluster)
            driver, after = self._kill_driver(stack, spark, driver, cluster)
            acknowledged = self._end_load(producer, follower)
            self._check_mirror(after)
            followed, again = self._histories(after, acknowledged)
            self._stop_driver(driver)
            spark.stop()
            self._check_nothing_is_left()
        produced, read = self._lines("produce"), self._lines("follow")
        return Figures(
            passed=not self._problems,
            problems=tuple(self._problems),
            waits=tuple(waits(kill, PARTITIONS, produced, read) for kill in self._kills),
            seconds=self._seconds,
            acknowledged=len(acknowledged),
            followed=followed,
            read_again=again,
            facts=self._facts,
        )

    def _say(self, text: str) -> None:
        at_s = time.monotonic() - self._began
        self._progress.print(f"{at_s:5.1f} s  {text}", markup=False, highlight=False, soft_wrap=True)

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

    def _start_driver(
        self, stack: contextlib.ExitStack, spark: Standalone, which: str
    ) -> tuple[subprocess.Popen[bytes], ClusterFile]:
        began = time.time()
        command = [sys.executable, str(self._start_cluster), "--no-load", "--config", self._config]
        options = ["--master", spark.url, "--brokers", str(BROKERS), "--set", f"data.dir={self._data}"]
        driver = self._spawn(stack, "driver", [*command, *options])

        def ready() -> bool:
            if driver.poll() is not None:
                raise StartFailed(f"the driver ended with {driver.poll()}: see {self._output('driver')}")
            found = read_cluster_file(self._data)
            return found is not None and found.driver_pid == driver.pid

        self._wait("the driver", ready, START_TIMEOUT_S)
        found = read_cluster_file(self._data)
        assert found is not None
        self._seconds[f"{which}: driver to active controller"] = found.active_since_ms / 1000 - began
        self._seconds[f"{which}: driver to healthy cluster"] = time.time() - began
        self._say(f"driver {driver.pid} commands at epoch {found.controller_epoch}, the cluster is healthy")
        return driver, found

    def _load(self, stack: contextlib.ExitStack, what: str, cluster: ClusterFile) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "spark_replication.admin.drill.load", what, "--bootstrap", cluster.zookeeper]
        options = ["--config", self._config, "--topic", TOPIC, "--partitions", str(PARTITIONS)]
        options += ["--data-dir", str(self._data)]
        return self._spawn(stack, what, [*command, *options, "--record", str(self._directory / what)])

    def _spawn(self, stack: contextlib.ExitStack, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        with self._output(name).open("ab") as output:
            # A session of its own: Ctrl-C is for the drill, which ends them in order.
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        stack.callback(_end, process)
        return process

    def _output(self, name: str) -> Path:
        return self._directory / f"{name}.log"

    def _broker_directories(self) -> dict[BrokerId, Path]:
        found = (self._data / "logs").glob(DIRECTORY.format("*"))
        return {int(path.name.removeprefix(DIRECTORY.format(""))): path for path in sorted(found)}

    def _broker_pids(self) -> dict[BrokerId, int]:
        files = {broker: read_broker_file(path) for broker, path in self._broker_directories().items()}
        return {broker: file.pid for broker, file in files.items() if file is not None}

    def _leases(self) -> dict[BrokerId, Lease]:
        found = {}
        for broker, directory in self._broker_directories().items():
            path = directory / LEASE_FILE
            data = read_file(path)
            if data is not None:
                file = decode(data, LeaseFile, str(path))
                found[broker] = Lease(file.controller_epoch, file.attempt, path.stat().st_mtime)
        return found

    # The kills

    def _stay_quiet(self) -> None:
        """Kill nothing for a while, to learn which waits this machine causes without a failure."""
        at = time.time()
        time.sleep(QUIET_S)
        self._kills.append(Kill(what="nothing", at=at, until=time.time()))

    def _kill_leader(self, admin: sr.Admin, cluster: ClusterFile) -> None:
        leaders = self._leaders_by_partition(cluster)
        broker = leaders[0]
        assert broker is not None
        led = led_by(broker, leaders)
        at = self._kill(self._broker_pids()[broker], f"broker {broker}, which leads partitions {_listed(led)}")
        self._wait("the killed broker to be back in sync", lambda: self._all_in_sync(admin, broker, leaders))
        self._seconds["broker killed: started again, and in sync"] = time.time() - at
        self._watched(f"broker {broker}", at, led=led, aim_ms=BROKER_AIM_MS)

    def _all_in_sync(self, admin: sr.Admin, broker: BrokerId, before: dict[int, BrokerId | None]) -> bool:
        """Whether every replica is in sync, and others lead what the broker led: before that, the controller may not
        know of the death."""
        (topic,) = admin.describe_topics([TOPIC])
        moved = all(p.leader_epoch > 0 for p in topic.partitions if before[p.partition] == broker)
        return moved and all(len(p.isr) == len(p.replicas) for p in topic.partitions)

    def _kill_executor(self, spark: Standalone, cluster: ClusterFile) -> None:
        """Kill an executor whose task guards a leader's broker: the barrier job ends, and so do all guardians."""
        pids, leases = self._broker_pids(), self._leases()
        leader = self._leaders_by_partition(cluster)[0]
        assert leader is not None
        executor = spark.executor_above(pids[leader])
        if executor is None:
            raise StartFailed(f"no executor has started broker {leader}: see {self._directory}")
        at = self._kill(executor, f"the executor that guards broker {leader}, leader of {TOPIC}-0")
        self._wait_adopted("executor killed", leases, at)
        self._watched("an executor", at, aim_ms=0)
        self._compare_brokers(pids, "after the executor's death")

    def _kill_driver(
        self, stack: contextlib.ExitStack, spark: Standalone, driver: subprocess.Popen[bytes], before: ClusterFile
    ) -> tuple[subprocess.Popen[bytes], ClusterFile]:
        pids, leases = self._broker_pids(), self._leases()
        at = self._kill(driver.pid, "the driver")
        driver.wait()
        time.sleep(HEADLESS_S)
        self._say(f"{HEADLESS_S:.0f} s without a driver: a new one starts")
        began = time.time()
        driver, after = self._start_driver(stack, spark, "restart")
        self._wait_adopted("driver started again", leases, began)
        self._watched("the driver", at, aim_ms=0)
        self._compare_brokers(pids, "by the restarted driver")
        self._check(
            after.controller_epoch == before.controller_epoch + 1,
            f"the controller epoch went from {before.controller_epoch} to {after.controller_epoch}, not up by one",
        )
        self._facts["controller epoch"] = f"{before.controller_epoch} → {after.controller_epoch}"
        return driver, after

    def _kill(self, pid: int, what: str) -> float:
        at = time.time()
        os.kill(pid, signal.SIGKILL)
        self._say(f"kill -9 {pid}: {what}")
        return at

    def _watched(self, what: str, at: float, *, led: tuple[int, ...] = (), aim_ms: int) -> None:
        time.sleep(max(0.0, at + WATCHED_S_MIN - time.time()))
        self._kills.append(Kill(what=what, at=at, until=time.time(), led=led, aim_ms=aim_ms))

    def _wait_adopted(self, what: str, before: dict[BrokerId, Lease], since: float) -> None:
        """Wait until a later guardian holds the lease of every broker."""

        def taken() -> bool:
            now = self._leases()
            return all(now[broker] > lease for broker, lease in before.items())

        self._wait("every broker to be adopted", taken)
        adopted = [lease.taken_at - since for lease in self._leases().values()]
        self._seconds[f"{what}: first broker adopted"] = min(adopted)
        self._seconds[f"{what}: all brokers adopted"] = max(adopted)
        self._say(f"all {len(adopted)} brokers have new guardians")

    def _compare_brokers(self, before: dict[BrokerId, int], when: str) -> None:
        now = self._broker_pids()
        self._check(now == before, f"brokers were not adopted {when} but started anew: {before} became {now}")
        same = sum(now.get(broker) == pid for broker, pid in before.items())
        self._facts[f"brokers adopted {when}"] = f"{same} of {len(before)}"

    def _end_load(self, producer: subprocess.Popen[bytes], follower: subprocess.Popen[bytes]) -> list[Line]:
        producer.terminate()
        self._check(producer.wait(STOP_TIMEOUT_S) == 0, f"the producer met an error: see {self._output('produce')}")
        acknowledged = self._lines("produce")

        def caught_up() -> bool:
            if follower.poll() is not None:
                raise StartFailed(f"the follower ended with {follower.poll()}: see {self._output('follow')}")
            return len(self._lines("follow")) >= len(acknowledged)

        self._wait("the follower", caught_up)
        follower.terminate()
        self._check(follower.wait(STOP_TIMEOUT_S) == 0, f"the reader met an error: see {self._output('follow')}")
        self._say(f"the load has ended: {len(acknowledged)} rows are acknowledged")
        return acknowledged

    # What must hold

    def _lines(self, what: str) -> list[Line]:
        path = self._directory / what
        return list(lines_of(path.read_text())) if path.exists() else []

    def _histories(self, cluster: ClusterFile, acknowledged: list[Line]) -> tuple[History, History]:
        """Check that every acknowledged row is read once, at its offset: by the follower, and by a new reader from the
        start."""
        with sr.Reader(cluster.zookeeper, security=self._security) as reader:
            again = [
                Line(partition, number, offset, 0.0)
                for partition in range(PARTITIONS)
                for found in reader.read(TOPIC, partition=partition)
                for offset, number in enumerate(found.batch.column(0).to_pylist(), found.base_offset)
            ]
        followed, read_again = history(acknowledged, self._lines("follow")), history(acknowledged, again)
        for name, found in (("followed", followed), ("read again", read_again)):
            self._check(found.lost == 0, f"{name}: {found.lost} acknowledged rows are not at their offsets")
            self._check(found.doubled == 0, f"{name}: {found.doubled} rows were read twice")
        return followed, read_again

    def _leaders_by_partition(self, cluster: ClusterFile) -> dict[int, BrokerId | None]:
        return {found.partition: leader for found, (leader, _) in self._leaders(cluster).items()}

    def _leaders(self, cluster: ClusterFile) -> Leaders:
        """The leaders, as ZooKeeper has them."""
        address, slash, chroot = cluster.zookeeper.removeprefix("zk://").partition("/")
        store = BrokerStore(
            lambda: Session.connect(
                address,
                slash + chroot,
                session_timeout_ms=ZOOKEEPER_MS,
                request_timeout_ms=ZOOKEEPER_MS,
                login=self._security.zookeeper,
            )
        )
        with contextlib.closing(store):
            read = store.read_all().partitions
        return {p.topic_partition: (p.state.leader, p.state.leader_epoch) for p in read}

    def _stop_driver(self, driver: subprocess.Popen[bytes]) -> None:
        began = time.monotonic()
        driver.send_signal(signal.SIGINT)
        self._check(driver.wait(STOP_TIMEOUT_S) == 0, f"the driver did not stop cleanly: see {self._output('driver')}")
        self._seconds["stop of everything"] = time.monotonic() - began
        self._say("driver, brokers and ZooKeeper have stopped")

    def _check_mirror(self, cluster: ClusterFile) -> None:
        """Check the leaders in the table. It may lag (M4), and leaders may move meanwhile: the table is read each time
        that the driver says that it is up to date."""
        began = time.monotonic()
        self._say("waiting for the Delta table to be up to date")
        self._wait("the mirror", self._mirror_up_to_date, MIRROR_TIMEOUT_S)
        self._seconds["Delta table up to date after the load's end"] = time.monotonic() - began

        def as_in_zookeeper() -> bool:
            return self._mirror_up_to_date() and _leaders_shown(self._data / "mirror") == self._leaders(cluster)

        try:
            self._wait("the Delta table to show the leaders that ZooKeeper has", as_in_zookeeper)
            self._facts["leaders in the Delta table"] = "as in ZooKeeper"
        except RequestTimedOut as error:
            self._check(False, error.message)

    def _mirror_up_to_date(self) -> bool:
        return says_up_to_date(self._output("driver").read_text(errors="replace"))

    def _check_nothing_is_left(self) -> None:
        left = self._left()
        self._check(not left, f"processes {left} are left")
        self._facts["processes left"] = str(len(left))

    def _left(self) -> list[int]:
        """The processes whose command line names the drill's directory: no others do."""
        return [pid for pid in _pids() if os.fsencode(self._directory) in _command_line(pid)]

    def _end_what_is_left(self) -> None:
        """End the processes of a drill that broke off: by design, brokers and ZooKeeper outlive a dead driver."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in self._left():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            with contextlib.suppress(RequestTimedOut):
                self._wait("the last processes to end", lambda: not self._left(), STOP_TIMEOUT_S)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process that this drill has started, by its handle."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _leaders_shown(mirror: Path) -> Leaders:
    rows = read_partitions(str(mirror)).select(["topic", "partition", "leader", "leader_epoch"]).to_pylist()
    return {TopicPartition(row["topic"], row["partition"]): (row["leader"], row["leader_epoch"]) for row in rows}


def _listed(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))


def _pids() -> list[int]:
    return [
        int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal() and int(path.name) != os.getpid()
    ]


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def run(start_cluster: Path, config: str, output: Literal["table", "json"]) -> int:
    """Run the drill, and keep its directory if it fails. JSON goes to standard output, and progress to standard error
    then."""
    progress = Console(stderr=output == "json")
    directory = Path(tempfile.mkdtemp(prefix="spark_replication-drill-"))
    try:
        figures = Drill(start_cluster, config, directory, progress).run()
    except ReplicationError:
        _keep(directory, progress)
        raise
    if output == "json":
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(figures), indent=2).decode() + "\n")
    else:
        _report(figures, Console())
    if figures.passed:
        shutil.rmtree(directory)
    else:
        _keep(directory, progress)
    return 0 if figures.passed else 1


def _keep(directory: Path, progress: Console) -> None:
    progress.print(f"logs and data are in {directory}", markup=False, highlight=False, soft_wrap=True)


def _report(figures: Figures, console: Console) -> None:
    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    say("")
    console.print(summary(figures.waits))
    say("an aim of 0: no more than after the kill of nothing. What starts anew takes CPU from everybody, too\n")
    console.print(by_partition(figures.waits))
    say("")
    for name, seconds in figures.seconds.items():
        say(f"{name}: {seconds:.1f} s")
    for name, fact in figures.facts.items():
        say(f"{name}: {fact}")
    say(f"rows acknowledged: {figures.acknowledged}")
    for name, found in (("followed", figures.followed), ("read again", figures.read_again)):
        say(f"rows {name}: {found.read}, lost {found.lost}, doubled {found.doubled}")
    for problem in figures.problems:
        say(f"FAILED: {problem}")
    say("the drill passed: nothing lost, nothing doubled" if figures.passed else "the drill failed")

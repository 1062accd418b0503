"""A cluster over the hosts of a bed, without Spark: ZooKeeper on one, controllers on some, a broker on each other."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

import spark_replication as sr
from spark_replication.config import settings_from
from spark_replication.engine.guarding.guardian_life import IN_USE
from spark_replication.errors import ReplicationError
from spark_replication.live.guarding.broker_file import BrokerFile, read_broker_file
from spark_replication.messages.commands import PartitionCommand
from spark_replication.transport.security.security import read_security
from spark_replication.view.health import problems, without_what_waits_for_people
from spark_replication.zk.broker.store import BrokerStore
from spark_replication.zk.session import Session
from tests.hosts.bed import Bed, Host, Process
from tests.hosts.links import Links
from tests.hosts.zookeeper import HostedZooKeeper, login_settings
from tests.unit.transport.test_security import broker_settings, token_settings
from tests.waiting import eventually

ZOOKEEPER = "zookeeper"
SESSION_MS = 3_000
HEALTHY_S = 90.0
START_S = 60.0
CHROOT = "/spark_replication"
SHIFTED_CLOCK = Path(__file__).parent / "shifted_clock"


class Member(msgspec.Struct, frozen=True):
    """A broker as its host's files tell of it. pid: as this machine sees it."""

    host: str
    port: int
    pid: int


class HostedCluster:
    """Over a bed that has a host `zookeeper`, the controllers' and the brokers'. Broker 1 is the first of `brokers`."""

    def __init__(
        self, bed: Bed, *, controllers: Sequence[str], brokers: Sequence[str], settings: Mapping[str, Any] = {}
    ) -> None:
        self.bed = bed
        self.links = Links(bed)
        self.settings: dict[str, Any] = {
            **token_settings(bed.directory),
            "security.token.in.clear": True,
            **login_settings(bed.directory),
            **broker_settings(bed.directory),
            "zookeeper.session.ms": SESSION_MS,
            "replica.lag.time.ms": 4_000,
            "broker.lease.ms": 0,  # no guardian is here to renew it
            "page.enabled": False,
            **settings,
        }
        self.security = read_security(settings_from(self.settings))
        self.hosts = {number: bed[name] for number, name in enumerate(brokers, start=1)}
        self.controllers = [bed[name] for name in controllers]
        self._zookeeper = HostedZooKeeper(bed, bed[ZOOKEEPER])
        self.zookeeper = f"zk://{self._zookeeper.address}{CHROOT}"
        self._processes: dict[Host, Process] = {}
        self._clocks: dict[Host, int] = {}
        self._before: dict[int, BrokerFile | None] = {}  # what the life before has left
        self._zookeeper.start()
        for host in self.controllers:
            self.start_controller(host)
        self.store = BrokerStore(self._connect)
        self.cluster_id = self.store.wait_for_cluster(START_S).cluster_id
        for number in self.hosts:
            self.launch(number)
        for number in self.hosts:
            self.wait_serving(number)
        self.admin = sr.Admin(self.zookeeper, security=self.security)
        self.wait_healthy()

    def close(self) -> None:
        """What this process has open; hosts end with their bed."""
        self.admin.close()
        self.store.close()

    # Processes

    def start_controller(self, host: Host) -> None:
        folder = self.bed.files / "controller"
        (host.files / "controller").mkdir(exist_ok=True)
        self._processes[host] = self._run(
            host,
            "spark_replication.live.controller.process",
            f"--directory={folder}",
            f"--zookeeper={self._zookeeper.address}",
            f"--host={host.address}",
            f"--mirror={folder / 'mirror'}",
            f"--settings={json.dumps(self.settings)}",
        )

    def launch(self, number: int) -> None:
        host = self.hosts[number]
        self._before[number] = self.file(number)
        self._processes[host] = self._run(
            host,
            "spark_replication.live.broker.process",
            f"--directory={self.bed.files / f'broker-{number}'}",
            f"--zookeeper={self._zookeeper.address}{CHROOT}",
            f"--broker-id={number}",
            f"--cluster-id={self.cluster_id}",
            f"--host={host.address}",
            f"--settings={json.dumps(self.settings)}",
            "--lease=1,0",
        )

    def _run(self, host: Host, module: str, *options: str) -> Process:
        shift_s = self._clocks.get(host, 0)
        environment = {"PYTHONPATH": str(SHIFTED_CLOCK), "CLOCK_SHIFT_S": str(shift_s)} if shift_s else {}
        process = host.run(sys.executable, "-m", module, *options, environment=environment)
        assert process.pid, "it is found while it lives: `brokers` is asked while hosts lose their power, too"
        return process

    def wait_serving(self, number: int) -> None:
        """As a guardian does, it starts again one whose place is still taken by the session of its life before."""

        def serves() -> bool:
            process = self._processes[self.hosts[number]]
            if process.returncode == IN_USE:
                self.launch(number)
            else:
                assert process.returncode is None, process.says()
            file = self.file(number)
            return file is not None and file != self._before[number]

        eventually(serves, f"broker {number} serves", START_S)

    def process(self, host: Host) -> Process:
        return self._processes[host]

    def file(self, number: int) -> BrokerFile | None:
        return read_broker_file(self.hosts[number].files / f"broker-{number}")

    @property
    def brokers(self) -> dict[int, Member]:
        """Those that have said where they serve."""
        found = {}
        for number, host in self.hosts.items():
            file = self.file(number)
            if host.runs and file is not None and file != self._before[number]:
                found[number] = Member(file.host, file.port, self._processes[host].pid)
        return found

    def set_clock(self, host: Host, shift_s: int) -> None:
        """It is wrong by so much, from the next start of a process there."""
        self._clocks[host] = shift_s

    def restart(self, host: Host) -> None:
        """Its process is killed, and another takes its place."""
        self._processes[host].kill()
        number = next((number for number, broker in self.hosts.items() if broker is host), None)
        if number is None:
            self.start_controller(host)
        else:
            self.launch(number)
            self.wait_serving(number)

    def power_off(self, number: int) -> None:
        host = self.hosts[number]
        host.kill()
        self.links.forget(host)

    def power_on(self, number: int) -> None:
        self.hosts[number].start()
        self.launch(number)

    # What it says

    @property
    def bootstrap(self) -> str:
        """Of brokers alone: who has it needs no ZooKeeper."""
        return ",".join(f"{member.host}:{member.port}" for member in self.brokers.values())

    def partition(self, topic: str, number: int = 0) -> PartitionCommand:
        (found,) = [each for each in self.admin.metadata([topic]).topics if each.name == topic]
        (partition,) = [each for each in found.partitions if each.partition == number]
        return partition

    def leader(self, topic: str, number: int = 0) -> int | None:
        return self.partition(topic, number).state.leader

    def wait_healthy(self, brokers: Sequence[int] | None = None) -> None:
        wanted = frozenset(self.hosts if brokers is None else brokers)
        said: list[str] = []

        def healthy() -> bool:
            try:
                said[:] = map(str, problems(without_what_waits_for_people(self.admin.metadata()), wanted))
            except ReplicationError as error:
                said[:] = [str(error)]
            return not said

        try:
            eventually(healthy, "the cluster is healthy", HEALTHY_S)
        except AssertionError as error:
            raise AssertionError(f"{error}: {said[:5]}") from None

    def _connect(self) -> Session:
        return Session.connect(
            self._zookeeper.address,
            CHROOT,
            session_timeout_ms=20_000,
            request_timeout_ms=10_000,
            login=self.security.zookeeper,
        )

"""Hosts with log directories and names of their own, more of them than brokers: guardians come to be on others, and no
broker is left behind, none made in vain.

A host is a loopback address, and a mount and a UTS namespace, which only root may make.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

import spark_replication as sr
from spark_replication.live.broker.lease import LEASE_FILE, LeaseFile
from spark_replication.live.guarding.broker_file import BrokerFile, read_broker_file
from spark_replication.spark.standalone import Standalone
from tests.live.cluster.history import SCHEMA
from tests.live.spark.applications import AUTHENTICATED, Application, clean_up, lives
from tests.live.spark.waiting import wait_for
from tests.unit.transport.test_security import token_settings

pytestmark = [
    pytest.mark.trust,
    pytest.mark.live,
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may give each host files of its own"),
]

HOSTS = ["127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5"]
LEASE_MS = 40_000  # once the first driver is gone


class Hosts:
    """What each host has where all of them think that their log.dir is."""

    def __init__(self, directory: Path, shared: Path) -> None:
        self._own = {host: directory / host for host in HOSTS}
        self._shared = shared
        for path in (shared, *self._own.values()):
            path.mkdir(parents=True)

    def within(self, host: str) -> list[str]:
        as_host = 'mount --bind "$1" "$2" && hostname "$3" && shift 3 && exec "$@"'
        name = f"host-{host.rpartition('.')[2]}"
        return ["unshare", "--mount", "--uts", "sh", "-c", as_host, "sh", str(self._own[host]), str(self._shared), name]

    def directories(self) -> dict[int, tuple[str, Path]]:
        """By broker. No id is on two hosts."""
        found = [
            (int(path.name.removeprefix("broker-")), host, path)
            for host, own in self._own.items()
            for path in own.glob("broker-*")
        ]
        by_broker = {broker: (host, path) for broker, host, path in found}
        assert len(by_broker) == len(found), found
        return by_broker

    def brokers(self) -> dict[int, BrokerFile]:
        files = {broker: read_broker_file(path) for broker, (_, path) in self.directories().items()}
        return {broker: file for broker, file in files.items() if file is not None}

    def pids(self) -> dict[int, int]:
        return {broker: file.pid for broker, file in self.brokers().items()}

    def lease(self, broker: int) -> LeaseFile:
        _, path = self.directories()[broker]
        return msgspec.json.decode((path / LEASE_FILE).read_bytes(), type=LeaseFile)

    def clean_up(self) -> None:
        for pid in self.pids().values():
            if lives(pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def test_wherever_guardians_come_to_be_no_broker_is_left_behind_and_none_is_made_in_vain(tmp_path: Path) -> None:
    data = tmp_path / "data"
    hosts = Hosts(tmp_path / "hosts", data / "logs")
    settings = {name: str(value) for name, value in token_settings(tmp_path).items()}
    spark = Standalone(tmp_path, HOSTS, hosts.within, AUTHENTICATED)
    first_driver = Application(tmp_path, spark.url, data=data, settings=settings, spark=AUTHENTICATED)
    lease = {"broker.lease.ms": str(LEASE_MS)}
    application = Application(tmp_path / "second", spark.url, data=data, settings=settings | lease, spark=AUTHENTICATED)
    try:
        first_driver.start()
        first_driver.wait_healthy()
        first = hosts.pids()
        assert sorted(first) == [1, 2, 3]
        assert len({host for host, _ in hosts.directories().values()}) == 3, "each is on a host of its own"
        with sr.Admin(first_driver.found.zookeeper, security=settings | {"data.dir": str(data)}) as admin:
            admin.create_topic("orders", SCHEMA, partitions=3, replication_factor=3)

        first_driver.kill()
        application.start()
        application.wait_healthy()
        assert hosts.pids() == first, "each has a guardian on its host again, and has been adopted"

        home, _ = hosts.directories()[2]
        number = HOSTS.index(home)
        os.kill(spark.worker_pid(number), signal.SIGKILL)  # its executor ends with it; its broker lives
        before = hosts.lease(2)
        wait_for("another to keep it", lambda: hosts.lease(2) != before)
        wait_for("it to be said", lambda: "broker 2 has no guardian on its host" in application.says())
        kept = application.says().count("broker 2 has no guardian on its host")
        # Each line of status is 5 s: for longer than its lease.
        wait_for(
            "more than a lease",
            lambda: application.says().count("broker 2 has no guardian on its host") > kept + LEASE_MS // 5_000,
        )
        assert hosts.pids() == first, "kept from elsewhere it serves on, and no other was made in its place"

        spark.start_worker(number)
        application.wait_healthy()
        assert hosts.pids() == first
        os.kill(first[2], signal.SIGKILL)
        wait_for("its guardian to start it again", lambda: hosts.pids().get(2, first[2]) != first[2])
        application.wait_healthy()
        assert sorted(hosts.directories()) == [1, 2, 3]
        application.stop()
        assert not any(lives(pid) for pid in first.values())
    finally:
        clean_up(first_driver, application)
        hosts.clean_up()
        spark.stop()

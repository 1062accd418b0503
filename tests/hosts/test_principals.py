"""A cluster over hosts as the guide says to make one: certificates of its own CA, a ZooKeeper that is closed, and
rights for one who writes and one who reads. A third may do nothing, and who has no certificate is not let in."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

import spark_replication as sr
from spark_replication.errors import BrokerNotAvailable
from tests.hosts.bed import Bed, Process
from tests.hosts.cluster import CHROOT, ZOOKEEPER, HostedCluster
from tests.waiting import eventually

CONTROLLER, LAPTOP = "driver", "laptop"
BROKERS = ("first", "second")
PRINCIPALS = ("root", "alice", "bob", "carol")
ROWS = 1_000
HEARD_S = 30.0  # within this, brokers have heard of an ACL


class Laptop:
    """A host of no broker's, on which people type what the guide says."""

    def __init__(self, cluster: HostedCluster, pki: Path) -> None:
        self._host = cluster.bed[LAPTOP]
        self._bootstrap = cluster.bootstrap
        self._pki = pki
        for name in PRINCIPALS:
            (pki / f"{name}.toml").write_text(
                f'''security.mode = "tls"
security.tls.ca.file = "{pki / "ca.pem"}"
security.tls.certificate.file = "{pki / f"{name}.pem"}"
security.tls.key.file = "{pki / f"{name}.key"}"
security.tls.mutual = true
'''
            )

    def types(self, who: str, *words: str) -> tuple[int, str]:
        process = self._host.run(
            *(sys.executable, "-m", "spark_replication", *words),
            *("-b", self._bootstrap, "--config", str(self._pki / f"{who}.toml")),
        )
        return process.wait(120.0), process.says()

    def does(self, who: str, *words: str) -> str:
        code, said = self.types(who, *words)
        assert code == 0, said
        return said

    def may_not(self, who: str, right: str, *words: str) -> None:
        code, said = self.types(who, *words)
        assert code == 1, said
        assert f"client {who} may not {right}" in said, said


def finished(process: Process) -> str:
    assert process.wait(60.0) == 0, process.says()
    return process.says()


@pytest.fixture(scope="module")
def cluster() -> Iterator[HostedCluster]:
    with Bed([ZOOKEEPER, CONTROLLER, *BROKERS, LAPTOP]) as bed:
        pki = bed.directory / "pki"
        addresses = ",".join(bed[name].address for name in (BROKERS[0], BROKERS[1], CONTROLLER))
        clients = [word for name in PRINCIPALS for word in ("--client", name)]
        made = bed[LAPTOP].run(
            *(sys.executable, "-m", "spark_replication", "certificates", str(pki), "--host", addresses, *clients)
        )
        assert "the CA" in finished(made)
        name = bed[BROKERS[0]].address
        settings: dict[str, Any] = {
            "security.mode": "tls",
            "security.token.file": "",
            "security.token.in.clear": False,
            "security.broker.token.file": "",
            "security.broker.principals": name,
            "security.super.users": "root",
            "security.tls.mutual": True,
            "security.tls.ca.file": str(pki / "ca.pem"),
            "security.tls.certificate.file": str(pki / f"{name}.pem"),
            "security.tls.key.file": str(pki / f"{name}.key"),
        }
        cluster = HostedCluster(bed, controllers=[CONTROLLER], brokers=BROKERS, settings=settings)
        yield cluster
        cluster.close()


@pytest.fixture(scope="module")
def laptop(cluster: HostedCluster) -> Laptop:
    found = Laptop(cluster, cluster.bed.directory / "pki")
    found.does("root", "topics", "create", "orders", "--schema", "number:int64", "-p", "1", "-r", "2")
    found.does("root", "acls", "add", "alice", "write", "topic", "orders")
    found.does("root", "acls", "add", "bob", "read", "prefix", "ord")
    return found


def test_one_writes_one_reads_and_a_third_is_refused_everywhere(cluster: HostedCluster, laptop: Laptop) -> None:
    rows = cluster.bed.directory / "rows.jsonl"
    rows.write_text("".join(f"{json.dumps({'number': number})}\n" for number in range(ROWS)))
    eventually(
        lambda: laptop.types("alice", "produce", "orders", str(rows))[0] == 0, "brokers have heard of it", HEARD_S
    )
    eventually(lambda: laptop.types("bob", "topics", "describe", "orders")[0] == 0, "brokers have heard of it", HEARD_S)
    read = json.loads(laptop.does("bob", "consume", "orders", "--format", "json"))
    assert [row["number"] for row in read] == [*range(ROWS)]
    laptop.may_not("alice", "read", "consume", "orders")
    laptop.may_not("bob", "write", "produce", "orders", str(rows))
    for who in ("alice", "bob"):
        laptop.may_not(who, "alter", "topics", "delete", "orders", "--yes")
    for words in (
        ("consume", "orders"),
        ("produce", "orders", str(rows)),
        ("topics", "describe", "orders"),
    ):
        laptop.may_not("carol", "describe", *words)
    laptop.may_not("carol", "alter", "topics", "delete", "orders", "--yes")
    laptop.may_not("carol", "alter", "acls", "add", "carol", "alter", "cluster")
    laptop.may_not("carol", "describe", "acls", "list")
    assert "orders" not in laptop.does("carol", "topics")
    assert "orders" in laptop.does("bob", "topics")


def test_without_a_certificate_nobody_is_let_in(cluster: HostedCluster) -> None:
    """The broker hangs up, as one does that is about to end, so a client tries again for as long as it may."""
    ca = cluster.bed.directory / "pki" / "ca.pem"
    stranger = {"security.mode": "tls", "security.tls.ca.file": str(ca)}
    with (
        sr.Admin(cluster.bootstrap, security=stranger, deadline_ms=1_000) as admin,
        sr.Reader(cluster.bootstrap, security=stranger, deadline_ms=1_000) as reader,
    ):
        for ask in (lambda: admin.describe_topics(), lambda: next(iter(reader.read("orders")))):  # noqa: PLW0108
            with pytest.raises(BrokerNotAvailable, match=r"security\.tls\.certificate\.file"):
                ask()


def test_zookeeper_takes_nothing_from_who_has_no_login(cluster: HostedCluster, laptop: Laptop) -> None:
    laptop.does("root", "topics", "describe", "orders")
    address = cluster.zookeeper.removeprefix("zk://").partition("/")[0]
    stranger = KazooClient(address)
    stranger.start(timeout=10)
    try:
        for path in ("/config/cluster", "/brokers/topics/orders", "/admin/delete_topics"):
            with pytest.raises(NoAuthError):
                stranger.get(f"{CHROOT}{path}")
            with pytest.raises(NoAuthError):
                stranger.create(f"{CHROOT}{path}/mine", b"")
    finally:
        stranger.stop()
        stranger.close()

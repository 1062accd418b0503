"""A ZooKeeper that speaks TLS alone, and asks for a certificate."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_replication.config import settings_from
from spark_replication.errors import BrokerNotAvailable
from spark_replication.process.java import find_java
from spark_replication.process.loopback import free_ports
from spark_replication.zk.login import NOBODY, Login, read_login
from spark_replication.zk.session import Session
from spark_replication.zookeeper_server.server import MAIN_CLASS, find_jars
from tests.unit.transport.certificates import Authority
from tests.waiting import eventually

pytestmark = pytest.mark.live

TIMEOUT_MS = 2_000


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


def login_of(authority: Authority, name: str) -> Login:
    issued = authority.issue(name)
    return read_login(
        settings_from(
            {
                "zookeeper.tls.ca.file": str(authority.file),
                "zookeeper.tls.certificate.file": str(issued.certificate),
                "zookeeper.tls.key.file": str(issued.key),
            }
        )
    )


@pytest.fixture(scope="module")
def address(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("zookeeper")
    (port,) = free_ports(1)
    issued = authority.issue("zookeeper")
    both = directory / "server.pem"
    both.write_bytes(issued.certificate.read_bytes() + issued.key.read_bytes())
    settings = {
        "dataDir": directory / "data",
        "secureClientPort": port,
        "secureClientPortAddress": "127.0.0.1",
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "admin.enableServer": "false",
        "ssl.keyStore.location": both,
        "ssl.trustStore.location": authority.file,
        "ssl.clientAuth": "need",
        "ssl.clientHostnameVerification": "false",
    }
    (directory / "zoo.cfg").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    with (directory / "log").open("wb") as log:
        server = subprocess.Popen(
            [find_java("ZooKeeper"), "-cp", f"{find_jars()}/*", MAIN_CLASS, str(directory / "zoo.cfg")],
            stdout=log,
            stderr=log,
        )
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def connected(address: str, login: Login) -> bool:
    try:
        session = Session.connect(
            address, "/secured", session_timeout_ms=10_000, request_timeout_ms=TIMEOUT_MS, login=login
        )
    except BrokerNotAvailable:
        return False
    found = session.read_now("/") is not None
    session.close()
    return found


def test_who_has_a_certificate_is_served_and_nobody_else(authority: Authority, address: str, tmp_path: Path) -> None:
    ours = login_of(authority, "broker")
    eventually(lambda: connected(address, ours), "it serves over TLS")
    assert not connected(address, NOBODY), "it speaks TLS alone"
    assert not connected(address, Login(tls=ours.tls[:1])), "it asks for a certificate"
    assert not connected(address, login_of(Authority(tmp_path, "another CA"), "stranger")), "of ours"

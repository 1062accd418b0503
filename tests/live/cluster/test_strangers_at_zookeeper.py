"""Other users of the host at the embedded ZooKeeper: nobody logs in, nobody ends it, nobody fills the disk through it.

The attacks run as another user, who knows where ZooKeeper listens and has no secret.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import spark_replication as sr
from spark_replication.live.own_secrets import LOGIN_FILE
from spark_replication.process.loopback import free_ports
from spark_replication.zk.session import Session
from spark_replication.zookeeper_server import layout, settings
from spark_replication.zookeeper_server.certificates import client_login, make_certificates
from spark_replication.zookeeper_server.embedded import EmbeddedZooKeeper, stop_directory
from tests.live.cluster.sides import MODES, sides
from tests.waiting import eventually

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(240),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user"),
]

SCHEMA = pa.schema([("words", pa.string())])
DEADLINE_S = 60.0
ANOTHER = 65_534
CONNECTIONS = 1_500
LOG_BYTES_PER_CONNECTION = 20
AS_ANOTHER = f"""
import os, resource, socket, struct, sys, threading, time
from kazoo.client import KazooClient
"all that is loaded later, too, while it may be read".encode("idna")
_, files = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
os.setgroups([])
os.setgid({ANOTHER})
os.setuid({ANOTHER})
"""
# Takes the port once it is free, and answers as ZooKeeper does: so clients go on to say who they are.
SQUATS = """
port = int(sys.argv[1])
taken = socket.socket()
taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
print("waits", flush=True)
while True:
    try:
        taken.bind(("127.0.0.1", port))
        break
    except OSError:
        pass
taken.listen(100)
def meets(client):
    client.settimeout(2)
    heard = b""
    try:
        heard = client.recv(1 << 16)
        client.sendall(struct.pack("!iiiqi16s?", 37, 0, 9_000, 7, 16, b"p" * 16, False))
        while more := client.recv(1 << 16):
            heard += more
    except OSError:
        pass
    print(heard.hex(), flush=True)
while True:
    client, _ = taken.accept()
    threading.Thread(target=meets, args=(client,), daemon=True).start()
"""
# Many connections, each with the same few bytes; all are held until standard input ends.
FLOODS = """
port, count, said = int(sys.argv[1]), int(sys.argv[2]), bytes.fromhex(sys.argv[3])
held = []
for _ in range(count):
    try:
        client = socket.create_connection(("127.0.0.1", port), 5)
        client.sendall(said)
        held.append(client)
    except OSError:
        pass
print(len(held), flush=True)
sys.stdin.read()
"""
# Waits at one port until somebody listens there, and writes before all others.
IS_FIRST = """
port = int(sys.argv[1])
print("waits", flush=True)
while socket.socket().connect_ex(("127.0.0.1", port)):
    time.sleep(0.001)
client = KazooClient(f"127.0.0.1:{port}", timeout=2)
try:
    client.start(2)
    client.create("/spark_replication/config/cluster", sys.argv[2].encode(), makepath=True)
    print("wrote", flush=True)
except Exception as error:
    print(repr(error), flush=True)
finally:
    client.stop()
"""


@contextmanager
def stranger(does: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", AS_ANOTHER + does, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def config_of(mode: str, directory: Path) -> dict[str, Any]:
    serving, _ = sides(mode, directory)
    return {"min.insync.replicas": 1, "page.enabled": False, **serving}


def zookeeper_of(directory: Path) -> EmbeddedZooKeeper:
    found = EmbeddedZooKeeper.found_in(directory / "zookeeper")
    assert found is not None
    return found


@pytest.mark.parametrize("mode", MODES)
def test_whoever_takes_its_port_is_sent_no_login(tmp_path: Path, mode: str) -> None:
    data = tmp_path / "data"
    with sr.LocalCluster.start(brokers=1, directory=data, config=config_of(mode, tmp_path)) as cluster:
        cluster.admin.create_topic("orders", SCHEMA, partitions=1, replication_factor=1)
        login = (data / LOGIN_FILE).read_text().strip().encode()
        (server,) = zookeeper_of(data).servers
        with stranger(SQUATS, server.place.client) as squatter:
            assert said(squatter) == "waits"
            (killed,) = cluster.zookeeper_pids
            os.kill(killed, signal.SIGKILL)
            heard = [bytes.fromhex(said(squatter)) for _ in range(6)]
            assert not any(login in each for each in heard), "a login for whoever asks"
            assert all(each[:2] in (b"\x16\x03", b"") for each in heard), "nothing but the beginning of TLS"
        eventually(lambda: cluster.zookeeper_pids not in ([], [killed]), "it has its port again", DEADLINE_S)
        cluster.wait_healthy(DEADLINE_S)
        with sr.Producer(cluster.bootstrap, security=cluster.security) as producer:
            producer.send("orders", pa.record_batch({"words": ["a"]}, SCHEMA), 0).result(DEADLINE_S)


@pytest.mark.parametrize("mode", MODES)
def test_whoever_writes_there_before_the_cluster_does_is_not_believed(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = json.dumps({"v": 1, "settings": {"security.acls": "* alter cluster;* read prefix o"}})
    data = tmp_path / "data"
    known = free_ports(1)  # to the stranger, too: other tests' ports are none of its business
    ports = iter([known])
    monkeypatch.setattr(layout, "free_ports", lambda count: next(ports, None) or free_ports(count))
    with stranger(IS_FIRST, *known, theirs) as first:
        assert said(first) == "waits"
        with sr.LocalCluster.start(brokers=1, directory=data, config=config_of(mode, tmp_path)) as cluster:
            assert [server.place.client for server in zookeeper_of(data).servers] == known
            assert cluster.admin.acls().acls == ()
            assert said(first) not in ("", "wrote")


@pytest.fixture(params=["none", "tls"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EmbeddedZooKeeper]:
    directory = tmp_path / "zookeeper"
    if request.param == "tls":
        make_certificates(directory)
    yield EmbeddedZooKeeper.start(directory, DEADLINE_S)
    stop_directory(directory)


HELD = 100
HANDSHAKE_S = 10.0
FOUR_BYTES = (0xF_FFFF).to_bytes(4, "big")  # the length of a request: 1 MiB follows
BEGUN_HANDSHAKE = bytes.fromhex("160301400001003ff0") + bytes(15_000)  # of 16 KiB


@pytest.mark.parametrize("sent", [FOUR_BYTES, BEGUN_HANDSHAKE], ids=["a length", "a handshake"])
def test_strangers_do_not_end_it_or_keep_others_out(tmp_path: Path, sent: bytes) -> None:
    directory = tmp_path / "zookeeper"
    make_certificates(directory)
    found = EmbeddedZooKeeper.start(directory, DEADLINE_S)
    try:
        (pid,) = found.pids
        with stranger(FLOODS, found.servers[0].place.client, CONNECTIONS, sent.hex()) as flood:
            assert int(said(flood)) > 0
            eventually(lambda: answers(found), "who has a certificate is served meanwhile", DEADLINE_S)
            assert found.pids == [pid]
    finally:
        found.stop()


def test_of_handshakes_that_strangers_begin_it_holds_a_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "HANDSHAKES_MAX", HELD)
    make_certificates(tmp_path)
    found = EmbeddedZooKeeper.start(tmp_path, DEADLINE_S)
    try:
        port = found.servers[0].place.client
        with stranger(FLOODS, port, 4 * HELD, BEGUN_HANDSHAKE.hex()) as flood:
            assert int(said(flood)) > HELD
            eventually(lambda: established(port) <= HELD, "it has hung up on the others", HANDSHAKE_S / 2)
            assert established(port) > HELD / 2, "before their time is over"
            eventually(lambda: answers(found), "their time is over", DEADLINE_S)
    finally:
        found.stop()


def established(port: int) -> int:
    """The connections that a server at this port of this host has."""
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    return sum(1 for line in lines if line[1].endswith(f":{port:04X}") and line[3] == "01")


def answers(found: EmbeddedZooKeeper) -> bool:
    try:
        Session.connect(
            found.address, "", session_timeout_ms=9_000, request_timeout_ms=2_000, login=client_login(found.directory)
        ).close()
    except sr.errors.ReplicationError:
        return False
    return True


def test_strangers_do_not_fill_the_disk_through_its_log(server: EmbeddedZooKeeper) -> None:
    log = server.servers[0].log_path
    before = log.stat().st_size
    wrong = (0x7FFF_FFFF).to_bytes(4, "big")
    with stranger(FLOODS, server.servers[0].place.client, CONNECTIONS, wrong.hex()) as flood:
        assert int(said(flood)) == CONNECTIONS
        eventually(lambda: answers(server), "it answers", DEADLINE_S)
        grown = log.stat().st_size - before
    assert grown < LOG_BYTES_PER_CONNECTION * CONNECTIONS, f"{grown} bytes of {CONNECTIONS} connections"

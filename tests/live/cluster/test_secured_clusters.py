"""Whole clusters in mode token and in mode tls: they work, and whoever does not belong to them harms nobody."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError
from pyarrow import flight

import spark_replication as sr
from spark_replication.client.finding.connecting import opened
from spark_replication.config import settings_from
from spark_replication.decoding import error_of
from spark_replication.engine.guarding.leases import Lease
from spark_replication.errors import (
    AuthenticationFailed,
    BrokerNotAvailable,
    ClusterAuthorizationFailed,
    InvalidConfig,
    ReplicationError,
)
from spark_replication.live.guarding.guardian import Assignment, Guardian
from spark_replication.live.own_secrets import BROKER_TOKEN_FILE
from spark_replication.messages.actions import (
    METADATA,
)
from spark_replication.messages.descriptions import GetMetadata
from spark_replication.messages.replication import ErrorFrame, HelloFrame
from spark_replication.model import EPOCH_MAX
from spark_replication.transport.flight.actions import call
from spark_replication.transport.proofs.handshake import introduce
from spark_replication.transport.sockets.frames import Channel, FrameReceiver, encoded, send
from tests.live.broker.test_slow_follower import resident_bytes
from tests.live.cluster.faults import stopped
from tests.live.cluster.impostors import OWN_TICKET, Tap, impostor
from tests.live.cluster.orders import orders, reports
from tests.unit.transport.certificates import Authority, tls_settings
from tests.unit.transport.test_security import SECRET, token_settings
from tests.waiting import eventually

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

SCHEMA = pa.schema([("number", pa.int64())])
CONFIG = {"zookeeper.session.ms": 6_000, "replica.lag.time.ms": 5_000}
TOPIC = "orders"
DEADLINE_S = 60.0
REFUSED_MS = 1_000
TIMEOUT_S = 20.0
LARGE = 128 << 20


class Secured:
    """A cluster, and who may or may not speak to it."""

    def __init__(
        self, cluster: sr.LocalCluster, settings: dict[str, Any], strangers: dict[str, dict[str, Any] | None]
    ) -> None:
        self.cluster = cluster
        self.settings = settings
        self.strangers = strangers
        #: What whoever takes a broker's place shows.
        self.impostor = sr.Security.of(strangers.get("another token") or strangers["another CA"])
        cluster.admin.create_topic(TOPIC, SCHEMA, partitions=3)
        self._next = 0

    def produced(self, count: int = 30) -> None:
        """Acks=all to each partition, and read again."""
        with sr.Producer(self.cluster.bootstrap, security=self.settings) as producer:
            sent = []
            for number in range(self._next, self._next + count):
                batch = pa.record_batch([pa.array([number])], schema=SCHEMA)
                sent.append(producer.send(TOPIC, batch, partition=number % 3))
            for future in sent:
                future.result(DEADLINE_S)
        self._next += count
        assert self.read() == list(range(self._next))

    def read(self) -> list[int]:
        with sr.Reader(self.cluster.bootstrap, security=self.settings) as reader:
            found = [batch for partition in range(3) for batch in reader.read(TOPIC, partition=partition)]
        return sorted(number for batch in found for number in batch.batch.column(0).to_pylist())


@pytest.fixture(scope="module")
def with_token(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("token")
    settings, other = token_settings(directory), tmp_path_factory.mktemp("other")
    strangers = {"nothing": None, "another token": token_settings(other, "the-secret-of-another-cluster")}
    with sr.LocalCluster.start(brokers=3, directory=directory / "cluster", config={**CONFIG, **settings}) as cluster:
        yield Secured(cluster, settings, strangers)


@pytest.fixture(scope="module")
def with_tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("tls")
    ours, theirs = Authority(directory), Authority(directory, "another CA")
    serving = tls_settings(ours, ours.issue("broker"), mutual=True)
    strangers: dict[str, dict[str, Any] | None] = {
        "plain text": None,
        "no certificate": {**tls_settings(ours, None)},
        "another CA": {**tls_settings(ours, theirs.issue("stranger"), mutual=True)},
        "trust in another CA": {**tls_settings(theirs, None)},
    }
    with sr.LocalCluster.start(brokers=3, directory=directory / "cluster", config={**CONFIG, **serving}) as cluster:
        yield Secured(cluster, {**tls_settings(ours, ours.issue("client"), mutual=True)}, strangers)


@pytest.fixture(params=["with_token", "with_tls"])
def secured(request: pytest.FixtureRequest) -> Secured:
    found: Secured = request.getfixturevalue(request.param)
    found.cluster.wait_healthy()
    return found


def test_three_brokers_acknowledge_and_serve(secured: Secured) -> None:
    secured.produced()
    (topic,) = secured.cluster.admin.describe_topics([TOPIC])
    assert all(len(partition.isr) == 3 for partition in topic.partitions)


def test_a_killed_leader_is_replaced_and_comes_back(secured: Secured) -> None:
    secured.produced()
    (topic,) = secured.cluster.admin.describe_topics([TOPIC])
    leader = topic.partitions[0].leader
    assert leader is not None
    os.kill(secured.cluster.brokers[leader].pid, signal.SIGKILL)
    secured.produced()
    secured.cluster.wait_healthy()
    secured.produced()


def test_who_does_not_belong_gets_a_clear_error_in_time_and_the_next_is_served(secured: Secured) -> None:
    for name, security in secured.strangers.items():
        batch = pa.record_batch([pa.array([-1])], schema=SCHEMA)
        with sr.Producer(secured.cluster.bootstrap, security=security, deadline_ms=REFUSED_MS) as producer:
            refused = producer.send(TOPIC, batch, 0).exception(TIMEOUT_S)
        assert isinstance(refused, (AuthenticationFailed, BrokerNotAvailable)), (name, refused)
        assert not refused.maybe_written
        assert "security." in refused.message
        with (
            sr.Reader(secured.cluster.bootstrap, security=security, deadline_ms=REFUSED_MS) as reader,
            pytest.raises((AuthenticationFailed, BrokerNotAvailable)),
        ):
            next(iter(reader.read(TOPIC)))
        admin = sr.Admin(secured.cluster.bootstrap, security=security, deadline_ms=REFUSED_MS)
        with pytest.raises((AuthenticationFailed, BrokerNotAvailable)):
            admin.delete_topic(TOPIC)
        admin.close()
        secured.produced(3)


def test_a_stranger_between_brokers_shuts_nobody_out(secured: Secured) -> None:
    """It claims to be each broker in turn, of the largest epoch that a message may carry."""
    secured.produced()
    described = secured.cluster.admin.describe_cluster()
    for target in described.brokers:
        for other in described.brokers:
            hello = HelloFrame(cluster_id=described.cluster_id, broker_id=other.id, broker_epoch=EPOCH_MAX)
            assert refusal_of(target.host, target.replication_port, hello).error == AuthenticationFailed.code
    secured.produced()
    (topic,) = secured.cluster.admin.describe_topics([TOPIC])
    assert all(len(partition.isr) == 3 for partition in topic.partitions)


def test_a_client_takes_no_brokers_place_and_gives_no_orders(secured: Secured) -> None:
    """It has all that a client has."""
    secured.produced()
    described, client = secured.cluster.admin.describe_cluster(), sr.Security.of(secured.settings)
    told = secured.cluster.admin.metadata((TOPIC,))
    topic_id = told.topics[0].topic_id
    for target in described.brokers:
        for other in described.brokers:
            hello = HelloFrame(cluster_id=described.cluster_id, broker_id=other.id, broker_epoch=other.epoch)
            with socket.create_connection((target.host, target.replication_port), timeout=TIMEOUT_S) as connection:
                channel = client.connected(connection, target.host, TIMEOUT_S)
                with pytest.raises(AuthenticationFailed, match=r"security\.broker\.token\.file"):
                    join(channel, hello, client)
        with client.client(f"{target.host}:{target.port}") as calls:
            for action, order in orders(target.id, TOPIC, topic_id):
                with pytest.raises(ClusterAuthorizationFailed, match="and only they may ask for this"):
                    call(calls, action, order, 10_000)
    assert told.controller is not None
    with client.client(told.controller) as calls:
        for action, report in reports(described.brokers[0], TOPIC, topic_id):
            with pytest.raises(ClusterAuthorizationFailed, match="and only they may ask for this"):
                call(calls, action, report, 10_000)
    secured.produced(3)
    (topic,) = secured.cluster.admin.describe_topics([TOPIC])
    assert all(len(partition.isr) == 3 for partition in topic.partitions)
    assert secured.cluster.admin.describe_cluster() == described, "nobody was removed, or registered again"


def join(channel: Channel, hello: HelloFrame, client: sr.Security) -> None:
    """As a follower does, with a client's credentials. Raises what it is refused with."""
    receiver = FrameReceiver(channel, 1 << 20)
    introduce(channel, receiver, hello, client.tokens, TIMEOUT_S)
    heard = receiver.receive_first(lambda: None)  # without a token nobody answers a hello that is taken
    assert isinstance(heard, ErrorFrame)
    raise error_of(heard.error, heard.message)


def refusal_of(host: str, port: int, hello: HelloFrame) -> ErrorFrame:
    with socket.create_connection((host, port), timeout=TIMEOUT_S) as connection:
        send(connection, encoded(hello))
        heard = FrameReceiver(connection, 1 << 20).receive_first(lambda: None)
    assert isinstance(heard, ErrorFrame)
    return heard


@pytest.mark.parametrize("garbage", [b"\xff" * 64, b"\x16\x03\x01\x02\x00" + b"\xee" * 600, b"GET / HTTP/1.1\r\n\r\n"])
def test_garbage_on_any_port_harms_nobody(secured: Secured, garbage: bytes) -> None:
    for broker in secured.cluster.admin.describe_cluster().brokers:
        for port in (broker.port, broker.replication_port):
            connection = socket.create_connection((broker.host, port), timeout=TIMEOUT_S)
            with connection, suppress(OSError):
                connection.sendall(garbage)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(1 << 16):
                    pass
    secured.produced(3)


def test_any_flight_client_reads_with_the_header(with_token: Secured) -> None:
    with_token.produced(3)
    address = with_token.cluster.bootstrap.partition(",")[0]
    headers = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {SECRET}".encode())])
    with flight.connect(f"grpc://{address}") as client:
        with pytest.raises(flight.FlightUnauthenticatedError, match=r"^AUTHENTICATION_FAILED: the call came with no"):
            client.get_flight_info(flight.FlightDescriptor.for_path(TOPIC, "0"))
        info = client.get_flight_info(flight.FlightDescriptor.for_path(TOPIC, "0"), headers)
    (endpoint,) = info.endpoints
    with flight.connect(endpoint.locations[0]) as leader:
        assert leader.do_get(endpoint.ticket, headers).read_all().num_rows > 0


def test_under_tls_endpoints_say_so(with_tls: Secured) -> None:
    with_tls.produced(3)
    address = with_tls.cluster.bootstrap.partition(",")[0]
    with sr.Security.of(with_tls.settings).client(address) as client:
        info = client.get_flight_info(flight.FlightDescriptor.for_path(TOPIC))
    assert {location.uri.partition(b"://")[0] for point in info.endpoints for location in point.locations} == {
        b"grpc+tls"
    }


def test_of_a_stranger_without_a_certificate_no_call_is_read(with_tls: Secured) -> None:
    """However large: TLS asks for the certificate first."""
    target = with_tls.cluster.brokers[min(with_tls.cluster.brokers)]
    before = resident_bytes(target.pid)
    security = sr.Security.of(with_tls.strangers["no certificate"])
    with security.client(f"{target.host}:{target.port}") as client:
        for _ in range(3):
            with pytest.raises((flight.FlightError, pa.ArrowException)):
                list(client.do_action((METADATA.name, b"x" * LARGE), flight.FlightCallOptions(timeout=TIMEOUT_S)))
    assert resident_bytes(target.pid) - before < LARGE / 4
    with_tls.produced(3)


LETTERS = pa.schema([("letter", pa.string())])
LETTER = "for the eyes of this cluster alone"


@contextmanager
def topic_of(secured: Secured, schema: pa.Schema) -> Iterator[str]:
    """Another one, for as long as the block takes."""
    secured.cluster.admin.create_topic("letters", schema, partitions=1)
    yield "letters"
    secured.cluster.admin.delete_topic("letters")


def test_whoever_takes_the_ports_of_a_dead_broker_learns_nothing(secured: Secured) -> None:
    """Neither a secret nor a row: of clients that were connected, of one that comes anew, and of other brokers. What
    was sent meanwhile waits for the next leader."""
    cluster, letter = secured.cluster, pa.record_batch([pa.array([LETTER])], schema=LETTERS)
    known: dict[str, Any] = {"security": secured.settings, "deadline_ms": REFUSED_MS}
    with (
        topic_of(secured, LETTERS) as topic,
        sr.Producer(cluster.bootstrap, security=secured.settings) as producer,
        sr.Reader(cluster.bootstrap, **known) as reader,
        sr.Admin(cluster.bootstrap, security=secured.settings, deadline_ms=REFUSED_MS // 2) as admin,
        ThreadPoolExecutor() as aside,
    ):
        producer.send(topic, letter, partition=0).result(DEADLINE_S)
        assert len([*reader.read(topic, partition=0)]) == 1
        (described,) = cluster.admin.describe_topics([topic])
        leader = described.partitions[0].leader
        (dead,) = [broker for broker in cluster.admin.describe_cluster().brokers if broker.id == leader]
        admin.metadata(())  # tells it of all brokers
        with stopped(cluster.controller_pid):  # so that nobody hears of another leader
            cluster.kill_broker(dead.id)
            with impostor(dead, secured.impostor) as found:
                asked = [aside.submit(admin.metadata, ()) for _ in range(3)]  # each asks another broker first
                sent = producer.send(topic, letter, partition=0)
                with pytest.raises(ReplicationError):
                    [*reader.read(topic, partition=0)]
                with sr.Producer(f"{dead.host}:{dead.port}", **known) as newcomer:
                    refused = newcomer.send(topic, letter, partition=0).exception(TIMEOUT_S)
                eventually(lambda: found.is_dialled, "both ports are dialled")
                wait(asked)
        assert isinstance(refused, ReplicationError)
        sent.result(DEADLINE_S)
        cluster.restart_broker(dead.id)
    of_brokers = (cluster.directory / BROKER_TOKEN_FILE).read_text().strip()
    for secret in (LETTER, SECRET, of_brokers):
        assert secret.encode() not in found.heard
    assert secured.settings["security.mode"] == "token" or found.understood == b"", "no handshake came to its end"
    cluster.wait_healthy()
    assert f"Ticket {OWN_TICKET}" not in found.authorizations, "nobody believes the impostor"
    for shown in found.authorizations:  # tickets of the process that has ended
        headers = flight.FlightCallOptions(headers=[(b"authorization", shown.encode())], timeout=TIMEOUT_S)
        for address in cluster.bootstrap.split(","):
            with flight.connect(f"grpc://{address}") as thief, pytest.raises(flight.FlightUnauthenticatedError):
                list(thief.do_action((METADATA.name, b"{}"), headers))
    secured.produced(3)


def test_a_proof_that_is_passed_on_to_another_port_serves_nobody(with_token: Secured) -> None:
    """Neither for what clients do, nor for what brokers do."""
    cluster = with_token.cluster
    described = cluster.admin.describe_cluster()
    target, other, *_ = described.brokers
    own = {**with_token.settings, "security.broker.token.file": str(cluster.directory / BROKER_TOKEN_FILE)}
    client, broker = sr.Security.of(with_token.settings), sr.Security.of(own)
    frames, calls = Tap(target.replication_port), Tap(target.port)
    hello = HelloFrame(cluster_id=described.cluster_id, broker_id=other.id, broker_epoch=other.epoch, port=frames.port)
    was_dialled = pytest.raises(AuthenticationFailed, match=rf"port {frames.port} was dialled, and this is port")
    for reads in (False, True):
        with was_dialled:
            opened("127.0.0.1", frames.port, client, reads=reads, frame_bytes_max=1 << 20)
    with socket.create_connection(("127.0.0.1", frames.port), timeout=TIMEOUT_S) as connection, was_dialled:
        introduce(connection, FrameReceiver(connection, 1 << 20), hello, broker.cluster_tokens, TIMEOUT_S)
    for security in (client, broker):
        with (
            security.client(f"127.0.0.1:{calls.port}") as caller,
            pytest.raises(AuthenticationFailed, match=rf"port {calls.port} was dialled, and this is port"),
        ):
            call(caller, METADATA, GetMetadata(), 10_000)
    for tap in (frames, calls):
        assert tap.heard
        tap.close()
    with_token.produced(3)


def command_line(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "spark_replication", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=60, env={**os.environ, **environment}
    )


def test_the_command_line_takes_the_settings_as_everything_does(with_token: Secured, tmp_path: Path) -> None:
    file = with_token.settings["security.token.file"]
    config = tmp_path / "conf.toml"
    config.write_text(f'security.mode = "token"\nsecurity.token.file = "{file}"\n')
    topics = ("topics", "-b", with_token.cluster.bootstrap, "--format", "json")
    ways = [
        command_line(*topics, "--config", str(config)),
        command_line(*topics, "--set", "security.mode=token", "--set", f"security.token.file={file}"),
        command_line(*topics, SPARK_REPLICATION_SECURITY_MODE="token", SPARK_REPLICATION_SECURITY_TOKEN_FILE=file),
    ]
    for ran in ways:
        assert ran.returncode == 0, ran.stderr
        assert [row["topic"] for row in json.loads(ran.stdout)] == [TOPIC]
    refused = command_line(*topics)
    assert refused.returncode == 1
    assert refused.stderr.startswith("error: AUTHENTICATION_FAILED: the call came with no token")
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"number": 7}\n')
    produced = command_line(
        "produce", TOPIC, str(rows), "-b", with_token.cluster.bootstrap, "--config", str(config), "--partition", "2"
    )
    assert produced.returncode == 0, produced.stderr
    with_token.cluster.admin.delete_topic(TOPIC)
    with_token.cluster.admin.create_topic(TOPIC, SCHEMA, partitions=3)
    with_token._next = 0


def test_the_secret_is_in_no_file_and_on_no_command_line(with_token: Secured) -> None:
    """Of brokers, controller and ZooKeeper, after all that was asked and refused above."""
    with_token.produced()
    cluster = with_token.cluster
    pids = [*(broker.pid for broker in cluster.brokers.values()), *cluster.zookeeper_pids]
    assert cluster.controller_pid is not None
    for pid in (*pids, cluster.controller_pid):
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        assert b"java" in command or with_token.settings["security.token.file"].encode() in command
        assert SECRET.encode() not in command
        assert SECRET.encode() not in Path(f"/proc/{pid}/environ").read_bytes()
    read: dict[str, bytes] = {}
    for folder, _, names in os.walk(cluster.directory):
        for path in (Path(folder, name) for name in names):
            with suppress(FileNotFoundError):  # written anew in this moment
                read[str(path)] = path.read_bytes()
    found = {Path(path).name for path in read}
    assert {"broker.log", "broker.json", "log"} <= found, "logs of brokers and of the controller are among them"
    assert not [path for path, data in read.items() if SECRET.encode() in data]


def test_what_is_wrong_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"security.mode=token needs security.token.file"):
        sr.LocalCluster.start(directory=tmp_path / "cluster", config={"security.mode": "token"})
    assert not (tmp_path / "cluster").exists()


def test_a_guardian_with_another_token_says_so_and_harms_nobody(with_token: Secured) -> None:
    cluster, other = with_token.cluster, sr.Security.of(with_token.strangers["another token"])
    cluster.wait_healthy()
    before = cluster.brokers[1]
    assignment = Assignment(
        log_directory=str(cluster.directory / "logs"),
        cluster_id=cluster.admin.describe_cluster().cluster_id,
        zookeeper=cluster.zookeeper.removeprefix("zk://").partition("/")[0],
        host=before.host,
        overrides={},
    )
    later = Lease(1_000, 1)
    guardian = Guardian(
        1, assignment, later, settings=settings_from(), security=other, report=lambda died: pytest.fail(str(died))
    )
    with pytest.raises(AuthenticationFailed, match="does not know a token of this cluster"):
        guardian.start()
    with_token.produced(3)
    assert cluster.brokers[1] == before


def is_let_in(cluster: sr.LocalCluster, timeout_s: float = REFUSED_MS / 1000, **files: Any) -> bool:
    """By the cluster's ZooKeeper."""
    client = KazooClient(hosts=cluster.zookeeper.removeprefix("zk://"), **files)
    try:
        client.start(timeout_s)
    except KazooTimeoutError:
        return False
    finally:
        client.stop()
        client.close()
    return True


def test_a_stranger_is_not_let_in_by_zookeeper(secured: Secured) -> None:
    """Any user of the host reaches its port, and may have a certificate of the cluster's."""
    secured.produced()
    shown = secured.settings.get("security.tls.certificate.file"), secured.settings.get("security.tls.key.file")
    tls = secured.cluster.directory / "zookeeper" / "tls"
    ours = {"use_ssl": True, "verify_certs": False}
    assert not is_let_in(secured.cluster)
    assert not is_let_in(secured.cluster, **ours)
    if all(shown):
        assert not is_let_in(secured.cluster, **ours, certfile=shown[0], keyfile=shown[1])
    own = {"certfile": str(tls / "client.pem"), "keyfile": str(tls / "client.key")}
    assert is_let_in(secured.cluster, TIMEOUT_S, **ours, **own)
    secured.cluster.wait_healthy()
    secured.produced(3)


def test_who_knows_only_zookeeper_finds_the_brokers(secured: Secured) -> None:
    cluster = secured.cluster
    with sr.Admin(cluster.zookeeper, security={**secured.settings, "data.dir": str(cluster.directory)}) as admin:
        assert TOPIC in [topic.name for topic in admin.describe_topics()]
    with (
        sr.Admin(cluster.zookeeper, security=secured.settings, deadline_ms=REFUSED_MS) as stranger,
        pytest.raises(BrokerNotAvailable, match=r"set zookeeper\.tls\.…"),
    ):
        stranger.describe_topics()


def test_a_cluster_that_gets_security_protects_what_is_in_zookeeper(tmp_path: Path) -> None:
    directory, settings = tmp_path / "cluster", token_settings(tmp_path)
    batch = pa.record_batch([pa.array([1, 2, 3])], schema=SCHEMA)
    with sr.LocalCluster.start(brokers=1, directory=directory, config={**CONFIG, "min.insync.replicas": 1}) as cluster:
        cluster.admin.create_topic(TOPIC, SCHEMA, partitions=1, replication_factor=1)
        with sr.Producer(cluster.bootstrap) as producer:
            producer.send(TOPIC, batch, 0).result(DEADLINE_S)
    for later in (settings, {}):  # what belongs to the cluster does so without security, too
        with sr.LocalCluster.start(brokers=1, directory=directory, config={**CONFIG, **later}) as cluster:
            assert not is_let_in(cluster)
            with sr.Reader(cluster.bootstrap, security=later) as reader:
                assert [each.batch for each in reader.read(TOPIC)] == [batch]


def test_a_cluster_whose_file_has_verifiers_alone(tmp_path: Path) -> None:
    """It works, its own session has a token of its own, and its file lets nobody in."""
    served, own, alice = tmp_path / "served", tmp_path / "session", tmp_path / "alice"
    for name, client_file in (("session", own), ("alice", alice)):
        done = command_line("tokens", "add", str(served), name, "--client-file", str(client_file), "--salted")
        assert done.returncode == 0, done.stderr

    def of(file: Path) -> dict[str, Any]:
        return {"security.mode": "token", "security.token.file": str(file)}

    settings = {**CONFIG, **of(served), "security.session.token.file": str(own)}
    with sr.LocalCluster.start(brokers=2, directory=tmp_path / "cluster", config=settings) as cluster:
        cluster.admin.create_topic("orders", SCHEMA, replication_factor=2)
        batch = pa.RecordBatch.from_pylist([{"number": 1}], schema=SCHEMA)
        for security in (cluster.security, of(alice)):
            with sr.Producer(cluster.bootstrap, security=security) as producer:
                producer.send("orders", batch, 0).result(60)
            with sr.Reader(cluster.bootstrap, security=security) as reader:
                assert sum(found.batch.num_rows for found in reader.read("orders", partition=0)) > 0
        (token,) = alice.read_text().split()[1:]
        verifiers = [line.split()[1] for line in served.read_text().splitlines()]
        shown = {
            secret: flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {secret}".encode())])
            for secret in (token, *verifiers, *(part for each in verifiers for part in each.split(":")))
        }
        with flight.connect(f"grpc://{cluster.bootstrap.partition(',')[0]}") as client:
            for secret, headers in shown.items():
                if secret == token:
                    client.get_flight_info(flight.FlightDescriptor.for_path("orders", "0"), headers)
                    continue
                with pytest.raises(flight.FlightUnauthenticatedError):
                    client.get_flight_info(flight.FlightDescriptor.for_path("orders", "0"), headers)
        thief = command_line("topics", "-b", cluster.bootstrap, *(f"--set={n}={v}" for n, v in of(served).items()))
        assert thief.returncode != 0
        assert "the file of tokens has verifiers alone, by which nobody is let in" in thief.stderr
        cluster.wait_healthy()

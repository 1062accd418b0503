"""Clusters in mode token and in mode tls, and ten thousand hostile inputs at each of their ports: from strangers, and
from a client that is known. None ends a process, none makes it larger, nothing is stored."""

from __future__ import annotations

import os
import random
import socket
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from crc32c import crc32c
from pyarrow import flight

import spark_replication as sr
from spark_replication.errors import ReplicationError
from spark_replication.messages.envelope import to_json
from spark_replication.messages.frames import to_frame
from spark_replication.messages.introducing import Challenge, Introduce, Prove
from spark_replication.messages.lane import ClientFrame, PutFrame, ReadFrame, StreamFrame
from spark_replication.messages.records import BatchMetadata, ReadTicket
from spark_replication.messages.replication import HelloFrame, ProofFrame
from spark_replication.transport.frames import FrameReceiver, tune
from spark_replication.transport.handshake import introduce_client
from tests.live.broker.test_slow_follower import resident_bytes
from tests.unit.transport.certificates import Authority, tls_settings
from tests.unit.transport.hostile import any_of, damaged, garbage
from tests.unit.transport.test_security import token_settings

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

SEED = int(os.environ.get("HOSTILE_SEED", "20261126"))
BYTES_AT_A_PORT = {"frames": 7_000, "broker": 7_000, "controller": 7_000, "page": 10_000}  # connections
KNOWN_AT_A_PORT = 3_000  # calls, or connections that were proven
CONNECT_S = 20.0
GROWTH_BYTES_MAX = 96 << 20
SCHEMA = pa.schema([("number", pa.int64())])
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
HTTP1 = b"GET /api/view HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer guessed\r\n\r\n"
TLS_HELLO = bytes.fromhex("16030100750100007103037a") + bytes(range(100))
NONCE = b"n" * 32


class Attacked:
    """A cluster, its ports, and what a client of it has."""

    def __init__(self, cluster: sr.LocalCluster, client: dict[str, Any]) -> None:
        self.cluster = cluster
        self.client = sr.Security.of(client)
        self.settings = client
        one = {"min.insync.replicas": 1}
        cluster.admin.create_topic("orders", SCHEMA, partitions=1, replication_factor=1, config=one)
        told = cluster.admin.metadata(())
        assert told.controller is not None
        (broker,) = told.brokers.values()
        self.flights = {"broker": broker.address, "controller": told.controller}
        self.lane = ("127.0.0.1", broker.replication_port)
        url = urlsplit(cluster.page or "")
        self.page = ("127.0.0.1", url.port or 0)
        self.ports = {
            "frames": self.lane[1],
            **{name: int(address.rpartition(":")[2]) for name, address in self.flights.items()},
            "page": self.page[1],
        }
        self.pids = {"broker": cluster.brokers[broker_id(cluster)].pid, "controller": cluster.controller_pid or 0}
        self.written = 0

    def works(self) -> None:
        with sr.Producer(self.cluster.bootstrap, security=self.settings) as producer:
            producer.send("orders", pa.record_batch([pa.array([self.written])], schema=SCHEMA)).result(CONNECT_S)
        self.written += 1
        with sr.Reader(self.cluster.bootstrap, security=self.settings) as reader:
            found = [number for batch in reader.read("orders") for number in batch.batch.column(0).to_pylist()]
        assert found == list(range(self.written)), "nothing else is stored"

    def sizes(self) -> dict[str, int]:
        return {name: resident_bytes(pid) for name, pid in self.pids.items()}


def broker_id(cluster: sr.LocalCluster) -> int:
    return min(cluster.brokers)


@pytest.fixture(scope="module", params=["token", "tls"])
def attacked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    directory: Path = tmp_path_factory.mktemp(request.param)
    if request.param == "token":
        serving = client = token_settings(directory)
    else:
        ours = Authority(directory)
        serving = {**tls_settings(ours, ours.issue("server"), mutual=True)}
        client = {**tls_settings(ours, ours.issue("client"), mutual=True)}
    with sr.LocalCluster.start(brokers=1, directory=directory / "cluster", config=serving) as cluster:
        print(f"seed={SEED}; replay: HOSTILE_SEED={SEED}")  # noqa: T201 (pytest shows it of a failure)
        yield Attacked(cluster, client)


@pytest.fixture
def unharmed(attacked: Attacked) -> Iterator[Attacked]:
    attacked.works()
    before = attacked.sizes()
    yield attacked
    attacked.works()
    assert {"broker": attacked.cluster.brokers[1].pid, "controller": attacked.cluster.controller_pid} == attacked.pids
    grown = {name: size - before[name] for name, size in attacked.sizes().items()}
    assert max(grown.values()) < GROWTH_BYTES_MAX, grown


def framed(header: bytes, payload: bytes = b"") -> bytes:
    return struct.pack("!II", len(header), len(payload)) + header + payload


HELLOS = [
    framed(to_frame(HelloFrame(cluster_id="c", broker_id=9, broker_epoch=1, name="broker", port=1, nonce=NONCE))),
    framed(to_frame(ClientFrame(name="client", port=1, nonce=NONCE))),
    framed(to_frame(ProofFrame(proof=NONCE))),
]


@pytest.mark.parametrize("port", BYTES_AT_A_PORT)
def test_bytes_of_strangers(unharmed: Attacked, port: str) -> None:
    rng = random.Random(f"{SEED} {port}")
    sound = [*HELLOS, HELLOS[1] + HELLOS[2], HTTP2, HTTP1, TLS_HELLO]
    for number in range(BYTES_AT_A_PORT[port]):
        data = b"".join(any_of(rng, sound) for _ in range(rng.randrange(1, 4)))
        with (
            socket.create_connection(("127.0.0.1", unharmed.ports[port]), timeout=CONNECT_S) as connection,
            suppress(OSError),
        ):
            connection.sendall(data)
            if rng.random() < 0.1:  # the others hang up at once
                connection.settimeout(0.01)
                connection.recv(1)
        if number % 2_000 == 0:
            unharmed.works()


def test_frames_of_a_client_that_is_known(unharmed: Attacked) -> None:
    rng = random.Random(SEED)
    batch = pa.record_batch([pa.array([-1])], schema=SCHEMA)
    stream = framed(to_frame(StreamFrame(stream=0, topic="orders", topic_id="other")), bytes(SCHEMA.serialize()))
    payload = batch.serialize().to_pybytes()
    put = framed(to_frame(PutFrame(stream=0, number=0, crc=crc32c(payload), batch=BatchMetadata(partition=0))), payload)
    read = framed(to_frame(ReadFrame(number=0, ticket=ReadTicket(topic="orders", partition=0))))
    for number in range(KNOWN_AT_A_PORT):
        reads = rng.random() < 0.3
        sound = [read, read * 2] if reads else [stream, put, stream + put]
        connection = socket.create_connection(unharmed.lane, timeout=CONNECT_S)
        with connection:
            tune(connection)
            channel = unharmed.client.connected(connection, "127.0.0.1", CONNECT_S)
            hello = ClientFrame(reads=reads, port=unharmed.lane[1])
            introduce_client(channel, FrameReceiver(channel, 1 << 20), hello, unharmed.client.tokens, CONNECT_S)
            with suppress(OSError):
                channel.sendmsg([b"".join(any_of(rng, sound) for _ in range(rng.randrange(1, 5)))])
        if number % 1_000 == 0:
            unharmed.works()


INTRODUCED = Introduce(name="client", port=1, nonce=NONCE)
PROVE = Prove(introduced=INTRODUCED, challenge=Challenge(nonce=NONCE, said_ms=1, stamp=NONCE), proof=NONCE)
BODY = b'{"v":1,"controller_epoch":1,"partitions":[{"topic":"orders","partition":0}],"no_such_key":1}'
ACTIONS = ("metadata", "leader_and_isr", "shutdown", "delete_topic", "change_acls", "describe_ranges", "configure")


@pytest.mark.parametrize("server", ["broker", "controller"])
@pytest.mark.parametrize("who", ["a stranger", "a client"])
def test_calls(unharmed: Attacked, server: str, who: str) -> None:
    """What is not refused by its code changes nothing, either: no action below is both whole and allowed."""
    rng = random.Random(f"{SEED} {server} {who}")
    security = unharmed.client
    if who == "a stranger" and security.tls is None:
        security = sr.Security.of(None)
    codes: Counter[str] = Counter()
    ticket = to_json(ReadTicket(topic="orders", partition=0, to=0))
    with security.client(unharmed.flights[server]) as client:
        kinds: tuple[Callable[[flight.FlightCallOptions], object], ...] = (
            lambda options: list(client.do_action((rng.choice(ACTIONS), damaged(rng, BODY)), options)),
            lambda options: list(client.do_action(("introduce", any_of(rng, [to_json(INTRODUCED)])), options)),
            lambda options: list(client.do_action(("prove", any_of(rng, [to_json(PROVE)])), options)),
            lambda options: list(client.do_action((garbage(rng, 20).hex(), garbage(rng)), options)),
            lambda options: list(client.do_get(flight.Ticket(any_of(rng, [ticket])), options)),
            lambda options: client.get_flight_info(flight.FlightDescriptor.for_command(garbage(rng)), options),
        )
        for number in range(KNOWN_AT_A_PORT // 2):
            shown = [(b"authorization", b"Ticket " + garbage(rng).hex().encode())] if rng.random() < 0.3 else []
            options = flight.FlightCallOptions(timeout=CONNECT_S, headers=shown)
            try:
                rng.choice(kinds)(options)
            except (flight.FlightError, pa.ArrowException) as error:
                codes[str(error).partition(":")[0][:40]] += 1
            except ReplicationError as error:
                codes[error.code] += 1
            if number % 1_000 == 0:
                unharmed.works()
    assert {code for code in codes if not code.isupper()} == set(), codes
    assert "UNKNOWN_SERVER_ERROR" not in codes, codes

"""Clusters in each mode, and ten thousand hostile inputs at each of their ports: from strangers, and from a client that
is known. None ends a process, none makes it larger, nothing is stored."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import socket
import struct
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from crc32c import crc32c
from pyarrow import flight

import spark_replication as sr
from spark_replication.decoding import error_of_text
from spark_replication.errors import (
    AuthenticationFailed,
    BatchTooLarge,
    ClusterAuthorizationFailed,
    InvalidRequest,
    InvalidSchema,
    ReplicationError,
    UnknownTopicOrPartition,
)
from spark_replication.messages.actions import ADMIN_REQUESTS, STOP_REPLICA
from spark_replication.messages.commands import StopPartition, StopReplica
from spark_replication.messages.envelope import to_json
from spark_replication.messages.frames import to_frame
from spark_replication.messages.introducing import Challenge, Introduce, Prove
from spark_replication.messages.lane import ClientFrame, PutFrame, ReadFrame, StreamFrame
from spark_replication.messages.records import BatchMetadata, ReadTicket
from spark_replication.messages.replication import (
    PROVING_VERSION,
    ErrorFrame,
    FetchFrame,
    FetchPartition,
    HelloFrame,
    ProofFrame,
)
from spark_replication.messages.requests import CreateTopic, DeleteTopic
from spark_replication.model import EPOCH_MAX
from spark_replication.storage.format.batches import stored_schema
from spark_replication.transport.flight.actions import call
from spark_replication.transport.proofs.handshake import introduce_client
from spark_replication.transport.sockets.frames import Channel, FrameReceiver, tune
from tests.live.broker.test_slow_follower import resident_bytes
from tests.live.cluster.sides import MODES, sides
from tests.live.cluster.test_secured_clusters import command_line
from tests.unit.storage.every_type import SAMPLES, TOPICS
from tests.unit.transport.hostile import any_of, damaged, garbage

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

SEED = int(os.environ.get("HOSTILE_SEED", "20261126"))
BYTES_AT_A_PORT = {"frames": 7_000, "broker": 7_000, "controller": 7_000, "page": 10_000}  # connections
KNOWN_AT_A_PORT = 3_000  # calls, or connections that were proven
# An attack of so many begins no more of them after this: a slow machine, or a busy one, makes fewer, not for longer.
ATTACK_S = float(os.environ.get("ATTACK_S", "15"))
LOOK = 250  # connections between two looks: the page comes last where processors are few, and is not left behind
CONNECT_S = 20.0
PAGE_S = 60.0
TYPED_TOPICS, TYPED_CONNECTIONS, TYPED_STREAMS = 12, 600, 5  # each stream has ten batches
GROWTH_BYTES_MAX = 96 << 20
LARGE_ROUNDS = 8
HELD = 50  # connections
ROOM_BYTES = {"a stranger": 320 << 10, "a client": 2 << 20}  # of a connection
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
        self.proves = bool(client)
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
            producer.send("orders", pa.record_batch([pa.array([self.written])], schema=SCHEMA), 0).result(CONNECT_S)
        self.written += 1
        with sr.Reader(self.cluster.bootstrap, security=self.settings) as reader:
            found = [number for batch in reader.read("orders") for number in batch.batch.column(0).to_pylist()]
        assert found == list(range(self.written)), "nothing else is stored"

    def page_answers(self) -> bool:
        """Whether it is still what it was: it knows nobody here, and says so."""
        with socket.create_connection(self.page, timeout=PAGE_S) as connection:
            connection.sendall(HTTP1)
            return connection.recv(9) == b"HTTP/1.1 "

    def sizes(self) -> dict[str, int]:
        return {name: resident_bytes(pid) for name, pid in self.pids.items()}


def attempts(count: int) -> Iterator[int]:
    """The numbers of at most so many, for ATTACK_S at most."""
    until_s = time.monotonic() + ATTACK_S
    return itertools.takewhile(lambda _number: time.monotonic() < until_s, range(count))


def broker_id(cluster: sr.LocalCluster) -> int:
    return min(cluster.brokers)


@pytest.fixture(scope="module", params=["none", *MODES])
def attacked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    directory: Path = tmp_path_factory.mktemp(request.param)
    serving, client = sides(request.param, directory)
    with sr.LocalCluster.start(brokers=1, directory=directory / "cluster", config=serving) as cluster:
        print(f"seed={SEED}; replay: HOSTILE_SEED={SEED}")  # noqa: T201 (pytest shows it of a failure)
        yield Attacked(cluster, client)


@pytest.fixture
def unharmed(attacked: Attacked) -> Iterator[Attacked]:
    with unharmed_after(attacked, GROWTH_BYTES_MAX):
        yield attacked


@contextmanager
def unharmed_after(attacked: Attacked, growth_bytes_max: int) -> Iterator[None]:
    attacked.works()
    before = attacked.sizes()
    yield
    attacked.works()
    assert {"broker": attacked.cluster.brokers[1].pid, "controller": attacked.cluster.controller_pid} == attacked.pids
    grown = {name: size - before[name] for name, size in attacked.sizes().items()}
    assert max(grown.values()) < growth_bytes_max, grown


def framed(header: bytes, payload: bytes = b"") -> bytes:
    return struct.pack("!II", len(header), len(payload)) + header + payload


HELLOS = [
    framed(
        to_frame(
            HelloFrame(
                v=PROVING_VERSION, cluster_id="c", broker_id=9, broker_epoch=1, name="broker", port=1, nonce=NONCE
            )
        )
    ),
    framed(to_frame(ClientFrame(v=PROVING_VERSION, name="client", port=1, nonce=NONCE))),
    framed(to_frame(ProofFrame(proof=NONCE))),
]


@pytest.mark.parametrize("port", BYTES_AT_A_PORT)
def test_bytes_of_strangers(unharmed: Attacked, port: str) -> None:
    rng = random.Random(f"{SEED} {port}")
    sound = [*HELLOS, HELLOS[1] + HELLOS[2], HTTP2, HTTP1, TLS_HELLO]
    for number in attempts(BYTES_AT_A_PORT[port]):
        data = b"".join(any_of(rng, sound) for _ in range(rng.randrange(1, 4)))
        with (
            socket.create_connection(("127.0.0.1", unharmed.ports[port]), timeout=CONNECT_S) as connection,
            suppress(OSError),
        ):
            connection.sendall(data)
            if rng.random() < 0.1:  # the others hang up at once
                connection.settimeout(0.01)
                connection.recv(1)
        if port == "page" and number % LOOK == 0:
            assert unharmed.page_answers()
        if number % 2_000 == 0:
            unharmed.works()


def test_frames_of_a_client_that_is_known(unharmed: Attacked) -> None:
    rng = random.Random(SEED)
    batch = pa.record_batch([pa.array([-1])], schema=SCHEMA)
    stream = framed(to_frame(StreamFrame(stream=0, topic="orders", topic_id="other")), bytes(SCHEMA.serialize()))
    payload = batch.serialize().to_pybytes()
    put = framed(to_frame(PutFrame(stream=0, number=0, crc=crc32c(payload), batch=BatchMetadata(partition=0))), payload)
    read = framed(to_frame(ReadFrame(number=0, ticket=ReadTicket(topic="orders", partition=0))))
    for number in attempts(KNOWN_AT_A_PORT):
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


def test_batches_of_every_type_of_a_client_that_is_known(unharmed: Attacked) -> None:
    """Of each type a topic, if there may be one, and whatever is made of its batches. A type that pyarrow cannot show
    ended the broker's process."""
    rng, one = random.Random(SEED), {"min.insync.replicas": 1}
    topics = rng.sample(TOPICS, TYPED_TOPICS)
    admin = unharmed.cluster.admin
    for place, sample in enumerate(topics):
        admin.create_topic(f"typed-{place}", sample.schema, partitions=1, replication_factor=1, config=one)
    ids = [topic.topic_id for topic in admin.metadata([f"typed-{place}" for place in range(len(topics))]).topics]
    for sample in SAMPLES:
        if not sample.is_shown:
            with pytest.raises(InvalidRequest, match="cannot show"):
                admin.create_topic("unshown", sample.schema)
    for number in attempts(TYPED_CONNECTIONS):
        with socket.create_connection(unharmed.lane, timeout=CONNECT_S) as connection:
            channel = known_channel(unharmed, connection)
            with suppress(OSError):
                for stream in range(TYPED_STREAMS):
                    sample, place = rng.choice(SAMPLES), rng.randrange(len(topics))
                    if rng.random() < 0.7 and topics[place].is_shown:
                        sample = topics[place]
                    opened = StreamFrame(stream=stream, topic=f"typed-{place}", topic_id=ids[place])
                    head = damaged(rng, sample.head) if rng.random() < 0.1 else sample.head
                    said = [framed(to_frame(opened), head)]
                    for batch in range(10):
                        payload = damaged(rng, sample.message) if rng.random() < 0.8 else sample.message
                        put = PutFrame(
                            stream=stream,
                            number=10 * stream + batch,
                            crc=crc32c(payload),
                            batch=BatchMetadata(partition=0),
                        )
                        said.append(framed(to_frame(put), payload))
                    channel.sendmsg([b"".join(said)])
        if number % 100 == 0:
            unharmed.works()
    unharmed.works()
    with sr.Reader(unharmed.cluster.bootstrap, security=unharmed.settings) as reader:
        for place, sample in enumerate(topics):
            for found in reader.read(f"typed-{place}"):
                found.batch.validate(full=True)
                assert found.batch.schema.equals(stored_schema(sample.schema))
    for place in range(len(topics)):
        admin.delete_topic(f"typed-{place}")


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
        for number in attempts(KNOWN_AT_A_PORT // 2):
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


# What is whole, and ill-willed.


@pytest.mark.parametrize("who", ["a stranger", "a client", "a client that was let in"])
@pytest.mark.parametrize("epoch", [1 << 40, 1 << 62])
def test_epochs_that_no_znode_can_have(unharmed: Attacked, who: str, epoch: int) -> None:
    """A write that rests on one of them is none that a ZooKeeper client can send."""
    told = unharmed.cluster.admin.metadata(("orders",))
    hello = HelloFrame(cluster_id=told.cluster_id, broker_id=9, broker_epoch=epoch, port=unharmed.lane[1])
    fetch = FetchPartition(
        topic="orders",
        partition=0,
        topic_id=told.topics[0].topic_id,
        leader_epoch=epoch,
        offset=1,
        last_epoch=0,
        clean_since=0,
    )
    said = [framed(to_frame(hello)), framed(to_frame(FetchFrame(number=1, partitions=(fetch,))))]
    with socket.create_connection(unharmed.lane, timeout=CONNECT_S) as connection:
        channel: Channel = connection
        if who == "a client":
            channel = unharmed.client.connected(connection, "127.0.0.1", CONNECT_S)
        elif who == "a client that was let in":
            channel, said = known_channel(unharmed, connection), said[1:]
        channel.sendmsg(said)
        heard = FrameReceiver(channel, 1 << 20).receive_first(lambda: None)
    is_read = who != "a stranger" or unharmed.client.tls is None
    assert isinstance(heard, ErrorFrame)
    assert heard.error == (InvalidRequest.code if is_read else AuthenticationFailed.code)
    with unharmed.client.client(unharmed.flights["broker"]) as calls:
        order = b'{"controller_epoch":%d,"partitions":[]}' % epoch
        with pytest.raises(flight.FlightServerError, match=f"^{InvalidRequest.code}: "):
            list(calls.do_action((STOP_REPLICA.name, order)))


@pytest.mark.parametrize(("who", "announced_mib"), [("a stranger", 64), ("a client", 64), ("a client", 15)])
def test_what_is_announced_and_never_comes_takes_no_memory(unharmed: Attacked, who: str, announced_mib: int) -> None:
    before, channels = unharmed.sizes()["broker"], list[Channel]()
    with ExitStack() as held:
        for _ in range(HELD):
            connection = held.enter_context(socket.create_connection(unharmed.lane, timeout=CONNECT_S))
            channel = known_channel(unharmed, connection) if who == "a client" else connection
            channel.sendmsg([struct.pack("!II", 100, (announced_mib << 20) - 1_000)])
            channels.append(channel)
        unharmed.works()
        with suppress(OSError):  # some are hung up on
            for channel in channels:
                channel.sendmsg([b"x"])
        unharmed.works()
        grown = unharmed.sizes()["broker"] - before
    assert grown < HELD * ROOM_BYTES[who], f"{grown >> 20} MiB more"


def known_channel(attacked: Attacked, connection: socket.socket) -> Channel:
    """Of a client that was let in."""
    tune(connection)
    channel = attacked.client.connected(connection, "127.0.0.1", CONNECT_S)
    hello = ClientFrame(port=attacked.lane[1])
    introduce_client(channel, FrameReceiver(channel, 1 << 20), hello, attacked.client.tokens, CONNECT_S)
    return channel


def test_no_schema_of_a_client_harms_the_controller(unharmed: Attacked) -> None:
    """One that no znode can hold, and what is no schema at all."""
    before = epoch_of_controller(unharmed)
    with (
        sr.Admin(unharmed.cluster.bootstrap, security=unharmed.settings) as admin,
        pytest.raises(InvalidSchema, match="at most 524288 fit"),
    ):
        admin.create_topic("large", SCHEMA.with_metadata({"note": "x" * 3_000_000}), replication_factor=1)
    with unharmed.client.client(unharmed.flights["controller"]) as calls:
        for text in ("no base64!", b64encode(b"no schema" * 9).decode(), "A" * 3_000_000):
            with pytest.raises(InvalidSchema):
                call(calls, ADMIN_REQUESTS[CreateTopic], CreateTopic(name="none", schema=text), 10_000)
    with unharmed.client.client(unharmed.flights["broker"]) as calls:
        assert {info.descriptor.path[0] for info in calls.list_flights()} == {b"orders"}
    assert epoch_of_controller(unharmed) == before


def epoch_of_controller(attacked: Attacked) -> str:
    (epoch,) = re.findall(r"^\w*controller_epoch (\S+)$", attacked.cluster.admin.metrics(), re.MULTILINE)
    return str(epoch)


FLAGS = pa.schema([("flag", pa.bool_())])
WORDS = pa.schema([("word", pa.string())])
NOTHING = pa.schema([("nothing", pa.null())])
ROWS = 1 << 22


def flags(rows: int) -> pa.RecordBatch:
    """An eighth of a byte a row."""
    return pa.record_batch([pa.repeat(True, rows)], schema=FLAGS)


def test_no_small_batch_of_a_client_becomes_a_large_one(attacked: Attacked) -> None:
    """What large batches have taken may stay with the process for the next ones (process.freed_memory), once."""
    with unharmed_after(attacked, 2 * GROWTH_BYTES_MAX):
        for _ in range(LARGE_ROUNDS):
            ask_for_large_batches(attacked)


def ask_for_large_batches(attacked: Attacked) -> None:
    """As they are stored, and as they are read: dictionaries, rows without bytes, columns that came later."""
    admin = attacked.cluster.admin
    one: dict[str, Any] = {"partitions": 1, "replication_factor": 1, "config": {"min.insync.replicas": 1}}
    for name, schema in (("flags", FLAGS), ("words", WORDS), ("nothing", NOTHING)):
        admin.create_topic(name, schema, **one)
    long = pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), 4_000), pa.array(["x" * (1 << 20)]))
    hostile = [
        ("words", pa.record_batch([long], ["word"])),
        ("nothing", pa.record_batch([pa.nulls((1 << 31) - 1)], schema=NOTHING)),
    ]
    with attacked.client.client(attacked.flights["broker"]) as calls:
        assert answer(calls, "flags", flags(ROWS))["base_offset"] == 0
        late = (pa.field(f"late{number}", pa.int64()) for number in range(100))
        admin.widen_topic("flags", pa.schema([*FLAGS, *late]))
        hostile.append(("flags", flags(ROWS)))
        before = attacked.sizes()["broker"]
        for topic, batch in hostile:
            assert answer(calls, topic, batch)["error"] == BatchTooLarge.code, topic
        ticket = flight.Ticket(to_json(ReadTicket(topic="flags", partition=0)))
        reading = calls.do_get(ticket)
        assert 0 < reading.read_chunk().data.num_rows < ROWS
        assert attacked.sizes()["broker"] - before < 2 * GROWTH_BYTES_MAX, "3.3 GB in all"
        reading.cancel()
    with sr.Reader(attacked.cluster.bootstrap, security=attacked.settings) as reader:
        assert 0 < next(iter(reader.read("flags"))).batch.num_rows < ROWS
    for name in ("flags", "words", "nothing"):
        admin.delete_topic(name)


def answer(calls: flight.FlightClient, topic: str, batch: pa.RecordBatch) -> dict[str, Any]:
    writer, answers = calls.do_put(flight.FlightDescriptor.for_path(topic, "0"), batch.schema)
    writer.write_batch(batch)
    found: dict[str, Any] = json.loads(answers.read().to_pybytes())
    writer.close()
    return found


@pytest.mark.parametrize("server", ["broker", "controller"])
def test_what_is_not_served_is_refused_without_a_traceback(unharmed: Attacked, server: str) -> None:
    path, other = (flight.FlightDescriptor.for_path("orders", number) for number in ("9" * 5_000, "\u0660"))
    with unharmed.client.client(unharmed.flights[server]) as client:
        attempts: tuple[Callable[[], object], ...] = (
            lambda: client.get_schema(path),
            lambda: [*client.do_exchange(path)[1]],
            lambda: client.get_flight_info(path),
            lambda: client.get_flight_info(other),
            lambda: client.do_get(flight.Ticket(b"\xff")).read_all(),
        )
        for attempt in attempts:
            with pytest.raises((flight.FlightError, OSError)) as refused:
                attempt()
            told = str(refused.value)
            known = error_of_text(told)
            assert known is not None, told
            assert known.code == InvalidRequest.code, told
            assert not re.search(r"Traceback|\.py\b|/\w+/", told), told


def test_what_a_client_asks_for_is_told_with_its_name(unharmed: Attacked) -> None:
    """A change that it may ask for, and an order that it may not give."""
    logs = unharmed.cluster.directory
    with unharmed.client.client(unharmed.flights["controller"]) as calls, pytest.raises(UnknownTopicOrPartition):
        call(calls, ADMIN_REQUESTS[DeleteTopic], DeleteTopic(topic="nothing"), 10_000)
    told = json.loads(last_of(logs / "controller" / "audit.log", "delete_topic"))
    assert told["who"].startswith("client ") or not unharmed.proves
    assert (told["host"], told["outcome"]) == ("127.0.0.1", UnknownTopicOrPartition.code)
    assert json.loads(told["asked"])["topic"] == "nothing"
    if not unharmed.proves:
        return  # any caller may be a broker
    stop = StopPartition(topic=STEERING[3], partition=0, topic_id="x", leader_epoch=EPOCH_MAX, delete=True)
    with unharmed.client.client(unharmed.flights["broker"]) as calls, pytest.raises(ClusterAuthorizationFailed):
        call(calls, STOP_REPLICA, StopReplica(controller_epoch=EPOCH_MAX, partitions=(stop,)), 10_000)
    line = last_of(logs / "logs" / "broker-1" / "audit.log", "stop_replica")
    told = json.loads(line)
    assert (told["action"], told["host"]) == ("stop_replica", "127.0.0.1")
    assert told["outcome"] == ClusterAuthorizationFailed.code
    assert told["who"].startswith("client ")
    assert STEERING[3] in told["asked"]
    assert not STEERS.search(line), "whoever looks at it is safe"


def last_of(log: Path, action: str) -> str:
    return [line for line in log.read_text().splitlines() if f"asked for {action}: " in line][-1]


# What is shown to people.

STEERS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f]")
#: The clipboard, the title, the screen, the same in one character each, and what looks like markup.
STEERING = (
    "\x1b]52;c;ZXZpbA==\x07",
    "\x1b]0;evil\x07",
    "\x1b[2J",
    "\x9b2J",
    "\x9d0;evil\x9c",
    "[link=file:///etc/passwd]here",
    "[/x]",
)


def test_no_row_and_no_name_steers_a_terminal(unharmed: Attacked) -> None:
    schema = pa.schema([(name, pa.string()) for name in STEERING])
    ways = ("--bootstrap", unharmed.cluster.bootstrap, *in_words(unharmed.settings))
    unharmed.cluster.admin.create_topic("letters", schema, partitions=1, replication_factor=1)
    with sr.Producer(unharmed.cluster.bootstrap, security=unharmed.settings) as producer:
        producer.send("letters", pa.record_batch([[text] for text in STEERING], schema=schema), 0).result(CONNECT_S)
    commands: dict[tuple[str, ...], int] = {
        ("consume", "letters"): 0,
        ("topics", "describe", "letters"): 0,
        ("topics", "configure", "letters", f"min.insync.replicas={STEERING[0]}"): 1,
        ("topics",): 0,
        ("brokers",): 0,
    }
    with ThreadPoolExecutor(2) as aside:
        ran = [*aside.map(lambda command: command_line(*command, *ways), commands)]
    for (command, code), found in zip(commands.items(), ran, strict=True):
        shown = found.stdout + found.stderr
        assert (found.returncode, "Traceback" in shown) == (code, False), (command, shown)
        assert not STEERS.search(shown), command
    for text in ("[/x]", r"\x1b[2J", r"\x9b2J"):
        assert ran[0].stdout.count(text) == 2, "as the name of a column, and as its value"
    unharmed.cluster.admin.delete_topic("letters")


def in_words(settings: dict[str, Any]) -> Iterator[str]:
    """As the command line takes them."""
    for name, value in settings.items():
        yield from ("--set", f"{name}={str(value).lower() if isinstance(value, bool) else value}")

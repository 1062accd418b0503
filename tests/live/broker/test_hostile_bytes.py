"""A real broker process, and ten thousand malformed frames and three thousand calls: it refuses each with an error that
has a name, serves the next good one, and is no larger for it."""

from __future__ import annotations

import os
import random
import socket
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

import msgspec
import pyarrow as pa
import pytest
from crc32c import crc32c
from pyarrow import flight

from spark_replication.decoding import error_of_text
from spark_replication.messages.commands import LeaderAndIsr
from spark_replication.messages.envelope import to_json
from spark_replication.messages.frames import from_frame, to_frame
from spark_replication.messages.lane import READS_MAX, ClientFrame, PutFrame, ReadFrame, StreamFrame
from spark_replication.messages.records import BatchMetadata, ReadTicket
from spark_replication.messages.replication import ErrorFrame, FetchFrame, FetchPartition, HelloFrame
from tests.live.broker.brokers import Cluster, Put, read, rows
from tests.live.broker.conftest import StartCluster
from tests.live.broker.test_slow_follower import resident_bytes
from tests.unit.transport.hostile import any_of, damaged, garbage

pytestmark = pytest.mark.live

SEED = int(os.environ.get("HOSTILE_SEED", "20261121"))
FRAMES = 10_000
REQUESTS = 2_900
STREAMS = 100
GOOD_EVERY = 1_000
SOCKET_TIMEOUT_S = 20.0
GROWTH_BYTES_MAX = 96 << 20
STRANGERS = range(1_000, 1 << 30)  # no brokers of this cluster, and hardly one twice: none takes another's place

PATHS = (
    ("orders",),
    ("orders", "-1"),
    ("orders", "x"),
    ("orders", "0", "0"),
    ("", ""),
    ("nothing", "0"),
    ("orders", "9"),
)
ACTIONS = ("metadata", "leader_and_isr", "update_metadata", "stop_replica", "get_replica_log_info", "renew_lease")
BODY = b'{"v":1,"controller_epoch":1,"partitions":[{"topic":"orders","partition":0}],"no_such_key":1}'


def test_malformed_bytes_are_refused_and_change_nothing(start_cluster: StartCluster) -> None:
    print(f"seed={SEED}; replay: HOSTILE_SEED={SEED}")  # noqa: T201 (pytest shows it of a failure)
    rng = random.Random(SEED)
    cluster = start_cluster(brokers=1)
    cluster.create_topic("orders", (1,), min_isr=1)
    served = _served(cluster)
    next(served)
    process = cluster.processes[1]
    before = resident_bytes(process.pid)
    codes: Counter[str] = Counter()
    for hostile, count in ((_frame, FRAMES), (_request, REQUESTS), (_stream, STREAMS)):
        for number in range(count):
            codes[hostile(rng, cluster)] += 1
            if number % GOOD_EVERY == 0:
                next(served)
    next(served)
    assert process.poll() is None
    grown = resident_bytes(process.pid) - before
    assert grown < GROWTH_BYTES_MAX, f"{grown >> 20} MiB more"
    assert {"INVALID_REQUEST", "UNSUPPORTED_VERSION", "INCONSISTENT_CLUSTER_ID", "SCHEMA_MISMATCH"} <= codes.keys()
    assert "UNKNOWN_SERVER_ERROR" not in codes, codes


@pytest.mark.parametrize("epoch", [1 << 31, 1 << 40, 1 << 62])
def test_epochs_that_no_znode_can_have_end_nothing(start_cluster: StartCluster, epoch: int) -> None:
    """A write that rests on one of them is none that a ZooKeeper client can send."""
    cluster = start_cluster(brokers=1)
    cluster.create_topic("orders", (1,), min_isr=1)
    served = _served(cluster)
    next(served)
    file = cluster.file(1)
    fetch = FetchPartition(
        topic="orders",
        partition=0,
        topic_id=cluster.stored("orders").topic_id,
        leader_epoch=cluster.stored("orders").state.leader_epoch,
        offset=3,
        last_epoch=cluster.stored("orders").state.leader_epoch,
        clean_since=0,
    )
    hello = HelloFrame(cluster_id=cluster.cluster_id, broker_id=2, broker_epoch=epoch)
    with socket.create_connection((file.host, file.replication_port), timeout=SOCKET_TIMEOUT_S) as connection:
        connection.sendall(_framed(to_frame(hello)) + _framed(to_frame(FetchFrame(number=1, partitions=(fetch,)))))
        assert _refusal(connection) == "INVALID_REQUEST"
    known = msgspec.structs.replace(cluster.stored("orders"), partition_epoch=epoch)
    later = msgspec.structs.replace(known.state, leader_epoch=epoch)
    for command in (known, msgspec.structs.replace(known, partition_epoch=9, state=later)):
        told = LeaderAndIsr(controller_epoch=1, partitions=(command,), topics={}, brokers={})
        assert _refused(partial(_told, cluster, to_json(told))) == "INVALID_REQUEST"
    next(served)
    assert cluster.processes[1].poll() is None


def _told(cluster: Cluster, command: bytes) -> None:
    with cluster.client(1) as client:
        list(client.do_action(("leader_and_isr", command)))


def _served(cluster: Cluster) -> Iterator[None]:
    """Each step writes and reads a batch, on connections of its own."""
    end = 0
    while True:
        put = Put(cluster.client(1), "orders")
        put.send(rows(end, 3))
        assert put.answer() == {"base_offset": end, "last_offset": end + 2}
        put.close()
        found = read(cluster.client(1), topic="orders", **{"from": end})
        assert pa.Table.from_batches([batch for _, batch in found])["id"].to_pylist() == [end, end + 1, end + 2]
        end += 3
        yield


# Replication.


def _frame(rng: random.Random, cluster: Cluster) -> str:
    """The code of the refusal; "" where the peer hangs up without waiting for one."""
    file = cluster.file(1)
    port = file.replication_port if rng.random() < 0.9 else file.port
    data, is_refused = rng.choice((_frames, _producer, _reader))(rng, cluster.cluster_id)
    with socket.create_connection((file.host, port), timeout=SOCKET_TIMEOUT_S) as connection, suppress(OSError):
        connection.sendall(data)
        if port == file.replication_port and is_refused:
            return _refusal(connection)
    return ""


def _frames(rng: random.Random, cluster_id: str) -> tuple[bytes, bool]:
    """What a peer sends, and whether it is sure to be told what is wrong with it."""
    stranger = rng.choice(STRANGERS)
    hello = _framed(to_frame(HelloFrame(cluster_id=cluster_id, broker_id=stranger, broker_epoch=0)))
    fetch = _framed(to_frame(FetchFrame(number=1, partitions=(_fetch(rng), _fetch(rng)))))
    kinds: tuple[Callable[[], tuple[bytes, bool]], ...] = (
        lambda: (garbage(rng), False),
        lambda: (struct.pack("!II", rng.randrange(1 << 27, 1 << 32), rng.randrange(1 << 32)), True),
        lambda: (_framed(b"\xdf\xff\xff\xff\xff"), True),  # a map of four billion
        lambda: (_framed(b"\x91" * rng.randrange(1, 50_000)), True),
        lambda: (_framed(to_frame(HelloFrame(v=9, cluster_id="x", broker_id=stranger, broker_epoch=0))), True),
        lambda: (_framed(to_frame(HelloFrame(cluster_id="x", broker_id=stranger, broker_epoch=0))), True),
        lambda: (fetch, True),
        lambda: (hello + hello, True),
        lambda: (hello + fetch, False),
        lambda: (hello + fetch + garbage(rng, 2_000), False),
        lambda: (any_of(rng, [hello, fetch]), False),
        lambda: (hello[: rng.randrange(len(hello))], False),
        lambda: (hello + _framed(damaged(rng, to_frame(ErrorFrame(error="E", message="m"))), garbage(rng)), False),
    )
    return rng.choice(kinds)()


def _producer(rng: random.Random, cluster_id: str) -> tuple[bytes, bool]:
    """The same of a producer. Its topic id is no topic's: no batch is stored, whatever becomes of its bytes."""
    client = _framed(to_frame(ClientFrame(cluster_id=rng.choice((cluster_id, "")))))
    schema = bytes(rows(0, 1).schema.serialize())
    stream = to_frame(StreamFrame(stream=0, topic=rng.choice(("orders", "", "\0" * 300)), topic_id="other"))
    opened = client + _framed(stream, schema)
    batch = rows(0, rng.choice((0, 1, 50))).serialize().to_pybytes()
    sent = _put(rng, batch)
    kinds: tuple[Callable[[], tuple[bytes, bool]], ...] = (
        lambda: (_framed(to_frame(ClientFrame(cluster_id="x"))), True),
        lambda: (_framed(to_frame(ClientFrame(cluster_id=cluster_id, nonce=b"n" * 32))), True),
        lambda: (client + client, True),
        lambda: (client + sent, True),
        lambda: (client + _framed(stream, garbage(rng)), True),
        lambda: (opened + _framed(stream, schema), True),
        lambda: (sent, True),
        lambda: (client + _framed(damaged(rng, stream), schema) + sent, False),
        lambda: (client + _framed(stream, damaged(rng, schema)) + sent, False),
        lambda: (opened + _framed(damaged(rng, to_frame(_metadata(rng, batch))), batch), False),
        lambda: (opened + b"".join(_put(rng, damaged(rng, batch), number) for number in range(5)), False),
        lambda: (opened + sent + garbage(rng, 2_000), False),
        lambda: (any_of(rng, [opened + sent]), False),
    )
    return rng.choice(kinds)()


def _reader(rng: random.Random, cluster_id: str) -> tuple[bytes, bool]:
    """The same of a reader."""
    client = _framed(to_frame(ClientFrame(cluster_id=rng.choice((cluster_id, "")), reads=True)))
    asked = to_frame(_read(rng, 0))
    many = msgspec.msgpack.decode(asked)
    many["ticket"]["columns"] = ["id"] * 500
    kinds: tuple[Callable[[], tuple[bytes, bool]], ...] = (
        lambda: (client + client, True),
        lambda: (client + _put(rng, b""), True),
        lambda: (client + _framed(msgspec.msgpack.encode(many)), True),
        lambda: (_framed(asked), True),
        lambda: (client + _framed(asked) * (READS_MAX + 1), False),
        lambda: (client + b"".join(_framed(to_frame(_read(rng, 0))) for _ in range(2)), False),
        lambda: (client + b"".join(_framed(to_frame(_read(rng, number))) for number in range(20)), False),
        lambda: (client + _framed(damaged(rng, asked)), False),
        lambda: (client + _framed(asked, garbage(rng)), False),
        lambda: (client + _framed(asked) + garbage(rng, 2_000), False),
        lambda: (client + struct.pack("!II", rng.randrange(2 << 20, 1 << 32), 0), True),
        lambda: (any_of(rng, [client, client + _framed(asked)]), False),
    )
    return rng.choice(kinds)()


def _read(rng: random.Random, number: int) -> ReadFrame:
    ticket = ReadTicket(
        topic=rng.choice(("orders", "orders", "nothing", "", "\0" * 300)),
        partition=rng.choice((0, 0, 1, (1 << 31) - 1)),
        from_offset=rng.choice((0, 1, (1 << 63) - 1, "earliest", "latest")),
        max_wait_ms=rng.choice((0, 300_000)),
        columns=rng.choice((None, (), ("id",), ("nothing", "\0"))),
        any_replica=rng.random() < 0.3,
        topic_id=rng.choice((None, None, "other")),
    )
    return ReadFrame(number=number, ticket=ticket, checked=rng.random() < 0.3)


def _put(rng: random.Random, payload: bytes, number: int = 0) -> bytes:
    return _framed(to_frame(_metadata(rng, payload, number)), payload)


def _metadata(rng: random.Random, payload: bytes, number: int = 0) -> PutFrame:
    """With the right checksum: else that refuses the payload before anything looks at it."""
    producer = rng.choice((None, 7, (1 << 63) - 1))
    asked = BatchMetadata(
        partition=rng.choice((0, 0, 0, 1, None)),
        acks=rng.choice(("all", 0, 1)),
        producer=producer,
        sequence=None if producer is None else rng.choice((0, 1, (1 << 63) - 1)),
    )
    return PutFrame(stream=0, number=number, crc=crc32c(payload), batch=asked)


def _framed(header: bytes, payload: bytes = b"") -> bytes:
    return struct.pack("!II", len(header), len(payload)) + header + payload


def _fetch(rng: random.Random) -> FetchPartition:
    return FetchPartition(
        topic=rng.choice(("orders", "nothing", "", "\0" * 300)),
        partition=rng.choice((0, 1, -1, 1 << 40)),
        topic_id=rng.choice(("ordersId", "", "other")),
        leader_epoch=rng.choice((0, 1, (1 << 31) - 1)),
        offset=rng.choice((0, -1, 1 << 62, 7)),
        last_epoch=rng.choice((-1, 0, 1 << 30)),
        clean_since=rng.choice((0, 1 << 30)),
    )


def _refusal(connection: socket.socket) -> str:
    with connection.makefile("rb") as stream:
        while True:
            header, payload = struct.unpack("!II", stream.read(8))
            frame = from_frame(stream.read(header))
            stream.read(payload)
            if isinstance(frame, ErrorFrame):
                return frame.error


# Flight.


def _request(rng: random.Random, cluster: Cluster) -> str:
    client = cluster.client(1)
    ticket = to_json(ReadTicket(topic="orders", partition=0, to=2))
    kinds: tuple[Callable[[], object], ...] = (
        lambda: list(client.do_get(flight.Ticket(any_of(rng, [ticket])))),
        lambda: list(client.do_get(flight.Ticket(b'{"topic":"orders","partition":0,"from":%d}' % rng.getrandbits(63)))),
        lambda: list(client.do_get(flight.Ticket(b'{"topic":"orders","partition":%d}' % -rng.getrandbits(70)))),
        lambda: list(client.do_get(flight.Ticket(b'{"topic":"orders","partition":0,"columns":["x"]}'))),
        lambda: list(client.do_action((rng.choice(ACTIONS), any_of(rng, [BODY]) + b"\xff"))),
        lambda: list(client.do_action((garbage(rng, 20).hex(), garbage(rng)))),
        lambda: client.get_flight_info(flight.FlightDescriptor.for_path(*rng.choice(PATHS[1:]))),
        lambda: client.get_flight_info(flight.FlightDescriptor.for_command(garbage(rng))),
    )
    with client:
        return _refused(rng.choice(kinds))


def _refused(attempt: Callable[[], object]) -> str:
    """The code that a Flight error carries. A damaged ticket may still be one: then there is none."""
    try:
        attempt()
    except (flight.FlightError, pa.ArrowException) as error:
        text = str(error)
    else:
        return ""
    known = error_of_text(text)
    assert known is not None, f"it has no code: {text}"
    return known.code


def _stream(rng: random.Random, cluster: Cluster) -> str:
    """A write stream that is wrong from the start, or a good one on which something wrong comes."""
    with cluster.client(1) as client:
        kind = rng.randrange(3)
        if kind == 0:
            return _refused(lambda: _answer_on(client, PATHS[rng.randrange(len(PATHS))], rows(0, 1), None))
        if kind == 1:
            other = pa.record_batch([pa.array([1.5])], names=["price"])
            return _answer_on(client, ("orders", "0"), other, None)
        metadata = b"\xff" + any_of(rng, [b'{"acks":"all","producer":1,"epoch":0,"sequence":7}'])
        return _answer_on(client, ("orders", "0"), rows(0, 1), metadata)


def _answer_on(
    client: flight.FlightClient, path: tuple[str, ...], batch: pa.RecordBatch, metadata: bytes | None
) -> str:
    writer, answers = client.do_put(flight.FlightDescriptor.for_path(*path), batch.schema)
    try:
        if metadata is None:
            writer.write_batch(batch)
        else:
            writer.write_with_metadata(batch, metadata)
        told = answers.read()
        writer.done_writing()
    finally:
        writer.close()  # raises what the server refused the stream with
    answer = msgspec.json.decode(told.to_pybytes())
    (answer,) = answer.get("answers", (answer,))  # of a topic's stream
    return str(answer["error"])

"""What reads and writes may take of a broker, and that they give it back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyarrow import flight

from spark_replication.errors import Overloaded
from spark_replication.transport.flight.limits import Room
from tests.unit.transport.flight_broker import FlightBroker, get, written
from tests.waiting import eventually

SCHEMA = pa.schema([("text", pa.string())])
LONG_MS = 300_000

Start = Callable[..., FlightBroker]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """`start(flight_reads_max=3)`."""
    started: list[FlightBroker] = []

    def begin(**settings: Any) -> FlightBroker:
        started.append(FlightBroker(tmp_path / f"broker-{len(started)}", SCHEMA, **settings))
        return started[-1]

    yield begin
    for broker in started:
        broker.close()


def texts(size: int, count: int = 1) -> pa.RecordBatch:
    return pa.record_batch([pa.array(["x" * size] * count)], schema=SCHEMA)


def refusal(ask: Callable[[], object]) -> str:
    """The code of the error that it ends with, or ""."""
    try:
        ask()
    except flight.FlightError as error:
        return str(error).partition(":")[0]
    return ""


def test_reads_that_wait_leave_room_for_writes(start: Start) -> None:
    broker = start(flight_reads_max=2, flight_writes_max=1)
    client = broker.client()
    waiting = [get(client, max_wait_ms=LONG_MS) for _ in range(2)]
    eventually(lambda: broker.waiters() == 2, "both wait")
    assert refusal(lambda: get(client).read_all()) == "THROTTLING_QUOTA_EXCEEDED"
    assert b"base_offset" in written(client, texts(1))
    assert [stream.read_chunk().data.num_rows for stream in waiting] == [1, 1]


def test_more_writes_than_allowed_are_refused(start: Start) -> None:
    broker = start(flight_writes_max=1)
    client = broker.client()
    path = flight.FlightDescriptor.for_path("orders", "0")
    writer, reader = client.do_put(path, SCHEMA)
    writer.write_batch(texts(1))
    assert b"base_offset" in reader.read().to_pybytes()
    assert refusal(lambda: written(client, texts(1))) == "THROTTLING_QUOTA_EXCEEDED"
    assert len(get(client).read_all()) == 1
    writer.close()
    assert b"base_offset" in written(client, texts(1))


def test_a_read_that_is_cancelled_makes_room_before_its_wait_is_over(start: Start) -> None:
    broker = start(flight_reads_max=3)
    client = broker.client()
    for _ in range(3):
        get(client, max_wait_ms=LONG_MS).cancel()
    eventually(lambda: refusal(lambda: get(client).read_all()) == "", "a read is served again")
    eventually(lambda: broker.waiters() == 0, "nobody waits any longer")


def test_a_read_that_is_refused_leaves_nothing_behind(start: Start) -> None:
    broker = start(flight_reads_max=1)
    client = broker.client()
    waiting = get(client, max_wait_ms=LONG_MS)
    eventually(lambda: broker.waiters() == 1, "it waits")
    for _ in range(20):
        assert refusal(lambda: get(client, max_wait_ms=LONG_MS).read_all()) == "THROTTLING_QUOTA_EXCEEDED"
    assert broker.waiters() == 1
    waiting.cancel()


def test_a_read_that_waited_in_vain_leaves_nothing_behind(start: Start) -> None:
    broker = start()
    assert len(get(broker.client(), max_wait_ms=1).read_all()) == 0
    eventually(lambda: broker.waiters() == 0, "it waits no longer")


def test_what_cannot_be_served_is_refused_as_a_whole_and_gives_its_place_back(start: Start) -> None:
    broker = start(flight_reads_max=1)
    client = broker.client()
    for _ in range(3):
        assert refusal(lambda: get(client, from_offset=99)) == "OFFSET_OUT_OF_RANGE"
    assert len(get(client).read_all()) == 0


# What reads hold


def filled(broker: FlightBroker, batches: int, size: int) -> None:
    client = broker.client()
    for _ in range(batches):
        assert b"base_offset" in written(client, texts(size))


# A consumer that does not read takes 64 KiB all the same; by default gRPC takes megabytes for it.
STALLS = (("grpc.http2.bdp_probe", 0), ("grpc.use_local_subchannel_pool", 1))


def taken(broker: FlightBroker) -> int:
    return broker.settings.flight_read_bytes_max - broker.server._read_room.free


def test_the_more_consumers_stall_the_less_each_of_them_holds(start: Start) -> None:
    broker = start(flight_read_bytes_max=4 << 20)
    filled(broker, 20, 100_000)
    client = broker.client(*STALLS)
    stalled = [get(client) for _ in range(20)]
    eventually(lambda: taken(broker) >= 20 * 100_000, "each holds a batch at least")
    assert len(get(broker.client()).read_all()) == 20, "there is room for one that reads"
    assert taken(broker) <= 4 << 20
    for stream in stalled:
        stream.cancel()
    eventually(lambda: taken(broker) == 0, "it is given back")


def test_reads_that_find_no_room_are_refused_until_others_give_some_back(start: Start) -> None:
    broker = start(flight_read_bytes_max=1 << 20, request_timeout_ms=200)
    filled(broker, 4, 300_000)
    client = broker.client()
    slow = broker.client(*STALLS)
    stalled = [get(slow) for _ in range(3)]
    full = "THROTTLING_QUOTA_EXCEEDED"
    eventually(lambda: refusal(lambda: get(client, to=1).read_all()) == full, "there is no room for another batch")
    assert 900_000 < taken(broker) <= 1 << 20
    assert b"base_offset" in written(client, texts(1)), "writes need nothing of it"
    stalled.pop().cancel()
    eventually(lambda: refusal(lambda: get(client, to=1).read_all()) == "", "what one gave back is enough for another")


def test_a_batch_that_is_larger_than_all_the_room_is_read_alone(start: Start) -> None:
    broker = start(flight_read_bytes_max=1_000)
    filled(broker, 3, 100_000)
    assert len(get(broker.client()).read_all()) == 3


def test_room_is_waited_for_and_not_longer_than_somebody_wants_it() -> None:
    room = Room(100, "some.bytes.max", wait_s=60)
    room.take(60)
    room.take(40)
    assert room.free == 0
    with pytest.raises(Overloaded, match=r"some\.bytes\.max=100 are in use"):
        room.take(1, unwanted=lambda: True)
    waiting = threading.Thread(target=room.take, args=(50,), daemon=True)
    waiting.start()
    room.give_back(60)
    waiting.join(60)
    assert room.free == 10


# What writes hold


def test_batches_that_are_taken_in_at_one_time_are_bounded_and_refused_for_now(start: Start) -> None:
    broker = start(flight_write_bytes_max=1 << 20, request_timeout_ms=200)
    client = broker.client()
    broker.server._write_room.take(1 << 20)
    answer = msgspec.json.decode(written(client, texts(100_000)))
    assert (answer["error"], answer["retriable"], answer["maybe_written"]) == (
        "THROTTLING_QUOTA_EXCEEDED",
        True,
        False,
    )
    broker.server._write_room.give_back(1 << 20)
    assert b"base_offset" in written(client, texts(100_000))
    assert broker.server._write_room.free == 1 << 20


def test_a_batch_over_the_cap_is_refused_and_holds_nothing(start: Start) -> None:
    broker = start(batch_bytes_max=50_000, flight_write_bytes_max=60_000, request_timeout_ms=60_000)
    client = broker.client()
    broker.server._write_room.take(10_000)
    assert msgspec.json.decode(written(client, texts(100_000)))["error"] == "MESSAGE_TOO_LARGE"
    assert b"base_offset" in written(client, texts(40_000))
    broker.server._write_room.give_back(10_000)
    assert broker.server._write_room.free == 60_000


@pytest.mark.parametrize(
    "path", [(), ("orders", "\u0660"), ("orders", "9" * 5_000), ("orders", "00"), ("orders", "0", "0")]
)
def test_a_path_that_names_no_partition_is_refused(start: Start, path: tuple[str, ...]) -> None:
    client = start().client()
    with pytest.raises(
        flight.FlightServerError, match=r"INVALID_REQUEST: the descriptor's path is .*, not \["
    ) as refused:
        client.get_flight_info(flight.FlightDescriptor.for_path(*path))
    assert len(str(refused.value)) < 2_000

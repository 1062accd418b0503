"""Routes from the tables: a key goes where clients send it, and a leader counts once it has confirmed that it leads."""

from __future__ import annotations

import pickle
import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from spark_replication.core.routing import Routing, partition_of
from spark_replication.errors import InvalidRequest, StorageFailed, UnknownTopicOrPartition
from spark_replication.messages.descriptions import TopicMetadata
from spark_replication.mirror.asking.routing import Leader, LeaderTable
from spark_replication.mirror.tables.keys import key_bytes
from spark_replication.model import TopicConfig
from tests.live.mirror.mirror_stories import broker_row, command, gone, row, write_brokers, write_partitions

KEYS = ["", "a", "ü", "order-17", "x" * 300, *map(str, range(-500, 500))]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "mirror")


def routing(*numbers: int) -> Routing:
    partitions = tuple(command("orders", number) for number in numbers)
    topic = TopicMetadata(name="orders", topic_id="first", config=TopicConfig(), partitions=partitions)
    return Routing(topics={"orders": topic})


@pytest.mark.parametrize("numbers", [[0], [0, 1, 2], [7, 2, 5], [*range(17)]])
def test_a_key_goes_where_clients_send_it(path: str, numbers: list[int]) -> None:
    """Of the partitions that exist: removed ones do not count, nor those of other topics."""
    rows = [row(command("orders", number), 10) for number in numbers]
    dead = [gone("orders", number, 9) for number in (1, 30) if number not in numbers]
    write_partitions(path, *rows, row(command("other", 99), 10), dead=dead)
    write_brokers(path, broker_row(1, 1))
    found = LeaderTable(path).partition_of("orders", pa.array([*KEYS, *KEYS]))
    known = routing(*numbers).topic("orders")
    expected = [partition_of(known, key.encode()) for key in KEYS]
    assert found.type == pa.int32()
    assert found.to_pylist() == [*expected, *expected]
    assert LeaderTable(path).partition_of("orders", pa.array([], pa.string())).to_pylist() == []


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (pa.array(["ü", None, ""]), ["ü".encode(), b"", b""]),
        (pa.array([b"\x00\xff", None]), [b"\x00\xff", b""]),
        (pa.array([b"ab", None], pa.binary(2)), [b"ab", b""]),
        (pa.array([b"ab"], pa.binary_view()), [b"ab"]),
        (pa.array(["ab"], pa.string_view()), [b"ab"]),
        (pa.array([-5, None, 2**62]), [b"-5", b"", b"4611686018427387904"]),
        (pa.array([7], pa.int8()), [b"7"]),
        (pa.array([True, False, None]), [b"true", b"false", b""]),
        (
            pa.array([date(2026, 3, 1), date(1, 1, 1), date(9999, 12, 31)]),
            [b"2026-03-01", b"0001-01-01", b"9999-12-31"],
        ),
        (pa.array(["a", "b", "a", None]).dictionary_encode(), [b"a", b"b", b"a", b""]),
        (pa.nulls(2), [b"", b""]),
        (pa.chunked_array([["a"], ["b"]]), [b"a", b"b"]),
        (pa.StructArray.from_arrays([pa.array(["a", None]), pa.array([1, 2])], ["x", "y"]), [b"a\x1f1", b"\x1f2"]),
        (pa.StructArray.from_arrays([pa.array(["a", "b"])], ["x"]), [b"a", b"b"]),
    ],
)
def test_the_bytes_of_a_key(keys: pa.Array, expected: list[bytes]) -> None:
    assert key_bytes(keys).to_pylist() == expected


def test_a_slice_has_the_keys_that_it_shows() -> None:
    struct = pa.StructArray.from_arrays([pa.array(["a", "b", "c"]), pa.array([1, 2, 3])], ["x", "y"])
    assert key_bytes(struct.slice(1, 1)).to_pylist() == [b"b\x1f2"]
    assert key_bytes(pa.array(["a", "b", "c"]).slice(2)).to_pylist() == [b"c"]


@pytest.mark.parametrize(
    "keys",
    [
        pa.array([1.5]),
        pa.array([datetime(2026, 1, 1, tzinfo=UTC)]),
        pa.array([Decimal("1.0")]),
        pa.array([["a"]]),
        pa.StructArray.from_arrays([pa.array([1.5])], ["x"]),
        pa.StructArray.from_arrays([], []),
    ],
    ids=lambda keys: str(keys.type),
)
def test_a_key_whose_text_depends_on_settings_is_refused(keys: pa.Array) -> None:
    with pytest.raises(InvalidRequest, match="key"):
        key_bytes(keys)


def test_a_route_is_a_leader_that_has_confirmed_and_lives(path: str) -> None:
    write_partitions(
        path,
        row(command("orders", 0, leader=1, leader_epoch=4), 10, active_epoch=4),
        row(command("orders", 1, leader=2, leader_epoch=5), 11, active_epoch=4),
        row(command("orders", 2, leader=None, leader_epoch=6), 12, active_epoch=6),
        row(command("orders", 3, leader=3, leader_epoch=7), 13, active_epoch=7),
        dead=[gone("orders", 4, 14), gone("old", 0, 14)],
    )
    write_brokers(path, broker_row(1, 1), broker_row(2, 1), dead=[(3, 2)])
    table = LeaderTable(path)
    assert [table.route("orders", number) for number in range(4)] == [Leader(1, "host1:9001", 4), None, None, None]
    for topic, partition in (("orders", 4), ("old", 0), ("none", 0)):
        with pytest.raises(UnknownTopicOrPartition, match="refresh") as raised:
            table.route(topic, partition)
        assert raised.value.stale_routes


def test_it_shows_what_it_has_read_until_it_is_refreshed(path: str) -> None:
    write_brokers(path, broker_row(1, 1), broker_row(2, 1))
    write_partitions(path, row(command("orders", 0, leader=1), 10, active_epoch=0))
    table = LeaderTable(path)
    assert table.route("orders", 0) == Leader(1, "host1:9001", 0)
    write_partitions(path, row(command("orders", 0, leader=2, leader_epoch=1), 11, active_epoch=1))
    assert table.route("orders", 0) == Leader(1, "host1:9001", 0)
    table.refresh()
    assert table.route("orders", 0) == Leader(2, "host2:9002", 1)


def test_what_was_known_stays_when_the_tables_cannot_be_read(path: str) -> None:
    write_brokers(path, broker_row(1, 1))
    write_partitions(path, row(command("orders", 0, leader=1), 10, active_epoch=0))
    table = LeaderTable(path)
    known = table.route("orders", 0)
    for file in Path(path, "brokers").glob("*.parquet"):
        file.unlink()
    with pytest.raises(StorageFailed, match="cannot be read") as raised:
        table.refresh()
    assert raised.value.retriable
    assert table.route("orders", 0) == known


def test_no_tables_say_what_to_name(path: str) -> None:
    with pytest.raises(InvalidRequest, match="name the mirror"):
        LeaderTable(path).route("orders", 0)


@pytest.mark.slow
def test_another_process_reads_the_table_anew_and_needs_no_spark(path: str) -> None:
    write_brokers(path, broker_row(1, 1), broker_row(2, 1))
    write_partitions(path, row(command("orders", 0, leader=1), 10, active_epoch=0))
    table = LeaderTable(path)
    assert table.route("orders", 0) == Leader(1, "host1:9001", 0)
    write_partitions(path, row(command("orders", 0, leader=2, leader_epoch=1), 11, active_epoch=1))
    program = (
        "import pickle, sys; table = pickle.load(sys.stdin.buffer); print(tuple(table.route('orders', 0)), "
        "sorted({'pyspark', 'kazoo'} & sys.modules.keys()))"
    )
    told = subprocess.run([sys.executable, "-c", program], input=pickle.dumps(table), capture_output=True, check=True)
    assert told.stdout.decode().strip() == "(2, 'host2:9002', 1) []"

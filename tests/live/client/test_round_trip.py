"""A million rows of many types through three real brokers: the same bytes on each, the same rows to every reader."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
import numpy
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import flight

import spark_replication as sr
from spark_replication.config import Compression
from spark_replication.errors import InvalidRequest

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

SEED = 20261121
DEADLINE_S = 60.0
SEGMENT_BYTES = 2 << 20
LARGE = "a large string " * 4_000

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("value", pa.float64()),
        ("text", pa.string()),
        ("bytes", pa.binary()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("amount", pa.decimal128(20, 4)),
        ("flag", pa.bool_()),
        ("numbers", pa.list_(pa.int32())),
        ("held", pa.struct([("name", pa.string()), ("rank", pa.int16())])),
    ]
)


def rows(count: int) -> pa.Table:
    """Each column with nulls, but for the first; the text of every ten-thousandth row is large."""
    rng = numpy.random.default_rng(SEED)
    ids = numpy.arange(count)
    number = pa.array(ids)
    missing = [pa.array(rng.random(count) < 0.1) for _ in range(8)]
    text = pc.binary_join_element_wise("row", pc.cast(number, pa.string()), " ")
    large = ids % 10_000 == 7
    text = pc.replace_with_mask(text, pa.array(large), pa.array([LARGE] * int(large.sum())))
    lengths = rng.integers(0, 4, count)
    ends = numpy.concatenate(([0], lengths.cumsum())).astype(numpy.int32)
    numbers = pa.ListArray.from_arrays(pa.array(ends), pa.array(rng.integers(0, 100, ends[-1]), pa.int32()))
    ranks = pa.array(ids % 1_000, pa.int16(), mask=rng.random(count) < 0.2)
    whole = [
        pa.array(rng.standard_normal(count)),
        text,
        pc.cast(text, pa.binary()),
        pa.array(ids * 1_000_003, pa.timestamp("us", tz="UTC")),
        pc.cast(pc.cast(number, pa.decimal128(19, 0)), pa.decimal128(20, 4)),
        pa.array(ids % 3 == 0),
        numbers,
        pa.StructArray.from_arrays([text, ranks], fields=list(SCHEMA.field("held").type)),
    ]
    columns = [
        pc.if_else(gone, pa.scalar(None, column.type), column) for gone, column in zip(missing, whole, strict=True)
    ]
    return pa.Table.from_arrays([number, *columns], schema=SCHEMA)


def mixed_batches(table: pa.Table) -> Iterator[pa.RecordBatch]:
    rng = random.Random(SEED)
    whole = table.combine_chunks().to_batches()[0]
    start = 0
    while start < whole.num_rows:
        size = rng.choice((1, 1, 9, 100, 2_500, 20_000, 40_000))
        yield whole.slice(start, size)
        start += size


@pytest.fixture(scope="module")
def cluster() -> Iterator[sr.LocalCluster]:
    with sr.LocalCluster.start(brokers=3) as cluster:
        cluster.wait_healthy()
        yield cluster


@pytest.mark.parametrize(("compression", "count"), [("none", 1_000_000), ("zstd", 200_000)])
def test_what_is_produced_is_what_every_reader_reads(
    cluster: sr.LocalCluster, compression: Compression, count: int
) -> None:
    topic = f"rows.{compression}"
    config: dict[str, str | int] = {"compression": compression, "segment.bytes": SEGMENT_BYTES}
    cluster.admin.create_topic(topic, SCHEMA, partitions=1, config=config)
    table = rows(count)
    with sr.Producer(cluster.bootstrap) as producer:
        futures = [producer.send(topic, batch, 0) for batch in mixed_batches(table)]
        empty = producer.send(topic, table.slice(0, 0), 0)
    assert isinstance(empty.exception(), InvalidRequest), "a batch without rows has no offsets, and is refused"
    acks = [future.result() for future in futures]
    assert [ack.base_offset for ack in acks] == [0, *(ack.last_offset + 1 for ack in acks[:-1])]
    assert acks[-1].last_offset == count - 1

    for prefer in ("leader", 1, 2, 3):
        with sr.Reader(cluster.bootstrap, prefer=prefer) as reader:
            found = list(reader.read(topic))
        assert pa.Table.from_batches([each.batch for each in found]).equals(table), f"read from {prefer}"
        assert [each.base_offset for each in found] == [0, *(each.last_offset + 1 for each in found[:-1])]
        assert len(found) < len(acks), "small sends are stored together"
    assert _read_without_us(cluster, topic).equals(table)

    folders = _folders(cluster, topic)
    stored = sum(len(data) for name, data in _held_alike(folders).items() if name.endswith(".arrow"))
    assert (stored < table.nbytes / 2) == (compression != "none")
    closed, *_, last = sorted(folders[0].glob("*.arrow"))
    assert closed != last, "there is a closed segment"
    _check_segment(closed, table)
    verified = subprocess.run(
        [sys.executable, "-m", "spark_replication", "log", "verify", *(folder.parent for folder in folders)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (verified.returncode, verified.stderr) == (0, "")


def _read_without_us(cluster: sr.LocalCluster, topic: str) -> pa.Table:
    """Any Flight client."""
    address = cluster.bootstrap.split(",")[0]
    with flight.connect(f"grpc://{address}") as any_broker:
        info = any_broker.get_flight_info(flight.FlightDescriptor.for_path(topic, "0"))
    (endpoint,) = info.endpoints
    with flight.connect(endpoint.locations[0]) as leader:
        return leader.do_get(endpoint.ticket).read_all()


def _folders(cluster: sr.LocalCluster, topic: str) -> list[Path]:
    (described,) = cluster.admin.describe_topics([topic])
    return [Path(broker.log_dir) / f"{topic}-0.{described.topic_id}" for broker in cluster.brokers.values()]


def _held_alike(folders: list[Path]) -> dict[str, bytes]:
    """The segments' files, once all folders have the same: acks=all waits for the in-sync replicas alone."""
    deadline_s = time.monotonic() + DEADLINE_S
    while True:
        held = [{path.name: path.read_bytes() for path in folder.glob("0*")} for folder in folders]
        if held[0] == held[1] == held[2]:
            assert len(held[0]) >= 4
            return held[0]
        assert time.monotonic() < deadline_s, [sorted((n, len(data)) for n, data in each.items()) for each in held]
        os.sched_yield()


def _check_segment(path: Path, table: pa.Table) -> None:
    """The first segment, opened as it is."""
    with pa.memory_map(str(path)) as file:
        read = pa.ipc.open_stream(file).read_all()
    expected = table.slice(0, read.num_rows)
    assert read.num_rows > 1_000
    assert read.equals(expected)
    assert polars.read_ipc_stream(path).equals(polars.DataFrame(expected))
    with pa.memory_map(str(path)) as file:
        stream = pa.ipc.open_stream(file)
        with duckdb.connect() as database:
            database.register("segment", stream)
            asked = "SELECT count(*), sum(id), count(held), sum(amount) FROM segment"
            counted = database.execute(asked).fetchone()
    assert counted == (
        read.num_rows,
        pc.sum(expected["id"]).as_py(),
        read.num_rows - expected["held"].null_count,
        pc.sum(expected["amount"]).as_py(),
    )

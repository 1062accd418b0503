"""Spark, polars and DuckDB read a topic's table, and skip files by what the table keeps of their columns."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from spark_replication.process.threads import now_ms
from spark_replication.tables.delta_table import DeltaTopicTable, TableOwner
from spark_replication.tables.joining import join
from spark_replication.tables.parquet_files import StoredRows
from tests.unit.tables.table_stories import rows, uploads

pytestmark = [pytest.mark.live, pytest.mark.spark, pytest.mark.timeout(240)]

OWNER = TableOwner(cluster_id="ours", topic="orders", topic_id="first")
NOON = datetime(2026, 11, 28, 12, tzinfo=UTC)
COMMITS, ROWS = 6, 10
SCHEMA = pa.schema(
    [
        ("id", pa.uint64()),
        ("price", pa.float64()),
        ("name", pa.string_view()),
        ("at", pa.timestamp("ms", "Europe/Berlin")),
        ("wall", pa.timestamp("us")),
        ("day", pa.date64()),
        ("tags", pa.large_list(pa.string())),
        ("nested", pa.struct([("x", pa.uint8()), ("y", pa.map_(pa.string(), pa.int16()))])),
        ("raw", pa.binary(2)),
        ("odd, {name}=1.5", pa.int32()),
    ]
)
UNBOUNDED = 4  # the offset, divided by ROWS, of the file in which a price is NaN


def value(offset: int) -> dict[str, Any]:
    return {
        "id": (1 << 64) - 1 - offset,
        "price": math.nan if offset == ROWS * UNBOUNDED else float(offset),
        "name": None if offset % 7 == 3 else f"{offset:03} " + "x" * 40,
        "at": NOON + timedelta(minutes=offset),
        "wall": (NOON + timedelta(minutes=offset)).replace(tzinfo=None),
        "day": (NOON + timedelta(days=offset)).date(),
        "tags": [f"t{offset}", None],
        "nested": {"x": offset, "y": {"k": offset}},
        "raw": b"ab",
        "odd, {name}=1.5": offset,
    }


@pytest.fixture
def table(tmp_path: Path) -> DeltaTopicTable:
    """A file for each ten rows of partition 1, and one with partition 0."""
    found = DeltaTopicTable(str(tmp_path / "orders"), OWNER, SCHEMA, now_ms=now_ms)
    for start in range(0, COMMITS * ROWS, ROWS):
        added = [rows(1, start, start + ROWS)]
        values = [{**value(at), "nested": {"x": at, "y": [("k", at)]}} for at in range(start, start + ROWS)]
        stored = [StoredRows(1, start, 1_000 * start, 3, pa.RecordBatch.from_pylist(values, SCHEMA))]
        if start == 0:
            added.insert(0, rows(0, 0, 1))
            stored.insert(0, StoredRows(0, 0, 0, 3, stored[0].batch.slice(0, 1)))
        found.commit(found.load(), added, uploads(found, stored))
    return found


def read(spark: SparkSession, table: DeltaTopicTable, where: str = "true") -> DataFrame:
    return spark.read.format("delta").load(table.folder.uri).where(where)


def test_spark_reads_what_was_written(table: DeltaTopicTable, spark: SparkSession) -> None:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    found = read(spark, table, "_partition = 1").orderBy("_offset").collect()
    assert [row["_offset"] for row in found] == [*range(COMMITS * ROWS)]
    for row in found:
        at = row["_offset"]
        expected = value(at)
        assert row["id"] == Decimal(expected["id"])
        assert row["price"] == expected["price"] or (math.isnan(row["price"]) and math.isnan(expected["price"]))
        assert (row["name"], row["wall"], row["day"]) == (expected["name"], expected["wall"], expected["day"])
        assert row["at"].astimezone(UTC) == expected["at"]
        assert (row["tags"], row["nested"].asDict(), bytes(row["raw"])) == (expected["tags"], expected["nested"], b"ab")
        assert (row["_leader_epoch"], row["_timestamp"].astimezone(UTC).second) == (3, (at // ROWS * ROWS) % 60)


@pytest.mark.parametrize(
    ("where", "files", "count"),
    [
        ("_partition = 1 AND _offset BETWEEN 20 AND 29", 1, 10),
        ("_offset >= 35", 3, 25),
        ("_partition = 0", 1, 1),
        ("id = 18446744073709551590", 1, 1),
        ("name > '05'", 1, 8),
        ("at >= TIMESTAMP '2026-11-28T12:49:59.999999Z'", 1, 10),
        ("wall < TIMESTAMP_NTZ '2026-11-28 12:10:00'", 1, 11),
        ("day = DATE '2026-12-10'", 1, 1),
        ("nested.x < 10", 1, 11),
        ("`odd, {name}=1.5` = 33", 1, 1),
        ("_timestamp >= TIMESTAMP '1970-01-01T00:00:50Z'", 1, 10),
        # NaN is above all numbers: its file is read, whatever is asked for.
        ("price > 55", 2, 5),
    ],
)
def test_spark_skips_files(table: DeltaTopicTable, spark: SparkSession, where: str, files: int, count: int) -> None:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    found = read(spark, table, where)
    assert found.count() == count
    assert len(found.inputFiles()) == files


def test_others_read_it(table: DeltaTopicTable) -> None:
    found = pl.scan_delta(table.folder.uri).filter((pl.col("_partition") == 1) & (pl.col("_offset") >= 55)).collect()
    assert found.sort("_offset")["price"].to_list() == [55.0, 56.0, 57.0, 58.0, 59.0]
    files = DeltaTable(table.folder.uri).file_uris()
    query = "SELECT count(*), min(id), sum(_offset) FROM read_parquet($1) WHERE _partition = 1"
    total = COMMITS * ROWS
    with duckdb.connect() as duck:
        sums = duck.execute(query, [files]).fetchone()
    assert sums == (total, Decimal((1 << 64) - total), total * (total - 1) // 2)


def test_spark_and_we_tidy_and_write_the_same_table(table: DeltaTopicTable, spark: SparkSession) -> None:
    before = table.load()
    assert join(table.folder, OWNER, 8 << 20, now_ms, 2) == COMMITS
    assert read(spark, table).count() == COMMITS * ROWS + 1
    total = COMMITS * ROWS
    for start in (total, total + 1):
        batch = pa.RecordBatch.from_pylist([{**value(0), "nested": {"x": 0, "y": [("k", 0)]}}], SCHEMA)
        files = uploads(table, [StoredRows(1, start, 0, 3, batch)])
        table.commit(table.load(), [rows(1, start, start + 1)], files)
    spark.sql(f"OPTIMIZE delta.`{table.folder.uri}`")
    after = table.load()
    assert (after.ends, after.epochs) == ({0: 1, 1: total + 2}, before.epochs)
    assert read(spark, table).count() == total + 3
    sealed = table.seal(after, {1: 9})
    assert sealed == DeltaTopicTable(table.folder.uri, OWNER, SCHEMA, now_ms=now_ms).load()

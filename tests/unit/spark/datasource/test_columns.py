"""Columns on their way to Spark and back."""

from __future__ import annotations

import base64
import decimal
import zlib

import pyarrow as pa
import pytest
from msgspec.structs import replace
from pyspark.sql.types import StructType

from spark_replication.client.producing.placing import Placing
from spark_replication.client.reading.log_batch import METADATA
from spark_replication.errors import InvalidRequest, SchemaMismatch
from spark_replication.messages.descriptions import TopicMetadata
from spark_replication.model import TopicConfig
from spark_replication.spark.datasource.options import LogOptions
from spark_replication.spark.datasource.sink_schema import SinkSchema
from spark_replication.spark.datasource.tasks import rows_wanted, topic_columns
from spark_replication.spark.datasource.types import arrow_schema, as_schema, spark_schema
from spark_replication.storage.format.batches import schema_to_bytes

COLUMNS = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), pa.field("small", pa.uint8()), ("text", pa.large_string())]
)


def topic(columns: pa.Schema = COLUMNS) -> TopicMetadata:
    told = base64.b64encode(schema_to_bytes(columns)).decode()
    return TopicMetadata(name="orders", topic_id="id", config=TopicConfig(schema=told), partitions=())


def rows(told: str) -> StructType:
    found = StructType()
    for column in told.split(", "):
        name, kind = column.split()
        found.add(name, kind)
    return found


def test_a_topics_columns_are_those_of_spark_that_hold_each_of_their_values() -> None:
    found = spark_schema("orders", COLUMNS)
    assert found.simpleString() == "struct<id:bigint,small:smallint,text:string>"
    assert [field.nullable for field in found] == [False, True, True]
    wide = pa.schema([("a", pa.uint64()), ("b", pa.timestamp("ns", "UTC")), ("c", pa.date64()), ("d", pa.float16())])
    assert spark_schema("orders", wide).simpleString() == ("struct<a:decimal(20,0),b:timestamp,c:date,d:float>")


def test_metadata_comes_behind_them() -> None:
    found = spark_schema("orders", COLUMNS, METADATA.names)
    assert found.fieldNames() == [*COLUMNS.names, *METADATA.names]
    with pytest.raises(InvalidRequest, match=r"\['_offset'\] of its own"):
        spark_schema("orders", pa.schema([("_offset", pa.int64())]), METADATA.names)


def test_a_column_that_spark_cannot_have_is_named() -> None:
    odd = pa.schema([("id", pa.int64()), ("span", pa.month_day_nano_interval())])
    with pytest.raises(InvalidRequest, match="column 'span' of orders is month_day_nano_interval"):
        spark_schema("orders", odd)


def test_a_column_that_spark_cannot_have_is_in_nobodys_way_who_leaves_it_out() -> None:
    odd = topic(pa.schema([("span", pa.month_day_nano_interval()), ("id", pa.int64())]))
    options = LogOptions(topic="orders", bootstrap="a:1", security={}, columns=("id",))
    schema = topic_columns(odd, options)
    assert schema.simpleString() == "struct<id:bigint>"
    assert rows_wanted(odd, options, schema).columns == ("id",)
    with pytest.raises(InvalidRequest, match="column 'span'"):
        topic_columns(odd, replace(options, columns=None))
    with pytest.raises(InvalidRequest, match="has no column 'more', it has id: name these"):
        rows_wanted(odd, options, rows("more long"))


def test_batches_are_cast_to_what_spark_takes_and_to_nothing_less() -> None:
    wanted = arrow_schema(rows("small short, big decimal(20,0)"))
    found = as_schema([pa.array([1, None], pa.uint8()), pa.array([(1 << 64) - 1, 2], pa.uint64())], wanted)
    assert found.schema == wanted
    assert found.to_pydict() == {"small": [1, None], "big": [decimal.Decimal((1 << 64) - 1), decimal.Decimal(2)]}
    with pytest.raises(InvalidRequest, match="column 'id' is int64, and does not fit uint8"):
        as_schema([pa.array([300])], pa.schema([("id", pa.uint8())]))


def stored(kind: pa.DataType, values: pa.Array) -> pa.Array:
    schema = pa.schema([("it", kind)])
    return SinkSchema("orders", schema, (0,)).as_stored(pa.record_batch([values], ["it"])).column("it")


def test_what_a_half_float_holds_is_stored_and_nothing_is_rounded_to_it() -> None:
    fits = pa.array([0.5, None, float("nan"), float("inf"), -65504.0], pa.float32())
    assert str(stored(pa.float16(), fits).cast(pa.float32())) == str(fits)
    for value in (100_000.0, 0.1):
        with pytest.raises(InvalidRequest, match="column 'it' has values that halffloat does not hold"):
            stored(pa.float16(), pa.array([0.5, value], pa.float32()))


X_Y = pa.struct([pa.field("x", pa.int64(), nullable=False), pa.field("y", pa.int64())])


@pytest.mark.parametrize(
    ("kind", "of_spark", "good", "bad"),
    [
        (
            pa.list_(pa.field("item", pa.int64(), nullable=False)),
            pa.list_(pa.int64()),
            [[1], None, []],
            [[1], [2, None]],
        ),
        (
            pa.list_(pa.list_(pa.field("item", pa.int64(), nullable=False))),
            pa.list_(pa.list_(pa.int64())),
            [[[1], None]],
            [[[None]]],
        ),
        (
            pa.list_(X_Y),
            pa.list_(pa.struct([("x", pa.int64()), ("y", pa.int64())])),
            [[{"x": 1, "y": None}, None], None],
            [[{"x": None, "y": 1}]],
        ),
        (
            pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False)),
            pa.map_(pa.string(), pa.int64()),
            [[("a", 1)], None, []],
            [[("a", 1)], [("b", None)]],
        ),
    ],
)
def test_nulls_within_are_refused_where_the_topic_takes_none(
    kind: pa.DataType, of_spark: pa.DataType, good: list[object], bad: list[object]
) -> None:
    assert stored(kind, pa.array(good, of_spark)).to_pylist() == good
    with pytest.raises(InvalidRequest, match=r"column 'it'.* null"):
        stored(kind, pa.array(bad, of_spark))


@pytest.mark.parametrize("kind", [pa.decimal256(50, 2), pa.list_(pa.decimal256(50, 2))], ids=str)
def test_a_decimal_that_spark_cannot_have_is_refused_with_its_column(kind: pa.DataType) -> None:
    with pytest.raises(InvalidRequest, match=r"column 'it' of orders is .*decimal256\(50, 2\).*, which Spark cannot"):
        spark_schema("orders", pa.schema([("it", kind)]))


@pytest.mark.parametrize(
    ("kind", "in_spark", "values"),
    [
        (pa.list_(pa.uint8()), "array<smallint>", [[200, None], None]),
        (pa.struct([("x", pa.uint64()), ("y", pa.uint8())]), "struct<x:decimal(20,0),y:smallint>", [{"x": 1, "y": 2}]),
        (pa.list_(pa.struct([("x", pa.uint32())])), "array<struct<x:bigint>>", [[{"x": 7}, None]]),
    ],
)
def test_types_that_spark_lacks_are_held_by_others_within_lists_and_structs_as_well(
    kind: pa.DataType, in_spark: str, values: list[object]
) -> None:
    found = spark_schema("orders", pa.schema([("it", kind)]))
    assert found.fields[0].dataType.simpleString() == in_spark
    read = as_schema([pa.array(values, kind)], arrow_schema(found)).column(0)
    assert stored(kind, read).to_pylist() == values


@pytest.mark.parametrize(
    ("ddl", "said"),
    [
        ("id string, small short, text string", "column 'id' is string, and bigint in orders: cast it"),
        (
            "id long, small short, text string, more integer",
            "column 'more' is not in orders, which has id, small, text",
        ),
        ("small short, text string", "column 'id' of orders takes no nulls, and is not in the rows"),
        ("id long, _partition string", "column '_partition' is not in orders"),
        ("id long, _offset long", "column '_offset' is not in orders"),
    ],
)
def test_rows_that_do_not_fit_are_refused_before_any_task_starts(ddl: str, said: str) -> None:
    with pytest.raises(SchemaMismatch, match=said):
        SinkSchema.of(topic(), rows(ddl), ())


def test_a_key_must_be_there() -> None:
    with pytest.raises(SchemaMismatch, match="partitionBy names 'region'"):
        SinkSchema.of(topic(), rows("id long"), ("region",))


def test_rows_are_stored_in_the_topics_order_with_nulls_where_they_have_nothing() -> None:
    sink = SinkSchema.of(topic(), rows("text string, id long, _partition integer"), ())
    batch = pa.record_batch({"text": ["a"], "id": [7], "_partition": pa.array([1], pa.int32())})
    assert sink.as_stored(batch).to_pydict() == {"id": [7], "small": [None], "text": ["a"]}
    assert sink.as_stored(batch).schema == COLUMNS


def placed(
    batch: pa.RecordBatch, *by: str, task: int = 0, partitions: tuple[int, ...] = (0, 1, 3)
) -> dict[int, list[int]]:
    placing = Placing("orders", partitions, by, task)
    return {target: part.column("id").to_pylist() for target, part in placing.parts(batch, batch)}


IDS = pa.record_batch({"id": pa.array(range(6)), "text": pa.array([None, "a", "b", "c", "xy", "e"])})


def test_by_key_rows_go_where_a_producer_sends_that_key_in_their_order() -> None:
    partitions = (0, 1, 3)
    expected: dict[int, list[int]] = {}
    for number, text in enumerate(IDS.column("text").to_pylist()):
        expected.setdefault(partitions[zlib.crc32((text or "").encode()) % 3], []).append(number)
    assert placed(IDS, "text") == expected
    assert len(placed(IDS, "text", "id")) > 1


@pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view()], ids=str)
def test_columns_of_views_are_placed_as_others_are(kind: pa.DataType) -> None:
    texts = [None, "a", "b", "c", "longer than what a view holds itself", "e"]
    stored = pa.record_batch({"id": IDS.column("id"), "text": pa.array(texts).cast(pa.binary()).cast(kind)})
    parts = dict(Placing("orders", (0, 1, 3), ["id"], 0).parts(IDS, stored))
    assert len(parts) > 1
    assert {part.schema.field("text").type for part in parts.values()} == {kind}
    found = [row for part in parts.values() for row in part.to_pylist()]
    assert sorted(found, key=lambda row: row["id"]) == stored.to_pylist()


def test_without_a_key_a_tasks_rows_stay_together() -> None:
    assert placed(IDS) == {0: list(range(6))}
    assert placed(IDS, task=5) == {3: list(range(6))}
    assert placed(IDS.slice(0, 0)) == {}


def test_rows_may_name_their_partitions() -> None:
    named = pa.record_batch({"id": pa.array(range(4)), "_partition": pa.array([3, 0, 3, 1], pa.int8())})
    assert placed(named) == {0: [1], 1: [3], 3: [0, 2]}
    for wrong, said in (
        ([2, 0], r"_partition is \[2\] in some rows, and orders has the partitions \[0, 1, 3\]"),
        ([None, 0], "1 rows have no _partition"),
    ):
        with pytest.raises(InvalidRequest, match=said):
            placed(pa.record_batch({"id": pa.array([1, 2]), "_partition": pa.array(wrong, pa.int32())}))

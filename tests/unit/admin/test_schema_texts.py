"""A schema as people write it."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_replication.admin.schema_texts import schema_from
from spark_replication.errors import InvalidRequest

FIELDS = pa.schema([("id", pa.int64()), ("tags", pa.list_(pa.string()))])


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        (
            "id:int64,at:timestamp[us], amount:float64",
            [("id", pa.int64()), ("at", pa.timestamp("us")), ("amount", pa.float64())],
        ),
        (
            "a:b:decimal128(10, 2),c:timestamp[ms, tz=+02:00]",
            [("a:b", pa.decimal128(10, 2)), ("c", pa.timestamp("ms", "+02:00"))],
        ),
        (
            "x:list<timestamp[us, tz=UTC]>,y:decimal256(40,3)",
            [("x", pa.list_(pa.timestamp("us", "UTC"))), ("y", pa.decimal256(40, 3))],
        ),
    ],
)
def test_columns(text: str, fields: list[tuple[str, pa.DataType]]) -> None:
    assert schema_from(text) == pa.schema(fields)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "a column at least"),
        (" , ", "not of the form NAME:TYPE|No type alias"),
        ("id", "'id'"),
        ("id:number", "number"),
        (":int64", "NAME:TYPE"),
        ("id:int64,id:string", "has 'id' twice"),
        ("x:list<foo>", "foo"),
        ("t:timestamp[us, tz=UTC", "timestamp"),
        ("none.parquet", "none.parquet cannot be read: "),
    ],
)
def test_what_is_no_schema_is_refused(text: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        schema_from(text)


def test_files_that_have_one(tmp_path: Path) -> None:
    table = FIELDS.empty_table()
    pq.write_table(table, tmp_path / "a.parquet")
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file, pa.ipc.new_file(file, FIELDS) as writer:
        writer.write_table(table)
    with pa.OSFile(str(tmp_path / "a.arrows"), "wb") as file, pa.ipc.new_stream(file, FIELDS) as writer:
        writer.write_table(table)
    for name in ("a.parquet", "a.arrow", "a.arrows"):
        assert schema_from(str(tmp_path / name)).equals(FIELDS), name


def test_json_schema(tmp_path: Path) -> None:
    file = tmp_path / "order.json"
    point = {"type": "object", "properties": {"x": {"type": "number"}}}
    properties = {
        "id": {"type": "integer"},
        "name": {"type": ["string", "null"]},
        "at": {"type": "string", "format": "date-time"},
        "day": {"type": "string", "format": "date"},
        "paid": {"type": "boolean"},
        "points": {"type": "array", "items": point},
    }
    file.write_text(json.dumps({"type": "object", "properties": properties, "required": ["id"]}))
    assert schema_from(str(file)) == pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            ("name", pa.string()),
            ("at", pa.timestamp("us", "UTC")),
            ("day", pa.date32()),
            ("paid", pa.bool_()),
            ("points", pa.list_(pa.struct([("x", pa.float64())]))),
        ]
    )


def test_the_schema_of_a_dataframe(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    field = {"name": "id", "type": "long", "nullable": True, "metadata": {}}
    file.write_text(json.dumps({"type": "struct", "fields": [field]}))
    assert schema_from(str(file)) == pa.schema([("id", pa.int64())])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.parquet", "no"),
        ("a.arrow", "no"),
        ("a.json", "{"),
        ("a.json", "[]"),
        ("a.json", '{"properties": {"a": {"type": "text"}}}'),
        ("a.json", '{"properties": {"a": {"type": ["string", "integer"]}}}'),
        ("a.json", '{"properties": {"a": {}}}'),
        ("a.json", '{"fields": [{"name": "a"}]}'),
    ],
)
def test_a_file_without_a_schema_is_refused(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InvalidRequest, match=f"{name} has no schema"):
        schema_from(str(tmp_path / name))

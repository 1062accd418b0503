"""Schemas as people write them: `id:int64,at:timestamp[us]`, or a file that has a schema."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_replication.errors import InvalidRequest

_EXAMPLE = "such as id:int64,at:timestamp[us],amount:float64"
_PARAMETERS = re.compile(r"(timestamp\[(?P<unit>s|ms|us|ns), *tz=(?P<zone>[^\]]+)\]|(?P<decimal>decimal128|decimal256)"
                         r"\((?P<digits>\d+), *(?P<scale>\d+)\)|list<(?P<item>.+)>)")  # fmt: skip
_JSON_TYPES = {
    "integer": pa.int64(),
    "number": pa.float64(),
    "string": pa.string(),
    "boolean": pa.bool_(),
}
_JSON_FORMATS = {"date-time": pa.timestamp("us", "UTC"), "date": pa.date32()}


def schema_from(text: str) -> pa.Schema:
    """The schema of `text`, which is columns, or the path of a Parquet, Arrow or JSON file. A JSON file holds a JSON
    Schema, or a Spark schema's own JSON."""
    reader = _READERS.get(Path(text).suffix)
    if reader is None:
        return _of_columns(text)
    try:
        return reader(Path(text))
    except OSError as error:
        raise InvalidRequest(f"{text} cannot be read: {error.strerror or error}") from error
    except (pa.ArrowException, ValueError, LookupError, TypeError, AttributeError) as error:
        raise InvalidRequest(f"{text} has no schema that can be read: {error}") from error


def with_columns(schema: pa.Schema, columns: tuple[str, ...]) -> pa.Schema:
    """Append these columns to the schema. One that it has already is not appended again."""
    for text in columns:
        field = column_from(text)
        schema = schema if field in list(schema) else schema.append(field)
    return schema


def column_from(text: str) -> pa.Field:
    """Parse NAME:TYPE. A name may have colons; a type has them in brackets only, as in timestamp[us, tz=+02:00]."""
    head, bracket, parameters = text.partition("[")
    name, colon, kind = head.rpartition(":")
    try:
        found = _type_of(f"{kind}{bracket}{parameters}".strip())
    except ValueError as error:
        raise InvalidRequest(f"{text!r}: {error}. Name one such as int64, string or timestamp[us]") from error
    if not colon or not name.strip():
        raise InvalidRequest(f"{text!r} is not of the form NAME:TYPE, such as region:string")
    return pa.field(name.strip(), found)


def _of_columns(text: str) -> pa.Schema:
    columns = [*_columns_of(text)]
    if not columns:
        raise InvalidRequest(f"a schema has a column at least, {_EXAMPLE}")
    fields = [column_from(column) for column in columns]
    names = [field.name for field in fields]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidRequest(f"the schema has {twice[0]!r} twice: name each column once")
    return pa.schema(fields)


def _columns_of(text: str) -> Iterator[str]:
    """Divide `text` at the commas that are in no brackets."""
    depth, column = 0, ""
    for character in text:
        depth += (character in "[(<") - (character in "])>")
        if character == "," and depth == 0:
            yield column
            column = ""
        else:
            column += character
    if column.strip():
        yield column


def _type_of(kind: str) -> pa.DataType:
    found = _PARAMETERS.fullmatch(kind)
    if found is None:
        return pa.type_for_alias(kind)
    if found["unit"] is not None:
        return pa.timestamp(found["unit"], found["zone"].strip())
    if found["decimal"] is not None:
        return getattr(pa, found["decimal"])(int(found["digits"]), int(found["scale"]))
    return pa.list_(_type_of(found["item"].strip()))


def _of_parquet(path: Path) -> pa.Schema:
    from pyarrow import parquet  # it brings file systems, and few schemas are such files

    return parquet.read_schema(path)


def _of_arrow(path: Path) -> pa.Schema:
    with pa.OSFile(str(path)) as file:
        try:
            return pa.ipc.open_file(file).schema
        except pa.ArrowInvalid:
            file.seek(0)
            return pa.ipc.open_stream(file).schema


def _of_json(path: Path) -> pa.Schema:
    told = json.loads(path.read_text())
    if not isinstance(told, dict) or not {"fields", "properties"} & told.keys():
        raise ValueError("a JSON Schema has `properties`, a schema of Spark `fields`")
    if "fields" in told:
        from pyspark.sql.pandas.types import to_arrow_schema
        from pyspark.sql.types import StructType

        return to_arrow_schema(StructType.fromJson(told))
    return pa.schema(_fields_of(told))


def _fields_of(told: Mapping[str, Any]) -> list[pa.Field]:
    required = told.get("required", ())
    return [pa.field(name, _json_type(each), name not in required) for name, each in told["properties"].items()]


def _json_type(told: Mapping[str, Any]) -> pa.DataType:
    kinds = told["type"] if isinstance(told["type"], list) else [told["type"]]
    (kind,) = [each for each in kinds if each != "null"]
    match kind:
        case "object":
            return pa.struct(_fields_of(told))
        case "array":
            return pa.list_(_json_type(told["items"]))
        case "string":
            return _JSON_FORMATS.get(told.get("format", ""), pa.string())
        case _:
            return _JSON_TYPES[kind]


_READERS: dict[str, Callable[[Path], pa.Schema]] = {
    ".parquet": _of_parquet,
    ".arrow": _of_arrow,
    ".arrows": _of_arrow,
    ".feather": _of_arrow,
    ".json": _of_json,
}

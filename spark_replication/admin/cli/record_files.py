"""Rows of Parquet, Arrow, CSV and JSON-lines files as batches of a topic's schema. Python touches no value."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Literal

import pyarrow as pa
from pyarrow import csv, json

from spark_replication.errors import InvalidRequest

FileFormat = Literal["parquet", "arrow", "csv", "jsonl"]

_SUFFIXES: dict[str, FileFormat] = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
}
_ARROW_FILE_MAGIC = b"ARROW1"  # else it is an Arrow stream


def format_of(path: Path) -> FileFormat:
    found = _SUFFIXES.get(path.suffix.lower())
    if found is None:
        raise InvalidRequest(f"{path} has none of the suffixes {', '.join(_SUFFIXES)}: name its format")
    return found


def read_batches(
    file: BinaryIO, kind: FileFormat, schema: pa.Schema, *, rows_max: int, name: str
) -> Iterator[pa.RecordBatch]:
    """Batches of 1 to `rows_max` rows. Raises InvalidRequest, naming `name`, if the file does not fit the schema."""
    try:
        for found in _batches(file, kind, schema, rows_max):
            batch = _conformed(found, schema)
            for start in range(0, batch.num_rows, rows_max):
                yield batch.slice(start, rows_max)
    except (pa.ArrowException, OSError) as error:
        raise InvalidRequest(f"{name} cannot be read as {kind} of the topic's schema: {error}") from error


def _batches(file: BinaryIO, kind: FileFormat, schema: pa.Schema, rows_max: int) -> Iterator[pa.RecordBatch]:
    match kind:
        case "parquet":
            from pyarrow import parquet  # it brings file systems, and most rows are no such files

            yield from parquet.ParquetFile(file).iter_batches(batch_size=rows_max)
        case "arrow":
            yield from _arrow_batches(file)
        case "csv":
            types = csv.ConvertOptions(column_types={field.name: field.type for field in schema})
            yield from csv.open_csv(file, convert_options=types)
        case "jsonl":
            # A column that a line lacks is null; a field that is no column is an error.
            parse = json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error")
            while lines := list(islice(file, rows_max)):
                data = b"".join(lines)
                if data.strip():
                    read = json.ReadOptions(block_size=len(data))  # a line must lie within a block
                    yield from json.read_json(pa.BufferReader(data), read, parse).to_batches()


def _arrow_batches(file: BinaryIO) -> Iterator[pa.RecordBatch]:
    is_file = file.read(len(_ARROW_FILE_MAGIC)) == _ARROW_FILE_MAGIC
    file.seek(0)
    if not is_file:
        yield from pa.ipc.open_stream(file)
        return
    opened = pa.ipc.open_file(file)
    for place in range(opened.num_record_batches):
        yield opened.get_batch(place)


def _conformed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with its columns in the topic's order, cast if no value is lost by that."""
    for missing in sorted(set(schema.names) - set(batch.schema.names)):
        raise pa.ArrowInvalid(f"column {missing!r} is missing")
    for more in sorted(set(batch.schema.names) - set(schema.names)):
        raise pa.ArrowInvalid(f"column {more!r} is not in the topic")
    return batch.select(schema.names).cast(schema)

"""Record batches as they are stored: made once by the leader, outside any lock, and read back without a copy.

Rules:
- A stored batch is the IPC message of a batch whose schema is exactly its topic's. Dictionary columns are decoded: in a
  file their dictionaries would be messages of their own, and a slice of batches would not read.
- Offsets count rows, so that a batch has at least one.
- Compression is Arrow's own, of each buffer: readers of the files and of single batches need not be told. It is done
  here, once; followers and disks get the bytes as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from crc32c import crc32c

from spark_replication.config import Compression
from spark_replication.errors import BatchTooLarge, CorruptLog, InvalidRequest, SchemaMismatch
from spark_replication.ports import LogSlice, PreparedBatch
from spark_replication.storage.index import ENTRY_BYTES, Buffer, IndexEntry, decode_entries


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """The schema that a topic created with `schema` has: dictionary types give way to the types of their values."""
    fields = [field.with_type(_decoded(field.type)) for field in schema]
    for field in fields:
        if _holds_dictionary(field.type):
            raise InvalidRequest(f"column {field.name!r} holds a dictionary within {field.type}: use its value type")
    return pa.schema(fields, metadata=schema.metadata)


def schema_to_bytes(schema: pa.Schema) -> bytes:
    """The IPC schema message that heads every segment."""
    return bytes(schema.serialize())


def schema_from_bytes(message: Buffer, source: str) -> pa.Schema:
    """The inverse; CorruptLog, naming `source`, if it is none."""
    try:
        return pa.ipc.read_schema(pa.py_buffer(message))
    except (pa.ArrowException, OSError, EOFError) as error:
        raise CorruptLog(f"{source} holds no Arrow schema: {error}") from error


def prepare(
    batch: pa.RecordBatch,
    schema: pa.Schema,
    *,
    batch_bytes_max: int,
    compression: Compression = "none",
    producer: int = -1,
    producer_epoch: int = -1,
    sequence: int = -1,
) -> PreparedBatch:
    """`batch` as the topic with this stored schema keeps it; SchemaMismatch or BatchTooLarge if it cannot."""
    if batch.num_rows == 0:
        raise InvalidRequest("a batch without rows has no offsets: send at least one row")
    try:
        # Arrow takes offsets from the wire as they are, and ends the process that follows one out of its buffer: first
        # this one, as it serialises, later every reader.
        batch.validate(full=True)
    except pa.ArrowException as error:
        raise InvalidRequest(f"the batch is not sound Arrow data: {error}") from error
    stored = as_stored(batch, schema)
    try:
        message = stored.serialize() if compression == "none" else _compressed(stored, compression)
    except pa.ArrowException as error:
        raise InvalidRequest(f"the batch cannot be written as Arrow IPC: {error}") from error
    if message.size > batch_bytes_max:
        raise BatchTooLarge(
            f"a batch of {batch.num_rows} rows takes {message.size} bytes as it is stored, over "
            f"batch.bytes.max={batch_bytes_max}: split it"
        )
    view = memoryview(message)
    return PreparedBatch(
        rows=batch.num_rows,
        message=view,
        crc=crc32c(view),
        producer=producer,
        producer_epoch=producer_epoch,
        sequence=sequence,
    )


def _compressed(batch: pa.RecordBatch, compression: Compression) -> pa.Buffer:
    """A single message can be serialised without compression only: it is cut out of a stream."""
    sink = pa.BufferOutputStream()
    writer = pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=compression))
    head = batch.schema.serialize().size
    writer.write_batch(batch)
    return sink.getvalue().slice(head)  # the writer is not closed: its end marker would be part of the batch


def batches_of(records: LogSlice, schema: pa.Schema) -> Iterator[tuple[IndexEntry, pa.RecordBatch]]:
    """The batches of a slice, as views of its bytes. Checksums are not looked at: `check_data` does that."""
    data = pa.py_buffer(records.data)
    first = None
    for entry in decode_entries(records.entries):
        first = entry.position if first is None else first
        try:
            yield entry, pa.ipc.read_record_batch(data.slice(entry.position - first, entry.bytes), schema)
        except (pa.ArrowException, OSError, EOFError) as error:
            raise CorruptLog(f"the batch at offset {entry.base_offset} does not parse: {error}") from error


def check_data(records: LogSlice) -> None:
    """CorruptLog unless every batch of the slice has the CRC-32C that its entry names."""
    if len(records.entries) % ENTRY_BYTES:
        raise CorruptLog(f"{len(records.entries)} bytes of entries are no whole number of them")
    data = memoryview(records.data)
    start = 0
    for entry in decode_entries(records.entries):
        if crc32c(data[start : start + entry.bytes]) != entry.crc:
            raise CorruptLog(f"the batch at offset {entry.base_offset} does not have its CRC-32C: fetch it again")
        start += entry.bytes
    if start != len(data):
        raise CorruptLog(f"the entries describe {start} bytes, the slice has {len(data)}")


def as_stored(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """`batch` with exactly this stored schema, its dictionaries decoded; SchemaMismatch names the first difference."""
    if batch.schema.equals(schema):
        stored = batch
    else:
        difference = _first_difference(stored_schema(batch.schema), schema)
        if difference:
            raise SchemaMismatch(f"{difference}: send batches of the topic's schema")
        columns = [
            column if column.type == field.type else _plain(column, field)
            for column, field in zip(batch.columns, schema, strict=True)
        ]
        stored = pa.RecordBatch.from_arrays(columns, schema=schema)
    for place, field in enumerate(schema):
        if not field.nullable and stored.column(place).null_count:
            raise SchemaMismatch(f"column {place} ({field.name!r}) is not nullable and the batch has nulls in it")
    return stored


def projected(schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    """What of `schema` somebody asks for, in that order; None: all of it."""
    if columns is None:
        return schema
    for name in columns:
        if schema.get_field_index(name) < 0:
            raise InvalidRequest(f"column {name!r} is not in the topic, or there twice: {', '.join(schema.names)} are")
    return pa.schema([schema.field(name) for name in columns], metadata=schema.metadata)


def _plain(column: pa.Array, field: pa.Field) -> pa.Array:
    try:
        return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column.cast(field.type)
    except pa.ArrowException as error:
        raise SchemaMismatch(f"column {field.name!r} cannot be decoded to {field.type}: {error}") from error


def _first_difference(batch: pa.Schema, topic: pa.Schema) -> str:
    for place, (ours, theirs) in enumerate(zip(batch, topic, strict=False)):
        if ours.name != theirs.name:
            return f"column {place} is named {ours.name!r} in the batch and {theirs.name!r} in the topic"
        if ours.type != theirs.type:
            return f"column {place} ({ours.name!r}) is {ours.type} in the batch and {theirs.type} in the topic"
        if ours.nullable != theirs.nullable:
            words = {True: "nullable", False: "not nullable"}
            return (
                f"column {place} ({ours.name!r}) is {words[ours.nullable]} in the batch "
                f"and {words[theirs.nullable]} in the topic"
            )
    shared = min(len(batch), len(topic))
    if len(batch) > shared:
        return f"column {shared} ({batch.field(shared).name!r}) of the batch is not in the topic"
    if len(topic) > shared:
        return f"column {shared} ({topic.field(shared).name!r}) of the topic is not in the batch"
    return ""


def _decoded(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return _decoded(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_decoded(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_decoded(kind.key_type), _decoded(kind.item_type), keys_sorted=kind.keys_sorted)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(_decoded(kind.value_type)), kind.list_size)
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_decoded(kind.value_type)))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_decoded(kind.value_type)))
    return kind


def _holds_dictionary(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return True
    return any(_holds_dictionary(kind.field(place).type) for place in range(kind.num_fields))

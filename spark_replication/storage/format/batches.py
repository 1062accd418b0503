"""Record batches as they are stored: made once by the leader, outside any lock, and read back without a copy.

Rules:
- A stored batch is the IPC message of a batch whose schema is exactly its segment's. Dictionary columns are decoded: in
  a file their dictionaries would be messages of their own, and a slice of batches could not be read.
- A topic's schema only ever gains nullable columns at its end. So a batch of an earlier version is stored, and a batch
  of any version is read as another, with nulls in the columns that it lacks.
- Offsets count rows, so a batch has at least one.
- The cap of a batch counts its bytes without compression, before anything is made of it: a small message may hold much,
  and every later reader needs as much memory.
- Compression is Arrow's own, of each buffer: readers of files and of single batches need not be told of it. A batch is
  compressed once, here; followers and disks get these bytes.
- A topic has types only that Arrow can show here: it reads some that it cannot (the interval of months). Whatever else
  Arrow's own code raises of what a client has sent refuses that batch, and ends nothing.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from spark_replication.config import Compression
from spark_replication.core.controller.widening import SchemaChange
from spark_replication.errors import (
    BatchTooLarge,
    BrokerNotAvailable,
    CorruptLog,
    CorruptState,
    InvalidRequest,
    InvalidSchema,
    ReplicationError,
    SchemaMismatch,
    UnknownSchemaVersion,
)
from spark_replication.model import TopicConfig
from spark_replication.ports import LogSlice, PreparedBatch
from spark_replication.process.logs import log_mistake
from spark_replication.storage.format.index import ENTRY_BYTES, Buffer, IndexEntry, decode_entries
from spark_replication.storage.format.ipc_message import is_plain_batch
from spark_replication.storage.format.soundness import places_of_views, require_shown, require_sound_nulls

SCHEMAS_REMEMBERED = 1_000
# Of a batch, whose bytes do not bound it: rows of a null column take none, and readers fill columns that it lacks.
ROWS_MAX = 16 << 20
PIECE_BYTES_MAX = 32 << 20  # of `in_pieces`
NULLS = 64  # of which what a null takes is counted
BIT = 1 / 8
NULL_ROW_BYTES_MAX = 16 << 20  # what a row takes that has no value in any column
UNLOCKED_BYTES_MIN = 512 << 10

log = logging.getLogger(__name__)


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """The schema that a topic created with `schema` has: dictionary types give way to the types of their values. Raises
    InvalidRequest for what no topic can have."""
    require_shown(schema)
    try:
        fields = [field.with_type(_decoded(field.type)) for field in schema]
    except (pa.ArrowException, ValueError) as error:  # it came by the wire, and nobody could make it here
        raise InvalidRequest(f"there is no such schema: {error}") from error
    for field in fields:
        if _holds_dictionary(field.type):
            raise InvalidRequest(f"column {field.name!r} holds a dictionary within {field.type}: use its value type")
    return pa.schema(fields, metadata=schema.metadata)


def schema_to_bytes(schema: pa.Schema) -> bytes:
    """The IPC schema message that heads every segment."""
    return bytes(schema.serialize())


def schema_from_bytes(message: Buffer, source: str) -> pa.Schema:
    """The schema of such a message. Raises CorruptLog, which names `source`, if it holds none."""
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(message))
        schema.names  # noqa: B018 (names that are no UTF-8 are found here, not by later callers)
        return schema
    except (pa.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:
        raise CorruptLog(f"{source} holds no Arrow schema: {error}") from error


segment_schema = lru_cache(SCHEMAS_REMEMBERED)(lambda head: schema_from_bytes(head, "a segment's head"))


class TopicSchema:
    """The schemas that the batches of a topic may have."""

    def __init__(self, newest: pa.Schema, earlier_columns: tuple[int, ...] = ()) -> None:
        self.newest = newest
        self.width = len(newest)
        #: Place and name of each column that may hold no null. Every version has them.
        self.required = tuple((place, field.name) for place, field in enumerate(newest) if not field.nullable)
        #: Newest first.
        self.versions = (newest, *(_first_columns(newest, count) for count in reversed(earlier_columns)))
        #: The message of the newest version, with which its segments begin.
        self.head = schema_to_bytes(newest)
        #: What a row takes in each column where that is null.
        self.null_bytes = tuple(_null_bytes(field.type) for field in newest)
        self.places_of_views = places_of_views(newest)


@lru_cache(SCHEMAS_REMEMBERED)
def _topic_schema(text: str, earlier_columns: tuple[int, ...]) -> TopicSchema:
    return TopicSchema(schema_of_text(text, "a topic's config"), earlier_columns)


def topic_schema(config: TopicConfig) -> TopicSchema:
    return _topic_schema(config.schema, config.earlier_columns)


def schema_of_text(text: str, source: str) -> pa.Schema:
    try:
        message = base64.b64decode(text, validate=True)
    except ValueError as error:
        raise CorruptState(f"{source} holds a schema that is no base64: {error}. Configure it again") from error
    return stored_schema(schema_from_bytes(message, source))


def schema_change(before: str, after: str) -> SchemaChange:
    """Compare a topic's schema with the one that it is to have, for core. Both are IPC messages in base64."""
    try:
        new = schema_of_text(after, "the request")
    except ReplicationError as error:
        raise InvalidSchema(f"there is no schema in it: {error.message}") from error
    row_bytes = sum(_null_bytes(field.type) for field in new)
    if row_bytes > NULL_ROW_BYTES_MAX:
        raise InvalidSchema(
            f"a row without any value takes {row_bytes:.0f} bytes, {NULL_ROW_BYTES_MAX} at most: use lists and binary "
            "columns without a fixed size"
        )
    old = schema_of_text(before, "a topic's config")
    difference = _first_difference(_first_columns(new, len(old)), old, of="the new schema")
    difference = difference or _first_unfit(new, len(old))
    return SchemaChange(columns_before=len(old), columns_after=len(new), difference=difference)


def _first_unfit(schema: pa.Schema, columns_before: int) -> str:
    """Describe the first column that cannot be new, since batches without it exist; empty if all can. The columns after
    the first `columns_before` are new."""
    for place in range(columns_before, len(schema)):
        field = schema.field(place)
        if not field.nullable:
            return f"column {place} ({field.name!r}) is new and not nullable"
        if schema.names.index(field.name) < place:
            return f"column {place} ({field.name!r}) is new and has the name of another"
    return ""


def are_versions(one: pa.Schema, other: pa.Schema) -> bool:
    """Whether both may be versions of one topic's schema."""
    if one.equals(other):
        return True
    shared = min(len(one), len(other))
    return not _first_difference(_first_columns(one, shared), _first_columns(other, shared), of="one")


def _first_columns(schema: pa.Schema, count: int) -> pa.Schema:
    return pa.schema(list(schema)[:count], metadata=schema.metadata)


def _digest(stored: pa.RecordBatch) -> int:
    from spark_replication.storage.format.row_digest import row_digest  # needs numpy, which a client does without

    return row_digest(stored)


def prepare(
    batch: pa.RecordBatch,
    topic: TopicSchema,
    *,
    batch_bytes_max: int,
    compression: Compression = "none",
    producer: int = -1,
    producer_epoch: int = -1,
    sequence: int = -1,
    any_order: bool = False,
) -> PreparedBatch:
    """Serialise `batch` as the topic keeps it, in the newest version of its schema. Raises SchemaMismatch or
    BatchTooLarge if the topic cannot take it, InvalidRequest if Arrow cannot."""
    try:
        stored = _checked(batch, topic, batch_bytes_max)
        message = stored.serialize() if compression == "none" else _compressed(stored, compression)
        digest = _digest(stored) if any_order else 0
    except ReplicationError:
        raise
    except Exception as error:  # pyarrow's wrappers raise what they like: nothing is appended yet
        if not isinstance(error, pa.ArrowException):
            log_mistake(log, error, "a batch cannot be read")
        raise InvalidRequest(f"the batch is no Arrow data that can be stored: {error!r}") from error
    _refuse_over(batch_bytes_max, message.size, batch.num_rows, "as it is stored")
    view = memoryview(message)
    return PreparedBatch(
        rows=batch.num_rows,
        message=view,
        crc=checksum(view),
        schema=topic.head,
        producer=producer,
        producer_epoch=producer_epoch,
        sequence=sequence,
        digest=digest,
    )


def _checked(batch: pa.RecordBatch, topic: TopicSchema, batch_bytes_max: int) -> pa.RecordBatch:
    """The batch in the newest version of its topic's schema, if it is sound and not too large."""
    if batch.num_rows == 0:
        raise InvalidRequest("a batch without rows has no offsets: send at least one row")
    if batch.num_rows > ROWS_MAX:
        raise BatchTooLarge(f"a batch of {batch.num_rows} rows is over {ROWS_MAX}: split it")
    try:
        # Arrow does not check the offsets that it gets from the wire. One that leads out of its buffer ends a process:
        # first this one, as it serialises, later every reader. Validate what the size is counted by before counting it.
        batch.validate()
        _refuse_over(batch_bytes_max, pa.ipc.get_record_batch_size(batch), batch.num_rows, "in memory")
        batch.validate(full=True)
        is_newest = batch.schema.equals(topic.newest)
        require_sound_nulls(batch, topic.places_of_views if is_newest else places_of_views(batch.schema))
    except pa.ArrowException as error:
        raise InvalidRequest(f"the batch is not sound Arrow data: {error}") from error
    if not is_newest:
        decoded = sum(map(_decoded_bytes, batch.columns))
        _refuse_over(batch_bytes_max, decoded, batch.num_rows, "with its dictionaries decoded")
    stored = in_a_version(batch, topic)
    if stored.num_columns < topic.width:
        # Before that much is taken: a few bytes of booleans have millions of rows.
        lacking = batch.num_rows * sum(topic.null_bytes[stored.num_columns :])
        _refuse_over(batch_bytes_max, int(lacking), batch.num_rows, "in the columns that it lacks")
        stored = filled(stored, range(topic.width), topic.newest)
    return stored


def serialized(batch: pa.RecordBatch) -> tuple[memoryview, int]:
    """A batch as a client sends it, and its CRC-32C."""
    message = memoryview(batch.serialize())
    return message, checksum(message)


def as_sent(
    message: Buffer,
    schema: pa.Schema,
    topic: TopicSchema,
    *,
    crc: int,
    batch_bytes_max: int,
    compression: Compression = "none",
    **numbers: Any,
) -> PreparedBatch:
    """Prepare a batch that a client has serialised with this schema, without compression.

    It is serialised again: that costs as much as the copy that is needed anyway, and what is stored depends neither on
    the client's Arrow nor on its mistakes. As a rule this gives the client's own bytes, so that one checksum serves for
    both."""
    try:
        if not is_plain_batch(message):
            raise InvalidRequest("the payload is not one IPC message of a record batch without compression")
        prepared = prepare(
            _read(message, schema), topic, batch_bytes_max=batch_bytes_max, compression=compression, **numbers
        )
    except ReplicationError:
        _refuse_damaged(message, crc)
        raise
    if prepared.crc != crc:
        _refuse_damaged(message, crc)
    return prepared


def _read(message: Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """A view of the message, which is not checked."""
    try:
        return pa.ipc.read_record_batch(pa.py_buffer(message), schema)
    except (pa.ArrowException, OSError, EOFError) as error:
        raise InvalidRequest(f"the batch is not sound Arrow data: {error}") from error


def _refuse_damaged(message: Buffer, crc: int) -> None:
    if checksum(memoryview(message)) != crc:
        raise BrokerNotAvailable("the batch came damaged, since it does not have its CRC-32C: send it again")


def _refuse_over(bytes_max: int, size: int, rows: int, where: str) -> None:
    if size > bytes_max:
        raise BatchTooLarge(
            f"a batch of {rows} rows takes {size} bytes {where}, over batch.bytes.max={bytes_max}: split it"
        )


def _compressed(batch: pa.RecordBatch, compression: Compression) -> pa.Buffer:
    """Serialise a batch with compression. Arrow can do that only in a stream, out of which the message is cut."""
    sink = pa.BufferOutputStream()
    writer = pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=compression))
    head = batch.schema.serialize().size
    writer.write_batch(batch)
    return sink.getvalue().slice(head)  # the writer is not closed: its end marker would be part of the batch


def batches_of(records: LogSlice) -> Iterator[tuple[IndexEntry, pa.RecordBatch]]:
    """The batches of a slice, as views of its bytes, with the schema of its segment. `check_data` checks the checksums;
    this does not."""
    schema = segment_schema(bytes(records.schema))
    data = pa.py_buffer(records.data)
    first = None
    for entry in decode_entries(records.entries):
        first = entry.position if first is None else first
        try:
            yield entry, pa.ipc.read_record_batch(data.slice(entry.position - first, entry.bytes), schema)
        except (pa.ArrowException, OSError, EOFError) as error:
            raise CorruptLog(f"the batch at offset {entry.base_offset} does not parse: {error}") from error


def check_data(records: LogSlice) -> list[IndexEntry]:
    """The entries of the slice. Raises CorruptLog unless every batch has the CRC-32C that its entry names."""
    if len(records.entries) % ENTRY_BYTES:
        raise CorruptLog(f"{len(records.entries)} bytes of entries are no whole number of them")
    entries = list(decode_entries(records.entries))
    data = memoryview(records.data)
    start = 0
    for entry in entries:
        check_batch(entry, data[start : start + entry.bytes])
        start += entry.bytes
    if start != len(data):
        raise CorruptLog(f"the entries describe {start} bytes, the slice has {len(data)}")
    return entries


def check_batch(entry: IndexEntry, message: memoryview) -> None:
    if checksum(message) != entry.crc:
        raise CorruptLog(f"the batch at offset {entry.base_offset} does not have its CRC-32C: fetch it again")


def checksum(data: Buffer) -> int:
    """The CRC-32C of a batch. The GIL is released only for a large one: among a broker's threads, getting it back takes
    longer than a small one does (64 KiB: 4 µs)."""
    return crc32c(data, gil_release_mode=len(data) >= UNLOCKED_BYTES_MIN)


def in_a_version(batch: pa.RecordBatch, topic: TopicSchema) -> pa.RecordBatch:
    """Return `batch` with exactly the schema of one of the topic's versions, its dictionaries decoded. Raises
    SchemaMismatch, which names the first difference, or UnknownSchemaVersion if the batch would fit a wider schema:
    another broker may know that the topic has been widened."""
    schema = batch.schema
    for version in topic.versions:
        if schema.equals(version):
            stored = batch
            break
    else:
        version = _version_meant(stored_schema(schema), topic)
        columns = [
            column if column.type == field.type else _plain(column, field)
            for column, field in zip(batch.columns, version, strict=True)
        ]
        stored = pa.RecordBatch.from_arrays(columns, schema=version)
    for place, name in topic.required:
        if stored.column(place).null_count:
            raise SchemaMismatch(f"column {place} ({name!r}) is not nullable and the batch has nulls in it")
    return stored


def projected(schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    """`schema` with these columns alone, in their order; None stands for all."""
    if columns is None:
        return schema
    for name in columns:
        if schema.get_field_index(name) < 0:
            raise InvalidRequest(f"column {name!r} is not in the topic, or there twice: {', '.join(schema.names)} are")
    return pa.schema([schema.field(name) for name in columns], metadata=schema.metadata)


def _version_meant(schema: pa.Schema, topic: TopicSchema) -> pa.Schema:
    of_its_width = (version for version in topic.versions if len(version) == len(schema))
    version = next(of_its_width, topic.newest)
    difference = _first_difference(schema, version, of="the batch")
    if not difference:
        return version
    wider = len(schema) > topic.width and are_versions(schema, topic.newest)
    if wider and not _first_unfit(schema, topic.width):
        raise UnknownSchemaVersion(f"{difference}: widen the topic, or wait until its brokers know that it is")
    raise SchemaMismatch(f"{difference}: send batches of the topic's schema")


def filled(batch: pa.RecordBatch, places: Iterable[int], schema: pa.Schema) -> pa.RecordBatch:
    """Return `batch` as `schema`, whose columns are at these places of another version of the batch's schema. Columns
    that the batch lacks are null. Returns the batch itself if it has this schema already."""
    if batch.schema.equals(schema):
        return batch
    columns = [
        batch.column(place) if place < batch.num_columns else pa.nulls(batch.num_rows, field.type)
        for place, field in zip(places, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def in_pieces(batch: pa.RecordBatch, places: Sequence[int], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield `batch` as `schema`, as `filled` does, in pieces whose new columns take PIECE_BYTES_MAX at most: a batch of
    a few bytes may have millions of rows, and a topic many columns that came later."""
    row_bytes = sum(
        _null_bytes(field.type) for place, field in zip(places, schema, strict=True) if place >= batch.num_columns
    )
    rows = max(1, int(PIECE_BYTES_MAX / row_bytes)) if row_bytes else batch.num_rows
    for first in range(0, batch.num_rows, rows):
        yield filled(batch.slice(first, rows) if rows < batch.num_rows else batch, places, schema)


def _null_bytes(kind: pa.DataType) -> float:
    """What a null takes in a column of this type. Whoever makes a topic chooses that, so none is made of what may be
    large."""
    if isinstance(kind, pa.BaseExtensionType):
        return _null_bytes(kind.storage_type)
    if pa.types.is_fixed_size_binary(kind):
        return BIT + float(kind.byte_width)
    if pa.types.is_fixed_size_list(kind):
        return BIT + float(kind.list_size) * _null_bytes(kind.value_type)
    if pa.types.is_struct(kind) or pa.types.is_union(kind):
        own = float(pa.nulls(NULLS, pa.int64()).nbytes) / NULLS
        return own + sum(_null_bytes(kind.field(place).type) for place in range(kind.num_fields))
    return float(pa.nulls(NULLS, kind).nbytes) / NULLS


def _decoded_bytes(column: pa.Array) -> int:
    """How many bytes the values of a column's dictionaries take once each row has its own; at most so many, where
    dictionaries are nested. A batch of a few bytes may decode to any size."""
    kind = column.type
    if pa.types.is_struct(kind):
        return sum(map(_decoded_bytes, column.flatten()))
    if pa.types.is_map(kind):
        return _decoded_bytes(column.keys) + _decoded_bytes(column.items)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _decoded_bytes(column.values)  # all values are decoded, whether a row refers to them or not
    if not pa.types.is_dictionary(kind):
        return 0
    values, rows = column.dictionary, len(column)
    try:
        if pa.types.is_primitive(values.type):
            return rows * int(values.type.bit_width) // 8
        return pc.sum(pc.binary_length(values).take(column.indices)).as_py() or 0
    except pa.ArrowNotImplementedError:
        return rows * int(values.nbytes)


def _plain(column: pa.Array, field: pa.Field) -> pa.Array:
    try:
        return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column.cast(field.type)
    except pa.ArrowException as error:
        raise SchemaMismatch(f"column {field.name!r} cannot be decoded to {field.type}: {error}") from error


def _first_difference(found: pa.Schema, topic: pa.Schema, *, of: str) -> str:
    """Describe the first difference; empty if there is none. `of` names what has the schema `found`."""
    for place, (ours, theirs) in enumerate(zip(found, topic, strict=False)):
        if ours.name != theirs.name:
            return f"column {place} is named {ours.name!r} in {of} and {theirs.name!r} in the topic"
        if ours.type != theirs.type:
            return f"column {place} ({ours.name!r}) is {ours.type} in {of} and {theirs.type} in the topic"
        if ours.nullable != theirs.nullable:
            words = {True: "nullable", False: "not nullable"}
            return (
                f"column {place} ({ours.name!r}) is {words[ours.nullable]} in {of} "
                f"and {words[theirs.nullable]} in the topic"
            )
    shared = min(len(found), len(topic))
    if len(found) > shared:
        return f"column {shared} ({found.field(shared).name!r}) of {of} is not in the topic"
    if len(topic) > shared:
        return f"column {shared} ({topic.field(shared).name!r}) of the topic is not in {of}"
    return ""


def _decoded(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return _decoded(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_decoded(field.type)) for field in kind])
    if pa.types.is_map(kind):
        fields = (each.with_type(_decoded(each.type)) for each in (kind.key_field, kind.item_field))
        return pa.map_(*fields, keys_sorted=kind.keys_sorted)
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

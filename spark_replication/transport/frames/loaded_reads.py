"""What a look of a consumer found, in memory: as it is stored, or with some of its columns alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
from crc32c import crc32c

from spark_replication.engine.replica.partition import Partition
from spark_replication.engine.replica.reads import LogLook, look
from spark_replication.errors import CorruptLog, StorageFailed
from spark_replication.messages.records import ReadTicket
from spark_replication.ports import LogSlice, Records
from spark_replication.storage.format.batches import (
    batches_of,
    check_data,
    schema_to_bytes,
    segment_schema,
    serialized,
)
from spark_replication.storage.format.index import encode_entry


def loaded(looked: LogLook, find: Callable[[], Partition], ticket: ReadTicket) -> LogLook:
    """Read the records into memory, and check them. The disk is read without having the partition, so that producers
    do not wait for this reader's disk. What was found may have been cut by then: if it does not read well, it is found
    and read again while nobody else has the partition. What does not read well then is damaged: StorageFailed."""
    if looked.records is None:
        return looked
    try:
        records = looked.records.loaded()
        check_data(records)
    except (CorruptLog, StorageFailed):
        with find() as replica:
            looked = look(replica, ticket, looked.place, len(looked.records.data))
            if looked.records is None:
                return looked
            replica.damage.require_none(looked.records)
            records = looked.records.loaded()
            check_data(records)
    return looked._replace(records=records)


def are_all_columns(records: Records, columns: Sequence[str]) -> bool:
    """Whether the batches have these columns, in this order, and no other."""
    try:
        return bool(segment_schema(bytes(records.schema)).names == list(columns))
    except CorruptLog:
        return False  # whoever makes the answer meets it again


def with_columns(records: LogSlice, columns: Sequence[str], bytes_max: int) -> LogSlice:
    """The slice with these columns alone, as far as the batches have them: a topic that was widened since has more. It
    ends once it has so many bytes: what was compressed takes more than it did."""
    schema = segment_schema(bytes(records.schema))
    places = [place for place in map(schema.get_field_index, columns) if place >= 0]
    head = schema_to_bytes(pa.schema([schema.field(place) for place in places], metadata=schema.metadata))
    head_crc = crc32c(head)
    data, entries = bytearray(), bytearray()
    next_offset = records.first_offset
    for entry, batch in batches_of(records):
        message, crc = serialized(batch.select(places))
        entries += encode_entry(entry._replace(position=len(data), bytes=len(message), crc=crc, schema_crc=head_crc))
        data += message
        next_offset = entry.last_offset + 1
        if len(data) >= bytes_max:
            break
    return LogSlice(records.first_offset, next_offset, records.segment_base, bytes(entries), bytes(data), head)

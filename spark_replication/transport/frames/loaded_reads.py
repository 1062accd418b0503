"""What a look of a consumer found, in memory: as it is stored, or with some of its columns alone.

Whoever asks for some columns gets them of batches that were checked whole, so damage is found wherever it lies. A few
batches are read at a time, into the room of those before: they stay in the processor's cache while they are checked,
and the buffers of the wanted columns are copied from there. The kernel could send these alone, but nobody would have
checked them: a batch has one CRC-32C.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from crc32c import crc32c

from spark_replication.engine.replica.partition import Partition
from spark_replication.engine.replica.reads import LogLook, look
from spark_replication.errors import CorruptLog, StorageFailed
from spark_replication.messages.records import ReadTicket
from spark_replication.ports import LogSlice, Records, StoredSlice
from spark_replication.storage.format.batches import (
    check_batch,
    check_data,
    checksum,
    segment_schema,
)
from spark_replication.storage.format.column_pick import column_pick
from spark_replication.storage.format.index import Buffer, IndexEntry, decode_entries, encode_entry

RUN_BYTES = 256 << 10


def checked(records: Records) -> LogSlice:
    found = records.loaded()
    check_data(found)
    return found


def loaded(
    looked: LogLook,
    find: Callable[[], Partition],
    ticket: ReadTicket,
    load: Callable[[Records], LogSlice] = checked,
) -> LogLook:
    """Read the records into memory, and check them. The disk is read without having the partition, so that producers
    do not wait for this reader's disk. What was found may have been cut by then: if it does not read well, it is found
    and read again while nobody else has the partition. What does not read well then is damaged: StorageFailed.

    load: reads and checks."""
    if looked.records is None:
        return looked
    try:
        records = load(looked.records)
    except (CorruptLog, StorageFailed):
        with find() as replica:
            looked = look(replica, ticket, looked.place, len(looked.records.data))
            if looked.records is None:
                return looked
            replica.damage.require_none(looked.records)
            records = load(looked.records)
    return looked._replace(records=records)


def are_all_columns(records: Records, columns: Sequence[str]) -> bool:
    """Whether the batches have these columns, in this order, and no other."""
    try:
        return bool(segment_schema(bytes(records.schema)).names == list(columns))
    except CorruptLog:
        return False  # whoever makes the answer meets it again


def with_columns(records: Records, columns: Sequence[str], bytes_max: int) -> LogSlice:
    """Read and check the records, and return them with these columns alone, as far as the batches have them: a topic
    that was widened since has more. They end once they take so many bytes: what was compressed takes more than it
    did."""
    stored = bytes(records.schema)
    found = map(segment_schema(stored).get_field_index, columns)
    pick = column_pick(stored, tuple(place for place in found if place >= 0))
    head_crc = crc32c(pick.head)
    entries: list[bytes] = []
    messages: list[Buffer] = []
    next_offset, size = records.first_offset, 0
    for entry, message in _checked_messages(records):
        picked = pick.of(message)
        crc = checksum(picked)
        entries.append(encode_entry(entry._replace(position=size, bytes=len(picked), crc=crc, schema_crc=head_crc)))
        messages.append(picked)
        next_offset, size = entry.last_offset + 1, size + len(picked)
        if size >= bytes_max:
            break
    data = b"".join(messages)
    return LogSlice(records.first_offset, next_offset, records.segment_base, b"".join(entries), data, pick.head)


def _checked_messages(records: Records) -> Iterator[tuple[IndexEntry, memoryview]]:
    """Each batch lasts until the next is asked for. CorruptLog: it is damaged."""
    for run, data in _runs(records):
        at = 0
        for entry in run:
            message = data[at : at + entry.bytes]
            check_batch(entry, message)
            yield entry, message
            at += entry.bytes


def _runs(records: Records) -> Iterator[tuple[Sequence[IndexEntry], memoryview]]:
    """About RUN_BYTES of the records at a time, or one batch. What is read lies where the run before it lay."""
    entries = list(decode_entries(records.entries))
    if isinstance(records, LogSlice):
        yield entries, memoryview(records.data).cast("B")
        return
    room = memoryview(bytearray(min(len(records.data), RUN_BYTES)))
    first, position = 0, 0
    while first < len(entries):
        after, size = first + 1, entries[first].bytes
        while after < len(entries) and size + entries[after].bytes <= RUN_BYTES:
            size += entries[after].bytes
            after += 1
        if size > len(room):
            room = memoryview(bytearray(size))
        _read(records, position, room[:size])
        yield entries[first:after], room[:size]
        first, position = after, position + size


def _read(records: StoredSlice, position: int, room: memoryview) -> None:
    filled = 0
    while filled < len(room):
        count = records.data.read_into(room[filled:], position + filled)
        if not count:
            raise StorageFailed(
                f"offsets {records.first_offset} to {records.next_offset - 1} could not be read: their file gave "
                f"{position + filled} of {len(records.data)} bytes. Repair the disk"
            )
        filled += count

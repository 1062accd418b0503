"""The batch index: one entry of fixed width per stored batch, the same bytes on every replica.

Rules:
- An entry's checksum covers the rest of it. That of 76 zero bytes is not zero, so an all-zero tail is no entry.
- Offsets and positions are contiguous, and leader epochs never fall. `whole_prefix` is the one home of these checks,
  for recovery and for what a leader sends.
- Above the number of a batch whose rows may come in another order is their digest (storage.format.row_digest). An entry
  of an older program has none.
- timestamp_max_ms is the running maximum within the segment: sorted, although leaders' clocks differ.
"""

from __future__ import annotations

import struct
import sys
from bisect import bisect_left
from collections.abc import Iterator
from typing import Literal, NamedTuple

from crc32c import crc32c

from spark_replication.model import Offset

Buffer = bytes | bytearray | memoryview

NO_TIMESTAMP = -1
NO_PRODUCER = -1
DIGEST_BITS = 30
DIGEST = 1 << DIGEST_BITS  # set in each digest: 0 is none

_BODY = struct.Struct("<7q2I2iI")
_ENTRY = struct.Struct("<7q2I2i2I")
_CHECKSUM = struct.Struct("<I")
_OFFSET = struct.Struct("<q")
_LAST_OFFSET_AT = 8
_TIMESTAMP_MAX_AT = 32
_SCHEMA_CRC_AT = 72
_DIGEST_AT = 32
ENTRY_BYTES = _ENTRY.size
assert ENTRY_BYTES == _BODY.size + _CHECKSUM.size == 80
# Where each field that `field_of_each` reads lies in an entry, and as what.
_FIELDS: dict[str, tuple[Literal["q", "i"], int]] = {
    "base_offset": ("q", 0),
    "last_offset": ("q", 8),
    "timestamp_ms": ("q", 24),
    "leader_epoch": ("i", 64),
}
assert sys.byteorder == "little", "entries are read as they lie on the disk"


class IndexEntry(NamedTuple):
    """The index entry of one batch."""

    base_offset: Offset
    last_offset: Offset
    #: Where the batch's IPC message lies in the `.arrow` file.
    position: int
    #: When the batch's leader appended it.
    timestamp_ms: int
    #: The latest timestamp_ms of the segment up to this batch.
    timestamp_max_ms: int
    #: -1 without idempotence, as are `sequence` and `producer_epoch`.
    producer: int
    #: The number of the batch, and perhaps a digest: see `numbered`.
    sequence: int
    #: The length of the IPC message.
    bytes: int
    #: The CRC-32C of the IPC message.
    crc: int
    leader_epoch: int
    producer_epoch: int
    #: The CRC-32C of the segment's schema message, without which nobody can read the batch. 0 if an older program made
    #: the entry: it did not say.
    schema_crc: int = 0


def numbered(sequence: int, digest: int) -> int:
    """The number of a batch, with the digest of its rows above it; 0 is none."""
    return digest << _DIGEST_AT | sequence if digest else sequence


def number_and_digest(numbered: int) -> tuple[int, int]:
    """The inverse of `numbered`."""
    if numbered < DIGEST << _DIGEST_AT:
        return numbered, 0
    return numbered & ((1 << _DIGEST_AT) - 1), numbered >> _DIGEST_AT


class Prefix(NamedTuple):
    """The entries that hold, from the start on."""

    #: How many they are.
    kept: int
    #: Why the next entry does not hold; empty if all do.
    why: str


def encode_entry(entry: IndexEntry) -> bytes:
    body = _BODY.pack(*entry)
    return body + _CHECKSUM.pack(crc32c(body))


def decode_entries(entries: Buffer) -> Iterator[IndexEntry]:
    for values in _ENTRY.iter_unpack(entries):
        yield IndexEntry._make(values[:-1])


def entry_at(entries: Buffer, place: int) -> IndexEntry:
    return IndexEntry._make(_BODY.unpack_from(entries, place * ENTRY_BYTES))


def field_of_each(entries: Buffer, name: str) -> list[int]:
    """One field of all entries, decoded at once: one entry at a time would cost as much as a small batch."""
    kind, start = _FIELDS[name]
    size = struct.calcsize(kind)
    values: list[int] = memoryview(entries).cast("B").cast(kind)[start // size :: ENTRY_BYTES // size].tolist()
    return values


def place_of_offset(entries: Buffer, offset: Offset) -> int:
    """The place of the batch that holds `offset`; the number of entries if `offset` is past them all."""
    last = _OFFSET.unpack_from  # not last_offset_at, since every fetch comes here
    return bisect_left(
        range(len(entries) // ENTRY_BYTES),
        offset,
        key=lambda place: last(entries, place * ENTRY_BYTES + _LAST_OFFSET_AT)[0],
    )


def count_to(entries: Buffer, end: Offset) -> int:
    """How many batches begin below `end`."""
    return min(place_of_offset(entries, end - 1) + 1, len(entries) // ENTRY_BYTES)


def place_of_time(entries: Buffer, timestamp_ms: int) -> int:
    """The place of the first batch that was appended at `timestamp_ms` or later; the number of entries if none was."""
    places = range(len(entries) // ENTRY_BYTES)
    return bisect_left(places, timestamp_ms, key=lambda place: timestamp_max_at(entries, place))


def last_offset_at(entries: Buffer, place: int) -> Offset:
    (offset,) = _OFFSET.unpack_from(entries, place * ENTRY_BYTES + _LAST_OFFSET_AT)
    return int(offset)


def timestamp_max_at(entries: Buffer, place: int) -> int:
    (timestamp_ms,) = _OFFSET.unpack_from(entries, place * ENTRY_BYTES + _TIMESTAMP_MAX_AT)
    return int(timestamp_ms)


def whole_prefix(entries: Buffer, *, base: Offset, epoch: int, data_bytes: int, position: int | None = None) -> Prefix:
    """The entries that hold when the first must start at `base`, in no leader epoch below `epoch`, and all must lie
    within the first `data_bytes` of the data. The first must lie at `position`; with None its own position is
    believed."""
    view = memoryview(entries)
    for place in range(len(entries) // ENTRY_BYTES):
        start = place * ENTRY_BYTES
        first, last, at, _, _, _, _, size, _, began, _, _, checksum = _ENTRY.unpack_from(view, start)
        if crc32c(view[start : start + _BODY.size]) != checksum:
            return Prefix(place, f"the checksum of entry {place} does not hold")
        if first != base:
            return Prefix(place, f"offsets do not continue at entry {place}")
        if last < first:
            return Prefix(place, f"the batch has no rows at entry {place}")
        if at != (max(1, at) if position is None else position):
            return Prefix(place, f"positions do not continue at entry {place}")
        if began < epoch:
            return Prefix(place, f"the leader epoch falls at entry {place}")
        if at + size > data_bytes:
            return Prefix(place, f"the data ends before the batch does at entry {place}")
        base, position, epoch = last + 1, at + size, began
    return Prefix(len(entries) // ENTRY_BYTES, "")


def count_below(schema_crc: int, entries: Buffer) -> int:
    """How many entries, from the first on, may lie in a segment whose schema message has this CRC-32C."""
    for place in range(len(entries) // ENTRY_BYTES):
        (named,) = _CHECKSUM.unpack_from(entries, place * ENTRY_BYTES + _SCHEMA_CRC_AT)
        if named not in (0, schema_crc):
            return place
    return len(entries) // ENTRY_BYTES

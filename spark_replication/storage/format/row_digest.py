"""A digest of a batch's rows that does not depend on their order: it tells a batch that is sent again with its rows in
another order from a batch of other rows.

Rules:
- Each row has a hash of 64 bits, of all its columns. The digest is made of the sum of these: so it does not depend on
  the order of the rows, and counts a row that is there twice two times.
- A null adds nothing to its row. So a column of nulls that the topic has got since changes no digest.
- A digest is stored (storage.format.index): the same rows must have the same digest in each process and each release.
- A column of a kind whose rows cannot be hashed one by one here (unions, run ends, list views) counts as it lies in
  memory: such rows are recognised in the same order alone.
- It is no defence against somebody who looks for rows of the same digest.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from spark_replication.storage.format.index import DIGEST, DIGEST_BITS

Hashes = np.ndarray[Any, np.dtype[np.uint64]]

PIECE_BYTES = 256 << 10  # of what is hashed at once: it stays in the processor's cache

_WORD = 8
_WORD_BITS = (1 << 64) - 1
_ODD = np.uint64(0x9E3779B97F4A7C15)
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))
_VIEWS = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
_BITS_OF_BYTE = 8


def row_digest(batch: pa.RecordBatch) -> int:
    """The digest of the rows: DIGEST_BITS, and DIGEST."""
    size = max(1, pa.ipc.get_record_batch_size(batch))
    rows = max(1, batch.num_rows * PIECE_BYTES // size)
    total = sum(_sum_of_rows(batch.slice(first, rows)) for first in range(0, batch.num_rows, rows))
    return (total & _WORD_BITS) >> (64 - DIGEST_BITS) | DIGEST


def _sum_of_rows(batch: pa.RecordBatch) -> int:
    rows = np.zeros(batch.num_rows, np.uint64)
    for place, column in enumerate(batch.columns):
        rows += _salted(_hashes(column), place)
    return int(_mixed(rows).sum(dtype=np.uint64))


def _hashes(column: pa.Array) -> Hashes:
    """A hash for each value; 0 for a null."""
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        return _hashes(column.storage)
    if pa.types.is_null(kind):
        return np.zeros(len(column), np.uint64)
    found = _hashes_of_values(column.cast(_VIEWS[kind]) if kind in _VIEWS else column)
    if column.null_count:
        found[column.is_null().to_numpy(zero_copy_only=False)] = 0
    return found


def _hashes_of_values(column: pa.Array) -> Hashes:
    kind, first, count = column.type, column.offset, len(column)
    if pa.types.is_boolean(kind):
        return _hashes_of_values(column.cast(pa.uint8()))
    if kind.num_fields:
        return _hashes_of_nested(column)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _of_bytes(column.buffers()[2], _read(column.buffers()[1], np.int32, first, count + 1))
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return _of_bytes(column.buffers()[2], _read(column.buffers()[1], np.int64, first, count + 1))
    width = _width(kind)
    if width in (1, 2, 4, 8):
        return _mixed(_read(column.buffers()[1], np.dtype(f"<u{width}"), first, count).astype(np.uint64) + _ODD)
    if width:
        return _of_bytes(column.buffers()[1], np.arange(first, first + count + 1) * width)
    return _in_order(column)


def _hashes_of_nested(column: pa.Array) -> Hashes:
    kind, first, count = column.type, column.offset, len(column)
    if pa.types.is_struct(kind):
        found = np.full(count, _ODD)
        for place, part in enumerate(column.flatten()):
            found += _salted(_hashes(part), place)
        return _mixed(found)
    if pa.types.is_map(kind):
        return _of_lists(column.offsets.to_numpy(), column.keys, column.items)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _of_lists(column.offsets.to_numpy(), column.values)
    if pa.types.is_fixed_size_list(kind):
        return _of_lists(np.arange(first, first + count + 1) * kind.list_size, column.values)
    return _in_order(column)


def _in_order(column: pa.Array) -> Hashes:
    """The same for all rows, of how the column lies in memory."""
    return np.full(len(column), np.uint64(crc32c(memoryview(pa.record_batch([column], ["column"]).serialize()))))


def _width(kind: pa.DataType) -> int:
    """The bytes of a value; 0 if they differ."""
    try:
        return int(kind.bit_width) // _BITS_OF_BYTE
    except ValueError:
        return 0


def _read(buffer: pa.Buffer | None, kind: Any, first: int, count: int) -> np.ndarray[Any, Any]:
    if not buffer or not count:
        return np.zeros(count, kind)
    return np.frombuffer(buffer, kind, count, first * np.dtype(kind).itemsize)


def _of_bytes(buffer: pa.Buffer | None, ends: np.ndarray[Any, Any]) -> Hashes:
    """A hash for the bytes between each two `ends`: of their words of 8 bytes, the last of which is filled with
    zeros, and of their number."""
    ends = ends.astype(np.int64)
    sizes = np.diff(ends)
    words = -(-sizes // _WORD)
    places = np.concatenate(([0], np.cumsum(words)))
    if not places[-1]:
        return _mixed(sizes.astype(np.uint64) + _ODD)
    start, end = int(ends[0]), int(ends[-1])
    data = np.zeros(end - start + _WORD, np.uint8)
    data[: end - start] = _read(buffer, np.uint8, start, end - start)
    # The words of a row begin wherever the row does: this reads 8 bytes from any place.
    anywhere: Hashes = np.ndarray((end - start + 1,), "<u8", data, strides=(1,))
    within = np.arange(places[-1]) - np.repeat(places[:-1], words)
    found = anywhere[np.repeat(ends[:-1] - start, words) + within * _WORD]
    filled = words > 0
    beyond = (words * _WORD - sizes)[filled].astype(np.uint64) * np.uint64(_BITS_OF_BYTE)
    last = places[1:][filled] - 1
    found[last] &= np.uint64(_WORD_BITS) >> beyond
    return _together(found, places, ends)


def _of_lists(ends: np.ndarray[Any, Any], *values: pa.Array) -> Hashes:
    """A hash for the values between each two `ends`. Of all values only those are looked at."""
    ends = ends.astype(np.int64)
    first, count = int(ends[0]), int(ends[-1] - ends[0])
    parts = np.zeros(count, np.uint64)
    for place, each in enumerate(values):
        parts += _salted(_hashes(each.slice(first, count)), place)
    return _together(parts, ends - first, ends)


def _together(parts: Hashes, places: np.ndarray[Any, Any], ends: np.ndarray[Any, Any]) -> Hashes:
    """A hash for the parts between each two `places`, in their order, and for how far its two `ends` are apart."""
    within = (np.arange(len(parts)) - np.repeat(places[:-1], np.diff(places))).astype(np.uint64)
    hashes = _mixed(parts + (within + np.uint64(1)) * _ODD)
    sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum(hashes)))
    of_each: Hashes = sums[places[1:]] - sums[places[:-1]]
    return _mixed(of_each + (np.diff(ends).astype(np.uint64) + np.uint64(1)) * _ODD)


def _salted(hashes: Hashes, place: int) -> Hashes:
    """The hashes as those of the column at this place; 0 stays 0."""
    return hashes * np.uint64(int(_ODD) * (2 * place + 1) & _WORD_BITS)


def _mixed(values: Hashes) -> Hashes:
    """The finish of splitmix64: each bit of a value changes half of the bits."""
    found = values ^ (values >> _SHIFTS[0])
    found *= _MIX[0]
    found ^= found >> _SHIFTS[1]
    found *= _MIX[1]
    found ^= found >> _SHIFTS[2]
    return found

"""A digest of a batch's rows that does not depend on their order: by it a batch is known again that was sent twice.

Part of the format: brokers keep it beside a batch (storage.index), and a later release has to find the same.

Each row has a hash of 64 bits, and the digest is their sum. A row's hash is made of its values' hashes, column by
column:

| a value | its hash is made of |
| --- | --- |
| null | nothing but that it is null |
| of fixed width | its bytes, in words of 8 |
| text, binary, a list, a map | the hashes of its bytes or items, each times a power of RADIX, and its length |
| a struct | its fields, as a row |

No Python for each row: the sums over bytes and items are differences of running sums.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds
from numpy.typing import NDArray

from spark_replication.errors import InvalidRequest

Hashes = NDArray[np.uint64]

_RADIX = 0x9E3779B97F4A7C15  # odd, so that it has an inverse modulo 2**64
_INVERSE = pow(_RADIX, -1, 1 << 64)
_NULL = np.uint64(0xD6E8FEB86659FD93)
_PART_BYTES = 1 << 20  # so much of text or binary is hashed at a time: the running sums take eight times that
_POWERS_MAX = 4  # arrays of powers that are kept: 8 MiB each for text
_MASK = (1 << 32) - 1


def row_digest(batch: pa.RecordBatch) -> int:
    """32 bits. Raises InvalidRequest if a column's type has no values that can be compared by their bytes."""
    total = int(np.add.reduce(_mixed(_rows(batch.columns, batch.num_rows))))
    return (total ^ (total >> 32)) & _MASK


def _rows(columns: list[pa.Array], count: int) -> Hashes:
    found = np.zeros(count, np.uint64)
    for column in columns:
        found = _mixed(found + _values(column))
    return found


def _mixed(values: Hashes) -> Hashes:
    """As the finaliser of splitmix64: each bit of a value changes half of the bits of its hash."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _values(column: pa.Array) -> Hashes:
    kind = column.type
    if kinds.is_null(kind):
        return np.full(len(column), _NULL)
    if isinstance(column, pa.ExtensionArray):
        return _values(column.storage)
    if kinds.is_dictionary(kind):
        return _values(column.dictionary_decode())
    if kinds.is_string_view(kind) or kinds.is_binary_view(kind):
        return _values(column.cast(pa.large_binary()))
    if kinds.is_struct(kind):
        found = _rows(column.flatten(), len(column))
    elif kinds.is_string(kind) or kinds.is_binary(kind) or kinds.is_large_string(kind) or kinds.is_large_binary(kind):
        found = _of_bytes(column)
    elif kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_map(kind):
        found = _of_items(column)
    elif kinds.is_fixed_size_list(kind):
        offsets = np.arange(len(column) + 1, dtype=np.int64) * kind.list_size
        items = column.values.slice(column.offset * kind.list_size, len(column) * kind.list_size)
        found = _folded(_values(items), offsets)
    else:
        found = _of_fixed_width(column)
    return np.where(np.asarray(column.is_valid()), found, _NULL) if column.null_count else found


def _of_fixed_width(column: pa.Array) -> Hashes:
    if kinds.is_boolean(column.type):
        column = column.cast(pa.uint8())
    try:
        width = column.type.byte_width
    except ValueError as error:
        raise InvalidRequest(f"rows with a column of {column.type} cannot be told apart: leave it out") from error
    data = column.buffers()[1]
    there = np.zeros((len(column), -(-width // 8) * 8), np.uint8)
    if data is not None and width:
        there[:, :width] = np.frombuffer(data, np.uint8, len(column) * width, column.offset * width).reshape(-1, width)
    found = np.zeros(len(column), np.uint64)
    for word in there.view("<u8").T:
        found = _mixed(found + word)
    return found


def _of_bytes(column: pa.Array) -> Hashes:
    width = np.int64 if kinds.is_large_string(column.type) or kinds.is_large_binary(column.type) else np.int32
    _, places, data = column.buffers()
    if places is None or not len(column):
        return np.zeros(len(column), np.uint64)
    offsets = np.frombuffer(places, width, len(column) + 1, column.offset * np.dtype(width).itemsize).astype(np.int64)
    symbols = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8)
    found = np.empty(len(column), np.uint64)
    first = 0
    while first < len(column):
        # As many values as fit into a part; at least one.
        beyond = int(np.searchsorted(offsets, offsets[first] + _PART_BYTES, "right")) - 1
        beyond = min(max(beyond, first + 1), len(column))
        part = offsets[first : beyond + 1]
        found[first:beyond] = _folded(symbols[part[0] : part[-1]].astype(np.uint64) + np.uint64(1), part - part[0])
        first = beyond
    return found


def _of_items(column: pa.Array) -> Hashes:
    if not len(column):
        return np.zeros(0, np.uint64)
    offsets = np.asarray(column.offsets).astype(np.int64)
    items = column.values if not kinds.is_map(column.type) else _entries(column)
    return _folded(_values(items.slice(offsets[0], offsets[-1] - offsets[0])), offsets - offsets[0])


def _entries(column: pa.MapArray) -> pa.Array:
    return pa.StructArray.from_arrays([column.keys, column.items], names=["key", "item"])


def _folded(symbols: Hashes, offsets: NDArray[np.int64]) -> Hashes:
    """Of the symbols between two offsets one hash each: by their values, their order and their number."""
    count_max = 1 << len(symbols).bit_length()
    power, inverse = _powers_of(_RADIX, count_max), _powers_of(_INVERSE, count_max)
    sums = np.zeros(len(symbols) + 1, np.uint64)
    np.cumsum(symbols * power[: len(symbols)], out=sums[1:])
    starts, ends = offsets[:-1], offsets[1:]
    folded = (sums[ends] - sums[starts]) * inverse[starts]
    return _mixed(folded + _mixed((ends - starts).astype(np.uint64)))


@lru_cache(_POWERS_MAX)
def _powers_of(base: int, count: int) -> Hashes:
    factors = np.full(count, base, np.uint64)
    factors[0] = 1
    return np.multiply.accumulate(factors)

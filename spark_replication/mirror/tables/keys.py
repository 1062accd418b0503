"""The bytes of a key, for whoever writes by one and whoever asks by one.

Here and for Spark's columns (spark.leaders):
- of one column: the UTF-8 of its value cast to string; binary as it is; null as the empty string;
- of several columns: the bytes of each, joined with U+001F.
Any other bytes lead to another partition: a producer that sends by such a key must make the same ones.
"""

from __future__ import annotations

import zlib
from array import array

import pyarrow as pa
import pyarrow.compute as pc

from spark_replication.errors import InvalidRequest

SEPARATOR = b"\x1f"
# The text of other types depends on settings, or on who writes it: a time zone, digits of a float, zeros of a decimal.
KEY_TYPES = "text, binary, whole numbers, booleans and dates can be keys; cast others to string yourself"

_AS_TEXT = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
    pa.types.is_integer,
    pa.types.is_boolean,
    pa.types.is_date32,
    pa.types.is_null,
)
_AS_BYTES = (
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
    pa.types.is_fixed_size_binary,
)


def key_bytes(keys: pa.Array) -> pa.Array:
    """The bytes of each key, by the rule above. A struct is a key of several columns."""
    if isinstance(keys, pa.ChunkedArray):
        keys = keys.combine_chunks()
    if not pa.types.is_struct(keys.type):
        return _bytes_of_column(keys)
    columns = [_bytes_of_column(column) for column in keys.flatten()]
    if not columns:
        raise InvalidRequest("a key of no column: name one at least")
    return pc.binary_join_element_wise(*columns, pa.scalar(SEPARATOR, pa.large_binary()))


def places_of(keys: pa.Array, partitions: int) -> pa.Array:
    """The place of each of these bytes among so many partitions in ascending order: by CRC-32, as `core.routing` and
    Spark's crc32() compute it. Arrow has none, so it is computed once for each distinct key, in a loop written in C."""
    distinct = keys.dictionary_encode()
    words = pa.py_buffer(array("I", map(zlib.crc32, distinct.dictionary.to_pylist())))
    crcs = pa.Array.from_buffers(pa.uint32(), len(distinct.dictionary), [None, words])
    count = pa.scalar(partitions, pa.uint32())
    return pc.subtract(crcs, pc.multiply(pc.divide(crcs, count), count)).take(distinct.indices)


def _bytes_of_column(column: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if any(is_type(column.type) for is_type in _AS_TEXT):
        column = column.cast(pa.large_string())
    elif not any(is_type(column.type) for is_type in _AS_BYTES):
        raise InvalidRequest(f"a column of {column.type} cannot be a key: {KEY_TYPES}")
    return column.cast(pa.large_binary()).fill_null(b"")

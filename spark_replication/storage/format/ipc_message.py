"""What an IPC message says of itself, read without Arrow, which would decompress it first.

A message is `ff ff ff ff`, the length of its metadata, the metadata as a flatbuffer, and its body. Flatbuffers are
tables of fields: a table begins with the distance back to its vtable, which says where each field lies.
"""

from __future__ import annotations

import struct

Buffer = bytes | bytearray | memoryview

_HEAD = struct.Struct("<Ii")
_OFFSET, _SHORT, _LONG = struct.Struct("<I"), struct.Struct("<H"), struct.Struct("<q")
_CONTINUED = 0xFFFFFFFF
# Places of fields in their tables, and the kind of header that a record batch is, by Arrow's Message.fbs.
_HEADER_TYPE, _HEADER, _BODY_LENGTH = 1, 2, 3
_COMPRESSION = 3
_RECORD_BATCH = 3


def is_plain_batch(message: Buffer) -> bool:
    """Whether this is one record batch that is not compressed, and nothing else. Arrow still has to check all of it."""
    try:
        return _is_plain_batch(message)
    except (struct.error, IndexError):
        return False


def _is_plain_batch(message: Buffer) -> bool:
    marker, length = _HEAD.unpack_from(message)
    if marker != _CONTINUED or length < 0:
        return False
    metadata = memoryview(message)[_HEAD.size : _HEAD.size + length]
    root = _OFFSET.unpack_from(metadata)[0]
    kind, header, body = (_field(metadata, root, each) for each in (_HEADER_TYPE, _HEADER, _BODY_LENGTH))
    if not kind or not header or metadata[kind] != _RECORD_BATCH:
        return False
    body_length = _LONG.unpack_from(metadata, body)[0] if body else 0
    if _HEAD.size + length + body_length != len(message):
        return False
    batch = header + _OFFSET.unpack_from(metadata, header)[0]
    return _field(metadata, batch, _COMPRESSION) == 0


def _field(metadata: memoryview, table: int, field: int) -> int:
    """Where a field of the table lies; 0 if the table does not have it."""
    back = struct.unpack_from("<i", metadata, table)[0]
    vtable = table - back
    if vtable < 0:
        raise IndexError(vtable)
    at = 4 + 2 * field  # after the sizes of the vtable and of the table
    if at + 2 > _SHORT.unpack_from(metadata, vtable)[0]:
        return 0
    place = _SHORT.unpack_from(metadata, vtable + at)[0]
    return table + int(place) if place else 0

"""What an IPC message says of itself, read without Arrow, which would decompress it first.

A message is `ff ff ff ff`, the length of its metadata, the metadata as a flatbuffer, and its body. Flatbuffers are
tables of fields: a table begins with the distance back to its vtable, which says where each field lies. A batch's
metadata counts the values and nulls of each column, and of each column within it (a node), and says where each buffer
lies in the body.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import NamedTuple

Buffer = bytes | bytearray | memoryview

_HEAD = struct.Struct("<Ii")
_OFFSET, _SHORT, _LONG = struct.Struct("<I"), struct.Struct("<H"), struct.Struct("<q")
_CONTINUED = 0xFFFFFFFF
# Places of fields in their tables, and the kind of header that a record batch is, by Arrow's Message.fbs.
_HEADER_TYPE, _HEADER, _BODY_LENGTH = 1, 2, 3
_ROWS, _NODES, _BUFFERS, _COMPRESSION = 0, 1, 2, 3
_RECORD_BATCH = 3
_PAIR_BYTES = 16
_PADDED_TO = 8  # of buffers


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


class _Numbers(NamedTuple):
    """Where the numbers of a batch lie in its message: each has 8 bytes, and a node and a buffer have two of them."""

    #: 0 if it is left out, since there is no body.
    body_bytes: int
    rows: int
    nodes: range
    buffers: range

    def places(self, nodes: Sequence[int], buffers: Sequence[int]) -> list[int]:
        """Where the count of the body's bytes lies, and that of the rows, and then those of these nodes and buffers."""
        pairs = ((place, place + _LONG.size) for place in (*nodes, *buffers))
        return [self.body_bytes, self.rows, *chain.from_iterable(pairs)]


def _numbers(message: Buffer) -> _Numbers:
    """The numbers of a batch without compression. How many buffers each of its views has is none of them."""
    metadata = memoryview(message)[_HEAD.size :]
    root = _OFFSET.unpack_from(metadata)[0]
    header, body = (_field(metadata, root, each) for each in (_HEADER, _BODY_LENGTH))
    batch = header + _OFFSET.unpack_from(metadata, header)[0]
    pairs = []
    for at in (_field(metadata, batch, each) for each in (_NODES, _BUFFERS)):
        vector = at + _OFFSET.unpack_from(metadata, at)[0]
        first = _HEAD.size + vector + _OFFSET.size
        pairs.append(range(first, first + _PAIR_BYTES * _OFFSET.unpack_from(metadata, vector)[0], _PAIR_BYTES))
    return _Numbers(body and _HEAD.size + body, _HEAD.size + _field(metadata, batch, _ROWS), *pairs)


class _Form:
    """The metadata of the batches of one schema: numbers, and what is beside them, which is the same in all that the
    same Arrow has written."""

    def __init__(self, example: Buffer, every: Sequence[int], wanted: Sequence[int]) -> None:
        """every: where its numbers lie. wanted: where those do that are read and written, in this order."""
        self.bytes = _HEAD.size + int(_HEAD.unpack_from(example)[1])
        number_at = {place: number for number, place in enumerate(wanted)}
        texts: list[bytes] = []
        order: list[int] = []
        form, end = "<", 0
        for place in (*sorted(every), self.bytes):
            if place > end:
                form += f"{place - end}s"
                order.append(len(wanted) + len(texts))
                texts.append(bytes(example[end:place]))
            if place in number_at:
                order.append(number_at[place])
            if place < self.bytes:
                form += "q" if place in number_at else f"{_LONG.size}x"
            end = place + _LONG.size
        found = sorted(range(len(order)), key=order.__getitem__)
        self._struct = struct.Struct(form)
        self._texts, self._order = tuple(texts), tuple(order)
        self._numbers_at, self._texts_at = found[: len(wanted)], found[len(wanted) :]

    def read(self, message: Buffer) -> list[int] | None:
        """The numbers. None if the metadata has another form."""
        if len(message) < self.bytes:
            return None
        found = self._struct.unpack_from(message)
        if any(found[at] != text for at, text in zip(self._texts_at, self._texts, strict=True)):
            return None
        return [found[at] for at in self._numbers_at]

    def written(self, numbers: Sequence[int]) -> bytes:
        values = (*numbers, *self._texts)
        return self._struct.pack(*[values[number] for number in self._order])


class ColumnCut:
    """Takes some columns out of the messages of batches. Of the other columns nothing is looked at."""

    def __init__(self, whole: _Form, part: _Form, nodes: int) -> None:
        """nodes: how many the wanted columns have."""
        self._whole, self._part = whole, part
        self._buffers_at = 2 + 2 * nodes

    @classmethod
    def by_examples(
        cls, whole: Buffer, part: Buffer, columns: Sequence[Buffer], places: Sequence[int]
    ) -> ColumnCut | None:
        """The examples are messages of this process's Arrow. whole: a batch. part: the wanted columns alone. columns:
        each column alone, of which the wanted ones have these places. None if there is no body to cut."""
        of_whole, of_part, *of_each = map(_numbers, (whole, part, *columns))
        if not (of_whole.body_bytes and of_part.body_bytes):
            return None
        nodes = _chosen(of_whole.nodes, [len(each.nodes) for each in of_each], places)
        buffers = _chosen(of_whole.buffers, [len(each.buffers) for each in of_each], places)
        of_all = of_part.places(of_part.nodes, of_part.buffers)
        every = of_whole.places(of_whole.nodes, of_whole.buffers)
        return cls(_Form(whole, every, of_whole.places(nodes, buffers)), _Form(part, of_all, of_all), len(nodes))

    def of(self, message: memoryview) -> bytes | None:
        """The message of the wanted columns, byte for byte as Arrow writes it. None if the batch is laid out in another
        way: it is compressed, say, or its views have buffers."""
        numbers = self._whole.read(message)
        if numbers is None:
            return None
        body, size = message[self._whole.bytes :], 0
        found = numbers[: self._buffers_at]
        parts: list[Buffer] = [b""]
        buffers = iter(numbers[self._buffers_at :])
        for start, length in zip(buffers, buffers, strict=True):
            found += (size, length)
            if length:
                padded = length + -length % _PADDED_TO
                parts.append(body[start : start + padded])
                size += padded
        found[0] = size
        parts[0] = self._part.written(found)
        cut = b"".join(parts)
        return cut if numbers[0] == len(body) and len(cut) == self._part.bytes + size else None


def _chosen(every: Sequence[int], counts: Sequence[int], places: Sequence[int]) -> list[int]:
    """What the columns at these places have of all there is: it comes column by column, so many of each."""
    starts = [0, *accumulate(counts)]
    return [each for place in places for each in every[starts[place] : starts[place + 1]]]

"""Cuts a range of stored batches into pieces of about so many bytes, from the index alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy

from spark_replication.messages.ranges import Piece
from spark_replication.model import Offset
from spark_replication.storage.format.entry_arrays import as_array
from spark_replication.storage.format.index import count_to, place_of_offset

PIECES_MAX = 10_000

Numbers = numpy.ndarray[Any, Any]
Batches = tuple[Numbers, Numbers]  # the offset after each batch, and its bytes


def batches_between(entries: bytes | bytearray, start: Offset, end: Offset) -> Batches:
    """The batches that hold an offset of [start, end)."""
    # A copy: a bytearray cannot grow while there is a view of it.
    found = as_array(bytes(entries))[place_of_offset(entries, start) : count_to(entries, end)]
    return found["last_offset"] + 1, found["bytes"].astype(numpy.int64)


def cut(batches: Iterable[Batches], end: Offset, piece_bytes: int) -> tuple[Piece, ...]:
    """Cut the batches into pieces. Each ends with a batch, the last one at `end`, and exceeds `piece_bytes` by less
    than a batch. If that gave more than PIECES_MAX pieces, they are larger."""
    found = list(batches)
    if not sum(len(sizes) for _, sizes in found):
        return ()
    ends = numpy.concatenate([ends for ends, _ in found])
    bytes_up_to = numpy.concatenate([sizes for _, sizes in found]).cumsum()
    piece_bytes = max(piece_bytes, 1, -(-int(bytes_up_to[-1]) // PIECES_MAX))
    piece_of = (bytes_up_to - 1) // piece_bytes
    last = numpy.append(numpy.flatnonzero(numpy.diff(piece_of)), len(ends) - 1)
    sizes = numpy.diff(bytes_up_to[last], prepend=0)
    ends = numpy.minimum(ends[last], end)
    return tuple(Piece(end=each, bytes=size) for each, size in zip(ends.tolist(), sizes.tolist(), strict=True))

"""The entries of a batch index as arrays, for those who look at thousands at once: whoever opens or plans a log.

A client does without: it has no numpy.
"""

from __future__ import annotations

from typing import Any

import numpy
from crc32c import crc32c

from spark_replication.model import Offset
from spark_replication.storage.format.index import ENTRY_BYTES, NO_PRODUCER, Buffer, IndexEntry, entry_at

ENTRY_TYPE = numpy.dtype(
    [
        ("base_offset", "<i8"),
        ("last_offset", "<i8"),
        ("position", "<i8"),
        ("timestamp_ms", "<i8"),
        ("timestamp_max_ms", "<i8"),
        ("producer", "<i8"),
        ("sequence", "<i8"),
        ("bytes", "<u4"),
        ("crc", "<u4"),
        ("leader_epoch", "<i4"),
        ("producer_epoch", "<i4"),
        ("schema_crc", "<u4"),
        ("entry_crc", "<u4"),
    ]
)
assert ENTRY_TYPE.itemsize == ENTRY_BYTES

Entries = numpy.ndarray[Any, Any]


def as_array(entries: Buffer) -> Entries:
    """The entries as an array: a view, not a copy. A torn entry at the end is left out."""
    return numpy.frombuffer(entries, dtype=ENTRY_TYPE, count=len(entries) // ENTRY_BYTES)


def newest_of_producers(entries: Buffer, count: int) -> list[IndexEntry]:
    """The last `count` batches of each producer, in their order. No other batch costs Python."""
    producers = as_array(entries)["producer"]
    numbered = numpy.flatnonzero(producers != NO_PRODUCER)
    order = numbered[numpy.argsort(producers[numbered], kind="stable")]
    # `ordered` has each producer's batches side by side. `last` has, for each batch, where those of its producer end.
    ordered = producers[order]
    last = numpy.searchsorted(ordered, ordered, side="right") - 1
    kept = numpy.sort(order[last - numpy.arange(len(order)) < count])
    return [entry_at(entries, int(place)) for place in kept]


def moved(entries: Buffer, position: int, timestamp_max_ms: int) -> bytes:
    """The entries of the same batches in another segment, where the first of them lies at `position`.
    timestamp_max_ms: the latest timestamp of the batches before them there."""
    there = as_array(entries).copy()
    there["position"] += position - there["position"][:1]
    there["timestamp_max_ms"] = numpy.maximum.accumulate(there["timestamp_ms"]).clip(min=timestamp_max_ms)
    body_bytes = ENTRY_BYTES - ENTRY_TYPE["entry_crc"].itemsize
    bodies = memoryview(there.tobytes())
    starts = range(0, len(bodies), ENTRY_BYTES)
    there["entry_crc"] = [crc32c(bodies[start : start + body_bytes]) for start in starts]
    return there.tobytes()


def continues(entries: Entries, *, base: Offset, epoch: int, data_bytes: int) -> bool:
    """Whether all these entries hold by the rules of `whole_prefix`, without a look at their checksums: for entries
    that are known to be on the disk as they were written. It is a hundred times as fast."""
    if not len(entries):
        return True
    first, last, at, began = (entries[name] for name in ("base_offset", "last_offset", "position", "leader_epoch"))
    ends = at + entries["bytes"].astype(numpy.int64)
    return bool(
        first[0] == base
        and at[0] >= 1
        and began[0] >= epoch
        and ends[-1] <= data_bytes
        and (last >= first).all()
        and (first[1:] == last[:-1] + 1).all()
        and (at[1:] == ends[:-1]).all()
        and (began[1:] >= began[:-1]).all()
    )

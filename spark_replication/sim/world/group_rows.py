"""The rows of the groups' log in the simulator: each is a batch of its own, whose bytes are its JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from crc32c import crc32c

from spark_replication.model import Offset
from spark_replication.ports import LogSlice, PreparedBatch
from spark_replication.sim.world.disk import HEADS, contents_of
from spark_replication.storage.format.batches import check_data
from spark_replication.storage.format.index import decode_entries


class StoredOneByOne:
    """ports.GroupRows."""

    def encode(self, rows: Sequence[tuple[str | None, bytes]]) -> list[PreparedBatch]:
        return [PreparedBatch(1, text, crc32c(text), HEADS[0]) for _, text in rows]

    def decode(self, records: LogSlice) -> Iterable[tuple[Offset, str]]:
        check_data(records)
        entries = decode_entries(records.entries)
        return [(entry.base_offset, text.decode()) for entry, text in zip(entries, contents_of(records), strict=True)]

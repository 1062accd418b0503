"""The batches that readers return, whether they come from a broker or from files, and the columns that say of each row
where it lies."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import msgspec
import pyarrow as pa

from spark_replication.messages.records import PARTITION
from spark_replication.model import Offset, TopicPartition
from spark_replication.storage.directory.stored_log import Found

TOPIC, OFFSET, TIMESTAMP, LEADER_EPOCH = "_topic", "_offset", "_timestamp", "_leader_epoch"
#: What rows do not have as columns of their own.
METADATA = pa.schema(
    [
        pa.field(TOPIC, pa.string(), nullable=False),
        pa.field(PARTITION, pa.int32(), nullable=False),
        pa.field(OFFSET, pa.int64(), nullable=False),
        pa.field(TIMESTAMP, pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field(LEADER_EPOCH, pa.int32(), nullable=False),
    ]
)


class LogBatch(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partition: int
    #: Its rows have the offsets from base_offset to last_offset.
    batch: pa.RecordBatch
    base_offset: Offset
    last_offset: Offset
    leader_epoch: int
    #: When the leader appended the batch, in ms since 1970.
    timestamp: int
    #: Exclusive. A new leader may show a lower one for a while.
    high_watermark: Offset

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        """Its rows, for whatever takes Arrow."""
        found: tuple[object, object] = self.batch.__arrow_c_array__(requested_schema)
        return found


def metadata_of(found: LogBatch, names: Collection[str]) -> dict[str, pa.Array]:
    """Columns of METADATA by name."""
    same = {
        TOPIC: found.topic,
        PARTITION: found.partition,
        TIMESTAMP: found.timestamp * 1_000,
        LEADER_EPOCH: found.leader_epoch,
    }
    columns = {
        name: pa.repeat(pa.scalar(value, METADATA.field(name).type), found.batch.num_rows)
        for name, value in same.items()
        if name in names
    }
    if OFFSET in names:
        columns[OFFSET] = pa.arange(found.base_offset, found.last_offset + 1)
    return columns


def log_batches(name: TopicPartition, found: Iterable[Found], high_watermark: Offset) -> Iterator[LogBatch]:
    """The LogBatches of what was found in files."""
    return (
        LogBatch(
            topic=name.topic,
            partition=name.partition,
            batch=batch,
            base_offset=first,
            last_offset=first + batch.num_rows - 1,
            leader_epoch=leader_epoch,
            timestamp=timestamp_ms,
            high_watermark=high_watermark,
        )
        for first, leader_epoch, timestamp_ms, batch in found
    )

"""The batches that readers return, whether they come from a broker or from files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import pyarrow as pa

from spark_replication.model import Offset, TopicPartition
from spark_replication.storage.directory.stored_log import Found


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

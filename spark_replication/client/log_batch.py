"""What readers hand out, from wherever it comes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import pyarrow as pa

from spark_replication.model import Offset
from spark_replication.storage.stored_log import Found


class LogBatch(msgspec.Struct, frozen=True, kw_only=True):
    """batch: a pyarrow.RecordBatch, whose rows have the offsets from base_offset to last_offset.

    timestamp: when its leader appended it, in ms since 1970. high_watermark: exclusive; a new leader may show a lower
    one for a while.
    """

    batch: pa.RecordBatch
    base_offset: Offset
    last_offset: Offset
    leader_epoch: int
    timestamp: int
    high_watermark: Offset


def log_batches(found: Iterable[Found], high_watermark: Offset) -> Iterator[LogBatch]:
    """Of what was found in files."""
    return (
        LogBatch(
            batch=batch,
            base_offset=first,
            last_offset=first + batch.num_rows - 1,
            leader_epoch=leader_epoch,
            timestamp=timestamp_ms,
            high_watermark=high_watermark,
        )
        for first, leader_epoch, timestamp_ms, batch in found
    )

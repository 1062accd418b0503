"""A follower's fetch as core judges it, and the answer to it. Values alone."""

from __future__ import annotations

import msgspec

from spark_replication.core.replica.replica import Fetch
from spark_replication.errors import ReplicationError
from spark_replication.messages.replication import Diverging, FetchedPartition, FetchPartition
from spark_replication.model import BrokerId, Offset
from spark_replication.ports import Records


def fetch_asked(fetch: FetchPartition, by: BrokerId, broker_epoch: int) -> Fetch:
    return Fetch(
        by=by,
        broker_epoch=broker_epoch,
        leader_epoch=fetch.leader_epoch,
        offset=fetch.offset,
        last_epoch=fetch.last_epoch,
        clean_since=fetch.clean_since,
    )


def answer_to(
    fetch: FetchPartition,
    *,
    high_watermark: Offset,
    log_start: Offset,
    diverging: Diverging | None = None,
    error: ReplicationError | None = None,
    records: Records | None = None,
    producers: bytes = b"",
) -> FetchedPartition:
    answer = FetchedPartition(
        topic=fetch.topic,
        partition=fetch.partition,
        topic_id=fetch.topic_id,
        leader_epoch=fetch.leader_epoch,
        diverging=diverging,
        high_watermark=high_watermark,
        log_start=log_start,
        producers=producers,
    )
    if error is not None:
        return msgspec.structs.replace(answer, error=error.code, message=error.message)
    if records is not None:
        return msgspec.structs.replace(
            answer,
            offset=records.first_offset,
            segment_base=records.segment_base,
            schema_bytes=len(records.head),
            entry_bytes=len(records.entries),
            data_bytes=len(records.data),
        )
    return answer

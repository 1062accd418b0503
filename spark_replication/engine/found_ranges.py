"""A range of a replica's log, described for readers that plan a read, or that read the files."""

from __future__ import annotations

from spark_replication.engine.partition import FindPartition
from spark_replication.engine.replica_loop import ReplicaLoop
from spark_replication.errors import ReplicationError
from spark_replication.messages.ranges import FoundRange, WantedRange


def found_range(find: FindPartition, wanted: WantedRange) -> FoundRange:
    try:
        with find(wanted.topic_partition) as replica:
            return _found(replica, wanted)
    except ReplicationError as error:
        return FoundRange(topic=wanted.topic, partition=wanted.partition, error=error.code, message=error.message)


def _found(replica: ReplicaLoop, wanted: WantedRange) -> FoundRange:
    high_watermark = replica.committed_end(any_replica=wanted.files)
    log = replica.log
    start = replica.start_of(wanted.beginning, any_replica=wanted.files)
    end = high_watermark if wanted.to is None else min(wanted.to, high_watermark)
    # The part of the range that the log still has.
    first, last = max(start, log.log_start), max(end, log.log_start)
    return FoundRange(
        topic=wanted.topic,
        partition=wanted.partition,
        topic_id=replica.topic_id,
        log_start=log.log_start,
        high_watermark=high_watermark,
        start=start,
        end=end,
        bytes=max(0, log.bytes_from(first) - log.bytes_from(last)),
        pieces=log.pieces(first, last, wanted.piece_bytes) if wanted.piece_bytes and first < last else (),
    )

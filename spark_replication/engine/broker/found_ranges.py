"""A range of a replica's log, described for readers that plan a read, or that read the files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from spark_replication.core.replica.epochs import NO_EPOCH
from spark_replication.core.replica.read_start import ReadPlace
from spark_replication.engine.replica.partition import FindPartition
from spark_replication.engine.replica.replica_loop import ReplicaLoop
from spark_replication.errors import OffsetNotAvailable, ReplicationError
from spark_replication.messages.ranges import FoundRange, KnownAppends, Piece, WantedRange
from spark_replication.model import Offset


def found_range(find: FindPartition, wanted: WantedRange) -> FoundRange:
    try:
        with find(wanted.topic_partition) as replica:
            return _found(replica, wanted)
    except ReplicationError as error:
        return FoundRange(topic=wanted.topic, partition=wanted.partition, error=error.code, message=error.message)


def _found(replica: ReplicaLoop, wanted: WantedRange) -> FoundRange:
    served, lags = _served(replica, wanted)
    log = replica.log
    start = replica.start_of(wanted.beginning, any_replica=wanted.files)
    end = served if wanted.to is None else min(wanted.to, served)
    # The part of the range that the log still has.
    first, last = max(start, log.log_start), max(end, log.log_start)
    return FoundRange(
        topic=wanted.topic,
        partition=wanted.partition,
        topic_id=replica.topic_id,
        leader_epoch=replica.led_epoch,
        log_start=log.log_start,
        high_watermark=served,
        start=start,
        end=end,
        start_epoch=replica.epoch_before(start, any_replica=wanted.files),
        end_epoch=replica.epoch_before(end, any_replica=wanted.files),
        start_ms=log.time_of(first) if wanted.timed and first < served else None,
        cut=replica.cut_below(ReadPlace(start, NO_EPOCH if wanted.last_epoch is None else wanted.last_epoch)),
        lags=lags,
        bytes=max(0, log.bytes_from(first) - log.bytes_from(last)),
        pieces=_pieces(replica, first, last, wanted.piece_bytes),
        known=tuple(_known(replica, wanted.producers)),
    )


def _known(replica: ReplicaLoop, producers: Iterable[int]) -> Iterator[KnownAppends]:
    for producer in producers:
        newest = replica.newest_of(producer)
        if newest is not None:
            yield KnownAppends(producer=producer, **newest._asdict())


def _served(replica: ReplicaLoop, wanted: WantedRange) -> tuple[Offset, bool]:
    """The end of what may be read here, and whether more may be committed. Raises OffsetNotAvailable where the range
    asks for more than this leader knows of (K1)."""
    served = replica.served_end(any_replica=wanted.files)
    try:
        replica.committed_end(any_replica=wanted.files)
    except OffsetNotAvailable:
        if not wanted.may_lag and (wanted.to is None or wanted.to > served):
            raise
        return served, True
    return served, False


def _pieces(replica: ReplicaLoop, first: Offset, last: Offset, piece_bytes: int) -> tuple[Piece, ...]:
    """The pieces of [first, last), all of which is committed."""
    if not piece_bytes or first >= last:
        return ()
    epoch_before = replica.view.epoch_before
    return tuple(
        replace(each, last_epoch=epoch_before(each.end)) for each in replica.log.pieces(first, last, piece_bytes)
    )

"""The state of a replica in numbers, for metrics."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from spark_replication.core.replica.replica import Leading
from spark_replication.engine.replica.replica_loop import ReplicaLoop
from spark_replication.messages.descriptions import FollowerLag
from spark_replication.model import BrokerId, Offset, TopicPartition
from spark_replication.view.conditions import holding


class ReplicaGauges(msgspec.Struct, frozen=True, kw_only=True):
    partition: TopicPartition
    log_start: Offset
    log_end: Offset
    high_watermark: Offset
    bytes: int
    #: The disk refused something within the last disk.retry.ms.
    disk_refuses: bool
    #: Batches that the disk does not give back as they were written.
    damaged_batches: int
    leads: bool
    # Known of partitions that this replica leads, and of no others.
    under_replicated: bool = False
    under_min_isr: bool = False
    #: Of all followers but those that a reassignment is adding: they have a long way to go, and nobody waits for them.
    #: A follower that has not fetched yet lacks everything.
    lags: Mapping[BrokerId, FollowerLag] = {}


def gauges_of(replica: ReplicaLoop, now_ms: int) -> ReplicaGauges:
    """Whoever calls has the partition. Reads no file."""
    log, part = replica.log, replica.part
    found = ReplicaGauges(
        partition=replica.partition,
        log_start=log.log_start,
        log_end=log.log_end,
        high_watermark=replica.high_watermark,
        bytes=sum(segment.bytes for segment in log.segments()),
        disk_refuses=replica.disk_trouble.is_recent,
        damaged_batches=len(replica.damage.batches),
        leads=replica.leads,
    )
    if not isinstance(part, Leading):
        return found
    state = part.state
    conditions = holding(state.leader, state.isr, state.min_isr, part.replicas, adding=part.adding)
    return replace(
        found,
        under_replicated="under_replicated" in conditions,
        under_min_isr="under_min_isr" in conditions,
        lags={
            broker: lag if lag.records is not None else replace(lag, records=log.log_end - log.log_start)
            for broker, lag in replica.lags(now_ms).items()
            if broker not in part.copying
        },
    )

"""A broker's metrics. Cost: one look at each of its replicas, one partition at a time.

A partition that another thread has for long is reported as it was last time, so that a scrape waits for no disk.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain, islice
from typing import Protocol

from prometheus_client.metrics_core import Metric

from spark_replication.core.replica.lag import CAUGHT_UP
from spark_replication.engine.broker.broker_loop import BrokerLoop
from spark_replication.engine.groups.coordinator import GroupGauges
from spark_replication.errors import RequestTimedOut
from spark_replication.live.broker.lease import BrokerLease
from spark_replication.live.broker.patience import RoundPatience
from spark_replication.live.broker.table_reports import TableReports
from spark_replication.live.exposition import (
    counter,
    exposition,
    gauge,
    gauges,
    requests,
    secrets_refused,
    throttled,
    traffic,
)
from spark_replication.messages.descriptions import FollowerLag
from spark_replication.messages.observing import GetMetrics, MetricsText
from spark_replication.model import ControllerInfo, TopicPartition
from spark_replication.transport.flight.flight import BrokerFlightServer
from spark_replication.transport.frames.replication import Replication
from spark_replication.view.replica_gauges import ReplicaGauges, gauges_of

GROUPS_S = 1.0  # so long a scrape waits for what is told of groups
GROUPS_MAX = 1_000
POSITIONS_MAX = 10_000


class ZooKeeper(Protocol):
    """What this broker knows of ZooKeeper (zk.broker.store.BrokerStore)."""

    @property
    def connected(self) -> bool: ...
    def controller(self) -> ControllerInfo | None: ...


class IsrChanges(Protocol):
    """Stored ISR changes of partitions that this broker leads (live.broker.isr_changes.CountedIsrChanges)."""

    @property
    def shrinks(self) -> int: ...
    @property
    def expands(self) -> int: ...


class BrokerMetrics:
    def __init__(
        self,
        loop: BrokerLoop,
        lease: BrokerLease,
        flight: BrokerFlightServer,
        replication: Replication,
        zookeeper: ZooKeeper,
        isr_changes: IsrChanges,
        *,
        tables: TableReports,
        secrets_trouble: Callable[[], str],
        now_ms: Callable[[], int],
    ) -> None:
        """secrets_trouble: of this broker's files of secrets; empty if they can be used."""
        self._loop = loop
        self._lease = lease
        self._flight = flight
        self._replication = replication
        self._zookeeper = zookeeper
        self._isr_changes = isr_changes
        self._tables = tables
        self._secrets_trouble = secrets_trouble
        self._now_ms = now_ms
        self._last: dict[TopicPartition, ReplicaGauges] = {}
        self._last_groups: list[GroupGauges] = []

    def answer(self, asked: GetMetrics) -> MetricsText:
        found = self._replicas()
        told = [self._own(), _of_replicas(found, len(self._loop.refused)), self._isr_written(), self._served()]
        groups = self._groups(POSITIONS_MAX if asked.per_partition else 0)
        told += [_of_groups(groups), self._tables.metrics()]
        if asked.per_partition:
            told += [_of_each(found), _of_positions(groups)]
        return MetricsText(text=exposition(chain.from_iterable(told)))

    def _replicas(self) -> list[ReplicaGauges]:
        now_ms, holds, last = self._now_ms(), RoundPatience().holds, self._last
        found: dict[TopicPartition, ReplicaGauges] = {}
        for name, partition in self._loop.replicas.copy().items():
            with holds(partition) as replica:
                if replica is not None:
                    found[name] = gauges_of(replica, now_ms)
                elif name in last:
                    found[name] = last[name]
        self._last = found
        return [*found.values()]

    def _groups(self, positions_max: int) -> list[GroupGauges]:
        with suppress(RequestTimedOut):
            self._last_groups = self._replication.group_gauges(positions_max, GROUPS_S)
        return self._last_groups

    def _own(self) -> Iterator[Metric]:
        me, connected = self._loop.me, self._zookeeper.connected
        left_ms, lease_ms = self._lease.left_ms(self._now_ms()), self._lease.lease_ms
        yield gauge("broker_registered", "1 while this broker is registered, and has read its state.", me is not None)
        yield gauge("broker_epoch", "The epoch of its registration; -1: it has none.", -1 if me is None else me.epoch)
        yield gauge(
            "clock_ahead_seconds",
            "Of this broker's clock, of ZooKeeper's at its registration; below 0: it is behind. More than five minutes "
            "either way: this broker removes nothing because of its age.",
            self._loop.clock_ahead_ms / 1000,
        )
        yield gauge("zookeeper_connected", "1 while the session has a connection.", connected)
        yield gauge(
            "controller_known",
            "1 while ZooKeeper names a controller; 0 without one, or without ZooKeeper.",
            connected and self._zookeeper.controller() is not None,
        )
        yield gauge(
            "lease_remaining_seconds",
            "The broker stops when nobody has renewed its lease for that long; +Inf: it has no end.",
            math.inf if left_ms is None else left_ms / 1000,
        )
        yield gauge(
            "lease_remaining_ratio",
            "What is left of the lease: 1 when it was just renewed, 0 at its end.",
            1.0 if left_ms is None else left_ms / lease_ms,
        )

    def _isr_written(self) -> Iterator[Metric]:
        """Counted here, since there may be no controller that hears of the changes."""
        changes = self._isr_changes
        yield counter("leader_isr_shrinks", "ISR changes by which this leader dropped a replica.", changes.shrinks)
        yield counter("leader_isr_expands", "ISR changes by which this leader let a replica in.", changes.expands)

    def _served(self) -> Iterator[Metric]:
        flight, replication = self._flight, self._replication
        yield from requests(flight.meter, replication.meter, replication.lane.meter, replication.reads.meter)
        yield throttled(flight.quotas)
        yield secrets_refused(self._secrets_trouble())
        yield from traffic(
            "produced", "producers sent and this broker accepted", flight.produced, replication.lane.produced
        )
        yield from traffic("consumed", "were read for consumers", flight.consumed, replication.reads.consumed)
        yield from traffic("replication_sent", "were sent to followers", replication.sent)
        yield from traffic("replication_received", "came from leaders", replication.received)


def _of_replicas(found: list[ReplicaGauges], refused: int) -> Iterator[Metric]:
    led = [each for each in found if each.leads]
    behind = list(chain.from_iterable(each.lags.values() for each in led)) or [CAUGHT_UP]
    yield gauge("replicas", "Replicas on this broker.", len(found))
    yield gauge("led_partitions", "Partitions that this broker leads.", len(led))
    yield gauge(
        "led_partitions_under_replicated",
        "Led partitions with a replica out of sync, other than those that a reassignment is adding.",
        sum(each.under_replicated for each in led),
    )
    yield gauge(
        "led_partitions_under_min_isr",
        "Led partitions whose ISR is too small for acks=all.",
        sum(each.under_min_isr for each in led),
    )
    yield gauge("log_bytes", "Stored batches of all replicas.", sum(each.bytes for each in found))
    yield gauge(
        "disk_refused_replicas",
        "Replicas that the disk refused to open, or to write, within disk.retry.ms.",
        refused + sum(each.disk_refuses for each in found),
    )
    yield gauge(
        "disk_damaged_batches",
        "Stored batches that the disk does not give back as they were written.",
        sum(each.damaged_batches for each in found),
    )
    yield gauge(
        "follower_lag_records_max",
        "Of all followers of what this broker leads, the most records that one lacks; without those being added.",
        max(lag.records or 0 for lag in behind),
    )
    yield gauge(
        "follower_lag_seconds_max",
        "Of the same followers, the longest time since one that lacks records was caught up.",
        max(lag.ms for lag in behind) / 1000,
    )


def _of_groups(found: list[GroupGauges]) -> Iterator[Metric]:
    yield gauge("groups", "Consumer groups that this broker coordinates.", len(found))
    yield gauges(
        "group_members",
        "Members of a group that this broker coordinates, of the first 1,000 by name.",
        ["group"],
        {(each.group,): each.members for each in found[:GROUPS_MAX]},
    )


def _of_positions(found: list[GroupGauges]) -> Iterator[Metric]:
    told = ((each.group, of, offset) for each in found[:GROUPS_MAX] for of, offset in sorted(each.positions.items()))
    yield gauges(
        "group_position",
        "Where a group goes on, of 10,000 at most.",
        ["group", "topic", "partition"],
        {(group, *_labels(of)): offset for group, of, offset in islice(told, POSITIONS_MAX)},
    )


def _of_each(found: list[ReplicaGauges]) -> Iterator[Metric]:
    names = ["topic", "partition"]

    def of_each(name: str, meaning: str, value: Callable[[ReplicaGauges], float]) -> Metric:
        return gauges(f"partition_{name}", meaning, names, {_labels(each.partition): value(each) for each in found})

    def of_followers(name: str, meaning: str, value: Callable[[FollowerLag], float]) -> Metric:
        values = {
            (*_labels(each.partition), str(broker)): value(lag) for each in found for broker, lag in each.lags.items()
        }
        return gauges(f"partition_{name}", meaning, [*names, "follower"], values)

    yield of_each("led", "1 if this broker leads it.", lambda each: each.leads)
    yield of_each("log_bytes", "Stored batches of this replica.", lambda each: each.bytes)
    yield of_each("log_start_offset", "Of the oldest record that is kept.", lambda each: each.log_start)
    yield of_each("log_end_offset", "One past the last record of this replica.", lambda each: each.log_end)
    yield of_each("high_watermark", "Below it every record is committed.", lambda each: each.high_watermark)
    yield of_followers("follower_lag_records", "Records that the follower lacks.", lambda lag: lag.records or 0)
    yield of_followers(
        "follower_lag_seconds", "Since a follower that lacks records was caught up.", lambda lag: lag.ms / 1000
    )


def _labels(partition: TopicPartition) -> tuple[str, str]:
    return partition.topic, str(partition.partition)

"""What a broker tells of itself."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from spark_replication.core.replica.replica import Me
from spark_replication.engine.groups.coordinator import GroupGauges
from spark_replication.errors import RequestTimedOut
from spark_replication.live.broker.lease import BrokerLease
from spark_replication.live.broker.metrics import GROUPS_MAX, POSITIONS_MAX, BrokerMetrics
from spark_replication.live.broker.table_reports import TableReports
from spark_replication.messages.observing import GetMetrics
from spark_replication.model import ControllerInfo, TopicPartition
from spark_replication.ports import DamagedBatch
from tests.scrapes import Scrape
from tests.unit.core.stories import command, state
from tests.unit.transport.flight_broker import ORDERS, FlightBroker, written
from tests.unit.transport.replicas import Brokers

SCHEMA = pa.schema([("number", pa.int64())])
LEASE_MS = 10_000


class ZooKeeper:
    connected = True
    known: ControllerInfo | None = ControllerInfo(id="driver", host="h", port=1, epoch=1)

    def controller(self) -> ControllerInfo | None:
        return self.known


class IsrChanges:
    shrinks, expands = 3, 2


class Broker(FlightBroker):
    """Leads orders-0. now_ms: what time it is for who asks."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory / "logs", SCHEMA)
        self.now_ms = 0
        self.secrets_trouble = ""
        self.zookeeper = ZooKeeper()
        self.lease = BrokerLease(directory, 0, 0, lease_ms=LEASE_MS, now_ms=0)
        self.others = Brokers(directory / "others")
        self.replication = replication = self.others.start(9).replication
        self.loop = self._loop
        self.tables = TableReports(directory, lambda: self.now_ms)
        self._metrics = BrokerMetrics(
            self._loop,
            self.lease,
            self.server,
            replication,
            self.zookeeper,
            IsrChanges(),
            tables=self.tables,
            secrets_trouble=lambda: self.secrets_trouble,
            now_ms=lambda: self.now_ms,
        )

    def scraped(self, *, per_partition: bool = False) -> Scrape:
        return Scrape.of({"broker": self._metrics.answer(GetMetrics(per_partition=per_partition)).text})

    def leads(self, *isr: int, replicas: tuple[int, ...], leader_epoch: int, adding: tuple[int, ...] = ()) -> None:
        told = command(
            state(1, list(isr), leader_epoch=leader_epoch),
            replicas=replicas,
            partition=ORDERS,
            topic_id="id-orders",
            adding=adding,
        )
        with self.partition as replica:
            replica.command(told, Me(1, 0, 0), 0)

    def close(self) -> None:
        self.others.close()
        super().close()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    started = Broker(tmp_path)
    yield started
    started.close()


def rows(count: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(range(count), pa.int64())], schema=SCHEMA)


def test_files_of_secrets_that_are_not_used(broker: Broker) -> None:
    assert broker.scraped().value("secrets_refused") == 0
    broker.secrets_trouble = "token is open to every user"
    assert broker.scraped().value("secrets_refused") == 1


def test_replicas_bytes_and_requests(broker: Broker) -> None:
    with broker.client() as client:
        written(client, rows(3))
    found = broker.scraped()
    names = ("replicas", "led_partitions", "led_partitions_under_replicated", "led_partitions_under_min_isr")
    assert [found.value(name) for name in names] == [1, 1, 0, 0]
    assert found.value("log_bytes") > found.value("produced_bytes_total") > 3 * 8
    assert (found.value("produced_records_total"), found.value("produced_batches_total")) == (3, 1)
    assert found.value("request_seconds_count", request="put") == 1
    assert (found.value("broker_registered"), found.value("broker_epoch")) == (1, 0)
    assert found.value("consumed_records_total") == found.value("replication_sent_bytes_total") == 0
    assert (found.value("leader_isr_shrinks_total"), found.value("leader_isr_expands_total")) == (3, 2)
    assert (found.value("follower_lag_records_max"), found.value("follower_lag_seconds_max")) == (0, 0)


def test_a_follower_that_says_nothing_lags(broker: Broker) -> None:
    broker.leads(1, replicas=(1, 2), leader_epoch=10)
    with broker.client() as client:
        assert b"NOT_ENOUGH_REPLICAS" in written(client, rows(3))
    broker.leads(1, 2, replicas=(1, 2), leader_epoch=11)
    broker.now_ms = 4_000
    found = broker.scraped(per_partition=True)
    assert found.value("follower_lag_seconds_max") == 4.0
    assert found.value("partition_follower_lag_seconds", follower="2", topic="orders", partition="0") == 4.0
    assert found.value("refused_requests_total", request="put", code="NOT_ENOUGH_REPLICAS") == 1


def test_an_isr_that_is_too_small(broker: Broker) -> None:
    broker.leads(1, replicas=(1, 2), leader_epoch=10)
    found = broker.scraped()
    assert (found.value("led_partitions_under_replicated"), found.value("led_partitions_under_min_isr")) == (1, 1)


def test_a_replica_that_a_move_is_adding_makes_nothing_under_replicated(broker: Broker) -> None:
    broker.leads(1, 2, replicas=(1, 2, 3), leader_epoch=10, adding=(3,))
    assert broker.scraped().value("led_partitions_under_replicated") == 0
    broker.leads(1, replicas=(1, 2, 3), leader_epoch=11, adding=(3,))
    assert broker.scraped().value("led_partitions_under_replicated") == 1, "another is out of sync"


def test_partitions_are_told_of_one_by_one_only_if_somebody_asks(broker: Broker) -> None:
    with broker.client() as client:
        written(client, rows(3))
    assert not {name for name in broker.scraped().names if "replication_partition_" in name}
    found = broker.scraped(per_partition=True)
    names = ("partition_led", "partition_log_start_offset", "partition_log_end_offset", "partition_high_watermark")
    assert [found.value(name, topic="orders", partition="0") for name in names] == [1, 0, 3, 3]
    assert found.value("partition_log_bytes") == found.value("log_bytes")


def test_the_lease(broker: Broker) -> None:
    assert (broker.scraped().value("lease_remaining_seconds"), broker.scraped().value("lease_remaining_ratio")) == (
        10,
        1,
    )
    while broker.now_ms < LEASE_MS - 1_000:
        broker.now_ms += 1_000
        assert not broker.lease.expired(broker.now_ms)
    assert broker.scraped().value("lease_remaining_ratio") == pytest.approx(0.1)
    broker.now_ms += 1_000
    assert broker.scraped().value("lease_remaining_seconds") == 0
    broker.lease.renew(0, 0, lease_ms=0, now_ms=0)
    never = broker.scraped()
    assert (never.value("lease_remaining_seconds"), never.value("lease_remaining_ratio")) == (math.inf, 1)


def test_zookeeper_and_the_controller(broker: Broker) -> None:
    names = ("zookeeper_connected", "controller_known")
    assert [broker.scraped().value(name) for name in names] == [1, 1]
    broker.zookeeper.known = None
    assert [broker.scraped().value(name) for name in names] == [1, 0]
    broker.zookeeper.known, broker.zookeeper.connected = ZooKeeper.known, False
    assert [broker.scraped().value(name) for name in names] == [0, 0]
    broker.loop.clock_ahead_ms = -90_000
    assert broker.scraped().value("clock_ahead_seconds") == -90
    broker.loop.session_lost()
    assert (broker.scraped().value("broker_registered"), broker.scraped().value("broker_epoch")) == (0, -1)


def test_replicas_that_the_disk_refuses(broker: Broker) -> None:
    broker.loop.refused.add(TopicPartition("payments", 0), 0)
    assert broker.scraped().value("disk_refused_replicas") == 1


def test_batches_that_the_disk_has_damaged(broker: Broker) -> None:
    assert broker.scraped().value("disk_damaged_batches") == 0
    lost = DamagedBatch(base_offset=0, last_offset=0, file="", position=0, bytes=1, crc=0, why="")
    broker.partition.unguarded.damage.batches = (lost,)
    assert broker.scraped().value("disk_damaged_batches") == 1


def test_a_replica_that_is_busy_is_told_as_it_was(broker: Broker) -> None:
    """Somebody has it while its disk is slow, say: who asks waits a moment, for all such replicas together."""
    busy, done = threading.Event(), threading.Event()

    def hold() -> None:
        with broker.partition:
            busy.set()
            done.wait(20)

    holding = threading.Thread(target=hold)
    holding.start()
    assert busy.wait(20)
    unseen = broker.scraped()
    done.set()
    holding.join(20)
    assert unseen.value("replicas") == 0
    assert broker.scraped().value("replicas") == 1
    done.clear()
    busy.clear()
    again = threading.Thread(target=hold)
    again.start()
    assert busy.wait(20)
    assert broker.scraped().value("replicas") == 1
    done.set()
    again.join(20)


def test_groups_are_told_of_up_to_a_limit_and_as_last_time_if_the_loop_is_busy(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tests/live has groups of its own; here there is none until more are told of than fit."""
    assert (broker.scraped().value("groups"), broker.scraped().named("spark_replication_group_members")) == (0, [])
    positions = {TopicPartition("orders", number): number for number in range(20)}
    asked: list[int] = []

    def many(positions_max: int, _timeout_s: float) -> list[GroupGauges]:
        asked.append(positions_max)
        return [GroupGauges(f"g{number:05}", number, positions) for number in range(GROUPS_MAX + 1)]

    monkeypatch.setattr(broker.replication, "group_gauges", many)
    found = broker.scraped(per_partition=True)
    assert found.value("groups") == GROUPS_MAX + 1
    assert found.value("group_members", group="g00007") == 7
    assert len(found.named("spark_replication_group_members")) == GROUPS_MAX
    assert found.value("group_position", group="g00002", topic="orders", partition="19") == 19
    assert len(found.named("spark_replication_group_position")) == POSITIONS_MAX

    def busy(_positions_max: int, _timeout_s: float) -> list[GroupGauges]:
        raise RequestTimedOut("the loop is busy")

    assert not broker.scraped().named("spark_replication_group_position"), "on request alone"
    assert asked == [POSITIONS_MAX, 0]
    monkeypatch.setattr(broker.replication, "group_gauges", busy)
    assert broker.scraped().value("groups") == GROUPS_MAX + 1

"""Retention under load never passes what the table has, though its writers are stopped half of the time.
RETENTION_S says for how long (40 s)."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

import spark_replication as sr
from spark_replication.client.finding.routes import Routes
from spark_replication.live.tables.table_topics import table_topics
from spark_replication.messages.ranges import WantedRange
from spark_replication.mirror.delta.object_store import PATIENCE
from spark_replication.model import Offset
from tests.live.cluster.history import SCHEMA, Load
from tests.live.tables.guarded_writers import rows_in, rows_told, wait_for_writers, writer_pids
from tests.live.tables.written import faults
from tests.waiting import eventually

RETENTION_S = float(os.environ.get("RETENTION_S", "40"))
BROKERS, PARTITIONS = 2, 2
STOPPED_S = (1.0, 10.0)
LOOKS_S = 0.25
CATCH_UP_S = 60.0
CONFIG = {
    "page.enabled": False,
    "table": True,
    "table.flush.ms": 500,
    "segment.bytes": 16 << 10,
    "log.retention.check.interval.ms": 200,
    "local.retention.ms": 500,
}

pytestmark = [pytest.mark.live, pytest.mark.trust, pytest.mark.timeout(RETENTION_S + 300)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[sr.LocalCluster]:
    with sr.LocalCluster.start(brokers=BROKERS, directory=tmp_path, config=CONFIG) as cluster:
        cluster.admin.create_topic("orders", SCHEMA, partitions=PARTITIONS, replication_factor=BROKERS)
        cluster.wait_healthy()
        yield cluster


class Look(NamedTuple):
    """One partition, at one moment: the log was asked before the table, whose end only rises."""

    log_start: Offset
    log_end: Offset
    table_end: Offset


def looks_at(cluster: sr.LocalCluster, reader: sr.Reader, routes: Routes) -> list[Look]:
    asked = [WantedRange(topic="orders", partition=each, start="earliest") for each in range(PARTITIONS)]
    logs = {each.partition: each for each in reader.ranges(asked).values()}
    (topic,) = table_topics(routes, ["orders"])
    ends = topic.table(PATIENCE).load().ends
    return [Look(found.start, found.end, ends.get(partition, 0)) for partition, found in sorted(logs.items())]


@contextmanager
def stopped_half_of_the_time(cluster: sr.LocalCluster, seed: int) -> Iterator[None]:
    """All writers at once, and all of them go on at once."""
    rng, over = random.Random(seed), threading.Event()

    def signalled(sign: signal.Signals) -> None:
        for pid in writer_pids(cluster).values():
            with suppress(ProcessLookupError):
                os.kill(pid, sign)

    def stops() -> None:
        while not over.is_set():
            seconds = rng.uniform(*STOPPED_S)
            signalled(signal.SIGSTOP)
            over.wait(seconds)
            signalled(signal.SIGCONT)
            over.wait(seconds)

    thread = threading.Thread(target=stops, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_no_row_is_deleted_that_the_table_lacks(cluster: sr.LocalCluster) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}, for {RETENTION_S} s")  # noqa: T201 (told with -s)
    wait_for_writers(cluster)
    behind = deleted = looks = 0
    with (
        Load(cluster.zookeeper, "orders", PARTITIONS) as load,
        sr.Reader(cluster.bootstrap) as reader,
        closing(Routes(cluster.bootstrap)) as routes,
    ):
        with stopped_half_of_the_time(cluster, seed):
            until_s = time.monotonic() + RETENTION_S
            while time.monotonic() < until_s:
                found = looks_at(cluster, reader, routes)
                assert [each for each in found if each.log_start > each.table_end] == []
                behind = max(behind, *(each.log_end - each.table_end for each in found))
                deleted = sum(each.log_start for each in found)
                looks += 1
                time.sleep(LOOKS_S)
        load.wait_for_more(20)
    told = rows_told(load)
    eventually(lambda: len(rows_in(cluster, "orders")) >= len(told), "the table catches up", CATCH_UP_S)
    assert rows_in(cluster, "orders") == told
    assert faults(cluster) == []
    assert behind > 0, "the table was behind"
    assert deleted > 0, "rows were deleted meanwhile"
    print(f"{len(told)} rows, {deleted} of them deleted, {behind} behind at most, {looks} looks")  # noqa: T201

"""Each acknowledged row is in the table once, wherever in a flush its writers are killed, or stopped and woken.

HISTORIES=n in the environment: so many (20). HISTORIES_SEED: drawn as that seed draws, which is printed.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import spark_replication as sr
from spark_replication.mirror.delta.object_store import PATIENCE, StoreOptions
from tests.live.mirror.object_store import BUCKET, ObjectStore
from tests.live.tables.histories import PARTITIONS, TOPIC, Histories
from tests.live.tables.written import SCHEMA

HISTORIES = int(os.environ.get("HISTORIES", "20"))
SEED = int(os.environ.get("HISTORIES_SEED", random.randrange(1 << 32)))
BROKERS = 2
CONFIG = {
    "page.enabled": False,
    "min.insync.replicas": 1,
    "unclean.recovery.timeout.ms": 500,
    "zookeeper.session.ms": 3_000,
    "table": True,
    "table.writer.enabled": False,
}

pytestmark = [pytest.mark.live, pytest.mark.trust, pytest.mark.timeout(300 + 20 * HISTORIES)]


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    started = ObjectStore()
    yield started
    started.down()


def tell(cluster: sr.LocalCluster, uri: str, options: StoreOptions, logs: Path, *, writers: int) -> None:
    cluster.admin.create_topic(TOPIC, SCHEMA, partitions=PARTITIONS, replication_factor=BROKERS)
    cluster.wait_healthy()
    print(f"HISTORIES={HISTORIES} HISTORIES_SEED={SEED}")  # noqa: T201 (told with -s, and with a failure)
    began_s = time.monotonic()
    with Histories(cluster, uri, options, SEED, writers=writers, logs=logs) as histories:
        try:
            histories.run(HISTORIES)
        finally:
            print(f"{time.monotonic() - began_s:.0f} s: {histories.figures}")  # noqa: T201 (likewise)


def test_each_row_is_in_the_table_once_wherever_its_writers_end(tmp_path: Path) -> None:
    with sr.LocalCluster.start(brokers=BROKERS, directory=tmp_path / "cluster", config=CONFIG) as cluster:
        tell(cluster, str(tmp_path / "cluster" / "tables" / TOPIC), PATIENCE, tmp_path, writers=2)


def test_each_row_is_once_in_a_table_in_an_object_store(tmp_path: Path, store: ObjectStore) -> None:
    there = {"table.path": f"s3a://{BUCKET}/tables", "table.storage.file": str(store.options_file(tmp_path))}
    with sr.LocalCluster.start(brokers=BROKERS, directory=tmp_path / "cluster", config={**CONFIG, **there}) as cluster:
        options = {**PATIENCE, **store.options}
        tell(cluster, f"s3a://{BUCKET}/tables/{TOPIC}", options, tmp_path, writers=3)

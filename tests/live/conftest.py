"""One Spark session for all tests of a process that want one; and which tests with real processes one waits for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_replication.spark.session import build_session

HERE = Path(__file__).parent
# What `make test` has of this folder: of each room the stories that a change is likely to break. The others are marked
# `trust`.
EVERYDAY = frozenset(
    {
        "broker/test_broker_process.py",
        "broker/test_full_disk.py",
        "broker/test_where_brokers_listen.py",
        "client/test_consumers.py",
        "client/test_read_starts.py",
        "client/test_round_trip.py",
        "client/test_topic_stream.py",
        "cluster/test_administration.py",
        "cluster/test_idempotence.py",
        "cluster/test_local_cluster.py",
        "cluster/test_reassignment.py",
        "cluster/test_settings_in_force.py",
        "datasource/test_batches.py",
        "mirror/test_delta_tables.py",
        "mirror/test_feed.py",
        "page/test_page_process.py",
        "spark/test_start_cluster.py",
        "zk/test_admin_requests.py",
        "zk/test_admin_writes.py",
        "zk/test_broker_store.py",
        "zk/test_controller_store.py",
        "zk/test_driver.py",
        "zk/test_session.py",
        "zk/test_unreadable_nodes.py",
    }
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and str(item.path.relative_to(HERE)) not in EVERYDAY:
            item.add_marker(pytest.mark.trust)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A task that fails is tried again, up to four times."""
    session = build_session("tests", "local[2, 4]", {"spark.driver.memory": "1g"})
    yield session
    session.stop()

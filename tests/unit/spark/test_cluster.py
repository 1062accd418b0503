"""A driver that cannot guard brokers does not command them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.sql import SparkSession

from spark_replication.config import settings_from
from spark_replication.live.controller.host import ControllerHost
from spark_replication.spark import registering
from spark_replication.spark.cluster import SparkCluster
from spark_replication.spark.fleet import Fleet

LEASE_S = 60


@pytest.mark.parametrize(
    ("slots", "unchanged_s", "lease_s", "steps_aside"),
    [(0, LEASE_S, LEASE_S, True), (0, 0, LEASE_S, False), (1, LEASE_S, LEASE_S, False), (0, LEASE_S, 0, False)],
)
def test_a_driver_without_slots_for_too_long_steps_aside(
    slots: int, unchanged_s: float, lease_s: int, *, steps_aside: bool
) -> None:
    done: list[str] = []
    driver = SimpleNamespace(step_aside=lambda: done.append("step aside"), ask=lambda _question: done.append("ask"))
    fleet = SimpleNamespace(slots=slots, slots_unchanged_s=lambda: unchanged_s)
    settings = settings_from({"broker.lease.ms": lease_s * 1_000})
    cluster = SparkCluster(cast("object", SimpleNamespace(sparkContext=None)), settings, brokers=3)  # type: ignore[arg-type]
    cluster._driver, cluster._fleet = cast("ControllerHost", driver), cast("Fleet", fleet)
    cluster._known_brokers()
    assert done == (["step aside"] if steps_aside else []) + ["ask"]


@pytest.mark.parametrize("wanted", [True, False])
def test_a_spark_that_is_gone_while_the_format_is_registered_is_no_traceback(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, *, wanted: bool
) -> None:
    def registered(*_: object) -> None:
        raise Py4JNetworkError("Error while sending or receiving")

    monkeypatch.setattr(registering, "register_format", registered)
    spark = cast("SparkSession", SimpleNamespace(sparkContext=None))
    SparkCluster(spark, settings_from(), brokers=3, wanted=lambda: wanted)._register()
    assert [record.levelname for record in caplog.records] == (["WARNING"] if wanted else [])
    assert not any(record.exc_info for record in caplog.records)


@pytest.mark.parametrize(
    ("connect", "where"), [("", "not started"), ("127.0.0.1:1", "zk://127.0.0.1:1/spark_replication")]
)
def test_a_cluster_is_one_line(connect: str, where: str) -> None:
    settings = settings_from({"data.dir": "/there", "zookeeper.connect": connect})
    cluster = SparkCluster(cast("object", SimpleNamespace(sparkContext=None)), settings, brokers=3)  # type: ignore[arg-type]
    assert repr(cluster) == f"SparkCluster(3 brokers, {where}, in /there)"

"""What a session is asked before a fleet is to run in it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
from pyspark.sql import SparkSession

from spark_replication.errors import InvalidConfig
from spark_replication.spark.barrier_jobs import BarrierJobs

LOOPBACK = {"spark.driver.bindAddress": "127.0.0.1"}
NETWORK = {"spark.driver.bindAddress": "192.0.2.1"}


def session(master: str, settings: dict[str, str], spark_host: str) -> SparkSession:
    scala = SimpleNamespace(
        maxNumConcurrentTasks=lambda _profile: 4,
        resourceProfileManager=lambda: SimpleNamespace(defaultResourceProfile=lambda: None),
    )
    utils = SimpleNamespace(localHostName=lambda: spark_host)
    apache = SimpleNamespace(spark=SimpleNamespace(util=SimpleNamespace(Utils=utils)))
    context = SimpleNamespace(
        master=master,
        getConf=lambda: settings,
        _jsc=SimpleNamespace(sc=lambda: scala),
        _jvm=SimpleNamespace(org=SimpleNamespace(apache=apache)),
    )
    return cast("SparkSession", SimpleNamespace(sparkContext=context))


def is_refused(spark: SparkSession) -> bool:
    jobs = BarrierJobs(spark, "token")
    try:
        jobs.check(3)
    except InvalidConfig as error:
        return "spark.authenticate is false" in error.message
    finally:
        jobs.close()
    return False


@pytest.mark.parametrize(
    ("master", "settings", "spark_host", "refused"),
    [
        ("local[4]", LOOPBACK, "192.0.2.1", False),
        ("local[4]", NETWORK, "127.0.0.1", True),
        ("local[4]", {"spark.driver.host": "192.0.2.1"}, "192.0.2.1", True),
        ("local[4]", {"spark.driver.host": "192.0.2.1", **LOOPBACK}, "192.0.2.1", False),
        ("local-cluster[4,1,1024]", LOOPBACK, "127.0.0.1", False),
        ("local-cluster[4,1,1024]", LOOPBACK, "192.0.2.1", True),
        ("spark://127.0.0.1:7077", LOOPBACK, "127.0.0.1", True),
    ],
)
def test_only_what_listens_on_loopback_alone_needs_no_secret(
    master: str, settings: dict[str, str], spark_host: str, *, refused: bool
) -> None:
    assert is_refused(session(master, settings, spark_host)) == refused
    assert not is_refused(session(master, {**settings, "spark.authenticate": "True"}, spark_host))

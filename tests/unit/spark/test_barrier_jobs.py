"""What a session is asked before a fleet is to run in it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
from pyspark.sql import SparkSession

from spark_replication.errors import InvalidConfig
from spark_replication.spark.barrier_jobs import BarrierJobs


def session(master: str, settings: dict[str, str]) -> SparkSession:
    scala = SimpleNamespace(
        maxNumConcurrentTasks=lambda _profile: 4,
        resourceProfileManager=lambda: SimpleNamespace(defaultResourceProfile=lambda: None),
    )
    context = SimpleNamespace(master=master, getConf=lambda: settings, _jsc=SimpleNamespace(sc=lambda: scala))
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


@pytest.mark.parametrize("master", ["local[4]", "local-cluster[4,1,1024]", "spark://127.0.0.1:7077"])
def test_ports_that_are_open_to_users_of_this_host_are_refused_wherever_spark_listens(master: str) -> None:
    listening = {"spark.driver.bindAddress": "127.0.0.1"}
    assert is_refused(session(master, listening))
    assert not is_refused(session(master, {**listening, "spark.authenticate": "True"}))

"""A module's stories share a cluster, and the session knows it; each has a topic of its own name."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import spark_replication as sr
from spark_replication.spark.registering import register_format
from tests.live.datasource.stories import SCHEMA, Topic


@pytest.fixture(scope="module")
def cluster(spark: SparkSession) -> Iterator[sr.LocalCluster]:
    with sr.LocalCluster.start(brokers=3, config={"log.retention.check.interval.ms": 100}) as cluster:
        register_format(spark, {"bootstrap": cluster.bootstrap})
        yield cluster


@pytest.fixture
def topic(cluster: sr.LocalCluster, spark: SparkSession, request: pytest.FixtureRequest) -> Topic:
    """Of three partitions."""
    cluster.wait_healthy()
    name = re.sub(r"\W+", "_", request.node.name).strip("_")
    cluster.admin.create_topic(name, SCHEMA, partitions=3)
    return Topic(cluster, spark, name)

"""Fewer executors than brokers, on hosts of their own (loopback addresses): the cluster goes on with those there are,
says so, and takes more as they come."""

from __future__ import annotations

from pathlib import Path

import pytest

import spark_replication as sr
from spark_replication.spark.standalone import Standalone
from tests.live.cluster.history import SCHEMA
from tests.live.spark.applications import AUTHENTICATED, Application
from tests.unit.transport.test_security import token_settings

pytestmark = [pytest.mark.trust, pytest.mark.live, pytest.mark.spark, pytest.mark.timeout(420)]

HOSTS = ["127.0.0.2", "127.0.0.3", "127.0.0.4"]


def test_brokers_serve_their_executors_hosts_and_as_many_as_there_are(tmp_path: Path) -> None:
    spark = Standalone(tmp_path, HOSTS[:2], settings=AUTHENTICATED)
    settings = {name: str(value) for name, value in token_settings(tmp_path).items()}
    application = Application(tmp_path, spark.url, settings=settings, spark=AUTHENTICATED)
    try:
        application.start()
        assert len(application.brokers()) == 2
        assert "Spark has 2 slots for the guardians of 3 brokers" in application.says()
        first = application.pids()
        spark.add_worker(HOSTS[2])
        application.wait_healthy()
        brokers = application.brokers()
        assert {broker: file.pid for broker, file in brokers.items() if broker in first} == first, "they were adopted"
        assert len(brokers) == 3
        assert {file.host for file in brokers.values()} <= set(HOSTS)
        assert len({file.host for file in brokers.values()}) >= 2
        with sr.Admin(application.found.zookeeper, security=settings | {"data.dir": str(application.data)}) as admin:
            admin.create_topic("orders", SCHEMA, partitions=3, replication_factor=2)
            host_of = {found.id: found.host for found in admin.describe_cluster().brokers}
            (topic,) = admin.describe_topics(["orders"])
        assert host_of == {broker: file.host for broker, file in brokers.items()}
        for partition in topic.partitions:
            assert len({host_of[broker] for broker in partition.replicas}) == 2, "replicas are on different hosts"
        application.stop()
    finally:
        application.clean_up()
        spark.stop()

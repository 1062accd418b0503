"""`spark-replication groups` as a person types it, while consumers read: who is behind, and how a group is set anew."""

from __future__ import annotations

import json
import signal
from typing import Any

import pyarrow as pa
import pytest

import spark_replication as sr
from tests.live.cluster.test_command_line import Shell
from tests.live.cluster.waiting import eventually
from tests.scrapes import Scrape

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

BROKERS = 2
CONFIG = {"zookeeper.session.ms": 3_000, "replica.lag.time.ms": 2_000, "min.insync.replicas": 1}
GROUP = {"group", "state", "members", "partitions", "lag_records", "lag_ms", "oldest_commit"}
LAG = {"group", "topic", "partition", "position", "end", "lag_records", "lag_ms", "member"}
CHANGE = {"topic", "partition", "before", "after", "skipped", "read_again"}
ROWS = {0: 10, 1: 5}  # of each partition


def taken(consumer: sr.Consumer, count: int) -> int:
    """Take so many rows, or more if a batch has more, and commit them."""
    rows = 0
    while rows < count:
        found = consumer.poll(30)
        assert found is not None
        rows += found.batch.num_rows
    consumer.commit()
    return rows


def test_who_is_behind_is_seen_and_set_where_it_should_be(cluster: sr.LocalCluster) -> None:
    shell = Shell(cluster.bootstrap)
    assert shell.rows("groups", has=GROUP) == [], "no group has been here yet"
    cluster.admin.create_topic("orders", pa.schema([("id", pa.int64())]), partitions=2, replication_factor=2)
    with sr.Producer(cluster.bootstrap) as producer:
        for partition, count in ROWS.items():
            producer.send("orders", {"id": [*range(count)]}, partition=partition).result(60)

    with sr.Consumer(cluster.bootstrap, ["orders"], group="etl", auto_commit=False, name="loader") as consumer:
        assert taken(consumer, 15) == 15
        with sr.Consumer(cluster.bootstrap, ["orders"], group="audit", auto_commit=False) as other:
            read = taken(other, 1)

        def listed() -> list[dict[str, Any]]:
            return shell.rows("groups", "list", has=GROUP)

        eventually(lambda: [each["state"] for each in listed()] == ["empty", "stable"], "the other has left")
        told = [(each["group"], each["members"], each["lag_records"], each["lag_ms"] > 0) for each in listed()]
        assert told == [("audit", 0, 15 - read, True), ("etl", 1, 0, False)]
        described = shell.run("groups", "describe", "etl").stdout
        assert described.startswith("etl  stable, 1 members, 0 records behind\n")
        assert "orders-0, orders-1" in described
        assert {each["member"] for each in shell.rows("groups", "lag", "etl", has=LAG)} == {"loader"}
        metrics = Scrape.of({str(id_): cluster.admin.metrics(id_, per_partition=True) for id_ in cluster.brokers})
        assert sum(each.value for each in metrics.named("spark_replication_groups")) == 2
        assert metrics.value("group_members", group="etl") == 1
        ends = [metrics.value("group_position", group="etl", topic="orders", partition=str(each)) for each in ROWS]
        assert ends == [*ROWS.values()]
        behind = Scrape.of({"": shell.run("metrics", "--groups").stdout})
        assert behind.value("group_lag_records", group="audit", topic="orders") == 15 - read
        for arguments in (("reset", "etl", "--to-earliest"), ("reset", "etl", "--to-earliest", "--dry-run")):
            refused = shell.run("groups", *arguments, code=1)
            assert "NON_EMPTY_GROUP: group etl has 1 members" in refused.stderr

    wanted = ("groups", "reset", "audit", "--topic", "orders", "--to-latest")
    dry = shell.rows(*wanted, "--dry-run", has=CHANGE)
    assert sum(each["skipped"] for each in dry) == 15 - read
    assert [each["lag_records"] for each in listed()] == [15 - read, 0], "nothing is changed"
    assert shell.rows(*wanted, has=CHANGE) == dry
    assert [each["lag_records"] for each in shell.rows("groups", "lag", "audit", has=LAG)] == [0, 0]

    shell.run("groups", "reset", "audit", "--topic", "orders", "-p", 0, "--shift", -2)
    with sr.Consumer(cluster.bootstrap, ["orders"], group="audit") as other:
        found = other.poll(30)
        assert found is not None
        assert (found.partition, found.base_offset, found.batch.column("id").to_pylist()) == (0, 8, [8, 9])

    eventually(lambda: {each["state"] for each in listed()} == {"empty"}, "all have left")
    assert shell.run("groups", "delete", "audit", "--yes").stdout == "audit is deleted\n"
    gone = shell.run("groups", "describe", "audit", code=1)
    assert "GROUP_ID_NOT_FOUND: there is no group audit, there are etl: check the name" in gone.stderr


def test_consume_goes_on_where_its_group_is(cluster: sr.LocalCluster) -> None:
    shell = Shell(cluster.bootstrap)
    cluster.admin.create_topic("shared", pa.schema([("id", pa.int64())]), partitions=1, replication_factor=2)
    with sr.Producer(cluster.bootstrap) as producer:
        for first in range(0, 30, 10):
            producer.send("shared", {"id": [*range(first, first + 10)]}).result(60)
    command = ("consume", "shared", "--group", "people", "--format", "json")

    def ids(lines: str) -> list[int]:
        return [json.loads(line)["id"] for line in lines.splitlines()]

    def behind() -> int:
        (told,) = shell.rows("groups", "lag", "people", has=LAG)
        return int(told["lag_records"])

    assert ids(shell.run(*command, "-n", 4).stdout) == [0, 1, 2, 3]
    assert ids(shell.run(*command, "-n", 8).stdout) == [*range(4, 12)], "not all of the second batch was shown"
    assert ids(shell.run(*command, "-n", 2, "--where", "id in 15,17,19").stdout) == [15, 17]
    assert behind() == 12
    following = shell.starts(*command)
    try:
        assert following.stdout is not None
        assert [json.loads(following.stdout.readline())["id"] for _ in range(12)] == [*range(18, 30)]
        eventually(lambda: behind() == 0, "what was shown is committed")
        following.send_signal(signal.SIGINT)
        assert following.wait(30) == 0
    finally:
        following.kill()
        following.communicate()
    assert behind() == 0
    with sr.Producer(cluster.bootstrap) as producer:
        producer.send("shared", {"id": [30]}).result(60)
    assert ids(shell.run(*command, "-n", 1, "--from", "latest").stdout) == [30], "only a new group begins there"

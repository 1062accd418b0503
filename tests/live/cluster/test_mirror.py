"""The table beside ZooKeeper, while brokers and controllers are killed, stopped and wake up again."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import spark_replication as sr
from spark_replication.client.asking.admin import PartitionDescription
from spark_replication.config import settings_from
from spark_replication.live.controller.host import ControllerHost
from spark_replication.mirror.asking.load import TABLES, read_events, read_groups, read_status
from spark_replication.mirror.delta.reading import is_one_of
from spark_replication.mirror.tables.partitions import PARTITIONS
from spark_replication.transport.security.security import NO_SECURITY
from tests.live.cluster.faults import kill
from tests.live.cluster.history import SCHEMA as NUMBERS
from tests.live.cluster.history import Load
from tests.live.cluster.mirror_checks import assert_agrees, assert_chains, commands_after, shown, verify
from tests.live.cluster.waiting import eventually

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

SCHEMA = pa.schema([("id", pa.int64())])
KILLS = 20
CONFIG = {"zookeeper.session.ms": 6_000}


def test_the_table_follows_brokers_and_topics(cluster: sr.LocalCluster, name: str) -> None:
    cluster.admin.create_topic(name, SCHEMA, partitions=3, replication_factor=2)
    cluster.wait_healthy()
    assert_agrees(cluster)
    kill(next(iter(cluster.brokers.values())).pid)
    cluster.wait_healthy()
    assert_agrees(cluster)
    assert shown(cluster, name) == 3
    cluster.admin.delete_topic(name)
    eventually(lambda: shown(cluster, name) == 0, "its rows are gone")
    assert_agrees(cluster)
    (status,) = read_status(cluster.mirror_path).to_pylist()
    assert (status["cluster_id"], status["lag_ms"]) == (cluster.admin.describe_cluster().cluster_id, 0)
    assert status["controller_epoch"] >= 1


def test_who_led_and_why_is_told_as_it_was(cluster: sr.LocalCluster, name: str) -> None:
    """A topic is made, its leader dies and comes back, leads again, and the topic goes."""
    admin = cluster.admin
    admin.create_topic(name, SCHEMA, partitions=1, replication_factor=2, config={"min.insync.replicas": 1})
    first, other = partition(admin, name).replicas
    kill(cluster.brokers[first].pid)
    eventually(lambda: partition(admin, name).leader == other, "the other leads")
    eventually(lambda: set(partition(admin, name).isr) == {first, other}, "it is back")
    assert admin.elect_leaders("preferred", [f"{name}-0"]) == {}
    eventually(lambda: partition(admin, name).leader == first, "the first leads again")
    admin.delete_topic(name)
    eventually(lambda: shown(cluster, name) == 0, "its rows are gone")
    assert_chains(cluster, name)

    of_topic = is_one_of("topic", [name])
    story = read_events(cluster.mirror_path, of_topic).to_pylist()
    (created, *changes, deleted, removed) = story
    led = [each for each in changes if each["kind"] != "isr"]
    assert [(each["kind"], each["partition"], each["leader"], each["leader_epoch"], each["why"]) for each in led] == [
        ("created", 0, first, 0, None),
        ("elected", 0, other, 1, "isr"),
        ("elected", 0, first, 2, "isr"),
    ]
    assert [(each["kind"], each["partition"]) for each in (created, deleted, removed)] == [
        ("created", None),
        ("deleted", None),
        ("removed", 0),
    ]
    asked, died, elected = (each["because"] for each in led)
    assert asked == created["because"] == f"create topic {name}: asked by 127.0.0.1"
    assert died == f"broker {first} gone"
    assert elected == f"elect leaders (preferred) of {name}-0: asked by 127.0.0.1"
    assert deleted["because"] == removed["because"] == f"delete topic {name}: asked by 127.0.0.1"
    # All that the death set off has its cause, the end of the registration first.
    caused = read_events(cluster.mirror_path, is_one_of("cause", [led[1]["cause"]])).to_pylist()
    assert (caused[0]["kind"], caused[0]["broker"]) == ("gone", first)
    assert (name, 0, "elected") in [(each["topic"], each["partition"], each["kind"]) for each in caused]

    listed = subprocess.run(
        [sys.executable, "-m", "spark_replication", "mirror", "events", "--path", cluster.mirror_path, f"{name}-0"],
        capture_output=True,
        text=True,
        check=True,
    )
    isr = f"isr {sorted([first, other])} → {[other]}"
    assert f"leader {first} → {other}, leader_epoch 0 → 1, {isr}" in listed.stdout


def test_the_table_tells_how_far_groups_are(tmp_path: Path) -> None:
    with sr.LocalCluster.start(brokers=1, directory=tmp_path / "data", config={"mirror.heartbeat.ms": 200}) as cluster:
        cluster.admin.create_topic(
            "orders", SCHEMA, partitions=2, replication_factor=1, config={"min.insync.replicas": 1}
        )
        cluster.wait_healthy()
        with sr.Producer(cluster.bootstrap) as producer:
            for number in (0, 1):
                batch = pa.record_batch([pa.array(range(3), pa.int64())], schema=SCHEMA)
                producer.send("orders", batch, partition=number).result()

        def told() -> list[tuple[object, ...]]:
            columns = ("partition", "state", "position", "position_epoch", "log_end", "lag_records", "member")
            rows = read_groups(cluster.mirror_path).to_pylist()
            return sorted(tuple(row[name] for name in columns) for row in rows if row["group"] == "etl")

        assert told() == []
        with sr.Consumer(cluster.bootstrap, ["orders"], group="etl", auto_commit=False, name="one") as consumer:
            found = consumer.poll(30)
            assert found is not None
            consumer.commit(found)
            other = 1 - found.partition
            eventually(
                lambda: (
                    told()
                    == sorted(
                        [
                            (found.partition, "stable", 3, 0, 3, 0, "one"),
                            (other, "stable", None, None, 3, 3, "one"),
                        ]
                    )
                ),
                "the group with its member",
            )
        eventually(lambda: [each[1] for each in told()] == ["empty"] * 2, "the member has left")
        cluster.admin.delete_group("etl")
        eventually(lambda: told() == [], "the group is gone")


def partition(admin: sr.Admin, name: str) -> PartitionDescription:
    (topic,) = admin.describe_topics([name])
    return topic.partitions[0]


def test_what_differs_is_named(cluster: sr.LocalCluster, name: str) -> None:
    cluster.admin.create_topic(name, SCHEMA, partitions=2, replication_factor=1)
    cluster.wait_healthy()
    assert_agrees(cluster)
    DeltaTable(PARTITIONS.path(cluster.mirror_path)).update(
        new_values={"leader": 99}, predicate=f"topic = '{name}' AND partition = 1"
    )
    told = verify(cluster, "--format", "json", wait_s=0)
    (found,) = json.loads(told.stdout)
    assert (told.returncode, found["table"], found["row"]) == (1, "partitions", f"{name}-1")
    assert (found["column"], found["shown"]) == ("leader", 99)
    assert told.stderr.endswith(" 1 differences\n")
    cluster.admin.delete_topic(name)


def test_a_controller_that_is_killed_again_and_again_leaves_a_table_that_agrees(
    cluster: sr.LocalCluster, name: str
) -> None:
    """At any moment of a write, and with a topic that goes while nobody writes."""
    for number in range(KILLS):
        cluster.admin.create_topic(f"{name}-{number}", SCHEMA, partitions=4, replication_factor=1)
        if number:
            cluster.admin.delete_topic(f"{name}-{number - 1}")
        time.sleep(number * 0.01)  # so far into the write of it
        pid = cluster.controller_pid
        assert pid is not None
        kill(pid)
        eventually(partial(commands_after, cluster, pid), "another commands")
    assert_agrees(cluster)
    assert [shown(cluster, f"{name}-{number}") for number in range(KILLS)] == [*[0] * (KILLS - 1), 4]
    assert_chains(cluster, name)
    cluster.admin.delete_topic(f"{name}-{KILLS - 1}")


def test_a_controller_that_slept_through_a_take_over_overwrites_nothing(
    cluster: sr.LocalCluster, name: str, tmp_path: Path
) -> None:
    address, _, chroot = cluster.zookeeper.removeprefix("zk://").partition("/")
    pid = cluster.controller_pid
    assert pid is not None
    other = ControllerHost(
        address,
        name="other",
        host="127.0.0.1",
        settings=settings_from({"zk.chroot": f"/{chroot}"}),
        security=NO_SECURITY,
        seat=tmp_path / "seat",
        mirror_path=cluster.mirror_path,
    )
    try:
        # With something to write: it is stopped as soon as its topic is made.
        cluster.admin.create_topic(name, SCHEMA, partitions=4, replication_factor=2)
        os.kill(pid, signal.SIGSTOP)
        other.start()
        other.wait_active()
        cluster.admin.add_partitions(name, assignment={4: (1, 2)})
        assert_agrees(cluster)
        version = DeltaTable(PARTITIONS.path(cluster.mirror_path)).version()
        os.kill(pid, signal.SIGCONT)
        eventually(lambda: "no longer the controller" in (cluster.directory / "controller" / "log").read_text(), "it")
        assert_agrees(cluster)
        assert shown(cluster, name) == 5
        assert DeltaTable(PARTITIONS.path(cluster.mirror_path)).version() >= version
        assert_chains(cluster, name)
    finally:
        os.kill(pid, signal.SIGCONT)
        other.close()
    eventually(lambda: not cluster.problems(), "the first commands again")
    assert_agrees(cluster)
    cluster.admin.delete_topic(name)


def test_tables_that_somebody_emptied_or_removed_are_rebuilt_as_they_were(cluster: sr.LocalCluster, name: str) -> None:
    cluster.admin.create_topic(name, SCHEMA, partitions=3, replication_factor=2)
    cluster.wait_healthy()
    assert_agrees(cluster)
    DeltaTable(PARTITIONS.path(cluster.mirror_path)).delete(f"topic = '{name}'")
    lacks = verify(cluster, "--format", "json", wait_s=4)
    assert (lacks.returncode, len(json.loads(lacks.stdout))) == (1, 3)
    first, *_, last = lacks.stderr.splitlines()
    assert re.fullmatch(r"(\d+ of \d+ rows are compared, \d differences|\d+ of \d+ partitions are read .*)", first)
    assert re.fullmatch(r"\d+ rows, 3 differences", last)
    shutil.rmtree(TABLES["brokers"].path(cluster.mirror_path))
    refused = verify(cluster, wait_s=0)
    assert (refused.returncode, "there is no table to read" in refused.stderr) == (1, True)
    assert_rebuilds(cluster, "-m", "spark_replication", "mirror", "rebuild", "--format", "json")
    DeltaTable(PARTITIONS.path(cluster.mirror_path)).delete()
    assert_rebuilds(cluster, "jobs/rebuild_mirror.py")
    DeltaTable(PARTITIONS.path(cluster.mirror_path)).delete()
    assert_says_on_a_terminal(cluster, "rebuild", "the controller writes what the tables lack")
    cluster.admin.delete_topic(name)


def assert_says_on_a_terminal(cluster: sr.LocalCluster, verb: str, text: str) -> None:
    """On one line, which is gone when the outcome is told. Standard output has the listing alone."""
    command = [sys.executable, "-m", "spark_replication", "mirror", verb, "--format", "json"]
    command += ["-b", cluster.zookeeper, "--path", cluster.mirror_path]
    reads, writes = pty.openpty()
    try:
        ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=writes, text=True, check=False)
        shown = os.read(reads, 1 << 16).decode()
    finally:
        os.close(reads)
        os.close(writes)
    assert (ran.returncode, json.loads(ran.stdout)) == (0, []), shown
    assert shown.startswith(f"\r{text}\r")
    outcome = shown.rpartition("\r")[0].rpartition("\r")[2]
    assert re.fullmatch(r"\d+ rows, 0 differences", outcome)


def assert_rebuilds(cluster: sr.LocalCluster, *program: str) -> None:
    command = [sys.executable, *program, "-b", cluster.zookeeper, "--path", cluster.mirror_path]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout + told.stderr
    assert "rows, 0 differences" in told.stdout + told.stderr
    told = verify(cluster, wait_s=0)
    assert told.returncode == 0, told.stdout + told.stderr


def test_clients_that_begin_with_the_table_get_every_row_once_over_a_leaders_death(
    cluster: sr.LocalCluster, name: str
) -> None:
    """Producers and readers are told of nothing but where the table lies."""
    bootstrap = f"delta:{cluster.mirror_path}"
    with sr.Admin(bootstrap) as admin:
        admin.create_topic(name, NUMBERS, partitions=3)
        with Load(bootstrap, name, partitions=3) as load:
            load.wait_for_more(10)
            (topic,) = admin.describe_topics([name])
            leader = topic.partitions[0].leader
            assert leader is not None
            kill(cluster.brokers[leader].pid)
            load.wait_for_more(10)
        # Who begins only now finds those that are left, whatever the table still says of the other.
        load.check_history()
        admin.delete_topic(name)

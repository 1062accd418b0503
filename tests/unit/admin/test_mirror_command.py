"""`spark-replication mirror`: what is listed, and what is said of a place without a table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spark_replication.config import BOOTSTRAP_VARIABLE
from spark_replication.core.controller.origin import Origin
from spark_replication.messages.mirroring import EVENTS_MAX, DescribeEvents, ToldEvent
from spark_replication.mirror.delta.delta_file import DeltaFile
from spark_replication.mirror.delta.paths import DEFAULT_PATH
from spark_replication.mirror.tables.events import EVENTS, EventRow, text_of
from spark_replication.mirror.tables.partitions import PARTITIONS
from spark_replication.mirror.tables.status import STATUS, StatusRow
from spark_replication.model import TopicPartition
from spark_replication.process.threads import now_ms
from tests.live.mirror.mirror_stories import CLUSTER, command, gone, group_row, row, write_groups
from tests.unit.admin.conftest import Run
from tests.unit.client.fake_cluster import FakeCluster


def test_partitions_are_listed_as_the_table_shows_them(run: Run, tmp_path: Path) -> None:
    file = DeltaFile(PARTITIONS, PARTITIONS.path(str(tmp_path)), CLUSTER)
    rows = [row(command("orders", 1, leader=None), 11), row(command("orders", 0, leader_epoch=4), 10, active_epoch=4)]
    told = PARTITIONS.rows([*rows, row(command("payments", 0), 12)], [gone("orders", 2, 13)])
    file.merge(lambda _opened: told)
    listed = run("mirror", "show", "--path", tmp_path, "orders", "--format=json")
    found = json.loads(listed.out)
    assert (listed.exit, listed.err) == (0, "")
    assert [(each["partition"], each["leader"], each["active_epoch"]) for each in found] == [(0, 1, 4), (1, None, -1)]
    table = run("mirror", "show", "--path", tmp_path)
    assert "payments" in table.out
    assert "active epoch" in table.out


def test_groups_are_listed_as_the_table_shows_them(run: Run, tmp_path: Path) -> None:
    write_groups(str(tmp_path), group_row(1, 7), group_row(0, 5))
    listed = run("mirror", "show", "--path", tmp_path, "--table", "groups", "--format=json")
    assert (listed.exit, listed.err) == (0, "")
    found = [
        (each["group"], each["partition"], each["position"], each["lag_records"]) for each in json.loads(listed.out)
    ]
    assert found == [("etl", 0, 5, 4), ("etl", 1, 7, 4)]


@pytest.mark.parametrize(("age_ms", "exit_code"), [(0, 0), (21_000, 1)])
def test_tables_that_nobody_writes_any_more_are_told_from_fresh_ones(
    run: Run, tmp_path: Path, age_ms: int, exit_code: int
) -> None:
    row = StatusRow(
        cluster_id=CLUSTER,
        controller="127.0.0.1:9000",
        controller_epoch=4,
        zxid=20,
        event=7,
        as_of_ms=now_ms() - age_ms,
        lag_ms=0,
        heartbeat_ms=10_000,
        problems=("broker 3 is not registered",),
    )
    DeltaFile(STATUS, STATUS.path(str(tmp_path)), CLUSTER).merge(lambda _opened: STATUS.rows([row], []))
    listed = run("mirror", "status", "--path", tmp_path, "--format=json")
    (found,) = json.loads(listed.out)
    assert (listed.exit, found["zxid"], found["controller_epoch"], found["fresh"]) == (exit_code, 20, 4, not exit_code)
    assert found["problems"] == ["broker 3 is not registered"]


def test_a_broker_is_of_no_topic(run: Run, tmp_path: Path) -> None:
    refused = run("mirror", "show", "--path", tmp_path, "--table", "brokers", "orders")
    assert (refused.exit, refused.out) == (2, "")
    assert "a broker is of no topic" in refused.err


def test_a_place_without_a_table_is_named(run: Run, tmp_path: Path) -> None:
    refused = run("mirror", "show", "--path", tmp_path / "nowhere")
    assert (refused.exit, refused.out) == (1, "")
    assert f"there is no table to read at {tmp_path / 'nowhere'}" in refused.err
    assert "--path" in refused.err


@pytest.mark.parametrize("command", ["verify", "rebuild"])
def test_only_zookeeper_can_be_compared_with(run: Run, tmp_path: Path, command: str) -> None:
    refused = run("mirror", command, "-b", "127.0.0.1:9092", "--path", tmp_path)
    assert (refused.exit, refused.out) == (1, "")
    assert "give zk://host:port/chroot" in refused.err


# Events

DIED = Origin("4.9", "brokers", "broker 1 gone")


def event(number: int, kind: str, became: dict[str, Any] | None = None, **subject: Any) -> EventRow:
    """was: a leader 1 of epoch 0, but of what was made."""
    led = None if kind in ("created", "gone", "request") else text_of({"leader": 1, "isr": [1, 2], "recovering": False})
    return EventRow(
        cluster_id=CLUSTER,
        number=number,
        kind=kind,
        subject=subject,
        was=led,
        became=text_of(became),
        origin=DIED if number > 3 else None,
        at_ms=number,
        told_ms=0,
    )


STORY = (
    event(1, "created", {"leader": 1, "isr": [1, 2], "recovering": False}, topic="orders", partition=0),
    event(2, "created", {"partitions": 1}, topic="orders"),
    event(3, "request"),
    event(4, "gone", broker=1),
    event(5, "elected", {"leader": 2, "isr": [2], "recovering": False}, topic="orders", partition=0),
    event(6, "elected", {"leader": None, "isr": [], "recovering": False}, topic="orders", partition=1),
    event(7, "isr", {"leader": 1, "isr": [1, 2], "recovering": True}, topic="it's-0", partition=0),
    event(8, "created", {"partitions": 1}, topic="orders-0"),
)


@pytest.fixture
def told(tmp_path: Path) -> Path:
    DeltaFile(EVENTS, EVENTS.path(str(tmp_path)), CLUSTER).append(lambda _opened, _last: (EVENTS.rows(STORY, []), 8))
    return tmp_path


@pytest.mark.parametrize(
    ("asked", "numbers"),
    [
        ([], [1, 2, 3, 4, 5, 6, 7, 8]),
        (["--last=2"], [7, 8]),
        (["orders"], [1, 2, 5, 6]),
        # A partition, and a topic of that name.
        (["orders-0"], [1, 5, 8]),
        (["orders-1", "orders-9"], [6]),
        (["it's-0"], [7]),
        (["orders-x"], []),
        (["--broker=1"], [4]),
        (["--cause=4.9"], [4, 5, 6, 7, 8]),
        (["--cause=' OR 1 = 1 --"], []),
        (["orders", "--cause=4.9", "--last=1"], [6]),
    ],
)
def test_events_are_found_by_what_they_are_about(run: Run, told: Path, asked: list[str], numbers: list[int]) -> None:
    listed = run("mirror", "events", "--path", told, *asked, "--format=json")
    assert (listed.exit, [each["number"] for each in json.loads(listed.out)]) == (0, numbers)


def test_of_an_event_it_is_said_what_changed(run: Run, told: Path) -> None:
    lines = run("mirror", "events", "--path", told).out.splitlines()

    def of(kind: str, topic: str) -> str:
        return next(line for line in lines if f" {kind} " in line and f" {topic} " in line)

    assert "leader 1, isr [1, 2] " in of("created", "orders"), "of what is new, what there is"
    assert "leader 1 → 2, isr [1, 2] → [2] " in of("elected", "orders")
    assert "recovering False → True " in of("isr", "it's-0")
    assert any("leader 1 → None" in line for line in lines)
    assert any("gone" in line and "broker 1 gone" in line and "4.9" in line for line in lines)
    (died,) = json.loads(run("mirror", "events", "--path", told, "--broker=1", "--format=json").out)
    assert (died["was"], died["became"], died["because"]) == (None, None, "broker 1 gone")


def test_events_that_nobody_has_written_are_named(run: Run, tmp_path: Path) -> None:
    refused = run("mirror", "events", "--path", tmp_path)
    assert (refused.exit, refused.out) == (1, "")
    assert "there is no table to read" in refused.err


# Events as the controller tells them

ELECTED = ToldEvent(
    number=5,
    at_ms=1_500,
    kind="elected",
    topic="orders",
    partition=0,
    was={"leader": 1, "isr": [1, 2]},
    became={"leader": 2, "isr": [2]},
    leader=2,
    leader_epoch=3,
    why="isr",
    because="broker 1 gone",
    cause="4.9",
)


def test_with_a_bootstrap_the_controller_tells_them(run: Run, cluster: FakeCluster) -> None:
    cluster.events = [ToldEvent(number=4, at_ms=0, kind="gone", broker=1), ELECTED]
    listed = run("mirror", "events", "-b", cluster.bootstrap, "--last=1", "--format=json")
    assert (listed.exit, listed.err) == (0, "")
    assert json.loads(listed.out) == [
        {
            "at": "1970-01-01T00:00:01.500000Z",
            "kind": "elected",
            "topic": "orders",
            "partition": 0,
            "broker": None,
            "was": {"leader": 1, "isr": [1, 2]},
            "became": {"leader": 2, "isr": [2]},
            "leader": 2,
            "leader_epoch": 3,
            "why": "isr",
            "because": "broker 1 gone",
            "cause": "4.9",
            "number": 5,
        }
    ]
    table = run("mirror", "events", "-b", cluster.bootstrap).out
    assert all(text in table for text in ("leader 1 → 2, isr [1, 2] → [2]", "broker 1 gone", "4.9", "1970-01-01 00:00"))


def test_the_controller_is_asked_for_what_was_asked_for(run: Run, cluster: FakeCluster) -> None:
    options = ("--broker=3", "--cause=4.9", "--last=7")
    assert run("mirror", "events", "orders-0", "x", *options, "-b", cluster.bootstrap).exit == 0
    assert cluster.asked_events == [
        DescribeEvents(
            partitions=(TopicPartition("orders", 0),), topics=("orders-0", "x"), brokers=(3,), cause="4.9", last=7
        )
    ]


def test_a_path_that_is_named_is_read_whatever_the_environment_says(
    run: Run, told: Path, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(BOOTSTRAP_VARIABLE, cluster.bootstrap)
    assert len(json.loads(run("mirror", "events", "--path", told, "--format=json").out)) == len(STORY)
    assert cluster.asked_events == []
    assert run("mirror", "events").exit == 0
    assert len(cluster.asked_events) == 1
    monkeypatch.delenv(BOOTSTRAP_VARIABLE)
    monkeypatch.chdir(told)
    assert f"there is no table to read at {DEFAULT_PATH}" in run("mirror", "events").err


def test_the_tables_or_the_cluster_and_of_that_no_more_than_it_tells(
    run: Run, tmp_path: Path, cluster: FakeCluster
) -> None:
    both = run("mirror", "events", "-b", cluster.bootstrap, "--path", tmp_path)
    assert (both.exit, "leave out one of them" in both.err) == (2, True)
    many = run("mirror", "events", "-b", cluster.bootstrap, f"--last={EVENTS_MAX + 1}")
    assert (many.exit, f"tells of {EVENTS_MAX} events at most" in many.err) == (2, True)
    assert run("mirror", "events", "-b", cluster.bootstrap, f"--last={EVENTS_MAX}").exit == 0

"""`spark-replication mirror`: what is listed, and what is said of a place without a table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark_replication.mirror.delta_file import DeltaFile
from spark_replication.mirror.partitions import PARTITIONS
from spark_replication.mirror.status import STATUS, StatusRow
from spark_replication.process.clock import now_ms
from tests.live.mirror.mirror_stories import CLUSTER, command, gone, row
from tests.unit.admin.conftest import Run


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
    )
    DeltaFile(STATUS, STATUS.path(str(tmp_path)), CLUSTER).merge(lambda _opened: STATUS.rows([row], []))
    listed = run("mirror", "status", "--path", tmp_path, "--format=json")
    (found,) = json.loads(listed.out)
    assert (listed.exit, found["zxid"], found["controller_epoch"], found["fresh"]) == (exit_code, 20, 4, not exit_code)


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

"""`spark-replication zookeeper`: what is refused, and said of what is not there. Nothing here starts a server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark_replication.zookeeper_server.layout import choose_places
from tests.unit.admin.conftest import Run


@pytest.mark.parametrize("command", ["status", "stop"])
def test_where_none_was_ever_started_there_is_nothing_to_ask_or_stop(run: Run, tmp_path: Path, command: str) -> None:
    for arguments in ((command, "--directory", tmp_path), ("--directory", tmp_path, command)):
        found = run("zookeeper", *arguments)
        assert (found.exit, found.out) == (1, "")
        assert f"no ZooKeeper was ever started in {tmp_path}: name its --directory" in found.err
    assert list(tmp_path.iterdir()) == []


def test_servers_that_do_not_live_have_no_pid_and_no_mode(run: Run, tmp_path: Path) -> None:
    places = choose_places(tmp_path, 3)
    found = run("zookeeper", "status", "--directory", tmp_path, "--format=json")
    assert (found.exit, found.err) == (0, "")
    assert json.loads(found.out) == [
        {
            "server": place.number,
            "address": place.address,
            "pid": None,
            "mode": None,
            "log": str(place.directory / "log"),
        }
        for place in places
    ]
    assert run("zookeeper", "stop", "--directory", tmp_path) == (0, f"no ZooKeeper runs in {tmp_path} now\n", "")


def test_two_servers_are_wrong_usage_and_another_number_than_before_an_error(run: Run, tmp_path: Path) -> None:
    assert run("zookeeper", "--directory", tmp_path, "--servers", "2").exit == 2
    choose_places(tmp_path, 1)
    for options in ((), ("--detach",)):
        found = run("zookeeper", "--directory", tmp_path, "--servers", "3", *options)
        assert found.exit == 1
        assert "was made with 1 ZooKeeper server, not 3" in found.err

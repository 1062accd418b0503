"""`spark-replication settings`: what is listed and shown, and what the controller is asked."""

from __future__ import annotations

import json

import pytest

from spark_replication.errors import InvalidRequest
from spark_replication.messages.observing import DescribeSettings, SettingInForce, ToldSettings
from spark_replication.messages.requests import Configure, Request
from spark_replication.model import Scalar
from tests.unit.admin.conftest import Run
from tests.unit.client.fake_cluster import FakeCluster

CLUSTERS: dict[str, Scalar] = {"flush": "always", "request.timeout.ms": 5}


def told(broker: int, asked: DescribeSettings) -> ToldSettings:
    """Broker 1 is the controller, too."""
    own = SettingInForce(name="retention.ms", value=broker, origin="topic" if asked.topic else "file /etc/own.toml")
    default = SettingInForce(name="segment.ms", value=9, origin="default")
    return ToldSettings(settings=(own, default), of_cluster=CLUSTERS, directory="/data", boot_id="one")


def row(process: str, setting: str, value: Scalar, origin: str) -> dict[str, Scalar]:
    return {"process": process, "setting": setting, "value": value, "from": origin}


CLUSTER = [row("cluster", name, value, "cluster") for name, value in CLUSTERS.items()]


def of(process: str, value: int) -> dict[str, Scalar]:
    return row(process, "retention.ms", value, "file /etc/own.toml")


@pytest.mark.parametrize(
    ("words", "rows"),
    [
        ((), [*CLUSTER, of("controller", 1), of("broker 1", 1), of("broker 2", 2)]),
        (("--of", "cluster"), CLUSTER),
        (("--of", "controller"), [of("controller", 1)]),
        (("--of", "2"), [of("broker 2", 2)]),
        (("--of", "2", "--all"), [of("broker 2", 2), row("broker 2", "segment.ms", 9, "default")]),
        (("--of", "2", "--topic", "orders"), [row("broker 2", "retention.ms", 2, "topic")]),
    ],
)
def test_each_process_tells_what_it_has_in_force(
    run: Run, cluster: FakeCluster, words: tuple[str, ...], rows: list[dict[str, Scalar]]
) -> None:
    cluster.settings = told
    ran = run("settings", "show", "-b", cluster.bootstrap, *words, "--format=json")
    assert (ran.exit, json.loads(ran.out), ran.err) == (0, rows, "")
    assert "file /etc/own.toml" in run("settings", "show", "-b", cluster.bootstrap).out


def test_who_does_not_tell_is_named_and_the_others_are_shown(run: Run, cluster: FakeCluster) -> None:
    def told_by_one(broker: int, asked: DescribeSettings) -> ToldSettings:
        if broker == 2:
            raise InvalidRequest("action 'describe_settings' is not known here")
        return told(broker, asked)

    cluster.settings, cluster.controller = told_by_one, None
    ran = run("settings", "show", "-b", cluster.bootstrap, "--format=json")
    assert (ran.exit, json.loads(ran.out)) == (1, [*CLUSTER, of("broker 1", 1)])
    assert "error: controller: NOT_CONTROLLER: no broker knows of a controller" in ran.err
    assert "error: broker 2: INVALID_REQUEST: action 'describe_settings' is not known here" in ran.err


@pytest.mark.parametrize(
    ("process", "code", "why"),
    [
        ("3", 1, "broker 3 is not registered, [1, 2] are: name one of these"),
        ("driver", 2, "'driver' is not cluster, controller, or the id of a broker"),
    ],
)
def test_who_is_nobody_is_not_asked(run: Run, cluster: FakeCluster, process: str, code: int, why: str) -> None:
    ran = run("settings", "show", "-b", cluster.bootstrap, "--of", process)
    assert (ran.exit, ran.out) == (code, "")
    assert why in ran.err


def test_the_clusters_are_set_and_taken_away(run: Run, cluster: FakeCluster, asked: list[Request]) -> None:
    ran = run("settings", "set", "-b", cluster.bootstrap, "flush=always", "retention.ms=5", "security.acls=")
    assert (ran.exit, ran.err) == (0, "")
    assert ran.out == "the cluster is configured: flush=always, retention.ms=5, security.acls=\n"
    assert asked == [Configure(settings={"flush": "always", "retention.ms": 5, "security.acls": None})]


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [((), 2, "Missing argument 'NAME=VALUE…'"), (("flush",), 1, "'flush' is not NAME=VALUE")],
)
def test_what_is_no_change_is_not_asked_for(
    run: Run, cluster: FakeCluster, asked: list[Request], words: tuple[str, ...], code: int, why: str
) -> None:
    ran = run("settings", "set", "-b", cluster.bootstrap, *words)
    assert (ran.exit, ran.out) == (code, "")
    assert why in ran.err
    assert asked == []


def test_without_a_verb_every_setting_is_listed(run: Run) -> None:
    rows = json.loads(run("settings", "--format=json").out)
    assert {"setting", "values", "default", "topic", "meaning"} == rows[0].keys()

"""Settings on the page: what each process has in force, a row for each value, and nothing that changes them."""

from __future__ import annotations

import pytest

from spark_replication.messages.observing import SettingInForce, ToldSettings
from spark_replication.model import Scalar
from spark_replication.page import recent_events
from tests.unit.page.page_cluster import GONE, PageCluster
from tests.unit.page.viewer import Viewer


def told(*settings: tuple[str, Scalar, str]) -> ToldSettings:
    return ToldSettings(
        settings=tuple(SettingInForce(name=name, value=value, origin=origin) for name, value, origin in settings),
        of_cluster={"flush": "always"},
        directory="/data",
        boot_id="one",
    )


ALIKE = ("flush", "always", "cluster")
DEFAULT = ("page.port", 0, "default")


def test_what_all_have_alike_is_one_row_and_defaults_come_last(viewer: Viewer, cluster: PageCluster) -> None:
    cluster.told_settings = {
        "controller": told(DEFAULT, ALIKE, ("retention.ms", 1, "file /a")),
        "broker 1": told(DEFAULT, ALIKE, ("retention.ms", 2, "--set")),
        "broker 2": GONE,
    }
    found = viewer.ask("/api/settings").json
    assert found["rows"] == [
        ["flush", "always", "cluster", ["controller", "broker 1"]],
        ["retention.ms", 2, "--set", ["broker 1"]],
        ["retention.ms", 1, "file /a", ["controller"]],
        ["page.port", 0, "default", ["controller", "broker 1"]],
    ]
    assert (found["of_cluster"], found["errors"]) == ({"flush": "always"}, {"broker 2": str(GONE)})
    assert (found["age"]["error"], cluster.asked_settings) == ("", [(None, None)])


def test_of_a_topic_the_controller_tells_what_topics_can_have(viewer: Viewer, cluster: PageCluster) -> None:
    cluster.told_settings = {"controller": told(DEFAULT, ("flush", "none", "topic"))}
    found = viewer.ask("/api/settings?topic=foo").json
    assert found["rows"] == [["flush", "none", "topic", ["controller"]]]
    assert cluster.asked_settings == [("controller", "foo")]


@pytest.mark.parametrize(
    ("settings", "uri"),
    [
        ([("table", True, "topic"), ("table.path", "/data/tables/", "default")], "/data/tables/foo"),
        ([("table", True, "topic"), ("table.path", "s3://bucket/x", "file")], "s3://bucket/x/foo"),
        ([("table", False, "topic"), ("table.path", "/data/tables", "default")], None),
        ([("table", True, "topic"), ("table.path", "", "default")], None),  # nobody says where
        ([], None),
    ],
)
def test_of_a_topic_that_is_a_table_the_controller_tells_where_that_lies(
    viewer: Viewer, cluster: PageCluster, settings: list[tuple[str, Scalar, str]], uri: str | None
) -> None:
    cluster.told_settings = {"controller": told(*settings)}
    assert viewer.ask("/api/settings?topic=foo").json["table_uri"] == uri
    assert viewer.ask("/api/settings").json["table_uri"] is None


def test_where_a_table_lies_is_not_known_without_a_controller(viewer: Viewer, cluster: PageCluster) -> None:
    cluster.told_settings = {"controller": GONE}
    assert viewer.ask("/api/settings?topic=foo").json["table_uri"] is None


def test_of_a_broker_it_alone_is_asked_and_says_where_its_logs_are(viewer: Viewer, cluster: PageCluster) -> None:
    cluster.told_settings = {"broker 2": told(DEFAULT)}
    found = viewer.ask("/api/settings?broker=2").json
    assert (found["rows"], found["directories"]) == ([["page.port", 0, "default", ["broker 2"]]], {"broker 2": "/data"})
    assert cluster.asked_settings == [(2, None)]


def test_a_broker_and_a_topic_at_once_are_refused(viewer: Viewer, cluster: PageCluster) -> None:
    answer = viewer.ask("/api/settings?broker=2&topic=foo")
    assert (answer.status, answer.json["error"], cluster.asked_settings) == (400, "INVALID_REQUEST", [])


def test_a_broker_that_does_not_answer_is_said_not_to(viewer: Viewer, cluster: PageCluster) -> None:
    cluster.told_settings = {"broker 2": GONE}
    found = viewer.ask("/api/settings?broker=2").json
    assert (found["rows"], found["directories"], found["errors"]) == ([], {}, {"broker 2": str(GONE)})


def test_twenty_viewers_ask_once(viewer: Viewer, cluster: PageCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_events, "FRESH_S", 60.0)
    cluster.told_settings = {"controller": told(DEFAULT)}
    for _ in range(20):
        assert viewer.ask("/api/settings").json["rows"] == [["page.port", 0, "default", ["controller"]]]
    assert len(cluster.asked_settings) == 1


def test_while_nobody_tells_the_last_answer_is_shown_with_why(
    viewer: Viewer, cluster: PageCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recent_events, "FRESH_S", 0.0)
    cluster.told_settings = GONE
    found = viewer.ask("/api/settings").json
    assert (found["rows"], found["of_cluster"], found["age"]["error"]) == ([], None, str(GONE))
    cluster.told_settings = {"controller": told(DEFAULT)}
    viewer.eventually("/api/settings", lambda found: found["rows"])
    cluster.told_settings = GONE
    found = viewer.eventually("/api/settings", lambda found: found["age"]["error"])
    assert found["rows"] == [["page.port", 0, "default", ["controller"]]]


def test_nothing_on_the_page_changes_a_setting(viewer: Viewer) -> None:
    assert viewer.ask("/api/settings", method="POST").status == 405

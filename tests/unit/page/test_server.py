"""The page over HTTP: each view, by itself; what is new comes at once, and what is the same costs nothing."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from spark_replication.client.asking.admin import _schema_text
from spark_replication.errors import InvalidConfig, StartFailed
from spark_replication.messages.descriptions import TableLag
from spark_replication.messages.mirroring import ToldEvent
from spark_replication.model import Scalar
from spark_replication.page import app, history, looking, server, watch
from spark_replication.page.server import PageServer
from spark_replication.transport.security.security import NO_SECURITY
from tests.unit.core.stories import loss, state
from tests.unit.page.page_cluster import GONE, NO_READER, WELL, WITHOUT_3, PageCluster, metadata_of, size
from tests.unit.page.viewer import Viewer, nobody_hears
from tests.waiting import eventually


def test_the_first_answer_has_everything(viewer: Viewer) -> None:
    found = viewer.view()
    assert (found["whole"], found["health"]["verdict"], sorted(found["partitions"])) == (
        True,
        "healthy",
        ["bar", "foo"],
    )
    assert found["partitions"]["bar"] == [[0, ["in_sync"], 2, 4, 7, 2, [2, 1], [2, 1], [], None, None]]
    assert (found["ages"]["cluster"]["error"], found["now_ms"] >= found["ages"]["cluster"]["as_of_ms"]) == ("", True)


def test_what_is_new_comes_to_who_waits_for_it(viewer: Viewer, cluster: PageCluster) -> None:
    known = viewer.view()["version"]
    heard: list[float] = []

    def wait() -> None:
        since = known
        while True:
            found = viewer.view(since)
            if "health" in found and found["health"]["verdict"] != "healthy":
                heard.append(time.monotonic())
                return
            since = found["version"]

    waiting = threading.Thread(target=wait)
    waiting.start()
    changed_s = time.monotonic()
    cluster.told = WITHOUT_3
    waiting.join(20)
    assert heard
    assert heard[0] - changed_s < 5  # once a look of half a second, on a machine that others use


@pytest.mark.slow
def test_charts_are_there_before_somebody_looks(cluster: PageCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "WANTED_S", 0.01)
    monkeypatch.setattr(server, "SELDOM_S", 0.02)
    monkeypatch.setattr(history, "ROUND_MS", 10)
    cluster.sizes = {"127.0.0.1:1": (size("foo", 0, 70, leads=True),)}
    page = PageServer.start(cluster, NO_READER, host="127.0.0.1", port=0, security=NO_SECURITY, say=nobody_hears)
    try:
        with cluster.changed:
            asked = cluster.asked + 5
            assert cluster.changed.wait_for(lambda: cluster.asked >= asked, 20)
        eventually(lambda: len(page.watch._history.of_topic("foo").at_ms) >= 3, "three rounds are noted")
        assert len(Viewer(page.url).ask("/api/topics/foo").json["series"]["at_ms"]) >= 3, "by the first answer"
    finally:
        page.stop()


def test_who_has_everything_is_told_so_in_a_few_bytes(viewer: Viewer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "HOLD_S", 0.05)
    viewer.eventually("/api/view", lambda found: found["ages"]["sizes"]["as_of_ms"])
    same = viewer.view(viewer.view()["version"])
    assert sorted(same) == ["ages", "now_ms", "version"]


def test_the_cluster_is_told_what_the_page_has_already(viewer: Viewer, cluster: PageCluster) -> None:
    viewer.eventually("/api/view", lambda _: cluster.known == cluster.told)


def test_twenty_viewers_ask_the_cluster_no_more_than_one(viewer: Viewer, cluster: PageCluster) -> None:
    began_s = time.monotonic()
    viewers = [threading.Thread(target=viewer.view) for _ in range(20)]
    for each in viewers:
        each.start()
    for each in viewers:
        each.join(20)
    assert 1 <= cluster.asked <= 2 + 2 * (time.monotonic() - began_s)


def test_a_detail_that_has_not_changed_is_not_sent_again(viewer: Viewer) -> None:
    viewer.eventually("/api/topics/foo", lambda found: found["age"]["as_of_ms"])
    first = viewer.ask("/api/topics/foo")
    again = viewer.ask("/api/topics/foo", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status, again.body) in ((304, b""), (200, again.body))
    whole = viewer.ask("/api/view", headers={"If-None-Match": '"another"'})
    assert whole.status == 200


def test_large_answers_are_zipped_for_who_can_read_that(viewer: Viewer) -> None:
    viewer.view()
    zipped = viewer.ask("/api/view", headers={"Accept-Encoding": "gzip"})
    assert (zipped.headers["content-encoding"], zipped.json["whole"]) == ("gzip", True)
    assert "content-encoding" not in viewer.ask("/api/view").headers
    assert viewer.ask("/", headers={"Accept-Encoding": "gzip"}).body == viewer.ask("/").body


def test_a_cluster_that_does_not_answer_is_shown_as_that_and_then_as_it_was(
    cluster: PageCluster, request: pytest.FixtureRequest
) -> None:
    cluster.told = GONE
    viewer: Viewer = request.getfixturevalue("viewer")
    found = viewer.eventually("/api/view", lambda found: found["ages"]["cluster"]["error"])
    assert (found["health"], found["topics"], found["ages"]["cluster"]["as_of_ms"]) == (None, [], None)
    cluster.told = WELL
    viewer.eventually("/api/view", lambda found: found["health"])
    cluster.told = GONE
    found = viewer.eventually("/api/view", lambda found: found["ages"]["cluster"]["error"])
    assert (found["health"]["verdict"], len(found["topics"])) == ("healthy", 2)
    assert found["ages"]["cluster"]["as_of_ms"] is not None


def test_an_answer_that_nobody_expected_fails_no_page(viewer: Viewer, cluster: PageCluster) -> None:
    cluster.told = ValueError("odd")
    found = viewer.eventually("/api/view", lambda found: found["ages"]["cluster"]["error"])
    assert "odd" in found["ages"]["cluster"]["error"]
    cluster.told = WELL
    viewer.eventually("/api/view", lambda found: found["health"] and not found["ages"]["cluster"]["error"])


def test_a_broker_that_does_not_answer_fails_no_view(viewer: Viewer, cluster: PageCluster) -> None:
    cluster.sizes = {
        "127.0.0.1:1": (size("foo", 0, 70, leads=True), size("bar", 0, 5)),
        "127.0.0.1:2": GONE,
    }
    found = viewer.eventually("/api/topics/foo", lambda found: found["sizes"][0][1])
    assert found["sizes"] == [[0, 70, None, 0, 0, 0, 0], [1, None, None, None, None, None, None]]
    replicas = viewer.ask("/api/topics/foo/0").json["replicas"]
    assert [(each["broker"], each["bytes"], each["error"]) for each in replicas] == [
        (1, 70, ""),
        (2, None, str(GONE)),
        (3, None, ""),
    ]
    assert viewer.ask("/api/brokers/2").json["row"]["error"] == str(GONE)
    assert [row["bytes"] for row in viewer.view()["brokers"]] == [75, None, 0]


def test_a_partition_tells_the_offsets_of_its_leader_and_of_each_replica(viewer: Viewer, cluster: PageCluster) -> None:
    cluster.sizes = {
        "127.0.0.1:1": (size("foo", 0, 70, leads=True, log_start=5, high_watermark=19, log_end=20),),
        "127.0.0.1:2": (size("foo", 0, 90, log_start=4, high_watermark=18, log_end=19),),
        # Another topic had that name: what is left of it says nothing of this one.
        "127.0.0.1:3": (size("foo", 0, 80, topic_id="another", log_start=1, high_watermark=2, log_end=3),),
    }
    found = viewer.eventually("/api/topics/foo/0", lambda found: found["replicas"][0]["log_end"])
    assert [(each["log_start"], each["high_watermark"], each["log_end"]) for each in found["replicas"]] == [
        (5, 19, 20),
        (4, 18, 19),
        (None, None, None),
    ]
    assert viewer.ask("/api/topics/foo").json["sizes"][0] == [0, 70, None, 0, 5, 19, 20]


# Topics that are tables

LAG = TableLag(end=12, rows=7, ms=4_000, held_back_bytes=30)
NOT_KNOWN = TableLag(end=None, rows=None, ms=None, held_back_bytes=9)


def table_of(viewer: Viewer, is_there: Callable[[Any], object] = lambda table: table) -> Any:
    """Once the size of foo-1 is known."""
    found = viewer.eventually("/api/topics/foo", lambda told: told["sizes"][1][1] and is_there(told["table"]))
    return found["table"]


def test_a_topic_tells_how_far_its_table_is_behind(viewer: Viewer, cluster: PageCluster) -> None:
    cluster.sizes = {
        # A follower, and whoever led before, say nothing of a table.
        "127.0.0.1:1": (size("foo", 0, 70, leads=True, table=LAG), size("foo", 1, 9, leads=True, table=LAG)),
        "127.0.0.1:2": (size("foo", 1, 70, leads=True, table=NOT_KNOWN),),
    }
    assert table_of(viewer) == {
        "whole": {"not_known": 1, "rows_behind": None, "ms_behind": None, "held_back_bytes": 39},
        "partitions": [[0, 12, 7, 4_000, 30], [1, None, None, None, 9]],
    }
    whole = TableLag(end=3, rows=0, ms=0, held_back_bytes=0)
    cluster.sizes["127.0.0.1:2"] = (size("foo", 1, 70, leads=True, table=whole),)
    found = table_of(viewer, lambda table: table["whole"]["not_known"] == 0)
    assert found["whole"] == {"not_known": 0, "rows_behind": 7, "ms_behind": 4_000, "held_back_bytes": 30}


def test_a_table_of_which_no_leader_tells_is_not_known(viewer: Viewer, cluster: PageCluster) -> None:
    bar, foo = WELL.topics
    cluster.told = replace(WELL, topics=(bar, replace(foo, config=replace(foo.config, settings={"table": True}))))
    cluster.sizes = {"127.0.0.1:1": GONE, "127.0.0.1:2": GONE, "127.0.0.1:3": (size("foo", 1, 1),)}
    assert table_of(viewer) == {
        "whole": {"not_known": 2, "rows_behind": None, "ms_behind": None, "held_back_bytes": None},
        "partitions": [[0, None, None, None, None], [1, None, None, None, None]],
    }


@pytest.mark.parametrize("settings", [{}, {"table": False}])
def test_a_topic_that_is_no_table_shows_none(viewer: Viewer, cluster: PageCluster, settings: dict[str, Scalar]) -> None:
    bar, foo = WELL.topics
    cluster.told = replace(WELL, topics=(bar, replace(foo, config=replace(foo.config, settings=settings))))
    late = LAG if settings else None  # its leader has not heard yet that it is a table no longer
    cluster.sizes = {"127.0.0.1:2": (size("foo", 1, 70, leads=True, table=late),)}
    found = viewer.eventually("/api/topics/foo", lambda told: told["sizes"][1][1] and told["settings"] == settings)
    assert found["table"] is None


def test_a_topic_with_its_schema_and_settings(viewer: Viewer, cluster: PageCluster) -> None:
    bar, foo = WELL.topics
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    config = replace(bar.config, schema=_schema_text(schema), settings={"retention.ms": 5})
    cluster.told = replace(
        WELL, topics=(replace(bar, config=config), replace(foo, config=replace(bar.config, schema="x")))
    )
    found = viewer.eventually("/api/topics/bar", lambda found: found["columns"])
    assert found["columns"] == [["id", "int64"], ["name", "string"]]
    assert (found["settings"], found["schema_error"], found["series"]["at_ms"]) == ({"retention.ms": 5}, "", [])
    found = viewer.ask("/api/topics/foo").json
    assert (found["columns"], "foo" in found["schema_error"]) == ([], True)


def test_a_partition_that_waits_for_a_person_says_for_what(viewer: Viewer, cluster: PageCluster) -> None:
    states = {"foo-0": state(None, [], elr=[3], last_known_leader=3)}
    cluster.told = metadata_of(1, 2, states=states)
    found = viewer.eventually("/api/topics/foo/0", lambda found: found["row"][1][0] == "leaderless")
    assert found["row"][10] == "fenced_elr"
    assert "start one of the brokers [3]" in found["trouble"]
    assert found["mend"].endswith("longest_log_proactive foo-0")
    (mend,) = found["mends"]
    assert mend["commands"] == ["spark-replication leader elect --kind longest_log_proactive foo-0"]
    assert [(each["role"], each["is_live"]) for each in found["replicas"]] == [
        ("not in sync", True),
        ("not in sync", True),
        ("eligible", False),
    ]
    assert found["guide"] == "operate#a-partition-has-no-leader"
    well = viewer.ask("/api/topics/foo/1").json
    assert (well["trouble"], well["guide"]) == ("", "")


def test_a_partition_that_may_have_lost_records_says_so_until_it_is_acknowledged(
    viewer: Viewer, cluster: PageCluster
) -> None:
    cluster.told = metadata_of(1, 2, 3, states={"foo-0": state(1, [1, 2, 3], loss=loss(from_offset=40))})
    found = viewer.eventually("/api/topics/foo/0", lambda found: found["trouble"])
    assert "foo-0 may have lost acknowledged records from offset 40 on" in found["trouble"]
    assert found["mend"].endswith("leader acknowledge-loss foo-0")
    assert "may have lost" in str(viewer.view()["health"]["reasons"])
    cluster.told = WELL
    viewer.eventually("/api/topics/foo/0", lambda found: not found["trouble"])


def test_a_partition_says_below_which_offset_only_its_table_has_records(viewer: Viewer, cluster: PageCluster) -> None:
    cluster.told = metadata_of(1, 2, 3, states={"foo-0": state(1, [1, 2, 3], start_at=40)})
    viewer.eventually("/api/topics/foo/0", lambda found: found["start_at"] == 40)
    assert viewer.ask("/api/topics/foo/1").json["start_at"] is None


def test_a_broker_with_what_it_has_those_not_in_sync_first(viewer: Viewer, cluster: PageCluster) -> None:
    cluster.told = WITHOUT_3
    found = viewer.eventually("/api/brokers/3", lambda found: found["row"]["condition"] == "gone")
    assert found["hosted"] == [["foo", 0, "not in sync", None], ["foo", 1, "not in sync", None]]
    assert [each[2] for each in viewer.ask("/api/brokers/2").json["hosted"]] == ["leader", "leader", "in sync"]


def test_reassignments_under_way_with_what_is_left(viewer: Viewer, cluster: PageCluster) -> None:
    bar, foo = WELL.topics
    moving = replace(foo.partitions[0], adding=(3,), state=state(1, [1, 2]))
    cluster.told = replace(WELL, topics=(bar, replace(foo, partitions=(moving, foo.partitions[1]))))
    found = viewer.eventually("/api/view", lambda found: found["moves"])
    (move,) = found["moves"]
    assert (move["partition"], move["adding"], move["bytes_left"]) == ("foo-0", [3], None)
    assert viewer.ask("/api/topics/foo/0").json["move"] == move


@pytest.fixture
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "LOOK_S", 0.01)


@pytest.mark.usefixtures("quick_looks")
def test_what_is_not_there_is_said_to_be_not_there(viewer: Viewer) -> None:
    viewer.view()
    for path in ("/api/topics/none", "/api/topics/foo/7", "/api/topics/none/0", "/api/brokers/9", "/none", "/api/"):
        answer = viewer.ask(path)
        assert (answer.status, answer.json["error"]) == (404, "NOT_FOUND"), path


def test_what_has_just_been_made_is_there(viewer: Viewer, cluster: PageCluster) -> None:
    """Before the page is told of it by another look: nobody may have looked for SELDOM_S."""
    viewer.view()
    foo = next(topic for topic in WELL.topics if topic.name == "foo")
    cluster.told = replace(WELL, topics=(*WELL.topics, replace(foo, name="new")))
    assert viewer.ask("/api/topics/new").status == 200
    assert viewer.ask("/api/topics/new/1").status == 200


def test_a_cluster_that_does_not_answer_does_not_hold_up_who_asks_for_what_it_did_not_tell(
    viewer: Viewer, cluster: PageCluster
) -> None:
    viewer.view()
    cluster.told = GONE
    assert viewer.ask("/api/topics/new").status == 404


def test_what_set_off_the_trouble_is_among_the_reasons(viewer: Viewer, cluster: PageCluster) -> None:
    cluster.told_events = [
        ToldEvent(number=1, at_ms=5, kind="gone", broker=3, because="broker 3 gone", cause="7.1"),
    ]
    cluster.told = WITHOUT_3
    found = viewer.eventually(
        "/api/view", lambda found: found["health"] and any(each["cause"] for each in found["health"]["reasons"])
    )
    reason = next(each for each in found["health"]["reasons"] if each["subjects"] == ["broker 3"])
    assert (reason["because"], reason["cause"], reason["since_ms"]) == ("broker 3 gone", "7.1", 5)
    (incident,) = found["health"]["incidents"]
    assert (incident["what"], incident["cause"]) == ("1 of 3 brokers is dead: 3", "7.1")
    assert [each["count"] for each in incident["consequences"]] == [2]
    # It came back, and is gone again, which the mirror does not tell yet.
    cluster.told = WELL
    viewer.eventually("/api/view", lambda found: found["health"]["verdict"] == "healthy")
    cluster.told_events = [*cluster.told_events, ToldEvent(number=2, at_ms=6, kind="registered", broker=3, became={})]
    cluster.told = WITHOUT_3
    viewer.eventually(
        "/api/view",
        lambda found: found["health"]["reasons"] and not any(each["because"] for each in found["health"]["reasons"]),
    )


def test_events_of_something_and_of_anything(viewer: Viewer, cluster: PageCluster) -> None:
    cluster.told_events = [ToldEvent(number=1, at_ms=5, kind="isr", topic="foo", partition=0)]
    found = viewer.ask("/api/events?partition=foo-0&topic=bar&broker=2&cause=7.1&last=9").json
    assert [(each["kind"], each["topic"]) for each in found["events"]] == [("isr", "foo")]
    asked = {"partitions": ["foo-0"], "topics": ("bar",), "brokers": (2,), "cause": "7.1", "last": 9}
    assert asked in cluster.asked_events
    viewer.ask("/api/events?last=0")
    assert cluster.asked_events[-1] == {"partitions": [], "topics": (), "brokers": (), "cause": None, "last": 1}
    cluster.told_events = GONE
    assert viewer.ask("/api/events?topic=other").json["age"]["error"] == str(GONE)


@pytest.mark.parametrize(
    "query",
    ["events?last=1001", "events?last=-1", "events?last=x", "events?broker=x", "events?partition=foo", "view?since=²"],
)
def test_what_cannot_be_meant_is_refused(viewer: Viewer, query: str) -> None:
    answer = viewer.ask(f"/api/{query.replace('²', '%C2%B2')}")
    assert (answer.status, answer.json["error"] != "", answer.json["message"] != "") == (400, True, True)


def test_it_is_ready_once_a_cluster_with_a_controller_has_answered(viewer: Viewer, cluster: PageCluster) -> None:
    assert viewer.ask("/healthz").body == b"ok\n"
    assert (viewer.ask("/readyz").status, viewer.ask("/readyz").body) == (200, b"ready\n")


@pytest.mark.parametrize(
    ("told", "why"),
    [(GONE, "nobody answers"), (replace(WELL, controller=None), "there is no controller")],
)
def test_it_is_not_ready_otherwise_and_says_why(
    cluster: PageCluster, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, told: object, why: str
) -> None:
    monkeypatch.setattr(app, "FIRST_S", 0.3)
    cluster.told = told  # type: ignore[assignment]  # either will do
    viewer: Viewer = request.getfixturevalue("viewer")
    answer = viewer.ask("/readyz")
    assert (answer.status, why in answer.body.decode() or b"not asked yet" in answer.body) == (503, True)


def test_an_answer_of_long_ago_makes_nobody_ready(viewer: Viewer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "FIRST_S", 0.3)
    monkeypatch.setattr(app, "FRESH_MS", -1)
    assert viewer.ask("/readyz").status == 503


def test_metrics_are_served_as_they_are_told(viewer: Viewer, cluster: PageCluster) -> None:
    assert viewer.ask("/metrics").body == b"up{broker=None} 1\n"
    found = viewer.ask("/brokers/2/metrics")
    assert (found.body, found.headers["content-type"]) == (
        b"up{broker=2} 1\n",
        "text/plain; version=0.0.4; charset=utf-8",
    )
    assert viewer.ask("/groups/metrics").body == b"lag 1\n"


# Where it is served, and its end


def test_a_port_that_another_has_is_an_error_that_says_so(cluster: PageCluster) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(StartFailed, match="in use"):
            PageServer.start(cluster, NO_READER, host="127.0.0.1", port=port, security=NO_SECURITY, say=nobody_hears)


def test_without_a_token_nothing_beyond_loopback_is_served(cluster: PageCluster) -> None:
    with pytest.raises(InvalidConfig, match="without a token"):
        PageServer.start(cluster, NO_READER, host="0.0.0.0", port=0, security=NO_SECURITY, say=nobody_hears)


def test_it_ends_soon_whoever_waits(cluster: PageCluster) -> None:
    server = PageServer.start(cluster, NO_READER, host="127.0.0.1", port=0, security=NO_SECURITY, say=nobody_hears)
    viewer = Viewer(server.url)
    viewer.eventually("/api/view", lambda found: found["ages"]["sizes"]["as_of_ms"])  # then there is nothing new
    version = viewer.view()["version"]
    heard = []
    waiting = threading.Thread(target=lambda: heard.append(viewer.view(version)))
    waiting.start()
    eventually(lambda: server._server.server_state.tasks, "it is asked")
    began_s = time.monotonic()
    server.stop()
    assert time.monotonic() - began_s < 10
    waiting.join(20)
    assert heard
    asked = cluster.asked
    assert not [thread for thread in threading.enumerate() if thread.name in ("page-server", "page-look")]
    assert cluster.asked == asked
    with pytest.raises(OSError, match="refused"):
        viewer.ask("/healthz")

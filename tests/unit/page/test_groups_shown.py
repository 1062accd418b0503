"""Consumer groups on the page: one question for all who look, and what was told last while there is no answer."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from spark_replication.client.asking.groups import GroupDescription
from spark_replication.errors import NotCoordinator
from spark_replication.model import TopicPartition
from spark_replication.page import app, groups
from spark_replication.page.answers import Age
from spark_replication.page.groups import GroupsWatch, group_detail, told_groups
from spark_replication.page.server import PageServer
from spark_replication.process.threads import now_ms
from spark_replication.transport.security.security import NO_SECURITY
from tests.unit.admin.notebook.described import least_cpu_s
from tests.unit.page.page_cluster import NO_READER, PageCluster
from tests.unit.page.viewer import Viewer, nobody_hears
from tests.unit.view.described_groups import group, member, position
from tests.waiting import eventually

FOO_0, FOO_1 = TopicPartition("foo", 0), TopicPartition("foo", 1)
ETL = group(
    "etl",
    position("bar", 0, 3, 3, committed_ms=90),
    position("foo", 0, 9, 10, committed_ms=80, member="id-b"),
    position("foo", 1, None, 5, member="id-a"),
    position("foo", 2, 9, None, committed_ms=70),
    members=(member("b", FOO_0, hands_over=1, silent_ms=40), member("a", FOO_1, is_connected=False)),
    state="moving",
)
AUDIT = group("audit", position("foo", 0, 2, 10, committed_ms=60))
UNREAD = NotCoordinator("broker 2 is still reading __groups: retry")
MANY, GROUPS = 10_000, 500
WELL_UNDER_A_SECOND_S = 0.5
AGE = Age(as_of_ms=1_000)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "GROUPS_S", 0.05)


def names(found: Any) -> list[tuple[str, int, int]]:
    return [(each["group"], each["behind"], each["partitions"]) for each in found["groups"]]


def test_groups_are_listed_those_most_behind_first(viewer: Viewer, cluster: PageCluster) -> None:
    cluster.told_groups = [AUDIT, ETL]
    found = viewer.ask("/api/groups").json
    assert (names(found), found["count"], found["age"]["error"]) == ([("audit", 8, 1), ("etl", 6, 4)], 2, "")
    assert found["groups"][1] == {
        "group": "etl",
        "state": "moving",
        "members": 2,
        "partitions": 4,
        "behind": 6,
        "unknown": 1,
        "committed_ms": 90,
    }


@pytest.mark.parametrize(
    ("topic", "read"), [("bar", [("etl", 0, 1)]), ("foo", [("audit", 8, 1), ("etl", 6, 3)]), ("none", [])]
)
def test_a_topic_has_the_groups_that_read_it_as_they_do_that(
    viewer: Viewer, cluster: PageCluster, topic: str, read: list[tuple[str, int, int]]
) -> None:
    cluster.told_groups = [AUDIT, ETL]
    assert names(viewer.ask(f"/api/groups?topic={topic}").json) == read


def test_a_group_has_its_members_and_partitions_those_most_behind_first() -> None:
    found = group_detail(ETL, 1_000, AGE)
    assert [tuple(getattr(each, name) for name in each.__struct_fields__) for each in found.members] == [
        ("a", "here", 1, 0, 900, False),
        ("b", "here", 1, 1, 960, True),
    ]
    assert [tuple(getattr(each, name) for name in each.__struct_fields__) for each in found.partitions] == [
        ("foo", 1, None, 5, 5, None, "a"),
        ("foo", 0, 9, 10, 1, 80, "b"),
        ("foo", 2, 9, None, None, 70, None),
        ("bar", 0, 3, 3, 0, 90, None),
    ]
    assert (found.summary.group, found.summary.members, found.age) == ("etl", 2, AGE)


def test_one_group_is_told_and_one_that_is_not_there_is_said_not_to_be(viewer: Viewer, cluster: PageCluster) -> None:
    cluster.told_groups = [ETL]
    found = viewer.ask("/api/groups/etl").json
    assert found["partitions"][0] == ["foo", 1, None, 5, 5, None, "a"]
    assert 0 <= now_ms() - found["members"][1][4] - 40 < 60_000
    missing = viewer.ask("/api/groups/other")
    assert (missing.status, missing.json["message"]) == (
        404,
        "there is no group 'other', as far as coordinators tell",
    )


def test_answers_are_bounded_and_say_how_many_there_are(
    viewer: Viewer, cluster: PageCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GROUPS_MAX", "MEMBERS_MAX", "PARTITIONS_MAX"):
        monkeypatch.setattr(groups, name, 1)
    cluster.told_groups = [ETL, AUDIT]
    found, one = viewer.ask("/api/groups").json, viewer.ask("/api/groups/etl").json
    assert (names(found), found["count"]) == ([("audit", 8, 1)], 2)
    assert ([each[0] for each in one["members"]], one["summary"]["members"]) == (["a"], 2)
    assert ([each[:2] for each in one["partitions"]], one["summary"]["partitions"]) == ([["foo", 1]], 4)


def test_while_coordinators_cannot_tell_what_they_told_last_is_shown_with_the_reason(
    viewer: Viewer, cluster: PageCluster
) -> None:
    cluster.told_groups = [ETL]
    as_of_ms = viewer.ask("/api/groups").json["age"]["as_of_ms"]
    cluster.told_groups = UNREAD
    found = viewer.eventually("/api/groups", lambda found: found["age"]["error"])
    assert (names(found), found["age"]["error"]) == ([("etl", 6, 4)], str(UNREAD))
    assert found["age"]["as_of_ms"] >= as_of_ms
    assert viewer.ask("/api/groups/etl").json["age"]["error"] == str(UNREAD)
    assert viewer.ask("/api/groups/other").json["message"] == str(UNREAD), "it may be there"
    cluster.told_groups = [AUDIT]
    found = viewer.eventually("/api/groups", lambda found: not found["age"]["error"])
    assert names(found) == [("audit", 8, 1)]


def test_coordinators_that_have_never_told_are_said_to_be_the_reason(viewer: Viewer, cluster: PageCluster) -> None:
    cluster.told_groups = UNREAD
    found = viewer.ask("/api/groups").json
    assert (found["groups"], found["age"]) == ([], {"as_of_ms": None, "error": str(UNREAD)})


class SlowCoordinators(PageCluster):
    def __init__(self) -> None:
        super().__init__()
        self.are_asked, self.may_tell = threading.Event(), threading.Event()

    def groups(self) -> list[GroupDescription]:
        self.are_asked.set()
        self.may_tell.wait(20)
        return super().groups()


def test_who_looks_first_waits_for_an_answer_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "FIRST_S", 60.0)
    cluster = SlowCoordinators()
    cluster.told_groups = [ETL]
    page = PageServer.start(cluster, NO_READER, host="127.0.0.1", port=0, security=NO_SECURITY, say=nobody_hears)
    try:
        with ThreadPoolExecutor(1) as looking:
            found = looking.submit(Viewer(page.url).ask, "/api/groups")
            assert cluster.are_asked.wait(20)
            for _ in range(20):  # others are answered meanwhile
                assert Viewer(page.url).ask("/healthz").status == 200
            assert not found.done()
            cluster.may_tell.set()
            assert names(found.result().json) == [("etl", 6, 4)]
    finally:
        page.stop()
    eventually(lambda: not page.watch.groups._look._thread.is_alive(), "nobody is asked by a page that has ended")


def test_only_who_looks_at_groups_has_coordinators_asked(viewer: Viewer, cluster: PageCluster) -> None:
    viewer.view()
    viewer.ask("/api/topics/foo")
    assert cluster.asked_groups == 0
    viewer.ask("/api/groups?topic=foo")
    assert cluster.asked_groups > 0


def test_twenty_who_look_have_them_asked_once_and_are_sent_nothing_twice(
    cluster: PageCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "GROUPS_S", 60.0)
    cluster.told_groups = [ETL]
    page = PageServer.start(cluster, NO_READER, host="127.0.0.1", port=0, security=NO_SECURITY, say=nobody_hears)
    try:
        viewer = Viewer(page.url)
        viewers = [threading.Thread(target=viewer.ask, args=("/api/groups",)) for _ in range(20)]
        for each in viewers:
            each.start()
        for each in viewers:
            each.join(20)
        for path in ("/api/groups", "/api/groups/etl"):
            known = {"If-None-Match": viewer.ask(path).headers["etag"]}
            assert (viewer.ask(path, headers=known).status, cluster.asked_groups) == (304, 1)
    finally:
        page.stop()


def test_what_was_told_to_who_looked_before_is_not_of_now(
    cluster: PageCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "GROUPS_S", 60.0)
    clock_ms = 1_000_000
    monkeypatch.setattr(groups, "now_ms", lambda: clock_ms)
    watch = GroupsWatch(cluster, lambda: None)
    watch.start()
    current = [watch.is_current]
    watch.want()
    eventually(lambda: watch.is_current, "coordinators are asked")
    for passed_ms in (5_000, 5_001):
        clock_ms += passed_ms
        watch.want()
        current.append(watch.is_current)
    watch.stop()
    assert current == [False, True, False], "nobody has asked yet; somebody looks still; somebody looks again"


def test_whoever_may_not_see_the_page_sees_no_group(stranger: Viewer, cluster: PageCluster) -> None:
    cluster.told_groups = [ETL]
    assert [stranger.ask(path).status for path in ("/api/groups", "/api/groups/etl")] == [401, 401]


def test_many_groups_of_many_partitions_cost_less_than_a_processor_has() -> None:
    told = [
        group(f"group-{number}", *(position("foo", each, 3, 9, committed_ms=1) for each in range(MANY // GROUPS)))
        for number in range(GROUPS)
    ]
    large = group("large", *(position("foo", each, 3, 9, committed_ms=1) for each in range(MANY)))
    assert least_cpu_s(lambda: told_groups(told, 1)) < WELL_UNDER_A_SECOND_S
    assert least_cpu_s(lambda: msgspec.json.encode(group_detail(large, 1, AGE))) < WELL_UNDER_A_SECOND_S

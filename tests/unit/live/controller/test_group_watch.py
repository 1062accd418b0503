"""How far groups are, as the mirror hears of it: rows, how often, and what becomes of an answer that does not come."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from spark_replication.client.asking import groups
from spark_replication.core.controller.cluster import ClusterState
from spark_replication.errors import NotCoordinator
from spark_replication.live.controller import group_watch
from spark_replication.live.controller.group_watch import GroupWatch, most_behind
from spark_replication.messages.groups import GROUPS_TOPIC
from spark_replication.mirror.tables.groups import GroupRow
from spark_replication.transport.security.security import NO_SECURITY
from tests.unit.client.fake_cluster import FakeCluster
from tests.unit.client.told_groups import COMMITTED_MS, group, member, position
from tests.unit.core.stories import cluster_of, state, topic
from tests.waiting import eventually

WITHOUT_GROUPS = cluster_of(1, topics={}, states={})
WITH_GROUPS = cluster_of(1, topics={GROUPS_TOPIC: topic((1,))}, states={f"{GROUPS_TOPIC}-0": state(1, [1], min_isr=1)})

WAIT_S = 20.0
Start = Callable[..., GroupWatch]


class Heard:
    def __init__(self) -> None:
        self.told: list[Sequence[GroupRow]] = []

    def __call__(self, rows: Sequence[GroupRow]) -> None:
        assert threading.current_thread().name == "mirror-groups"
        self.told.append(rows)


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    started = FakeCluster()
    yield started
    started.close()


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def start(cluster: FakeCluster, heard: Heard) -> Iterator[Start]:
    watches: list[GroupWatch] = []

    def started(known: ClusterState = WITH_GROUPS, interval_s: float = 0.01) -> GroupWatch:
        watches.append(GroupWatch("c", cluster.bootstrap, NO_SECURITY, interval_s, heard))
        watches[-1].start()
        watches[-1].heed(known)
        return watches[-1]

    yield started
    for each in watches:
        each.close()
        each._thread.join(WAIT_S)
        assert not each._thread.is_alive()


def row(partition: int, lag: int | None = 0, **given: Any) -> GroupRow:
    known: dict[str, Any] = {"state": "empty", "position": None, "position_epoch": None, "log_end": 0, "lag_ms": 0}
    known |= {"member": None, "host": None, "committed_ms": None, "told_ms": 5, **given}
    return GroupRow(cluster_id="c", group="etl", topic="orders", partition=partition, lag_records=lag, **known)


def test_each_partition_that_a_group_reads_has_a_row(
    cluster: FakeCluster, start: Start, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_watch, "now_ms", lambda: 5)
    cluster.groups.add(group("etl", members=[member("one", 0, 1)], positions=[position(0, 0)]))
    start()
    eventually(lambda: len(heard.told) > 1, "it looks again and again")
    moving: dict[str, Any] = {"state": "moving"}
    there: dict[str, Any] = {"member": "job-one", "host": "host-one", **moving}
    assert heard.told[0] == [
        row(0, position=0, position_epoch=0, committed_ms=COMMITTED_MS, **there),
        row(1, **there),
        row(2, **moving),
    ]


def test_nobody_is_asked_before_there_are_groups_and_nothing_is_told_while_there_are_none(
    cluster: FakeCluster, start: Start, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    described = groups.described_groups

    def counted(*given: Any) -> object:
        asked.append(given)
        return described(*given)

    monkeypatch.setattr(group_watch, "described_groups", counted)
    watch = start(WITHOUT_GROUPS)
    cluster.groups.open()
    assert not asked
    watch.heed(WITH_GROUPS)
    eventually(lambda: len(asked) > 2, "it looks")
    assert heard.told == [[]], "an earlier controller may have told of some: once"
    cluster.groups.add(group("etl", positions=[position(0, 0)]))
    eventually(lambda: len(heard.told) > 1, "a group is there")
    assert [each.partition for each in heard.told[1]] == [0, 1, 2]
    cluster.groups.by_name.clear()
    eventually(lambda: not heard.told[-1], "and is gone")


def test_a_look_that_takes_long_is_rare() -> None:
    assert group_watch.rest_after(0.25, 10.0) == 10.0
    assert group_watch.rest_after(1.0, 10.0) == 19.0


def test_the_second_look_waits_for_its_time(cluster: FakeCluster, start: Start, heard: Heard) -> None:
    cluster.groups.add(group("etl", positions=[position(0, 0)]))
    watch = start(interval_s=3_600.0)
    eventually(lambda: heard.told, "the first does not")
    watch.close()
    assert len(heard.told) == 1


def test_an_answer_that_does_not_come_is_told_once_and_changes_nothing(
    cluster: FakeCluster, start: Start, heard: Heard, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, group_watch.__name__)
    cluster.groups.add(group("etl", positions=[position(0, 0)]))
    described, refused = groups.described_groups, [0]

    def refuse(*_given: Any) -> None:
        refused[0] += 1
        raise NotCoordinator("still reading")

    monkeypatch.setattr(group_watch, "described_groups", refuse)
    start()
    eventually(lambda: refused[0] > 2, "it asks again")
    assert not heard.told
    assert [each.getMessage() for each in caplog.records] == [
        "the mirror's table `groups` stays as it is: NOT_COORDINATOR: still reading. It is tried again"
    ]
    monkeypatch.setattr(group_watch, "described_groups", described)
    eventually(lambda: heard.told, "it is told")


def test_a_mistake_does_not_end_it(
    cluster: FakeCluster, start: Start, heard: Heard, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.groups.add(group("etl", positions=[position(0, 0)]))
    right = group_watch.rows_of

    def wrong(*_given: Any) -> Iterator[GroupRow]:
        raise KeyError("one")

    monkeypatch.setattr(group_watch, "rows_of", wrong)
    start()
    eventually(lambda: "nobody expected: please report" in caplog.text, "it is told")
    monkeypatch.setattr(group_watch, "rows_of", right)
    eventually(lambda: heard.told, "it goes on")


def test_of_many_rows_those_are_told_that_are_most_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_watch, "ROWS_MAX", 3)
    rows = [row(0, 5), row(1, 0), row(2, None), row(3, 9)]
    assert most_behind(iter(rows)) == [row(0, 5), row(2, None), row(3, 9)]
    assert most_behind(iter(rows[:2])) == rows[:2]

"""One question for all viewers, for as long as there are any; what goes wrong is told, and asked again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from msgspec.structs import replace

from spark_replication.messages.descriptions import FollowerLag
from spark_replication.messages.mirroring import DescribeEvents, ToldEvent
from spark_replication.model import TopicPartition
from spark_replication.page import looking, recent_events
from spark_replication.page.answers import Age
from spark_replication.page.asking import Replica, asked_sizes
from spark_replication.page.history import Measure
from spark_replication.page.looking import Poller
from spark_replication.page.recent_events import RecentEvents
from tests.unit.page.page_cluster import GONE, PageCluster, size

DEADLINE_S = 20.0
FOO = TopicPartition("foo", 0)


class Asked:
    """What a look asks: answers and errors in turn, the last again and again."""

    def __init__(self, *answers: Exception | None) -> None:
        self.changed = threading.Condition()
        self.answers = list(answers)
        self.tries = 0

    def ask(self) -> None:
        with self.changed:
            self.tries += 1
            self.changed.notify_all()
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is not None:
            raise answer

    def wait(self, holds: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(holds, DEADLINE_S)

    def told(self) -> None:
        with self.changed:
            self.changed.notify_all()


@pytest.fixture
def begun() -> Iterator[list[Poller]]:
    looks: list[Poller] = []
    yield looks
    for look in looks:
        look.stop()


def look_of(asked: Asked, begun: list[Poller]) -> Poller:
    look = Poller("look", asked.ask, asked.told, every_s=0.001)
    begun.append(look)
    look.start()
    return look


def test_nothing_is_asked_unless_somebody_looks_and_for_as_long_as_somebody_did(
    begun: list[Poller], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked(None)
    monkeypatch.setattr(looking, "WANTED_S", 0.05)
    look = look_of(asked, begun)
    assert (look.tries, look.age) == (0, Age())
    look.want()
    asked.wait(lambda: look.tries >= 2)
    deadline_s = time.monotonic() + DEADLINE_S
    with asked.changed:
        while asked.changed.wait(1.0):  # until a second has brought no question
            assert time.monotonic() < deadline_s
    tries = look.tries
    look.want()
    asked.wait(lambda: look.tries > tries)


def test_what_is_kept_up_goes_on_seldom_once_nobody_looks(begun: list[Poller], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(None)
    monkeypatch.setattr(looking, "WANTED_S", 0.05)
    look = Poller("look", asked.ask, asked.told, every_s=0.001, seldom_s=0.1)
    begun.append(look)
    look.start()
    with asked.changed:
        assert not asked.changed.wait(0.5), "nobody has looked yet"
    look.want()
    ended_s = time.monotonic() + 0.05
    asked.wait(lambda: time.monotonic() > ended_s)
    tries, began_s = look.tries, time.monotonic()
    asked.wait(lambda: look.tries >= tries + 3)
    assert time.monotonic() - began_s >= 0.2


def test_whoever_looks_does_not_wait_for_the_next_of_the_seldom_questions(
    begun: list[Poller], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked(None)
    monkeypatch.setattr(looking, "WANTED_S", 0.05)
    look = Poller("look", asked.ask, asked.told, every_s=0.001, seldom_s=3_600.0)
    begun.append(look)
    look.start()
    look.want()
    deadline_s = time.monotonic() + DEADLINE_S
    with asked.changed:
        while asked.changed.wait(1.0):  # until a second has brought no question
            assert time.monotonic() < deadline_s
    tries = look.tries
    look.want()
    asked.wait(lambda: look.tries > tries)


def test_a_failure_is_told_with_the_age_of_what_is_known_and_an_answer_ends_it(begun: list[Poller]) -> None:
    asked = Asked(None, GONE, ValueError("odd"), None)
    ages: list[Age] = []
    look = Poller("look", asked.ask, lambda: ages.append(look.age), every_s=0.001)
    begun.append(look)
    look.start()
    look.want()
    asked.wait(lambda: asked.tries >= 6)
    first, gone, odd, again = ages[:4]
    assert (first.error, again.error) == ("", "")
    assert (gone.as_of_ms, gone.error) == (first.as_of_ms, str(GONE))
    assert (odd.as_of_ms, "odd" in odd.error, "nobody expected" in odd.error) == (first.as_of_ms, True, True)


def test_a_look_that_was_never_begun_ends_too(begun: list[Poller]) -> None:
    Poller("look", lambda: None, lambda: None, every_s=1.0).stop()


# Events


def event(number: int) -> ToldEvent:
    return ToldEvent(number=number, at_ms=number, kind="elected")


ASKED = DescribeEvents(partitions=(FOO,), topics=("bar",), brokers=(2,), cause="7.1", last=9)


def test_the_same_events_are_asked_for_once_and_others_at_once() -> None:
    cluster = PageCluster()
    cluster.told_events = [event(1)]
    found = RecentEvents(cluster)
    first = found.about(ASKED)
    assert (first.events, first.age.error) == ((event(1),), "")
    assert found.about(ASKED) is first
    assert cluster.asked_events == [
        {"partitions": ["foo-0"], "topics": ("bar",), "brokers": (2,), "cause": "7.1", "last": 9}
    ]
    found.about(DescribeEvents())
    assert len(cluster.asked_events) == 2


def test_while_events_cannot_be_told_the_last_ones_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_events, "FRESH_S", 0.0)
    cluster = PageCluster()
    cluster.told_events = GONE
    found = RecentEvents(cluster)
    assert found.about(ASKED).age == Age(error=str(GONE))
    cluster.told_events = [event(1)]
    known = found.about(ASKED)
    while found.about(ASKED) is known:  # one that took a moment is good for ten
        cluster.told_events = GONE
    failed = found.about(ASKED)
    assert (failed.events, failed.age) == (known.events, Age(as_of_ms=known.age.as_of_ms, error=str(GONE)))


def test_what_is_remembered_of_events_is_bounded_and_so_is_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_events, "REMEMBERED_MAX", 2)
    cluster = PageCluster()
    found = RecentEvents(cluster)
    for last in (1, 2, 3):
        found.about(DescribeEvents(last=last))
    assert len(found._found) == 2
    monkeypatch.setattr(recent_events, "TURN_S", 0.01)
    for _ in range(recent_events.ASKED_AT_ONCE_MAX):
        found._turns.acquire()
    assert "others are asking" in found.about(DescribeEvents(last=4)).age.error


# Sizes


def test_a_broker_that_does_not_answer_is_named_and_the_others_are_told() -> None:
    cluster = PageCluster()
    cluster.sizes = {
        "a:1": (size("foo", 0, 70, leads=True), size("bar", 0, 5)),
        "b:1": (size("foo", 0, 90), size("bar", 0, 6)),
        "c:1": GONE,
    }
    sizes = asked_sizes(cluster, {1: "a:1", 2: "b:1", 3: "c:1"}, 8)
    assert (sizes.at_ms, dict(sizes.errors), sizes.bytes_on()) == (8, {3: str(GONE)}, {1: 75, 2: 96})
    assert sizes.measures() == {FOO: Measure(70, 0, 0), TopicPartition("bar", 0): Measure(6, 0)}
    assert sizes.of(FOO, "id-foo", 2) == Replica(
        leads=False, topic_id="id-foo", bytes=90, start=0, high_watermark=0, end=0
    )
    nowhere = [sizes.of(FOO, "id-foo", 3), sizes.of(FOO, "id-earlier", 2), sizes.of(TopicPartition("none", 0), "", 1)]
    assert (nowhere, set(sizes.leaders)) == ([None, None, None], {FOO})
    assert asked_sizes(cluster, {}, 8).told == {}


def test_the_leader_tells_how_far_followers_are_behind() -> None:
    cluster = PageCluster()
    lags = {2: FollowerLag(records=7, ms=40), 3: FollowerLag(records=None, ms=90)}
    led = replace(size("foo", 0, 70, leads=True), log_end=100, lags=lags)
    cluster.sizes = {"a:1": (led,), "b:1": (replace(size("foo", 0, 60), log_end=93),), "c:1": (size("foo", 0, 0),)}
    sizes = asked_sizes(cluster, {1: "a:1", 2: "b:1", 3: "c:1"}, 8)
    found = [sizes.of(FOO, "id-foo", broker) for broker in (1, 2, 3)]
    assert [(each.end, each.lag) for each in found if each is not None] == [(100, 0), (93, 7), (0, None)]
    assert sizes.measures() == {FOO: Measure(70, 100, 7)}
    unheard = replace(led, lags={2: FollowerLag(records=None, ms=1)})
    cluster.sizes["a:1"] = (unheard,)
    assert asked_sizes(cluster, {1: "a:1"}, 8).measures() == {FOO: Measure(70, 100, None)}

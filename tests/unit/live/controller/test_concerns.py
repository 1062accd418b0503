"""What the mirror's status is told of the cluster's health, and how often."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from spark_replication.core.controller.cluster import ClusterState
from spark_replication.live.controller import concerns
from spark_replication.live.controller.concerns import Concerns, counted
from spark_replication.messages.descriptions import Metadata
from tests.unit.core.stories import cluster_of, state, topic

WAIT_S = 20.0
ILL = cluster_of(
    1,
    topics={"foo": topic((1, 2), (1, 2), (2,))},
    states={"foo-0": state(1, [1]), "foo-1": state(None, [], elr=[2]), "foo-2": state(1, [1, 2])},
)


def test_partitions_are_counted_the_worst_first() -> None:
    assert counted(ILL) == [
        "partitions without a leader: 1",
        "partitions with fewer replicas in sync than acks=all needs: 2",
    ]
    assert counted(cluster_of(1, topics={"foo": topic((1,))}, states={"foo-0": state(1, [1], min_isr=1)})) == []


class Heard:
    """Who is told, on whatever thread."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.told: list[Sequence[str]] = []
        self.threads: set[str] = set()

    def tell(self, found: Sequence[str]) -> None:
        with self.changed:
            self.told.append(found)
            self.threads.add(threading.current_thread().name)
            self.changed.notify_all()

    def wait(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.told) >= count, WAIT_S), self.told


def others(seen: Metadata) -> list[str]:
    assert seen.topics == ()
    return [f"brokers {sorted(seen.brokers)} are registered"]


@pytest.fixture
def started() -> Iterator[Callable[[Concerns], Concerns]]:
    known: list[Concerns] = []

    def start(found: Concerns) -> Concerns:
        known.append(found)
        found.start()
        return found

    yield start
    for each in known:
        each.close()


Start = Callable[[Concerns], Concerns]


def test_they_are_told_after_what_is_wrong_besides_and_not_with_every_tick(
    started: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = Heard()
    looking = started(Concerns(others, heard.tell))
    looking.look(ILL)
    looking.look(ClusterState.__new__(ClusterState))  # it is not looked at
    heard.wait(1)
    assert heard.told == [("brokers [1] are registered", *counted(ILL))]
    monkeypatch.setattr(concerns, "LOOK_S", 0.0)
    again = started(Concerns(others, heard.tell))
    deadline_s = time.monotonic() + WAIT_S
    while len(heard.told) < 3:
        again.look(ILL)
        assert time.monotonic() < deadline_s


def test_the_controllers_thread_only_copies_and_goes_on(started: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concerns, "LOOK_S", 0.0)
    heard, may_end = Heard(), threading.Event()

    def slow(_seen: Metadata) -> list[str]:
        assert may_end.wait(WAIT_S)
        return []

    cluster = cluster_of(1, topics={"foo": topic((1,))}, states={"foo-0": state(None, [], elr=[1], min_isr=1)})
    looking = started(Concerns(slow, heard.tell))
    looking.look(cluster)
    cluster.leaderless.clear()  # what is decided meanwhile does not mix with what is looked at
    cluster.partitions.clear()
    looking.look(ClusterState.__new__(ClusterState))  # not while the last look is under way
    may_end.set()
    heard.wait(1)
    assert heard.told[0][0] == "partitions without a leader: 1"
    assert heard.threads == {"concerns"}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_dies_is_named_and_one_that_is_over_is_not(started: Start) -> None:
    def fail(_seen: Metadata) -> list[str]:
        raise ValueError("odd")

    failing = started(Concerns(fail, lambda _told: None))
    failing.look(ILL)
    deadline_s = time.monotonic() + WAIT_S
    while failing.dead_thread() != "concerns":
        assert time.monotonic() < deadline_s
    ending = Concerns(others, lambda _told: None)
    ending.start()
    ending.close()
    ending._worker.join(WAIT_S)
    assert (ending._worker.is_alive(), ending.dead_thread()) == (False, "")

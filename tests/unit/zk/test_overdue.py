"""A session without a connection ends only where servers take others (Z2)."""

from __future__ import annotations

import threading

from kazoo.protocol.states import KazooState

from spark_replication.zk.login import NOBODY
from spark_replication.zk.overdue import Overdue
from spark_replication.zk.session import Session, SessionState

LATE_S = 20.0


class Story:
    def __init__(self, *, grace_s: float = 0.01) -> None:
        self.ended, self.asked, self.serving = threading.Event(), threading.Semaphore(0), False
        self.overdue = Overdue(0.01, serves=self._serves, end=self.ended.set, grace_s=grace_s)

    def _serves(self) -> bool:
        self.asked.release()
        return self.serving

    def is_asked(self) -> bool:
        return self.asked.acquire(timeout=LATE_S)


def test_a_session_waits_while_no_server_serves_anybody_and_ends_once_one_serves_others() -> None:
    story = Story()
    story.overdue.suspended()
    assert all(story.is_asked() for _ in range(3))
    assert not story.ended.is_set()
    story.serving = True
    assert story.ended.wait(LATE_S)


def test_a_session_whose_connection_is_back_in_time_goes_on() -> None:
    before = set(threading.enumerate())  # what other tests have left, perhaps
    story = Story(grace_s=LATE_S)
    story.serving = True
    story.overdue.suspended()
    assert story.is_asked()
    (waiting,) = (each for each in threading.enumerate() if each.name == "zookeeper-overdue" and each not in before)
    story.overdue.back()
    waiting.join(LATE_S)
    assert not waiting.is_alive()
    assert not story.ended.is_set()


def test_a_session_that_has_ended_is_never_overdue_and_tells_nothing_more() -> None:
    before = set(threading.enumerate())
    told: list[SessionState] = []
    lost = threading.Event()

    def listens(state: SessionState) -> None:
        told.append(state)
        lost.set()

    session = Session("127.0.0.1:1", "/x", session_timeout_ms=10, request_timeout_ms=10, login=NOBODY)
    session.listen(listens)
    session._state_changed(KazooState.LOST)
    assert lost.wait(LATE_S)
    for late in (KazooState.SUSPENDED, KazooState.CONNECTED, KazooState.SUSPENDED):  # kazoo stops only now
        session._state_changed(late)
    assert told == [SessionState.LOST]
    assert "zookeeper-overdue" not in {each.name for each in threading.enumerate() if each not in before}

"""The loop of replication connections: what is called when, and what an error ends."""

from __future__ import annotations

import math
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

import pytest

from spark_replication.engine.replica.partition import HALF_DONE
from spark_replication.errors import BrokerNotAvailable, ReplicationError
from spark_replication.transport.sockets import socket_loop
from spark_replication.transport.sockets.aside import Aside
from spark_replication.transport.sockets.socket_loop import Connected, SocketLoop
from tests.unit.transport.replicas import TIMEOUT_S
from tests.waiting import eventually

UNHANDLED = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


class Sink(Connected):
    """A connection that keeps what comes. turns: when it had them."""

    def __init__(self, loop: SocketLoop, connection: socket.socket) -> None:
        connection.setblocking(False)
        super().__init__(connection)
        self.loop = loop
        self.connection = connection
        self.heard = b""
        self.turns: list[float] = []
        self.due_ms = math.inf
        self.error: Exception | None = None
        self.fails: BaseException | None = None
        self.touches: Sink | None = None  # in its turn

    def came(self) -> None:
        assert threading.current_thread().name == "loop"
        received = self.connection.recv(1 << 16)
        if not received:
            raise BrokerNotAvailable("closed")
        self.heard += received

    def turn(self, now_ms: float) -> float:
        if self.fails is not None:
            raise self.fails
        self.turns.append(now_ms)
        self.outbox.flush()
        if self.touches is not None:
            self.loop.touch(self.touches)
        due_ms, self.due_ms = self.due_ms, math.inf
        return due_ms

    def ended(self, error: OSError | ReplicationError) -> None:
        self.error = error
        self.connection.close()

    def begin(self) -> None:
        self.loop.post(lambda: self.loop.add(self))


@pytest.fixture
def loop() -> Iterator[SocketLoop]:
    started = SocketLoop("loop")
    started.start()
    yield started
    started.stop(TIMEOUT_S)


@contextmanager
def pair(loop: SocketLoop) -> Iterator[tuple[socket.socket, socket.socket]]:
    """The loop ends before they are closed: it still has them."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs
        loop.stop(TIMEOUT_S)


@pytest.fixture
def connected(loop: SocketLoop) -> Iterator[tuple[Sink, socket.socket]]:
    with pair(loop) as (ours, theirs):
        sink = Sink(loop, ours)
        sink.begin()
        eventually(lambda: sink.turns, "its first turn")
        yield sink, theirs


def test_what_comes_is_read_and_a_turn_follows(connected: tuple[Sink, socket.socket]) -> None:
    sink, theirs = connected
    before = len(sink.turns)
    theirs.sendall(b"abc")
    eventually(lambda: sink.heard == b"abc" and len(sink.turns) > before, "it is read")


def test_what_is_posted_is_called_in_order_and_by_one_thread(loop: SocketLoop) -> None:
    called: list[tuple[int, str]] = []
    for number in range(1_000):
        loop.post(lambda number=number: called.append((number, threading.current_thread().name)))  # type: ignore[misc]
    eventually(lambda: len(called) == 1_000, "all are called")
    assert called == [(number, "loop") for number in range(1_000)]


def test_what_is_posted_by_many_wakes_it_every_time(loop: SocketLoop) -> None:
    """Each waits for its own before the next: one note that woke nobody would stop it."""

    def post() -> None:
        for _ in range(500):
            assert loop.call(lambda: None, TIMEOUT_S)

    threads = [threading.Thread(target=post) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert not any(thread.is_alive() for thread in threads)


def test_what_is_posted_together_does_not_wake_the_loop_each_time(
    loop: SocketLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_loop, "TOGETHER_S", TIMEOUT_S)
    woken: list[int] = []
    wake = os.eventfd_write

    def waking(number: int, value: int) -> None:
        woken.append(number)
        wake(number, value)

    monkeypatch.setattr(os, "eventfd_write", waking)
    called: list[int] = []
    with loop.together():
        for number in range(100):
            loop.post(partial(called.append, number))
        with loop.together():
            loop.post(partial(called.append, 100))
    eventually(lambda: len(called) == 101, "all are called")
    assert called == list(range(101)), "in order"
    assert len(woken) <= 2
    with loop.together():
        elsewhere = threading.Thread(target=lambda: loop.call(lambda: called.append(-1), TIMEOUT_S / 2))
        elsewhere.start()  # what other threads post is called at once
        elsewhere.join(TIMEOUT_S)
        assert called[-1] == -1
    with loop.together():
        pass
    loop.post(lambda: called.append(-2))
    eventually(lambda: called[-1] == -2, "after that each call wakes it again")


def test_who_waits_for_a_disk_within_holds_up_nothing_that_it_has_posted(loop: SocketLoop) -> None:
    called: list[int] = []
    with loop.together():
        for number in range(3):
            loop.post(partial(called.append, number))
        eventually(lambda: called == [0, 1, 2], "they are called meanwhile")
        loop.post(partial(called.append, 3))
        eventually(lambda: len(called) == 4, "and those that come later, too")


def test_who_calls_within_waits_for_what_it_has_posted_before(loop: SocketLoop) -> None:
    called: list[str] = []
    with loop.together():
        loop.post(lambda: called.append("posted"))
        assert loop.call(lambda: called.append("called"), TIMEOUT_S)
        assert called == ["posted", "called"]
        loop.post(lambda: called.append("posted again"))
    eventually(lambda: len(called) == 3, "it goes on as before")


def test_what_was_posted_together_comes_whatever_happens_within(loop: SocketLoop) -> None:
    called: list[str] = []
    with suppress(ZeroDivisionError), loop.together():
        loop.post(lambda: called.append("posted"))
        raise ZeroDivisionError
    eventually(lambda: called == ["posted"], "it is called")
    loop.post(lambda: called.append("later"))
    eventually(lambda: len(called) == 2, "no other call is kept")


def test_who_calls_waits_no_longer_than_it_says(loop: SocketLoop) -> None:
    free = threading.Event()

    def wait() -> None:
        free.wait(TIMEOUT_S)

    loop.post(wait)
    assert not loop.call(lambda: None, 0.01)
    free.set()
    assert loop.call(lambda: None, TIMEOUT_S)


def test_a_turn_comes_when_it_was_said_to_be_due(connected: tuple[Sink, socket.socket]) -> None:
    sink, _ = connected
    sink.due_ms = time.monotonic() * 1000 + 30
    wanted = sink.due_ms
    sink.loop.post(lambda: sink.loop.touch(sink))
    eventually(lambda: sink.turns[-1] >= wanted, "the turn that is due")
    taken = len(sink.turns)
    assert sink.loop.call(lambda: None, TIMEOUT_S)
    assert len(sink.turns) == taken, "and none after it, since nothing happens"


def test_who_is_touched_in_the_turn_of_another_has_one_too(loop: SocketLoop) -> None:
    """Its own may have been before, and nothing else may happen for long."""
    with pair(loop) as (ours, theirs):
        first, second = Sink(loop, ours), Sink(loop, theirs)
        first.touches = second
        second.begin()
        eventually(lambda: second.turns, "its first turn")
        first.begin()
        eventually(lambda: first.turns and len(second.turns) == 2, "its second one")
        assert loop.call(lambda: None, TIMEOUT_S)
        assert (len(first.turns), len(second.turns)) == (1, 2)


def test_who_touches_itself_in_its_turn_has_no_other(connected: tuple[Sink, socket.socket]) -> None:
    sink, _ = connected
    sink.touches = sink
    before = len(sink.turns)
    assert sink.loop.call(lambda: sink.loop.touch(sink), TIMEOUT_S)
    eventually(lambda: len(sink.turns) > before, "the turn")
    assert sink.loop.call(lambda: None, TIMEOUT_S)
    assert len(sink.turns) == before + 1


def test_a_timer_is_called_when_it_is_due(loop: SocketLoop) -> None:
    called: list[str] = []
    now_ms = time.monotonic() * 1000
    loop.post(lambda: loop.at(now_ms + 30, lambda: called.append("later")))
    loop.post(lambda: loop.at(now_ms + 10, lambda: called.append("sooner")))
    eventually(lambda: called == ["sooner", "later"], "both, in their order")
    assert time.monotonic() * 1000 >= now_ms + 30


def test_what_the_socket_does_not_take_goes_when_it_does(connected: tuple[Sink, socket.socket]) -> None:
    sink, theirs = connected
    sent = os.urandom(8 << 20)
    sink.loop.post(lambda: sink.outbox.put([sent]))
    sink.loop.post(lambda: sink.loop.touch(sink))
    eventually(lambda: 0 < len(sink.outbox._parts[0]) < len(sent) if sink.outbox._parts else False, "it is full")
    received = b""
    while len(received) < len(sent):
        received += theirs.recv(1 << 20)
    assert received == sent
    eventually(lambda: not sink.outbox, "nothing is left")
    turns = len(sink.turns)
    assert sink.loop.call(lambda: None, TIMEOUT_S)
    assert len(sink.turns) == turns, "nobody looks any longer whether it takes more"


def reads(sink: Sink, *, is_read: bool) -> None:
    """From its next turn on, which it has had then."""

    def change() -> None:
        sink.reads = is_read
        sink.loop.touch(sink)

    assert sink.loop.call(change, TIMEOUT_S)
    assert sink.loop.call(lambda: None, TIMEOUT_S)


def test_what_comes_while_nothing_is_read_is_read_later(connected: tuple[Sink, socket.socket]) -> None:
    sink, theirs = connected
    reads(sink, is_read=False)
    before = len(sink.turns)
    theirs.sendall(b"ab")
    with pair(sink.loop) as (ours, other_end):
        other = Sink(sink.loop, ours)
        other.begin()
        other_end.sendall(b"on")
        eventually(lambda: other.heard == b"on", "others are read meanwhile")
        assert (sink.heard, len(sink.turns)) == (b"", before)
        reads(sink, is_read=True)
        theirs.sendall(b"c")
        eventually(lambda: sink.heard == b"abc", "all of it, in order")


def test_who_reads_nothing_still_sends(connected: tuple[Sink, socket.socket]) -> None:
    sink, theirs = connected
    reads(sink, is_read=False)
    theirs.sendall(b"unread")
    sent = os.urandom(8 << 20)
    sink.loop.post(lambda: sink.outbox.put([sent]))
    sink.loop.post(lambda: sink.loop.touch(sink))
    received = b""
    while len(received) < len(sent):
        received += theirs.recv(1 << 20)
    assert received == sent
    eventually(lambda: not sink.outbox, "nothing is left")
    assert sink.heard == b""
    reads(sink, is_read=True)
    eventually(lambda: sink.heard == b"unread", "it was kept")


def test_who_begins_without_reading_reads_once_it_wants_to(loop: SocketLoop) -> None:
    """What has come before its first turn may be read."""
    with pair(loop) as (ours, theirs):
        sink = Sink(loop, ours)
        sink.reads = False
        sink.begin()
        eventually(lambda: sink.turns, "its first turn")
        theirs.sendall(b"abc")
        assert loop.call(lambda: None, TIMEOUT_S)
        assert sink.heard == b""
        reads(sink, is_read=True)
        eventually(lambda: sink.heard == b"abc", "it is read")


def test_a_peer_that_is_gone_is_noticed_though_nothing_is_read(connected: tuple[Sink, socket.socket]) -> None:
    sink, theirs = connected
    reads(sink, is_read=False)
    theirs.sendall(b"last words")
    theirs.close()
    eventually(lambda: sink.error is not None, "it has ended")
    assert isinstance(sink.error, BrokerNotAvailable)
    assert sink.heard == b"last words"


def test_a_connection_that_is_reset_is_noticed_though_nothing_is_read(loop: SocketLoop) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = socket.create_connection(listener.getsockname(), timeout=TIMEOUT_S)
        ours, _ = listener.accept()
    with ours, theirs:
        sink = Sink(loop, ours)
        sink.begin()
        eventually(lambda: sink.turns, "its first turn")
        reads(sink, is_read=False)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        theirs.close()
        eventually(lambda: sink.error is not None, "it has ended")
        assert isinstance(sink.error, ConnectionResetError)
        loop.stop(TIMEOUT_S)


def test_a_number_that_is_used_again_is_read_from(connected: tuple[Sink, socket.socket]) -> None:
    """By a connection that begins after one that was not read has ended."""
    sink, _ = connected
    reads(sink, is_read=False)
    number, loop = sink.number, sink.loop
    with pair(loop) as (ours, theirs):
        assert loop.call(lambda: loop.end(sink, BrokerNotAvailable("ended")), TIMEOUT_S)
        again = Sink(loop, socket.socket(fileno=os.dup2(ours.fileno(), number)))
        again.begin()
        theirs.sendall(b"abc")
        eventually(lambda: again.heard == b"abc", "it is read")
        loop.stop(TIMEOUT_S)
        again.connection.close()


@pytest.mark.parametrize("how", ["the peer closes", "a turn fails"])
def test_an_error_ends_its_own_connection_alone(connected: tuple[Sink, socket.socket], how: str) -> None:
    sink, theirs = connected
    with pair(sink.loop) as (ours, other_end):
        other = Sink(sink.loop, ours)
        other.begin()
        if how == "the peer closes":
            theirs.close()
        else:
            sink.fails = BrokerNotAvailable("silent")
            sink.loop.post(lambda: sink.loop.touch(sink))
        eventually(lambda: sink.error is not None, "it has ended")
        assert isinstance(sink.error, BrokerNotAvailable)
        other_end.sendall(b"on")
        eventually(lambda: other.heard == b"on", "the other one goes on")
        assert other.error is None


def test_a_connection_ends_once_and_what_was_to_come_for_it_does_not(connected: tuple[Sink, socket.socket]) -> None:
    sink, _ = connected
    loop, first = sink.loop, BrokerNotAvailable("first")

    def end() -> None:
        sink.due_ms = 0
        loop.touch(sink)
        loop.end(sink, first)
        loop.end(sink, BrokerNotAvailable("second"))

    assert loop.call(end, TIMEOUT_S)
    turns = len(sink.turns)
    assert loop.call(lambda: None, TIMEOUT_S)
    assert (sink.error, len(sink.turns)) == (first, turns)


def test_a_loop_that_was_stopped_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what is its own: other threads of this process open and close what is theirs."""
    closed, close = [], os.close

    def noted(number: int) -> None:
        closed.append(number)
        close(number)

    monkeypatch.setattr(os, "close", noted)
    loop = SocketLoop("loop")
    loop.start()
    loop.stop(TIMEOUT_S)
    assert loop._epoll.closed
    assert loop._wake in closed
    loop.post(lambda: pytest.fail("nobody calls this"))


def test_what_may_wait_is_done_aside_and_comes_back(loop: SocketLoop, connected: tuple[Sink, socket.socket]) -> None:
    aside = Aside(loop, 2, name="aside")
    aside.start()
    free = threading.Event()
    came: list[tuple[str, str, str]] = []

    def work(name: str, waits: Callable[[], object]) -> str:
        waits()
        return f"{name} by {threading.current_thread().name}"

    def then(result: str | ReplicationError) -> None:
        came.append((*str(result).split(" by "), threading.current_thread().name))  # type: ignore[arg-type]

    sink, _ = connected
    aside.do(sink, lambda: work("slow", lambda: free.wait(TIMEOUT_S)), then)
    aside.do(sink, lambda: work("quick", lambda: None), then)
    eventually(lambda: came == [("quick", "aside", "loop")], "it waits for nobody else's disk")
    free.set()
    eventually(lambda: len(came) == 2, "both")
    aside.stop(TIMEOUT_S)


def test_an_error_that_nobody_expected_ends_its_connection_alone(
    loop: SocketLoop, connected: tuple[Sink, socket.socket]
) -> None:
    sink, theirs = connected
    other_end, of_another = socket.socketpair()
    with other_end, of_another:
        other = Sink(loop, other_end)
        other.begin()
        sink.fails = KeyError(21)
        theirs.sendall(b"abc")
        eventually(lambda: sink.error is not None, "it has ended")
        assert isinstance(sink.error, ReplicationError)
        assert "this connection ended by an error that nobody expected, KeyError(21)" in str(sink.error)
        assert not sink.error.retriable
        of_another.sendall(b"def")
        eventually(lambda: other.heard == b"def", "others go on")
        loop.stop(TIMEOUT_S)


def fails(error: Exception) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise error

    return fail


@pytest.fixture
def aside(loop: SocketLoop) -> Iterator[Aside]:
    found = Aside(loop, 1, name="aside")
    found.start()
    yield found
    found.stop(TIMEOUT_S)


@pytest.mark.parametrize("error", [KeyError(21), BrokerNotAvailable("a reason")])
def test_an_error_of_work_aside_is_what_came_of_it(
    aside: Aside, connected: tuple[Sink, socket.socket], error: Exception
) -> None:
    sink, _ = connected
    came: list[object] = []
    for work in (fails(error), lambda: "done"):
        aside.of(sink).do(work, came.append)
    eventually(lambda: len(came) == 2, "its thread goes on")
    assert isinstance(came[0], ReplicationError)
    assert (came[0] is error) == isinstance(error, ReplicationError)
    assert (came[1], sink.error) == ("done", None)


def test_who_fails_by_what_came_from_aside_ends_alone(
    loop: SocketLoop, aside: Aside, connected: tuple[Sink, socket.socket]
) -> None:
    sink, _ = connected
    aside.do(sink, lambda: None, fails(KeyError(21)))
    eventually(lambda: sink.error is not None, "it has ended")
    came: list[object] = []
    aside.do(sink, lambda: "late", came.append)
    eventually(lambda: came == ["late"], "whoever has ended has something to give back, perhaps")
    aside.do(sink, lambda: None, fails(KeyError(21)))
    assert loop.call(lambda: None, TIMEOUT_S), "others go on"


@UNHANDLED
def test_an_error_of_work_aside_with_a_partition_in_hand_is_raised_by_its_thread(
    aside: Aside, connected: tuple[Sink, socket.socket]
) -> None:
    """Which ends a broker's process (threading.excepthook)."""
    half_done = KeyError(21)
    half_done.add_note(HALF_DONE)
    came: list[object] = []
    aside.do(connected[0], fails(half_done), came.append)
    eventually(lambda: not aside._threads[0].is_alive(), "its thread has ended")
    assert came == []


def test_who_fails_at_its_end_ends_alone(loop: SocketLoop, connected: tuple[Sink, socket.socket]) -> None:
    sink, theirs = connected
    sink.ended = fails(KeyError(21))  # type: ignore[method-assign]
    theirs.close()
    eventually(lambda: not loop._connections, "it has ended")
    assert loop.call(lambda: None, TIMEOUT_S), "others go on"


def test_who_cannot_be_looked_after_has_ended(loop: SocketLoop) -> None:
    with pair(loop) as (ours, _):
        sink = Sink(loop, ours)
        ours.close()
        added: list[bool] = []
        assert loop.call(lambda: added.append(loop.add(sink)), TIMEOUT_S)
        assert added == [False]
        assert isinstance(sink.error, OSError)


@UNHANDLED
@pytest.mark.parametrize("at", ["its end", "its turn"])
def test_an_error_with_a_partition_in_hand_ends_the_loop(at: str) -> None:
    told: list[BaseException] = []
    loop = SocketLoop("loop", failed=told.append)
    loop.start()
    half_done = KeyError(21)
    half_done.add_note(HALF_DONE)
    with pair(loop) as (ours, theirs):
        sink = Sink(loop, ours)
        sink.fails = half_done if at == "its turn" else BrokerNotAvailable("over")
        if at == "its end":
            sink.ended = fails(half_done)  # type: ignore[method-assign]
        sink.begin()
        eventually(lambda: told == [half_done], "half a broker would be worse than none")
        assert sink.error is None
        loop.stop(TIMEOUT_S)  # its thread has ended before this test does: pytest hears of its error
        del theirs


@UNHANDLED
@pytest.mark.parametrize("error", [KeyError(21), SystemExit(1)])
def test_a_loop_that_an_error_ends_tells_who_made_it_and_who_waits_for_it(error: BaseException) -> None:
    told: list[BaseException] = []
    loop = SocketLoop("loop", failed=told.append)
    loop.start()
    called = threading.Event()
    answers: list[bool] = []

    def fail() -> None:
        assert called.wait(TIMEOUT_S)
        raise error

    loop.post(fail)
    waiting = threading.Thread(target=lambda: answers.append(loop.call(lambda: None, 1_000)))
    waiting.start()
    eventually(lambda: loop._callers, "it waits")
    called.set()
    waiting.join(TIMEOUT_S)
    assert answers == [False]
    assert told == [error]
    assert not loop.call(lambda: None, 1_000), "and nobody who comes later waits"
    loop.stop(TIMEOUT_S)

"""One thread for all replication connections of a broker. It waits for them with epoll, and calls their owners.

Rules:
- A connection belongs to the loop from the end of its handshake on: no other thread reads from it, or writes to it.
- Nothing that is called here waits for a peer. Handshakes, look-ups and all else that may wait are done by other
  threads, which post their results.
- What has come over a connection is taken for a moment at a time (transport.sockets.taking): others have their turns.
- An error of a connection, even one that nobody expected, ends that connection and nothing else (W1). An error with a
  partition in hand ends the loop (engine.replica.partition.is_half_done). So does one of what was posted, unless it was
  posted for a connection, to be performed.
- A loop that an error ends tells whoever made it, and nobody waits for it any more.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
import math
import os
import select
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

from spark_replication.engine.replica.partition import is_half_done
from spark_replication.errors import ReplicationError, mistake
from spark_replication.process.logs import log_mistake
from spark_replication.transport.sockets.frames import Channel, Outbox

# How often the loop looks for calls while a thread posts within `together`.
TOGETHER_S = 0.01

log = logging.getLogger(__name__)


def loop_ms() -> float:
    """The time by which loops set their timers: it never goes back."""
    return time.monotonic() * 1000


class Connected(ABC):
    """A connection that the loop looks after."""

    #: While this is False after a turn, nothing is read.
    reads = True

    def __init__(self, channel: Channel) -> None:
        self.number = channel.fileno()  # names it until it has ended
        #: While anything is left in it, the connection has a turn whenever the socket takes more.
        self.outbox = Outbox(channel)

    @abstractmethod
    def came(self) -> None:
        """There are bytes to be read."""

    @abstractmethod
    def turn(self, now_ms: float) -> float:
        """Do what is due. Returns when the next turn is due, if nothing happens until then."""

    @abstractmethod
    def ended(self, error: OSError | ReplicationError) -> None:
        """The loop no longer looks after it."""


class _This(threading.local):
    """What is known of the thread that asks."""

    is_within = False  # SocketLoop.together


class SocketLoop:
    """`post`, `together` and `call` are for any thread, everything else for what the loop calls."""

    def __init__(self, name: str, *, failed: Callable[[BaseException], None] = lambda _error: None) -> None:
        """failed: called by its thread if an error ends it. Then threading.excepthook has the error."""
        self._failed = failed
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._wake, select.EPOLLIN)
        #: Bounded by what may be posted: a note for each partition and follower, each connection, each look-up.
        self._posted: deque[Callable[[], object]] = deque()
        self._awake = False  # True: whoever posts need not wake the loop
        self._this_thread = _This()
        self._within = 0  # threads within `together`
        self._entering = threading.Lock()  # guards that number
        self._stopped = False
        self._is_over = False
        self._callers: set[threading.Event] = set()  # who waits in `call`
        self._connections: dict[int, Connected] = {}
        self._touched: dict[int, None] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []  # a heap; the number orders equal times
        self._timers_set = 0
        self._due: dict[int, float] = {}  # when a connection's next turn comes by a timer
        #: What each connection waits for, if that is not what it began with.
        self._waits_for: dict[int, int] = {}
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """End the thread. Calls that are posted after this are not made."""
        self.post(self._stop)
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def post(self, call: Callable[[], object]) -> None:
        self._posted.append(call)
        if not self._awake and not self._this_thread.is_within:
            self._wake_up()

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """What this thread posts within does not wake the loop, which looks for it every TOGETHER_S, and at the end.
        Otherwise a thread that posts thousands of calls, and the loop, which is done with each of them at once, would
        change places at each call: that took three times as long. The thread may wait within, for a disk say."""
        this = self._this_thread
        if this.is_within:
            yield
            return
        this.is_within = True
        self._enter(1)
        try:
            yield
        finally:
            this.is_within = False
            self._enter(-1)

    def _enter(self, count: int) -> None:
        with self._entering:
            self._within += count
        self._wake_up()

    def _wake_up(self) -> None:
        if not self._awake:
            self._awake = True
            with contextlib.suppress(OSError):  # the loop has stopped
                os.eventfd_write(self._wake, 1)

    def call(self, call: Callable[[], None], timeout_s: float) -> bool:
        """Post the call and wait for it. The caller holds nothing that the loop may wait for. Returns whether it was
        made in time: it is not made where the loop has ended."""
        done = threading.Event()
        is_made = False

        def called() -> None:
            nonlocal is_made
            call()
            is_made = True
            done.set()

        self._callers.add(done)
        self._posted.append(called)
        self._wake_up()
        if not self._is_over:  # looked at after `done` was added: the loop's end sees one or the other
            done.wait(timeout_s)
        self._callers.discard(done)
        return is_made

    # On its thread.

    def add(self, connection: Connected) -> bool:
        """Look after it from now on. Returns False if that cannot be done: then it has ended."""
        try:
            self._epoll.register(connection.number, select.EPOLLIN)
        except OSError as error:
            self._end(connection, error)
            return False
        self._connections[connection.number] = connection
        self.touch(connection)
        return True

    def at(self, due_ms: float, call: Callable[[], None]) -> None:
        """Make the call at `due_ms`, by time.monotonic."""
        self._timers_set += 1
        heapq.heappush(self._timers, (due_ms, self._timers_set, call))

    def touch(self, connection: Connected) -> None:
        """Give it a turn soon. Within its own turn this does nothing: a turn looks at everything anyway."""
        self._touched[connection.number] = None

    def end(self, connection: Connected, error: OSError | ReplicationError) -> None:
        number = connection.number
        if self._connections.get(number) is not connection:
            return
        del self._connections[number]
        self._epoll.unregister(number)
        self._touched.pop(number, None)
        self._due.pop(number, None)
        self._waits_for.pop(number, None)
        self._end(connection, error)

    def _end(self, connection: Connected, error: OSError | ReplicationError) -> None:
        try:
            connection.ended(error)
        except Exception as mistaken:
            if is_half_done(mistaken):
                raise
            log_mistake(log, mistaken, "the end of a connection failed")

    def _stop(self) -> None:
        self._stopped = True

    def _run(self) -> None:
        try:
            while not self._stopped:
                self._step()
        except BaseException as error:
            self._failed(error)
            raise
        finally:
            self._is_over = True
            for done in tuple(self._callers):
                done.set()
            self._awake = True  # so that nobody writes to the closed descriptor
            self._epoll.close()
            os.close(self._wake)

    def _step(self) -> None:
        self._awake = False
        happened = self._epoll.poll(0 if self._posted or self._touched else self._wait_s())
        self._awake = True
        for number, events in happened:
            if number == self._wake:
                os.eventfd_read(self._wake)
            elif (connection := self._connections.get(number)) is not None:
                self._touched[number] = None
                if events & ~select.EPOLLOUT:  # a failed connection is read, too: the read raises the error
                    self.perform(connection, connection.came)
        for _ in range(len(self._posted)):
            self._posted.popleft()()
        now_ms = loop_ms()
        while self._timers and self._timers[0][0] <= now_ms:
            heapq.heappop(self._timers)[2]()
        touched, self._touched = self._touched, {}
        for number in touched:
            if (connection := self._connections.get(number)) is not None:
                self._turn(connection, now_ms)

    def _wait_s(self) -> float:
        """How long to wait for the next timer, or for what is posted together; -1, for ever, if there is neither."""
        wait_s = TOGETHER_S if self._within else math.inf
        if self._timers:
            wait_s = min(wait_s, max(0.0, self._timers[0][0] / 1000 - time.monotonic()))
        return -1 if wait_s == math.inf else wait_s

    def _turn(self, connection: Connected, now_ms: float) -> None:
        number = connection.number
        try:
            due_ms = connection.turn(now_ms)
            self._touched.pop(number, None)  # its turn has seen whatever happened to it meanwhile
            if due_ms < self._due.get(number, math.inf):
                self._due[number] = due_ms
                self.at(due_ms, partial(self._turn_is_due, connection))
            # A peer that closes is noticed, even if nothing is read from it.
            waits_for = select.EPOLLIN if connection.reads else select.EPOLLRDHUP
            if connection.outbox:
                waits_for |= select.EPOLLOUT
            if waits_for != self._waits_for.get(number, select.EPOLLIN):
                self._waits_for[number] = waits_for
                self._epoll.modify(number, waits_for)
        except Exception as error:  # noqa: BLE001 (it ends the connection, or the loop)
            self._failed_in(connection, error)

    def _turn_is_due(self, connection: Connected) -> None:
        if self._connections.get(connection.number) is connection:
            self._due.pop(connection.number, None)
            self.touch(connection)

    def perform(self, connection: Connected, perform: Callable[[], None]) -> None:
        """Make a call for this connection. An error of the call ends the connection."""
        try:
            perform()
        except Exception as error:  # noqa: BLE001 (as above)
            self._failed_in(connection, error)

    def _failed_in(self, connection: Connected, error: Exception) -> None:
        """Called where the error is handled."""
        if isinstance(error, OSError | ReplicationError):
            self.end(connection, error)
            return
        if is_half_done(error):
            raise error
        log_mistake(log, error, "a connection ends")
        self.end(connection, mistake(error, "this connection"))

"""A consumer's connection to whoever coordinates its group: does what engine.client.coordinator_search and
engine.client.membership say.

A loop of its own carries requests, answers and news. Finding the coordinator and connecting may wait, so another thread
does it each time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial

from spark_replication.client.asking.groups import coordinator_of
from spark_replication.client.finding.connecting import opened
from spark_replication.client.finding.deadline import Deadline
from spark_replication.client.finding.routes import Routes
from spark_replication.core.routing import Route
from spark_replication.decoding import error_of
from spark_replication.engine.client.coordinator_search import CoordinatorSearch
from spark_replication.engine.client.membership import Membership
from spark_replication.errors import (
    BrokerNotAvailable,
    InvalidRequest,
    ReplicationError,
    mistake,
)
from spark_replication.messages.groups import GroupAnswerFrame, GroupNewsFrame
from spark_replication.messages.lane import ThrottledFrame
from spark_replication.messages.replication import ErrorFrame
from spark_replication.transport.sockets.frames import Channel, FrameReceiver, encoded
from spark_replication.transport.sockets.socket_loop import Connected, SocketLoop

ANSWER_BYTES_MAX = 64 << 20  # of one frame: news of 100,000 partitions
FIND_MS = 5_000  # of one attempt
STOP_S = 2.0

log = logging.getLogger(__name__)


class CoordinatorLink:
    """What has no other comment is for the loop alone. `lock` guards the membership, which whoever uses the consumer
    changes, too."""

    def __init__(
        self,
        routes: Routes,
        membership: Membership,
        lock: threading.Condition,
        changed: Callable[[], None],
        failed: Callable[[ReplicationError], None],
    ) -> None:
        """changed: called with the lock after each event. failed: called with it, too, if nobody is found who
        coordinates, and a retry may not help."""
        self._routes = routes
        self._membership = membership
        self._lock = lock
        self._changed = changed
        self._failed = failed
        self._loop = SocketLoop("consumer-loop", failed=lambda error: self._give_up(mistake(error, "this consumer")))
        self._search = CoordinatorSearch()
        self._connection: CoordinatorConnection | None = None
        #: Whoever was found last. For the attempt that is under way.
        self._route: Route | None = None
        self._is_closed = False

    # From any thread.

    def start(self) -> None:
        self._loop.start()
        self._loop.post(self._look)

    def look(self) -> None:
        """The membership may have something to say."""
        self._loop.post(self._look)

    def close(self) -> None:
        self._loop.post(self._close)
        self._loop.stop(STOP_S)

    # On the loop.

    def _close(self) -> None:
        self._is_closed = True
        if self._connection is not None:
            self._loop.end(self._connection, BrokerNotAvailable("the consumer is closed"))

    def _look(self) -> None:
        if self._connection is not None:
            self._loop.touch(self._connection)
        elif not self._is_closed and self._search.begins(time.monotonic()):
            threading.Thread(target=self._connect, name="consumer-connects", daemon=True).start()

    def _connect(self) -> None:
        """On a thread of its own."""
        try:
            if self._search.doubts_route and self._route is not None:
                self._routes.stale(self._route)
            self._route = coordinator_of(self._routes, self._membership.group, Deadline(FIND_MS))
            found = opened(
                self._route.host,
                self._route.replication_port,
                self._routes.security,
                joins=True,
                frame_bytes_max=ANSWER_BYTES_MAX,
            )
            found.channel.setblocking(False)
        except (OSError, ReplicationError) as error:
            self._loop.post(partial(self._not_connected, error))
        except BaseException as error:
            self._loop.post(partial(self._not_connected, mistake(error, "this consumer")))
            raise
        else:
            self._loop.post(partial(self._connected, found.channel, found.receiver))

    def _not_connected(self, error: OSError | ReplicationError) -> None:
        log.info("nobody coordinates group %s at present: %s", self._membership.group, error)
        self._look_again(error)

    def _look_again(self, error: OSError | ReplicationError) -> None:
        self._search.failed(error, time.monotonic())
        if self._search.error is not None:
            self._give_up(self._search.error)
        else:
            self._loop.at(self._search.due_s * 1_000, self._look)

    def _give_up(self, error: ReplicationError) -> None:
        with self._lock:
            self._failed(error)
            self._changed()

    def _connected(self, channel: Channel, receiver: FrameReceiver) -> None:
        if self._is_closed:
            channel.close()
            return
        self._search.connected()
        connection = CoordinatorConnection(self, channel, receiver)
        with self._lock:
            self._membership.connected(time.monotonic())
        if self._loop.add(connection):
            self._connection = connection

    def take(self, connection: CoordinatorConnection) -> None:
        frames = connection.receiver.receive()
        with self._lock:
            for frame, _ in frames:
                match frame:
                    case GroupAnswerFrame():
                        self._membership.answered(frame.number, frame.told, time.monotonic())
                    case GroupNewsFrame():
                        self._membership.news(frame.news)
                    case ThrottledFrame():
                        self._membership.held_back(time.monotonic() + frame.ms / 1_000)
                    case ErrorFrame():
                        raise error_of(frame.error, frame.message)
                    case _:
                        raise InvalidRequest(f"a coordinator answers and has news, and sends no {type(frame).__name__}")
            self._changed()

    def say(self, connection: CoordinatorConnection) -> float:
        """Returns when to look again, in s."""
        now_s = time.monotonic()
        with self._lock:
            frames, due_s = self._membership.frames(now_s), self._membership.due_s(now_s)
            has_lost, is_over = self._membership.has_lost_coordinator, self._membership.is_over
            if is_over:
                self._changed()
        for frame in frames:
            connection.outbox.put(encoded(frame))
        connection.outbox.flush()
        if has_lost:
            raise BrokerNotAvailable("another broker coordinates the group, or this one does not answer")
        return due_s

    def ended(self, connection: CoordinatorConnection, error: OSError | ReplicationError) -> None:
        if self._connection is connection:
            self._connection = None
        log.info("the connection to the coordinator of group %s ended: %s", self._membership.group, error)
        with self._lock:
            self._membership.disconnected(time.monotonic())
            self._changed()
        if not self._is_closed:
            self._look_again(error)


class CoordinatorConnection(Connected):
    def __init__(self, link: CoordinatorLink, channel: Channel, receiver: FrameReceiver) -> None:
        super().__init__(channel)
        self.receiver = receiver
        self._link = link
        self._channel = channel

    def came(self) -> None:
        self._link.take(self)

    def turn(self, _now_ms: float) -> float:
        return self._link.say(self) * 1_000

    def ended(self, error: OSError | ReplicationError) -> None:
        self._channel.close()
        self._link.ended(self, error)

"""The connections of a producer, one to each leader that it writes to.

One loop of the producer asks the lanes' owners for batches, in turn, sends them, and hands the answers to the owners:
many small batches go in one call. A connection lives until no lane has been on it for IDLE_S, it breaks, or an owner
finds it silent for too long. The loop calls owners without holding any lock.
"""

from __future__ import annotations

import heapq
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import pyarrow as pa

from spark_replication.client.finding.connecting import opened
from spark_replication.core.routing import Route
from spark_replication.decoding import error_of
from spark_replication.engine.client.lanes import AT_ONCE, Lane, LeaderStreams, Outgoing, Owner
from spark_replication.errors import (
    BatchTooLarge,
    BrokerNotAvailable,
    ClientClosed,
    InvalidRequest,
    ReplicationError,
    mistake,
)
from spark_replication.messages.lane import (
    STREAMS_MAX,
    PutAnswer,
    PutAnswersFrame,
    PutFrame,
    ThrottledFrame,
    WelcomeFrame,
)
from spark_replication.messages.replication import ErrorFrame
from spark_replication.storage.format.batches import schema_to_bytes, serialized
from spark_replication.transport.security.security import Security
from spark_replication.transport.sockets.frames import Buffer, Channel, FrameReceiver, encoded
from spark_replication.transport.sockets.socket_loop import Connected, SocketLoop

IDLE_S = 10.0  # whoever leaves a lane, because of a refusal say, soon takes another
SEND_BYTES = 1 << 20  # several batches go in one call, as long as they are small
ANSWER_BYTES_MAX = 4 << 20  # of one frame: some 5,000 answers, each with an error
# A broker that says how long it waits may say so again this much later.
TOLD_AGAIN_S = 1.0
CLOSED = "this producer is closed: open another"


class LeaderLink:
    """The connection to one leader. What has no other comment is for the loop alone."""

    def __init__(self, loop: SocketLoop, route: Route, security: Security) -> None:
        self._loop = loop
        self._security = security
        self._host = route.host
        self._port = route.replication_port
        self._lanes: dict[Lane, None] = {}
        self._empty_since_s = 0.0
        self._connection: LeaderConnection | None = None
        self.is_connecting = False  # or has connected
        #: Lanes and when to ask their owners, as any thread leaves them here.
        self._asked: deque[tuple[float, Lane]] = deque()
        self._is_woken = False  # True: the connection's turn comes, and looks at what was asked
        #: A heap of lanes whose time has not come.
        self._later: list[tuple[float, int, Lane]] = []
        self._count = 0
        #: For any thread: whether lanes can no longer enter.
        self.over = False
        #: For any thread to read.
        self.heard_s = 0.0
        #: Why the leader reads nothing from this connection, and until when. For any thread to read.
        self.throttled = "", 0.0

    # From any thread.

    def waits_for(self, now_s: float) -> str:
        why, until_s = self.throttled
        return why if now_s < until_s else ""

    def enter(self, lane: Lane) -> None:
        self._loop.post(partial(self._enter, lane))

    def leave(self, lane: Lane) -> None:
        self._loop.post(partial(self._leave, lane))

    def ask_at(self, at_s: float, lane: Lane) -> None:
        self._asked.append((at_s, lane))
        if not self._is_woken:
            self._is_woken = True
            self._loop.post(self._wake)

    def abandon(self, why: str) -> None:
        self._loop.post(partial(self.end, BrokerNotAvailable(f"{why}: reload routes and retry", maybe_written=True)))

    # On the loop.

    def _enter(self, lane: Lane) -> None:
        if self.over:
            lane.owner.ended(lane, BrokerNotAvailable(f"the connection to {self._name} has ended: retry"))
            return
        self._lanes[lane] = None
        self.ask_at(AT_ONCE, lane)  # a turn may have found its question before it was here
        if not self.is_connecting:
            self.is_connecting = True
            connecting = threading.Thread(target=self._connect, name="producer-connects", daemon=True)
            try:
                connecting.start()
            except RuntimeError as error:  # the process may have no more threads
                self.end(BrokerNotAvailable(f"no thread to connect: {error}"))

    def _leave(self, lane: Lane) -> None:
        self._lanes.pop(lane, None)
        if not self._lanes:
            self._empty_since_s = time.monotonic()
            self._loop.at((self._empty_since_s + IDLE_S) * 1_000, self._end_if_idle)

    def _end_if_idle(self) -> None:
        if not self._lanes and time.monotonic() >= self._empty_since_s + IDLE_S:
            self.end(BrokerNotAvailable("nobody sends over it"))

    def end(self, error: OSError | ReplicationError) -> None:
        if self._connection is not None:
            self._loop.end(self._connection, error)
        else:
            self.ended(error)

    def ended(self, error: OSError | ReplicationError) -> None:
        self.over = True
        self._connection = None
        reason = self._reason(error)
        lanes, self._lanes = self._lanes, {}
        for lane in lanes:
            lane.owner.ended(lane, reason)

    def _reason(self, error: OSError | ReplicationError) -> ReplicationError:
        if isinstance(error, OSError):
            return BrokerNotAvailable(f"the connection to {self._name} broke: {error}", maybe_written=True)
        return error

    @property
    def _name(self) -> str:
        return f"{self._host}:{self._port}"

    def _connect(self) -> None:
        """On a thread of its own."""
        try:
            channel, receiver, welcome = opened(
                self._host, self._port, self._security, reads=False, frame_bytes_max=ANSWER_BYTES_MAX
            )
            channel.setblocking(False)
        except (OSError, ReplicationError) as error:
            self._loop.post(partial(self.end, error))
            return
        except BaseException as error:
            self._loop.post(partial(self.end, mistake(error, f"the connection to {self._name}")))
            raise
        self._loop.post(partial(self._connected, channel, receiver, welcome))

    def _connected(self, channel: Channel, receiver: FrameReceiver, welcome: WelcomeFrame) -> None:
        if self.over:
            channel.close()
            return
        self._connection = LeaderConnection(self, channel, receiver, welcome)
        self._loop.add(self._connection)

    def _wake(self) -> None:
        if self._connection is not None:
            self._loop.touch(self._connection)

    def next_lane(self) -> Lane | None:
        """The next lane whose time has come. After None, the next question wakes the connection."""
        while True:
            now_s = time.monotonic()
            while self._asked:
                at_s, lane = self._asked.popleft()
                if at_s <= now_s:
                    return lane
                self._count += 1
                heapq.heappush(self._later, (at_s, self._count, lane))
            if self._later and self._later[0][0] <= now_s:
                return heapq.heappop(self._later)[2]
            self._is_woken = False
            if not self._asked:  # looked at after that: a question that was asked before it wakes nobody
                return None
            self._is_woken = True

    @property
    def next_at_ms(self) -> float:
        """When the time of the next lane comes, by time.monotonic."""
        return self._later[0][0] * 1000 if self._later else math.inf

    def has(self, lane: Lane) -> bool:
        return lane in self._lanes

    def no_more_streams(self) -> None:
        self.over = True


class LeaderConnection(Connected):
    """After the handshake."""

    def __init__(self, link: LeaderLink, channel: Channel, receiver: FrameReceiver, welcome: WelcomeFrame) -> None:
        super().__init__(channel)
        self._link = link
        self._channel = channel
        self._receiver = receiver
        self._batch_bytes_max = welcome.batch_bytes_max
        self._streams = LeaderStreams()
        #: Answers that this side gives, after the turn: an owner is not called within a call of it.
        self._refused: list[PutAnswer] = []

    # Batches

    def turn(self, now_ms: float) -> float:
        is_sent = self.outbox.flush()
        while is_sent and self._collect():
            is_sent = self.outbox.flush()
        if self._refused:
            refused, self._refused = self._refused, []
            self._hand_on(refused)
        return self._link.next_at_ms if is_sent else math.inf

    def _collect(self) -> bool:
        """Put batches that are to be sent now into the outbox, as many as go in one call. False if there are none."""
        collected = 0
        while collected < SEND_BYTES:
            lane = self._link.next_lane()
            if lane is None:
                break
            if self._link.has(lane):
                collected += self._send_next(lane)
        return collected > 0

    def _send_next(self, lane: Lane) -> int:
        """Return how many bytes it takes."""
        stream = self._stream(lane)
        if stream is None:
            self._link.leave(lane)
            lane.owner.ended(lane, BrokerNotAvailable(f"{STREAMS_MAX} streams are open over this connection: retry"))
            return 0
        outgoing = lane.owner.next_batch(lane)
        if outgoing is None:
            return 0
        number = self._streams.sends(lane)
        try:
            parts, size = self._put(stream, number, outgoing)
        except Exception as error:  # noqa: BLE001 (memory may be short, or a column be one that Arrow cannot write)
            refused = error if isinstance(error, ReplicationError) else _unwritable(error)
            self._refused.append(_refusal(number, refused))
            return 0
        self.outbox.put(parts)
        return size

    def _put(self, stream: int, number: int, outgoing: Outgoing) -> tuple[list[Buffer], int]:
        """The frame of a batch, and how many bytes the batch takes."""
        sends = outgoing.sends
        batch = sends[0] if len(sends) == 1 else pa.concat_batches(sends)
        message, crc = serialized(batch)
        size = len(message)
        if size > self._batch_bytes_max:
            raise BatchTooLarge(
                f"a batch of {batch.num_rows} rows takes {size} bytes, over batch.bytes.max={self._batch_bytes_max}: "
                "split it"
            )
        return encoded(PutFrame(stream=stream, number=number, crc=crc, batch=outgoing.metadata), message), size

    def _stream(self, lane: Lane) -> int | None:
        """The stream of the lane's topic and schema. None: there are too many, and no lane can enter any more."""
        found = self._streams.stream(lane)
        if found is None:
            self._link.no_more_streams()
            return None
        stream, opening = found
        if opening is not None:
            self.outbox.put(encoded(opening, schema_to_bytes(lane.kind)))
        return stream

    # Answers

    def came(self) -> None:
        frames = self._receiver.receive()
        self._link.heard_s = time.monotonic()
        for frame, _ in frames:
            match frame:
                case PutAnswersFrame(answers=answers):
                    self._hand_on(answers)
                case ThrottledFrame(ms=ms, quota=quota):
                    self._link.throttled = (
                        f"the broker waits, since this client's principal takes more than its quota {quota}",
                        self._link.heard_s + ms / 1000 + TOLD_AGAIN_S,
                    )
                case ErrorFrame(error=error, message=message):
                    raise error_of(error, message)
                case _:
                    raise InvalidRequest(f"a broker answers batches, and does not send {type(frame).__name__}")

    def _hand_on(self, answers: Sequence[PutAnswer]) -> None:
        for lane, found in self._streams.answered(answers):
            if self._link.has(lane):
                lane.owner.answered(lane, found)

    def ended(self, error: OSError | ReplicationError) -> None:
        self._receiver.free()
        self._channel.close()
        self._link.ended(error)


def _unwritable(error: Exception) -> InvalidRequest:
    return InvalidRequest(f"the batch cannot be written as Arrow IPC: {error!r}")


def _refusal(number: int, error: ReplicationError) -> PutAnswer:
    return PutAnswer(number=number, error=error.code, message=error.message)


class LeaderLinks:
    """The connections of a producer."""

    def __init__(self, security: Security, failed: Callable[[ReplicationError], None] = lambda _error: None) -> None:
        """failed: called if an error that nobody expected ends the loop, and with it all lanes and all calls that it
        was to make. The next lane or call has another loop."""
        self._security = security
        self._failed = failed
        self._lock = threading.Lock()
        self._loop: SocketLoop | None = None
        self._links: dict[tuple[str, int], LeaderLink] = {}
        self._is_closed = False

    def lane(self, route: Route, schema: pa.Schema, *, epoch: int, owner: Owner) -> Lane:
        """Return a lane to the route's leader, over the present connection or a new one. The owner calls this under the
        lock that its own methods take: otherwise it could learn of the lane's end before it has the lane. ClientClosed
        after `close`."""
        key = (route.address, route.replication_port)
        with self._lock:
            link = self._links.get(key)
            if link is None or link.over:
                # Forget connections that have ended: brokers that restart have new addresses.
                self._links = {each: found for each, found in self._links.items() if not found.over}
                link = self._links[key] = LeaderLink(self._running(), route, self._security)
        lane = Lane(link, route, schema, epoch, owner)
        link.enter(lane)
        return lane

    def at(self, at_s: float, call: Callable[[], None]) -> None:
        """Have the loop make this call at this time, by time.monotonic. After `close`, it is not made."""
        with self._lock:
            if self._is_closed:
                return
            loop = self._running()
        loop.post(partial(loop.at, at_s * 1_000, call))

    def _running(self) -> SocketLoop:
        if self._is_closed:
            raise ClientClosed(CLOSED)
        if self._loop is None:
            self._loop = SocketLoop("producer", failed=self._loop_failed)
            self._loop.start()
        return self._loop

    def _loop_failed(self, error: BaseException) -> None:
        """On that loop."""
        with self._lock:
            self._loop = None
            links, self._links = list(self._links.values()), {}
        why = mistake(error, "the producer's thread")
        self._failed(why)
        for link in links:
            link.end(why)

    def close(self, timeout_s: float) -> None:
        """End all connections, and all lanes with them."""
        with self._lock:
            self._is_closed = True
            loop, self._loop = self._loop, None
            links = list(self._links.values())
        if loop is None:
            return

        def end_all() -> None:
            for link in links:
                link.end(ClientClosed(CLOSED, maybe_written=True))

        loop.call(end_all, timeout_s)
        loop.stop(timeout_s)

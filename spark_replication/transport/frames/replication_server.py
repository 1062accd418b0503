"""Replication, the leader's side: a follower connects, says who it is, and fetches all it follows over one connection.
Producers and readers connect here, too (transport.frames.client_connection).

One thread accepts connections, and another shakes hands with each newcomer. After that the connection is the loop's,
which reads fetches and sends answers. engine.ends.fetch_session decides who is answered, and when. An answer is made
once the socket has taken the one before, so a slow follower costs no memory.

Rules:
- The loop never waits for a partition that another thread has (engine.replica.partition).
- A follower whose fetch finds something new at once is behind: its answers are some time apart, so that each has
  several batches, and further apart in a flood. A follower that waits at the log end is answered at once.
- A mistake of a peer ends its own connection, with an ErrorFrame that says why, and nothing else.
"""

from __future__ import annotations

import contextlib
import logging
import math
import socket
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TypeGuard

from spark_replication.engine.ends.fetch_session import FetchAnswer, FollowerConnections, LeaderEnd, checked, loaded
from spark_replication.engine.groups.coordinators import Coordinators
from spark_replication.errors import (
    BrokerNotAvailable,
    InvalidRequest,
    MisroutedCall,
    Overloaded,
    ReplicationError,
    StartFailed,
    WrongCluster,
    mistake,
)
from spark_replication.messages.acls import Need
from spark_replication.messages.envelope import NONE
from spark_replication.messages.lane import ClientFrame, WelcomeFrame
from spark_replication.messages.replication import (
    ALIVE_FRAME,
    ErrorFrame,
    FetchedFrame,
    FetchFrame,
    FetchPartition,
    HelloFrame,
)
from spark_replication.model import BrokerId, TopicPartition
from spark_replication.ports import StoredSlice
from spark_replication.process.logs import Seldom, log_mistake
from spark_replication.process.threads import Load
from spark_replication.storage.format.batches import check_data
from spark_replication.storage.format.index import ENTRY_BYTES
from spark_replication.transport.frames.client_connection import Admitted, ClientConnection
from spark_replication.transport.frames.member_connection import MemberConnection
from spark_replication.transport.frames.producer_connection import ProducerConnection, ProducerShared
from spark_replication.transport.frames.reader_connection import ReaderConnection, Reads
from spark_replication.transport.meter import CONNECTION, FETCH, GROUP, Meter, Traffic
from spark_replication.transport.proofs.caller import Caller
from spark_replication.transport.proofs.handshake import admitted
from spark_replication.transport.proofs.tokens import Tokens
from spark_replication.transport.security.rights import Rights
from spark_replication.transport.sockets.acceptor import Acceptor
from spark_replication.transport.sockets.aside import Aside
from spark_replication.transport.sockets.frames import (
    Channel,
    FrameReceiver,
    ReceivedFrame,
    encoded,
    hang_up,
    send,
    sendable,
    tune,
)
from spark_replication.transport.sockets.newcomers import Newcomers, host_of
from spark_replication.transport.sockets.socket_loop import Connected, SocketLoop, loop_ms

CONNECTIONS_MAX = 1_000
HELLO_TIMEOUT_S = 5.0
SEND_BYTES = 1 << 20  # several answers go in one call, as long as they are small
GATHER_MS = 1  # between two answers to a follower that is behind
# The same in a flood: this leader is busy, and the follower gets so many batches. As fast as they go, batches of 4 KiB
# moved 1.1 to 1.8 times as fast with 12 ms as with 3. At 2,000 a second, 12 ms were most of an acknowledgement's 99th
# percentile: 14 ms, and now 5.
GATHER_FLOOD_MS = 12
FLOOD_BATCHES_PER_MS = 8
CLOSE_TIMEOUT_S = 2.0
BROKEN_TOLD_MS = 60_000  # of each host

# Kinds of clients, each with the setting that says how many may be connected.
PRODUCERS = "producers (flight.writes.max)"
READERS = "readers (flight.reads.max)"
MEMBERS = "members of groups (group.connections.max)"

log = logging.getLogger(__name__)


class ReplicationServer:
    def __init__(
        self,
        host: str,
        loop: SocketLoop,
        aside: Aside,
        *,
        cluster_id: str,
        rights: Rights,
        frame_bytes_max: int,
        lane: ProducerShared,
        reads: Reads,
        coordinators: Coordinators,
        now_ms: Callable[[], int],
    ) -> None:
        """Listen at once, on a port that the system chooses; serve from `start` on."""
        rights.security.require_may_bind(host)
        self.loop = loop
        self.aside = aside
        self.cluster_id = cluster_id
        self.security = rights.security
        self.find = lane.find
        self.rights = rights
        self.frame_bytes_max = frame_bytes_max
        self.lane = lane
        self.reads = reads
        self.coordinators = coordinators
        self.asked_of_groups = Meter((GROUP,))
        self.now_ms = now_ms
        self.meter = Meter(())
        self.sent = Traffic()
        self._lock = threading.Lock()
        self._closed = False
        #: All sockets, each with the thread that shakes hands; None once the connection is the loop's. Under the lock.
        self._connections: dict[socket.socket, threading.Thread | None] = {}
        self._newcomers = Newcomers()
        #: What the others are. Under the lock.
        self._followers: set[socket.socket] = set()
        self._clients: dict[str, set[socket.socket]] = {PRODUCERS: set(), READERS: set(), MEMBERS: set()}
        #: What each of them has of its principal's quota. Under the lock.
        self._streams: dict[socket.socket, contextlib.ExitStack] = {}
        #: Only the loop uses it.
        self.followers: FollowerConnections[FollowerConnection] = FollowerConnections(lane.find)
        self._load = Load()
        self._broken = Seldom(BROKEN_TOLD_MS)
        try:
            self._listener = socket.create_server((host, 0), backlog=CONNECTIONS_MAX)
        except OSError as error:
            raise StartFailed(f"no port for replication on {host}: {error}") from error
        self.port: int = self._listener.getsockname()[1]
        self._acceptor = Acceptor(self._listener)
        self._accepting = threading.Thread(target=self._accept, name="replication-accept", daemon=True)

    def start(self) -> None:
        self._accepting.start()

    def ready(self, follower: BrokerId, partition: TopicPartition) -> None:
        """See ports.FollowerLinks. A follower that is not connected asks again when it is."""
        self.loop.post(partial(self._ready, follower, partition))

    def _ready(self, follower: BrokerId, partition: TopicPartition) -> None:
        connection = self.followers.of(follower)
        if connection is not None:
            connection.ready(partition)

    def gather_ms(self, batches_per_ms: float) -> float:
        """How long to wait between two answers to a follower that is behind. batches_per_ms: how fast it gets them."""
        is_flood = batches_per_ms >= FLOOD_BATCHES_PER_MS and self._load.is_busy
        return GATHER_FLOOD_MS if is_flood else GATHER_MS

    def close(self) -> None:
        with self._lock:
            self._closed = True
            connections = dict(self._connections)
        self._acceptor.close()
        hang_up(self._listener)
        for connection in connections:
            hang_up(connection)
        for thread in (self._accepting, *connections.values()):
            if thread is not None and thread.is_alive():
                thread.join(CLOSE_TIMEOUT_S)
        self._listener.close()

    def _accept(self) -> None:
        while (connection := self._acceptor.next()) is not None:
            host = host_of(connection)
            thread = threading.Thread(
                target=self._greet, args=(connection, host), name="replication-hello", daemon=True
            )
            with self._lock:
                if self._closed:
                    connection.close()
                    continue
                self._connections[connection] = thread
            gone = self._newcomers.came(connection, host)
            if gone is not None:
                self.meter.refused(CONNECTION, Overloaded.code)
                hang_up(gone)
            self._start(connection, thread)

    def _start(self, connection: socket.socket, thread: threading.Thread) -> None:
        try:
            thread.start()
        except RuntimeError as error:  # the process may have no more threads: the follower tries again
            self._close_one(connection, connection)
            self._acceptor.pause(f"a replication connection cannot be served: {error}")

    def _greet(self, connection: socket.socket, host: str) -> None:
        channel: Channel = connection
        is_known = False
        try:
            tune(connection)
            channel = self.security.accepted(connection, HELLO_TIMEOUT_S)
            receiver = FrameReceiver(channel, self.frame_bytes_max)
            hello, proven = admitted(channel, receiver, self._tokens_of, self.port, HELLO_TIMEOUT_S)
            is_known = True
            if not self._newcomers.left(connection):
                raise Overloaded("too many connections began at once: connect again")
            self._require_own_cluster(hello)
            caller = self.security.caller_at(channel, proven)._replace(host=host)
            if isinstance(hello, HelloFrame):
                self.rights.require(caller, (Need("cluster_action"),))
            joining = (
                self._follower(connection, channel, receiver, hello, caller)
                if isinstance(hello, HelloFrame)
                else self._client(connection, channel, receiver, hello, caller)
            )
        except Exception as unread:  # noqa: BLE001 (it is logged)
            self._refuse(channel, _of_handshake(unread), None if is_known else host)
            self._close_one(connection, channel)
            return
        with self._lock:
            self._connections[connection] = None
        channel.setblocking(False)
        self.loop.post(partial(self.loop.perform, joining, joining.begin))

    def _tokens_of(self, hello: HelloFrame | ClientFrame) -> Tokens | None:
        return self.security.tokens_of(is_of_cluster=isinstance(hello, HelloFrame))

    def _require_own_cluster(self, hello: HelloFrame | ClientFrame) -> None:
        if hello.cluster_id == self.cluster_id:
            return
        differs = f"this broker is of cluster {self.cluster_id}, not of {hello.cluster_id}"
        if isinstance(hello, HelloFrame):
            raise WrongCluster(differs)
        if hello.cluster_id:  # this broker may have the port of one that has ended
            raise MisroutedCall(f"{differs}: reload routes and retry")

    def _follower(
        self,
        connection: socket.socket,
        channel: Channel,
        receiver: FrameReceiver,
        hello: HelloFrame,
        caller: Caller,
    ) -> FollowerConnection:
        with self._lock:
            if len(self._followers) >= CONNECTIONS_MAX:
                raise Overloaded(f"{CONNECTIONS_MAX} followers are connected: retry later")
            self._followers.add(connection)
        end = LeaderEnd(hello.broker_id, hello.broker_epoch)
        return FollowerConnection(self, caller, channel, receiver, end, partial(self._close_one, connection, channel))

    def _client(
        self,
        connection: socket.socket,
        channel: Channel,
        receiver: FrameReceiver,
        hello: ClientFrame,
        caller: Caller,
    ) -> ClientConnection:
        self._take_room(connection, hello, caller)
        settings = self.lane.settings
        admitted = Admitted(
            caller,
            self.rights,
            channel,
            receiver,
            WelcomeFrame(batch_bytes_max=settings.batch_bytes_max),
            self.is_refusal,
            partial(self._close_one, connection, channel),
        )
        if hello.joins:
            return MemberConnection(self.coordinators, self.loop, self.asked_of_groups, admitted)
        return ReaderConnection(self.reads, admitted) if hello.reads else ProducerConnection(self.lane, admitted)

    def _take_room(self, connection: socket.socket, hello: ClientFrame, caller: Caller) -> None:
        """Overloaded: there are too many of its kind, or of this caller. Followers never wait for clients, nor
        producers for readers."""
        settings = self.lane.settings
        kind, clients_max = PRODUCERS, settings.flight_writes_max
        if hello.joins:
            kind, clients_max = MEMBERS, settings.group_connections_max
        elif hello.reads:
            kind, clients_max = READERS, settings.flight_reads_max
        clients = self._clients[kind]
        with self._lock:
            if len(clients) >= clients_max:
                raise Overloaded(f"{clients_max} {kind} are connected: retry later")
            clients.add(connection)
            self._streams[connection] = stream = contextlib.ExitStack()
        stream.enter_context(self.rights.quotas.of(caller).stream())

    def is_refusal(self, error: OSError | ReplicationError) -> TypeGuard[ReplicationError]:
        """Whether to tell the peer why its connection ends."""
        if isinstance(error, OSError):
            log.info("a replication connection broke: %s", error)
            return False
        if isinstance(error, BrokerNotAvailable):
            log.info("a replication connection ended: %s", error.message)
            return False
        log.warning("a replication connection was refused: %s", error)
        self.meter.refused(CONNECTION, error.code)
        return True

    def _refuse(self, channel: Channel, error: OSError | ReplicationError, stranger: str | None) -> None:
        """stranger: the host of one that has proven nothing; None if the peer has."""
        if stranger is None:
            if self.is_refusal(error):
                _refuse(channel, error)
        elif self._is_refused_stranger(error, stranger):
            _refuse(channel, error)

    def _is_refused_stranger(self, error: OSError | ReplicationError, host: str) -> TypeGuard[ReplicationError]:
        """As `is_refusal`, of who has proven nothing yet: it may come as often as it likes."""
        if isinstance(error, (OSError, BrokerNotAvailable)):
            if count := self._broken.come(host):
                log.info("%d connections broke before they were known, the last from %s: %s", count, host, error)
            return False
        self.rights.audit.stranger(error, "a connection", host)
        self.meter.refused(CONNECTION, error.code)
        return True

    def _close_one(self, connection: socket.socket, channel: Channel) -> None:
        self._newcomers.left(connection)
        with self._lock:
            self._connections.pop(connection, None)
            self._followers.discard(connection)
            for clients in self._clients.values():
                clients.discard(connection)
            stream = self._streams.pop(connection, None)
        if stream is not None:
            stream.close()
        channel.close()


class FollowerConnection(Connected):
    """A follower's connection after its handshake. Only the loop uses it."""

    def __init__(
        self,
        server: ReplicationServer,
        caller: Caller,
        channel: Channel,
        receiver: FrameReceiver,
        end: LeaderEnd,
        close: Callable[[], None],
    ) -> None:
        super().__init__(channel)
        self.end = end
        self._server = server
        self._caller = caller
        self._look_ms = server.rights.look_ms(caller)  # infinite: nothing that let it in can be forgotten
        self._loop = server.loop
        self._channel = channel
        self._receiver = receiver
        self._close = close
        self._collected = 0  # bytes of answers since the last flush
        self._batches = 0  # in answers since the last gathering
        self._gathered_ms = 0.0  # when that began
        self._turn_ms = 0.0  # when its last turn began
        #: Answers that were read into the page cache meanwhile. They go once the socket has taken what is before them.
        self._warm: deque[FetchAnswer] = deque()

    def begin(self) -> None:
        """Join the loop after the handshake, with which the first fetches may have come."""
        if self._loop.add(self):
            self._loop.perform(self, self._join)

    def _join(self) -> None:
        before = self._server.followers.joined(self)
        if before is not None:
            self._loop.end(before, BrokerNotAvailable("its follower has connected again"))
        self.outbox.put(encoded(ALIVE_FRAME))  # before any answer: now the follower expects signs of life
        self.end.sent(loop_ms())
        self.came()  # no poll reports what came with the last bytes of the handshake

    def came(self) -> None:
        self._take(self._receiver.receive())

    def _take(self, frames: list[ReceivedFrame]) -> None:
        if self._look_ms < math.inf:
            self._server.rights.require_known(self._caller)
        for frame, _ in frames:
            if not isinstance(frame, FetchFrame):
                raise InvalidRequest(f"a follower sends fetches, not {type(frame).__name__}")
            for fetch in frame.partitions:
                self._fetch(frame.number, fetch)
            self._loop.post(self.end.frame_came)  # runs after everything that its fetches have posted

    def _fetch(self, number: int, fetch: FetchPartition) -> None:
        self._server.followers.fetched(self, number, fetch, self._server.now_ms(), self._refuse)

    def _refuse(self, partition: TopicPartition, error: ReplicationError) -> None:
        by = self.end.follower
        log.info("a fetch of %s by broker %s: %s", partition, by, error, extra={"partition": partition})
        self.ready(partition)

    def ready(self, partition: TopicPartition) -> None:
        self.end.ready(partition)
        self._loop.touch(self)

    def turn(self, now_ms: float) -> float:
        if self._look_ms < math.inf:
            self._server.rights.require_known(self._caller)
        self._collected, self._turn_ms = 0, now_ms
        is_sent = self.outbox.flush()
        while is_sent and self._warm:
            self._say(self._warm.popleft())
            is_sent = self.outbox.flush()
        while is_sent and (wait_ms := self.end.wait_ms(now_ms)) <= 0:
            self._answer(self.end.take_ready())
            if self.end.owes_a_sign_of_life(now_ms):
                self.outbox.put(encoded(ALIVE_FRAME))
                self.end.sent(now_ms)
            is_sent = self._flush()
            self._gather(now_ms)
        # If the socket does not take everything, the next turn comes when it does.
        return now_ms + (min(self._look_ms, wait_ms) if is_sent else self._look_ms)

    def _flush(self) -> bool:
        """Return whether all is sent."""
        self._collected = 0
        return self.outbox.flush()

    def _gather(self, now_ms: float) -> None:
        batches_per_ms = self._batches / max(1.0, now_ms - self._gathered_ms)
        self._batches, self._gathered_ms = 0, now_ms
        self.end.gather(now_ms, self._server.gather_ms(batches_per_ms))

    def _answer(self, partitions: list[TopicPartition]) -> None:
        for place, partition in enumerate(partitions):
            if self._collected >= SEND_BYTES and not self._flush():
                for later in partitions[place:]:  # these answers are made later, rather than kept in memory
                    self.end.ready(later)
                return
            self._server.followers.answer(self, partition, self._answered)

    def _answered(self, answer: FetchAnswer) -> None:
        if answer.is_repeated:
            self._server.aside.do(self, partial(checked, answer, self._server.find, check_data), self._is_checked)
        elif isinstance(answer.records, StoredSlice) and not answer.records.data.is_cached:
            self._server.aside.do(self, answer.records.data.warm, lambda _: self._is_warm(answer))
        else:
            self._say(answer)

    def _is_checked(self, answer: FetchAnswer | ReplicationError) -> None:
        if isinstance(answer, ReplicationError):
            raise answer  # it ends this connection
        self._is_warm(answer)

    def _is_warm(self, answer: FetchAnswer) -> None:
        self._warm.append(answer)
        self._loop.touch(self)

    def _say(self, found: FetchAnswer) -> None:
        answer = loaded(found, sendable)
        if answer.told.error != NONE:
            self._server.meter.refused(FETCH, answer.told.error)
        records = answer.records
        stored = (records.head, records.entries, records.data) if records is not None else ()
        frame = encoded(FetchedFrame(number=answer.number, partition=answer.told), *stored)
        if records is not None:
            self._server.sent.carried(records)
            self._batches += len(records.entries) // ENTRY_BYTES
        self.outbox.put(frame)
        self._collected += sum(map(len, frame))
        self.end.sent(self._turn_ms)
        self._loop.touch(self)  # this may not be within its turn

    def ended(self, error: OSError | ReplicationError) -> None:
        self._server.followers.left(self)
        if self._server.is_refusal(error):
            self.outbox.put(encoded(ErrorFrame(error=error.code, message=error.message)))
            with contextlib.suppress(OSError, ReplicationError):
                self.outbox.flush()
        self._receiver.free()
        self._close()


def _of_handshake(error: Exception) -> OSError | ReplicationError:
    if isinstance(error, (OSError, ReplicationError)):
        return error
    log_mistake(log, error, "a handshake ended")
    return mistake(error, "this handshake")


def _refuse(connection: Channel, error: ReplicationError) -> None:
    with contextlib.suppress(OSError):
        connection.settimeout(HELLO_TIMEOUT_S)
        send(connection, encoded(ErrorFrame(error=error.code, message=error.message)))

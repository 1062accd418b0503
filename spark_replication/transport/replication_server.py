"""Replication, the leader's side: a follower connects, says who it is, and fetches all it follows over one connection.

A thread per connection reads fetches, another sends answers. Between them lies the set of partitions that have
something to say, never a queue of bytes: an answer is made when it can be sent, so a slow follower costs no memory.

Rules:
- No guard is held while sending, or while waiting for anything.
- A follower that finds something new as soon as it asks is behind: its answers are some time apart, so that each has
  several batches. Else every batch would cost two threads a wake-up each, here and there (process.load). One that
  waits at the log end is answered at once.
- A partition's fetch and its number are set and taken together, under the partition's guard.
- A follower hears something at least every `ALIVE_S`, whatever happens to its partitions: one that hears nothing takes
  its connection for dead (transport.replication_client).
- What a peer does wrong ends its own connection, with an ErrorFrame that says why, and nothing else.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from spark_replication.engine.replica_loop import ReplicaLoop
from spark_replication.errors import (
    BrokerNotAvailable,
    InvalidRequest,
    NotReady,
    Overloaded,
    ReplicationError,
    StaleBrokerEpoch,
    StartFailed,
    WrongCluster,
)
from spark_replication.messages.envelope import NONE
from spark_replication.messages.replication import (
    ALIVE_FRAME,
    ErrorFrame,
    FetchedFrame,
    FetchedPartition,
    FetchFrame,
    FetchPartition,
)
from spark_replication.model import BrokerId, TopicPartition
from spark_replication.ports import Records, StoredSlice
from spark_replication.process.load import Load
from spark_replication.transport.acceptor import Acceptor
from spark_replication.transport.frames import Channel, FrameReceiver, Part, encoded, hang_up, send, tune
from spark_replication.transport.handshake import admitted
from spark_replication.transport.meter import CONNECTION, FETCH, Meter, Traffic
from spark_replication.transport.security import Security

CONNECTIONS_MAX = 1_000
HELLO_TIMEOUT_S = 5.0
SEND_BYTES = 1 << 20  # several answers go in one call, as long as they are small
ANSWERS_PER_SEND_MAX = 128
SENDFILE_BYTES_MIN = 16 << 10  # less is sooner read and sent along with what goes beside it
GATHER_S = 0.001  # between two answers to a follower that is behind
GATHER_BUSY_S = 0.010  # likewise, of a leader that is busy
WRITER_TIMEOUT_S = 1.0  # to finish the answer that it is sending, so that a refusal may follow
ALIVE_S = 2.0  # after so long without an answer, a follower is told that its leader lives
CLOSE_TIMEOUT_S = 2.0

log = logging.getLogger(__name__)

FindReplica = Callable[[TopicPartition], ReplicaLoop]


class ReplicationServer:
    def __init__(
        self,
        host: str,
        *,
        cluster_id: str,
        security: Security,
        replica_of: FindReplica,
        frame_bytes_max: int,
        now_ms: Callable[[], int],
    ) -> None:
        """Listens at once, on a port that the system chooses; serves from `start` on."""
        security.require_may_bind(host)
        self.cluster_id = cluster_id
        self.security = security
        self.replica_of = replica_of
        self.frame_bytes_max = frame_bytes_max
        self.now_ms = now_ms
        self.meter = Meter(())
        self.sent = Traffic()
        self._lock = threading.Lock()
        self._closed = False
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._followers: dict[BrokerId, FollowerConnection] = {}
        self._load = Load()
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
        connection = self._followers.get(follower)
        if connection is not None:
            connection.ready(partition)

    def gather_s(self) -> float:
        """What it is to wait between two answers to a follower that is behind."""
        return GATHER_BUSY_S if self._load.is_busy else GATHER_S

    def close(self) -> None:
        with self._lock:
            self._closed = True
            connections = dict(self._connections)
        self._acceptor.close()
        hang_up(self._listener)
        for connection in connections:
            hang_up(connection)
        for thread in (self._accepting, *connections.values()):
            if thread.is_alive():
                thread.join(CLOSE_TIMEOUT_S)
        self._listener.close()

    def joined(self, follower: FollowerConnection) -> None:
        """One connection a broker: a new one takes over from the old, unless it comes from an earlier life."""
        with self._lock:
            known = self._followers.get(follower.broker)
            if known is not None and known.broker_epoch > follower.broker_epoch:
                raise StaleBrokerEpoch(f"broker {follower.broker} has registered again since {follower.broker_epoch}")
            self._followers[follower.broker] = follower
        if known is not None:
            known.hang_up()

    def is_current(self, follower: FollowerConnection) -> bool:
        return self._followers.get(follower.broker) is follower

    def left(self, follower: FollowerConnection) -> None:
        with self._lock:
            if self._followers.get(follower.broker) is follower:
                del self._followers[follower.broker]

    def _accept(self) -> None:
        while (connection := self._acceptor.next()) is not None:
            thread = threading.Thread(target=self._serve, args=(connection,), name="replication-read", daemon=True)
            with self._lock:
                closed, full = self._closed, len(self._connections) >= CONNECTIONS_MAX
                if not closed and not full:
                    self._connections[connection] = thread
            if closed or full:
                with connection:
                    if self.security.tls is None:  # else it would take a handshake, and this thread waits for nobody
                        _refuse(
                            connection, Overloaded(f"{CONNECTIONS_MAX} replication connections are open: retry later")
                        )
            else:
                self._start(connection, thread)

    def _start(self, connection: socket.socket, thread: threading.Thread) -> None:
        try:
            thread.start()
        except RuntimeError as error:  # the process may have no more threads: its follower tries again
            with self._lock:
                self._connections.pop(connection, None)
            connection.close()
            self._acceptor.pause(f"a replication connection cannot be served: {error}")

    def _serve(self, connection: socket.socket) -> None:
        channel: Channel = connection
        with connection:
            try:
                tune(connection)
                channel = self.security.accepted(connection, HELLO_TIMEOUT_S)
                self._serve_follower(channel)
            except BrokerNotAvailable as error:
                log.info("a replication connection ended: %s", error.message)
            except ReplicationError as error:
                log.warning("a replication connection was refused: %s", error)
                self.meter.refused(CONNECTION, error.code)
                _refuse(channel, error)
            except OSError as error:
                log.info("a replication connection broke: %s", error)
            finally:
                with self._lock:
                    self._connections.pop(connection, None)

    def _serve_follower(self, connection: Channel) -> None:
        receiver = FrameReceiver(connection, self.frame_bytes_max)
        hello = admitted(connection, receiver, self.security.token, HELLO_TIMEOUT_S)
        if hello.cluster_id != self.cluster_id:
            raise WrongCluster(f"this broker is of cluster {self.cluster_id}, not of {hello.cluster_id}")
        follower = FollowerConnection(self, connection, hello.broker_id, hello.broker_epoch)
        self.joined(follower)
        try:
            follower.serve(receiver)
        finally:
            self.left(follower)


class FollowerConnection:
    """_waiting: the fetches that are not answered, with their numbers. _ready: those of them that can be, in the order
    in which they became so; both are bounded by the number of partitions. _behind: there was something for it as it
    asked last."""

    def __init__(self, server: ReplicationServer, connection: Channel, broker: BrokerId, broker_epoch: int) -> None:
        self.broker = broker
        self.broker_epoch = broker_epoch
        self._server = server
        self._connection = connection
        self._sends_files = isinstance(connection, socket.socket)  # else it encrypts them first
        self._waiting: dict[TopicPartition, tuple[int, FetchPartition]] = {}
        self._ready: dict[TopicPartition, None] = {}
        self._changed = threading.Condition(threading.Lock())
        self._over = False
        self._behind = False
        self._gathers_until_s = 0.0
        self._quiet_until_s = 0.0  # then it is to hear something

    def ready(self, partition: TopicPartition) -> None:
        with self._changed:
            if not self._ready:
                self._changed.notify()  # once: what comes until it looks, it finds
            self._ready[partition] = None

    def hang_up(self) -> None:
        with self._changed:
            self._over = True
            self._changed.notify()
        hang_up(self._connection)

    def serve(self, receiver: FrameReceiver) -> None:
        """Until the connection ends."""
        writer = threading.Thread(target=self._write, name="replication-write", daemon=True)
        writer.start()
        try:
            frames = receiver.whole()
            while True:
                for frame, _ in frames:
                    if not isinstance(frame, FetchFrame):
                        raise InvalidRequest(f"a follower sends fetches, not {type(frame).__name__}")
                    for fetch in frame.partitions:
                        self._fetch(frame.number, fetch)
                    self._behind = bool(self._ready)
                frames = receiver.receive()
        finally:
            with self._changed:
                self._over = True
                self._changed.notify()
            writer.join(WRITER_TIMEOUT_S)
            if writer.is_alive():
                hang_up(self._connection)  # it is stuck in a full socket
                writer.join()

    def _fetch(self, number: int, fetch: FetchPartition) -> None:
        partition = fetch.topic_partition
        try:
            replica = self._server.replica_of(partition)
            with replica.guard:
                # The engine knows one fetch of each follower: a late one of a connection that was replaced would be
                # answered over the new one, as if it had been asked there.
                if not self._server.is_current(self):
                    return
                self._waiting[partition] = (number, fetch)
                replica.fetch(fetch, by=self.broker, broker_epoch=self.broker_epoch, now_ms=self._server.now_ms())
        except ReplicationError as error:
            log.info("a fetch of %s by broker %s: %s", partition, self.broker, error, extra={"partition": partition})
            self._waiting[partition] = (number, fetch)
            self.ready(partition)

    def _write(self) -> None:
        try:
            self._send(encoded(ALIVE_FRAME))  # at once, whatever else there is: it is to know that it will hear this
            while (partitions := self._take_ready()) is not None:
                self._answer(partitions)
                self._gathers_until_s = time.monotonic() + self._server.gather_s()
                if self._quiet_until_s <= time.monotonic():
                    self._send(encoded(ALIVE_FRAME))
        except OSError as error:
            log.info("broker %s takes no answers: %s", self.broker, error)
            hang_up(self._connection)

    def _take_ready(self) -> list[TopicPartition] | None:
        """Empty: it has been quiet for long enough. None: the connection is over."""
        with self._changed:
            while not self._ready and not self._over and (left_s := self._quiet_until_s - time.monotonic()) > 0:
                self._changed.wait(left_s)
            while self._behind and not self._over and (left_s := self._gathers_until_s - time.monotonic()) > 0:
                self._changed.wait(left_s)
            if self._over:
                return None
            taken = list(self._ready)[:ANSWERS_PER_SEND_MAX]
            for partition in taken:
                del self._ready[partition]
            return taken

    def _answer(self, partitions: list[TopicPartition]) -> None:
        parts: list[Part] = []
        collected = 0
        for partition in partitions:
            found = self._take_answer(partition)
            if found is None:
                continue
            number, answer, records = found
            stored = (records.head, records.entries, records.data) if records is not None else ()
            frame = encoded(FetchedFrame(number=number, partition=answer), *stored)
            if records is not None:
                self._server.sent.carried(records)
            parts += frame
            collected += sum(map(len, frame))
            if collected >= SEND_BYTES:
                self._send(parts)
                parts, collected = [], 0
        if parts:
            self._send(parts)

    def _send(self, parts: Sequence[Part]) -> None:
        send(self._connection, parts)
        self._quiet_until_s = time.monotonic() + ALIVE_S

    def _take_answer(self, partition: TopicPartition) -> tuple[int, FetchedPartition, Records | None] | None:
        """None: its fetch has been answered, or came over another connection."""
        waiting = None
        try:
            replica = self._server.replica_of(partition)
            with replica.guard:
                # The engine knows one fetch of each follower: once there is a newer connection, it is that one's.
                waiting = self._waiting.pop(partition, None) if self._server.is_current(self) else None
                if waiting is None:
                    return None
                taken = replica.take_answer(self.broker, self.broker_epoch)
            if taken is None:
                # Without an answer the follower would wait for ever.
                raise NotReady(f"{partition} was not open yet when the fetch came: repeat it")
            answer, records = taken
            if answer.error != NONE:
                self._server.meter.refused(FETCH, answer.error)
            if isinstance(records, StoredSlice) and (len(records.data) < SENDFILE_BYTES_MIN or not self._sends_files):
                return waiting[0], answer, records.loaded()
            return waiting[0], answer, records
        except ReplicationError as error:
            self._server.meter.refused(FETCH, error.code)
            waiting = waiting or self._waiting.pop(partition, None)
            return None if waiting is None else (waiting[0], _error_answer(waiting[1], error), None)


def _error_answer(fetch: FetchPartition, error: ReplicationError) -> FetchedPartition:
    answer = FetchedPartition(
        topic=fetch.topic, partition=fetch.partition, topic_id=fetch.topic_id, leader_epoch=fetch.leader_epoch
    )
    return replace(answer, error=error.code, message=error.message)


def _refuse(connection: Channel, error: ReplicationError) -> None:
    with contextlib.suppress(OSError):
        connection.settimeout(HELLO_TIMEOUT_S)
        send(connection, encoded(ErrorFrame(error=error.code, message=error.message)))

"""Replication, the leader's side: a follower connects, says who it is, and fetches all it follows over one connection.

A thread per connection reads fetches, another sends answers. Between them lies engine.fetch_session, which says who is
to be answered, and when: never a queue of bytes, so a slow follower costs no memory.

Rules:
- No guard is held while sending, or while waiting for anything.
- A follower that finds something new as soon as it asks is behind: its answers are some time apart, so that each has
  several batches. Else every batch would cost two threads a wake-up each, here and there (process.load). One that
  waits at the log end is answered at once.
- What a peer does wrong ends its own connection, with an ErrorFrame that says why, and nothing else.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence

from spark_replication.engine.fetch_session import FindReplica, FollowerConnections, LeaderEnd
from spark_replication.errors import (
    BrokerNotAvailable,
    InvalidRequest,
    Overloaded,
    ReplicationError,
    StartFailed,
    WrongCluster,
)
from spark_replication.messages.envelope import NONE
from spark_replication.messages.replication import (
    ALIVE_FRAME,
    ErrorFrame,
    FetchedFrame,
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
SENDFILE_BYTES_MIN = 16 << 10  # less is sooner read and sent along with what goes beside it
GATHER_MS = 1  # between two answers to a follower that is behind
GATHER_BUSY_MS = 10  # likewise, of a leader that is busy
WRITER_TIMEOUT_S = 1.0  # to finish the answer that it is sending, so that a refusal may follow
CLOSE_TIMEOUT_S = 2.0

log = logging.getLogger(__name__)


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
        self.frame_bytes_max = frame_bytes_max
        self.now_ms = now_ms
        self.meter = Meter(())
        self.sent = Traffic()
        self._lock = threading.Lock()
        self._closed = False
        self._connections: dict[socket.socket, threading.Thread] = {}
        self.followers: FollowerConnections[FollowerConnection] = FollowerConnections(replica_of)
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
        connection = self.followers.of(follower)
        if connection is not None:
            connection.ready(partition)

    def gather_ms(self) -> float:
        """What it is to wait between two answers to a follower that is behind."""
        return GATHER_BUSY_MS if self._load.is_busy else GATHER_MS

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
        with self._lock:
            before = self.followers.joined(follower)
        if before is not None:
            before.hang_up()

    def left(self, follower: FollowerConnection) -> None:
        with self._lock:
            self.followers.left(follower)

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
        follower = FollowerConnection(self, connection, LeaderEnd(hello.broker_id, hello.broker_epoch))
        self.joined(follower)
        try:
            follower.serve(receiver)
        finally:
            self.left(follower)


class FollowerConnection:
    """_changed guards what of `end` is ready, and when it is to be sent."""

    def __init__(self, server: ReplicationServer, connection: Channel, end: LeaderEnd) -> None:
        self.end = end
        self._server = server
        self._connection = connection
        self._sends_files = isinstance(connection, socket.socket)  # else it encrypts them first
        self._changed = threading.Condition(threading.Lock())
        self._over = False

    def ready(self, partition: TopicPartition) -> None:
        with self._changed:
            if self.end.ready(partition):
                self._changed.notify()

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
                    with self._changed:
                        self.end.frame_came()
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
        error = self._server.followers.fetched(self, number, fetch, self._server.now_ms())
        if error is not None:
            partition = fetch.topic_partition
            by = self.end.follower
            log.info("a fetch of %s by broker %s: %s", partition, by, error, extra={"partition": partition})
            self.ready(partition)

    def _write(self) -> None:
        try:
            self._send(encoded(ALIVE_FRAME))  # at once, whatever else there is: it is to know that it will hear this
            while (partitions := self._take_ready()) is not None:
                self._answer(partitions)
                self.end.gather(_now_ms(), self._server.gather_ms())
                if self.end.owes_a_sign_of_life(_now_ms()):
                    self._send(encoded(ALIVE_FRAME))
        except OSError as error:
            log.info("broker %s takes no answers: %s", self.end.follower, error)
            hang_up(self._connection)

    def _take_ready(self) -> list[TopicPartition] | None:
        """Empty: it has been quiet for long enough. None: the connection is over."""
        with self._changed:
            while not self._over and (left_ms := self.end.wait_ms(_now_ms())) > 0:
                self._changed.wait(left_ms / 1000)
            return None if self._over else self.end.take_ready()

    def _answer(self, partitions: list[TopicPartition]) -> None:
        parts: list[Part] = []
        collected = 0
        for partition in partitions:
            answer = self._server.followers.answer(self, partition, self._loaded)
            if answer is None:
                continue
            if answer.told.error != NONE:
                self._server.meter.refused(FETCH, answer.told.error)
            records = answer.records
            stored = (records.head, records.entries, records.data) if records is not None else ()
            frame = encoded(FetchedFrame(number=answer.number, partition=answer.told), *stored)
            if records is not None:
                self._server.sent.carried(records)
            parts += frame
            collected += sum(map(len, frame))
            if collected >= SEND_BYTES:
                self._send(parts)
                parts, collected = [], 0
        if parts:
            self._send(parts)

    def _loaded(self, records: Records) -> Records:
        """As they are sent."""
        is_sent_as_file = self._sends_files and len(records.data) >= SENDFILE_BYTES_MIN
        return records if is_sent_as_file or not isinstance(records, StoredSlice) else records.loaded()

    def _send(self, parts: Sequence[Part]) -> None:
        send(self._connection, parts)
        self.end.sent(_now_ms())


def _now_ms() -> float:
    return time.monotonic() * 1000


def _refuse(connection: Channel, error: ReplicationError) -> None:
    with contextlib.suppress(OSError):
        connection.settimeout(HELLO_TIMEOUT_S)
        send(connection, encoded(ErrorFrame(error=error.code, message=error.message)))

"""Replication, the follower's side: one connection and one thread for each leader broker that is followed.

engine.fetch_session decides what is asked, and which answer counts. The thread does everything that belongs to its
connection, in order: it sends what is due, takes what has come, and makes the next fetches of all that came at once
into one frame. No guard is held while sending, connecting or waiting. `follow` and `unfollow` only leave a note, and
wake the thread.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable

from spark_replication.engine.fetch_session import Cut, FindReplica, FollowerEnd, LeaderLinks, next_fetches, take
from spark_replication.errors import BrokerNotAvailable, InvalidRequest, ReplicationError, error_of
from spark_replication.messages.replication import ErrorFrame, FetchedFrame, FetchedPartition, HelloFrame
from spark_replication.model import BrokerId, TopicPartition
from spark_replication.ports import LogSlice
from spark_replication.storage.index import ENTRY_BYTES, last_offset_at
from spark_replication.transport.frames import Channel, FrameReceiver, ReceivedFrame, encoded, hang_up, send, tune
from spark_replication.transport.handshake import introduce
from spark_replication.transport.meter import Traffic
from spark_replication.transport.replication_server import HELLO_TIMEOUT_S
from spark_replication.transport.security import Security

CONNECT_TIMEOUT_S = 2.0
RECEIVED_BYTES_MAX = 8 << 20  # before more is asked for
CLOSE_TIMEOUT_S = 3.0

log = logging.getLogger(__name__)

Address = tuple[str, int]
AddressOf = Callable[[BrokerId], Address | None]


class ReplicationClient:
    """`address_of` may wait for ZooKeeper: it is called by the threads of the links alone. silence_ms: how long nothing
    may come from a leader that says that it lives."""

    def __init__(
        self,
        *,
        cluster_id: str,
        broker: BrokerId,
        security: Security,
        replica_of: FindReplica,
        address_of: AddressOf,
        frame_bytes_max: int,
        silence_ms: float,
    ) -> None:
        self.cluster_id = cluster_id
        self.broker = broker
        self.security = security
        self.replica_of = replica_of
        self.address_of = address_of
        self.frame_bytes_max = frame_bytes_max
        self.silence_ms = silence_ms
        self.received = Traffic()
        self._lock = threading.Lock()
        self._broker_epoch = -1
        self._links = LeaderLinks(lambda leader: LeaderLink(self, leader, self._broker_epoch))

    def registered(self, broker_epoch: int) -> None:
        """Connections say which life of this broker they belong to: those of an earlier one end."""
        with self._lock:
            self._broker_epoch = broker_epoch
        self.close()

    def follow(self, partition: TopicPartition, leader: BrokerId) -> None:
        with self._lock:
            self._links.follow(partition, leader)

    def unfollow(self, partition: TopicPartition) -> None:
        with self._lock:
            self._links.unfollow(partition)

    def close(self) -> None:
        """Not under a guard: it waits for the threads, which may be waiting for one."""
        with self._lock:
            links = self._links.take_all()
        for link in links:
            link.close()
        for link in links:
            link.join()


class LeaderLink:
    """What of `_end` is due, and `_connection`, are shared, under the lock; everything else is the thread's own."""

    def __init__(self, client: ReplicationClient, leader: BrokerId, broker_epoch: int) -> None:
        self._client = client
        self._leader = leader
        self._broker_epoch = broker_epoch
        self._lock = threading.Lock()
        self._end = FollowerEnd(silence_ms=client.silence_ms)
        self._connection: socket.socket | None = None
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        # Once nobody has the link, nor its thread, which may outlive `join`.
        weakref.finalize(self, os.close, self._wake).atexit = False
        self._address: Address | None = None
        self._thread = threading.Thread(target=self._run, name=f"replication-from-{leader}", daemon=True)
        self._thread.start()

    # From any thread.

    def follow(self, partition: TopicPartition) -> None:
        with self._lock:
            self._end.follow(partition)
            os.eventfd_write(self._wake, 1)

    def unfollow(self, partition: TopicPartition) -> None:
        with self._lock:
            self._end.unfollow(partition)

    def close(self) -> None:
        with self._lock:
            self._end.close()
            os.eventfd_write(self._wake, 1)
            if self._connection is not None:
                hang_up(self._connection)

    def join(self) -> None:
        if self._thread is not threading.current_thread():
            self._thread.join(CLOSE_TIMEOUT_S)

    # The thread.

    def _run(self) -> None:
        waiting = select.poll()
        waiting.register(self._wake, select.POLLIN)
        while not self._end.closed:
            if not self._end.follows:
                self._wait(waiting, None)  # a leader of nothing is not looked for
                continue
            try:
                self._exchange()
            except (OSError, ReplicationError) as error:
                if not self._end.closed:
                    level = logging.INFO if isinstance(error, (OSError, BrokerNotAvailable)) else logging.WARNING
                    log.log(level, "replication from broker %s at %s: %s", self._leader, self._address, error)
            deadline = time.monotonic() + self._end.ended() / 1000
            while (left := deadline - time.monotonic()) > 0 and not self._end.closed:
                self._wait(waiting, left)

    def _wait(self, waiting: select.poll, timeout_s: float | None) -> None:
        if waiting.poll(None if timeout_s is None else timeout_s * 1000):
            self._clear_wake()

    def _clear_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)

    def _exchange(self) -> None:
        """Connect, ask for everything that is followed, and go on until the connection ends."""
        with self._connect() as connection:
            try:
                self._follow_over(connection)
            finally:
                with self._lock:
                    self._connection = None

    def _follow_over(self, connection: socket.socket) -> None:
        assert self._address is not None
        channel = self._client.security.connected(connection, self._address[0], HELLO_TIMEOUT_S)
        receiver = FrameReceiver(channel, self._client.frame_bytes_max)
        hello = HelloFrame(
            cluster_id=self._client.cluster_id, broker_id=self._client.broker, broker_epoch=self._broker_epoch
        )
        introduce(channel, receiver, hello, self._client.security.token, HELLO_TIMEOUT_S)
        for received in receiver.whole():  # of what came with the last of the handshake no poll tells
            self._received(received)
        waiting = select.poll()
        waiting.register(self._wake, select.POLLIN)
        waiting.register(connection, select.POLLIN)
        arrived = select.poll()
        arrived.register(connection, select.POLLIN)
        with self._lock:
            self._end.connected(_now_ms())
        while not self._end.closed:
            self._send_due(channel)
            with self._lock:
                wait_ms = self._end.wait_ms(_now_ms())
            ready = {each for each, _ in waiting.poll(wait_ms)}
            if self._wake in ready:
                self._clear_wake()
            if connection.fileno() in ready:
                self._receive(receiver, arrived)
            elif self._end.is_silent(_now_ms()):
                silence_s = self._end.silence_ms / 1000
                raise BrokerNotAvailable(
                    f"nothing has come for {silence_s:.1f} s from a leader that says that it lives"
                )

    def _receive(self, receiver: FrameReceiver, arrived: select.poll) -> None:
        """What the leader has sent, until it pauses: asked for again together, it comes together."""
        taken = 0
        while taken < RECEIVED_BYTES_MAX:
            frames = receiver.receive()
            self._end.heard(_now_ms())
            for received in frames:
                self._received(received)
                taken += len(received.payload)
            if not arrived.poll(0):
                return

    def _connect(self) -> socket.socket:
        before, self._address = self._address, self._client.address_of(self._leader)
        self._end.looked_up(has_moved=self._address != before)
        if self._address is None:
            raise BrokerNotAvailable(f"broker {self._leader} is not registered")
        connection = socket.create_connection(self._address, timeout=CONNECT_TIMEOUT_S)
        tune(connection)
        connection.settimeout(None)
        with self._lock:
            self._connection = connection
            if self._end.closed:
                hang_up(connection)
        return connection

    def _send_due(self, connection: Channel) -> None:
        with self._lock:
            due = self._end.take_due(_now_ms())
        frame = self._end.asked(next_fetches(due, self._client.replica_of))
        if frame is not None:
            send(connection, encoded(frame))

    def _received(self, received: ReceivedFrame) -> None:
        frame, payload = received
        if isinstance(frame, ErrorFrame):
            raise error_of(frame.error, frame.message)
        if not isinstance(frame, FetchedFrame):
            raise InvalidRequest(f"a leader sends answers, not {type(frame).__name__}")
        answer = frame.partition
        partition = answer.topic_partition
        fetch = self._end.received(frame.number, partition)
        if fetch is None:
            return
        try:
            records = _records(answer, payload)
            cut = take(self._end, fetch, answer, records, self._client.replica_of)
        except ReplicationError as error:
            self._failed(partition, error)
            return
        if cut is not None:
            self._tell_cut(partition, cut)
        if records is not None:
            self._client.received.carried(records)
        with self._lock:
            self._end.answered(partition)

    def _tell_cut(self, partition: TopicPartition, cut: Cut) -> None:
        text = (
            "%s: cut from %d to %d, where it parts from the log of broker %d; %d of these rows were known as committed"
        )
        log.log(
            logging.ERROR if cut.committed else logging.INFO,
            text,
            *(partition, cut.end, cut.to, self._leader, cut.committed),
            extra={"partition": partition},
        )

    def _failed(self, partition: TopicPartition, error: ReplicationError) -> None:
        level = logging.INFO if error.retriable else logging.ERROR
        text = "replication of %s from broker %s: %s"
        log.log(level, text, partition, self._leader, error, extra={"partition": partition})
        with self._lock:
            is_to_be_looked_up = self._end.failed(partition, error, _now_ms())
        if is_to_be_looked_up and self._client.address_of(self._leader) != self._address:
            raise BrokerNotAvailable(f"broker {self._leader} is no longer at {self._address}")


def _now_ms() -> float:
    return time.monotonic() * 1000


def _records(answer: FetchedPartition, payload: memoryview) -> LogSlice | None:
    """The stored bytes that came with an answer, as views of them."""
    entries_at = answer.schema_bytes
    data_at = entries_at + answer.entry_bytes
    if data_at + answer.data_bytes != len(payload) or answer.entry_bytes % ENTRY_BYTES:
        raise InvalidRequest(
            f"an answer of {answer.topic_partition} does not describe its payload: {len(payload)} bytes"
        )
    if not answer.entry_bytes:
        return None
    entries = payload[entries_at:data_at]
    return LogSlice(
        first_offset=answer.offset,
        next_offset=last_offset_at(entries, len(entries) // ENTRY_BYTES - 1) + 1,
        segment_base=answer.segment_base,
        schema=payload[:entries_at],
        entries=entries,
        data=payload[data_at:],
    )

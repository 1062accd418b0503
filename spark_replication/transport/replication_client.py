"""Replication, the follower's side: one connection and one thread for each leader broker that is followed.

The thread does everything that belongs to its connection, in order: it sends what is due, takes what has come, appends
it, and makes the next fetches of all that came at once into one frame.

Rules:
- No guard is held while sending, connecting or waiting; `follow` and `unfollow` only leave a note and wake the thread.
- An answer counts only if its number is that of the partition's last fetch on this connection, and the replica takes
  it for that fetch only: of an older one nobody knows whether what it says still holds.
- Once a link is closed its thread takes nothing more, even if it has not ended within CLOSE_TIMEOUT_S.
- A partition that fails is asked for again later, and delays no other.
- A leader that says that it lives (messages.replication.ALIVE) is expected to go on: a connection over which nothing
  comes for long enough is given up for a new one, whatever TCP thinks of it.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
import math
import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable

from spark_replication.engine.replica_loop import ReplicaLoop
from spark_replication.errors import BrokerNotAvailable, InvalidRequest, ReplicationError, error_of
from spark_replication.messages.envelope import NONE
from spark_replication.messages.replication import (
    ALIVE,
    ErrorFrame,
    FetchedFrame,
    FetchedPartition,
    FetchFrame,
    FetchPartition,
    HelloFrame,
)
from spark_replication.model import BrokerId, Offset, TopicPartition
from spark_replication.ports import LogSlice
from spark_replication.storage.index import ENTRY_BYTES, last_offset_at
from spark_replication.transport.frames import Channel, FrameReceiver, ReceivedFrame, encoded, hang_up, send, tune
from spark_replication.transport.handshake import introduce
from spark_replication.transport.meter import Traffic
from spark_replication.transport.replication_server import ALIVE_S, HELLO_TIMEOUT_S, FindReplica
from spark_replication.transport.security import Security

BACKOFF_S = 0.02
BACKOFF_MAX_S = 1.0
CONNECT_TIMEOUT_S = 2.0
ADDRESS_LOOK_S = 1.0  # a leader that refuses is looked up so often, whatever the number of partitions
FETCHES_PER_FRAME_MAX = 1_000
RECEIVED_BYTES_MAX = 8 << 20  # before more is asked for
CLOSE_TIMEOUT_S = 3.0
SILENCE_S_MIN = 3 * ALIVE_S

log = logging.getLogger(__name__)

Address = tuple[str, int]
AddressOf = Callable[[BrokerId], Address | None]


class ReplicationClient:
    """`address_of` may wait for ZooKeeper: it is called by the threads of the links alone. silence_s: how long nothing
    may come from a leader, if that is more than SILENCE_S_MIN."""

    def __init__(
        self,
        *,
        cluster_id: str,
        broker: BrokerId,
        security: Security,
        replica_of: FindReplica,
        address_of: AddressOf,
        frame_bytes_max: int,
        silence_s: float,
    ) -> None:
        self.cluster_id = cluster_id
        self.broker = broker
        self.security = security
        self.replica_of = replica_of
        self.address_of = address_of
        self.frame_bytes_max = frame_bytes_max
        self.silence_s = max(silence_s, SILENCE_S_MIN)
        self.received = Traffic()
        self._lock = threading.Lock()
        self._broker_epoch = -1
        self._links: dict[BrokerId, LeaderLink] = {}
        self._leader_of: dict[TopicPartition, BrokerId] = {}

    def registered(self, broker_epoch: int) -> None:
        """Connections say which life of this broker they belong to: those of an earlier one end."""
        with self._lock:
            self._broker_epoch = broker_epoch
        self.close()

    def follow(self, partition: TopicPartition, leader: BrokerId) -> None:
        """See ports.FollowerLinks. Again for the same leader: ask anew, the epoch is another."""
        with self._lock:
            before = self._leader_of.get(partition)
            if before is not None and before != leader:
                self._links[before].unfollow(partition)
            self._leader_of[partition] = leader
            link = self._links.get(leader)
            if link is None:
                link = self._links[leader] = LeaderLink(self, leader, self._broker_epoch)
            link.follow(partition)

    def unfollow(self, partition: TopicPartition) -> None:
        with self._lock:
            leader = self._leader_of.pop(partition, None)
            if leader is not None:
                self._links[leader].unfollow(partition)

    def close(self) -> None:
        """Not under a guard: it waits for the threads, which may be waiting for one."""
        with self._lock:
            links = list(self._links.values())
            self._links.clear()
            self._leader_of.clear()
        for link in links:
            link.close()
        for link in links:
            link.join()


class LeaderLink:
    """_followed, _due, _later and _connection are shared, under the lock; everything else is the thread's own.

    _due: to be asked for with the next frame. _later: (when, partition), of those that failed.
    """

    def __init__(self, client: ReplicationClient, leader: BrokerId, broker_epoch: int) -> None:
        self._client = client
        self._leader = leader
        self._broker_epoch = broker_epoch
        self._lock = threading.Lock()
        self._followed: dict[TopicPartition, None] = {}
        self._due: dict[TopicPartition, None] = {}
        self._later: list[tuple[float, TopicPartition]] = []
        self._connection: socket.socket | None = None
        self._closed = False
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        # Once nobody has the link, nor its thread, which may outlive `join`.
        weakref.finalize(self, os.close, self._wake).atexit = False
        self._address: Address | None = None
        self._look_at_s = 0.0
        self._number = 0
        self._outstanding: dict[TopicPartition, tuple[int, FetchPartition]] = {}
        self._failures: dict[TopicPartition, int] = {}
        self._attempts = 0
        self._says_it_lives = False  # the leader at this address: an earlier release does not
        self._heard_s = 0.0
        self._thread = threading.Thread(target=self._run, name=f"replication-from-{leader}", daemon=True)
        self._thread.start()

    # From any thread.

    def follow(self, partition: TopicPartition) -> None:
        with self._lock:
            self._followed[partition] = None
            self._due[partition] = None
            os.eventfd_write(self._wake, 1)

    def unfollow(self, partition: TopicPartition) -> None:
        with self._lock:
            self._followed.pop(partition, None)
            self._due.pop(partition, None)

    def close(self) -> None:
        with self._lock:
            self._closed = True
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
        while not self._closed:
            if not self._followed:
                self._wait(waiting, None)  # a leader of nothing is not looked for
                continue
            try:
                self._exchange()
            except (OSError, ReplicationError) as error:
                if not self._closed:
                    level = logging.INFO if isinstance(error, (OSError, BrokerNotAvailable)) else logging.WARNING
                    log.log(level, "replication from broker %s at %s: %s", self._leader, self._address, error)
            deadline = time.monotonic() + _backoff_s(self._attempts)
            self._attempts += 1
            while (left := deadline - time.monotonic()) > 0 and not self._closed:
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
        self._outstanding.clear()
        with self._lock:
            self._later.clear()
            self._due = dict(self._followed)
        self._heard_s = time.monotonic()
        while not self._closed:
            self._send_due(channel)
            ready = {each for each, _ in waiting.poll(self._wait_ms())}
            if self._wake in ready:
                self._clear_wake()
            if connection.fileno() in ready:
                self._receive(receiver, arrived)
            elif self._silent_at_s() <= time.monotonic():
                raise BrokerNotAvailable(
                    f"nothing has come for {self._client.silence_s:.1f} s from a leader that says that it lives"
                )

    def _receive(self, receiver: FrameReceiver, arrived: select.poll) -> None:
        """What the leader has sent, until it pauses: asked for again together, it comes together."""
        taken = 0
        while taken < RECEIVED_BYTES_MAX:
            frames = receiver.receive()
            self._heard_s = time.monotonic()
            for received in frames:
                self._received(received)
                taken += len(received.payload)
            if not arrived.poll(0):
                return

    def _connect(self) -> socket.socket:
        before, self._address = self._address, self._client.address_of(self._leader)
        self._says_it_lives = self._says_it_lives and self._address == before
        if self._address is None:
            raise BrokerNotAvailable(f"broker {self._leader} is not registered")
        connection = socket.create_connection(self._address, timeout=CONNECT_TIMEOUT_S)
        tune(connection)
        connection.settimeout(None)
        with self._lock:
            self._connection = connection
            if self._closed:
                hang_up(connection)
        return connection

    def _wait_ms(self) -> float | None:
        with self._lock:
            if self._due:
                return 0
            at_s = min(self._silent_at_s(), self._later[0][0] if self._later else math.inf)
        return None if at_s == math.inf else max(0.0, (at_s - time.monotonic()) * 1000)

    def _silent_at_s(self) -> float:
        """When the connection is given up, if nothing comes until then."""
        return self._heard_s + self._client.silence_s if self._says_it_lives else math.inf

    def _send_due(self, connection: Channel) -> None:
        with self._lock:
            now = time.monotonic()
            while self._later and self._later[0][0] <= now:
                _, partition = heapq.heappop(self._later)
                if partition in self._followed:
                    self._due[partition] = None
            if not self._due:
                return
            due = list(self._due)[:FETCHES_PER_FRAME_MAX]
            for partition in due:
                del self._due[partition]
        self._number += 1
        fetches = []
        for partition in due:
            try:
                replica = self._client.replica_of(partition)
            except ReplicationError:
                continue  # it was removed meanwhile
            with replica.guard:
                fetch = replica.next_fetch()
            if fetch is not None:
                fetches.append(fetch)
                self._outstanding[partition] = self._number, fetch
        if fetches:
            send(connection, encoded(FetchFrame(number=self._number, partitions=tuple(fetches))))

    def _received(self, received: ReceivedFrame) -> None:
        frame, payload = received
        if isinstance(frame, ErrorFrame):
            raise error_of(frame.error, frame.message)
        if not isinstance(frame, FetchedFrame):
            raise InvalidRequest(f"a leader sends answers, not {type(frame).__name__}")
        self._attempts = 0
        if frame.number == ALIVE:
            self._says_it_lives = True
            return
        answer = frame.partition
        partition = answer.topic_partition
        number, fetch = self._outstanding.get(partition, (-1, None))
        if fetch is None or number != frame.number:
            return
        del self._outstanding[partition]
        try:
            if answer.error != NONE:
                raise error_of(answer.error, answer.message)
            replica = self._client.replica_of(partition)
            records = _records(answer, payload)
            with replica.guard:
                if self._closed:
                    return
                if replica.topic_id == answer.topic_id:  # else it was made again under its old name meanwhile
                    end, high_watermark = replica.log.log_end, replica.high_watermark
                    replica.fetch_answered(fetch, answer, records)
                    if replica.log.log_end < end:
                        self._tell_cut(replica, end, high_watermark)
        except ReplicationError as error:
            self._failed(partition, error)
            return
        if records is not None:
            self._client.received.carried(records)
        self._failures.pop(partition, None)
        with self._lock:
            if partition in self._followed:
                self._due[partition] = None

    def _tell_cut(self, replica: ReplicaLoop, end: Offset, high_watermark: Offset) -> None:
        """Rows that no leader has any longer; after an unclean election some of them may have been acknowledged."""
        lost = max(0, high_watermark - replica.log.log_end)
        text = (
            "%s: cut from %d to %d, where it parts from the log of broker %d; %d of these rows were known as committed"
        )
        log.log(
            logging.ERROR if lost else logging.INFO,
            text,
            *(replica.partition, end, replica.log.log_end, self._leader, lost),
            extra={"partition": replica.partition},
        )

    def _failed(self, partition: TopicPartition, error: ReplicationError) -> None:
        failures = self._failures.get(partition, 0)
        self._failures[partition] = failures + 1
        level = logging.INFO if error.retriable else logging.ERROR
        text = "replication of %s from broker %s: %s"
        log.log(level, text, partition, self._leader, error, extra={"partition": partition})
        with self._lock:
            if partition in self._followed:
                heapq.heappush(self._later, (time.monotonic() + _backoff_s(failures), partition))
        if error.stale_routes and self._moved():
            raise BrokerNotAvailable(f"broker {self._leader} is no longer at {self._address}")

    def _moved(self) -> bool:
        """As far as was looked: every partition that is refused asks this, thousands at an election."""
        now_s = time.monotonic()
        if now_s < self._look_at_s:
            return False
        self._look_at_s = now_s + ADDRESS_LOOK_S
        return self._client.address_of(self._leader) != self._address


def _backoff_s(failures: int) -> float:
    return min(BACKOFF_MAX_S, BACKOFF_S * float(1 << min(failures, 10)))


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

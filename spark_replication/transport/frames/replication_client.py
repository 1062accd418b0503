"""Replication, the follower's side: one connection to each leader broker that is followed.

engine.ends.fetch_session decides what is fetched, and which answer counts. The loop sends the fetches that are due,
takes the answers that have come, and sends the next fetches of all of them in one frame. It never waits for a partition
that another thread has (engine.replica.partition). `follow` and `unfollow` only leave a note.
"""

from __future__ import annotations

import contextlib
import logging
import math
import socket
import threading
from collections.abc import Callable
from functools import partial

from spark_replication.decoding import error_of
from spark_replication.engine.ends.fetch_session import (
    Cut,
    FollowedLeaders,
    FollowerEnd,
    Taken,
    ask,
    take,
    take_and_wait,
)
from spark_replication.engine.replica.partition import FindPartition
from spark_replication.errors import BrokerNotAvailable, InvalidRequest, ReplicationError
from spark_replication.messages.replication import (
    ErrorFrame,
    FetchedFrame,
    FetchedPartition,
    HelloFrame,
)
from spark_replication.model import BrokerId, TopicPartition
from spark_replication.ports import LogSlice
from spark_replication.storage.format.index import ENTRY_BYTES, last_offset_at
from spark_replication.transport.frames.replication_server import HELLO_TIMEOUT_S
from spark_replication.transport.meter import Traffic
from spark_replication.transport.proofs.handshake import introduce
from spark_replication.transport.security.security import Security
from spark_replication.transport.sockets.aside import Aside
from spark_replication.transport.sockets.frames import (
    Channel,
    FrameReceiver,
    ReceivedFrame,
    StoredBatches,
    encoded,
    hang_up,
    tune,
)
from spark_replication.transport.sockets.socket_loop import Connected, SocketLoop, loop_ms
from spark_replication.transport.sockets.taking import MOMENT_MS, Taking

CONNECT_TIMEOUT_S = 2.0
RECEIVED_BYTES_MAX = 8 << 20  # before more is asked for
CLOSE_TIMEOUT_S = 3.0

log = logging.getLogger(__name__)

Address = tuple[str, int]
AddressOf = Callable[[BrokerId], Address | None]


class ReplicationClient:
    """Follows leaders for one broker. `follow` and `unfollow` are for any thread."""

    def __init__(
        self,
        loop: SocketLoop,
        aside: Aside,
        *,
        cluster_id: str,
        broker: BrokerId,
        security: Security,
        find: FindPartition,
        address_of: AddressOf,
        frame_bytes_max: int,
        silence_ms: float,
    ) -> None:
        """address_of: may wait for ZooKeeper, so threads that connect call it, and never the loop. silence_ms: how long
        a leader that sends signs of life may be silent."""
        self.loop = loop
        self.aside = aside
        self.cluster_id = cluster_id
        self.broker = broker
        self.security = security
        self.find = find
        self.address_of = address_of
        self.frame_bytes_max = frame_bytes_max
        self.silence_ms = silence_ms
        self.received = Traffic()
        # Only the loop uses these two.
        self._broker_epoch = -1
        self._links = FollowedLeaders(lambda leader: FollowedLeader(self, leader, self._broker_epoch))

    def registered(self, broker_epoch: int) -> None:
        """End the connections of an earlier life of this broker: each connection says which life it belongs to. Not
        while having a partition, since this waits for the loop."""
        self.loop.call(partial(self._begin, broker_epoch), CLOSE_TIMEOUT_S)

    def _begin(self, broker_epoch: int) -> None:
        self._broker_epoch = broker_epoch
        for link in self._links.take_all():
            link.close()

    def follow(self, partition: TopicPartition, leader: BrokerId) -> None:
        self.loop.post(partial(self._links.follow, partition, leader))

    def unfollow(self, partition: TopicPartition) -> None:
        self.loop.post(partial(self._links.unfollow, partition))

    def close(self) -> None:
        """End all connections. Not on the loop, which this waits for."""
        self.registered(-1)


class FollowedLeader:
    """Follows one leader. Only the loop uses this class, except where a method says otherwise.

    What may wait is done by a thread of its own, one at a time. It posts its result: a connection whose handshake is
    over, or the leader's address.
    """

    def __init__(self, client: ReplicationClient, leader: BrokerId, broker_epoch: int) -> None:
        self._client = client
        self._loop = client.loop
        self._leader = leader
        self._broker_epoch = broker_epoch
        self._end = FollowerEnd(silence_ms=client.silence_ms)
        self._address: Address | None = None
        self._connection: FollowedConnection | None = None
        self._connecting: socket.socket | None = None
        self._is_busy = False  # a thread is connecting, or the next one rests before that

    def follow(self, partition: TopicPartition) -> None:
        self._end.follow(partition)
        if self._connection is not None:
            self._loop.touch(self._connection)
        elif not self._is_busy:
            self._connect()

    def unfollow(self, partition: TopicPartition) -> None:
        self._end.unfollow(partition)

    def close(self) -> None:
        self._end.close()
        if self._connecting is not None:
            hang_up(self._connecting)
        if self._connection is not None:
            self._loop.end(self._connection, BrokerNotAvailable("this broker follows nobody in that life any longer"))

    # Connecting.

    def _connect(self) -> None:
        self._is_busy = not self._end.closed and self._end.follows  # without a partition to follow it does not connect
        if self._is_busy:
            thread = threading.Thread(target=self._shake_hands, name=f"replication-to-{self._leader}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the process may have no more threads
                self.ended(BrokerNotAvailable(f"no thread to connect: {error}"))

    def _shake_hands(self) -> None:
        """On a thread of its own."""
        client = self._client
        try:
            address = client.address_of(self._leader)
            self._loop.post(partial(self._looked_up, address))
            if address is None:
                raise BrokerNotAvailable(f"broker {self._leader} is not registered")
            connection = socket.create_connection(address, timeout=CONNECT_TIMEOUT_S)
        except (OSError, ReplicationError) as error:
            self._loop.post(partial(self.ended, error))
            return
        self._loop.post(partial(self._opened, connection))
        try:
            tune(connection)
            channel = client.security.connected(connection, address[0], HELLO_TIMEOUT_S)
            receiver = FrameReceiver(channel, client.frame_bytes_max)
            hello = HelloFrame(
                cluster_id=client.cluster_id,
                broker_id=client.broker,
                broker_epoch=self._broker_epoch,
                port=address[1],
            )
            introduce(channel, receiver, hello, client.security.own_tokens, HELLO_TIMEOUT_S)
            channel.setblocking(False)
        except (OSError, ReplicationError) as error:
            connection.close()
            self._loop.post(partial(self.ended, error))
            return
        self._loop.post(partial(self._connected, channel, receiver))

    def _looked_up(self, address: Address | None) -> None:
        self._end.looked_up(has_moved=self._address != address)
        self._address = address

    def _opened(self, connection: socket.socket) -> None:
        self._connecting = connection
        if self._end.closed:
            hang_up(connection)

    def _connected(self, channel: Channel, receiver: FrameReceiver) -> None:
        self._connecting = None
        if self._end.closed:
            channel.close()
            return
        self._end.connected(loop_ms())
        self._connection = FollowedConnection(self, self._client, self._end, channel, receiver)
        self._connection.begin()

    def ended(self, error: OSError | ReplicationError) -> None:
        """Connecting has failed, or the connection is over: connects again after a rest."""
        self._connecting = self._connection = None
        if self._end.closed:
            return
        level = logging.INFO if isinstance(error, (OSError, BrokerNotAvailable)) else logging.WARNING
        log.log(level, "replication from broker %s at %s: %s", self._leader, self._address, error)
        self._is_busy = True
        self._loop.at(loop_ms() + self._end.ended(), self._connect)

    # The leader's address.

    def look_up(self, refused: FollowedConnection) -> None:
        """Look the leader's address up, after a refusal over that connection."""
        thread = threading.Thread(target=self._find, args=(refused,), name="replication-look-up", daemon=True)
        with contextlib.suppress(RuntimeError):  # the process may have no more threads: the next refusal tries again
            thread.start()

    def _find(self, refused: FollowedConnection) -> None:
        """On a thread of its own."""
        self._loop.post(partial(self._found, refused, self._client.address_of(self._leader)))

    def _found(self, refused: FollowedConnection, address: Address | None) -> None:
        if self._connection is refused and address != self._address:
            self._loop.end(refused, BrokerNotAvailable(f"broker {self._leader} is no longer at {self._address}"))

    @property
    def leader(self) -> BrokerId:
        return self._leader


class FollowedConnection(Connected):
    def __init__(
        self,
        link: FollowedLeader,
        client: ReplicationClient,
        end: FollowerEnd,
        channel: Channel,
        receiver: FrameReceiver,
    ) -> None:
        super().__init__(channel)
        self._link = link
        self._client = client
        self._end = end
        self._channel = channel
        self._receiver = receiver
        self._taking = Taking(self._received)
        self._came_ms = 0.0  # when it last took what has come
        #: What is to be tried again, by its error's code, and was not logged yet.
        self._failures: dict[str, list[tuple[TopicPartition, ReplicationError]]] = {}

    def begin(self) -> None:
        if self._client.loop.add(self):
            self._client.loop.perform(self, self.came)  # no poll reports what came with the last bytes of the handshake

    def came(self) -> None:
        """Take everything that has come before it fetches again: what is fetched together is answered together."""
        self._came_ms = loop_ms()
        until_ms = self._came_ms + MOMENT_MS
        taken = self._taking.go_on(until_ms)
        while not self._taking.left and taken < RECEIVED_BYTES_MAX:
            came_before = self._receiver.came_bytes
            self._taking.add(self._receiver.receive())
            if self._receiver.came_bytes > came_before:
                self._end.heard(self._came_ms)
            taken += self._taking.go_on(until_ms)
            if self._receiver.is_drained:
                return

    def turn(self, now_ms: float) -> float:
        if self._taking.left or self._end.is_silent(now_ms):  # the loop itself may have been elsewhere for as long
            self.came()
            if not self._taking.left and self._end.is_silent(now_ms):
                silence_s = self._end.silence_ms / 1000
                raise BrokerNotAvailable(
                    f"nothing has come for {silence_s:.1f} s from a leader that says that it lives"
                )
        if self._failures:
            self._tell_failures()
        # Those of partitions that another thread had before are asked already.
        is_sent = self.outbox.flush() and self._send_fetches()
        while is_sent and (due := self._end.take_due(now_ms)):
            ask(self._end, due, self._client.find, self._wake)
            is_sent = self._send_fetches()
        if self._taking.left:
            return now_ms
        wait_ms = self._end.wait_ms(now_ms) if is_sent else None
        return math.inf if wait_ms is None else now_ms + wait_ms

    def _send_fetches(self) -> bool:
        """Return whether all is sent."""
        frame = self._end.frame()
        if frame is None:
            return True
        self.outbox.put(encoded(frame))
        return self.outbox.flush()

    def _wake(self) -> None:
        self._client.loop.touch(self)

    def ended(self, error: OSError | ReplicationError) -> None:
        self._tell_failures()
        self._taking.drop()
        self._receiver.free()
        self._channel.close()
        self._link.ended(error)

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
        except ReplicationError as error:
            self._failed(partition, error)
            return
        then = partial(self._taken, partition, records)
        if self._end.may_wait(fetch, answer, self._came_ms):
            kept = None if records is None else records.kept()
            take_it = partial(take_and_wait, self._end, fetch, answer, kept, self._client.find, loop_ms)
            self._client.aside.do(
                self, take_it, lambda came: then(came if isinstance(came, Taken) else Taken(came, 0.0))
            )
        else:
            take(self._end, fetch, answer, records, self._client.find, then, clock_ms=loop_ms)

    def _taken(self, partition: TopicPartition, records: LogSlice | None, taken: Taken) -> None:
        self._end.took(partition, taken.took_ms, loop_ms(), wrote=records is not None)
        self._wake()  # this may not be within its turn
        outcome = taken.outcome
        if isinstance(outcome, ReplicationError):
            self._failed(partition, outcome)
            return
        if outcome is not None:
            self._tell_cut(partition, outcome)
        if records is not None:
            self._client.received.carried(records)
        self._end.answered(partition)

    def _tell_cut(self, partition: TopicPartition, cut: Cut) -> None:
        text = (
            "%s: cut from %d to %d, where it parts from the log of broker %d; %d of these rows were known as committed"
        )
        log.log(
            logging.ERROR if cut.committed else logging.INFO,
            text,
            *(partition, cut.end, cut.to, self._link.leader, cut.committed),
            extra={"partition": partition},
        )

    def _failed(self, partition: TopicPartition, error: ReplicationError) -> None:
        if error.retriable:
            self._failures.setdefault(error.code, []).append((partition, error))  # told in its turn, which follows
        else:
            self._tell(logging.ERROR, partition, error)
        if self._end.failed(partition, error, loop_ms()):
            self._link.look_up(self)

    def _tell_failures(self) -> None:
        """In one line for all that have failed alike: a broker that stops refuses thousands of partitions at once."""
        failures, self._failures = self._failures, {}
        for alike in failures.values():
            (partition, error), others = alike[0], len(alike) - 1
            if others:
                text = "replication of %s and %d others from broker %s: %s"
                log.info(text, partition, others, self._link.leader, error)
            else:
                self._tell(logging.INFO, partition, error)

    def _tell(self, level: int, partition: TopicPartition, error: ReplicationError) -> None:
        text = "replication of %s from broker %s: %s"
        log.log(level, text, partition, self._link.leader, error, extra={"partition": partition})


def _records(answer: FetchedPartition, payload: memoryview) -> LogSlice | None:
    """The stored bytes that came with an answer, as views of them."""
    stored = StoredBatches.of(answer, payload)
    if stored is None:
        return None
    return LogSlice(
        first_offset=answer.offset,
        next_offset=last_offset_at(stored.entries, len(stored.entries) // ENTRY_BYTES - 1) + 1,
        segment_base=answer.segment_base,
        schema=stored.schema,
        entries=stored.entries,
        data=stored.data,
    )

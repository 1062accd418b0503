"""Pipelining producers: the production window, and the production end in the broker, over simulated connections.

As in client.producing.sender, all that the window gives goes out at once. A refusal ends the lane. The next lane sends
again what is left, over the connection to its leader that an earlier lane has left there, if that is still open.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple

from crc32c import crc32c

from spark_replication.config import Compression
from spark_replication.core.replica.producers import OffsetSpan
from spark_replication.engine.client.window import Send, Window
from spark_replication.engine.ends.put_end import Buffer, KeptBytes, PendingPut, PutEnd, PutStream, UnappendedPut
from spark_replication.engine.ends.puts import numbers_of
from spark_replication.engine.replica.replica_loop import ReplicaLoop
from spark_replication.errors import (
    BatchTooLarge,
    OutOfOrderSequence,
    Overloaded,
    ReplicationError,
    UnknownProducerId,
)
from spark_replication.messages.lane import PutFrame
from spark_replication.messages.records import BatchMetadata
from spark_replication.model import TopicPartition
from spark_replication.ports import PreparedBatch
from spark_replication.sim.cast.broker import BrokerProcess
from spark_replication.sim.cast.clients import Client, Cluster
from spark_replication.sim.judges.story import digest_of
from spark_replication.sim.world.network import Stream
from spark_replication.sim.world.world import World
from spark_replication.storage.format.batches import topic_schema

TICK_MS = (8, 40)
RETRY_MS = (10, 60)
STALL_MS = 200
DEADLINE_MS = 900
SENDS_PROBABILITY = 0.1  # at a tick
SENDS_TOGETHER_MAX = 4
IN_FLIGHT_MAX = 6
ANOTHER_PROBABILITY = 0.3  # once all is answered, another producer begins, of which brokers know nothing
TOO_LARGE_PROBABILITY = 0.05
OVERLOADED_PROBABILITY = 0.01
LARGE_PROBABILITY = 0.1
LARGE_BYTES = 64  # such a batch is appended aside
ASIDE_MS = (0, 15)
ANSWERED_MS = 500  # so long a broker waits for followers before it answers that it does not know
KEPT_BYTES_MAX = 1 << 20
LEFT_MS = (1, 60)
IDLE_MS = 600  # so long a connection outlives its last lane
TOO_LARGE = b"too large"
FIRST_ID = 1_000  # the ids of other producers are lower


class BrokerEnd(PutEnd):
    """The production machine in a simulated broker. The judges hear of what is appended and acknowledged."""

    large_bytes_min = LARGE_BYTES

    def __init__(self, connection: Connection, client: Client) -> None:
        leader, world = connection.leader, client.world
        super().__init__(
            leader.loop.partition,
            self._prepared,
            SimulatedAside(world, leader),
            KeptBytes(KEPT_BYTES_MAX),
            timeout_ms=ANSWERED_MS,
            unanswered_max=10 * IN_FLIGHT_MAX,
            clock_ms=lambda: world.now_ms,
            now_ms=leader.clock_ms,
            accepted=lambda _batch: None,
            wake=lambda: world.after(0, "answers are known", connection.tell, on=leader),
        )
        self._connection = connection
        self._world = world
        self._checkers = client.cluster.checkers

    def _prepared(
        self, stream: PutStream, frame: PutFrame, payload: Buffer, _compression: Compression
    ) -> PreparedBatch:
        content = bytes(payload)
        if content.endswith(TOO_LARGE):
            raise BatchTooLarge("it is too large")
        if self._world.chance(OVERLOADED_PROBABILITY):
            raise Overloaded("too many appends wait: retry later")
        head = topic_schema(self._connection.leader.loop.config(stream.topic)).head
        numbers = numbers_of(frame.batch)
        digest = digest_of(content) if numbers.pop("any_order") else 0
        return PreparedBatch(1, content, frame.crc, head, **numbers, digest=digest)

    def produce(self, put: UnappendedPut, batch: PreparedBatch, replica: ReplicaLoop) -> None:
        offset = replica.log.log_end
        super().produce(put, batch, replica)
        if replica.log.log_end > offset:  # it was not there already
            self._world.counts["pipelined"] += 1
            self._checkers.appended(self._connection.leader.broker, replica, offset, batch.schema)

    def filled(self, answer: PendingPut) -> None:
        if isinstance(answer.outcome, OffsetSpan):
            sent = self._connection.sent[answer.number]
            replica = self._connection.leader.loop.partition(sent.target).unguarded
            self._checkers.acknowledged(replica, answer.outcome.base_offset, sent.content)
        super().filled(answer)


class SimulatedAside:
    """Another thread of the broker: what it does comes late, and so do the results."""

    def __init__(self, world: World, broker: BrokerProcess) -> None:
        self._world = world
        self._broker = broker

    def do(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        def done() -> None:
            result = work()
            self._later("comes back from aside", lambda: then(result))

        self._later("works aside", done)

    def _later(self, what: str, action: Callable[[], None]) -> None:
        self._world.after(self._world.between(*ASIDE_MS), what, action, on=self._broker)


class Sent(NamedTuple):
    lane: Lane
    target: TopicPartition
    content: bytes
    sequence: int


class Connection:
    """A connection to one broker process."""

    def __init__(self, client: Pipeline, leader: BrokerProcess) -> None:
        network = client.cluster.network
        self.leader = leader
        #: Whether nothing was lost on it.
        self.open = True
        #: When its last lane was given up.
        self.left_ms = 0
        #: By number.
        self.sent: list[Sent] = []
        self._client = client
        self._world = client.world
        self._forth = Stream(client.world, network, client.name, leader.name, leader)
        self._back = Stream(client.world, network, leader.name, client.name, client)
        self._end = BrokerEnd(self, client)
        self._streams: dict[tuple[str, str], int] = {}  # by topic and topic id

    def send(self, lane: Lane, target: TopicPartition, content: bytes, metadata: BatchMetadata) -> None:
        assert metadata.sequence is not None
        key = target.topic, lane.topic_id
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = len(self._streams)
            self._say("stream", partial(self._end.opened, stream, *key, None), key)
        frame = PutFrame(stream=stream, number=len(self.sent), crc=crc32c(content), batch=metadata)
        self.sent.append(Sent(lane, target, content, metadata.sequence))
        self._say("put", lambda: self._came(frame, content), (content, metadata.epoch, metadata.sequence))

    def leave(self) -> None:
        """The client connects elsewhere. The broker hears of it."""
        self._world.after(self._world.between(*LEFT_MS), "a connection has ended", self._end.closed, on=self.leader)

    def _say(self, what: str, action: Callable[[], None], about: object) -> None:
        self.open = self.open and self._forth.send(what, action, about=about)

    # In the broker

    def _came(self, frame: PutFrame, content: bytes) -> None:
        self._world.after(ANSWERED_MS, "an answer may be late", self.tell, on=self.leader)
        received = bytearray(content)
        self._end.put(frame, memoryview(received))
        received[:] = bytes(len(received))  # the buffer is used again

    def tell(self) -> None:
        self._end.expire()
        known = [(self.sent[each.number], each.outcome) for each in self._end.take_known()]
        if known:
            about = [(sent.content, outcome) for sent, outcome in known]
            self.open = self.open and self._back.send("puts are answered", lambda: self._told(known), about=about)

    # In the client

    def _told(self, known: Sequence[tuple[Sent, OffsetSpan | ReplicationError | None]]) -> None:
        for sent, outcome in known:
            assert outcome is not None
            self._client.answered(sent, outcome)


class Lane:
    """What one epoch of the window sends on a connection. Answers are handed on in the order of the batches."""

    def __init__(self, connection: Connection, topic_id: str, epoch: int) -> None:
        self.connection = connection
        self.topic_id = topic_id
        self.epoch = epoch
        self.owed: deque[int] = deque()
        self.early: dict[int, OffsetSpan | ReplicationError] = {}


class Pipeline(Client):
    """One producer that writes to one partition at a time. A subclass gives it a window (`_begin`), and calls `_look`
    again and again."""

    #: As in BatchMetadata.
    any_order = False
    _target: TopicPartition | None = None

    def _begin(self, producer: int, window: Window[None]) -> None:
        self._id = producer
        self._window = window
        self._lane: Lane | None = None
        self._connections: dict[BrokerProcess, Connection] = {}
        self._not_before_ms = 0
        self._progress_ms = 0

    def _add(self, content: bytes) -> bool:
        """Add a batch to the window. False if there is no room for it."""
        send: Send[None] = Send(
            batch=content,
            kind=None,
            rows=1,
            bytes=len(content),
            deadline_s=(self.world.now_ms + DEADLINE_MS) / 1000,
            future=Future(),
        )
        if not self._window.has_room(send):
            return False
        self._window.add(send, self.world.now_ms / 1000)
        self._window.close_last()
        return True

    def _look(self) -> None:
        self._expire()
        self._look_at_lane()
        self._pump()

    def _expire(self) -> None:
        self._window.expire(self.world.now_ms / 1000)
        if self._lane is not None and self._lane.epoch != self._window.epoch:
            self._give_up()

    def _look_at_lane(self) -> None:
        """Give a lane up if answers stay away because the stream has broken, or the leader is gone, or is another."""
        assert self._target is not None
        if self._lane is None or self.world.now_ms - self._progress_ms < STALL_MS:
            return
        connection = self._lane.connection
        self.reload(self._target.topic)
        self._progress_ms = self.world.now_ms
        is_broken = not connection.open or not connection.leader.alive
        if is_broken or self.leader_of(self._target) is not connection.leader:
            if is_broken:
                self._leave(connection)
            self._give_up()

    def _leave(self, connection: Connection) -> None:
        del self._connections[connection.leader]
        connection.leave()

    def _give_up(self) -> None:
        if self._lane is not None:
            self._lane.connection.left_ms = self.world.now_ms
            self._lane = None
        self._window.interrupted()

    def _connection_to(self, leader: BrokerProcess) -> Connection:
        """The present connection, or a new one. No lane is on any: those to other leaders end once they are idle."""
        for connection in list(self._connections.values()):
            is_idle = self.world.now_ms >= connection.left_ms + IDLE_MS
            if not connection.open or (is_idle and connection.leader is not leader):
                self._leave(connection)
        if leader not in self._connections:
            self._connections[leader] = Connection(self, leader)
        return self._connections[leader]

    def _pump(self) -> None:
        """Send all that may go."""
        assert self._target is not None
        if self._lane is None and self._window and self.world.now_ms >= self._not_before_ms:
            leader = self.leader_of(self._target)
            if leader is None:
                self.reload(self._target.topic)
                return
            topic_id = self.routing.route(*self._target).topic_id
            self._lane = Lane(self._connection_to(leader), topic_id, self._window.epoch)
            self._progress_ms = self.world.now_ms
        lane = self._lane
        while lane is not None and lane.connection.open and self._window.next_unsent is not None:
            pending = self._window.send_next()
            assert pending.sequence is not None, "it has been sent"
            self._transmit(lane, self._target, pending.sends[0].batch, pending.sequence)

    def _transmit(self, lane: Lane, target: TopicPartition, content: bytes, sequence: int) -> None:
        metadata = BatchMetadata(
            producer=self._id,
            epoch=lane.epoch,
            sequence=sequence,
            partition=target.partition,
            acks="all",
            any_order=self.any_order,
        )
        lane.owed.append(sequence)
        lane.connection.send(lane, target, content, metadata)

    # Answers

    def answered(self, sent: Sent, outcome: OffsetSpan | ReplicationError) -> None:
        lane = sent.lane
        lane.early[sent.sequence] = outcome
        while self._lane is lane and lane.owed and lane.owed[0] in lane.early:
            self._progress_ms = self.world.now_ms
            first = lane.early.pop(lane.owed.popleft())
            if isinstance(first, OffsetSpan):
                self._window.acknowledged()
                self._acknowledged()
            else:
                self._refused(first)
        self._pump()

    def _acknowledged(self) -> None:
        """A batch is stored, and its answer has come."""

    def _refused(self, error: ReplicationError) -> None:
        self.world.counts[f"refused_{error.code}"] += 1
        self._window.refused(
            retriable=error.retriable,
            out_of_order=isinstance(error, OutOfOrderSequence),
            forgotten=isinstance(error, UnknownProducerId),
            of_content=isinstance(error, BatchTooLarge),
            maybe_written=error.maybe_written,
        )
        self._give_up()
        if error.stale_routes and self._target is not None:
            self.reload(self._target.topic)
        if error.retriable:
            self._not_before_ms = self.world.now_ms + self.world.between(*RETRY_MS)


class PipelinedProducer(Pipeline):
    """Becomes another producer, at times, once everything that it has sent is answered. When it is stopped, it has a
    last batch to send, and sends it until that is acknowledged."""

    def __init__(self, number: int, cluster: Cluster) -> None:
        super().__init__(f"w{number}", cluster)
        self._last_is_stored = False
        self._number = number
        self._lives = 0
        self._begin_life()

    def _begin_life(self) -> None:
        self._begin(
            FIRST_ID * (self._number + 1) + self._lives,
            Window(batches_max=IN_FLIGHT_MAX, bytes_max=1 << 20, batch_bytes=0),
        )
        self._lives += 1
        self._sends = 0

    def start(self) -> None:
        self.world.after(self.world.between(*TICK_MS), "looks", self._tick, on=self)

    def _tick(self) -> None:
        there = self.cluster.topics()
        if self._target not in there and there:
            self._begin_life()
            self._target = there[self._number % len(there)]
        if self._target in there:
            self._send_some()
            self._look()
        if not self.is_through:
            self.world.after(self.world.between(*TICK_MS), "looks", self._tick, on=self)

    @property
    def is_through(self) -> bool:
        return self.stopped and not self._window and (self._last_is_stored or not self.cluster.topics())

    def _acknowledged(self) -> None:
        self._last_is_stored = self.stopped

    def _send_some(self) -> None:
        if self.stopped:
            if not self._window and not self._last_is_stored:
                self._add(b"w%d.%d" % (self._id, self._sends))
                self._sends += 1
            return
        if not self.world.chance(SENDS_PROBABILITY):
            return
        if not self._window and self.world.chance(ANOTHER_PROBABILITY):
            self._begin_life()
        for _ in range(self.world.between(1, SENDS_TOGETHER_MAX)):
            kind = TOO_LARGE if self.world.chance(TOO_LARGE_PROBABILITY) else b""
            if self.world.chance(LARGE_PROBABILITY):
                kind = b"." * LARGE_BYTES + kind
            if not self._add(b"w%d.%d%s" % (self._id, self._sends, kind)):
                return
            self._sends += 1

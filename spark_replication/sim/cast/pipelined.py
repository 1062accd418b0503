"""Pipelining producers: the production window and refusals, over simulated streams.

As in client.sender, all that the window gives goes out at once. A refusal ends the lane. The next lane sends again what
is left, over the same stream if that still goes to the leader.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future

from crc32c import crc32c

from spark_replication.client.window import Send, Window
from spark_replication.core.replica.producers import Place
from spark_replication.core.replica.refused_lanes import RefusedLanes
from spark_replication.engine.replica_loop import ReplicaLoop
from spark_replication.engine.waiters import Acknowledge
from spark_replication.errors import (
    BatchTooLarge,
    OutOfOrderSequence,
    Overloaded,
    ReplicationError,
    UnknownProducerId,
)
from spark_replication.messages.records import BatchMetadata
from spark_replication.model import TopicPartition
from spark_replication.ports import PreparedBatch
from spark_replication.sim.cast.broker import BrokerProcess
from spark_replication.sim.cast.clients import Client, Cluster
from spark_replication.sim.world.network import Stream
from spark_replication.storage.batches import topic_schema

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
TOO_LARGE = b"too large"
FIRST_ID = 1_000  # the ids of other producers are lower


class PutStream:
    """A stream to one broker process."""

    def __init__(self, client: Client, leader: BrokerProcess) -> None:
        network = client.cluster.network
        self.leader = leader
        self.forth = Stream(client.world, network, client.name, leader.name, leader)
        self.back = Stream(client.world, network, leader.name, client.name, client)
        #: What the broker has refused on this stream.
        self.refused = RefusedLanes()
        #: Whether nothing was lost on this stream.
        self.open = True


class Lane:
    """What one epoch of the window sends on a stream. Answers are handed on in the order of the batches."""

    def __init__(self, stream: PutStream, epoch: int) -> None:
        self.stream = stream
        self.epoch = epoch
        self.owed: deque[int] = deque()
        self.early: dict[int, Place | ReplicationError] = {}


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
        self._stream: PutStream | None = None
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
        stream = self._lane.stream
        self.reload(self._target.topic)
        self._progress_ms = self.world.now_ms
        if not stream.open or not stream.leader.alive or self.leader_of(self._target) is not stream.leader:
            self._stream = None
            self._give_up()

    def _give_up(self) -> None:
        self._lane = None
        self._window.interrupted()

    def _pump(self) -> None:
        """Send all that may go."""
        assert self._target is not None
        if self._lane is None and self._window and self.world.now_ms >= self._not_before_ms:
            leader = self.leader_of(self._target)
            if leader is None:
                self.reload(self._target.topic)
                return
            if self._stream is None or not self._stream.open or self._stream.leader is not leader:
                self._stream = PutStream(self, leader)
            self._lane = Lane(self._stream, self._window.epoch)
            self._progress_ms = self.world.now_ms
        lane = self._lane
        while lane is not None and lane.stream.open and self._window.next_unsent is not None:
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
        lane.stream.open = lane.stream.forth.send(
            "put", lambda: self._arrived(lane, target, content, metadata), about=(content, lane.epoch, sequence)
        )

    # In the broker

    def _arrived(self, lane: Lane, target: TopicPartition, content: bytes, metadata: BatchMetadata) -> None:
        stream = lane.stream
        sequence = metadata.sequence
        assert sequence is not None

        def acknowledge(outcome: Place | ReplicationError) -> None:
            if isinstance(outcome, Place):
                replica = stream.leader.loop.partition(target).unguarded
                self.cluster.checkers.acknowledged(replica, outcome.base_offset, content)
            stream.open = stream.open and stream.back.send(
                "put is answered", lambda: self._answered(lane, sequence, outcome), about=outcome
            )

        def append(replica: ReplicaLoop) -> None:
            try:
                stream.refused.check(metadata)
                self._append(stream.leader, replica, content, metadata, acknowledge)
            except ReplicationError as error:
                refuse(error)

        def refuse(error: ReplicationError) -> None:
            stream.refused.refused(metadata)
            acknowledge(error)

        try:
            stream.leader.loop.partition(target).post(append)
        except ReplicationError as error:
            refuse(error)

    def _append(
        self,
        leader: BrokerProcess,
        replica: ReplicaLoop,
        content: bytes,
        metadata: BatchMetadata,
        acknowledge: Acknowledge,
    ) -> None:
        if content.endswith(TOO_LARGE):
            raise BatchTooLarge("it is too large")
        if self.world.chance(OVERLOADED_PROBABILITY):
            raise Overloaded("too many appends wait: retry later")
        assert metadata.producer is not None
        assert metadata.sequence is not None
        head = topic_schema(leader.loop.config(replica.partition.topic)).head
        numbers = metadata.producer, metadata.epoch, metadata.sequence
        batch = PreparedBatch(1, content, crc32c(content), head, *numbers, any_order=metadata.any_order)
        offset = replica.log.log_end
        replica.produce(batch, acks="all", now_ms=leader.clock_ms(), acknowledge=acknowledge)
        if replica.log.log_end > offset:
            self.world.counts["pipelined"] += 1
            self.cluster.checkers.appended(leader.broker, replica, offset, head)

    # Answers

    def _answered(self, lane: Lane, sequence: int, outcome: Place | ReplicationError) -> None:
        lane.early[sequence] = outcome
        while self._lane is lane and lane.owed and lane.owed[0] in lane.early:
            self._progress_ms = self.world.now_ms
            first = lane.early.pop(lane.owed.popleft())
            if isinstance(first, Place):
                self._window.acknowledged()
            else:
                self._refused(first)
        self._pump()

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
    """Becomes another producer, at times, once everything that it has sent is answered."""

    def __init__(self, number: int, cluster: Cluster) -> None:
        super().__init__(f"w{number}", cluster)
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
        if not self.stopped or self._window:
            self.world.after(self.world.between(*TICK_MS), "looks", self._tick, on=self)

    def _send_some(self) -> None:
        if self.stopped or not self.world.chance(SENDS_PROBABILITY):
            return
        if not self._window and self.world.chance(ANOTHER_PROBABILITY):
            self._begin_life()
        for _ in range(self.world.between(1, SENDS_TOGETHER_MAX)):
            kind = TOO_LARGE if self.world.chance(TOO_LARGE_PROBABILITY) else b""
            if not self._add(b"w%d.%d%s" % (self._id, self._sends, kind)):
                return
            self._sends += 1

"""Pipelining producers: the sending machine and its lanes, and the production end in the broker, over simulated
connections.

What carries the lanes in the product (`client.producing.lane`) is a socket and a loop. Here it is two streams, which
break as sockets do. A leader is found as `client.producing.leaders` finds it: by what some broker tells.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple

from crc32c import crc32c

from spark_replication.config import Compression
from spark_replication.core.replica.producers import OffsetSpan
from spark_replication.core.routing import Route
from spark_replication.engine.client.lanes import Lane, LeaderStreams, Outgoing
from spark_replication.engine.client.numbers import Identity
from spark_replication.engine.client.sending import Ack, SenderSettings, Sending, Settled
from spark_replication.engine.client.window import Send
from spark_replication.engine.ends.put_end import Buffer, KeptBytes, PutEnd, PutStream, UnappendedPut, told
from spark_replication.engine.ends.puts import OwedPuts, PendingPut, numbers_of
from spark_replication.engine.replica.replica_loop import ReplicaLoop
from spark_replication.errors import BatchTooLarge, BrokerNotAvailable, ClientClosed, Overloaded, ReplicationError
from spark_replication.messages.envelope import NONE
from spark_replication.messages.lane import PutAnswer, PutFrame
from spark_replication.model import TopicPartition
from spark_replication.ports import PreparedBatch
from spark_replication.sim.cast.broker import BrokerProcess
from spark_replication.sim.cast.clients import Client, Cluster
from spark_replication.sim.judges.story import digest_of
from spark_replication.sim.world.network import Stream
from spark_replication.sim.world.world import InvariantBroken, World
from spark_replication.storage.format.batches import topic_schema

TICK_MS = (8, 40)
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
NOTICED_MS = (20, 120)  # so soon it is known that nobody is there any more
ASK_MS = 80  # so long a broker has to say who leads
TOO_LARGE = b"too large"
FIRST_ID = 1_000  # the ids of other producers are lower
SETTINGS = SenderSettings(
    acks="all",
    deadline_ms=900,
    in_flight_batches_max=IN_FLIGHT_MAX,
    in_flight_bytes_max=1 << 20,
    linger_ms=5,
    batch_bytes=0,
    stall_s=0.2,
    silence_s_max=0.4,
)


class BrokerEnd(PutEnd):
    """The production machine in a simulated broker. The judges hear of what is appended and acknowledged."""

    large_bytes_min = LARGE_BYTES

    def __init__(self, connection: Connection, leader: BrokerProcess, client: Pipeline) -> None:
        world = client.world
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
        self._leader = leader
        self._world = world
        self._checkers = client.cluster.checkers
        self.owed = JudgedPuts(self._acknowledged, timeout_ms=ANSWERED_MS, wake=self._wake)

    def _prepared(
        self, stream: PutStream, frame: PutFrame, payload: Buffer, _compression: Compression
    ) -> PreparedBatch:
        content = bytes(payload)
        if content.endswith(TOO_LARGE):
            raise BatchTooLarge("it is too large")
        if self._world.chance(OVERLOADED_PROBABILITY):
            raise Overloaded("too many appends wait: retry later")
        head = topic_schema(self._leader.loop.config(stream.topic)).head
        numbers = numbers_of(frame.batch)
        digest = digest_of(content) if numbers.pop("any_order") else 0
        return PreparedBatch(1, content, frame.crc, head, **numbers, digest=digest)

    def produce(self, put: UnappendedPut, batch: PreparedBatch, replica: ReplicaLoop) -> None:
        offset = replica.log.log_end
        super().produce(put, batch, replica)
        if replica.log.log_end > offset:  # it was not there already
            self._world.counts["pipelined"] += 1
            self._checkers.appended(self._leader.broker, replica, offset, batch.schema)

    def _acknowledged(self, answer: PendingPut) -> None:
        if isinstance(answer.outcome, OffsetSpan):
            sent = self._connection.sent[answer.number]
            replica = self._leader.loop.partition(sent.target).unguarded
            self._checkers.acknowledged(replica, answer.outcome.base_offset, sent.content)
            sent.sender.stored.add((answer.outcome.base_offset, sent.content))


class JudgedPuts(OwedPuts):
    def __init__(self, judge: Callable[[PendingPut], None], *, timeout_ms: float, wake: Callable[[], None]) -> None:
        super().__init__(timeout_ms=timeout_ms, wake=wake)
        self._judge = judge

    def filled(self, answer: PendingPut) -> None:
        self._judge(answer)
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
    sender: Sender
    target: TopicPartition
    content: bytes


class Connection:
    """A connection to one broker process, or to where one was: nobody answers there. What carries the lanes in the
    product is a socket and a loop, and breaks as this does."""

    def __init__(self, client: Pipeline, leader: BrokerProcess | None) -> None:
        self.leader = leader
        self.heard_s = 0.0
        #: Whether lanes can no longer enter.
        self.over = False
        #: By number.
        self.sent: list[Sent] = []
        self._client = client
        self._world = client.world
        self._lanes: dict[Lane, None] = {}
        self._left_ms = 0
        self._streams = LeaderStreams()
        self._is_whole = True  # nothing was lost on it
        if leader is not None:
            network = client.cluster.network
            self._forth = Stream(client.world, network, client.name, leader.name, leader)
            self._back = Stream(client.world, network, leader.name, client.name, client)
            self._end = BrokerEnd(self, leader, client)
        self._look_again()

    # What lanes need

    def waits_for(self, _now_s: float) -> str:
        return ""

    def enter(self, lane: Lane) -> None:
        self._lanes[lane] = None

    def leave(self, lane: Lane) -> None:
        self._lanes.pop(lane, None)
        self._left_ms = self._world.now_ms

    def ask_at(self, at_s: float, lane: Lane) -> None:
        self._client.at(at_s, "sends", partial(self._send_next, lane))

    def abandon(self, why: str) -> None:
        self._client.at(0, "abandons a connection", partial(self._ended, f"{why}: retry"))

    # In the client

    def _look(self) -> None:
        """The end of a process breaks its connections. A lost message breaks this one, and nobody is told."""
        if self.leader is None or not self.leader.alive:
            self._ended("nobody is there: retry")
        elif not self._lanes and self._world.now_ms >= self._left_ms + IDLE_MS:
            self._ended("nobody sends over it")
        if not self.over:
            self._look_again()

    def _look_again(self) -> None:
        self._world.after(self._world.between(*NOTICED_MS), "looks at a connection", self._look, on=self._client)

    def _ended(self, why: str) -> None:
        if self.over:
            return
        self.over = True
        if self.leader is not None:  # the broker hears of it
            self._world.after(self._world.between(*LEFT_MS), "a connection has ended", self._end.closed, on=self.leader)
        lanes, self._lanes = self._lanes, {}
        for lane in lanes:
            lane.owner.ended(lane, BrokerNotAvailable(why, maybe_written=True))

    def _send_next(self, lane: Lane) -> None:
        outgoing = lane.owner.next_batch(lane) if self.leader is not None and lane in self._lanes else None
        if outgoing is None:
            return
        found = self._streams.stream(lane)
        assert found is not None, "few streams are open over it"
        stream, opening = found
        if opening is not None:
            self._say("stream", partial(self._end.opened, stream, opening.topic, opening.topic_id, None), opening.topic)
        (content,) = outgoing.sends
        metadata = outgoing.metadata
        frame = PutFrame(stream=stream, number=self._streams.sends(lane), crc=crc32c(content), batch=metadata)
        assert isinstance(lane.owner, Sender)
        self.sent.append(Sent(lane.owner, TopicPartition(lane.route.topic, lane.route.partition), content))
        self._say("put", lambda: self._came(frame, content), (content, metadata.epoch, metadata.sequence))

    def _say(self, what: str, action: Callable[[], None], about: object) -> None:
        self._is_whole = self._is_whole and self._forth.send(what, action, about=about)

    # In the broker

    def _came(self, frame: PutFrame, content: bytes) -> None:
        self._world.after(ANSWERED_MS, "an answer may be late", self.tell, on=self.leader)
        received = bytearray(content)
        self._end.put(frame, memoryview(received))
        received[:] = bytes(len(received))  # the buffer is used again

    def tell(self) -> None:
        self._end.owed.expire(self._world.now_ms)
        answers = [told(each) for each in self._end.owed.take()]
        if answers:
            self._is_whole = self._is_whole and self._back.send(
                "puts are answered", lambda: self._told(answers), about=[answer.error for answer in answers]
            )

    # In the client

    def _told(self, answers: Sequence[PutAnswer]) -> None:
        if self.over:
            return
        for answer in answers:
            if answer.error != NONE:
                self._world.counts[f"refused_{answer.error}"] += 1
        self.heard_s = self._world.now_ms / 1_000
        for lane, found in self._streams.answered(answers):
            if lane in self._lanes:
                lane.owner.answered(lane, found)


class Sender:
    """As client.producing.sender: the machine, what it needs, and what happens to it. It finds its leader as
    client.producing.leaders does."""

    def __init__(self, client: Pipeline, target: TopicPartition, identity: Identity, *, is_fixed: bool) -> None:
        self._client = client
        self._world = client.world
        self._target = target
        self._is_stale = True
        self._asked: object = None
        self._sending = Sending(target, self, identity, SETTINGS, lambda: self._now_s, is_fixed=is_fixed)
        #: What brokers have acknowledged, by its place.
        self.stored: set[tuple[int, bytes]] = set()

    @property
    def _now_s(self) -> float:
        return self._world.now_ms / 1_000

    @property
    def is_idle(self) -> bool:
        return not self._sending.window

    @property
    def is_over(self) -> bool:
        return self._sending.is_over

    def send(self, content: bytes) -> bool:
        """False if there is no room for it."""
        send: Send[Ack] = Send(
            batch=content,
            kind=None,
            rows=1,
            bytes=len(content),
            deadline_s=self._now_s + SETTINGS.deadline_ms / 1_000,
            future=Future(),
        )
        has_room = self._sending.window.has_room(send)
        if has_room:
            self._settle(self._sending.add(send))
        return has_room

    def close(self) -> None:
        self._settle(self._sending.given_up(ClientClosed("another producer begins")))

    def _settle(self, settled: Settled) -> None:
        for send, outcome in settled:
            if not isinstance(outcome, Ack):
                self._client.has_failed(send.batch, outcome)
            elif (outcome.base_offset, send.batch) in self.stored:
                self._client.was_acknowledged()
            else:
                raise InvariantBroken(
                    "producers_are_told_their_own",
                    f"{self._client.name}: {send.batch!r} is said to be at {outcome.base_offset}",
                )

    # What the machine needs

    def known(self) -> Route | None:
        return None if self._is_stale else self._latest()

    def _latest(self) -> Route:
        try:
            return self._client.routing.route(*self._target)
        except ReplicationError:
            self._is_stale = True
            raise

    def stale(self, _route: Route) -> None:
        self._is_stale = True

    def ask(self, _by_s: float) -> None:
        """Ask some broker. It may not answer, or may not know."""
        asked = self._asked = object()

        def told(error: ReplicationError | None) -> None:
            if self._asked is not asked:
                return
            self._asked, self._is_stale = None, error is not None
            self._settle(self._sending.found(error or self._leader()))

        nobody = BrokerNotAvailable("no broker has answered")
        self._client.reload(self._target.topic, lambda: told(None))
        self._world.after(ASK_MS, "has asked for long enough", lambda: told(nobody), on=self._client)

    def _leader(self) -> Route | ReplicationError:
        try:
            return self._latest()
        except ReplicationError as error:
            return error

    def lane(self, route: Route, kind: Any, epoch: int) -> Lane:
        return self._client.lane(self, route, kind, epoch)

    def look_at(self, at_s: float) -> None:
        self._client.at(at_s, "looks after its batches", lambda: self._settle(self._sending.look(at_s)))

    # What connections tell it

    def next_batch(self, lane: Lane) -> Outgoing | None:
        return self._sending.next_batch(lane)

    def answered(self, lane: Lane, answers: list[PutAnswer]) -> None:
        self._settle(self._sending.answered(lane, answers))

    def ended(self, lane: Lane, error: ReplicationError) -> None:
        self._settle(self._sending.ended(lane, error))


class Pipeline(Client):
    """One producer that writes to one partition at a time. A subclass says to which (`_begin`)."""

    def __init__(self, name: str, cluster: Cluster) -> None:
        super().__init__(name, cluster)
        self._connections: dict[tuple[str, int], Connection] = {}

    def _begin(self, target: TopicPartition, identity: Identity, *, is_fixed: bool = False) -> Sender:
        return Sender(self, target, identity, is_fixed=is_fixed)

    def at(self, at_s: float, what: str, action: Callable[[], None]) -> None:
        """Do this once that time has come, and not within what is done now."""
        self.world.after(max(0, math.floor(at_s * 1_000) + 1 - self.world.now_ms), what, action, on=self)

    def lane(self, sender: Sender, route: Route, kind: Any, epoch: int) -> Lane:
        key = (route.address, route.replication_port)
        connection = self._connections.get(key)
        if connection is None or connection.over:
            leader = self.cluster.find(route.leader, self.routing.brokers[route.leader].port)
            connection = self._connections[key] = Connection(self, leader)
        lane = Lane(connection, route, kind, epoch, sender)
        connection.enter(lane)
        return lane

    def was_acknowledged(self) -> None:
        """A batch is stored, and its answer has come."""

    def has_failed(self, content: bytes, error: ReplicationError) -> None:
        """A batch has failed for good."""


class PipelinedProducer(Pipeline):
    """Becomes another producer, at times, once everything that it has sent is answered. When it is stopped, it has a
    last batch to send, and sends it until that is acknowledged."""

    def __init__(self, number: int, cluster: Cluster) -> None:
        super().__init__(f"w{number}", cluster)
        #: What it was told is not written.
        self.unwritten: set[bytes] = set()
        self._target: TopicPartition | None = None
        self._sender: Sender | None = None
        self._last_is_stored = False
        self._number = number
        self._lives = 0
        self._id = 0
        self._sends = 0

    def start(self) -> None:
        self.world.after(self.world.between(*TICK_MS), "looks", self._tick, on=self)

    def _begin_life(self, target: TopicPartition) -> Sender:
        if self._sender is not None:
            self._sender.close()
        self._target = target
        self._id = FIRST_ID * (self._number + 1) + self._lives
        self._lives += 1
        self._sends = 0
        self._sender = self._begin(target, Identity(producer=self._id))
        return self._sender

    def _tick(self) -> None:
        there = self.cluster.topics()
        sender = self._sender
        if there and (sender is None or self._target not in there):
            sender = self._begin_life(there[self._number % len(there)])
        if sender is not None and self._target is not None and self._target in there:
            self._send_some(sender, self._target)
        if not self.is_through:
            self.world.after(self.world.between(*TICK_MS), "looks", self._tick, on=self)

    @property
    def is_through(self) -> bool:
        is_answered = self._sender is None or self._sender.is_idle
        return self.stopped and is_answered and (self._last_is_stored or not self.cluster.topics())

    def was_acknowledged(self) -> None:
        self._last_is_stored = self.stopped

    def has_failed(self, content: bytes, error: ReplicationError) -> None:
        if not error.maybe_written:
            self.unwritten.add(content)

    def _send_some(self, sender: Sender, target: TopicPartition) -> None:
        if self.stopped:
            if sender.is_idle and not self._last_is_stored:
                sender.send(b"w%d.%d" % (self._id, self._sends))
                self._sends += 1
            return
        if not self.world.chance(SENDS_PROBABILITY):
            return
        if sender.is_idle and self.world.chance(ANOTHER_PROBABILITY):
            sender = self._begin_life(target)
        for _ in range(self.world.between(1, SENDS_TOGETHER_MAX)):
            kind = TOO_LARGE if self.world.chance(TOO_LARGE_PROBABILITY) else b""
            if self.world.chance(LARGE_PROBABILITY):
                kind = b"." * LARGE_BYTES + kind
            if not sender.send(b"w%d.%d%s" % (self._id, self._sends, kind)):
                return
            self._sends += 1

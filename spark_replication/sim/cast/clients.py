"""Clients of the simulated cluster, and producers that retry by the errors' flags.

They know what any client knows: metadata from some broker, routed by core.routing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from crc32c import crc32c

from spark_replication.core.replica.producers import OffsetSpan
from spark_replication.core.routing import Routing, learned
from spark_replication.engine.replica.replica_loop import ReplicaLoop
from spark_replication.errors import (
    InvalidProducerEpoch,
    OutOfOrderSequence,
    ReplicationError,
    UnknownProducerId,
)
from spark_replication.model import BrokerId, TopicPartition
from spark_replication.ports import PreparedBatch
from spark_replication.sim.cast.broker import BrokerProcess
from spark_replication.sim.judges.checkers import Checkers
from spark_replication.sim.world.network import Network
from spark_replication.sim.world.world import Process, World
from spark_replication.storage.format.batches import topic_schema

PAUSE_MS = (20, 170)
RETRY_MS = (10, 60)
TIMEOUT_MS = 260
SAME_ID_PROBABILITY = 0.1


class Cluster:
    """How clients reach brokers."""

    def __init__(
        self,
        world: World,
        network: Network,
        checkers: Checkers,
        *,
        find: Callable[[BrokerId, int], BrokerProcess | None],
        brokers: Callable[[], Sequence[BrokerProcess]],
        topics: Callable[[], Sequence[TopicPartition]],
        topic_ids: Callable[[], dict[str, str]],
    ) -> None:
        """topic_ids: those that are there, with their names."""
        self.world = world
        self.network = network
        self.checkers = checkers
        self.find = find
        self.brokers = brokers
        self.topics = topics
        self.topic_ids = topic_ids


class Client(Process):
    def __init__(self, name: str, cluster: Cluster) -> None:
        super().__init__(name)
        self.cluster = cluster
        self.world = cluster.world
        self.routing = Routing()
        self.stopped = False

    def start(self) -> None:
        raise NotImplementedError

    def reload(self, topic: str, then: Callable[[], None] = lambda: None) -> None:
        """Ask any broker for metadata, and learn from its answer if that comes, and do this."""
        living = self.cluster.brokers()
        if not living:
            return
        broker = living[self.world.between(0, len(living) - 1)]

        def asked() -> None:
            metadata = broker.loop.metadata([topic], None)

            def told() -> None:
                self.routing = learned(self.routing, metadata, [topic])
                then()

            self.cluster.network.send(broker.name, self.name, "metadata", told, to=self)

        self.cluster.network.send(self.name, broker.name, "asks for metadata", asked, to=broker, about=topic)

    def leader_of(self, partition: TopicPartition) -> BrokerProcess | None:
        try:
            route = self.routing.route(*partition)
        except ReplicationError:
            return None
        return self.cluster.find(route.leader, self.routing.brokers[route.leader].port)


class Producer(Client):
    """Sends one batch at a time, again and again until it is known to be stored, or can no longer be."""

    def __init__(self, number: int, cluster: Cluster, *, acks: int | str) -> None:
        super().__init__(f"p{number}", cluster)
        self._number = number
        self._acks = acks
        self._target: TopicPartition | None = None
        self._life = 0  # rises when another producer begins with the same id
        self._epoch = -1
        self._sequence = 0
        self._attempt = 0

    def start(self) -> None:
        self._later("produces", PAUSE_MS, self._next)

    def _later(self, what: str, delay_ms: tuple[int, int], action: Callable[[], None]) -> None:
        self.world.after(self.world.between(*delay_ms), what, action, on=self)

    def _choose(self) -> None:
        """Begin another epoch of this producer, perhaps on another partition: its sequence starts anew."""
        there = self.cluster.topics()
        if self._target not in there or self.world.chance(0.02):
            self._target = there[self._number % len(there)] if there and self.world.chance(0.7) else None
            if self._target is None and there:
                self._target = there[self.world.between(0, len(there) - 1)]
        self._epoch += 1
        self._sequence = 0
        if self.world.chance(SAME_ID_PROBABILITY):
            self._life, self._epoch = self._life + 1, 0

    def _next(self) -> None:
        if self.stopped:
            return
        if self._target is None or self._target not in self.cluster.topics():
            self._choose()
        if self._target is None:
            self._later("produces", PAUSE_MS, self._next)
        else:
            self._send()

    def _send(self) -> None:
        assert self._target is not None
        self._attempt += 1
        attempt, target, number = self._attempt, self._target, self._sequence
        leader = self.leader_of(target)
        if leader is None:
            self.reload(target.topic)
            self._later("retries", RETRY_MS, self._retry)
            return
        content = f"{self._number}.{self._life}.{self._epoch}.{number}".encode()
        epoch = self._epoch

        def arrived() -> None:
            self._produce(leader, target, content, (epoch, number), attempt)

        self.cluster.network.send(self.name, leader.name, "produce", arrived, to=leader, about=content)
        self.world.after(TIMEOUT_MS, "waits no longer", lambda: self._timed_out(attempt), on=self)

    def _produce(
        self, leader: BrokerProcess, target: TopicPartition, content: bytes, place: tuple[int, int], attempt: int
    ) -> None:
        """Append in the broker, which stores the batch in the schema version that it knows. `place` is the producer's
        epoch and its sequence."""

        def acknowledge(outcome: OffsetSpan | ReplicationError) -> None:
            if isinstance(outcome, OffsetSpan) and self._acks == "all":
                self.cluster.checkers.acknowledged(
                    leader.loop.partition(target).unguarded, outcome.base_offset, content
                )
            self.cluster.network.send(
                leader.name, self.name, "ack", lambda: self._answered(attempt, outcome), to=self, about=outcome
            )

        def append(replica: ReplicaLoop) -> None:
            offset = replica.log.log_end
            try:
                replica.produce(batch, acks=self._acks, now_ms=leader.clock_ms(), acknowledge=acknowledge)
            except ReplicationError as error:
                acknowledge(error)
            if replica.log.log_end > offset:  # it was not there already
                self.cluster.checkers.appended(leader.broker, replica, offset, head)

        try:
            head = topic_schema(leader.loop.config(target.topic)).head
            batch = PreparedBatch(1, content, crc32c(content), head, self._number, *place)
            leader.loop.partition(target).post(append)
        except ReplicationError as error:
            acknowledge(error)

    def _answered(self, attempt: int, outcome: OffsetSpan | ReplicationError) -> None:
        if attempt != self._attempt:
            return
        self._attempt += 1
        if isinstance(outcome, OffsetSpan):
            self.world.counts["produced"] += 1
            self._sequence += 1
            self._later("produces", PAUSE_MS, self._next)
            return
        if isinstance(outcome, (OutOfOrderSequence, InvalidProducerEpoch, UnknownProducerId)):
            self._choose()
        elif outcome.stale_routes and self._target is not None:
            self.reload(self._target.topic)
        self._later("retries", RETRY_MS, self._retry)

    def _timed_out(self, attempt: int) -> None:
        if attempt == self._attempt and self._target is not None:
            self.reload(self._target.topic)
            self._later("retries", RETRY_MS, self._retry)

    def _retry(self) -> None:
        if self._target is not None and self._target in self.cluster.topics():
            self._send()
        else:
            self._next()

"""The controller, one event after the other: plan, persist, apply what ZooKeeper accepted, tell, answer.

Nothing leaves before its state is in ZooKeeper (C2): between `commit` and its answer the loop takes no other event, so
every decision is made on what is stored. Single-threaded: whoever owns it feeds it from one thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from spark_replication.core.cluster import (
    BrokersRead,
    ClusterState,
    Event,
    LoadedCluster,
    PartitionsRead,
    StoredTopic,
    TookOver,
    TopicRequested,
)
from spark_replication.core.controller import BrokersMoved, Cause, PartitionsChanged, Plan, announce, plan
from spark_replication.core.writes import (
    BrokerRemoval,
    Deposed,
    Group,
    GroupAnswer,
    PartitionWrite,
    Refused,
    Stored,
    StoredPartition,
    TopicWrite,
)
from spark_replication.errors import NotController, Overloaded, ReplicationError, TopicAlreadyExists
from spark_replication.model import TopicPartition
from spark_replication.ports import CommandSender, ControllerStore, MirrorFeed

EVENTS_MAX = 100_000

Answer = Callable[[int, ReplicationError | None], None]


class ControllerLoop:
    """`answer(request, error)` is called once for each request; `deposed` once this controller has lost its place."""

    def __init__(
        self,
        loaded: LoadedCluster,
        *,
        store: ControllerStore,
        sender: CommandSender,
        mirror: MirrorFeed,
        answer: Answer,
        deposed: Callable[[], None],
    ) -> None:
        self.cluster = ClusterState(loaded)
        self._store = store
        self._sender = sender
        self._mirror = mirror
        self._answer = answer
        self._deposed = deposed
        # What is to be done next, with the request that is owed an answer when it is done.
        self._waiting: deque[tuple[Event | Cause, int | None]] = deque()
        self._storing = False
        self._advancing = False
        self._over = False

    def handle(self, event: Event) -> None:
        """Take the event in now, or after what is under way. A request past the limit is refused, not queued."""
        owed = event.request if isinstance(event, TopicRequested) else None
        if self._over:
            self._answer_owed(owed, NotController("another controller took over: ask any broker for its address"))
        elif len(self._waiting) >= EVENTS_MAX and owed is not None:
            self._answer_owed(owed, Overloaded(f"{EVENTS_MAX} events wait for the controller: retry later"))
        else:
            self._waiting.append((event, owed))
            self._advance()

    def _advance(self) -> None:
        if self._advancing:
            return  # a store that answers at once calls back into this loop: let the outer call go on
        self._advancing = True
        while self._waiting and not self._storing and not self._over:
            event, owed = self._waiting.popleft()
            cause = self._absorb(event)
            if cause is not None:
                self._carry_out(cause, owed)
        self._advancing = False

    def _absorb(self, event: Event | Cause) -> Cause | None:
        """What was read goes into the state first; None if it was known already."""
        match event:
            case BrokersRead():
                lost, started = self.cluster.apply_brokers(event)
                for broker in sorted(lost):
                    self._sender.gone(broker)
                return BrokersMoved(lost=lost, started=started)
            case PartitionsRead(partitions=partitions):
                newer = self._apply_newer(partitions)
                return PartitionsChanged(newer) if newer else None
            case _:
                return event

    def _carry_out(self, cause: Cause, owed: int | None) -> None:
        decided = plan(self.cluster, cause)
        if decided.refusal is not None:
            self._answer_owed(owed, decided.refusal)
            return
        if not decided.groups:
            self._finish(cause, decided, [], owed)
            return
        self._storing = True

        def stored(answers: list[GroupAnswer]) -> None:
            self._storing = False
            if any(isinstance(answer, Deposed) for answer in answers):
                self._step_down(owed)
            else:
                self._finish(cause, decided, answers, owed)
                self._advance()

        self._store.commit(decided.groups, stored)

    def _finish(self, cause: Cause, decided: Plan, answers: list[GroupAnswer], owed: int | None) -> None:
        written: list[TopicPartition] = []
        met: list[TopicPartition] = []
        for group, answer in zip(decided.groups, answers, strict=True):
            match answer:
                case Stored(versions=versions):
                    written.extend(self._apply(group, versions))
                case Refused(current=current):
                    met.extend(self._apply_newer(current))
                    if isinstance(cause, TopicRequested):
                        self._answer_owed(owed, TopicAlreadyExists(f"topic {cause.creation.name} exists already"))
                        return
        self._report(cause, written)
        for broker, command in announce(self.cluster, cause, written):
            self._sender.send(broker, self.cluster.registered[broker], command)
        if decided.then is not None:
            self._waiting.appendleft((decided.then, owed))
        else:
            self._answer_owed(owed, None)
        if met:
            # Decided against a state that had moved on: decide again, before anything newer.
            self._waiting.appendleft((PartitionsChanged(tuple(met)), None))

    def _apply(self, group: Group, versions: tuple[tuple[int, int], ...]) -> list[TopicPartition]:
        written = []
        for write, (version, zxid) in zip(group, versions, strict=True):
            match write:
                case PartitionWrite(partition=partition, state=state):
                    self.cluster.apply_partition(partition, StoredPartition(state, version, zxid))
                    written.append(partition)
                case TopicWrite(topic=topic, state=topic_state, config=config):
                    kept = self.cluster.topics[topic].config if config is None else config
                    self.cluster.apply_topic(topic, StoredTopic(topic_state, version, kept))
                case BrokerRemoval():
                    pass  # the watch on /brokers/ids tells of it, as of every death
        return written

    def _apply_newer(self, read: Mapping[TopicPartition, StoredPartition | None]) -> tuple[TopicPartition, ...]:
        """The partitions that somebody else wrote, newer than known here."""
        newer = tuple(
            partition
            for partition, stored in sorted(read.items())
            if stored is not None
            and partition in self.cluster.partitions
            and self.cluster.apply_partition(partition, stored)
        )
        self._mirror.changed((self.cluster.command(p), self.cluster.partitions[p].zxid) for p in newer)
        return newer

    def _report(self, cause: Cause, written: list[TopicPartition]) -> None:
        told = sorted(self.cluster.partitions) if isinstance(cause, TookOver) else written
        self._mirror.changed((self.cluster.command(p), self.cluster.partitions[p].zxid) for p in told)

    def _answer_owed(self, owed: int | None, error: ReplicationError | None) -> None:
        if owed is not None:
            self._answer(owed, error)

    def _step_down(self, owed: int | None) -> None:
        self._over = True
        gone = NotController(
            "another controller took over while this was stored: it may have been done, ask again", maybe_written=True
        )
        for request in (owed, *(waiting for _, waiting in self._waiting)):
            self._answer_owed(request, gone)
        self._waiting.clear()
        self._deposed()

"""The controller, one event after the other: plan, persist, apply what ZooKeeper accepted, tell, answer.

Nothing leaves before its state is in ZooKeeper (C2): between `commit` and its answer the loop takes no other event, so
every decision is made on what is stored. Single-threaded: whoever owns it feeds it from one thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import assert_never

import msgspec

from spark_replication.core.controller.announcing import announce, ask
from spark_replication.core.controller.cluster import ClusterState, LoadedCluster, StoredTopic
from spark_replication.core.controller.controller import plan
from spark_replication.core.controller.events import (
    BrokersRead,
    Event,
    PartitionsRead,
    ReplicasFailed,
    Requested,
    Ticked,
    TookOver,
)
from spark_replication.core.controller.plan import (
    Advance,
    BrokersMoved,
    Cause,
    Dismiss,
    PartitionsChanged,
    Plan,
    Reconsider,
    Reply,
    Step,
    Stop,
)
from spark_replication.core.controller.requests import moving, narrowed
from spark_replication.core.controller.widening import CompareSchemas
from spark_replication.core.law.writes import (
    BrokerRemoval,
    ClusterConfigWrite,
    DeletionMark,
    Deposed,
    GroupAnswer,
    PartitionRemoval,
    PartitionWrite,
    Refused,
    RequestRemoval,
    Stored,
    StoredPartition,
    TopicConfigWrite,
    TopicRemoval,
    TopicWrite,
)
from spark_replication.errors import (
    InvalidUpdateVersion,
    NotController,
    Overloaded,
    ReplicationError,
    TopicAlreadyExists,
)
from spark_replication.messages.requests import CreateTopic, DeleteTopic, Reassign
from spark_replication.model import TopicPartition
from spark_replication.ports import CommandSender, ControllerStore, MirrorFeed

EVENTS_MAX = 100_000
# How often a request is decided again because a write of it met another's.
ATTEMPTS_MAX = 20

Answer = Callable[[int, Reply], None]


class _Task(msgspec.Struct):
    """Something to do. reply: what the request whose last part this is will be answered with."""

    cause: Event | Cause
    owed: int | None = None
    reply: Reply = Reply()
    attempt: int = 1


class _Done(msgspec.Struct):
    """What of a plan was stored. removed: with the zxid of that."""

    written: list[TopicPartition]
    removed: list[tuple[TopicPartition, int]]
    stops: list[Stop]
    met: list[TopicPartition]
    refused: list[Step]


class ControllerLoop:
    """`answer(request, reply)` is called once for each request; `deposed` once this controller has lost its place."""

    def __init__(
        self,
        loaded: LoadedCluster,
        *,
        store: ControllerStore,
        sender: CommandSender,
        mirror: MirrorFeed,
        answer: Answer,
        deposed: Callable[[], None],
        now_ms: int,
        compare_schemas: CompareSchemas,
    ) -> None:
        self.cluster = ClusterState(loaded, compare_schemas)
        self.cluster.now_ms = now_ms
        self._store = store
        self._sender = sender
        self._mirror = mirror
        self._answer = answer
        self._deposed = deposed
        self._waiting: deque[_Task] = deque()
        self._ticked_ms = now_ms
        self._storing = False
        self._advancing = False
        self._over = False

    def handle(self, event: Event | Reconsider, now_ms: int) -> None:
        """Take the event in now, or after what is under way. A request past the limit is refused, not queued."""
        self.cluster.now_ms = now_ms
        owed = event.request if isinstance(event, Requested) else None
        if self._over:
            gone = NotController("another controller took over: ask any broker for its address")
            self._answer_owed(owed, Reply(gone))
        elif len(self._waiting) >= EVENTS_MAX and owed is not None:
            self._answer_owed(owed, Reply(Overloaded(f"{EVENTS_MAX} events wait for the controller: retry later")))
        else:
            self._waiting.append(_Task(event, owed))
            self._advance()

    def tick(self, now_ms: int) -> None:
        since_ms, self._ticked_ms = self._ticked_ms, now_ms
        self.handle(Ticked(since_ms), now_ms)

    def _advance(self) -> None:
        if self._advancing:
            return  # a store that answers at once calls back into this loop: let the outer call go on
        self._advancing = True
        while self._waiting and not self._storing and not self._over:
            task = self._waiting.popleft()
            cause = self._absorb(task.cause)
            if cause is not None:
                self._carry_out(cause, task)
        self._advancing = False

    def _absorb(self, event: Event | Cause) -> Cause | None:
        """What was read goes into the state first; None if it was known already."""
        match event:
            case BrokersRead():
                lost, started, stopping = self.cluster.apply_brokers(event)
                for broker in sorted(lost):
                    self._sender.gone(broker)
                moved = BrokersMoved(lost=lost, started=started, stopping=stopping)
                return moved if lost or started or stopping else None
            case PartitionsRead(partitions=partitions):
                newer = self._apply_newer(partitions)
                return PartitionsChanged(newer) if newer else None
            case ReplicasFailed(broker=broker, epoch=epoch, replicas=replicas):
                registered = self.cluster.registered.get(broker)
                failed = tuple(each.partition for each in replicas if self.cluster.has(each))
                if registered is None or registered.epoch != epoch or not failed:
                    return None
                self.cluster.apply_failed(broker, failed)
                return PartitionsChanged(failed)
            case Requested(asked=Reassign() as asked, path=str() as path):
                self.cluster.apply_request(path, moving(asked))
                return event
            case _:
                return event

    def _carry_out(self, cause: Cause, task: _Task) -> None:
        decided = plan(self.cluster, cause)
        if not decided.steps:
            self._finish(cause, decided, [], task)
            return
        self._storing = True

        def stored(answers: list[GroupAnswer]) -> None:
            self._storing = False
            known = [answer for answer in answers if not isinstance(answer, Deposed)]
            if len(known) < len(answers):
                self._step_down(task.owed)
            else:
                self._finish(cause, decided, known, task)
                self._advance()

        self._store.commit([step.writes for step in decided.steps], stored)

    def _finish(self, cause: Cause, decided: Plan, answers: Sequence[Stored | Refused], task: _Task) -> None:
        self.cluster.apply_recoveries(decided.recoveries)
        done = self._take(decided, answers)
        self._report(cause, done)
        for broker, command in announce(
            self.cluster, cause, done.written, done.stops, [partition for partition, _ in done.removed]
        ):
            self._sender.send(broker, self.cluster.registered[broker], command)
        for broker, partitions in decided.asks.items():
            for question in ask(self.cluster, broker, partitions):
                self._sender.send(broker, self.cluster.registered[broker], question)
        if done.refused and isinstance(cause, Advance):
            # News of what it met is on its way, and waits behind this: going on at once would meet it for ever.
            stored = tuple(partition for partition in cause.partitions if partition in done.written)
            decided = msgspec.structs.replace(decided, then=(Advance(stored),) if stored else ())
        if done.refused and isinstance(cause, Requested):
            self._ask_again(cause, decided, done, task)
        else:
            self._follow_up(decided, task, is_request=isinstance(cause, Requested))
        if done.met:
            # Decided against a state that had moved on: decide again, before anything newer.
            self._waiting.appendleft(_Task(PartitionsChanged(tuple(done.met))))

    def _follow_up(self, decided: Plan, task: _Task, *, is_request: bool) -> None:
        """What follows comes before anything newer; with the last of it, the request is done."""
        reply = task.reply
        if is_request:  # of an earlier attempt, what was refused stays refused
            reply = Reply(decided.reply.error, {**task.reply.errors, **decided.reply.errors})
        if not decided.then:
            self._answer_owed(task.owed, reply)
            return
        last = len(decided.then) - 1
        following = [
            _Task(cause, task.owed if place == last else None, reply) for place, cause in enumerate(decided.then)
        ]
        self._waiting.extendleft(reversed(following))

    def _ask_again(self, cause: Requested, decided: Plan, done: _Done, task: _Task) -> None:
        """For what was not stored; what of it was is followed up all the same, and a node below /admin stays."""
        errors = {**task.reply.errors, **decided.reply.errors}
        if isinstance(cause.asked, CreateTopic):
            exists = TopicAlreadyExists(f"topic {cause.asked.name} exists already")
            self._answer_owed(task.owed, Reply(exists))
        elif task.attempt >= ATTEMPTS_MAX:
            moved = InvalidUpdateVersion(f"what this is about changed {ATTEMPTS_MAX} times meanwhile: ask again")
            self._answer_owed(task.owed, Reply(moved))
        else:
            names = [name for step in done.refused for name in step.names]
            again = msgspec.structs.replace(cause, asked=narrowed(cause.asked, names))
            following = _Task(again, task.owed, Reply(errors=errors), task.attempt + 1)
            if done.met:
                self._waiting.appendleft(following)
            else:
                self._waiting.append(following)  # what it met is not known here yet: the news of it is waiting
        left = [_Task(then) for then in decided.then if not isinstance(then, Dismiss)]
        self._waiting.extendleft(reversed(left))

    def _take(self, decided: Plan, answers: Sequence[Stored | Refused]) -> _Done:
        done = _Done([], [], list(decided.stops), [], [])
        for step, answer in zip(decided.steps, answers, strict=True):
            match answer:
                case Stored(versions=versions):
                    self._apply(step, versions, done)
                    done.stops.extend(step.stops)
                case Refused(current=current):
                    done.met.extend(self._apply_newer(current))
                    done.refused.append(step)
                case _:
                    assert_never(answer)
        return done

    def _apply(self, step: Step, versions: tuple[tuple[int, int], ...], done: _Done) -> None:
        for write, (version, zxid) in zip(step.writes, versions, strict=True):
            match write:
                case PartitionWrite():
                    self.cluster.apply_partition(write.partition, StoredPartition(write.state, version, zxid))
                    done.written.append(write.partition)
                case TopicWrite():
                    done.removed.extend((partition, zxid) for partition in self._apply_topic(write, version))
                case _:
                    self._apply_other(write, zxid)

    def _apply_topic(self, write: TopicWrite, version: int) -> list[TopicPartition]:
        """The partitions that the topic has no longer."""
        if write.config is not None:
            self.cluster.topics_made += 1
            self.cluster.apply_topic(write.topic, StoredTopic(write.state, version, write.config))
            return []
        known = self.cluster.topics[write.topic]
        self.cluster.apply_topic(write.topic, StoredTopic(write.state, version, known.config))
        gone = known.state.partitions.keys() - write.state.partitions.keys()
        return [TopicPartition(write.topic, number) for number in sorted(gone)]

    def _apply_other(
        self,
        write: BrokerRemoval
        | DeletionMark
        | PartitionRemoval
        | TopicRemoval
        | TopicConfigWrite
        | ClusterConfigWrite
        | RequestRemoval,
        zxid: int,
    ) -> None:
        match write:
            case BrokerRemoval():
                pass  # the watch on /brokers/ids tells of it, as of every death
            case DeletionMark(topic=topic):
                self.cluster.deleting.add(topic)
            case PartitionRemoval(partition=partition):
                self.cluster.apply_removed_partition(partition)
            case TopicRemoval(topic=topic):
                self.cluster.apply_removed_topic(topic)
                self._mirror.deleted(topic, zxid)
                # A mark that is heard of late is gone with it, and is not for the next of that name.
                mark = DeleteTopic(topic=topic)
                self._waiting = deque(task for task in self._waiting if not _is_marked(task.cause, mark))
            case TopicConfigWrite(topic=topic, config=config):
                self.cluster.apply_topic_config(topic, config)
            case ClusterConfigWrite(config=settings):
                self.cluster.apply_settings(settings)
            case RequestRemoval(path=path):
                self.cluster.apply_removed_request(path)
            case _:
                assert_never(write)

    def _apply_newer(self, read: Mapping[TopicPartition, StoredPartition | None]) -> tuple[TopicPartition, ...]:
        """The partitions that somebody else wrote, newer than known here."""
        newer = tuple(
            partition
            for partition, stored in sorted(read.items())
            if stored is not None
            and partition in self.cluster.partitions
            and self.cluster.apply_partition(partition, stored)
        )
        self._tell_mirror(newer)
        return newer

    def _report(self, cause: Cause, done: _Done) -> None:
        self._tell_mirror(self.cluster.all_partitions() if isinstance(cause, TookOver) else done.written)
        for partition, zxid in done.removed:
            self._mirror.removed(partition, zxid)

    def _tell_mirror(self, partitions: Sequence[TopicPartition]) -> None:
        known = [
            partition
            for partition in partitions
            if partition in self.cluster.partitions and self.cluster.assigned(partition)
        ]
        self._mirror.changed((self.cluster.command(p), self.cluster.partitions[p].zxid) for p in known)

    def _answer_owed(self, owed: int | None, reply: Reply) -> None:
        if owed is not None:
            self._answer(owed, reply)

    def _step_down(self, owed: int | None) -> None:
        self._over = True
        gone: ReplicationError = NotController(
            "another controller took over while this was stored: it may have been done, ask again", maybe_written=True
        )
        for request in (owed, *(task.owed for task in self._waiting)):
            self._answer_owed(request, Reply(gone))
        self._waiting.clear()
        self._deposed()


def _is_marked(cause: Event | Cause, mark: DeleteTopic) -> bool:
    return isinstance(cause, Requested) and cause.asked == mark and cause.path is not None

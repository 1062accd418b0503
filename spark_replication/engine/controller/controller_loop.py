"""The controller, one event after the other: decide, persist, apply what ZooKeeper accepted, announce, answer.

Nothing is announced before its state is in ZooKeeper (C2). Between `commit` and its answer the loop takes no other
event, so every decision is made on what is stored. Single-threaded: its owner feeds it from one thread.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import assert_never

import msgspec

from spark_replication.core.controller.announcing import announce, ask
from spark_replication.core.controller.cluster import ClusterState, LoadedCluster, StoredTopic
from spark_replication.core.controller.controller import decide
from spark_replication.core.controller.events import (
    BrokersRead,
    Event,
    LogInfoRead,
    PartitionsRead,
    Requested,
    Ticked,
    TookOver,
)
from spark_replication.core.controller.origin import Origin, origin_of
from spark_replication.core.controller.plan import (
    Advance,
    BrokersMoved,
    Cause,
    Decision,
    Dismiss,
    PartitionsChanged,
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
    Made,
    PartitionRemoval,
    PartitionWrite,
    Refused,
    RequestRemoval,
    Stored,
    StoredAssignment,
    StoredPartition,
    TopicConfigWrite,
    TopicRemoval,
    TopicWrite,
)
from spark_replication.core.tables.fitting import FitsTable
from spark_replication.engine.controller.mirror_news import MirrorNews
from spark_replication.engine.controller.told_events import took_in
from spark_replication.errors import (
    InvalidUpdateVersion,
    NotController,
    Overloaded,
    ReplicationError,
    TopicAlreadyExists,
)
from spark_replication.messages.requests import CreateTopic, DeleteTopic, Reassign
from spark_replication.model import Epoch, PartitionNumber, TopicPartition, TopicState
from spark_replication.ports import CommandSender, ControllerStore, MirrorFeed, TableSealer

EVENTS_MAX = 100_000
# How often a request is decided again because one of its writes was refused for another's.
ATTEMPTS_MAX = 20

Answer = Callable[[int, Reply], None]

log = logging.getLogger(__name__)


class _Task(msgspec.Struct):
    cause: Event | Cause
    #: The number of the request whose last part this is; None if it is no request's last part.
    owed: int | None = None
    #: What the task follows from; None if it follows from nothing before it.
    origin: Origin | None = None
    #: What that request will be answered with, as far as it is done.
    reply: Reply = Reply()
    attempt: int = 1


class _Done(msgspec.Struct):
    """What became of a decision's steps."""

    written: list[TopicPartition]
    #: Each with the zxid of its removal.
    removed: list[tuple[TopicPartition, int]]
    stops: list[Stop]
    #: Partitions whose state was found to be newer than known here.
    met: list[TopicPartition]
    refused: list[Step]
    #: Steps that no further attempt can store, and why.
    unstorable: list[tuple[Step, ReplicationError]]


class ControllerLoop:
    """`answer(request, reply)` is called once for each request; `deposed` once this controller has lost its place."""

    def __init__(
        self,
        loaded: LoadedCluster,
        *,
        store: ControllerStore,
        sender: CommandSender,
        mirror: MirrorFeed,
        sealer: TableSealer,
        answer: Answer,
        deposed: Callable[[], None],
        now_ms: int,
        compare_schemas: CompareSchemas,
        fits_table: FitsTable,
    ) -> None:
        self.cluster = ClusterState(loaded, compare_schemas, fits_table)
        self.cluster.now_ms = now_ms
        self._store = store
        self._sender = sender
        self._mirror = mirror
        self._sealer = sealer
        self._news = MirrorNews(self.cluster, mirror, loaded.zxid)
        self._origins = itertools.count(1)
        self._answer = answer
        self._deposed = deposed
        self._waiting: deque[_Task] = deque()
        # Bounded by the questions under way: one a broker.
        self._log_infos: deque[LogInfoRead] = deque()
        self._ticked_ms = now_ms
        self._storing = False
        self._advancing = False
        self._over = False
        # Reassignments whose next step was refused for another write, or was to be stored together with one that was.
        self._held_up: dict[TopicPartition, None] = {}
        # Requests below /admin that were refused for other writes ATTEMPTS_MAX times, or wait for a table to be sealed:
        # each tick tries them once.
        self._put_off: list[_Task] = []

    def handle(self, event: Event | Reconsider, now_ms: int) -> None:
        """Take the event in now, or after what is under way. A request past the limit is refused, not queued."""
        self.cluster.now_ms = now_ms
        owed = event.request if isinstance(event, Requested) else None
        if self._over:
            gone = NotController("another controller took over: ask any broker for its address")
            self._answer_owed(owed, Reply(gone))
        elif len(self._waiting) >= EVENTS_MAX and owed is not None:
            self._answer_owed(owed, Reply(Overloaded(f"{EVENTS_MAX} events wait for the controller: retry later")))
        elif isinstance(event, LogInfoRead):
            self.take(event)
            self._advance()
        else:
            self._waiting.append(_Task(event, owed))
            self._advance()

    def take(self, answer: LogInfoRead) -> None:
        """Take an answer about logs. The next decision knows it, whether `handle`, `go_on` or the store's answer leads
        to that."""
        self._log_infos.append(answer)

    def go_on(self, now_ms: int) -> None:
        """Go on with the answers that were taken."""
        self.cluster.now_ms = now_ms
        self._advance()

    def tick(self, now_ms: int) -> None:
        since_ms, self._ticked_ms = self._ticked_ms, now_ms
        if self._held_up and not self._over:
            self._waiting.append(_Task(Advance(tuple(self._held_up))))
            self._held_up.clear()
        if not self._over:
            self._waiting.extend(self._put_off)
            self._put_off.clear()
        self.handle(Ticked(since_ms), now_ms)
        if self._mirror.wants_all and not self._over:
            self._news.tell_all()

    def _advance(self) -> None:
        if self._advancing:
            return  # a store that answers at once calls back into this loop: the outer call goes on
        self._advancing = True
        while (self._log_infos or self._waiting) and not self._storing and not self._over:
            # All answers that have come are taken before anybody wins (L4).
            task = _Task(self._log_infos.popleft()) if self._log_infos else self._waiting.popleft()
            cause = self._absorb(task.cause)
            begins = task.origin is None
            if task.origin is None:
                name = f"{self.cluster.controller_epoch}.{next(self._origins)}"
                task.origin = origin_of(name, task.cause, cause)
            self._news.follows_from(task.origin, begins=begins)
            if cause is not None:
                self._carry_out(cause, task)
            else:
                self._news.tell()
        self._advancing = False

    def _absorb(self, event: Event | Cause) -> Cause | None:
        """Apply what was read to the state first. Returns the cause to decide on; None if nothing in it was news."""
        match event:
            case BrokersRead():
                self._news.brokers(event)
                lost, started, stopping = self.cluster.apply_brokers(event)
                for broker in sorted(lost):
                    self._sender.gone(broker)
                moved = BrokersMoved(lost=lost, started=started, stopping=stopping)
                return moved if lost or started or stopping else None
            case PartitionsRead(partitions=partitions, unreadable=unreadable):
                self.cluster.apply_unreadable(unreadable)
                newer = self._apply_newer(partitions)
                return PartitionsChanged(newer) if newer else None
            case Requested(asked=Reassign() as asked, path=str() as path):
                self.cluster.apply_request(path, moving(asked))
                return event
            case _:
                return took_in(self.cluster, event)

    def _carry_out(self, cause: Cause, task: _Task) -> None:
        decided = self._planned(cause)
        self._news.refused(decided.reply)
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

    def _planned(self, cause: Cause) -> Decision:
        """Decides. A request whose decision fails by a mistake of this program is refused, and nothing has changed by
        then. Otherwise a node below /admin would end one candidacy after the other."""
        try:
            return decide(self.cluster, cause)
        except Exception as error:
            if not isinstance(cause, Requested):
                raise
            log.exception("%s met an error that nobody expected: please report", cause.path or "a request")
            mistake = ReplicationError(f"the controller failed to decide this, {error!r}: its log says more")
            return Decision(then=() if cause.path is None else (Dismiss(cause.path),), reply=Reply(mistake))

    def _finish(self, cause: Cause, decided: Decision, answers: Sequence[Stored | Refused], task: _Task) -> None:
        for partition, recovery in decided.recoveries.items():
            known = self.cluster.recoveries.get(partition)
            if recovery is not None and (known is None or recovery.by_hand > known.by_hand):
                self._news.recovers(partition)
        self.cluster.apply_recoveries(decided.recoveries)
        done = self._take(decided, answers)
        # The newer state that refused a step is announced, too: it may rest on a write of ours whose answer was lost.
        told = [each for each in dict.fromkeys((*done.written, *done.met)) if each in self.cluster.partitions]
        for broker, command in announce(
            self.cluster, cause, told, done.stops, [partition for partition, _ in done.removed]
        ):
            self._sender.send(broker, self.cluster.registered[broker], command)
        for broker, partitions in decided.asks.items():
            for question in ask(self.cluster, broker, partitions):
                self._sender.send(broker, self.cluster.registered[broker], question)
        self.cluster.apply_asked_seals(decided.seals)
        for topic, epochs in _by_topic(decided.seals).items():
            state = self.cluster.topics[topic].state
            self._sealer.seal(topic, state.topic_id, epochs, state.restores or None)
        self._report(cause, done)
        if (done.refused or done.unstorable) and isinstance(cause, Advance):
            # The newer state that refused it is queued behind this task: retrying now would be refused for ever. For
            # steps that were only to be stored together with a refused one no news is coming: the next tick retries.
            stored = tuple(partition for partition in cause.partitions if partition in done.written)
            self._held_up.update(dict.fromkeys(cause.partitions if done.refused else ()))
            decided = msgspec.structs.replace(decided, then=(Advance(stored),) if stored else ())
        if done.unstorable:
            decided = msgspec.structs.replace(decided, reply=_with(decided.reply, done.unstorable))
        if isinstance(cause, Requested) and cause.path is not None and decided.reply.waits:
            self._put_off.append(_Task(cause, origin=task.origin))
        if done.refused and isinstance(cause, Requested):
            self._ask_again(cause, decided, done, task)
        else:
            self._follow_up(decided, task, is_request=isinstance(cause, Requested))
        if done.met:
            # The decision was made on a state that had moved on: decide again, before anything newer.
            self._waiting.appendleft(_Task(PartitionsChanged(tuple(done.met)), origin=task.origin))

    def _follow_up(self, decided: Decision, task: _Task, *, is_request: bool) -> None:
        """Queue what follows, before anything newer. The request is done with the last of it."""
        reply = task.reply
        if is_request:  # what an earlier attempt refused stays refused
            reply = Reply(decided.reply.error, {**task.reply.errors, **decided.reply.errors})
        if not decided.then:
            self._answer_owed(task.owed, reply)
            return
        last = len(decided.then) - 1
        following = [
            _Task(cause, task.owed if place == last else None, task.origin, reply)
            for place, cause in enumerate(decided.then)
        ]
        self._waiting.extendleft(reversed(following))

    def _ask_again(self, cause: Requested, decided: Decision, done: _Done, task: _Task) -> None:
        """Ask again for what was not stored. What was stored is followed up as usual; a node below /admin stays."""
        errors = {**task.reply.errors, **decided.reply.errors}
        if isinstance(cause.asked, CreateTopic):
            exists = TopicAlreadyExists(f"topic {cause.asked.name} exists already")
            self._answer_owed(task.owed, Reply(exists))
        elif task.attempt >= ATTEMPTS_MAX and cause.path is None:
            moved = InvalidUpdateVersion(f"what this is about changed {ATTEMPTS_MAX} times meanwhile: ask again")
            self._answer_owed(task.owed, Reply(moved))
        else:
            names = [name for step in done.refused for name in step.names]
            again = msgspec.structs.replace(cause, asked=narrowed(cause.asked, names))
            following = _Task(again, task.owed, task.origin, Reply(errors=errors), task.attempt + 1)
            if task.attempt >= ATTEMPTS_MAX:
                # Whoever wrote the node reads no refusal, and nobody else would take it up before the next controller.
                self._put_off.append(following)
            elif done.met:
                self._waiting.appendleft(following)
            else:
                self._waiting.append(following)  # behind the news of the newer state, which is queued already
        left = [_Task(then, origin=task.origin) for then in decided.then if not isinstance(then, Dismiss)]
        self._waiting.extendleft(reversed(left))

    def _take(self, decided: Decision, answers: Sequence[Stored | Refused]) -> _Done:
        done = _Done([], [], list(decided.stops), [], [], [])
        for step, answer in zip(decided.steps, answers, strict=True):
            match answer:
                case Stored(made=made, newer=newer):
                    self._apply(step, made, done)
                    done.stops.extend(step.stops)
                    done.met.extend(self._apply_newer(newer))
                case Refused(unstorable=ReplicationError() as error):
                    done.unstorable.append((step, error))
                case Refused(current=current, topics=topics, gone=gone):
                    done.met.extend(each for each in sorted(gone) if self.cluster.apply_gone(each))
                    done.met.extend(self._apply_newer_topics(topics, done))
                    done.met.extend(self._apply_newer(current))
                    done.refused.append(step)
                case _:
                    assert_never(answer)
        return done

    def _apply(self, step: Step, of_each: Sequence[Made], done: _Done) -> None:
        for write, made in zip(step.writes, of_each, strict=True):
            self._news.stored(made.zxid)
            match write:
                case PartitionWrite():
                    self.cluster.apply_partition(write.partition, StoredPartition(write.state, *made))
                    done.written.append(write.partition)
                case TopicWrite():
                    done.removed.extend((partition, made.zxid) for partition in self._apply_topic(write, made))
                case _:
                    self._apply_other(write, made)

    def _apply_topic(self, write: TopicWrite, made: Made) -> list[TopicPartition]:
        """Return the partitions that the topic has no longer."""
        if write.config is not None:
            self.cluster.topics_made += 1
            stored = StoredTopic(write.state, made.version, write.config, made.zxid, made.at_ms)
            self.cluster.apply_topic(write.topic, stored)
            self._news.topic(write.topic)
            return []
        return self._apply_assignment(write.topic, write.state, made)

    def _apply_assignment(self, topic: str, state: TopicState, made: Made) -> list[TopicPartition]:
        """Return the partitions that the topic has no longer."""
        known = self.cluster.topics[topic]
        self.cluster.apply_topic(topic, StoredTopic(state, made.version, known.config, made.zxid, made.at_ms))
        self._news.topic(topic)
        gone = known.state.partitions.keys() - state.partitions.keys()
        return [TopicPartition(topic, number) for number in sorted(gone)]

    def _apply_other(
        self,
        write: BrokerRemoval
        | DeletionMark
        | PartitionRemoval
        | TopicRemoval
        | TopicConfigWrite
        | ClusterConfigWrite
        | RequestRemoval,
        made: Made,
    ) -> None:
        match write:
            case BrokerRemoval():
                pass  # the watch on /brokers/ids will report it, as it reports every death
            case DeletionMark(topic=topic):
                self.cluster.deleting.add(topic)
            case PartitionRemoval(partition=partition):
                self.cluster.apply_removed_partition(partition)
            case TopicRemoval(topic=topic):
                self.cluster.apply_removed_topic(topic)
                self._news.deleted(topic, made.zxid)
                # The deletion mark is gone, too. One that was read late is not for the next topic of that name.
                mark = DeleteTopic(topic=topic)
                self._waiting = deque(task for task in self._waiting if not _is_marked(task.cause, mark))
            case TopicConfigWrite(topic=topic, config=config):
                self.cluster.apply_topic_config(topic, config, made)
                self._news.topic(topic)
            case ClusterConfigWrite(config=settings):
                self.cluster.apply_settings(settings)
            case RequestRemoval(path=path):
                self.cluster.apply_removed_request(path)
            case _:
                assert_never(write)

    def _apply_newer(self, read: Mapping[TopicPartition, StoredPartition | None]) -> tuple[TopicPartition, ...]:
        """Apply what is newer than known here. Returns the partitions that somebody else wrote."""
        newer = tuple(
            partition
            for partition, stored in sorted(read.items())
            if stored is not None
            and partition in self.cluster.partitions
            and self.cluster.apply_partition(partition, stored)
        )
        self._news.partitions(newer)
        return newer

    def _apply_newer_topics(self, read: Mapping[str, StoredAssignment | None], done: _Done) -> Sequence[TopicPartition]:
        """Apply assignments that a person wrote past this controller. Returns the partitions of those topics.

        A topic that was made again is not known to this controller, and is left to its successor.
        """
        newer: list[TopicPartition] = []
        for topic, stored in sorted(read.items()):
            known = self.cluster.topics.get(topic)
            if known is None or stored is None or stored.version <= known.version:
                continue
            if stored.state.topic_id == known.state.topic_id:
                gone = self._apply_assignment(topic, stored.state, Made(stored.version, stored.zxid, stored.at_ms))
                done.removed.extend((partition, stored.zxid) for partition in gone)
                newer.extend(p for p in self.cluster.all_partitions(topic) if p in self.cluster.partitions)
        return newer

    def _report(self, cause: Cause, done: _Done) -> None:
        """Tell the mirror, after the brokers (M4)."""
        self._news.partitions(done.written)
        self._news.removed(done.removed)
        if isinstance(cause, TookOver):
            self._news.tell_all()
        else:
            self._news.tell()

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


def _with(reply: Reply, unstorable: Iterable[tuple[Step, ReplicationError]]) -> Reply:
    """The reply, with a refusal of what each unstorable step was for. A step without names refuses all of it."""
    errors = dict(reply.errors)
    whole = reply.error
    for step, error in unstorable:
        errors.update(dict.fromkeys(step.names, error))
        whole = whole if step.names else error
    return Reply(whole, errors)


def _by_topic(seals: Mapping[TopicPartition, Epoch]) -> dict[str, dict[PartitionNumber, Epoch]]:
    found: dict[str, dict[PartitionNumber, Epoch]] = {}
    for partition, epoch in sorted(seals.items()):
        found.setdefault(partition.topic, {})[partition.partition] = epoch
    return found


def _is_marked(cause: Event | Cause, mark: DeleteTopic) -> bool:
    return isinstance(cause, Requested) and cause.asked == mark and cause.path is not None

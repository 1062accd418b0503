"""Simulated candidates for /controller: the winner runs the production ControllerLoop, as live/controller/host does.

Its writes leave one multi() after the other, so that it can die between any two; one that was deposed goes on until it
hears of it, and must change nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from spark_replication.core.controller.answers import outcome
from spark_replication.core.controller.cluster import LoadedCluster
from spark_replication.core.controller.events import (
    BrokerDeathReported,
    Event,
    LogInfoRead,
    PartitionsRead,
    ReplicasFailed,
    TookOver,
)
from spark_replication.core.controller.news import News
from spark_replication.core.controller.plan import Reply
from spark_replication.core.law.unreadable import ALL_READ, Unreadable
from spark_replication.core.law.writes import Deposed, Group, GroupAnswer, PartitionWrite, Refused, TopicWrite
from spark_replication.engine.controller_loop import ControllerLoop
from spark_replication.errors import ReplicationError
from spark_replication.messages.commands import (
    Command,
    CommandAnswer,
    GetReplicaLogInfo,
    LeaderAndIsr,
    PartitionCommand,
    ReplicaLogInfos,
    StopReplica,
    UpdateMetadata,
)
from spark_replication.model import BrokerId, Registration, TopicPartition
from spark_replication.sim.cast.broker import BrokerProcess
from spark_replication.sim.cast.mirror import MirrorTables, MirrorWriter
from spark_replication.sim.world.network import Network
from spark_replication.sim.world.world import Process, World
from spark_replication.sim.world.zookeeper import Lost, Session, ZooKeeper
from spark_replication.storage.batches import schema_change

TICK_MS = 150
TIMEOUT_MS = 120
RETRY_MS = (10, 60)
CAMPAIGN_MS = (10, 60)
GROUPS_PER_MULTI_MAX = 3
LATE_COMMAND = 0.1  # a command that was given up for lost is carried out all the same, later


class Observer(Protocol):
    """What checkers want to know of a controller."""

    def sent(self, broker: BrokerId, command: Command) -> None: ...
    def deciding(self, controller_epoch: int, groups: Sequence[Group]) -> None: ...
    def applied(self, controller_epoch: int, life: object, error: ReplicationError | None) -> None: ...
    def told_mirror(self, command: PartitionCommand, zxid: int) -> None: ...
    def confirmed(self, partition: TopicPartition, topic_id: str, leader_epoch: int) -> None: ...
    def answered(self, controller_epoch: int, broker: BrokerId, answer: ReplicaLogInfos) -> None: ...


class Candidate(Process):
    """One driver's process: campaigning, commanding, or standing by."""

    def __init__(
        self,
        name: str,
        *,
        world: World,
        network: Network,
        zookeeper: ZooKeeper,
        find: Callable[[BrokerId, int], BrokerProcess | None],
        observer: Observer,
        mirror: MirrorTables,
    ) -> None:
        super().__init__(name)
        self.world = world
        self.network = network
        self.zookeeper = zookeeper
        self.find = find
        self.observer = observer
        self.mirror = mirror
        self.loop: ControllerLoop | None = None
        self.commanding: Commanding | None = None
        self.replies: dict[int, Reply] = {}
        self.session = self._connect()

    def clock_ms(self) -> int:
        return self.world.now_ms + self.skew_ms

    def start(self) -> None:
        self.zookeeper.watch(self.session, self._marked)
        self.world.after(self.world.between(*CAMPAIGN_MS), "campaigns", self._campaign, on=self)

    def ended(self) -> None:
        self.alive = False
        self.zookeeper.silent(self.session, self.zookeeper.session_ms)

    def handle(self, event: Event) -> None:
        if self.loop is not None:
            self.loop.handle(event, self.clock_ms())

    def _connect(self) -> Session:
        return self.zookeeper.connect(self, self.stand_down)

    def stand_down(self) -> None:
        """Deposed, or its session has expired: another candidacy, in another session."""
        self.loop = None
        if self.commanding is not None:
            self.commanding.over = True
            self.commanding = None
        self.session.close()
        self.session = self._connect()
        self.start()

    def _campaign(self) -> None:
        session = self.session

        def answered(answer: LoadedCluster | Lost | None) -> None:
            if session is not self.session:
                return
            if isinstance(answer, LoadedCluster):
                self._command(answer)
            elif isinstance(answer, Lost):
                self.stand_down()

        session.request("campaigns", lambda: self.zookeeper.campaign(session), answered)

    def _command(self, loaded: LoadedCluster) -> None:
        self.commanding = Commanding(self, loaded.controller_epoch)
        self.loop = ControllerLoop(
            loaded,
            store=self.commanding,
            sender=self.commanding,
            mirror=self.commanding,
            answer=self.replies.__setitem__,
            deposed=self._deposed,
            now_ms=self.clock_ms(),
            compare_schemas=schema_change,
        )
        self.world.counts["controllers"] += 1
        self.handle(TookOver())
        self.commanding.read("brokers")
        self.commanding.read("changes")
        self.world.after(TICK_MS, "controller tick", self._tick, on=self)

    def _deposed(self) -> None:
        self.world.after(0, "is deposed", self.stand_down, on=self)

    def _tick(self) -> None:
        if self.loop is not None:
            self.loop.tick(self.clock_ms())
            if self.commanding is not None:
                self.commanding.look_again()
            self.world.after(TICK_MS, "controller tick", self._tick, on=self)

    def _marked(self, what: str) -> None:
        if what == "vacancy":
            if self.loop is None and self.zookeeper.controller is None:
                self._campaign()
            elif self.loop is not None and self.zookeeper.controller is not self.session:
                self.stand_down()
        elif self.commanding is not None:
            self.commanding.read(what)


class Commanding:
    """One term: ports.ControllerStore, CommandSender and MirrorFeed of a controller epoch."""

    def __init__(self, candidate: Candidate, controller_epoch: int) -> None:
        self.candidate = candidate
        self.controller_epoch = controller_epoch
        self.over = False
        self._session = candidate.session
        self._reading: set[str] = set()
        self._lines: dict[BrokerId, Line] = {}
        self._loads_anew = False
        self._mirror = MirrorWriter(candidate.mirror, candidate, controller_epoch)
        self.numbers = itertools.count(1)

    # ControllerStore

    def commit(self, groups: Sequence[Group], then: Callable[[list[GroupAnswer]], None]) -> None:
        self.candidate.observer.deciding(self.controller_epoch, groups)
        answers: list[GroupAnswer] = []
        waiting = list(groups)
        zookeeper, world = self.candidate.zookeeper, self.candidate.world
        met = ALL_READ

        def send_next() -> None:
            if not waiting:
                if not self.over:
                    then(answers)
                    if met.reasons:
                        self.candidate.handle(PartitionsRead({}, met))
                return
            size = world.between(1, GROUPS_PER_MULTI_MAX)
            multi, waiting[:] = waiting[:size], waiting[size:]
            attempt(multi, [])

        def attempt(multi: list[Group], known: list[GroupAnswer]) -> None:
            # What a lost answer leaves open is found out by reading: the outcome of the first attempt counts.
            def operate() -> list[GroupAnswer]:
                nonlocal met
                if not known:
                    known.extend(zookeeper.commit(self.controller_epoch, group) for group in multi)
                    met |= self._garbage_met(multi, known)
                return known

            def answered(answer: list[GroupAnswer] | Lost) -> None:
                if isinstance(answer, list):
                    answers.extend(answer)
                    send_next()
                elif answer.expired:
                    answers.extend(Deposed() for _ in (*multi, *waiting))
                    waiting.clear()
                    send_next()
                elif not self.over:
                    world.after(
                        world.between(*RETRY_MS), "writes again", lambda: attempt(multi, known), on=self.candidate
                    )

            self._session.request("controller writes", operate, answered, multi)

        send_next()

    def _garbage_met(self, groups: Sequence[Group], answers: Sequence[GroupAnswer]) -> Unreadable:
        """By writes of ours that were refused now."""
        refused = [group for group, answer in zip(groups, answers, strict=True) if isinstance(answer, Refused)]
        writes = [write for group in refused for write in group]
        store = self.candidate.zookeeper.store
        topics = [write for write in writes if isinstance(write, TopicWrite) and write.topic in store.topics]
        hidden = store.unreadable.topics.intersection(write.topic for write in topics)
        garbage = self.candidate.zookeeper.garbage_in(w.partition for w in writes if isinstance(w, PartitionWrite))
        return garbage | Unreadable(reasons=dict.fromkeys(sorted(hidden), "garbage"), topics=hidden)

    def look_again(self) -> None:
        """Whoever has met garbage, and hears of it once it is mended, finds out with the next look."""
        if not self._loads_anew and not self.candidate.zookeeper.store.unreadable.reasons:
            self.garbage_is_mended()

    def garbage_is_mended(self) -> None:
        """What could not be read can be, or is gone: everything is loaded anew, a look later."""
        loop, candidate = self.candidate.loop, self.candidate
        if self.over or loop is None:
            return
        if loop.cluster.unreadable.topics or loop.cluster.unreadable.partitions:
            self._loads_anew = True
            delay_ms = candidate.world.between(*RETRY_MS)
            candidate.world.after(delay_ms, "loads anew", self._load_anew, on=candidate)

    def _load_anew(self) -> None:
        if not self.over:
            self.candidate.stand_down()

    # Watches

    def read(self, what: str) -> None:
        """A watch marked it; read once for all marks until then."""
        if what in self._reading or self.over:
            return
        self._reading.add(what)
        zookeeper = self.candidate.zookeeper

        up_to = 0

        def operate() -> Event:
            nonlocal up_to
            self._reading.discard(what)
            if what == "brokers":
                return zookeeper.store.brokers_read()
            up_to = zookeeper.notified
            return zookeeper.read_changes()

        def answered(answer: Event | Lost) -> None:
            if not isinstance(answer, Lost):
                if not self.over:
                    self.candidate.handle(answer)
                    zookeeper.delete_changes(self.controller_epoch, up_to)
                return
            self._reading.discard(what)
            if not answer.expired and not self.over:
                world = self.candidate.world
                world.after(world.between(*RETRY_MS), "reads again", lambda: self.read(what), on=self.candidate)

        self._session.request(f"reads {what}", operate, answered)

    # CommandSender

    def send(self, broker: BrokerId, registration: Registration, command: Command) -> None:
        self.candidate.observer.sent(broker, command)
        line = self._lines.get(broker)
        if line is None or line.registration.epoch != registration.epoch:
            if line is not None:
                line.closed = True
            line = self._lines[broker] = Line(self, broker, registration)
        line.put(command)

    def gone(self, broker: BrokerId) -> None:
        line = self._lines.pop(broker, None)
        if line is not None:
            line.closed = True

    # MirrorFeed

    @property
    def wants_all(self) -> bool:
        return self._mirror.wants_all

    def tell(self, news: News) -> None:
        for told in news.partitions:
            self.candidate.observer.told_mirror(told.command, told.zxid)
        self._mirror.tell(news)

    def confirmed(self, partition: TopicPartition, topic_id: str, leader_epoch: int) -> None:
        self.candidate.observer.confirmed(partition, topic_id, leader_epoch)
        self._mirror.confirmed(partition, topic_id, leader_epoch)


class Line:
    """Commands to one life of one broker, one at a time, each repeated until it is answered."""

    def __init__(self, term: Commanding, broker: BrokerId, registration: Registration) -> None:
        self.registration = registration
        self.closed = False
        self._term = term
        self._broker = broker
        self._waiting: list[Command] = []
        self._under_way = False
        self._attempt = 0
        self._refusals = 0

    def put(self, command: Command) -> None:
        told = msgspec.structs.replace(command, broker_epoch=self.registration.epoch, number=next(self._term.numbers))
        self._waiting.append(told)
        self._next()

    def _next(self) -> None:
        if not self._under_way and self._waiting and not self._ended:
            self._under_way = True
            self._deliver(self._waiting.pop(0))

    @property
    def _ended(self) -> bool:
        return self.closed or self._term.over

    def _deliver(self, command: Command) -> None:
        candidate, life = self._term.candidate, self.registration.port
        world, network = candidate.world, candidate.network
        target = candidate.find(self._broker, life)
        self._attempt += 1
        attempt = self._attempt
        name = type(command).__name__
        if target is None:
            world.after(
                world.between(*RETRY_MS), f"{name} is refused", lambda: self._unreachable(command), on=candidate
            )
            return

        def carry_out() -> None:
            answer = self._carry_out(target, life, command)
            network.send(
                target.name,
                candidate.name,
                f"{name} is answered",
                lambda: self._answered(attempt, command, answer),
                to=candidate,
            )

        def carry_out_late() -> None:
            self._carry_out(target, life, command)

        network.send(candidate.name, target.name, name, carry_out, to=target, about=command)
        if world.chance(LATE_COMMAND):
            world.counts["duplicate_command"] += 1
            late_ms = world.between(20, 200)
            world.after(late_ms, f"{name}, late", carry_out_late, on=target, about=command)
        world.after(TIMEOUT_MS, f"{name} timed out", lambda: self._timed_out(attempt, command), on=candidate)

    def _carry_out(
        self, target: BrokerProcess, life: int, command: Command
    ) -> CommandAnswer | ReplicaLogInfos | ReplicationError:
        observer = self._term.candidate.observer
        answer: CommandAnswer | ReplicaLogInfos | ReplicationError
        try:
            answer = _applied(target, life, command)
        except ReplicationError as error:
            answer = error
        observer.applied(command.controller_epoch, target, answer if isinstance(answer, ReplicationError) else None)
        return answer

    def _unreachable(self, command: Command) -> None:
        """Reset, and refused after it: it seems to be dead."""
        self._refusals += 1
        if self._refusals == 2:
            self._term.candidate.handle(BrokerDeathReported(self._broker, self.registration.incarnation))
        if not self._ended:
            self._deliver(command)

    def _timed_out(self, attempt: int, command: Command) -> None:
        if attempt == self._attempt and self._under_way and not self._ended:
            self._deliver(command)

    def _answered(
        self, attempt: int, command: Command, answer: CommandAnswer | ReplicaLogInfos | ReplicationError
    ) -> None:
        candidate = self._term.candidate
        if isinstance(answer, ReplicaLogInfos) and not self._term.over:
            # However late, and of whatever life: it is for the core to tell whether it still says anything.
            candidate.observer.answered(self._term.controller_epoch, self._broker, answer)
            candidate.handle(LogInfoRead(self._broker, answer))
        if attempt != self._attempt or not self._under_way or self._ended:
            return
        self._refusals = 0
        if isinstance(answer, ReplicationError) and answer.retriable:
            candidate.world.after(
                candidate.world.between(*RETRY_MS),
                "repeats a command",
                lambda: self._timed_out(attempt, command),
                on=candidate,
            )
            return
        self._under_way = False
        if isinstance(answer, CommandAnswer) and isinstance(command, LeaderAndIsr):
            self._take(command, answer)
        self._next()

    def _take(self, command: LeaderAndIsr, answer: CommandAnswer) -> None:
        """Unlike the live sender, it repeats what something newer was told of, too: epochs must bear that."""
        found = outcome(self._broker, command, answer)
        for led in found.confirmed:
            self._term.confirmed(led.topic_partition, led.topic_id, led.state.leader_epoch)
        candidate = self._term.candidate
        if found.failed:
            candidate.handle(ReplicasFailed(self._broker, self.registration.epoch, found.failed))
        again = found.again
        if again is not None:
            candidate.world.after(
                candidate.world.between(*RETRY_MS), "repeats partitions", lambda: self.put(again), on=candidate
            )


def _applied(target: BrokerProcess, life: int, command: Command) -> CommandAnswer | ReplicaLogInfos:
    loop = target.asked(life)
    match command:
        case LeaderAndIsr():
            answer = loop.leader_and_isr(command, target.clock_ms())
            if command.init:
                target.initialized(command.partitions)
            return answer
        case UpdateMetadata():
            return loop.update_metadata(command)
        case StopReplica():
            return loop.stop_replica(command)
        case GetReplicaLogInfo():
            return loop.replica_log_info(command)

"""Simulated candidates for /controller: the winner runs the production ControllerLoop, as live/controller/host does.

Its writes leave one multi() after the other, so that it can die between any two. A deposed controller goes on until it
learns of that, and must change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import assert_never

from spark_replication.core.claims.campaigning import Campaigning, Won
from spark_replication.core.controller.cluster import LoadedCluster
from spark_replication.core.controller.events import Event, PartitionsRead, TookOver
from spark_replication.core.controller.news import News
from spark_replication.core.controller.plan import Reply
from spark_replication.core.law.unreadable import Unreadable
from spark_replication.core.law.writes import Group, GroupAnswer
from spark_replication.engine.controller.candidacy import Candidacy, Instruction
from spark_replication.engine.controller.candidacy import Event as Happened
from spark_replication.engine.controller.command_line import CommandLine, CommandLines
from spark_replication.engine.controller.controller_loop import ControllerLoop
from spark_replication.errors import BrokerNotAvailable, NotController, ReplicationError, RequestTimedOut
from spark_replication.messages.commands import (
    Command,
    CommandAnswer,
    GetReplicaLogInfo,
    LeaderAndIsr,
    ReplicaLogInfos,
    StopReplica,
    UpdateMetadata,
)
from spark_replication.model import BrokerId, ControllerInfo, HeldDirectory, Registration, TopicPartition
from spark_replication.sim.cast.broker import BrokerProcess
from spark_replication.sim.cast.mirror import MirrorTables, MirrorWriter
from spark_replication.sim.cast.tables import SimulatedSealer, TopicTables
from spark_replication.sim.judges.checkers import Checkers
from spark_replication.sim.world.claims import perform
from spark_replication.sim.world.network import Network
from spark_replication.sim.world.topic_tables import anything_fits
from spark_replication.sim.world.world import Process, World
from spark_replication.sim.world.zookeeper import RETRY_MS, Lost, Requests, Session, ZooKeeper
from spark_replication.storage.format.batches import schema_change
from spark_replication.zk import paths
from spark_replication.zk.controller.admin_requests import FoundRequest
from spark_replication.zk.controller.committing import Committing
from spark_replication.zk.controller.looking import CandidacyOver, Found, Looking, Marks, Told, looked
from spark_replication.zk.controller.request_looking import Deletions, RequestLooking, looked_for
from spark_replication.zk.operations import Check
from spark_replication.zk.session import MultiOutcome, SessionLost

TICK_MS = 150
LOOK_S = 0.2  # between two tries to read what could not be read
TIMEOUT_MS = 120
OPERATIONS_IN_MULTI = (1, 8)  # at most: few, so that it can die between any two of its multi()s
CONNECT_MS = (1, 20)
CAMPAIGN_MS = (10, 60)
HOLDS = 0.5  # holds the lock of its directory, so that the next process there knows that this one is dead
LATE_COMMAND = 0.1  # a command is applied late, too, as one may be that was given up for lost


Loaded = tuple[LoadedCluster, list[FoundRequest]]
Answer = CommandAnswer | ReplicaLogInfos | ReplicationError


class Candidate(Process):
    """A driver's process. engine.controller.candidacy says what it does. Each candidacy has a session of its own."""

    def __init__(
        self,
        name: str,
        *,
        world: World,
        network: Network,
        zookeeper: ZooKeeper,
        find: Callable[[BrokerId, int], BrokerProcess | None],
        observer: Checkers,
        mirror: MirrorTables,
        tables: TopicTables,
    ) -> None:
        super().__init__(name)
        self.world = world
        self.network = network
        self.zookeeper = zookeeper
        self.find = find
        self.observer = observer
        self.mirror = mirror
        self.tables = tables
        self.loop: ControllerLoop | None = None
        self.commanding: Commanding | None = None
        self.replies: dict[int, Reply] = {}
        self._session: Session | None = None
        self._candidacy = Candidacy()
        self._loaded: tuple[LoadedCluster, list[FoundRequest], Won] | None = None
        holds = world.chance(HOLDS)
        self._held = HeldDirectory(boot_id="boot", directory_mark=name) if holds else None

    @property
    def session(self) -> Session:
        """The session of the present candidacy."""
        assert self._session is not None
        return self._session

    def clock_ms(self) -> int:
        return self.world.now_ms + self.skew_ms

    def start(self) -> None:
        self._perform(self._candidacy.instruction)

    def ended(self) -> None:
        self.alive = False
        if self._session is not None:
            self.zookeeper.silent(self._session, self.zookeeper.session_ms)

    def handle(self, event: Event) -> None:
        if self.loop is not None:
            self.loop.handle(event, self.clock_ms())

    def happened(self, event: Happened) -> None:
        instruction = self._candidacy.after(event)
        if instruction is not None:
            self._perform(instruction)

    def _perform(self, instruction: Instruction) -> None:
        match instruction:
            case Instruction.REST:
                rest_ms = self._candidacy.rest_ms + self.world.between(*CAMPAIGN_MS)
                self.world.after(rest_ms, "has rested", lambda: self.happened(Happened.RESTED), on=self)
            case Instruction.CAMPAIGN:
                self._campaign()
            case Instruction.STAND_BY:
                self._marked("vacancy")  # /controller may have become vacant meanwhile
            case Instruction.COMMAND:
                self._command()
            case Instruction.RESIGN:
                self._resign()
            case Instruction.LEAVE:
                pass
            case _:
                assert_never(instruction)

    def _campaign(self) -> None:
        session = self._session = self.zookeeper.connect(self, lambda: self.lost(session))
        self.zookeeper.watch(session, self._marked)

        def ended(answer: Won | ReplicationError | None) -> None:
            if session is not self._session:
                return
            if isinstance(answer, Won):
                self._load(session, answer)
            else:
                self.happened(Happened.OUTVOTED if answer is None else Happened.FAILED)

        wanted = ControllerInfo(id=self.name, host=self.name, port=1, epoch=0, held=self._held)
        perform(session, "campaigns", Campaigning(wanted), ended)

    def _load(self, session: Session, won: Won) -> None:
        def load() -> Loaded | ReplicationError:
            try:
                return self.zookeeper.load(won.info.epoch)
            except NotController as error:
                return error

        def answered(answer: Loaded | ReplicationError | Lost) -> None:
            if session is not self._session:
                return
            if isinstance(answer, tuple):
                self._loaded = *answer, won
                self.happened(Happened.WON)
            elif not isinstance(answer, Lost) or answer.expired:
                self.happened(Happened.FAILED)
            else:
                again = partial(self._load, session, won)
                self.world.after(self.world.between(*RETRY_MS), "loads again", again, on=self)

        session.request("loads", load, answered)

    def lost(self, session: Session) -> None:
        """Report that this session, or the /controller that it had won, is lost."""
        if session is self._session:
            commands = self._candidacy.instruction is Instruction.COMMAND
            self.happened(Happened.DEPOSED if commands else Happened.FAILED)

    def _command(self) -> None:
        assert self._loaded is not None
        loaded, requests, won = self._loaded
        commanding = self.commanding = Commanding(self, self.session, won, loaded, requests)
        self.loop = ControllerLoop(
            loaded,
            store=commanding,
            sender=commanding,
            mirror=commanding,
            sealer=SimulatedSealer(self.tables, self, commanding.heard),
            answer=self.replies.__setitem__,
            deposed=self._deposed,
            now_ms=self.clock_ms(),
            compare_schemas=schema_change,
            fits_table=anything_fits,
        )
        self.world.counts["controllers"] += 1
        self.handle(TookOver())
        commanding.look()
        self.world.after(
            self.world.between(*CONNECT_MS), "reads who commands", lambda: self._marked("vacancy"), on=self
        )
        self.world.after(TICK_MS, "controller tick", lambda: self._tick(commanding), on=self)

    def _resign(self) -> None:
        self.loop = None
        if self.commanding is not None:
            self.commanding.over = True
            self.commanding = None
        self.session.close()
        self._session = None
        self.happened(Happened.RESIGNED)

    def _deposed(self) -> None:
        session = self.session
        self.world.after(0, "is deposed", lambda: self.lost(session), on=self)

    def _tick(self, commanding: Commanding) -> None:
        if self.loop is not None and self.commanding is commanding:
            self.loop.tick(self.clock_ms())
            commanding.look()
            self.world.after(TICK_MS, "controller tick", lambda: self._tick(commanding), on=self)

    def _marked(self, what: str) -> None:
        if what == "vacancy":
            if self.zookeeper.controller is None:
                self.happened(Happened.VACANT)
            if self.zookeeper.controller is not self._session:
                self.happened(Happened.DEPOSED)
        elif self.commanding is not None:
            self.commanding.mark(what)


class Commanding:
    """One term: ports.ControllerStore, CommandSender and MirrorFeed of a controller epoch."""

    def __init__(
        self, candidate: Candidate, session: Session, won: Won, loaded: LoadedCluster, requests: list[FoundRequest]
    ) -> None:
        self.candidate = candidate
        self.controller_epoch = won.info.epoch
        self.over = False
        self.session = session
        self._epoch_check = Check(paths.CONTROLLER_EPOCH, won.epoch_version)
        self._committing = Committing(
            self._requests("controller writes", "reads what it wrote"),
            won.epoch_version,
            lambda _reason: candidate.lost(session),
            self._met,
            operations_max=candidate.world.between(*OPERATIONS_IN_MULTI),
        )
        self._deletions = Deletions()
        self._deletions.begin(loaded.deleting)
        self._looking = Looking(self._epoch_check, loaded.unreadable, self._now_s, LOOK_S)
        self._requested = RequestLooking(requests, self._deletions, LOOK_S)
        self._looks = self._asks = False  # a reading is on its way
        self._lines = CommandLines(lambda line: Messenger(self, line))
        self._mirror = MirrorWriter(candidate.mirror, candidate, won.info.epoch)

    @property
    def _now_s(self) -> float:
        return self.candidate.world.now_ms / 1_000

    def _requests(self, writes: str, reads: str) -> Requests:
        return Requests(self.session, writes=writes, reads=reads, controller_epoch=self.controller_epoch)

    def heard(self, event: Event) -> None:
        if not self.over:
            self.candidate.handle(event)

    # ControllerStore

    def commit(self, groups: Sequence[Group], then: Callable[[list[GroupAnswer]], None]) -> None:
        self.candidate.observer.deciding(self.controller_epoch, groups)
        marks = self._deletions.sent(groups)

        def answered(answers: list[GroupAnswer]) -> None:
            if marks:
                self._deletions.answered(groups, answers)
            if not self.over:
                then(answers)

        self._committing.commit(groups, answered)

    def _met(self, unreadable: Unreadable) -> None:
        """Report topics and partitions that a write has met and cannot be read."""
        self._looking.hold(unreadable)
        self.candidate.handle(PartitionsRead({}, unreadable))

    # Watches

    def mark(self, what: str) -> None:
        if what == "requests":
            self._requested.mark()
        else:
            self._looking.mark(brokers=what == "brokers", changes=what == "changes")
        self.look()

    def look(self) -> None:
        """Read what is due, once for all marks until the reading."""
        self._look_at_marks()
        self._look_for_requests()

    def _look_at_marks(self) -> None:
        """As zk.controller.watch."""
        if self.over or self._looks or self._looking.due_s > self._now_s:
            return
        self._looks = True
        marks = Marks(brokers=False, changes=False, held=())  # none are taken yet

        def operate() -> Found:
            nonlocal marks
            self._looks, marks = False, self._looking.taken(self._now_s)
            return looked(marks, self.candidate.zookeeper.tree)

        def answered(answer: Found | Lost) -> None:
            if isinstance(answer, Lost):
                self._looks = False
                if not answer.expired:
                    self._looking.failed(marks, self._now_s)
            elif not self.over:
                for told in self._looking.found(answer):
                    self._tell(told)
                for multi in self._looking.writes(answer):
                    self._requests("forgets changes", "").commit(multi, self._written)

        self.session.request("reads what is marked", operate, answered)

    def _look_for_requests(self) -> None:
        """As zk.controller.request_watch."""
        requests = self._requested
        if self.over or self._asks or requests.due_s > self._now_s:
            return
        self._asks = True

        def operate() -> list[FoundRequest]:
            requests.taken()
            return looked_for(self.candidate.zookeeper.tree)

        def answered(answer: list[FoundRequest] | Lost) -> None:
            self._asks = False
            if isinstance(answer, Lost):
                if not answer.expired:
                    requests.failed(self._now_s)
            elif not self.over:
                for told in requests.found(answer, self._now_s):
                    self.candidate.handle(told)

        self.session.request("reads requests", operate, answered)

    def _tell(self, told: Told | CandidacyOver) -> None:
        if isinstance(told, CandidacyOver):
            self.candidate.lost(self.session)
        else:
            self.candidate.handle(told)

    def _written(self, outcome: MultiOutcome) -> None:
        if self.over or isinstance(outcome, SessionLost):
            return
        if isinstance(outcome, ReplicationError):
            self._looking.failed(Marks(brokers=False, changes=True, held=()), self._now_s)
            return
        deposed = self._looking.written(outcome)
        if deposed is not None:
            self._tell(deposed)

    # CommandSender

    def send(self, broker: BrokerId, registration: Registration, command: Command) -> None:
        self.candidate.observer.sent(broker, command)
        self._lines.send(broker, registration, command)

    def gone(self, broker: BrokerId) -> None:
        self._lines.gone(broker)

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


class Messenger:
    """command_line.Messenger: delivers due commands over the network, and waits `TIMEOUT_MS` for each answer."""

    def __init__(self, term: Commanding, line: CommandLine) -> None:
        self._term = term
        self._line = line
        self._attempt = 0

    def tell(self, command: Command) -> None:
        self._line.tell(command)
        self._go_on()

    def end(self) -> None:
        self._line.end()

    def _go_on(self) -> None:
        candidate = self._term.candidate
        now_ms = candidate.world.now_ms
        if self._term.over:
            return
        command = self._line.next(now_ms)
        if command is not None:
            self._deliver(command)
        elif (due_ms := self._line.due_ms(now_ms)) is not None:
            candidate.world.after(due_ms - now_ms, "commands are due", self._go_on, on=candidate)

    def _deliver(self, command: Command) -> None:
        candidate, registration = self._term.candidate, self._line.registration
        world, network = candidate.world, candidate.network
        target = candidate.find(self._line.broker, registration.port)
        self._attempt += 1
        attempt = self._attempt
        name = type(command).__name__
        if target is None:
            refused = BrokerNotAvailable(f"{registration.address} refuses connections")
            delay_ms = world.between(*CONNECT_MS)
            world.after(delay_ms, f"{name} is refused", lambda: self._answered(attempt, refused), on=candidate)
            return

        def carry_out() -> None:
            answer = self._carry_out(target, command)
            network.send(
                target.name,
                candidate.name,
                f"{name} is answered",
                lambda: self._answered(attempt, answer),
                to=candidate,
            )

        def carry_out_late() -> None:
            self._carry_out(target, command)

        network.send(candidate.name, target.name, name, carry_out, to=target, about=command)
        if world.chance(LATE_COMMAND):
            world.counts["duplicate_command"] += 1
            late_ms = world.between(20, 200)
            world.after(late_ms, f"{name}, late", carry_out_late, on=target, about=command)
        silent = RequestTimedOut(f"no answer within {TIMEOUT_MS} ms")
        world.after(TIMEOUT_MS, f"{name} timed out", lambda: self._answered(attempt, silent), on=candidate)

    def _carry_out(self, target: BrokerProcess, command: Command) -> Answer:
        answer: Answer
        try:
            answer = _applied(target, self._line.registration.port, command)
        except ReplicationError as error:
            answer = error
        observer = self._term.candidate.observer
        observer.applied(command.controller_epoch, target, answer if isinstance(answer, ReplicationError) else None)
        return answer

    def _answered(self, attempt: int, answer: Answer) -> None:
        if attempt != self._attempt or self._term.over:
            return
        self._attempt += 1  # any later outcome of this attempt is ignored
        now_ms = self._term.candidate.world.now_ms
        if isinstance(answer, ReplicationError):
            news = self._line.failed(answer, now_ms)
        else:
            if isinstance(answer, ReplicaLogInfos):
                self._term.candidate.observer.answered(self._term.controller_epoch, self._line.broker, answer)
            news = self._line.answered(answer, now_ms)
        for led in news.confirmed:
            self._term.confirmed(led.topic_partition, led.topic_id, led.state.leader_epoch)
        for event in news.events:
            self._term.candidate.handle(event)
        self._go_on()


def _applied(target: BrokerProcess, life: int, command: Command) -> CommandAnswer | ReplicaLogInfos:
    loop = target.asked(life)
    match command:
        case LeaderAndIsr():
            answer = loop.leader_and_isr(command)
            if command.init:
                target.initialized(command.partitions)
            return answer
        case UpdateMetadata():
            return loop.update_metadata(command)
        case StopReplica():
            return loop.stop_replica(command)
        case GetReplicaLogInfo():
            return loop.replica_log_info(command)

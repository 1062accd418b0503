"""Hosts a controller: campaigns for /controller, runs the loop while it commands, and stands by while another does.

One thread runs the loop. Everything else (ZooKeeper's answers and watches, admin requests, death reports) puts events
into its queue. An error on that thread, whatever it is, ends the candidacy and never the thread. The Spark driver and
the controller process of a local cluster both use this.
"""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path
from typing import NamedTuple, TypeVar, assert_never

from msgspec import UNSET
from msgspec.structs import replace

from spark_replication.config import Settings
from spark_replication.core.controller.cluster import ClusterState, LoadedCluster
from spark_replication.core.controller.describing import described, described_page, settings_in_force
from spark_replication.core.controller.events import (
    BrokerDeathReported,
    BrokerNoted,
    Event,
    LogInfoRead,
    ReplicasDamaged,
    ReplicasFailed,
    TookOver,
)
from spark_replication.core.controller.plan import Reply
from spark_replication.core.law.acls import ACLS
from spark_replication.core.law.quotas import QUOTAS
from spark_replication.core.settings_in_force import all_shown
from spark_replication.core.tables.restoring import TopicOutline, outline_of
from spark_replication.engine.controller.candidacy import Candidacy, Instruction
from spark_replication.engine.controller.candidacy import Event as Happened
from spark_replication.engine.controller.controller_loop import ControllerLoop
from spark_replication.errors import (
    InvalidRequest,
    NotController,
    ReplicationError,
    RequestTimedOut,
    StorageFailed,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from spark_replication.live.controller.command_sender import ThreadedCommandSender
from spark_replication.live.controller.concerns import Concerns
from spark_replication.live.controller.group_watch import GroupWatch
from spark_replication.live.controller.last_described import LastDescribed
from spark_replication.live.controller.metrics import ControllerView, controller_exposition
from spark_replication.live.controller.news_of_brokers import NewsOfBrokers, logged
from spark_replication.live.controller.owed_answers import OwedAnswers
from spark_replication.live.controller.seat import Seat
from spark_replication.live.controller.table_sealer import ThreadedTableSealer
from spark_replication.messages.actions import (
    ADMIN_REQUESTS,
    BROKER_DIED,
    BROKER_NOTED,
    DESCRIBE_ACLS,
    DESCRIBE_EVENTS,
    DESCRIBE_QUOTAS,
    DESCRIBE_SETTINGS,
    DESCRIBE_TOPICS,
    DISK_DAMAGED,
    DISK_FAILED,
    METADATA,
    METRICS,
    OPEN_GROUPS,
    OPEN_TABLE,
    REBUILD_MIRROR,
)
from spark_replication.messages.commands import TellNotes
from spark_replication.messages.descriptions import GetMetadata, Metadata
from spark_replication.messages.envelope import Done
from spark_replication.messages.groups import GROUPS_PARTITIONS, GROUPS_REPLICAS, GROUPS_TOPIC, OpenGroups
from spark_replication.messages.guarding import BrokerDied, DiskFailed
from spark_replication.messages.mending import DiskDamaged
from spark_replication.messages.mirroring import DescribeEvents, RebuildMirror, ToldEvents
from spark_replication.messages.observing import DescribeSettings, GetMetrics, MetricsText, ToldSettings
from spark_replication.messages.records import Refusal
from spark_replication.messages.requests import (
    CreateTopic,
    DescribeAcls,
    DescribeQuotas,
    Request,
    RequestAnswer,
    ToldAcls,
    ToldQuotas,
)
from spark_replication.messages.tables import OpenTable
from spark_replication.mirror.asking.load import UNREADABLE, reason_of
from spark_replication.mirror.asking.told_events import read_told
from spark_replication.mirror.delta.object_store import read_store_options
from spark_replication.mirror.telling.feed import CLOSE_TIMEOUT_S as MIRROR_CLOSE_S
from spark_replication.mirror.telling.feed import MirrorThread, Teller
from spark_replication.process.threads import now_ms
from spark_replication.storage.directory.broker_directory import boot_id
from spark_replication.storage.format.batches import schema_change
from spark_replication.storage.format.group_rows import groups_schema_text
from spark_replication.tables.delta_table import DeltaTopicTable
from spark_replication.tables.opening import TablesPlace, fits_table
from spark_replication.tables.places import read_table_options
from spark_replication.transport.flight.actions import ActionServer, Handled, handled, handled_of, handled_seen
from spark_replication.transport.flight.door import Door
from spark_replication.transport.security.audit import AUDIT_FILE, AuditLog
from spark_replication.transport.security.rights import Rights
from spark_replication.transport.security.security import Security
from spark_replication.view.health import problems
from spark_replication.zk.controller.store import ZooKeeperControllerStore
from spark_replication.zk.protecting import protect
from spark_replication.zk.session import Session

SEAT_LOOK_S = 0.1
STOP_S = 2.0
CLOSE_TIMEOUT_S = 160.0  # a dismissal of guardians included
TICK_S = 0.2
GROUPS_SEGMENT_BYTES = 1 << 20  # what is in a snapshot goes a segment at a time
REBUILD_S = 8.0  # less than an admin's request waits for one answer

Answer = TypeVar("Answer")

log = logging.getLogger(__name__)


class ControllerHooks(NamedTuple):
    """Who works for a controller while it commands, such as the fleet of guardians."""

    #: took_over(cluster_id, epoch, address): this controller commands, and serves at that address. On its thread.
    took_over: Callable[[str, int, str], None] = lambda _cluster_id, _epoch, _address: None
    #: Another controller may command by now. On the controller's thread.
    stood_down: Callable[[], None] = lambda: None
    #: The name of a thread of theirs that has died; empty if none has.
    dead_thread: Callable[[], str] = lambda: ""
    #: Problems of this description, its partitions aside, and of their own. On any thread.
    problems: Callable[[Metadata], Sequence[str]] = lambda metadata: [*map(str, problems(metadata, frozenset()))]


NOBODY = ControllerHooks()


class ControllerHost:
    """A controller's process, or a driver's part that is the controller."""

    def __init__(
        self,
        zookeeper: str,
        *,
        name: str,
        host: str | Door,
        settings: Settings,
        origins: Mapping[str, str] = {},
        security: Security,
        mirror_path: str,
        hooks: ControllerHooks = NOBODY,
        actions: Sequence[Handled] = (),
        seat: Path,
    ) -> None:
        """host: where it serves, or the process that takes its calls there. actions: what its server answers besides
        the controller's requests. seat: the directory of its seat (live.controller.seat), beside which its audit log
        lies. origins: where the settings come from (core.settings_in_force)."""
        self._zookeeper = zookeeper
        self._name = name
        door = None if isinstance(host, str) else host
        self._host = host if isinstance(host, str) else host.host
        self._settings = settings
        self._origins = origins
        self._directory = seat.parent.resolve()
        self._cluster_id = ""  # until it was read
        self.security = security.of_cluster(lambda: self._cluster_id)
        self._mirror_path = mirror_path
        self._store_options = read_store_options(settings)
        self._table_store = read_table_options(settings)
        self._mirror: MirrorThread | None = None
        self._last_described = LastDescribed()
        self._mirrors_closing: list[threading.Thread] = []
        self._hooks = hooks
        self._seat = Seat(seat)
        self._steps_aside = threading.Event()
        self._guards = False
        self._closing = threading.Event()
        self._leaving = threading.Lock()
        self._vacant = threading.Event()
        self._active = threading.Event()
        self._standing_by = False
        self._session: Session | None = None
        # What belongs to the present candidacy.
        self._store: ZooKeeperControllerStore | None = None
        self._loaded: LoadedCluster | None = None
        self._deposed = threading.Event()
        self._connected_at_s = time.monotonic()
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._log_infos: queue.SimpleQueue[LogInfoRead] = queue.SimpleQueue()
        self._loop: ControllerLoop | None = None
        self._owed = OwedAnswers()
        rights = Rights(self.security, self._acls, self._quotas, AuditLog(seat.parent / AUDIT_FILE))
        self._server = ActionServer(self._host, [*self._actions(), *actions], rights=rights, door=door)
        self._thread = threading.Thread(target=self._run, name="controller", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def address(self) -> str:
        return f"{self._host}:{self._server.port}"

    @property
    def active(self) -> bool:
        return self._active.is_set()

    @property
    def standing_by(self) -> bool:
        """ZooKeeper says that another driver commands."""
        return self._standing_by

    def zookeeper_silent_s(self) -> float:
        """How long there has been no connection to ZooKeeper; 0 if there is one. An active controller may have lost its
        place meanwhile: only ZooKeeper knows."""
        session, now_s = self._session, time.monotonic()
        if session is not None and session.connected:
            self._connected_at_s = now_s
        return now_s - self._connected_at_s

    @property
    def mirror(self) -> MirrorThread | None:
        """The mirror of the present candidacy, or of the last one; None before the first."""
        return self._mirror

    def wait_active(self) -> int:
        """Wait until this driver commands, however long another one does. Returns the controller epoch."""
        self._active.wait()
        return self.ask(lambda cluster: cluster.controller_epoch)

    def step_aside(self) -> None:
        """Resigns, and lets a standby go first. If there is none, this driver commands again."""
        if self.active:
            self._steps_aside.set()
            self._tasks.put(None)

    def close(self) -> None:
        """Let the next controller in. Brokers serve on. On any thread: if two close it, the later one waits."""
        self._closing.set()
        self._vacant.set()
        self._tasks.put(None)
        if self._thread.ident is not None:
            self._thread.join(CLOSE_TIMEOUT_S)
            if self._thread.is_alive():
                log.warning("the controller's thread is left behind: it has not ended in %s s", CLOSE_TIMEOUT_S)
        for closing in self._mirrors_closing:
            closing.join(MIRROR_CLOSE_S)
        with self._leaving:
            self._seat.leave()
            self._server.stop(STOP_S)

    def ask(self, question: Callable[[ClusterState], Answer]) -> Answer:
        """The answer to a question about the cluster as the controller knows it. The question runs on its thread."""
        answer: Future[Answer] = Future()

        def run() -> None:
            if self._loop is None:
                answer.set_exception(self._not_controller())
                return
            try:
                answer.set_result(question(self._loop.cluster))
            except Exception as error:  # noqa: BLE001 (the error goes to whoever asked the question)
                answer.set_exception(error)

        self._tasks.put(run)
        return self._awaited(answer)

    def _table_of(self, cluster_id: str) -> Callable[[str, str], DeltaTopicTable]:
        place = TablesPlace(cluster_id, self._settings.table_path, self._table_store)

        def table_of(topic: str, topic_id: str) -> DeltaTopicTable:
            def known(cluster: ClusterState) -> tuple[TopicOutline, str]:
                if topic not in cluster.topics:
                    raise UnknownTopicOrPartition(f"topic {topic} is gone: there is nothing to seal")
                found = cluster.topics[topic]
                outline = outline_of(found.config, len(found.state.partitions))
                return outline, cluster.settings_of(topic).table_partition_by

            outline, partition_by = self.ask(known)
            return place.table(topic, topic_id, outline, partition_by=partition_by)

        return table_of

    def _awaited(self, answer: Future[Answer]) -> Answer:
        timeout_ms = self._settings.request_timeout_ms
        deadline = time.monotonic() + timeout_ms / 1000
        while time.monotonic() < deadline and self.active and not self._closing.is_set():
            try:
                return answer.result(timeout=min(0.2, max(deadline - time.monotonic(), 0.001)))
            except FutureTimeoutError:
                continue
        if answer.done():
            return answer.result()
        if not self.active or self._closing.is_set():
            raise self._not_controller(maybe_written=True)
        raise RequestTimedOut(f"the controller did not answer within {timeout_ms} ms: ask again", maybe_written=True)

    def _not_controller(self, *, maybe_written: bool = False) -> NotController:
        where = "ask any broker for its address"
        return NotController(f"{self._name} is not the controller: {where}", maybe_written=maybe_written)

    # Campaigning, commanding, standing by

    def _run(self) -> None:
        candidacy = Candidacy()
        while candidacy.instruction is not Instruction.LEAVE:
            candidacy.after(self._performed(candidacy.instruction, candidacy.rest_ms))

    def _performed(self, instruction: Instruction, rest_ms: int) -> Happened:
        """Perform the instruction. Returns the event that it ended with."""
        try:
            match instruction:
                case Instruction.REST:
                    return Happened.CLOSED if self._closing.wait(rest_ms / 1000) else Happened.RESTED
                case Instruction.CAMPAIGN:
                    return self._campaign()
                case Instruction.STAND_BY:
                    return self._stand_by()
                case Instruction.COMMAND:
                    return self._command()
                case Instruction.RESIGN | Instruction.LEAVE:
                    return self._resign()
                case _:
                    assert_never(instruction)
        except ReplicationError as error:
            log.warning("the controller cannot work: %s", error)
        except Exception:
            # What this controller believes may be wrong by now. What ZooKeeper holds is not: the next candidacy, of
            # this driver or of a standby, begins from that.
            log.exception("the controller met an error that nobody expected, and gave up its place: please report")
        return Happened.FAILED

    def _campaign(self) -> Happened:
        self._vacant.clear()
        self._steps_aside.clear()
        deposed = self._deposed = threading.Event()

        def lost(reason: str) -> None:
            log.warning("no longer the controller: %s", reason)
            deposed.set()
            self._tasks.put(None)

        session = self._session = Session.connect(
            self._zookeeper,
            self._settings.zookeeper_chroot,
            session_timeout_ms=self._settings.zookeeper_session_ms,
            request_timeout_ms=self._settings.request_timeout_ms,
            login=self.security.zookeeper,
        )
        protect(session)
        self._store = ZooKeeperControllerStore(session, self._settings, self._tasks.put, lost)
        self._loaded = self._store.campaign(self._name, self._host, self._server.port, self._seat.take())
        return Happened.OUTVOTED if self._loaded is None else Happened.WON

    def _stand_by(self) -> Happened:
        assert self._store is not None
        assert self._session is not None
        log.warning("another controller commands: standing by, to take over when it goes")
        self._store.watch_vacancy(self._vacant.set)
        self._session.listen(lambda _state: self._vacant.set())
        self._standing_by = True
        try:
            while not self._vacant.wait(SEAT_LOOK_S) and not self._seat.became_free():
                self.zookeeper_silent_s()
                if self._closing.is_set():
                    return Happened.CLOSED  # close() was called before this driver knew that another commands
            return Happened.VACANT
        finally:
            self._standing_by = False

    def _resign(self) -> Happened:
        if self._store is not None:
            # First, since it may take long to dismiss the guardians, and the next controller need not wait for that.
            self._store.resign()
            self._store = None
        if self._guards:
            self._guards = False
            self._hooks.stood_down()
        return Happened.RESIGNED

    def _command(self) -> Happened:
        store, loaded, deposed = self._store, self._loaded, self._deposed
        assert store is not None
        assert loaded is not None
        self._loaded = None  # the loop has it from now on
        self._cluster_id = loaded.cluster_id
        mirror = self._mirror = MirrorThread(
            self._mirror_path,
            Teller(loaded.cluster_id, loaded.controller_epoch, self.address),
            self._settings,
            self._store_options,
        )
        concerns = Concerns(lambda seen: self._hooks.problems(self.with_surroundings(seen)), mirror.heed)
        interval_s = self._settings.mirror_heartbeat_ms / 1_000
        groups = GroupWatch(loaded.cluster_id, self.address, self.security, interval_s, mirror.tell_groups)
        sealer = ThreadedTableSealer(self._table_of(loaded.cluster_id), self._post)
        sender = ThreadedCommandSender(
            timeout_ms=self._settings.request_timeout_ms,
            security=self.security,
            heard=NewsOfBrokers(self._post, self._post_log_info, mirror.confirmed),
        )
        loop = self._loop = ControllerLoop(
            loaded,
            store=store,
            sender=sender,
            mirror=mirror,
            sealer=sealer,
            answer=self._owed.answer,
            deposed=deposed.set,
            now_ms=now_ms(),
            compare_schemas=schema_change,
            fits_table=fits_table,
        )
        ends = {
            Happened.CLOSED: self._closing,
            Happened.DEPOSED: deposed,
            Happened.SENT_ASIDE: self._steps_aside,
        }
        concerns.start()
        groups.start()
        log.info("controller at epoch %d, %d partitions", loaded.controller_epoch, len(loaded.partitions))
        try:
            loop.handle(TookOver(), now_ms())
            store.watch(lambda event: self._post(self._owed.numbered(event)))
            self._active.set()
            self._guards = True
            self._hooks.took_over(loaded.cluster_id, loaded.controller_epoch, self.address)
            dead = (store.dead_thread, sender.dead_thread, concerns.dead_thread, self._hooks.dead_thread)
            heeds = (concerns.look, groups.heed)
            self._work(loop, heeds, dead, lambda: any(each.is_set() for each in ends.values()))
            return next(happened for happened, each in ends.items() if each.is_set())
        finally:
            self._active.clear()
            self._loop = None
            for each in (concerns, groups, sealer, sender):
                each.close()
            self._close_aside(mirror)
            self._drain()
            self._owed.answer_all(Reply(self._not_controller(maybe_written=True)))

    def _close_aside(self, mirror: MirrorThread) -> None:
        """Close the mirror on a thread of its own: its last rows may wait for Delta, and nobody waits for them
        (M4)."""
        closing = threading.Thread(target=mirror.close, name="mirror-closing", daemon=True)
        self._mirrors_closing = [*(each for each in self._mirrors_closing if each.is_alive()), closing]
        closing.start()

    def _work(
        self,
        loop: ControllerLoop,
        heeds: Sequence[Callable[[ClusterState], None]],
        dead: Sequence[Callable[[], str]],
        is_over: Callable[[], bool],
    ) -> None:
        """Run the loop until it is over. heeds: each is shown the cluster at every tick. dead: each returns the name of
        a thread that has died, or nothing."""
        tick_at_s = time.monotonic() + TICK_S
        while not is_over():
            with contextlib.suppress(queue.Empty):
                task = self._tasks.get(timeout=max(0.0, tick_at_s - time.monotonic()))
                self._take_log_infos(loop)
                if task is not None:
                    task()
            if time.monotonic() >= tick_at_s:
                self.zookeeper_silent_s()
                if thread := next(filter(None, (found() for found in dead)), ""):
                    raise RuntimeError(f"its thread {thread} died of an error")
                self._take_log_infos(loop)
                loop.tick(now_ms())
                for heed in heeds:
                    heed(loop.cluster)
                tick_at_s = time.monotonic() + TICK_S

    def _take_log_infos(self, loop: ControllerLoop) -> None:
        """Take all answers about logs that have come, before anything else: an election by logs uses all of them."""
        while not self._log_infos.empty():
            loop.take(self._log_infos.get())
        loop.go_on(now_ms())

    def _drain(self) -> None:
        """Drop what an ended candidacy left: it is not for the next one."""
        while not self._tasks.empty():
            self._tasks.get()
        while not self._log_infos.empty():
            self._log_infos.get()

    def _post(self, event: Event) -> None:
        """Queue an event for the loop."""
        self._tasks.put(lambda: self._loop.handle(event, now_ms()) if self._loop is not None else None)

    def _post_log_info(self, answer: LogInfoRead) -> None:
        self._log_infos.put(answer)
        self._tasks.put(None)

    # Requests, on threads of the server

    def _actions(self) -> list[Handled]:
        return [
            *(handled_of(action, self._carry_out) for action in ADMIN_REQUESTS.values()),
            handled(METADATA, self._metadata),
            handled_seen(
                DESCRIBE_TOPICS, lambda asked, sees: described_page(self.ask(ClusterState.snapshot), asked, sees)
            ),
            handled(METRICS, self.metrics),
            handled(BROKER_DIED, self._broker_died),
            handled(BROKER_NOTED, self._broker_noted),
            handled(DISK_FAILED, self._disk_failed),
            handled(DISK_DAMAGED, self._disk_damaged),
            handled(REBUILD_MIRROR, self._rebuild_mirror),
            handled_of(OPEN_GROUPS, self._open_groups),
            handled(OPEN_TABLE, self._open_table),
            handled(DESCRIBE_EVENTS, self._events),
            handled(DESCRIBE_ACLS, self._told_acls),
            handled(DESCRIBE_QUOTAS, self._told_quotas),
            handled(DESCRIBE_SETTINGS, self._told_settings),
        ]

    def _quotas(self) -> str:
        loop = self._loop
        return "" if loop is None else loop.cluster.settings.security_quotas

    def _told_quotas(self, _asked: DescribeQuotas) -> ToldQuotas:
        if self._loop is None:
            raise self._not_controller()
        return ToldQuotas(quotas=tuple(sorted(QUOTAS.said(self._quotas()))), count=self.security.knows_clients)

    def _acls(self) -> str:
        loop = self._loop
        if loop is None:
            raise self._not_controller()
        return loop.cluster.settings.security_acls

    def _told_acls(self, _asked: DescribeAcls) -> ToldAcls:
        acls, super_users = ACLS.said(self._acls()), self.security.super_users
        return ToldAcls(acls=tuple(sorted(acls)), super_users=tuple(sorted(super_users)))

    def _told_settings(self, asked: DescribeSettings) -> ToldSettings:
        def told(cluster: ClusterState) -> ToldSettings:
            of_cluster = None if cluster.unreadable.settings else cluster.stored_settings.settings
            return ToldSettings(
                settings=settings_in_force(cluster, asked.topic, self._settings, self._origins),
                of_cluster=None if of_cluster is None else all_shown(of_cluster),
                directory=str(self._directory),
                boot_id=boot_id(),
            )

        return self.ask(told)

    def _carry_out(self, asked: Request, caller: str) -> RequestAnswer:
        """Wait until the request is done. Raises if it is refused as a whole; the answer says what of it was
        refused."""
        if not self.active:
            raise self._not_controller()
        with self._owed.asked(asked, caller) as (requested, answer):
            self._post(requested)
            reply = self._awaited(answer)
        if reply.error is not None:
            raise reply.error
        return RequestAnswer(errors={name: _refusal(error) for name, error in reply.errors.items()})

    def _open_table(self, asked: OpenTable) -> Done:
        def known(cluster: ClusterState) -> str:
            if asked.topic not in cluster.topics:
                raise UnknownTopicOrPartition(f"there is no topic {asked.topic}: check the name")
            if not cluster.is_table(asked.topic):
                raise InvalidRequest(
                    f"topic {asked.topic} is no table: spark-replication topics configure {asked.topic} table=true"
                )
            return cluster.topics[asked.topic].state.topic_id

        self._table_of(self._cluster_id)(asked.topic, self.ask(known)).make()
        return Done()

    def _open_groups(self, _asked: OpenGroups, caller: str) -> Done:
        def missing(cluster: ClusterState) -> int | None:
            """How many replicas the groups' log is to have; None if it is there."""
            return None if GROUPS_TOPIC in cluster.topics else min(GROUPS_REPLICAS, len(cluster.brokers.electable))

        replicas = self.ask(missing)
        if replicas is None:
            return Done()
        creation = CreateTopic(
            name=GROUPS_TOPIC,
            schema=groups_schema_text(),
            partitions=GROUPS_PARTITIONS,
            replication_factor=replicas,
            config={
                "retention.ms": -1,
                "retention.bytes": -1,
                "table": False,  # whatever the cluster's is: local.retention.* would hold for positions, too
                "segment.bytes": GROUPS_SEGMENT_BYTES,
                "min.insync.replicas": min(2, replicas),
            },
        )
        with contextlib.suppress(TopicAlreadyExists):
            self._carry_out(creation, caller)
        return Done()

    def _broker_died(self, died: BrokerDied) -> Done:
        if not self.active:
            raise self._not_controller()
        self._post(BrokerDeathReported(died.broker_id, died.incarnation))
        return Done()

    def _broker_noted(self, told: TellNotes) -> Done:
        if not self.active:
            raise self._not_controller()
        self._post(BrokerNoted(told.broker_id, told.broker_epoch, told.notes))
        return Done()

    def _disk_failed(self, told: DiskFailed) -> Done:
        if not self.active:
            raise self._not_controller()
        self._post(logged(ReplicasFailed(told.broker_id, told.broker_epoch, told.replicas)))
        return Done()

    def _disk_damaged(self, told: DiskDamaged) -> Done:
        if not self.active:
            raise self._not_controller()
        found = {each.replica: each.damage for each in told.replicas}
        self._post(ReplicasDamaged(told.broker_id, told.broker_epoch, found))
        return Done()

    def _rebuild_mirror(self, _asked: RebuildMirror) -> Done:
        mirror = self._mirror
        if mirror is None or not self.active:
            raise self._not_controller()
        mirror.rebuild(REBUILD_S)
        return Done()

    def _events(self, asked: DescribeEvents) -> ToldEvents:
        """Read the table: a new controller has not seen what happened before."""
        if not self.active:
            raise self._not_controller()
        try:
            return ToldEvents(events=tuple(read_told(self._mirror_path, asked, self._store_options)))
        except UNREADABLE as error:
            raise StorageFailed(f"the mirror's events cannot be read: {reason_of(error)}") from error

    def metrics(self, asked: GetMetrics) -> MetricsText:
        """Metrics of this process, and of the cluster while this driver commands. On any thread."""
        try:
            cluster = self.ask(ClusterState.snapshot) if self.active else None
        except NotController:
            cluster = None
        silent_s, mirror = self.zookeeper_silent_s(), None if cluster is None else self._mirror
        view = ControllerView(cluster, mirror, silent_s, self.security.trouble, self._server.meter, self._server.quotas)
        return MetricsText(text=controller_exposition(view, per_partition=asked.per_partition))

    def _metadata(self, asked: GetMetadata) -> Metadata:
        cluster = self.ask(ClusterState.snapshot)
        if asked.topics is not None:
            return self.with_surroundings(described(cluster, asked.topics, self.address))
        return self.with_surroundings(self._last_described.of(cluster, self.address, asked.unless))

    def with_surroundings(self, metadata: Metadata) -> Metadata:
        """Add what ClusterState does not know: whether ZooKeeper answers, whether the mirror is written, and whether
        the files of secrets can be used."""
        error = None if self._mirror is None else self._mirror.error
        return replace(
            metadata,
            zookeeper_silent_ms=math.ceil(self.zookeeper_silent_s() * 1000),
            mirror_error="" if error is None else error.message,
            secrets=self.security.trouble or UNSET,
        )


def _refusal(error: ReplicationError) -> Refusal:
    return Refusal(
        error=error.code, message=error.message, retriable=error.retriable, maybe_written=error.maybe_written
    )

"""Guardians' tasks: each performs the steps of its machines in simulated time, and reports to its driver.

A task may stand still, be killed, be cut off from its driver, or go on although Spark takes it for gone. Its broker
outlives it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from spark_replication.core.guardianship import GuardianDuty, Sight
from spark_replication.engine.guarding.broker_stop import BrokerStop, StopDoes
from spark_replication.engine.guarding.guardian_life import GuardianDoes, GuardianLife
from spark_replication.engine.guarding.leases import KeptLeases, Lease, renew_s
from spark_replication.errors import BrokerNotAvailable, ReplicationError
from spark_replication.messages.guarding import BrokerDied, Guarding, GuardingAnswer, Kept, Order
from spark_replication.model import BrokerId
from spark_replication.sim.cast.guarded import LEASE_MS, BrokerRun, Brokers, Caller, Directory, File, Host

REPORT_MS = 500
REPORT_TIMEOUT_MS = 2_000
RENEW_S_MAX, KEEP_S_MAX = 5.0, 1.0
REQUEST_TIMEOUT_MS = 5_000
KEEPER_TIMEOUT_MS = 2_000
PROBE_MS = 1_000
STEP_MS = (1, 20)
STOP_S, FLUSH_S, HAND_OVER_S = 20.0, 60.0, 5.0

_Step = Callable[[], None]


class Post(Protocol):
    """What a task knows of its submission."""

    controller_epoch: int
    submission: int
    wanted: int
    known: tuple[BrokerId, ...]
    submitted_ms: int

    def report(
        self,
        task: GuardianTask,
        told: Guarding,
        answered: Callable[[GuardingAnswer], None],
        failed: Callable[[ReplicationError], None],
    ) -> None: ...

    def report_death(
        self, task: GuardianTask, died: BrokerDied, done: _Step, failed: Callable[[ReplicationError], None]
    ) -> None: ...

    def ended(self, task: GuardianTask, error: ReplicationError | None) -> None: ...

    def fails(self, error: ReplicationError) -> None: ...

    def takes_new_id(self) -> BrokerId: ...


class GuardianTask(Caller):
    def __init__(
        self, brokers: Brokers, host: Host, post: Post, number: int, *, attempt: int, executor: str, namespace: int
    ) -> None:
        super().__init__(f"g{post.controller_epoch}.{post.submission}.{number}", host.name)
        self.host = host
        self.number = number
        self.executor = executor
        self.attempt = attempt
        self.lease = Lease(post.controller_epoch, attempt)
        self._brokers = brokers
        self._world = brokers.world
        self._judge = brokers.judge
        self.post = post
        self._namespace = namespace
        self._found: tuple[BrokerId, ...] = ()
        self._order: Order = "guard"
        self._leaves = self._has_finished = False
        self._life: GuardianLife[File] | None = None
        self._child: BrokerRun | None = None
        #: The process that is watched, if it is seen; which watch this is.
        self._watched: BrokerRun | None = None
        self._watch_number = 0
        self._kept = KeptLeases()
        self._keepers_lease = self.lease

    @property
    def _life_now(self) -> GuardianLife[File]:
        assert self._life is not None, "it does not idle"
        return self._life

    def _after(self, delay_ms: float, what: str, action: _Step) -> None:
        self._world.after(int(delay_ms), what, action, on=self)

    # The beginning

    def sight(self) -> Sight:
        found = self.host.found()
        self._found = tuple(each.broker_id for each in found)
        return Sight(host=self.host.name, directories=found, attempt=self.attempt)

    def begin(self, duty: BrokerId | GuardianDuty, lowest_attempt: int) -> None:
        self._keepers_lease = Lease(self.lease.controller_epoch, lowest_attempt)
        if duty is not GuardianDuty.IDLE:
            if isinstance(duty, GuardianDuty):
                try:
                    duty = self.post.takes_new_id()
                except ReplicationError as error:
                    self.post.ended(self, error)
                    return
            self._life = GuardianLife(duty, f"broker-{duty}", lambda: self._world.now_ms / 1_000)
            self._life.begin()
            self._step()
        self._report()
        self._keep_round()

    # Reports and orders

    def _report(self) -> None:
        if self._has_finished:
            return
        life = self._life
        told = Guarding(
            guardian=self.number,
            controller_epoch=self.post.controller_epoch,
            submission=self.post.submission,
            broker_id=None if life is None else life.broker_id,
            found=self._found,
            serving=None,
            log_dir="",
            adopted=life is not None and life.adopted,
            restarts=0 if life is None else life.restarts,
            trouble="" if life is None else life.trouble,
        )
        self.post.report(self, told, self._answered, lambda _error: self._again())

    def _again(self) -> None:
        if not self._leaves:
            self._after(REPORT_MS, "reports", self._report)

    def _answered(self, answer: GuardingAnswer) -> None:
        self._order = answer.order
        before = {each.incarnation for each in self._kept.due()}
        self._kept.keep(answer.keep)
        for gone in before - {each.incarnation for each in answer.keep}:
            self._judge.lets_go(self._keepers_name, gone)
        if self._order != "guard":
            self._leaves = True
            self._judge.minds_no_more(self.name)
            self._judge.minds_no_more(self._keepers_name)
            if self._life is None:
                self._finish()
            else:
                self._life.stop()
                if self._life.doing in (GuardianDoes.WATCH, GuardianDoes.PAUSE):
                    self._step()  # it is woken
        self._again()

    def _finish(self) -> None:
        """After the guardian's end, or, if this task idles, once it is to leave."""
        if self._has_finished:
            return
        self._has_finished = True
        life = self._life
        if life is not None and life.error is not None and life.doing is GuardianDoes.FAIL:
            self.post.ended(self, life.error)
        elif self._order == "shut_down" and life is not None:
            self._shut_down(life.broker_id)
        else:
            self.post.ended(self, None)

    # The steps of engine.guarding.guardian_life

    def _step(self) -> None:
        life = self._life_now
        self._watch_number += 1
        steps: dict[GuardianDoes, _Step] = {
            GuardianDoes.LOOK: self._look,
            GuardianDoes.TAKE: lambda: self._renew(life.taken),
            GuardianDoes.LAUNCH: self._launch,
            GuardianDoes.AWAIT: self._await,
            GuardianDoes.KILL: self._kill_child,
            GuardianDoes.WATCH: self._watch,
            GuardianDoes.RENEW: lambda: self._renew(lambda _broker: life.renewed()),
            GuardianDoes.REPORT: self._report_death,
            GuardianDoes.PAUSE: self._pause,
            GuardianDoes.END: self._finish,
            GuardianDoes.FAIL: self._finish,
        }
        steps[life.doing]()

    @property
    def _directory(self) -> Directory | None:
        return self.host.directories.get(self._life_now.broker_id)

    def _look(self) -> None:
        def looks() -> None:
            directory = self._directory
            alive = directory is not None and directory.process is not None
            self._life_now.looked(alive=alive, file=directory.file if directory is not None and alive else None)
            self._step()

        self._after(self._life_now.wait_s * 1_000 + self._world.between(*STEP_MS), "looks at its directory", looks)

    def _renew(self, done: Callable[[BrokerId], None]) -> None:
        """TAKE and RENEW."""
        file = self._life_now.found
        assert file is not None, "it serves"

        def answered(broker: BrokerId) -> None:
            if broker == self._life_now.broker_id and not self._leaves:
                self._judge.minds(self.name, file.incarnation)
            done(broker)
            self._step()

        def failed(error: ReplicationError) -> None:
            self._judge.lets_go(self.name, file.incarnation)
            self._life_now.failed(error)
            self._step()

        self._brokers.call(
            self,
            (file.host, file.port),
            lambda run: run.renew(self.lease),
            answered,
            failed,
            timeout_ms=REQUEST_TIMEOUT_MS,
        )

    def _launch(self) -> None:
        broker = self._life_now.broker_id
        directory = self.host.directories.setdefault(broker, Directory(self.host, broker))
        self._child = BrokerRun(self._brokers, directory, self.lease, self._namespace)
        self._world.counts["broker_launched"] += 1
        self._life_now.launched(self._child.pid, directory.file)
        self._step()

    def _await(self) -> None:
        def looks() -> None:
            assert self._child is not None, "it was started"
            assert self._directory is not None, "it was made"
            self._life_now.awaited(self._directory.file)
            if self._life_now.doing is GuardianDoes.AWAIT and self._child.exit_code is not None:
                self._life_now.child_ended(self._child.exit_code, "")
            self._step()

        self._after(self._life_now.wait_s * 1_000 + self._world.between(*STEP_MS), "looks whether it serves", looks)

    def _kill_child(self) -> None:
        assert self._child is not None, "it was started"
        self._child.ends(-9)
        self._life_now.child_ended(-9, "")
        self._step()

    def _seen(self, directory: Directory, file: File) -> BrokerRun | None:
        """The process of the file, if this task sees it."""
        run = directory.process
        is_it = run is not None and run.incarnation == file.incarnation and run.namespace == self._namespace
        return run if is_it else None

    def _watch(self) -> None:
        """A step of its own each time, of one watch until the broker has ended."""
        life, directory = self._life_now, self._directory
        assert life.found is not None, "it serves"
        assert directory is not None, "it lives there"
        if self._watched is None or self._watched.incarnation != life.found.incarnation:
            self._watched = self._seen(directory, life.found)
            if self._watched is not None:
                self._watched.watchers.append(lambda: self._after(1, "hears of its end", self._look_again))
        renews_ms = self._world.now_ms + int(renew_s(LEASE_MS, RENEW_S_MAX) * 1_000)
        self._await_end(renews_ms)

    def _look_again(self) -> None:
        if self._life_now.doing is GuardianDoes.WATCH:
            self._step()

    def _await_end(self, renews_ms: int) -> None:
        life, number = self._life_now, self._watch_number
        if self._has_ended(self._watched, self._directory):
            life.watched(ended=True)
            self._watched = None
            self._step()
        elif life.is_stopping or self._world.now_ms >= renews_ms:
            life.watched(ended=False)
            self._step()
        else:
            wait_ms = renews_ms - self._world.now_ms
            if self._watched is None:
                wait_ms = min(wait_ms, PROBE_MS)

            def watches() -> None:
                if number == self._watch_number:
                    self._await_end(renews_ms)

            self._after(wait_ms, "watches", watches)

    @staticmethod
    def _has_ended(seen: BrokerRun | None, directory: Directory | None) -> bool:
        """Whether the process that is seen has ended, or none has the lock."""
        if seen is not None:
            return not seen.alive
        return directory is None or directory.process is None

    def _report_death(self) -> None:
        life = self._life_now

        def reported() -> None:
            life.reported()
            self._step()

        def failed(error: ReplicationError) -> None:
            life.failed(error)
            self._step()

        self.post.report_death(self, life.died, reported, failed)

    def _pause(self) -> None:
        life, number = self._life_now, self._watch_number

        def over() -> None:
            if number == self._watch_number:
                life.paused()
                self._step()

        self._after(0 if life.is_stopping else life.wait_s * 1_000, "pauses", over)

    # The steps of engine.guarding.broker_stop

    def _shut_down(self, broker: BrokerId) -> None:
        directory = self.host.directories.get(broker)
        file = None if directory is None else directory.file
        if directory is None or file is None or directory.process is None:
            self.post.ended(self, None)
            return
        seen = self._seen(directory, file)
        stop = BrokerStop(
            broker, self.lease, is_seen=seen is not None, timeout_s=STOP_S, flush_s=FLUSH_S, hand_over_s=HAND_OVER_S
        )
        self._step_of_stop(stop, directory, file, seen)

    def _step_of_stop(self, stop: BrokerStop, directory: Directory, file: File, seen: BrokerRun | None) -> None:
        def goes_on(event: _Step) -> None:
            event()
            self._step_of_stop(stop, directory, file, seen)

        def asks(order: Callable[[BrokerRun], BrokerId | None], done: Callable[[BrokerId | None], None]) -> None:
            self._brokers.call(
                self,
                (file.host, file.port),
                order,
                lambda answer: goes_on(lambda: done(answer)),
                lambda error: goes_on(lambda: stop.failed(error)),
                timeout_ms=REQUEST_TIMEOUT_MS,
            )

        match stop.doing:
            case StopDoes.TAKE:
                asks(lambda run: run.renew(self.lease), lambda answer: stop.taken(-1 if answer is None else answer))
            case StopDoes.ASK:
                asks(lambda run: run.shut_down(self.lease), lambda _answer: stop.asked())
            case StopDoes.HOLDER:
                # Nothing happens between this look and the signal: what could, no guardian can rule out.
                goes_on(lambda: stop.found_holder(directory.holder))
            case StopDoes.TERMINATE | StopDoes.KILL:
                self._signal(stop, seen)
                goes_on(stop.signalled)
            case StopDoes.WAIT:
                self._await_stop(stop, directory, file, seen, self._world.now_ms + int(stop.wait_s * 1_000))
            case StopDoes.END:
                self.post.ended(self, None)

    def _signal(self, stop: BrokerStop, seen: BrokerRun | None) -> None:
        self._judge.signals("a broker" if seen is None else seen.name, self.lease, is_seen=seen is not None)
        assert seen is not None, "the judge has seen it"
        self._world.counts["signalled"] += 1
        if stop.doing is StopDoes.KILL:
            seen.ends(-9)
        else:
            seen.terminate()

    def _await_stop(
        self, stop: BrokerStop, directory: Directory, file: File, seen: BrokerRun | None, until_ms: int
    ) -> None:
        ended = self._has_ended(seen, directory)
        if ended or self._world.now_ms >= until_ms:
            stop.waited(ended=ended)
            self._step_of_stop(stop, directory, file, seen)
        else:
            self._after(
                min(PROBE_MS, until_ms - self._world.now_ms),
                "waits for its end",
                lambda: self._await_stop(stop, directory, file, seen, until_ms),
            )

    # Brokers that are kept

    @property
    def _keepers_name(self) -> str:
        return f"{self.name}/keeper"

    def _keep_round(self) -> None:
        if not self._leaves:
            self._after(renew_s(LEASE_MS, KEEP_S_MAX) * 1_000, "keeps", lambda: self._keep(list(self._kept.due())))

    def _keep(self, due: list[Kept]) -> None:
        """One after the other."""
        if not due:
            self._keep_round()
            return
        kept, *others = due
        host, _, port = kept.address.rpartition(":")

        def answered(broker: BrokerId) -> None:
            if broker == kept.broker_id and not self._leaves:
                self._judge.minds(self._keepers_name, kept.incarnation)
            self._kept.renewed(kept)
            self._keep(others)

        def failed(error: ReplicationError) -> None:
            self._judge.lets_go(self._keepers_name, kept.incarnation)
            died = self._kept.refused(kept) if isinstance(error, BrokerNotAvailable) else None
            if died is None:
                self._keep(others)
            else:
                self._world.counts["refusals_reported"] += 1
                self.post.report_death(self, died, lambda: self._keep(others), lambda _error: self._keep(others))

        self._brokers.call(
            self,
            (host, int(port)),
            lambda run: run.renew(self._keepers_lease),
            answered,
            failed,
            timeout_ms=KEEPER_TIMEOUT_MS,
        )

    # Faults

    def stands_still(self, until_ms: int) -> None:
        self.stopped_until_ms = until_ms
        self.minds_nobody()

    def minds_nobody(self) -> None:
        self._judge.minds_no_more(self.name)
        self._judge.minds_no_more(self._keepers_name)

    def ended(self) -> None:
        super().ended()
        self.minds_nobody()

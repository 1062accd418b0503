"""The guardians of one command of a driver: how many are submitted and when, what their reports are answered with, and
how a submission ends.

A barrier stage fails as a whole when one task does, and Spark never retries it: so guardians are submitted again, with
back-off, for as long as they are wanted. Brokers do not notice: the next guardians adopt them. If Spark has fewer slots
than there are brokers to guard, as many guardians are submitted as there are slots, and more once there are more slots.

One submission follows another, and each has a number: reports of an earlier one are answered with "leave", whatever
Spark thinks of it.

    await slots ── settled ──► submission ── ended ──► back off ──► await slots
                                   │
                                   └─ something was wrong for too long, or the fleet is dismissed: guardians are told to
                                      leave, and their job is cancelled if they do not ──► await slots, or the end
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, Protocol

from spark_replication.core.guardianship import (
    Gathered,
    Placement,
    guardians_for,
    kept_by,
    preferred_hosts,
    why_gather_again,
)
from spark_replication.errors import NotController, ReplicationError
from spark_replication.messages.guarding import Guarding, GuardingAnswer, Kept, Order
from spark_replication.model import BrokerId, Registration

BACKOFF_S_MIN, BACKOFF_S_MAX = 0.1, 10.0
STEADY_JOB_S = 30.0  # a job that ran this long is followed by the next without back-off
LOOK_S = 0.5  # at the slots that Spark has
HOSTS_LOOK_S = 5.0  # at the hosts that have them, while their number stays
# How long to wait for more slots before submitting with fewer than brokers, since executors come one by one; longer if
# the first was slow to come.
SETTLE_S, SETTLE_S_MAX = 5.0, 40.0
CANCEL_TIMEOUT_S = 20.0
PATIENCE_S_MAX = 300.0  # with guardians on other hosts than those of the brokers
BEGUN_S = 60.0  # within this, a broker that a guardian has begun to start has registered
REPORT_FRESH_S = 3.0

log = logging.getLogger(__name__)

KnownBrokers = Mapping[BrokerId, Registration | None]


class TaskPlace(NamedTuple):
    """Where a guardian's task runs."""

    host: str
    executor: str


class SparkSlots(Protocol):
    """What Spark says of its slots and of guardians' jobs. Each question may take a while, and none fails."""

    def slots(self) -> int:
        """How many tasks can run at one time."""

    def slots_by_host(self) -> Mapping[str, int]:
        """This asks executor by executor, and is up to date a moment later than their sum."""

    def places_of(self, group: str) -> Mapping[int, TaskPlace]:
        """Where each guardian of a submission is that has begun."""

    def are_to_go(self, executors: Collection[str]) -> frozenset[str]:
        """Which of these executors wait for their tasks to end, and then end."""

    def has_begun(self, group: str) -> bool:
        """Whether tasks of the job run."""

    def cancel(self, group: str) -> None:
        """Cancel the job. This one may fail."""


class FleetMemory:
    """What is known of brokers beyond one command of this driver."""

    def __init__(self) -> None:
        #: The last report on each broker, and when it came.
        self.reports: dict[BrokerId, tuple[Guarding, float]] = {}
        #: When the first report on it came, after BEGUN_S or more without one.
        self.begun_s: dict[BrokerId, float] = {}
        #: The brokers whose directories are on each host, as guardians there have found them.
        self.found: dict[str, frozenset[BrokerId]] = {}
        #: The host that each broker was last registered from: its guardian may be gone before it could say so.
        self.registered: dict[BrokerId, str] = {}
        #: The number of the last submission. It only ever grows.
        self.submissions = 0
        #: Why the last submission that ended by itself did so.
        self.failure: ReplicationError | None = None


class Submission:
    """One barrier job, and what its guardians have said."""

    def __init__(
        self, *, epoch: int, number: int, guardians: int, hosts: list[str], known: list[BrokerId], began_s: float
    ) -> None:
        self.number = number
        self.guardians = guardians
        #: The preferred hosts, one a guardian; empty for any.
        self.hosts = hosts
        #: The brokers that guardians take for known.
        self.known = known
        self.group = f"spark_replication-fleet-{epoch}-{number}"
        self.began_s = began_s
        #: Where each guardian is, as far as Spark has said.
        self.places: Mapping[int, TaskPlace] = {}
        #: The brokers whose directories its guardians have found or begun, by host: each sees those before its own.
        self.found: dict[str, frozenset[BrokerId]] = {}
        #: The last report of each guardian, and when it came.
        self.reports: dict[int, tuple[Guarding, float]] = {}
        self.keep: Mapping[int, tuple[Kept, ...]] = {}
        self.as_it_should_be_s = began_s
        #: Whether its guardians leave so that others take their place.
        self.gathers_again = False
        self.told_to_leave_s: float | None = None
        self.cancelled_s: float | None = None
        self.has_ended = False
        self.failure: ReplicationError | None = None

    def ended(self, failure: ReplicationError | None) -> None:
        """The job has ended. From any thread."""
        self.failure, self.has_ended = failure, True

    def fresh(self, now_s: float) -> dict[int, Guarding]:
        since_s = now_s - REPORT_FRESH_S
        return {number: report for number, (report, at_s) in self.reports.copy().items() if at_s >= since_s}


class Mustering:
    """`look` is called by one thread, which may wait for Spark. Others may call `heard` and `dismiss` meanwhile, and
    ask: they replace and read whole values only."""

    def __init__(
        self,
        spark: SparkSlots,
        submit: Callable[[Submission], None],
        known: Callable[[], KnownBrokers],
        *,
        brokers: int,
        epoch: int,
        memory: FleetMemory,
        leave_s: float,
        now_s: Callable[[], float],
    ) -> None:
        """submit: begins a job, and tells the submission when it has ended. known: the brokers that the controller
        knows of; it may fail, and is asked again then. leave_s: in which guardians hear that they are to end, and do
        so."""
        self._spark = spark
        self._submit = submit
        self._ask_known = known
        self._brokers = brokers
        self.epoch = epoch
        self.memory = memory
        self._leave_s = leave_s
        self._now_s = now_s
        self.order: Order = "guard"
        #: The brokers that the controller knew of when it was last asked; None if it never answered.
        self.known: KnownBrokers | None = None
        #: The hosts where this command's guardians have looked for directories. What an earlier one's have not found
        #: may have been made since, by another driver's.
        self._looked: set[str] = set()
        #: Whether it has answered the last question. A driver that was stopped for long may command no more, and who
        #: commands may have brokers that it has never heard of: its guardians would take new ids.
        self._is_told = False
        self.slots = 0
        self._slots_since_s = self._hosts_asked_s = now_s()
        self._slots_by_host: Mapping[str, int] = {}
        #: The last submission. Reports of others count for nothing.
        self.submission: Submission | None = None
        self._runs = False  # that submission has not ended, or been left behind
        self._resumes_s = 0.0  # no slots are awaited before
        self._awaits_since_s: float | None = None
        self._settle_s = SETTLE_S
        self._delay_s = BACKOFF_S_MIN
        self._patience_s = SETTLE_S

    # What others ask

    def guarding_now(self) -> dict[BrokerId, Guarding]:
        """The brokers that guardians of the present submission guard, by fresh reports."""
        found = {each.broker_id: each for each in self._fresh().values()}
        return {broker: each for broker, each in sorted(found.items(), key=str) if broker is not None}

    def idle(self) -> int:
        """The number of guardians of the present submission that have found no directory for them."""
        return sum(each.broker_id is None for each in self._fresh().values())

    def slots_unchanged_s(self) -> float:
        return self._now_s() - self._slots_since_s

    def _fresh(self) -> dict[int, Guarding]:
        return {} if self.submission is None else self.submission.fresh(self._now_s())

    # Events

    def dismiss(self, order: Order) -> None:
        """Stop guarding: leave the brokers to the next driver, or shut them down."""
        self.order = order

    def heard(self, report: Guarding) -> GuardingAnswer:
        """A guardian reports. NotController: it is another driver's, or of an earlier command of this one."""
        if report.controller_epoch != self.epoch:
            raise NotController(f"guardians of controller epoch {report.controller_epoch} are not this driver's")
        submission = self.submission
        if submission is None or report.submission != submission.number:
            return GuardingAnswer(order="leave")  # it was taken for gone: a later guardian has its broker
        now_s = self._now_s()
        submission.reports[report.guardian] = report, now_s
        if report.broker_id is not None:
            _, before_s = self.memory.reports.get(report.broker_id, (report, -math.inf))
            if before_s < now_s - BEGUN_S:
                self.memory.begun_s[report.broker_id] = now_s
            self.memory.reports[report.broker_id] = report, now_s
        order: Order = "leave" if submission.gathers_again else self.order
        return GuardingAnswer(order=order, keep=submission.keep.get(report.guardian, ()))

    def look(self) -> float | None:
        """Do what is due. Returns after how long to look again, or sooner, if the submission has ended or the order is
        another; None once nothing is left to do."""
        if self._runs:
            assert self.submission is not None, "it runs"
            self._look_after(self.submission)
            if self._runs:
                return LOOK_S
        if self.order != "guard":
            return None
        wait_s = self._resumes_s - self._now_s()
        if wait_s > 0:
            return wait_s
        self._look_around()
        if guardians := self._settled():
            self._begin(guardians)
        return LOOK_S

    # Slots

    def _look_around(self) -> None:
        slots = self._spark.slots()
        if slots != self.slots:
            self.slots, self._slots_since_s = slots, self._now_s()
        if sum(self._slots_by_host.values()) != slots or self._now_s() - self._hosts_asked_s > HOSTS_LOOK_S:
            self._slots_by_host, self._hosts_asked_s = self._spark.slots_by_host(), self._now_s()
        self._is_told = False
        try:
            self.known = self._ask_known()
        except ReplicationError as error:
            log.info("the controller does not say which brokers it knows: %s", error)
        else:
            self._is_told = True
            self._forget_replaced(self.known)
            here = {broker: found.host for broker, found in self.known.items() if found is not None}
            self.memory.registered.update(here)

    def _settled(self) -> int:
        """The number of guardians to submit, once it is clear how many there can be."""
        if self._awaits_since_s is None:
            self._awaits_since_s, self._settle_s = self._now_s(), SETTLE_S
        guardians = guardians_for(self._brokers, self.slots, len(self._ever_known()))
        waited_s = self._now_s() - self._awaits_since_s
        if not guardians:
            self._settle_s = min(max(SETTLE_S, waited_s), SETTLE_S_MAX)
        settled = min(self.slots_unchanged_s(), waited_s) > self._settle_s
        is_clear = guardians >= self._brokers or settled
        return guardians if self._is_told and is_clear and self.order == "guard" else 0

    # A submission

    def _begin(self, guardians: int) -> None:
        placement = self._placement()
        hosts = preferred_hosts(placement, guardians) if len(placement.slots) > 1 else []
        self.memory.submissions += 1
        submission = Submission(
            epoch=self.epoch,
            number=self.memory.submissions,
            guardians=guardians,
            hosts=hosts if len(hosts) == guardians else [],
            known=self._ever_known(),
            began_s=self._now_s(),
        )
        self.submission = submission  # first: reports of earlier guardians are ignored from here on
        self._awaits_since_s, self._runs = None, True
        if guardians < self._brokers:
            log.warning("Spark has %d slots for the guardians of %d brokers", self.slots, self._brokers)
        elif guardians == self.slots:
            log.warning("guardians take all %d slots: this session's other jobs wait", self.slots)
        self._submit(submission)

    def _look_after(self, submission: Submission) -> None:
        """Guardians gather again once something has been wrong for longer than the patience, which doubles each time:
        Spark may be unable to place them better."""
        if submission.has_ended:
            self._is_over(submission)
        elif submission.told_to_leave_s is not None:
            self._end(submission, submission.told_to_leave_s)
        elif self.order != "guard":
            submission.told_to_leave_s = self._now_s()
        else:
            self._look_around()
            reason = self._why_gather_again(submission)
            self._keep_unguarded(submission)
            now_s = self._now_s()
            if not reason:
                submission.as_it_should_be_s = now_s
                if len(submission.fresh(now_s)) == submission.guardians:
                    self._patience_s = SETTLE_S
            elif now_s - submission.as_it_should_be_s > self._patience_s:
                log.info("the guardians gather again: %s", reason)
                submission.gathers_again, submission.told_to_leave_s = True, now_s
                self._patience_s = min(2 * self._patience_s, PATIENCE_S_MAX)

    def _why_gather_again(self, submission: Submission) -> str:
        fresh = submission.fresh(self._now_s())
        if len(submission.places) < submission.guardians:
            submission.places = self._spark.places_of(submission.group)
        for number, report in fresh.items():
            place = submission.places.get(number)
            if place is not None:
                begun = frozenset() if report.broker_id is None else frozenset({report.broker_id})
                before = submission.found.get(place.host, frozenset())
                submission.found[place.host] = before.union(report.found, begun)
        self.memory.found.update(submission.found)
        self._looked.update(submission.found)
        to_go = self._spark.are_to_go({place.executor for place in submission.places.values()})
        if to_go:
            return f"Spark waits for guardians to leave executors {', '.join(sorted(to_go))}, which are to go"
        gathered = Gathered(
            size=submission.guardians, guarded={number: report.broker_id for number, report in fresh.items()}
        )
        return why_gather_again(self._placement(), gathered, self._brokers)

    def _keep_unguarded(self, submission: Submission) -> None:
        """Let guardians keep the brokers that have none, once all guardians have had the time to report."""
        now_s = self._now_s()
        if now_s - submission.began_s < SETTLE_S:
            return
        fresh = submission.fresh(now_s)
        guarded = {report.broker_id for report in fresh.values()}
        registered = {broker: found for broker, found in (self.known or {}).items() if found is not None}
        kept = kept_by(registered.keys() - guarded, fresh)
        submission.keep = {
            number: tuple(
                Kept(broker_id=broker, address=registered[broker].address, incarnation=registered[broker].incarnation)
                for broker in brokers
            )
            for number, brokers in kept.items()
        }

    def _end(self, submission: Submission, told_s: float) -> None:
        """Guardians get the order with the answer to their next report. A job that waits for slots is cancelled after
        SETTLE_S, and one that has begun only after the time in which guardians leave: those that have not reported yet
        may be starting brokers, of which nobody else knows."""
        if submission.cancelled_s is None:
            leave_s = self._leave_s if self._spark.has_begun(submission.group) else SETTLE_S
            if self._now_s() - told_s > leave_s:
                log.warning("the guardians have not ended by themselves: their job is cancelled")
                submission.cancelled_s = self._now_s()
                try:
                    self._spark.cancel(submission.group)
                except ReplicationError as error:
                    log.warning("the guardians' job cannot be cancelled: %s", error)
        elif self._now_s() - submission.cancelled_s > CANCEL_TIMEOUT_S:
            log.warning("the guardians' job is left behind: cancelled, it has not ended in %s s", CANCEL_TIMEOUT_S)
            self._is_over(submission)

    def _is_over(self, submission: Submission) -> None:
        self._runs = False
        if submission.gathers_again:
            self._delay_s = BACKOFF_S_MIN
        elif self.order == "guard":
            now_s = self._now_s()
            self.memory.failure = failure = submission.failure
            steady = now_s - submission.began_s > STEADY_JOB_S
            self._delay_s = BACKOFF_S_MIN if steady else min(self._delay_s * 2, BACKOFF_S_MAX)
            self._resumes_s = now_s + self._delay_s
            why = "" if failure is None else failure.message
            log.warning("the guardians' job has ended (%s): submitted again in %.1f s", why, self._delay_s)

    # Brokers

    def _forget_replaced(self, known: KnownBrokers) -> None:
        """Forget brokers that hold nothing, are not registered, and that no guardian has named within the time that it
        takes to register. Else the cluster would miss a broker that is gone for good for ever."""
        since_s = self._now_s() - BEGUN_S
        for broker, (_, at_s) in self.memory.reports.copy().items():
            if broker not in known and at_s < since_s:
                self.memory.reports.pop(broker, None)
                self.memory.begun_s.pop(broker, None)

    def _ever_known(self) -> list[BrokerId]:
        """The brokers that the controller needs, and those that guardians have begun to start a moment ago, which may
        not have registered yet. One that they have reported for longer has registered: if the controller does not need
        it, it is left to the end of its lease."""
        since_s = self._now_s() - BEGUN_S
        begun = {broker for broker, at_s in self.memory.begun_s.copy().items() if at_s >= since_s}
        return sorted(begun | (self.known or {}).keys())

    def _placement(self) -> Placement:
        known = self.known or {}
        homes = {broker: self._home(broker, known.get(broker)) for broker in self._ever_known()}
        return Placement(total=self.slots, slots=self._slots_by_host, homes=homes, looked=frozenset(self._looked))

    def _home(self, broker: BrokerId, registered: Registration | None) -> str:
        """The host that has the broker's directory, with an executor if there is such a host; empty if nobody knows."""
        hosts = [host for host, found in sorted(self.memory.found.items()) if broker in found]
        if registered is not None:
            hosts.insert(0, registered.host)
        elif broker in self.memory.registered:
            hosts.append(self.memory.registered[broker])
        return next((host for host in hosts if host in self._slots_by_host), hosts[0] if hosts else "")

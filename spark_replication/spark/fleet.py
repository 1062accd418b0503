"""The barrier job of guardians: submitted, and submitted again with back-off for as long as the cluster is wanted.

A barrier stage fails as a whole when one task does, and Spark never retries it: so this thread does. Brokers do not
notice: the next guardians adopt them. If Spark has fewer slots than there are brokers to guard, as many guardians are
submitted as there are slots, and more once there are more slots.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Protocol

import msgspec

from spark_replication.core.guardianship import (
    Gathered,
    Placement,
    guardians_for,
    kept_by,
    preferred_hosts,
    why_gather_again,
)
from spark_replication.errors import InvalidConfig, NotController, ReplicationError
from spark_replication.live.guarding.guardian import SHUT_DOWN_TIMEOUT_S
from spark_replication.messages.actions import GUARDING
from spark_replication.messages.guarding import Guarding, GuardingAnswer, Kept, Order
from spark_replication.model import BrokerId, Registration
from spark_replication.process.threads import Worker, name_of_dead
from spark_replication.spark.barrier_jobs import TaskPlace
from spark_replication.spark.guardian_task import Posting
from spark_replication.transport.flight.actions import Handled, handled

BACKOFF_S_MIN, BACKOFF_S_MAX = 0.1, 10.0
STEADY_S = 30.0  # a job that ran this long is followed by the next without back-off
LOOK_S = 0.5  # at the slots that Spark has
HOSTS_LOOK_S = 5.0  # at the hosts that have them, while their number stays
# How long to wait for more slots before submitting with fewer than brokers, since executors come one by one; longer if
# the first was slow to come.
SETTLE_S, SETTLE_S_MAX = 5.0, 40.0
LEAVE_TIMEOUT_S = SHUT_DOWN_TIMEOUT_S + 10.0  # in which guardians hear that they are to end, and do so
CANCEL_TIMEOUT_S = 20.0
DISMISS_TIMEOUT_S = LEAVE_TIMEOUT_S + CANCEL_TIMEOUT_S + 30.0  # and the time that Spark takes to answer
PATIENCE_S_MAX = 300.0  # with guardians on other hosts than those of the brokers
BEGUN_S = 60.0  # within this, a broker that a guardian has begun to start has registered
REPORT_FRESH_S = 3.0

log = logging.getLogger(__name__)


class Jobs(Protocol):
    """The part of spark.barrier_jobs.BarrierJobs that the fleet uses; tests have a stand-in."""

    def slots(self) -> int: ...

    def slots_by_host(self) -> dict[str, int]: ...

    def places_of(self, group: str) -> dict[int, TaskPlace]: ...

    def are_to_go(self, executors: Collection[str]) -> frozenset[str]: ...

    def run(self, posting: Posting, guardians: int, group: str, hosts: Sequence[str]) -> None: ...

    def has_begun(self, group: str) -> bool: ...

    def cancel(self, group: str) -> None: ...


KnownBrokers = Mapping[BrokerId, Registration | None]


class _Submission:
    """One barrier job, on a thread of its own."""

    def __init__(self, jobs: Jobs, posting: Posting, guardians: int, hosts: Sequence[str]) -> None:
        """`hosts` are the preferred ones, one a guardian; empty for any."""
        self.controller_epoch = posting.controller_epoch
        self.guardians = guardians
        #: Where each guardian is, as far as Spark has said.
        self.places: Mapping[int, TaskPlace] = {}
        self.began = time.monotonic()
        self.failure: ReplicationError | None = None
        self.group = f"spark_replication-fleet-{posting.controller_epoch}-{posting.submission}"
        self._jobs = jobs
        self._thread = threading.Thread(target=partial(self._run, posting, hosts), name="guardians", daemon=True)
        self._thread.start()

    def ended_within(self, timeout_s: float) -> bool:
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def cancel(self) -> None:
        try:
            self._jobs.cancel(self.group)
        except ReplicationError as error:
            log.warning("the guardians' job cannot be cancelled: %s", error)
        if not self.ended_within(CANCEL_TIMEOUT_S):
            log.warning("the guardians' job is left behind: cancelled, it has not ended in %s s", CANCEL_TIMEOUT_S)

    def _run(self, posting: Posting, hosts: Sequence[str]) -> None:
        try:
            self._jobs.run(posting, self.guardians, self.group, hosts)
        except ReplicationError as error:
            self.failure = error


class Fleet:
    """Keeps guardians submitted between `muster` and `dismiss`, one submission at a time."""

    def __init__(self, jobs: Jobs, brokers: int, known: Callable[[], KnownBrokers]) -> None:
        """`known` returns the brokers that the controller knows of. It may fail, and is asked again then."""
        self._jobs = jobs
        self._brokers = brokers
        self._ask_known = known
        self._order: Order = "leave"
        self._epoch = -1
        self._gathering_again = False
        self._changed = threading.Condition()
        self._worker: Worker | None = None
        self._known: KnownBrokers | None = None
        self._reports: dict[BrokerId, tuple[Guarding, float]] = {}
        #: The last report of each guardian of the present submission, and when it came.
        self._present: dict[int, tuple[Guarding, float]] = {}
        #: The brokers whose directories are on each host.
        self._found: dict[str, frozenset[BrokerId]] = {}
        self._keep: dict[int, tuple[Kept, ...]] = {}
        self._slots_by_host: Mapping[str, int] = {}
        self._hosts_asked = time.monotonic()
        self.slots = 0
        self._slots_since = time.monotonic()
        self.submissions = 0
        self.failure: ReplicationError | None = None

    @property
    def actions(self) -> list[Handled]:
        return [handled(GUARDING, self._guarding)]

    @property
    def last_failure(self) -> str:
        return "" if self.failure is None else self.failure.message

    @property
    def refusal(self) -> InvalidConfig | None:
        """Why guardians do not start, however often they are submitted."""
        return self.failure if isinstance(self.failure, InvalidConfig) and not self.guarding_now() else None

    @property
    def guarded(self) -> dict[BrokerId, Guarding]:
        """The brokers that guardians guard, by their last reports."""
        return {broker: report for broker, (report, _) in sorted(self._reports.copy().items())}

    def guarding_now(self) -> dict[BrokerId, Guarding]:
        """The brokers that guardians of the present submission guard, by fresh reports."""
        found = {each.broker_id: each for each in self._fresh().values()}
        return {broker: each for broker, each in sorted(found.items(), key=str) if broker is not None}

    def idle(self) -> int:
        """The number of guardians of the present submission that have found no directory for them."""
        return sum(each.broker_id is None for each in self._fresh().values())

    def silent(self) -> list[BrokerId]:
        """The brokers whose guardian has not reported for a while: it is being replaced, or gone."""
        now = time.monotonic()
        return [broker for broker, (_, at) in sorted(self._reports.copy().items()) if now - at > REPORT_FRESH_S]

    def slots_unchanged_s(self) -> float:
        return time.monotonic() - self._slots_since

    @property
    def known(self) -> list[BrokerId]:
        """The brokers that the controller knew of when it was last asked."""
        return sorted(self._known or ())

    def dead_thread(self) -> str:
        """The name of the fleet's thread if that has died: guardians that end are not submitted again then."""
        return "" if self._worker is None else name_of_dead([self._worker])

    def muster(self, posting: Posting) -> None:
        """Begin to guard, as the holder of this controller epoch."""
        with self._changed:
            self._order, self._epoch, self._known = "guard", posting.controller_epoch, None
        self.slots, self._slots_since = 0, time.monotonic()
        self._present = {}
        self._worker = Worker(partial(self._run, msgspec.structs.replace(posting, wanted=self._brokers)), "fleet")
        self._worker.start()

    def dismiss(self, order: Order) -> None:
        """Stop guarding: leave the brokers to the next driver, or shut them down."""
        with self._changed:
            self._order = order
            self._changed.notify_all()
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.join(DISMISS_TIMEOUT_S)
            if worker.is_alive():
                log.warning("the fleet is left behind: it has not ended in %s s", DISMISS_TIMEOUT_S)

    def _fresh(self) -> dict[int, Guarding]:
        since = time.monotonic() - REPORT_FRESH_S
        return {number: report for number, (report, at) in self._present.copy().items() if at >= since}

    def _guarding(self, report: Guarding) -> GuardingAnswer:
        if report.controller_epoch != self._epoch:
            raise NotController(f"guardians of controller epoch {report.controller_epoch} are not this driver's")
        if report.submission != self.submissions:
            return GuardingAnswer(order="leave")  # it was taken for gone: a later guardian has its broker
        now = time.monotonic()
        self._present[report.guardian] = report, now
        if report.broker_id is not None:
            self._reports[report.broker_id] = report, now
        order: Order = "leave" if self._gathering_again else self._order
        return GuardingAnswer(order=order, keep=self._keep.get(report.guardian, ()))

    def _run(self, posting: Posting) -> None:
        delay_s, patience_s = BACKOFF_S_MIN, SETTLE_S
        while guardians := self._await_slots(posting.controller_epoch):
            placement = self._placement()
            hosts = preferred_hosts(placement, guardians) if len(placement.slots) > 1 else []
            self.submissions += 1  # first: reports of earlier guardians are ignored from here on
            self._present, self._keep = {}, {}
            posting = msgspec.structs.replace(posting, submission=self.submissions, known=tuple(self._ever_known()))
            submission = _Submission(self._jobs, posting, guardians, hosts if len(hosts) == guardians else [])
            gathers_again, patience_s = self._look_after(submission, patience_s)
            if gathers_again:
                delay_s = BACKOFF_S_MIN
                continue
            if not self._is_wanted(submission.controller_epoch):
                return
            self.failure = submission.failure
            ran_s = time.monotonic() - submission.began
            delay_s = BACKOFF_S_MIN if ran_s > STEADY_S else min(delay_s * 2, BACKOFF_S_MAX)
            log.warning("the guardians' job has ended (%s): submitted again in %.1f s", self.last_failure, delay_s)
            self._dismissed_within(delay_s)

    def _is_wanted(self, controller_epoch: int) -> bool:
        """Whether guardians are wanted at this epoch: a fleet that was left behind at an earlier one must end."""
        return self._order == "guard" and self._epoch == controller_epoch

    def _await_slots(self, controller_epoch: int) -> int:
        """The number of guardians to submit, once it is clear how many there can be; 0 if none are wanted any more."""
        began = time.monotonic()
        settle_s = SETTLE_S
        while self._is_wanted(controller_epoch):
            self._look()
            guardians = guardians_for(self._brokers, self.slots, len(self._known or ()))
            waited_s = time.monotonic() - began
            if not guardians:
                settle_s = min(max(SETTLE_S, waited_s), SETTLE_S_MAX)
            settled = min(self.slots_unchanged_s(), waited_s) > settle_s
            if self._known is not None and guardians and (guardians >= self._brokers or settled):
                return guardians
            self._dismissed_within(LOOK_S)
        return 0

    def _look(self) -> None:
        slots = self._jobs.slots()
        if slots != self.slots:
            self.slots, self._slots_since = slots, time.monotonic()
        # This asks executor by executor, and is up to date a moment later than their sum.
        if sum(self._slots_by_host.values()) != slots or time.monotonic() - self._hosts_asked > HOSTS_LOOK_S:
            self._slots_by_host, self._hosts_asked = self._jobs.slots_by_host(), time.monotonic()
        try:
            self._known = self._ask_known()
        except ReplicationError as error:
            log.info("the controller does not say which brokers it knows: %s", error)
        else:
            self._forget_replaced(self._known)

    def _forget_replaced(self, known: KnownBrokers) -> None:
        """Forget brokers that hold nothing, are not registered, and that no guardian has named within the time that it
        takes to register. Else the cluster would miss a broker that is gone for good for ever."""
        since = time.monotonic() - BEGUN_S
        for broker, (_, at) in self._reports.copy().items():
            if broker not in known and at < since:
                self._reports.pop(broker, None)

    def _ever_known(self) -> list[BrokerId]:
        """The brokers that the controller knows, and those that guardians have begun to start a moment ago, which may
        not have registered yet."""
        since = time.monotonic() - BEGUN_S
        begun = {broker for broker, (_, at) in self._reports.copy().items() if at >= since}
        return sorted(begun | (self._known or {}).keys())

    def _placement(self) -> Placement:
        known = self._known or {}
        homes = {broker: self._home(broker, known.get(broker)) for broker in self._ever_known()}
        return Placement(total=self.slots, slots=self._slots_by_host, homes=homes, looked=frozenset(self._found))

    def _home(self, broker: BrokerId, registered: Registration | None) -> str:
        """The host that has the broker's directory, with an executor if there is such a host; empty if nobody knows."""
        hosts = [host for host, found in sorted(self._found.items()) if broker in found]
        if registered is not None:
            hosts.insert(0, registered.host)
        return next((host for host in hosts if host in self._slots_by_host), hosts[0] if hosts else "")

    def _look_after(self, submission: _Submission, patience_s: float) -> tuple[bool, float]:
        """Look after a submission until it has ended. Returns whether it ended so that another takes its place, and the
        patience with the next one. Guardians gather again once something has been wrong for longer than the patience,
        which doubles each time: Spark may be unable to place them better."""
        self._gathering_again = False
        if submission.guardians < self._brokers:
            log.warning("Spark has %d slots for the guardians of %d brokers", self.slots, self._brokers)
        elif submission.guardians == self.slots:
            log.warning("guardians take all %d slots: this session's other jobs wait", self.slots)
        as_it_should_be_at = time.monotonic()
        while not submission.ended_within(LOOK_S):
            if not self._is_wanted(submission.controller_epoch):
                self._end(submission)
                return False, patience_s
            self._look()
            reason = self._why_gather_again(submission)
            self._keep_unguarded(submission)
            if not reason:
                as_it_should_be_at = time.monotonic()
                if len(self._fresh()) == submission.guardians:
                    patience_s = SETTLE_S
            elif time.monotonic() - as_it_should_be_at > patience_s:
                log.info("the guardians gather again: %s", reason)
                self._gathering_again = True
                self._end(submission)
                return True, min(2 * patience_s, PATIENCE_S_MAX)
        return False, patience_s

    def _why_gather_again(self, submission: _Submission) -> str:
        fresh = self._fresh()
        if len(submission.places) < submission.guardians:
            submission.places = self._jobs.places_of(submission.group)
        for number, report in fresh.items():
            place = submission.places.get(number)
            if place is not None:
                begun = frozenset() if report.broker_id is None else frozenset({report.broker_id})
                self._found[place.host] = frozenset(report.found) | begun
        to_go = self._jobs.are_to_go({place.executor for place in submission.places.values()})
        if to_go:
            return f"Spark waits for guardians to leave executors {', '.join(sorted(to_go))}, which are to go"
        gathered = Gathered(
            size=submission.guardians, guarded={number: report.broker_id for number, report in fresh.items()}
        )
        return why_gather_again(self._placement(), gathered, self._brokers)

    def _keep_unguarded(self, submission: _Submission) -> None:
        """Let guardians keep the brokers that have none, once all guardians have had the time to report."""
        if time.monotonic() - submission.began < SETTLE_S:
            return
        fresh = self._fresh()
        guarded = {report.broker_id for report in fresh.values()}
        registered = {broker: found for broker, found in (self._known or {}).items() if found is not None}
        kept = kept_by(registered.keys() - guarded, fresh)
        self._keep = {
            number: tuple(
                Kept(broker_id=broker, address=registered[broker].address, incarnation=registered[broker].incarnation)
                for broker in brokers
            )
            for number, brokers in kept.items()
        }

    def _end(self, submission: _Submission) -> None:
        """End a submission. Guardians get the order with the answer to their next report. A job that waits for slots is
        cancelled after SETTLE_S, and one that has begun only after LEAVE_TIMEOUT_S: guardians that have not reported
        yet may be starting brokers, of which nobody else knows."""
        told_at = time.monotonic()
        while not submission.ended_within(LOOK_S):
            leave_s = LEAVE_TIMEOUT_S if self._jobs.has_begun(submission.group) else SETTLE_S
            if time.monotonic() - told_at > leave_s:
                log.warning("the guardians have not ended by themselves: their job is cancelled")
                submission.cancel()
                return

    def _dismissed_within(self, timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._order != "guard", timeout_s)

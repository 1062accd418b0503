"""The barrier job of guardians: submitted, and submitted again with back-off for as long as the cluster is wanted.

A barrier stage fails whole when one task does, and Spark never retries it: so this thread does. Brokers do not notice:
the next guardians adopt them. Where Spark has fewer slots than there are brokers to guard, as many guardians are
submitted as there are slots, and more when more can be had.
"""

from __future__ import annotations

import logging
import threading
import time
from functools import partial
from typing import Protocol

import msgspec

from spark_replication.core.guardianship import guardians_for, must_gather_again
from spark_replication.errors import InvalidConfig, NotController, ReplicationError
from spark_replication.messages.guarding import Guarding, GuardingAnswer, Order
from spark_replication.model import BrokerId
from spark_replication.spark.guardian_task import Posting
from spark_replication.transport.actions import Action

BACKOFF_S_MIN, BACKOFF_S_MAX = 0.1, 10.0
STEADY_S = 30.0  # a job that ran this long is followed by the next without back-off
LOOK_S = 0.5  # at the slots that Spark has
# Executors come one by one. As long as this, fewer slots than brokers may become more; longer where the first took
# longer to come.
SETTLE_S, SETTLE_S_MAX = 5.0, 40.0
LEAVE_TIMEOUT_S = 40.0  # in which guardians end as they were told, and shut their brokers down
CANCEL_TIMEOUT_S = 20.0
REPORT_FRESH_S = 3.0

log = logging.getLogger(__name__)


class Jobs(Protocol):
    """spark.barrier_jobs.BarrierJobs, or its stand-in in tests."""

    def slots(self) -> int: ...

    def run(self, posting: Posting, guardians: int, group: str) -> None: ...

    def has_begun(self, group: str) -> bool: ...

    def cancel(self, group: str) -> None: ...


class _Submission:
    """One barrier job, on a thread of its own."""

    def __init__(self, jobs: Jobs, posting: Posting, guardians: int) -> None:
        from pyspark import InheritableThread

        self.guardians = guardians
        self.began = time.monotonic()
        self.failure: ReplicationError | None = None
        self.group = f"spark_replication-fleet-{posting.controller_epoch}-{posting.submission}"
        self._jobs = jobs
        self._thread = InheritableThread(target=partial(self._run, posting), name="guardians", daemon=True)
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

    def _run(self, posting: Posting) -> None:
        try:
            self._jobs.run(posting, self.guardians, self.group)
        except ReplicationError as error:
            self.failure = error


class Fleet:
    """Runs between `muster` and `dismiss`, once at a time."""

    def __init__(self, jobs: Jobs, brokers: int) -> None:
        self._jobs = jobs
        self._brokers = brokers
        self._order: Order = "leave"
        self._epoch = -1
        self._gathering_again = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._reports: dict[BrokerId, tuple[Guarding, float]] = {}
        self.slots = 0
        self._slots_since = time.monotonic()
        self.submissions = 0
        self.failure: ReplicationError | None = None

    @property
    def actions(self) -> dict[str, Action]:
        return {"guarding": Action(Guarding, self._guarding)}

    @property
    def last_failure(self) -> str:
        return "" if self.failure is None else self.failure.message

    @property
    def refusal(self) -> InvalidConfig | None:
        """Why guardians do not start however often they are submitted."""
        return self.failure if isinstance(self.failure, InvalidConfig) and not self.guarding_now() else None

    @property
    def guarded(self) -> dict[BrokerId, Guarding]:
        """Whom guardians say they guard, as of their last word."""
        return {broker: report for broker, (report, _) in sorted(self._reports.items())}

    def guarding_now(self) -> dict[BrokerId, Guarding]:
        """Whom guardians of the present submission have said they guard a moment ago."""
        silent = set(self.silent())
        return {
            broker: report
            for broker, report in self.guarded.items()
            if broker not in silent and (report.controller_epoch, report.submission) == (self._epoch, self.submissions)
        }

    def silent(self) -> list[BrokerId]:
        """Brokers whose guardian has said nothing for a while: theirs is being replaced, or gone."""
        now = time.monotonic()
        return [broker for broker, (_, at) in sorted(self._reports.items()) if now - at > REPORT_FRESH_S]

    def slots_unchanged_s(self) -> float:
        return time.monotonic() - self._slots_since

    def muster(self, posting: Posting) -> None:
        """Guard, as the holder of this controller epoch."""
        from pyspark import InheritableThread

        with self._changed:
            self._order, self._epoch = "guard", posting.controller_epoch
        self._thread = InheritableThread(target=partial(self._run, posting), name="fleet", daemon=True)
        self._thread.start()

    def dismiss(self, order: Order) -> None:
        """Guard no longer: leave the brokers to the next driver, or shut them down."""
        with self._changed:
            self._order = order
            self._changed.notify_all()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    def _guarding(self, report: Guarding) -> GuardingAnswer:
        if report.controller_epoch != self._epoch:
            raise NotController(f"guardians of controller epoch {report.controller_epoch} are not this driver's")
        if report.submission != self.submissions:
            return GuardingAnswer(order="leave")  # it was thought to be gone: a later one has its broker
        self._reports[report.broker_id] = (report, time.monotonic())
        return GuardingAnswer(order="leave" if self._gathering_again else self._order)

    def _run(self, posting: Posting) -> None:
        delay_s = BACKOFF_S_MIN
        while guardians := self._await_slots():
            self.submissions += 1
            posting = msgspec.structs.replace(posting, submission=self.submissions)
            submission = _Submission(self._jobs, posting, guardians)
            if self._look_after(submission):
                delay_s = BACKOFF_S_MIN
                continue
            if self._order != "guard":
                return
            self.failure = submission.failure
            ran_s = time.monotonic() - submission.began
            delay_s = BACKOFF_S_MIN if ran_s > STEADY_S else min(delay_s * 2, BACKOFF_S_MAX)
            log.warning("the guardians' job has ended (%s): submitted again in %.1f s", self.last_failure, delay_s)
            self._dismissed_within(delay_s)

    def _await_slots(self) -> int:
        """How many guardians to submit, once it is clear how many there can be; 0: they are wanted no more."""
        began = time.monotonic()
        settle_s = SETTLE_S
        while self._order == "guard":
            self._look_at_slots()
            guardians = guardians_for(self._brokers, self.slots)
            waited_s = time.monotonic() - began
            if not guardians:
                settle_s = min(max(SETTLE_S, waited_s), SETTLE_S_MAX)
            settled = min(self.slots_unchanged_s(), waited_s) > settle_s
            if guardians == self._brokers or (guardians and settled):
                return guardians
            self._dismissed_within(LOOK_S)
        return 0

    def _look_at_slots(self) -> None:
        slots = self._jobs.slots()
        if slots != self.slots:
            self.slots, self._slots_since = slots, time.monotonic()

    def _look_after(self, submission: _Submission) -> bool:
        """Until it has ended. True: so that others take its place."""
        self._gathering_again = False
        if submission.guardians < self._brokers:
            log.warning("Spark has %d slots for the guardians of %d brokers", self.slots, self._brokers)
        elif submission.guardians == self.slots:
            log.warning("guardians take all %d slots: this session's other jobs, the mirror's too, wait", self.slots)
        as_it_should_be_at = time.monotonic()
        while not submission.ended_within(LOOK_S):
            if self._order != "guard":
                self._end(submission)
                return False
            self._look_at_slots()
            reporting = len(self.guarding_now())
            if not must_gather_again(
                brokers=self._brokers, slots=self.slots, guardians=submission.guardians, reporting=reporting
            ):
                as_it_should_be_at = time.monotonic()
            elif time.monotonic() - as_it_should_be_at > SETTLE_S:
                log.info("Spark has %d slots: the guardians gather again", self.slots)
                self._gathering_again = True
                self._end(submission)
                return True
        return False

    def _end(self, submission: _Submission) -> None:
        """Guardians are told with their next report. A job that waits for slots, or that goes on, is cancelled; but one
        whose guardians have yet to report may be starting brokers, which nobody else knows of."""
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

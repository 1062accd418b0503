"""The barrier job of guardians: `engine.guarding.mustering` says when it is submitted and how it ends, and this keeps
the threads: one that looks, and one for each submission."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import msgspec

from spark_replication.engine.guarding.mustering import (
    CANCEL_TIMEOUT_S,
    REPORT_FRESH_S,
    FleetMemory,
    KnownBrokers,
    Mustering,
    SparkSlots,
    Submission,
)
from spark_replication.errors import InvalidConfig, ReplicationError
from spark_replication.live.guarding.guardian import SHUT_DOWN_TIMEOUT_S
from spark_replication.messages.actions import GUARDING
from spark_replication.messages.guarding import Guarding, GuardingAnswer, Order
from spark_replication.model import BrokerId
from spark_replication.process.threads import Worker, name_of_dead
from spark_replication.spark.guardian_task import Posting
from spark_replication.transport.flight.actions import Handled, handled

LEAVE_TIMEOUT_S = SHUT_DOWN_TIMEOUT_S + 10.0  # in which guardians hear that they are to end, and do so
DISMISS_TIMEOUT_S = LEAVE_TIMEOUT_S + CANCEL_TIMEOUT_S + 30.0  # and the time that Spark takes to answer

log = logging.getLogger(__name__)


class Jobs(SparkSlots, Protocol):
    """The part of spark.barrier_jobs.BarrierJobs that the fleet uses; tests have a stand-in."""

    def run(self, posting: Posting, guardians: int, group: str, hosts: Sequence[str]) -> None: ...


class Fleet:
    """Keeps guardians submitted between `muster` and `dismiss`, one submission at a time."""

    def __init__(self, jobs: Jobs, brokers: int, known: Callable[[], KnownBrokers]) -> None:
        """`known` returns the brokers that the controller knows of. It may fail, and is asked again then."""
        self._jobs = jobs
        self._brokers = brokers
        self._ask_known = known
        self._memory = FleetMemory()
        #: Set when the present fleet is to look at once.
        self._wake = threading.Event()
        self._worker: Worker | None = None
        self._mustering = self._mustered(None)
        self._mustering.dismiss("leave")

    @property
    def actions(self) -> list[Handled]:
        return [handled(GUARDING, self._guarding)]

    @property
    def failure(self) -> ReplicationError | None:
        return self._memory.failure

    @property
    def last_failure(self) -> str:
        return "" if self.failure is None else self.failure.message

    @property
    def refusal(self) -> InvalidConfig | None:
        """Why guardians do not start, however often they are submitted."""
        return self.failure if isinstance(self.failure, InvalidConfig) and not self.guarding_now() else None

    @property
    def submissions(self) -> int:
        return self._memory.submissions

    @property
    def slots(self) -> int:
        return self._mustering.slots

    def slots_unchanged_s(self) -> float:
        return self._mustering.slots_unchanged_s()

    @property
    def guarded(self) -> dict[BrokerId, Guarding]:
        """The brokers that guardians guard, by their last reports."""
        return {broker: report for broker, (report, _) in sorted(self._memory.reports.copy().items())}

    def guarding_now(self) -> dict[BrokerId, Guarding]:
        """The brokers that guardians of the present submission guard, by fresh reports."""
        return self._mustering.guarding_now()

    def idle(self) -> int:
        """The number of guardians of the present submission that have found no directory for them."""
        return self._mustering.idle()

    def silent(self) -> list[BrokerId]:
        """The brokers whose guardian has not reported for a while: it is being replaced, or gone."""
        now_s = time.monotonic()
        reports = sorted(self._memory.reports.copy().items())
        return [broker for broker, (_, at_s) in reports if now_s - at_s > REPORT_FRESH_S]

    @property
    def known(self) -> list[BrokerId]:
        """The brokers that the controller knew of when it was last asked."""
        return sorted(self._mustering.known or ())

    def dead_thread(self) -> str:
        """The name of the fleet's thread if that has died: guardians that end are not submitted again then."""
        return "" if self._worker is None else name_of_dead([self._worker])

    def muster(self, posting: Posting) -> None:
        """Begin to guard, as the holder of this controller epoch."""
        self._wake = threading.Event()
        self._mustering = self._mustered(msgspec.structs.replace(posting, wanted=self._brokers))
        self._worker = Worker(partial(_run, self._mustering, self._wake), "fleet")
        self._worker.start()

    def _mustered(self, posting: Posting | None) -> Mustering:
        """A machine for this command alone, or for none yet: a thread that was left behind at an earlier one keeps its
        own."""
        return Mustering(
            self._jobs,
            partial(_submit, self._jobs, posting, self._wake),
            self._ask_known,
            brokers=self._brokers,
            epoch=-1 if posting is None else posting.controller_epoch,
            memory=self._memory,
            leave_s=LEAVE_TIMEOUT_S,
            now_s=time.monotonic,
        )

    def dismiss(self, order: Order) -> None:
        """Stop guarding: leave the brokers to the next driver, or shut them down."""
        self._mustering.dismiss(order)
        self._wake.set()
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.join(DISMISS_TIMEOUT_S)
            if worker.is_alive():
                log.warning("the fleet is left behind: it has not ended in %s s", DISMISS_TIMEOUT_S)

    def _guarding(self, report: Guarding) -> GuardingAnswer:
        return self._mustering.heard(report)


def _run(mustering: Mustering, wake: threading.Event) -> None:
    while (wait_s := mustering.look()) is not None:
        wake.wait(wait_s)
        wake.clear()


def _submit(jobs: Jobs, posting: Posting | None, wake: threading.Event, submission: Submission) -> None:
    assert posting is not None, "guardians are wanted"
    told = msgspec.structs.replace(posting, submission=submission.number, known=tuple(submission.known))

    def run() -> None:
        failure: ReplicationError | None = None
        try:
            jobs.run(told, submission.guardians, submission.group, submission.hosts)
        except ReplicationError as error:
            failure = error
        finally:
            submission.ended(failure)
            wake.set()

    threading.Thread(target=run, name="guardians", daemon=True).start()

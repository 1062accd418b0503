"""The barrier job of guardians: submitted, and submitted again with back-off for as long as the cluster is wanted.

A barrier stage fails whole when one task does, and Spark never retries it: so this thread does. Brokers do not notice:
the next guardians adopt them.
"""

from __future__ import annotations

import logging
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from spark_replication.errors import InvalidConfig, NotController
from spark_replication.messages import Guarding, GuardingAnswer, Order
from spark_replication.model import BrokerId
from spark_replication.spark.guardian_task import Posting, guard
from spark_replication.transport.actions import Action

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BACKOFF_S_MIN, BACKOFF_S_MAX = 0.1, 10.0
STEADY_S = 30.0  # a job that ran this long is followed by the next without back-off
STOP_TIMEOUT_S = 30.0
REPORT_FRESH_S = 3.0

log = logging.getLogger(__name__)


def check_session(spark: SparkSession, brokers: int) -> None:
    """What would make a fleet fail later is refused now, naming the setting."""
    context = spark.sparkContext
    if context.getConf().get("spark.dynamicAllocation.enabled", "false") == "true":
        raise InvalidConfig(
            "spark.dynamicAllocation.enabled is true, and barrier stages need executors that stay: set it to false"
        )
    slots = context.defaultParallelism
    if str(context.master).startswith("local") and slots < brokers + 1:
        raise InvalidConfig(
            f"{context.master} has {slots} slots, and {brokers} guardians need {brokers} and other jobs at least 1: "
            f"use local[{brokers + 1}] or more, or fewer brokers"
        )


def _reason(error: Exception) -> str:
    """py4j names its own call in the first line, and Java's exception in the second."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[1].rpartition("Exception: ")[2] if len(lines) > 1 else type(error).__name__


class Fleet:
    """Runs between `muster` and `dismiss`, once at a time."""

    def __init__(self, spark: SparkSession, brokers: int) -> None:
        self._spark = spark
        self._brokers = brokers
        self._order: Order = "leave"
        self._epoch = -1
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._reports: dict[BrokerId, tuple[Guarding, float]] = {}
        self.submissions = 0
        self.last_failure = ""

    @property
    def actions(self) -> dict[str, Action]:
        return {"guarding": Action(Guarding, self._guarding)}

    @property
    def guarded(self) -> dict[BrokerId, Guarding]:
        """Whom guardians say they guard, as of their last word."""
        return {broker: report for broker, (report, _) in sorted(self._reports.items())}

    def silent(self) -> list[BrokerId]:
        """Brokers whose guardian has said nothing for a while: theirs is being replaced, or gone."""
        now = time.monotonic()
        return [broker for broker, (_, at) in sorted(self._reports.items()) if now - at > REPORT_FRESH_S]

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
        if thread is None:
            return
        thread.join(STOP_TIMEOUT_S)
        if thread.is_alive():
            log.warning("the guardians did not end within %s s: their job is cancelled", STOP_TIMEOUT_S)
            self._spark.sparkContext.cancelJobGroup(self._group(self._epoch))
            thread.join(STOP_TIMEOUT_S)

    def _guarding(self, report: Guarding) -> GuardingAnswer:
        if report.controller_epoch != self._epoch:
            raise NotController(f"guardians of controller epoch {report.controller_epoch} are not this driver's")
        self._reports[report.broker_id] = (report, time.monotonic())
        return GuardingAnswer(order=self._order)

    def _run(self, posting: Posting) -> None:
        delay_s = BACKOFF_S_MIN
        while self._order == "guard":
            began = time.monotonic()
            self.submissions += 1
            if self._submit(posting):
                return
            delay_s = BACKOFF_S_MIN if time.monotonic() - began > STEADY_S else min(delay_s * 2, BACKOFF_S_MAX)
            log.warning("the guardians' job has ended (%s): submitted again in %.1f s", self.last_failure, delay_s)
            with self._changed:
                self._changed.wait_for(lambda: self._order != "guard", timeout=delay_s)

    def _submit(self, posting: Posting) -> bool:
        """One barrier job; True once its guardians have left as they were told."""
        from py4j.protocol import Py4JError

        context = self._spark.sparkContext
        context.setJobGroup(self._group(posting.controller_epoch), f"{self._brokers} brokers' guardians")
        try:
            guardians = context.parallelize(range(self._brokers), self._brokers).barrier()
            guardians.mapPartitions(partial(guard, posting)).collect()
        except (Py4JError, OSError) as error:
            self.last_failure = _reason(error)
            return self._order != "guard"
        return True

    def _group(self, epoch: int) -> str:
        return f"spark_replication-fleet-{epoch}"

"""What the fleet asks of Spark: how many tasks can run at one time, a barrier job of guardians, and its end."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from spark_replication.errors import InvalidConfig, ReplicationError, StartFailed, error_of_text
from spark_replication.spark.guardian_task import Posting, guard

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def check_session(master: str, *, dynamic_allocation: bool, slots: int, brokers: int) -> None:
    """What would make a fleet fail later is refused now, naming the setting."""
    if dynamic_allocation:
        raise InvalidConfig(
            "spark.dynamicAllocation.enabled is true, and barrier stages need executors that stay: set it to false"
        )
    # Elsewhere executors come and go: the fleet goes on with those that there are.
    if (master == "local" or master.startswith("local[")) and slots < brokers + 1:
        raise InvalidConfig(
            f"{master} has {slots} slots, and {brokers} guardians need {brokers} and other jobs at least 1: "
            f"use local[{brokers + 1}] or more, or fewer brokers"
        )


class BarrierJobs:
    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext

    def check(self, brokers: int) -> None:
        """InvalidConfig if this session cannot run a fleet."""
        dynamic = self._context.getConf().get("spark.dynamicAllocation.enabled", "false") == "true"
        check_session(str(self._context.master), dynamic_allocation=dynamic, slots=self.slots(), brokers=brokers)

    @property
    def driver_host(self) -> str:
        """By which executors know the driver."""
        return str(self._context.getConf().get("spark.driver.host", "localhost"))

    def slots(self) -> int:
        """The number that Spark itself compares a barrier stage with. 0 too when the session has ended."""
        from py4j.protocol import Py4JError

        try:
            context = self._context._jsc.sc()
            return int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))
        except (Py4JError, OSError, AttributeError):
            return 0

    def run(self, posting: Posting, guardians: int, group: str) -> None:
        """Until all of them have left as they were told; raises why not. On a thread of its own: the group is the
        thread's."""
        from py4j.protocol import Py4JError

        try:
            self._context.setJobGroup(group, f"{guardians} brokers' guardians")
            numbers = self._context.parallelize(range(guardians), guardians)
            numbers.barrier().mapPartitions(partial(guard, posting)).collect()
        except (Py4JError, OSError, AttributeError) as error:
            raise _failure(error) from error

    def has_begun(self, group: str) -> bool:
        """Tasks of it run. False too when the session has ended."""
        from py4j.protocol import Py4JError

        try:
            tracker = self._context.statusTracker()
            jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
            stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
            return any(stage.numActiveTasks for stage in stages if stage is not None)
        except (Py4JError, OSError, AttributeError):
            return False

    def cancel(self, group: str) -> None:
        """Also a job that still waits for Spark's check of slots, which cancelling the group alone would not find."""
        from py4j.protocol import Py4JError

        try:
            self._context._jsc.sc().cancelJobGroupAndFutureJobs(group)
        except (Py4JError, OSError, AttributeError) as error:
            raise _failure(error) from error


def _failure(error: Exception) -> ReplicationError:
    """A guardian's own error, if the job's text carries one."""
    from spark_replication.spark.session import java_reason

    for line in str(error).splitlines():
        found = error_of_text(line.strip())
        if found is not None:
            return found
    return StartFailed(f"Spark says: {java_reason(error)}")

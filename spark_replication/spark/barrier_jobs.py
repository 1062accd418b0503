"""What the fleet asks of Spark: how many tasks can run at one time, a barrier job of guardians, and its end."""

from __future__ import annotations

import pickle
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from spark_replication.config import SecurityMode
from spark_replication.decoding import error_of_text
from spark_replication.engine.guarding.mustering import TaskPlace
from spark_replication.errors import InvalidConfig, ReplicationError, StartFailed
from spark_replication.spark.guardian_task import Posting, guard
from spark_replication.spark.jvm import Jvm, context_of, jvm_errors
from spark_replication.spark.session import makes_own_secret

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import SparkSession

STOPPED = "Spark's context has been stopped"
MASTER_LOOK_S = 10.0  # the question may wait for minutes for a Master that is away
GUARDIANS_MAX = 10_000  # of one submission


def check_session(
    master: str,
    *,
    dynamic_allocation: bool,
    slots: int,
    brokers: int,
    security_mode: SecurityMode,
    authenticates: bool,
) -> None:
    """Raise InvalidConfig, which names the setting, if a fleet would fail later, or if Spark would open a door that
    security.mode closes.

    Without spark.authenticate, whoever reaches the ports of a driver or an executor, as each user of its host does, can
    run code there, and read the token."""
    if security_mode != "none" and not authenticates:
        advice = (
            "set spark.authenticate=true: Spark makes the secret itself"
            if makes_own_secret(master)
            else "set spark.authenticate=true and spark.authenticate.secret for the application, and for a standalone "
            "cluster's Master and Workers"
        )
        raise InvalidConfig(
            f"security.mode is {security_mode}, and spark.authenticate is false, so that whoever reaches Spark's ports "
            f"could run code as this cluster does: {advice}"
        )
    if dynamic_allocation:
        raise InvalidConfig(
            "spark.dynamicAllocation.enabled is true, and barrier stages need executors that stay: set it to false"
        )
    # With other masters executors come and go: the fleet goes on with those that there are.
    if (master == "local" or master.startswith("local[")) and slots < brokers:
        raise InvalidConfig(
            f"{master} has {slots} slots, and {brokers} guardians need {brokers}, with one more for each task of other "
            f"jobs: use local[{brokers + 1}] or more, or fewer brokers"
        )


class BarrierJobs:
    """The fleet's access to Spark. Except for `run`, nothing here waits for longer than a Jvm does."""

    def __init__(self, spark: SparkSession, security_mode: SecurityMode) -> None:
        self._context = context_of(spark)
        self._security_mode = security_mode
        self._jvm = Jvm()
        self._asking_master = Jvm()  # of its own: a Master may be away for long while this session's JVM answers
        self._master_asked_s = 0.0

    def close(self) -> None:
        self._jvm.close()
        self._asking_master.close()

    def check(self, brokers: int) -> None:
        """Raise InvalidConfig if this session cannot run a fleet."""
        set_as = self._context.getConf().get
        check_session(
            str(self._context.master),
            dynamic_allocation=is_true(set_as("spark.dynamicAllocation.enabled", "false")),
            slots=self.slots(),
            brokers=brokers,
            security_mode=self._security_mode,
            authenticates=is_true(set_as("spark.authenticate", "false")),
        )

    @property
    def driver_host(self) -> str:
        """The host by which executors know the driver."""
        return str(self._context.getConf().get("spark.driver.host", "localhost"))

    def why_gone(self) -> str:
        """Why this session can run nothing any more; empty if it can."""
        if self._context._jsc is None:
            return STOPPED
        try:
            if self._jvm.ask(lambda: self._context._jsc.sc().isStopped()):
                return STOPPED
        except StartFailed as error:
            return f"Spark's JVM cannot be asked any more ({error.message})"
        if self.slots() or not self._master_has_given_it_up():
            return ""
        return f"the Master at {self._context.master} does not know this application any more"

    def _master_has_given_it_up(self) -> bool:
        """Whether the Master that leads does not know this application. A standalone Master ends an application once
        the connection with its driver breaks, and a Master that was restarted without its state has none. It tells no
        driver of that: this one would wait for executors for ever. A Master that is away may still know it."""
        if self._master_asked_s + MASTER_LOOK_S > time.monotonic():
            return False
        self._master_asked_s = time.monotonic()
        scheme, _, masters = str(self._context.master).partition("://")
        addresses = [address.rpartition(":") for address in masters.split(",")] if scheme == "spark" else []
        told = [self._asking_master.answer(partial(self._is_known_at, host, port), None) for host, _, port in addresses]
        return False in told and True not in told

    def _is_known_at(self, host: str, port: str) -> bool | None:
        """Whether the Master there knows this application, asked over a connection of its own as the Master's page
        does. None if this Master does not lead."""
        jvm, context = self._context._jvm, self._context._jsc.sc()
        assert jvm is not None
        question = jvm.java.lang.Class.forName("org.apache.spark.deploy.DeployMessages$RequestMasterState$")
        master = context.env().rpcEnv().setupEndpointRef(jvm.org.apache.spark.rpc.RpcAddress(host, int(port)), "Master")
        state = master.askSync(question.getField("MODULE$").get(None), jvm.scala.reflect.ClassTag.Any())
        if str(state.status()) != "ALIVE":
            return None
        return context.applicationId() in [application.id() for application in state.activeApps()]

    def slots(self) -> int:
        """The number that Spark itself compares a barrier stage with. 0, too, once the session has ended."""

        def count() -> int:
            context = self._context._jsc.sc()
            return int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))

        return self._jvm.answer(count, 0)

    def slots_by_host(self) -> dict[str, int]:
        """The slots of each host, as Spark's listeners know them: a moment later than `slots`."""

        def count() -> dict[str, int]:
            found: Counter[str] = Counter()
            for executor in _executors(self._context._jsc.sc().statusStore()):
                found[_host(executor)] += int(executor.maxTasks())
            return {host: slots for host, slots in sorted(found.items()) if slots > 0}

        return self._jvm.answer(count, {})

    def places_of(self, group: str) -> dict[int, TaskPlace]:
        """Where each guardian of a submission is that has begun."""

        def ask() -> dict[int, TaskPlace]:
            store, places = self._context._jsc.sc().statusStore(), {}
            # The executor's host comes first, before the task's own: a local master has two names for itself.
            host_of = {str(executor.id()): _host(executor) for executor in _executors(store)}
            for stage in self._stages(group):
                for task in _each(store.taskList(stage, 0, GUARDIANS_MAX)):
                    executor = str(task.executorId())
                    places[int(task.index())] = TaskPlace(host_of.get(executor, str(task.host())), executor)
            return places

        return self._jvm.answer(ask, {})

    def are_to_go(self, executors: Collection[str]) -> frozenset[str]:
        """Which of these are being decommissioned. Such an executor waits until its tasks end, and Spark's own
        forceKillTimeout asks a standalone Master in vain to kill it."""

        def ask() -> frozenset[str]:
            scheduler = self._context._jsc.sc().taskScheduler()
            return frozenset(each for each in executors if scheduler.getExecutorDecommissionState(each).isDefined())

        return self._jvm.answer(ask, frozenset())

    def run(self, posting: Posting, guardians: int, group: str, hosts: Sequence[str]) -> None:
        """Run guardians until all of them have left as they were told; raise the reason if they do not. This needs a
        thread of its own, which the group belongs to. `hosts` are the preferred ones, one a guardian; empty for any."""
        try:
            self._context.setJobGroup(group, f"{guardians} brokers' guardians")
            numbers = self._near(hosts) if hosts else self._context.parallelize(range(guardians), guardians)
            numbers.barrier().mapPartitions(partial(guard, posting)).collect()
        except jvm_errors() as error:
            raise _failure(error) from error

    def _near(self, hosts: Sequence[str]) -> RDD[int]:
        """The guardians' numbers, each in a partition that Spark prefers to compute on its host. PySpark has no
        counterpart of Scala's makeRDD."""
        from pyspark import RDD
        from pyspark.serializers import CPickleSerializer

        context, jvm = self._context._jsc, self._context._jvm
        assert jvm is not None
        rows = [
            jvm.scala.Tuple2(pickle.dumps(number), jvm.PythonUtils.toSeq([host])) for number, host in enumerate(hosts)
        ]
        numbers = context.sc().makeRDD(jvm.PythonUtils.toSeq(rows), context.emptyRDD().classTag())
        return RDD(numbers.toJavaRDD(), self._context, CPickleSerializer())

    def has_begun(self, group: str) -> bool:
        """Whether tasks of the job run. False, too, once the session has ended."""

        def ask() -> bool:
            tracker = self._context.statusTracker()
            stages = [tracker.getStageInfo(stage) for stage in self._stages(group)]
            return any(stage.numActiveTasks for stage in stages if stage is not None)

        return self._jvm.answer(ask, False)

    def cancel(self, group: str) -> None:
        """Cancel the job, even one that waits for Spark's check of slots: cancelling the group alone would miss it."""
        self._jvm.ask(lambda: self._context._jsc.sc().cancelJobGroupAndFutureJobs(group))

    def _stages(self, group: str) -> list[int]:
        tracker = self._context.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
        return [stage for job in jobs if job is not None for stage in job.stageIds]


def is_true(value: str) -> bool:
    """Whether Spark reads this setting as true."""
    return value.strip().lower() == "true"


def _executors(store: Any) -> Iterator[Any]:
    """The executors that live."""
    return _each(store.executorList(True))


def _host(executor: Any) -> str:
    """The host of an executor. Spark adds a port once its block manager is there."""
    named = str(executor.hostPort())
    host, _, port = named.rpartition(":")
    return host if host and port.isdigit() else named


def _each(sequence: Any) -> Iterator[Any]:
    """Each element of a Scala Seq."""
    return (sequence.apply(place) for place in range(sequence.size()))


def _failure(error: Exception) -> ReplicationError:
    """A guardian's own error, if the text of the job's error carries one."""
    from spark_replication.spark.session import java_reason

    for line in str(error).splitlines():
        found = error_of_text(line.strip())
        if found is not None:
            return found
    return StartFailed(f"Spark says: {java_reason(error)}")

"""The threads of the fleet: jobs begin and end, reports are answered, and a thread that dies or hangs is known."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import pytest

from spark_replication.config import SecurityMode
from spark_replication.engine.guarding import mustering
from spark_replication.engine.guarding.mustering import KnownBrokers, TaskPlace
from spark_replication.errors import InvalidConfig, ReplicationError, StartFailed
from spark_replication.live.guarding.guardian import Assignment
from spark_replication.messages.guarding import Guarding, GuardingAnswer, Order, Serving
from spark_replication.model import Registration
from spark_replication.spark import fleet as fleet_module
from spark_replication.spark.barrier_jobs import check_session, is_true
from spark_replication.spark.fleet import Fleet
from spark_replication.spark.guardian_task import Posting
from spark_replication.transport.flight.actions import Asker
from tests.waiting import eventually

EPOCH = 7


def posting(epoch: int = EPOCH) -> Posting:
    assignment = Assignment(log_directory="logs", cluster_id="c", zookeeper="z", host="127.0.0.1", overrides={})
    return Posting(assignment=assignment, controller_epoch=epoch, driver="127.0.0.1:1", loopback="here")


def report(broker: int | None, submission: int, *, guardian: int = 0, epoch: int = EPOCH) -> Guarding:
    return Guarding(
        guardian=guardian,
        controller_epoch=epoch,
        submission=submission,
        broker_id=broker,
        serving=Serving(broker_epoch=1, host="127.0.0.1", port=1, pid=1),
        log_dir="logs",
        adopted=False,
        restarts=0,
        trouble="",
    )


class Slots:
    """fleet.Jobs, of one host. Guardians say whom they guard until they are told to leave; `fail` ends them
    otherwise."""

    def __init__(self, slots: int) -> None:
        self.free = slots
        self.submitted: list[int] = []
        self.told: list[Order] = []
        self.known: list[tuple[int, ...]] = []
        self.hears: Callable[[Guarding], GuardingAnswer] = lambda _report: GuardingAnswer(order="guard")
        self._failure: ReplicationError | None = None
        self._changed = threading.Condition()

    def slots(self) -> int:
        return self.free

    def slots_by_host(self) -> dict[str, int]:
        return {"host": self.free}

    def places_of(self, group: str) -> dict[int, TaskPlace]:
        return {}

    def are_to_go(self, executors: Collection[str]) -> frozenset[str]:
        return frozenset()

    def has_begun(self, group: str) -> bool:
        return True

    def cancel(self, group: str) -> None:
        raise AssertionError("they leave by themselves")

    def fail(self, failure: ReplicationError) -> None:
        with self._changed:
            self._failure = failure
            self._changed.notify_all()

    def run(self, posting: Posting, guardians: int, group: str, hosts: Sequence[str]) -> None:
        self.submitted.append(guardians)
        self.known.append(posting.known)
        orders: set[Order] = {"guard"}
        while orders == {"guard"}:
            with self._changed:
                self._changed.wait(0.01)
                failure, self._failure = self._failure, None
                if failure is not None:
                    raise failure
            reports = [report(number + 1, posting.submission, guardian=number) for number in range(guardians)]
            orders = {self.hears(each).order for each in reports}
        self.told.extend(orders)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mustering, "LOOK_S", 0.01)
    monkeypatch.setattr(mustering, "SETTLE_S", 0.1)


def _heard_by(fleet: Fleet) -> Callable[[Guarding], GuardingAnswer]:
    def hears(told: Guarding) -> GuardingAnswer:
        answer = fleet.actions[0].handler(told, Asker("127.0.0.1", lambda _topic: True))
        assert isinstance(answer, GuardingAnswer)
        return answer

    return hears


@contextmanager
def mustered(
    spark: Slots, brokers: int = 3, known: Callable[[], KnownBrokers] = dict[int, Registration | None]
) -> Iterator[Fleet]:
    fleet = Fleet(spark, brokers, known)
    spark.hears = _heard_by(fleet)
    fleet.muster(posting())
    try:
        yield fleet
    finally:
        fleet.dismiss("leave")


def test_each_broker_gets_a_guardian_where_there_are_slots_and_they_leave_as_they_are_told() -> None:
    spark = Slots(4)
    with mustered(spark) as fleet:
        eventually(lambda: list(fleet.guarding_now()) == [1, 2, 3], "all are guarded")
        fleet.dismiss("shut_down")
    assert (spark.submitted, spark.told) == ([3], ["shut_down"])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_dies_of_an_error_is_named() -> None:
    spark = Slots(3)

    def known() -> KnownBrokers:
        raise ZeroDivisionError("a bug")

    with mustered(spark, known=known) as fleet:
        eventually(lambda: fleet.dead_thread() == "fleet", "it is named")


def test_a_fleet_that_does_not_end_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "DISMISS_TIMEOUT_S", 0.1)
    hung = threading.Event()

    class Hung(Slots):
        def slots(self) -> int:
            hung.wait()
            return 0

    with mustered(Hung(0)) as fleet:
        began = time.monotonic()
        fleet.dismiss("leave")
        assert time.monotonic() - began < 5
        before = {thread for thread in threading.enumerate() if thread.name == "fleet"}
        fleet.muster(posting(EPOCH + 1))
        hung.set()
        for thread in before:
            thread.join(10)
            assert not thread.is_alive(), "it is not taken for the next one"


@pytest.mark.parametrize(("value", "true"), [("true", True), ("True", True), (" TRUE ", True), ("false", False)])
def test_settings_are_read_as_spark_reads_them(value: str, true: bool) -> None:
    assert is_true(value) is true


def test_a_job_that_fails_is_submitted_again_and_says_why() -> None:
    spark = Slots(3)
    with mustered(spark) as fleet:
        eventually(lambda: len(fleet.guarding_now()) == 3, "all are guarded")
        spark.fail(StartFailed("an executor was lost"))
        eventually(lambda: spark.submitted == [3, 3] and len(fleet.guarding_now()) == 3, "all are guarded again")
        assert fleet.last_failure == "an executor was lost"
        assert spark.known == [(), (1, 2, 3)]
        assert fleet.refusal is None


def test_what_no_submission_can_change_is_a_refusal_until_guardians_run() -> None:
    spark = Slots(3)
    refused = InvalidConfig("set security.mode")
    with mustered(spark) as fleet:
        eventually(lambda: len(fleet.guarding_now()) == 3, "all are guarded")
        spark.free = 0
        spark.fail(refused)
        eventually(lambda: fleet.refusal is refused, "it is known")
        spark.free = 3
        eventually(lambda: fleet.refusal is None, "it is over")


@pytest.mark.parametrize(
    ("master", "dynamic", "slots", "refused"),
    [
        ("local[4]", False, 4, None),
        ("local[3]", False, 3, None),
        ("local[2]", False, 2, "use local\\[4\\] or more"),
        ("local", False, 1, "use local\\[4\\] or more"),
        ("local-cluster[3,1,1024]", False, 0, None),  # its executors are not there yet
        ("spark://127.0.0.1:7077", False, 0, None),
        ("spark://127.0.0.1:7077", True, 9, "spark.dynamicAllocation.enabled is true"),
    ],
)
def test_a_session_that_cannot_run_a_fleet_is_refused(
    master: str, dynamic: bool, slots: int, refused: str | None
) -> None:
    with nullcontext() if refused is None else pytest.raises(InvalidConfig, match=refused):
        check_session(
            master,
            dynamic_allocation=dynamic,
            slots=slots,
            brokers=3,
            security_mode="none",
            authenticates=False,
        )


@pytest.mark.parametrize(
    ("master", "security_mode", "authenticates", "refused"),
    [
        ("spark://127.0.0.1:7077", "token", False, "and for a standalone cluster's Master and Workers"),
        ("local-cluster[4,1,1024]", "token", False, "set spark.authenticate=true and spark.authenticate.secret"),
        ("yarn", "tls", False, "set spark.authenticate=true: Spark makes the secret itself"),
        ("yarn", "tls", True, None),
        ("yarn", "none", False, None),
        ("local[4]", "token", True, None),
        ("local[4]", "token", False, "set spark.authenticate=true: Spark makes the secret itself"),
        ("local[4]", "none", False, None),
    ],
)
def test_a_secured_cluster_wants_a_spark_whose_ports_are_closed_to_strangers(
    master: str, security_mode: SecurityMode, refused: str | None, *, authenticates: bool
) -> None:
    with nullcontext() if refused is None else pytest.raises(InvalidConfig, match=refused):
        check_session(
            master,
            dynamic_allocation=False,
            slots=4,
            brokers=3,
            security_mode=security_mode,
            authenticates=authenticates,
        )

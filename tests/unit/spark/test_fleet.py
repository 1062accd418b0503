"""The fleet against a Spark that is told how many slots it has: who is submitted, told to leave, cancelled."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from spark_replication.errors import InvalidConfig, NotController, ReplicationError, StartFailed
from spark_replication.live.guarding.guardian import Assignment
from spark_replication.messages.guarding import Guarding, GuardingAnswer, Order, Serving
from spark_replication.spark import fleet as fleet_module
from spark_replication.spark.barrier_jobs import check_session
from spark_replication.spark.fleet import Fleet
from spark_replication.spark.guardian_task import Posting
from tests.live.broker.brokers import eventually

EPOCH = 7


def posting(epoch: int = EPOCH) -> Posting:
    assignment = Assignment(log_directory="logs", cluster_id="c", zookeeper="z", host="127.0.0.1", overrides={})
    return Posting(assignment=assignment, controller_epoch=epoch, driver="127.0.0.1:1", loopback="here")


def report(broker: int, submission: int, *, epoch: int = EPOCH) -> Guarding:
    return Guarding(
        guardian=0,
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
    """fleet.Jobs. Guardians of a job run once there are slots for all of them, and say whom they guard until they are
    told to leave; `fail` ends them otherwise."""

    def __init__(self, slots: int) -> None:
        self.free = slots
        self.silent = False
        self.running = False
        self.left_on_submission = slots + 9
        self.submitted: list[int] = []
        self.told: list[Order] = []
        self.cancelled: list[str] = []
        self.hears: Callable[[Guarding], GuardingAnswer] = lambda _report: GuardingAnswer(order="guard")
        self._failure: ReplicationError | None = None
        self._changed = threading.Condition()

    def slots(self) -> int:
        return self.free

    def fail(self, failure: ReplicationError) -> None:
        with self._changed:
            self._failure = failure
            self._changed.notify_all()

    def has_begun(self, group: str) -> bool:
        return self.running

    def cancel(self, group: str) -> None:
        with self._changed:
            self.cancelled.append(group)
            self._changed.notify_all()

    def run(self, posting: Posting, guardians: int, group: str) -> None:
        self.submitted.append(guardians)
        self.free = min(self.free, self.left_on_submission)
        orders: set[Order] = {"guard"}
        while orders == {"guard"}:
            with self._changed:
                self._changed.wait(0.01)
                failure, self._failure = self._failure, None
                if failure is not None:
                    raise failure
                if group in self.cancelled:
                    raise StartFailed(f"job group {group} is cancelled")
            self.running = self.free >= guardians
            if self.running and not self.silent:
                orders = {self.hears(report(number + 1, posting.submission)).order for number in range(guardians)}
        self.told.extend(orders)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "LOOK_S", 0.01)
    monkeypatch.setattr(fleet_module, "SETTLE_S", 0.1)


def _heard_by(fleet: Fleet) -> Callable[[Guarding], GuardingAnswer]:
    def hears(told: Guarding) -> GuardingAnswer:
        answer = fleet.actions["guarding"].handler(told)
        assert isinstance(answer, GuardingAnswer)
        return answer

    return hears


@contextmanager
def mustered(spark: Slots, brokers: int = 3) -> Iterator[Fleet]:
    fleet = Fleet(spark, brokers)
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
    assert (spark.submitted, spark.told, spark.cancelled) == ([3], ["shut_down"], [])


def test_guardians_that_have_begun_are_waited_for_though_none_has_reported_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be starting brokers."""
    monkeypatch.setattr(fleet_module, "SETTLE_S", 0.02)
    spark = Slots(4)
    spark.silent = True
    with mustered(spark) as fleet:
        eventually(lambda: spark.running, "they run")
        dismissal = threading.Thread(target=fleet.dismiss, args=("shut_down",))
        dismissal.start()
        dismissal.join(0.5)
        assert (dismissal.is_alive(), spark.cancelled) == (True, [])
        spark.silent = False
        dismissal.join(10)
    assert (dismissal.is_alive(), spark.told, spark.cancelled) == (False, ["shut_down"], [])


class LateSlots(Slots):
    """One comes with look 100, the others with look 130. A look takes the time that it is to take."""

    def __init__(self) -> None:
        super().__init__(0)
        self.looks = 0

    def slots(self) -> int:
        self.looks += 1
        self.free = 0 if self.looks < 100 else 1 if self.looks < 130 else 3
        return self.free

    def monotonic(self) -> float:
        return self.looks * fleet_module.LOOK_S


def test_where_the_first_slot_came_late_others_are_waited_for_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    spark = LateSlots()
    monkeypatch.setattr(fleet_module, "time", spark)
    with mustered(spark) as fleet:
        eventually(lambda: list(fleet.guarding_now()) == [1, 2, 3], "all are guarded")
    assert spark.submitted == [3]


def test_how_long_others_are_waited_for_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    spark = LateSlots()
    monkeypatch.setattr(fleet_module, "time", spark)
    monkeypatch.setattr(fleet_module, "SETTLE_S_MAX", 20 * fleet_module.LOOK_S)
    with mustered(spark) as fleet:
        eventually(lambda: list(fleet.guarding_now()) == [1, 2, 3], "all are guarded, in the end")
    assert spark.submitted == [1, 3]


def test_fewer_slots_get_fewer_guardians_and_more_when_there_are_more() -> None:
    spark = Slots(0)
    with mustered(spark) as fleet:
        spark.free = 2
        eventually(lambda: list(fleet.guarding_now()) == [1, 2], "as many as there are slots")
        spark.free = 4
        eventually(lambda: list(fleet.guarding_now()) == [1, 2, 3], "all of them")
    assert (spark.submitted, spark.told, spark.cancelled) == ([2, 3], ["leave", "leave"], [])


def test_guardians_that_wait_for_slots_that_are_gone_are_cancelled_and_fewer_are_submitted() -> None:
    spark = Slots(3)
    spark.left_on_submission = 2
    with mustered(spark) as fleet:
        eventually(lambda: list(fleet.guarding_now()) == [1, 2], "two are guarded")
    assert (spark.submitted, spark.cancelled) == ([3, 2], [f"spark_replication-fleet-{EPOCH}-1"])


def test_a_job_that_fails_is_submitted_again_and_says_why() -> None:
    spark = Slots(3)
    with mustered(spark) as fleet:
        eventually(lambda: len(fleet.guarding_now()) == 3, "all are guarded")
        spark.fail(StartFailed("an executor was lost"))
        eventually(lambda: spark.submitted == [3, 3] and len(fleet.guarding_now()) == 3, "all are guarded again")
        assert fleet.last_failure == "an executor was lost"
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


def test_an_earlier_submissions_guardian_is_told_to_leave_and_another_controllers_is_refused() -> None:
    spark = Slots(3)
    with mustered(spark) as fleet:
        eventually(lambda: len(fleet.guarding_now()) == 3, "all are guarded")
        spark.fail(StartFailed("an executor seems to be lost"))
        eventually(lambda: fleet.submissions == 2 and len(fleet.guarding_now()) == 3, "all are guarded again")
        assert spark.hears(report(9, 1)).order == "leave"
        assert 9 not in fleet.guarded
        with pytest.raises(NotController, match="epoch 6"):
            spark.hears(report(1, 2, epoch=EPOCH - 1))


@pytest.mark.parametrize(
    ("master", "dynamic", "slots", "refused"),
    [
        ("local[4]", False, 4, None),
        ("local[3]", False, 3, "use local\\[4\\] or more"),
        ("local", False, 1, "use local\\[4\\] or more"),
        ("local-cluster[3,1,1024]", False, 0, None),  # its executors are not there yet
        ("spark://127.0.0.1:7077", False, 0, None),
        ("spark://127.0.0.1:7077", True, 9, "spark.dynamicAllocation.enabled is true"),
    ],
)
def test_a_session_that_cannot_run_a_fleet_is_refused(
    master: str, dynamic: bool, slots: int, refused: str | None
) -> None:
    if refused is None:
        check_session(master, dynamic_allocation=dynamic, slots=slots, brokers=3)
    else:
        with pytest.raises(InvalidConfig, match=refused):
            check_session(master, dynamic_allocation=dynamic, slots=slots, brokers=3)

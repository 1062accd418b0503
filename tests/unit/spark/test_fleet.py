"""The fleet against a Spark that is told how many slots it has: who is submitted, told to leave, cancelled."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import pytest

from spark_replication.config import SecurityMode
from spark_replication.errors import InvalidConfig, NotController, ReplicationError, StartFailed
from spark_replication.live.guarding.guardian import Assignment
from spark_replication.messages.guarding import Guarding, GuardingAnswer, Kept, Order, Serving
from spark_replication.model import Registration
from spark_replication.spark import fleet as fleet_module
from spark_replication.spark.barrier_jobs import TaskPlace, check_session, is_true
from spark_replication.spark.fleet import Fleet, KnownBrokers
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
    """fleet.Jobs. Guardians of a job run once there are slots for all of them, and say whom they guard until they are
    told to leave; `fail` ends them otherwise. One host, unless slots_of says otherwise: then each guardian has the
    broker that is on the host where it is, or idles."""

    def __init__(self, slots: int) -> None:
        self.free = slots
        self.silent = False
        self.running = False
        self.left_on_submission = slots + 9
        self.submitted: list[int] = []
        self.told: list[Order] = []
        self.slots_of: dict[str, int] = {}
        self.homes: dict[str, int] = {}
        self.preferred: list[list[str]] = []
        self.dice: list[str] = []  # where guardians are, if not where they had better be
        self.placed: list[str] = []
        self.to_go: frozenset[str] = frozenset()
        self.kept: set[Kept] = set()
        self.kept_now: set[Kept] = set()
        self.known: list[tuple[int, ...]] = []
        self.cancelled: list[str] = []
        self.hears: Callable[[Guarding], GuardingAnswer] = lambda _report: GuardingAnswer(order="guard")
        self._failure: ReplicationError | None = None
        self._changed = threading.Condition()

    def slots(self) -> int:
        return self.free

    def slots_by_host(self) -> dict[str, int]:
        return self.slots_of or {"host": self.free}

    def places_of(self, group: str) -> dict[int, TaskPlace]:
        return {number: TaskPlace(host, f"executor on {host}") for number, host in enumerate(self.placed)}

    def are_to_go(self, executors: Collection[str]) -> frozenset[str]:
        return self.to_go & frozenset(executors)

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

    def _guarded(self, number: int) -> int | None:
        return self.homes.get(self.placed[number]) if self.homes else number + 1

    def run(self, posting: Posting, guardians: int, group: str, hosts: Sequence[str]) -> None:
        self.submitted.append(guardians)
        self.preferred.append(list(hosts))
        self.known.append(posting.known)
        self.placed, self.dice = self.dice or list(hosts) or ["host"] * guardians, []
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
                answers = {
                    number: self.hears(report(self._guarded(number), posting.submission, guardian=number))
                    for number in range(guardians)
                }
                orders = {answer.order for answer in answers.values()}
                self.kept_now = {kept for answer in answers.values() for kept in answer.keep}
                self.kept |= self.kept_now
        self.told.extend(orders)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "LOOK_S", 0.01)
    monkeypatch.setattr(fleet_module, "SETTLE_S", 0.1)


def _heard_by(fleet: Fleet) -> Callable[[Guarding], GuardingAnswer]:
    def hears(told: Guarding) -> GuardingAnswer:
        answer = fleet.actions[0].handler(told, Asker("127.0.0.1", lambda _topic: True))
        assert isinstance(answer, GuardingAnswer)
        return answer

    return hears


def registered(host: str) -> Registration:
    return Registration(host=host, port=1, replication_port=2, epoch=0, incarnation=f"on {host}")


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


def test_guardians_gather_again_where_brokers_are_and_keep_meanwhile_whom_they_are_not_near() -> None:
    """As after a driver's restart on four hosts: Spark's dice have left broker 3 without a guardian on its host."""
    spark = Slots(4)
    spark.slots_of = {"a": 1, "b": 1, "c": 1, "d": 1}
    spark.homes = {"a": 1, "b": 2, "c": 3}
    spark.dice = ["d", "a", "b"]
    known: KnownBrokers = {1: registered("a"), 2: registered("b"), 3: registered("c")}
    with mustered(spark, known=lambda: known) as fleet:
        eventually(lambda: (list(fleet.guarding_now()), fleet.idle()) == ([1, 2], 1), "one idles")
        eventually(lambda: list(fleet.guarding_now()) == [1, 2, 3], "each has a guardian on its host")
        eventually(lambda: not spark.kept_now, "nobody is kept any more")
        assert (fleet.idle(), fleet.known) == (0, [1, 2, 3])
    assert (spark.submitted, spark.known) == ([3, 3], [(1, 2, 3), (1, 2, 3)])
    assert spark.preferred == [["a", "b", "c"]] * 2
    assert spark.kept == {Kept(broker_id=3, address="c:1", incarnation="on c")}


def test_guardians_leave_an_executor_that_is_to_go_and_keep_its_broker_from_elsewhere() -> None:
    """Spark waits for their task to end, and so for ever."""
    spark = Slots(4)
    spark.slots_of = {"a": 1, "b": 1, "c": 1, "d": 1}
    spark.homes = {"a": 1, "b": 2, "c": 3}
    known: KnownBrokers = {1: registered("a"), 2: registered("b"), 3: registered("c")}
    with mustered(spark, known=lambda: known) as fleet:
        eventually(lambda: list(fleet.guarding_now()) == [1, 2, 3], "each has a guardian on its host")
        spark.slots_of, spark.free = {"a": 1, "c": 1, "d": 1}, 3
        spark.to_go = frozenset({"executor on b", "executor of another job"})
        eventually(lambda: list(fleet.guarding_now()) == [1, 3], "nobody is there any more")
        eventually(lambda: {kept.broker_id for kept in spark.kept_now} == {2}, "its broker is kept")
    assert (spark.submitted, spark.cancelled) == ([3, 3], [])
    assert "b" not in spark.placed


def test_where_gathering_again_does_not_help_it_becomes_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "SETTLE_S", 0.02)
    spark = Slots(4)
    spark.slots_of = {"a": 1, "b": 1, "c": 1, "d": 1}
    spark.homes = {"a": 1, "b": 2, "c": 3}
    known: KnownBrokers = {1: registered("a"), 2: registered("b"), 3: registered("c")}
    patience: list[float] = []

    class Remembering(Fleet):
        def _look_after(self, submission: fleet_module._Submission, patience_s: float) -> tuple[bool, float]:
            spark.placed = ["d", "a", "b"]
            patience.append(patience_s)
            return super()._look_after(submission, patience_s)

    fleet = Remembering(spark, 3, lambda: known)
    spark.hears = _heard_by(fleet)
    fleet.muster(posting())
    eventually(lambda: len(patience) >= 4, "they gather again and again")
    fleet.dismiss("leave")
    assert patience[:4] == [0.02, 0.04, 0.08, 0.16], "there may be more by the time that this thread hears of it"


def test_a_broker_that_has_begun_counts_as_known_before_it_has_registered() -> None:
    spark = Slots(3)
    known: KnownBrokers = {}
    with mustered(spark, known=lambda: known) as fleet:
        eventually(lambda: len(fleet.guarding_now()) == 3, "all are guarded")
        spark.fail(StartFailed("an executor was lost"))
        eventually(lambda: len(spark.known) == 2, "they are submitted again")
    assert spark.known == [(), (1, 2, 3)]


def test_a_broker_that_the_controller_knows_no_more_is_missed_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its host is gone for good, its replicas are on others, and another broker has its place."""
    monkeypatch.setattr(fleet_module, "BEGUN_S", 0.2)
    spark = Slots(3)
    spark.slots_of = {"a": 1, "b": 1, "c": 1}
    spark.homes = {"a": 1, "b": 2, "c": 3}
    known: dict[int, Registration | None] = {1: registered("a"), 2: registered("b"), 3: registered("c")}
    with mustered(spark, known=lambda: known) as fleet:
        eventually(lambda: len(fleet.guarding_now()) == 3, "all are guarded")
        spark.slots_of, spark.homes = {"a": 1, "b": 1, "d": 1}, {"a": 1, "b": 2, "d": 4}
        known[3] = None
        spark.fail(StartFailed("a host was lost"))
        eventually(lambda: 4 in fleet.guarding_now(), "another is made")
        eventually(lambda: fleet.silent() == [3], "the lost one is missed", 10.0)
        assert 3 in fleet.guarded, "it holds replicas"
        del known[3]
        known[4] = registered("d")
        eventually(lambda: list(fleet.guarded) == [1, 2, 4], "it is not missed any more")


def test_no_guardian_is_submitted_before_the_controller_has_said_which_brokers_it_knows() -> None:
    """Else each would take a new id."""
    spark = Slots(3)
    asked = []

    def known() -> KnownBrokers:
        asked.append(spark.submitted.copy())
        if len(asked) < 4:
            raise NotController("it has yet to load")
        return {1: registered("host")}

    with mustered(spark, known=known) as fleet:
        eventually(lambda: len(fleet.guarding_now()) == 3, "all are guarded")
    assert asked[:4] == [[]] * 4
    assert spark.known == [(1,)]


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

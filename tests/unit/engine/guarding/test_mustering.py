"""Who is submitted, told to leave, cancelled: by a Spark that is told how many slots it has, without threads."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import pairwise

import pytest

from spark_replication.engine.guarding.mustering import (
    BACKOFF_S_MAX,
    BACKOFF_S_MIN,
    BEGUN_S,
    CANCEL_TIMEOUT_S,
    HOSTS_LOOK_S,
    LOOK_S,
    PATIENCE_S_MAX,
    REPORT_FRESH_S,
    SETTLE_S,
    SETTLE_S_MAX,
    STEADY_JOB_S,
    FleetMemory,
    KnownBrokers,
    Mustering,
    Submission,
    TaskPlace,
)
from spark_replication.errors import NotController, ReplicationError, StartFailed
from spark_replication.messages.guarding import Guarding, GuardingAnswer, Kept, Order
from spark_replication.model import Registration

EPOCH = 7
LEAVE_S = 90.0


def report(broker: int | None, submission: int, *, guardian: int = 0, epoch: int = EPOCH) -> Guarding:
    return Guarding(
        guardian=guardian,
        controller_epoch=epoch,
        submission=submission,
        broker_id=broker,
        serving=None,
        log_dir="logs",
        adopted=False,
        restarts=0,
        trouble="",
    )


def registered(host: str) -> Registration:
    return Registration(host=host, port=1, replication_port=2, epoch=0, incarnation=f"on {host}")


class Story:
    """Spark, the controller, and the time. Guardians of a job run once there are slots for all of them, and say at each
    look whom they guard, until they are told to leave. Each has the broker that is on its host, or idles."""

    def __init__(self, slots: int = 3, *, brokers: int = 3, memory: FleetMemory | None = None) -> None:
        self.now_s = 1_000.0
        self.free = slots
        self.slots_of: dict[str, int] = {}
        self.homes: dict[str, int] = {}
        self.dice: list[str] = []  # where guardians are, if not where they had better be
        self.known: KnownBrokers | ReplicationError = {}
        self.to_go: frozenset[str] = frozenset()
        self.silent = False
        self.hangs = False  # neither an order nor its cancel ends the job
        self.cancel_fails = False
        self.hosts_asked = 0
        self.submitted: list[Submission] = []
        self.told: list[Order] = []
        self.cancelled: list[str] = []
        self.answers: dict[int, GuardingAnswer] = {}
        self.placed: list[str] = []
        self.of = Mustering(
            self,
            self.submit,
            self.ask_known,
            brokers=brokers,
            epoch=EPOCH,
            memory=memory or FleetMemory(),
            leave_s=LEAVE_S,
            now_s=lambda: self.now_s,
        )

    # What the machine asks

    def slots(self) -> int:
        return self.free

    def slots_by_host(self) -> Mapping[str, int]:
        self.hosts_asked += 1
        return self.slots_of or {"host": self.free}

    def places_of(self, group: str) -> dict[int, TaskPlace]:
        return {number: TaskPlace(host, f"executor on {host}") for number, host in enumerate(self.placed)}

    def are_to_go(self, executors: Collection[str]) -> frozenset[str]:
        return self.to_go & frozenset(executors)

    def has_begun(self, group: str) -> bool:
        return self.is_running

    def cancel(self, group: str) -> None:
        if self.cancel_fails:
            raise StartFailed("Spark does not answer")
        self.cancelled.append(group)
        if not self.hangs:
            self.submitted[-1].ended(StartFailed("cancelled"))

    def submit(self, submission: Submission) -> None:
        self.submitted.append(submission)
        self.placed, self.dice = self.dice or submission.hosts or ["host"] * submission.guardians, []
        self.answers = {}

    def ask_known(self) -> KnownBrokers:
        if isinstance(self.known, ReplicationError):
            raise self.known
        return self.known

    # What happens

    @property
    def is_running(self) -> bool:
        return bool(self.submitted) and self.free >= self.submitted[-1].guardians

    def look(self) -> float | None:
        """Let guardians report, and the machine look."""
        last = self.submitted[-1] if self.submitted else None
        if last is not None and not last.has_ended and self.is_running and not self.silent:
            for number in range(last.guardians):
                broker = self.homes.get(self.placed[number]) if self.homes else number + 1
                self.answers[number] = self.of.heard(report(broker, last.number, guardian=number))
            orders = {answer.order for answer in self.answers.values()}
            if orders != {"guard"} and not self.hangs:
                self.told += sorted(orders)
                last.ended(None)
        wait_s = self.of.look()
        self.now_s += wait_s or 0.0
        return wait_s

    def passes(self, for_s: float) -> None:
        until_s = self.now_s + for_s
        while self.now_s < until_s and self.look() is not None:
            pass

    def guarded(self) -> list[int]:
        return list(self.of.guarding_now())

    def sizes(self) -> list[int]:
        return [each.guardians for each in self.submitted]

    def kept(self) -> set[Kept]:
        return {kept for answer in self.answers.values() for kept in answer.keep}


def on_four_hosts() -> Story:
    story = Story(4)
    story.slots_of = {"a": 1, "b": 1, "c": 1, "d": 1}
    story.homes = {"a": 1, "b": 2, "c": 3}
    story.known = {1: registered("a"), 2: registered("b"), 3: registered("c")}
    return story


@pytest.mark.parametrize("order", ["leave", "shut_down"])
def test_each_broker_gets_a_guardian_at_once_and_they_end_as_they_are_told(order: Order) -> None:
    story = Story(4)
    assert story.look() == LOOK_S
    story.look()
    assert (story.sizes(), story.guarded(), story.of.idle()) == ([3], [1, 2, 3], 0)
    story.of.dismiss(order)
    story.passes(2)
    assert story.of.look() is None, "nothing is left to do"
    assert (story.told, story.cancelled, story.sizes()) == ([order], [], [3])


def test_who_is_dismissed_before_there_are_slots_submits_nobody() -> None:
    story = Story(0)
    story.look()
    story.of.dismiss("leave")
    story.free = 3
    assert story.of.look() is None
    assert story.submitted == []


def test_fewer_slots_get_fewer_guardians_once_their_number_has_settled_and_more_when_there_are_more() -> None:
    story = Story(2)
    story.passes(SETTLE_S)
    assert story.submitted == []
    story.passes(4 * LOOK_S)
    assert (story.sizes(), story.guarded()) == ([2], [1, 2])
    story.free = 4
    story.passes(2 * SETTLE_S)
    assert (story.sizes(), story.told, story.guarded()) == ([2, 3], ["leave"], [1, 2, 3])


@pytest.mark.parametrize(("first_s", "others_s"), [(20.0, 19.0), (20.0, None), (100.0, SETTLE_S_MAX - 1)])
def test_where_the_first_slot_came_late_others_are_waited_for_as_long_but_not_for_ever(
    first_s: float, others_s: float | None
) -> None:
    story = Story(0)
    story.passes(first_s)
    story.free = 1
    story.passes(min(first_s, SETTLE_S_MAX) + 2 if others_s is None else others_s)
    story.free = 3
    story.look()
    assert story.sizes()[:1] == ([1] if others_s is None else [3])


def test_no_guardian_is_submitted_before_the_controller_has_said_which_brokers_it_knows() -> None:
    """Else each would take a new id."""
    story = Story(3)
    story.known = NotController("it has yet to load")
    story.passes(100)
    assert story.submitted == []
    story.known = {1: registered("host")}
    story.look()
    assert [each.known for each in story.submitted] == [[1]]


def test_nor_as_a_driver_that_was_stopped_and_commands_no_more() -> None:
    """Another driver has brokers by now that this one has never heard of."""
    story = Story(0)
    story.look()
    story.known, story.free = NotController("another commands"), 3
    story.passes(2)
    assert story.submitted == []
    story.known = {1: registered("host")}
    story.look()
    assert [each.known for each in story.submitted] == [[1]]


def test_hosts_are_asked_for_again_when_the_number_of_slots_is_another_and_now_and_then() -> None:
    story = Story(3)
    story.passes(HOSTS_LOOK_S)
    assert story.hosts_asked == 1
    story.passes(2 * LOOK_S)
    assert story.hosts_asked == 2
    story.free = 2
    story.look()
    assert story.hosts_asked == 3


def test_an_earlier_submissions_guardian_is_told_to_leave_and_another_controllers_is_refused() -> None:
    story = Story(3)
    assert story.of.heard(report(9, 0)).order == "leave", "none was submitted yet"
    story.look()
    story.submitted[-1].ended(StartFailed("an executor seems to be lost"))
    story.passes(2)
    assert story.sizes() == [3, 3]
    assert story.of.heard(report(9, 1)).order == "leave"
    assert 9 not in story.of.memory.reports
    assert story.of.heard(report(9, 2)).order == "guard"
    with pytest.raises(NotController, match="epoch 6"):
        story.of.heard(report(1, 2, epoch=EPOCH - 1))


def test_submissions_are_numbered_on_over_commands() -> None:
    """Guardians of the one before are another epoch's, but groups of jobs must differ."""
    memory = FleetMemory()
    Story(3, memory=memory).look()
    story = Story(3, memory=memory)
    story.look()
    assert [each.number for each in story.submitted] == [2]


def test_a_host_that_an_earlier_command_has_looked_at_may_have_a_broker_that_came_after_it() -> None:
    """Another driver commanded meanwhile, and its guardians made broker 4 on a host that had none."""
    memory = FleetMemory()
    memory.found = {"a": frozenset(), "b": frozenset(), "c": frozenset({1}), "d": frozenset({2})}
    story = Story(4, memory=memory)
    story.slots_of, story.dice = {"a": 1, "b": 1, "c": 1, "d": 1}, ["b", "c", "d"]
    story.homes = {"a": 4, "c": 1, "d": 2}
    story.known = {1: registered("c"), 2: registered("d"), 4: None}
    story.look()
    assert story.guarded() == []
    story.passes(2 * SETTLE_S)
    assert (story.sizes(), story.guarded()) == ([3, 3], [1, 2, 4])


def test_jobs_that_fail_follow_one_another_ever_more_slowly_and_one_that_ran_long_does_not() -> None:
    story = Story(3)
    story.silent = True
    waits = []
    for _ in range(9):
        story.look()
        story.submitted[-1].ended(StartFailed("an executor was lost"))
        began_s = story.now_s
        story.look()
        waits.append(round(story.now_s - began_s, 3))
    assert waits[:3] == [2 * BACKOFF_S_MIN, 4 * BACKOFF_S_MIN, 8 * BACKOFF_S_MIN]
    assert waits[-1] == BACKOFF_S_MAX
    assert str(story.of.memory.failure) == str(StartFailed("an executor was lost"))
    story.look()
    story.silent = False
    story.passes(STEADY_JOB_S + 1)
    story.submitted[-1].ended(None)
    assert story.of.look() == pytest.approx(BACKOFF_S_MIN)
    assert story.of.look() == pytest.approx(BACKOFF_S_MIN), "who is woken before waits on"
    assert story.of.memory.failure is None


def test_guardians_that_wait_for_slots_that_are_gone_are_cancelled_and_fewer_are_submitted() -> None:
    story = Story(3)
    story.look()
    story.free = 2
    story.passes(3 * SETTLE_S)
    assert story.cancelled == [f"spark_replication-fleet-{EPOCH}-1"]
    story.passes(3)
    assert (story.sizes(), story.guarded()) == ([3, 2], [1, 2])


def test_guardians_that_have_begun_are_waited_for_though_none_has_reported_yet() -> None:
    """They may be starting brokers, of which nobody else knows."""
    story = Story(3)
    story.silent = True
    story.look()
    story.of.dismiss("shut_down")
    story.passes(LEAVE_S)
    assert story.cancelled == []
    story.passes(2)
    assert len(story.cancelled) == 1
    assert story.of.look() is None


@pytest.mark.parametrize("cancel_fails", [True, False])
def test_a_job_that_no_order_and_no_cancel_ends_is_left_behind(*, cancel_fails: bool) -> None:
    story = Story(3)
    story.hangs, story.cancel_fails = True, cancel_fails
    story.look()
    story.of.dismiss("leave")
    story.passes(LEAVE_S + CANCEL_TIMEOUT_S)
    assert story.of.look() is not None
    story.passes(3)
    assert story.of.look() is None
    assert len(story.cancelled) == (0 if cancel_fails else 1)


def test_guardians_gather_again_where_brokers_are_and_keep_meanwhile_whom_they_are_not_near() -> None:
    """As after a driver's restart on four hosts: Spark's dice have left broker 3 without a guardian on its host."""
    story = on_four_hosts()
    story.dice = ["d", "a", "b"]
    story.passes(SETTLE_S)
    assert (story.guarded(), story.of.idle(), story.kept()) == ([1, 2], 1, set())
    story.passes(2 * LOOK_S)
    assert story.kept() == {Kept(broker_id=3, address="c:1", incarnation="on c")}
    story.passes(SETTLE_S)
    assert (story.guarded(), story.of.idle(), story.kept()) == ([1, 2, 3], 0, set())
    assert [each.hosts for each in story.submitted] == [["a", "b", "c"]] * 2
    assert [each.known for each in story.submitted] == [[1, 2, 3]] * 2
    assert story.told == ["leave"]


def test_where_gathering_again_does_not_help_it_becomes_rare_until_all_is_as_it_should_be() -> None:
    story = on_four_hosts()
    times = []
    for _ in range(12):
        story.dice = ["d", "a", "b"]
        submitted = len(story.submitted)
        while len(story.submitted) == submitted:
            story.look()
        times.append(story.now_s)
    apart = [round(later - earlier) for earlier, later in pairwise(times)]
    assert apart[0] < 2 * SETTLE_S
    assert all(later >= earlier for earlier, later in pairwise(apart))
    assert PATIENCE_S_MAX <= apart[-1] < PATIENCE_S_MAX + 10
    story.dice = ["a", "b", "c"]
    story.submitted[-1].ended(None)
    story.passes(10)
    assert story.guarded() == [1, 2, 3]
    story.dice = ["d", "a", "b"]
    story.submitted[-1].ended(None)
    story.passes(3 * SETTLE_S)
    assert story.guarded() == [1, 2, 3], "it is patient no more"


def test_guardians_leave_an_executor_that_is_to_go_and_keep_its_broker_from_elsewhere() -> None:
    """Spark waits for their task to end, and so for ever."""
    story = on_four_hosts()
    story.passes(2)
    story.slots_of, story.free = {"a": 1, "c": 1, "d": 1}, 3
    story.to_go = frozenset({"executor on b", "executor of another job"})
    story.passes(5 * SETTLE_S)
    assert (story.guarded(), story.sizes(), story.cancelled) == ([1, 3], [3, 3], [])
    assert {each.broker_id for each in story.kept()} == {2}


def test_a_broker_that_has_begun_counts_as_known_before_it_has_registered() -> None:
    story = Story(3)
    story.passes(2)
    story.submitted[-1].ended(StartFailed("an executor was lost"))
    story.passes(2)
    assert [each.known for each in story.submitted] == [[], [1, 2, 3]]


def test_a_broker_that_nobody_needs_is_let_go_once_it_had_the_time_to_register() -> None:
    """Else guardians that gather often would take it up each time, in the place of one that is needed."""
    story = Story(5)
    story.passes(BEGUN_S / 2)
    story.known = {2: registered("host"), 3: registered("host"), 4: registered("host")}
    story.submitted[-1].ended(StartFailed("an executor was lost"))
    story.passes(2)
    assert (story.submitted[-1].known, story.sizes()) == ([1, 2, 3, 4], [3, 4]), "a guardian for each"
    story.passes(BEGUN_S / 2)
    story.submitted[-1].ended(StartFailed("an executor was lost"))
    story.passes(2)
    assert story.submitted[-1].known == [2, 3, 4]
    story.silent = True
    story.passes(BEGUN_S)
    story.silent = False
    story.look()
    story.submitted[-1].ended(StartFailed("an executor was lost"))
    story.passes(2)
    assert story.submitted[-1].known == [1, 2, 3, 4], "somebody has begun it again"


def test_all_that_guardians_have_begun_on_a_host_is_looked_for_there() -> None:
    """Each has looked before the others began theirs. Else a broker is taken for lost, and its host for looked at."""
    story = Story(3)
    story.silent, story.slots_of, story.dice = True, {"a": 3, "b": 3}, ["a", "a", "a"]
    story.look()
    for number in range(3):
        story.of.heard(report(number + 1, 1, guardian=number))
    story.of.look()
    assert story.of.memory.found == {"a": frozenset({1, 2, 3})}
    story.of.heard(report(1, 1, guardian=0))
    story.now_s += REPORT_FRESH_S
    story.of.heard(report(1, 1, guardian=0))
    story.of.look()
    assert story.of.memory.found == {"a": frozenset({1, 2, 3})}, "the others are silent, and begun"
    story.known = {1: None, 2: None, 3: None}
    story.submitted[-1].ended(StartFailed("a host was lost"))
    story.passes(2)
    assert story.submitted[-1].hosts == ["a", "a", "a"]


def test_so_is_a_broker_that_was_registered_there_once() -> None:
    """A guardian of an earlier submission began it, and its reports count no more."""
    story = Story(3)
    story.slots_of, story.known = {"a": 3, "b": 3}, {1: registered("b")}
    story.look()
    story.known = {1: None}
    story.submitted[-1].ended(StartFailed("a host was lost"))
    story.passes(2)
    assert story.submitted[-1].hosts[0] == "b"


def test_a_broker_that_the_controller_knows_no_more_is_missed_by_nobody() -> None:
    """Its host is gone for good, its replicas are on others, and another broker has its place."""
    story = Story(3)
    story.slots_of, story.homes = {"a": 1, "b": 1, "c": 1}, {"a": 1, "b": 2, "c": 3}
    known: dict[int, Registration | None] = {1: registered("a"), 2: registered("b"), 3: registered("c")}
    story.known = known
    story.passes(2)
    story.slots_of, story.homes = {"a": 1, "b": 1, "d": 1}, {"a": 1, "b": 2, "d": 4}
    known[3] = None
    story.submitted[-1].ended(StartFailed("a host was lost"))
    story.passes(BEGUN_S + 2)
    assert sorted(story.of.memory.reports) == [1, 2, 3, 4], "it holds replicas"
    del known[3]
    known[4] = registered("d")
    story.look()
    assert sorted(story.of.memory.reports) == [1, 2, 4]


def test_a_report_counts_while_it_is_fresh() -> None:
    story = Story(3)
    story.passes(2)
    story.silent = True
    story.now_s += REPORT_FRESH_S + 1
    assert (story.guarded(), story.of.idle()) == ([], 0)

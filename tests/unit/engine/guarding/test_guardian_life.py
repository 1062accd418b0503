"""What a guardian does at the end of each of its steps, without processes, disks or time."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from spark_replication.engine.guarding.guardian_life import (
    IN_USE,
    POLL_S,
    RESTART_S_MAX,
    RESTART_S_MIN,
    START_TIMEOUT_S,
    STEADY_S,
    TAKEN_OVER,
    GuardianDoes,
    GuardianLife,
)
from spark_replication.errors import (
    AuthenticationFailed,
    BrokerNotAvailable,
    NotReady,
    ReplicationError,
    StaleLease,
    StartFailed,
    StorageFailed,
    WrongCluster,
)
from spark_replication.messages.guarding import BrokerDied

Does = GuardianDoes
NOBODY = BrokerNotAvailable("nobody answers")


class File(NamedTuple):
    incarnation: str
    pid: int = 7


class Story:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.life: GuardianLife[File] = GuardianLife(1, "broker-1", lambda: self.now_s)
        self.life.begin()

    def doing(self) -> GuardianDoes:
        return self.life.doing

    def starts(self, incarnation: str = "a") -> None:
        self.life.looked(alive=False, file=None)
        self.life.launched(7, None)
        self.life.awaited(File(incarnation))
        assert self.doing() is Does.WATCH

    def pauses(self) -> float:
        assert self.doing() is Does.PAUSE
        wait_s = self.life.wait_s
        self.life.paused()
        return wait_s


def test_a_live_broker_is_adopted_and_its_lease_renewed() -> None:
    story = Story()
    life = story.life
    life.looked(alive=True, file=File("a"))
    assert story.doing() is Does.TAKE
    life.taken(1)
    assert (story.doing(), life.found, life.adopted) == (Does.WATCH, File("a"), True)
    life.watched(ended=False)
    assert story.doing() is Does.RENEW
    life.renewed()
    assert story.doing() is Does.WATCH


def test_where_nobody_lives_a_broker_is_started() -> None:
    story = Story()
    story.starts()
    assert (story.life.found, story.life.adopted) == (File("a"), False)
    story.life.begin()
    story.life.looked(alive=True, file=File("a"))
    story.life.taken(1)
    assert not story.life.adopted, "it was this guardian who started it"


@pytest.mark.parametrize(
    ("file", "serves"), [(None, False), (File("before"), False), (File("a", 8), False), (File("a"), True)]
)
def test_what_the_life_before_left_is_not_taken_for_a_start(file: File | None, *, serves: bool) -> None:
    """In a container its pid may well come again."""
    story = Story()
    story.life.looked(alive=False, file=None)
    story.life.launched(7, File("before"))
    assert (story.doing(), story.life.wait_s) == (Does.AWAIT, 0.0)
    story.life.awaited(file)
    assert story.doing() is (Does.WATCH if serves else Does.AWAIT)
    assert serves or story.life.wait_s == POLL_S


@pytest.mark.parametrize("error", [None, NOBODY, NotReady("not yet"), StorageFailed("its disk")])
def test_one_that_does_not_answer_yet_is_looked_at_again_until_the_start_has_failed(
    error: ReplicationError | None,
) -> None:
    story = Story()
    for after_s, then in ((0.0, Does.LOOK), (START_TIMEOUT_S - 1, Does.LOOK), (START_TIMEOUT_S, Does.PAUSE)):
        story.now_s = 100.0 + after_s
        story.life.looked(alive=True, file=None if error is None else File("a"))
        if story.doing() is Does.TAKE:
            assert error is not None
            story.life.failed(error)
        assert story.doing() is then
        assert story.life.wait_s == (POLL_S if then is Does.LOOK else 2 * RESTART_S_MIN)
    assert "does not answer" in story.life.trouble


def test_whoever_else_answers_there_is_not_adopted() -> None:
    story = Story()
    story.life.looked(alive=True, file=File("a"))
    story.life.taken(2)
    assert story.doing() is Does.LOOK


@pytest.mark.parametrize("error", [StaleLease("later"), WrongCluster("theirs"), AuthenticationFailed("who?")])
def test_a_broker_that_is_anothers_is_left_to_it(error: ReplicationError) -> None:
    story = Story()
    story.life.looked(alive=True, file=File("a"))
    story.life.failed(error)
    assert (story.doing(), story.life.error) == (Does.FAIL, error)


def test_a_renewal_that_nobody_answers_is_repeated_and_one_that_is_refused_ends_the_guardian() -> None:
    story = Story()
    story.starts()
    for error in (NOBODY, WrongCluster("?"), StorageFailed("its disk")):
        story.life.watched(ended=False)
        story.life.failed(error)
        assert story.doing() is Does.WATCH
    story.life.watched(ended=False)
    story.life.failed(StaleLease("later"))
    assert story.doing() is Does.FAIL


def test_an_end_is_reported_by_its_incarnation_and_another_start_follows() -> None:
    story = Story()
    story.starts("a")
    story.life.watched(ended=True)
    assert (story.doing(), story.life.restarts) == (Does.REPORT, 1)
    assert story.life.died == BrokerDied(broker_id=1, incarnation="a")
    story.life.reported()
    story.pauses()
    assert story.doing() is Does.LOOK


def test_a_report_that_nobody_takes_delays_no_start() -> None:
    story = Story()
    story.starts()
    story.life.watched(ended=True)
    story.life.failed(NOBODY)
    assert story.doing() is Does.PAUSE


def test_who_retires_reports_the_end_and_leaves_the_start_to_its_successor() -> None:
    story = Story()
    story.starts()
    story.life.retire()
    story.life.watched(ended=True)
    assert story.doing() is Does.REPORT
    story.life.reported()
    assert story.doing() is Does.END


def test_who_is_to_stop_leaves_a_broker_that_lives_and_reports_one_that_has_ended() -> None:
    leaves, reports = Story(), Story()
    for story, ended, then in ((leaves, False, Does.END), (reports, True, Does.REPORT)):
        story.starts()
        story.life.stop()
        story.life.watched(ended=ended)
        assert story.doing() is then
    reports.life.reported()
    reports.life.paused()
    assert reports.doing() is Does.END, "and starts it no more"


def test_who_is_stopped_while_it_starts_a_broker_leaves_once_that_serves() -> None:
    """Nobody else would know of the process."""
    story = Story()
    story.life.stop()
    story.starts()
    story.life.watched(ended=False)
    assert story.doing() is Does.END


def test_who_was_stopped_before_starts_nothing() -> None:
    story = Story()
    story.life.stop()
    story.life.begin()
    assert story.doing() is Does.END


def test_starts_that_fail_follow_one_another_ever_more_slowly_and_one_that_served_long_does_not() -> None:
    story = Story()
    waits = []
    for _ in range(9):
        story.life.looked(alive=False, file=None)
        story.life.launched(7, None)
        story.life.child_ended(1, "a disk")
        assert story.life.trouble == "broker 1 did not start (exit 1): a disk"
        waits.append(story.pauses())
    assert waits[:3] == [2 * RESTART_S_MIN, 4 * RESTART_S_MIN, 8 * RESTART_S_MIN]
    assert waits[-1] == RESTART_S_MAX
    for lived_s, wait_s in ((STEADY_S, RESTART_S_MAX), (STEADY_S + 1, RESTART_S_MIN)):
        story.starts()
        assert story.life.trouble == ""
        story.now_s += lived_s
        story.life.watched(ended=True)
        story.life.reported()
        assert story.pauses() == wait_s


def test_one_that_does_not_serve_in_time_is_killed() -> None:
    """It could come up later, with no guardian."""
    story = Story()
    story.life.looked(alive=False, file=None)
    story.life.launched(7, None)
    story.now_s += START_TIMEOUT_S
    story.life.awaited(None)
    assert story.doing() is Does.KILL
    story.life.child_ended(-9, "it waits for a disk")
    assert story.doing() is Does.PAUSE
    assert story.life.trouble == f"broker 1 did not serve within {START_TIMEOUT_S} s: it waits for a disk"


def test_a_start_that_a_later_guardian_forbids_ends_this_one() -> None:
    story = Story()
    story.life.looked(alive=False, file=None)
    story.life.launched(7, None)
    story.life.child_ended(TAKEN_OVER, "epoch 4 has it")
    assert (story.doing(), str(story.life.error)) == (Does.FAIL, str(StaleLease("epoch 4 has it")))


def test_a_start_that_gave_way_to_another_process_adopts_that_one() -> None:
    story = Story()
    story.life.looked(alive=False, file=None)
    story.life.launched(7, None)
    story.life.child_ended(IN_USE, "another lives there")
    assert story.doing() is Does.LOOK
    story.life.looked(alive=True, file=File("other", 9))
    story.life.taken(1)
    assert (story.doing(), story.life.found) == (Does.WATCH, File("other", 9))


def test_a_start_that_gave_way_to_one_that_has_ended_has_failed() -> None:
    story = Story()
    story.life.looked(alive=False, file=None)
    story.life.launched(7, None)
    story.life.child_ended(IN_USE, "another lives there")
    story.life.looked(alive=False, file=None)
    assert isinstance(story.life.error, StartFailed)
    story.pauses()
    story.life.looked(alive=False, file=None)
    assert story.doing() is Does.LAUNCH, "the next start is one like any other"


@pytest.mark.parametrize("error", [StorageFailed("its disk"), StartFailed("no")])
def test_a_disk_that_refuses_is_this_brokers_trouble_and_ends_no_guardian(error: ReplicationError) -> None:
    story = Story()
    story.life.failed(error)
    assert (story.doing(), story.life.trouble) == (Does.PAUSE, error.message)


def test_any_other_failure_ends_the_guardian() -> None:
    story = Story()
    story.life.failed(NOBODY)
    assert (story.doing(), story.life.error) == (Does.FAIL, NOBODY)

"""A plan is waited for, wave by wave, and how far it is gets told."""

from __future__ import annotations

from typing import cast

import pytest

from spark_replication.client.asking import waves
from spark_replication.client.asking.admin import Admin
from spark_replication.client.asking.replica_sizes import ReassignmentDescription
from spark_replication.client.asking.waves import MovePace, PlanProgress, progress_of, wait_in_waves
from spark_replication.core.moves.moves import Move, Plan
from spark_replication.errors import NotReady, ReplicationError, RequestTimedOut, StalePlan
from tests.unit.client.asked_admin import MIB, AskedAdmin, asked, move, under_way

FULL, STALE = NotReady("no room"), StalePlan("another since")


@pytest.fixture(autouse=True)
def without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waves, "POLL_S", 0)


def waited(
    admin: AskedAdmin, *moves: Move, wait_s: float = 60
) -> tuple[dict[str, ReplicationError], list[tuple[int, int]]]:
    """With how many partitions had ended at each look, of how many."""
    told: list[PlanProgress] = []
    plan = Plan(moves=moves)
    refused = wait_in_waves(cast(Admin, admin), plan, admin.apply(plan), wait_s, told.append)
    return refused, [(each.ended, each.partitions) for each in told]


def test_it_is_told_at_each_look_until_all_moves_have_ended() -> None:
    other = under_way(9)
    looks = [[under_way(0), under_way(1), other], [under_way(1), other], [other]]
    assert waited(asked(under_way=looks), move(0), move(1)) == ({}, [(0, 2), (1, 2)])


def test_what_had_no_room_is_applied_again_once_nothing_else_moves() -> None:
    admin = asked(
        [{"orders-1": FULL, "orders-2": STALE}, {"orders-1": FULL}, {}],
        [[under_way(0)], [], [], [under_way(1)], []],
    )
    assert waited(admin, move(0), move(1), move(2)) == ({"orders-2": STALE}, [(0, 2), (1, 2), (1, 2), (1, 2)])
    assert [[each.partition for each in plan.moves] for plan in admin.applied] == [
        ["orders-0", "orders-1", "orders-2"],
        ["orders-1"],
        ["orders-1"],
    ]


def test_what_is_refused_for_good_is_not_waited_for() -> None:
    admin = asked([{"orders-0": STALE}])
    assert waited(admin, move(0), wait_s=0) == ({"orders-0": STALE}, [])
    assert len(admin.applied) == 1


@pytest.mark.parametrize(
    ("refused", "looks", "said"),
    [
        ({}, [[under_way(0), under_way(1)]], "2 partitions are moving, and go on, orders-0 is the first: wait longer"),
        ({"orders-1": FULL}, [[under_way(0)]], "1 partitions are moving.*, and 1 have not begun: apply the plan again"),
        ({"orders-1": FULL}, [[]], "1 partitions had no room and have not begun to move, orders-1 is the first"),
    ],
)
def test_whoever_waits_too_long_is_told_what_goes_on_and_what_has_not_begun(
    refused: dict[str, ReplicationError], looks: list[list[ReassignmentDescription]], said: str
) -> None:
    with pytest.raises(RequestTimedOut, match=said):
        waited(asked([refused], looks), move(0), move(1), wait_s=0)


def test_a_cluster_that_does_not_answer_is_asked_again() -> None:
    class Silent(AskedAdmin):
        silent = True

        def reassignments(self) -> list[ReassignmentDescription]:
            if self.silent:
                self.silent = False
                raise NotReady("starting")
            return super().reassignments()

    assert waited(Silent(refused=[{}], moving=[[under_way(0)], []]), move(0)) == ({}, [(0, 1)])


def test_what_is_copied_counts_ended_moves_whole_and_others_as_their_leaders_tell() -> None:
    moves = [move(0), move(1), move(2), move(3)]
    moving = {"orders-1": under_way(1, 40 * MIB), "orders-2": under_way(2, None)}
    pace = MovePace()
    assert progress_of(moves, {"orders-3"}, moving, pace, 0.0) == PlanProgress(
        partitions=4,
        ended=1,
        bytes_to_copy=400 * MIB,
        bytes_copied=160 * MIB,
        bytes_per_second=None,
        time_left_s=None,
    )
    later = progress_of(moves, {"orders-3"}, moving | {"orders-1": under_way(1, 20 * MIB)}, pace, 10.0)
    assert (later.bytes_copied, later.bytes_per_second, later.time_left_s) == (180 * MIB, 2 * MIB, 110.0)


def test_a_log_that_grew_since_it_was_planned_has_more_left_than_planned() -> None:
    pace = MovePace()
    pace.seen(0.0, 0)
    found = progress_of([move(0), move(1)], set(), {"orders-1": under_way(1, 300 * MIB)}, pace, 1.0)
    assert (found.bytes_copied, found.bytes_to_copy, found.time_left_s) == (100 * MIB, 200 * MIB, 3.0)


def test_of_an_unknown_size_nobody_knows_the_time() -> None:
    pace = MovePace()
    pace.seen(0.0, 0)
    found = progress_of([move(0), move(1, None)], set(), {"orders-1": under_way(1, None)}, pace, 1.0)
    assert (found.bytes_copied, found.bytes_per_second, found.time_left_s) == (100 * MIB, 100 * MIB, None)


def test_the_pace_is_that_of_the_last_looks() -> None:
    pace = MovePace()
    assert pace.seen(0.0, 0) is None
    assert [pace.seen(float(at), 10 * at) for at in (1, 2)] == [10.0, 10.0]
    for at in range(waves.PACE_LOOKS_MAX):
        assert pace.seen(3.0 + at, 20 + at) is not None
    assert pace.seen(3.0 + waves.PACE_LOOKS_MAX, 20 + waves.PACE_LOOKS_MAX) == 1.0
    still = [pace.seen(30.0 + at, 40) for at in range(waves.PACE_LOOKS_MAX)]
    assert still[-1] is None, "nothing is copied any longer"


@pytest.mark.parametrize(
    ("pace", "left_s", "to_copy", "said"),
    [
        (None, None, 0, "1 of 3 partitions have moved"),
        (None, None, 4 * MIB, "1 of 3 partitions have moved, 1.0 MiB of 4.0 MiB are copied"),
        (MIB / 60, None, 4 * MIB, "1 of 3 partitions have moved, 1.0 MiB of 4.0 MiB are copied, 17.1 KiB/s"),
        (
            MIB / 60,
            180.0,
            4 * MIB,
            "1 of 3 partitions have moved, 1.0 MiB of 4.0 MiB are copied, 17.1 KiB/s, 3.0 min left",
        ),
    ],
)
def test_what_is_unknown_is_left_out(pace: float | None, left_s: float | None, to_copy: int, said: str) -> None:
    found = PlanProgress(
        partitions=3, ended=1, bytes_to_copy=to_copy, bytes_copied=MIB, bytes_per_second=pace, time_left_s=left_s
    )
    assert str(found) == said

"""A plan in a notebook: what it shows, and what it tells while it is carried out."""

from __future__ import annotations

from typing import Any, cast

import pytest

from spark_replication.admin.notebook import moving
from spark_replication.admin.notebook.moving import PlannedMoves
from spark_replication.client.admin import Admin
from spark_replication.client.replica_sizes import ReassignmentDescription
from spark_replication.core.moves.moves import Move, Plan
from spark_replication.errors import NotReady, ReplicationError, RequestTimedOut, StalePlan

MIB = 1 << 20


class AskedAdmin:
    """refused, moving: what each answer is, the last again and again."""

    def __init__(self, *, refused: list[dict[str, ReplicationError]], moving: list[list[ReassignmentDescription]]):
        self.applied: list[Plan] = []
        self._refused = refused
        self._moving = moving

    def apply(self, plan: Plan) -> dict[str, ReplicationError]:
        self.applied.append(plan)
        return self._refused.pop(0) if len(self._refused) > 1 else self._refused[0]

    def reassignments(self) -> list[ReassignmentDescription]:
        return self._moving.pop(0) if len(self._moving) > 1 else self._moving[0]


def move(number: int, size: int | None = 100 * MIB) -> Move:
    return Move(partition=f"orders-{number}", topic_id="a", present=(1, 2), target=(1, 3), bytes=size, leader=1)


def under_way(number: int, bytes_left: int | None = MIB, time_left_ms: int | None = 2_000) -> ReassignmentDescription:
    return ReassignmentDescription(
        partition=f"orders-{number}",
        replicas=(1, 3, 2),
        adding=(3,),
        removing=(2,),
        isr=(1, 2),
        bytes_left=bytes_left,
        time_left_ms=time_left_ms,
    )


def moves(*of: Move, admin: AskedAdmin | None = None, pace: int = MIB) -> PlannedMoves:
    return PlannedMoves(cast(Admin, admin), Plan(moves=of), pace)


def asked(
    refused: list[dict[str, ReplicationError]] | None = None,
    under_way: list[list[ReassignmentDescription]] | None = None,
) -> AskedAdmin:
    return AskedAdmin(refused=refused or [{}], moving=under_way or [[]])


def applied(planned: PlannedMoves, **how: Any) -> tuple[dict[str, ReplicationError], list[str]]:
    told: list[str] = []
    return planned.apply(tell=told.append, **how), told


@pytest.fixture(autouse=True)
def without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "POLL_S", 0)


def test_bytes_and_time_of_each_move_and_of_all() -> None:
    planned = moves(move(0), move(1, 200 * MIB))
    assert planned.estimate_s == 300
    assert (
        "<td>orders-0</td><td>1, 2</td><td>1, 3</td><td>3</td><td>2</td><td>100.0 MiB</td><td>100.0 s</td>"
        in planned._repr_html_()
    )
    assert (
        "<p>2 partitions change, 300.0 MiB are copied. About 5.0 min, if each broker sends 1.0 MiB a second</p>"
        in planned._repr_html_()
    )
    assert repr(planned).splitlines()[-1] == "About 5.0 min, if each broker sends 1.0 MiB a second"


def test_what_nobody_knows_is_said() -> None:
    planned = moves(move(0), move(1, None))
    assert planned.estimate_s is None
    assert "<td>unknown</td><td>unknown</td>" in planned._repr_html_()
    assert "How long it takes is unknown, as some size or leader is" in planned._repr_html_()


def test_nothing_is_to_be_moved() -> None:
    assert repr(moves()) == "nothing is to be moved"
    assert moves()._repr_html_() == "<p>nothing is to be moved</p>"


def test_a_long_plan_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "SHOWN_MOVES_MAX", 2)
    assert "<p>and 1 more, which copy less</p>" in moves(*map(move, range(3)))._repr_html_()
    assert " more, which" not in moves(*map(move, range(2)))._repr_html_()


def test_nothing_moves_before_it_is_applied() -> None:
    admin = asked()
    planned = moves(move(0), admin=admin)
    planned._repr_html_()
    assert admin.applied == []
    assert applied(planned, wait_s=None) == ({}, ["1 of 1 partitions have begun to move"])
    assert admin.applied == [planned.plan]


def test_progress_is_told_as_it_changes() -> None:
    other = under_way(9)
    seen = [[under_way(0), under_way(1), other], [under_way(0), under_way(1)], [under_way(1, None, None)], [other]]
    assert applied(moves(move(0), move(1), admin=asked(under_way=seen))) == (
        {},
        [
            "2 of 2 partitions have begun to move",
            "2 partitions are moving; bytes left: 2.0 MiB; time left: 2.0 s",
            "1 partitions are moving; bytes left: unknown; time left: unknown",
            "2 of 2 partitions have moved",
        ],
    )


def test_what_had_no_room_begins_once_others_have_ended() -> None:
    full, stale = NotReady("no room"), StalePlan("another since")
    admin = asked([{"orders-1": full, "orders-2": stale}, {}])
    refused, told = applied(moves(move(0), move(1), move(2), admin=admin))
    assert refused == {"orders-2": stale}
    assert [[each.partition for each in plan.moves] for plan in admin.applied] == [
        ["orders-0", "orders-1", "orders-2"],
        ["orders-1"],
    ]
    assert told == ["1 of 3 partitions have begun to move", "2 of 3 partitions have moved"]


def test_who_waits_too_long_is_told_that_it_goes_on() -> None:
    with pytest.raises(RequestTimedOut, match="1 partitions are moving, and go on"):
        applied(moves(move(0), admin=asked(under_way=[[under_way(0)]])), wait_s=0)


def test_progress_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    moves(move(0), admin=asked()).apply()
    assert capsys.readouterr().out.splitlines()[-1] == "1 of 1 partitions have moved"

"""A plan in a notebook: what it shows, and what it tells while it is carried out."""

from __future__ import annotations

from typing import Any, cast

import pytest

from spark_replication.admin.notebook import moving
from spark_replication.admin.notebook.moving import PlannedMoves
from spark_replication.client.asking import waves
from spark_replication.client.asking.admin import Admin
from spark_replication.core.moves.moves import Move, Plan
from spark_replication.errors import NotReady, ReplicationError, StalePlan
from tests.unit.client.asked_admin import MIB, AskedAdmin, asked, move, under_way


def moves(*of: Move, admin: AskedAdmin | None = None, pace: int = MIB) -> PlannedMoves:
    return PlannedMoves(cast(Admin, admin), Plan(moves=of), pace)


def applied(planned: PlannedMoves, **how: Any) -> tuple[dict[str, ReplicationError], list[str]]:
    told: list[str] = []
    return planned.apply(tell=told.append, **how), told


@pytest.fixture(autouse=True)
def without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waves, "POLL_S", 0)


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
    looks = [[under_way(0), under_way(1)], [under_way(0), under_way(1)], [under_way(1, None)], []]
    assert applied(moves(move(0, 0), move(1, 0), admin=asked(under_way=looks))) == (
        {},
        [
            "2 of 2 partitions have begun to move",
            "0 of 2 partitions have moved",
            "1 of 2 partitions have moved",
            "2 of 2 partitions have moved",
        ],
    )


def test_what_had_no_room_begins_once_others_have_ended() -> None:
    full, stale = NotReady("no room"), StalePlan("another since")
    refused, told = applied(
        moves(move(0, 0), move(1, 0), move(2, 0), admin=asked([{"orders-1": full, "orders-2": stale}, {}]))
    )
    assert refused == {"orders-2": stale}
    assert told == [
        "1 of 3 partitions have begun to move",
        "1 of 2 partitions have moved",
        "2 of 3 partitions have moved",
    ]


def test_progress_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    moves(move(0), admin=asked()).apply()
    assert capsys.readouterr().out.splitlines()[-1] == "1 of 1 partitions have moved"

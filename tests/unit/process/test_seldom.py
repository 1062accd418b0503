"""What is said seldom: when, and of how many."""

from __future__ import annotations

import pytest

from spark_replication.process import logs
from spark_replication.process.logs import Seldom


def test_the_first_is_told_at_once_and_the_others_together_after_a_while() -> None:
    now_ms = 0
    said = Seldom(1_000, lambda: now_ms)
    assert [said.come("a") for _ in range(4)] == [1, 0, 0, 0]
    assert said.come("b", 7) == 7, "each kind by itself"
    now_ms = 999
    assert said.come("a") == 0
    now_ms = 1_000
    assert said.come("a", 2) == 6
    assert said.come("a", 0) == 0
    now_ms = 2_000
    assert said.come("a", 0) == 0, "nothing has come"
    assert said.come("a") == 1


def test_what_is_left_untold_is_told_without_another() -> None:
    now_ms = 0
    said = Seldom(1_000, lambda: now_ms)
    assert [said.come("a"), said.come("a", 3)] == [1, 0]
    now_ms = 1_000
    assert said.come("a", 0) == 3


def test_kinds_are_kept_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "KINDS_MAX", 2)
    said = Seldom(1_000, lambda: 0)
    assert [said.come(kind) for kind in "abacab"] == [1, 1, 0, 1, 0, 1]
    assert len(said._kinds) == 2

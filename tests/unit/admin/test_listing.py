"""A listing shows everything: folded where a terminal is narrow, on one line where a program reads."""

from __future__ import annotations

import json

import pytest

from spark_replication.admin.cli.listing import show

COLUMNS = ("setting", "led_by_it", "members")
ROWS = [["controlled.shutdown.timeout.ms", None, (1, 2)]]


def test_a_narrow_terminal_folds_and_cuts_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # stands for a terminal
    monkeypatch.setenv("COLUMNS", "40")
    show(COLUMNS, ROWS, output="table")
    shown = capsys.readouterr().out
    assert "…" not in shown
    first = "".join(line.split("│")[1].strip() for line in shown.splitlines() if line.startswith("│"))
    assert first == "controlled.shutdown.timeout.ms"


def test_what_is_not_a_terminal_gets_each_row_on_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setenv("COLUMNS", "40")
    show(COLUMNS, ROWS, output="table")
    shown = capsys.readouterr().out
    (row,) = (line for line in shown.splitlines() if line.startswith("│"))
    assert [cell.strip() for cell in row.strip("│").split("│")] == ["controlled.shutdown.timeout.ms", "", "1, 2"]
    assert "led by it" in shown


def test_a_program_gets_the_same_rows_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    show(COLUMNS, ROWS, output="json")
    assert json.loads(capsys.readouterr().out) == [
        {"setting": "controlled.shutdown.timeout.ms", "led_by_it": None, "members": [1, 2]}
    ]

"""A listing shows everything: folded where a terminal is narrow, on one line where a program reads."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import click
import pytest

from spark_replication.admin.cli.groups import begin
from spark_replication.admin.cli.listing import ENDING_S, REACH, REACH_S, reach_ms, show, watched
from spark_replication.admin.cli.main import cli
from spark_replication.engine.client.pausing import BACK_OFF_MAX_S

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


def reach_s(began_s_ago: float, wait_for_cluster_s: float = REACH_S) -> float:
    with click.Context(click.Command("any")) as context:
        begin(context, time.monotonic() - began_s_ago)
        context.meta[REACH] = wait_for_cluster_s
        return reach_ms() / 1_000


def test_a_search_has_what_the_start_of_the_command_has_left() -> None:
    assert reach_s(0.0, 1_000) <= 1_000 - ENDING_S
    assert reach_s(0.0, 1_000) > 900
    assert reach_s(400.0, 1_000) <= 600 - ENDING_S
    assert 0 < reach_s(1.0) <= REACH_S - 1.0 - BACK_OFF_MAX_S
    assert reach_s(10.0) == 0, "it asks once"
    assert reach_s(0.0, 0.0) == 0


def test_a_command_begins_before_anything_is_loaded_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = time.monotonic()
    monkeypatch.setattr("spark_replication.admin.cli.main.time", _Stopped(now_s - 1.0))
    context = cli.make_context("spark-replication", ["guide"])
    with context, click.Context(click.Command("guide"), parent=context):
        assert reach_ms() <= (REACH_S - 1.0 - ENDING_S) * 1_000


class _Stopped:
    def __init__(self, now_s: float) -> None:
        self._now_s = now_s

    def monotonic(self) -> float:
        return self._now_s


def test_each_look_of_a_watch_has_all_the_time_that_a_command_has() -> None:
    had: list[float] = []

    def look() -> None:
        had.append(reach_ms())
        if len(had) == 2:
            raise KeyboardInterrupt

    with click.Context(click.Command("any")) as context:
        begin(context, time.monotonic() - 1_000)
        watched(look)(watch_s=0.0)
    assert had[0] == 0
    assert had[1] > 0


@pytest.mark.slow
def test_what_a_short_command_does_without_is_not_loaded_for_it() -> None:
    heavy = ["deltalake", "kazoo.client", "pandas", "pyarrow.fs", "pyarrow.parquet", "pyspark", "asyncio"]
    program = (
        "import sys\nfrom spark_replication.admin.cli.main import main\ntry:\n    main()\n"
        f"except SystemExit as ended:\n    print(ended.code, *(each for each in {heavy} if each in sys.modules))"
    )
    nowhere = ("-b", "127.0.0.1:1", "--wait-for-cluster", "0")
    for typed, code in (("topics", 1), ("health", 2), ("consume orders", 1), ("produce orders", 1)):
        command = [sys.executable, "-c", program, *typed.split(), *nowhere]
        ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=True)
        assert ran.stdout.split() == [str(code)], (typed, ran.stdout)

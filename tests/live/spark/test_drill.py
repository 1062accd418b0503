"""The drill is the proof that an executor's and a driver's death cost nothing: it must pass, as a user runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from spark_replication.admin.drill.drill import PARTITIONS
from spark_replication.admin.drill.figures import Figures

ROOT = Path(__file__).parents[3]
LONGEST_WAIT_MS = 10_000  # of a machine that others use as well


@pytest.mark.live
@pytest.mark.spark
@pytest.mark.timeout(620)
def test_the_drill_loses_nothing_and_leaves_nothing() -> None:
    command = [sys.executable, "jobs/failover_drill.py", "--format", "json"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    figures = msgspec.json.decode(ran.stdout, type=Figures)
    assert (figures.passed, figures.problems) == (True, ())
    assert figures.acknowledged > 0
    for found in (figures.followed, figures.read_again):
        assert (found.lost, found.doubled) == (0, 0)
        assert found.read >= figures.acknowledged
    assert [each.kill.what for each in figures.waits][2:] == ["an executor", "the driver"]
    assert all(len(each.produce_ms) == len(each.read_ms) == PARTITIONS for each in figures.waits)
    # Every broker served on: what waits is bounded by the time in which one of them is noticed to be dead.
    assert max(max(each.produce_ms.values()) for each in figures.waits) < LONGEST_WAIT_MS
    assert figures.facts == {
        "brokers adopted after the executor's death": "3 of 3",
        "brokers adopted by the restarted driver": "3 of 3",
        "controller epoch": "1 → 2",
        "leaders in the Delta table": "as in ZooKeeper",
        "processes left": "0",
    }

"""The drill is the proof that a driver's death costs nothing: it must pass, as a user runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.live
@pytest.mark.spark
@pytest.mark.timeout(420)
def test_the_drill_loses_nothing_and_leaves_nothing() -> None:
    ran = subprocess.run(
        [sys.executable, "jobs/failover_drill.py"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=400
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "the drill passed: nothing lost, nothing doubled" in ran.stdout
    assert "brokers adopted by the restarted driver: 3 of 3" in ran.stdout
    assert "leaders in the Delta table: as in ZooKeeper" in ran.stdout
    assert "processes left: 0" in ran.stdout

"""Seeds that nobody has tried, others in each run: pytest's header says where they begin, and how to run them again.

One that fails here has found a bug: keep it as a test of its own (test_simulator.py).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from spark_replication.sim.faults import DEFAULT
from tests.conftest import FRESH_SEEDS_FROM

SHARES = 8
SEEDS = 250  # of each share: all of them take one core about 5 minutes


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize(("share", "profile"), [*((share, DEFAULT) for share in range(SHARES)), (SHARES, "queries")])
def test_fresh_seeds_break_nothing(share: int, profile: str) -> None:
    first = int(os.environ[FRESH_SEEDS_FROM]) + share * SEEDS
    # It takes what the tests beside it leave of the processors: those have deadlines.
    command = ["nice", sys.executable, "-m", "spark_replication", "sim", "--json", "--jobs", "1"]
    command += ["--profile", profile, "--seeds", f"{first}..{first + SEEDS - 1}"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode in (0, 1), ended.stderr
    report = json.loads(ended.stdout)
    assert [f"{failed['replay']}: {failed['what']}" for failed in report["failures"]] == []
    assert report["seeds"] == SEEDS

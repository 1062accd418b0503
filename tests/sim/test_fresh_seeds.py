"""Seeds that nobody has tried, others in each run: pytest's header says where they begin, and how to run them again.

One that fails here has found a bug: keep it as a test of its own (test_simulator.py).
"""

from __future__ import annotations

import json
import os
import resource
import sys
from typing import Any

import pytest

from spark_replication.sim.faults import DEFAULT
from tests.conftest import FRESH_SEEDS_FROM
from tests.sim.leftover import run_last

SOME = 200
SHARES = 8
SEEDS = 250  # of each share: all of them take one core about 5 minutes
STEP = 50
# A share begins no further step once it has had a core for so long. A slow machine tries fewer seeds, not for longer.
SHARE_S = 60.0


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_some_fresh_seeds_break_nothing() -> None:
    breaks_nothing(DEFAULT, int(os.environ[FRESH_SEEDS_FROM]), SOME)


@pytest.mark.trust
@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(
    ("share", "profile"),
    [
        *((share, DEFAULT) for share in range(SHARES)),
        (SHARES, "queries"),
        (SHARES + 1, "guardians"),
        (SHARES + 2, "groups"),
        (SHARES + 3, "tables"),
    ],
)
def test_fresh_seeds_break_nothing(share: int, profile: str) -> None:
    breaks_nothing(profile, int(os.environ[FRESH_SEEDS_FROM]) + SOME + share * SEEDS, SEEDS)


def breaks_nothing(profile: str, first: int, seeds: int) -> None:
    began_s = children_s()
    for start in range(first, first + seeds, STEP):
        report = tried(profile, start)
        assert [f"{failed['replay']}: {failed['what']}" for failed in report["failures"]] == []
        assert report["seeds"] == STEP
        if children_s() - began_s > SHARE_S:
            break


def tried(profile: str, start: int) -> Any:
    command = [sys.executable, "-m", "spark_replication", "sim", "--json", "--jobs", "1"]
    command += ["--profile", profile, "--seeds", f"{start}..{start + STEP - 1}"]
    ended = run_last(command)
    assert ended.returncode in (0, 1), ended.stderr
    return json.loads(ended.stdout)


def children_s() -> float:
    """The processor time of the processes that this one has started, once they have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime

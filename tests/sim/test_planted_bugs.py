"""Each mistake of one line is found, by the name of the invariant that it breaks."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import spark_replication
from tests.sim import planted as simulator
from tests.sim.leftover import run_last
from tests.sim.planted_bugs import PLANTED_BUGS, TO_BE_FOUND_AGAIN, PlantedBug

PACKAGE = Path(spark_replication.__file__).parent
SEEDS = 600  # from the one on that found it last
TO_BE_FOUND = pytest.mark.skip(reason="its seed is to be found again (TO_BE_FOUND_AGAIN)")


@pytest.mark.trust
@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize(
    "planted",
    [
        pytest.param(each, id=each.name, marks=[TO_BE_FOUND] if each.name in TO_BE_FOUND_AGAIN else [])
        for each in PLANTED_BUGS
    ],
)
def test_a_planted_bug_is_found(planted: PlantedBug) -> None:
    command = [sys.executable, "-m", simulator.__name__, json.dumps(planted.places)]
    command += ["--first-failure", "--json", "--jobs", "1", "--profile", planted.profile]
    command += ["--seeds", f"{planted.seed}..{planted.seed + SEEDS - 1}"]
    ended = run_last(command)
    assert ended.returncode == 1, ended.stderr or f"nothing was found in {SEEDS} seeds"
    (found,) = json.loads(ended.stdout)["failures"]
    assert found["invariant"] in planted.invariants, found["replay"]


@pytest.mark.parametrize("planted", PLANTED_BUGS, ids=[planted.name for planted in PLANTED_BUGS])
def test_the_line_of_a_planted_bug_is_there_once(planted: PlantedBug) -> None:
    for file, line, _ in planted.places:
        assert (PACKAGE / file).read_text().count(line) == 1

"""Each mistake of one line is found, by the name of the invariant that it breaks, or by a test."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import spark_replication
from tests.sim import planted as simulator
from tests.sim.leftover import run_last
from tests.sim.planted_bugs import FOUND_BY, PLANTED_BUGS, PlantedBug

PACKAGE = Path(spark_replication.__file__).parent
SEEDS = 600  # from the one on that found it last
UNIT = Path(__file__).parent.parent / "unit"


@pytest.mark.trust
@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize(
    "planted", [pytest.param(each, id=each.name) for each in PLANTED_BUGS if each.name not in FOUND_BY]
)
def test_a_planted_bug_is_found(planted: PlantedBug) -> None:
    command = [sys.executable, "-m", simulator.__name__, json.dumps(planted.places)]
    command += ["--first-failure", "--json", "--jobs", "1", "--profile", planted.profile]
    command += ["--seeds", f"{planted.seed}..{planted.seed + SEEDS - 1}"]
    ended = run_last(command)
    assert ended.returncode == 1, ended.stderr or f"nothing was found in {SEEDS} seeds"
    (found,) = json.loads(ended.stdout)["failures"]
    assert found["invariant"] in planted.invariants, found["replay"]


@pytest.mark.slow
@pytest.mark.trust
@pytest.mark.parametrize(
    "planted", [pytest.param(each, id=each.name) for each in PLANTED_BUGS if each.name in FOUND_BY]
)
def test_a_planted_bug_that_few_seeds_find_is_found_by_a_test(planted: PlantedBug) -> None:
    file = UNIT / FOUND_BY[planted.name]
    whole = run_last([sys.executable, "-m", simulator.__name__, "[]", "--test", str(file)])
    assert whole.returncode == pytest.ExitCode.OK, whole.stdout
    ended = run_last([sys.executable, "-m", simulator.__name__, json.dumps(planted.places), "--test", str(file)])
    assert ended.returncode == pytest.ExitCode.TESTS_FAILED, ended.stdout


def test_what_a_test_finds_is_a_planted_bug() -> None:
    assert FOUND_BY.keys() <= {planted.name for planted in PLANTED_BUGS}


@pytest.mark.parametrize("planted", PLANTED_BUGS, ids=[planted.name for planted in PLANTED_BUGS])
def test_the_line_of_a_planted_bug_is_there_once(planted: PlantedBug) -> None:
    for file, line, _ in planted.places:
        assert (PACKAGE / file).read_text().count(line) == 1

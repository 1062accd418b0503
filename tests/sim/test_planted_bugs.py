"""Each mistake of one line is found, by the name of the invariant that it breaks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import spark_replication
from tests.sim.planted_bugs import PLANTED_BUGS, PlantedBug

PACKAGE = Path(spark_replication.__file__).parent
SEEDS = 3_000


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("planted", PLANTED_BUGS, ids=[planted.name for planted in PLANTED_BUGS])
def test_a_planted_bug_is_found(planted: PlantedBug, tmp_path: Path) -> None:
    # With what Python has compiled of it, but not what another process is writing of that.
    shutil.copytree(PACKAGE, tmp_path / PACKAGE.name, ignore=shutil.ignore_patterns("*.pyc.*"))
    plant(planted, tmp_path / PACKAGE.name)
    # It takes what the tests beside it leave of the processors: those have deadlines.
    command = ["nice", sys.executable, "-m", PACKAGE.name, "sim", "--first-failure", "--json", "--jobs", "1"]
    command += ["--profile", planted.profile, "--seeds", f"{planted.seed}..{planted.seed + SEEDS - 1}"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 1, ended.stderr or f"nothing was found in {SEEDS} seeds"
    (found,) = json.loads(ended.stdout)["failures"]
    assert found["invariant"] in planted.invariants, found["replay"]


@pytest.mark.parametrize("planted", PLANTED_BUGS, ids=[planted.name for planted in PLANTED_BUGS])
def test_the_line_of_a_planted_bug_is_there_once(planted: PlantedBug) -> None:
    for file, line, _ in planted.places:
        assert (PACKAGE / file).read_text().count(line) == 1


def plant(planted: PlantedBug, package: Path) -> None:
    for name, line, becomes in planted.places:
        file = package / name
        before = file.read_text()
        assert before.count(line) == 1, f"{name} does not hold this once: {line}"
        file.write_text(before.replace(line, becomes))

"""The simulator itself: it finds nothing in what is there, tells one story a seed, and says how to see it again."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from spark_replication.admin.cli.main import cli
from spark_replication.admin.cli.sim_command import ELECTIONS
from spark_replication.core.replica import replica
from spark_replication.sim.faults import KINDS, MIXES, profile_of
from spark_replication.sim.run import run_seed, run_seeds, shrink

FEW = range(1, 19)  # twice each mix


def test_nothing_is_found() -> None:
    report = run_seeds(FEW, jobs=1)
    assert [failed.sentence() for failed in report.failures] == []
    assert report.events_min >= 300
    assert report.epochs_min >= 3


@pytest.mark.parametrize("profile", sorted(MIXES))
def test_nothing_is_found_with_any_mix_of_faults(profile: str) -> None:
    report = run_seeds(range(1, 5), profile, jobs=1)
    assert [failed.sentence(profile) for failed in report.failures] == []


def test_a_drawn_mix_is_its_seeds_own() -> None:
    drawn = [profile_of("drawn", seed) for seed in range(20)]
    assert drawn == [profile_of("drawn", seed) for seed in range(20)]
    heavy = [{kind for kind, weight in mix.weights.items() if weight == 30 * KINDS[kind]} for mix in drawn]
    assert {len(kinds) for kinds in heavy} == {2, 3, 4}
    assert len({frozenset(kinds) for kinds in heavy}) == 20


def test_one_seed_is_one_story() -> None:
    first, second = run_seed(11, traced=True), run_seed(11, traced=True)
    assert first.trace == second.trace
    assert first.counts == second.counts
    assert run_seed(12, traced=True).trace != first.trace


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_fault_and_every_election_occurs() -> None:
    report = run_seeds(range(1, 401))
    assert [failed.sentence() for failed in report.failures] == []
    counted = {f"fault_{kind}" for kind in KINDS} | {f"elected_{kind}" for kind in ELECTIONS}
    assert {name for name in counted if not report.counts[name]} == set()


@pytest.fixture
def _acknowledges_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that ignores its followers."""

    def advanced(leading: replica.Leading, log_end: int) -> replica.Leading:
        return msgspec.structs.replace(leading, high_watermark=max(log_end, leading.high_watermark))

    monkeypatch.setattr(replica, "advanced", advanced)


@pytest.mark.usefixtures("_acknowledges_alone")
def test_a_failure_says_in_one_line_how_to_see_it_again() -> None:
    result = CliRunner().invoke(cli, ["sim", "--seed", "1"])
    assert result.exit_code == 1
    sentence = result.output.splitlines()[0]
    assert sentence.startswith("seed=1 step=")
    assert sentence.endswith("broke isr_member_holds_all_committed; replay: spark-replication sim --seed 1")


@pytest.mark.usefixtures("_acknowledges_alone")
def test_a_shrink_breaks_the_same_with_fewer_faults() -> None:
    found = run_seed(1)
    smallest = shrink(found)
    assert found.failure is not None
    assert smallest.failure is not None
    assert smallest.failure.invariant == found.failure.invariant
    assert len(smallest.faults) < len(found.faults)


def test_json_counts_what_occurred() -> None:
    result = CliRunner().invoke(cli, ["sim", "--seeds", "1..2", "--json"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.output)
    assert told["seeds"] == 2
    assert told["faults"].keys() == KINDS.keys()
    assert tuple(told["elections"]) == ELECTIONS
    assert told["failures"] == []


def test_a_trace_is_a_line_an_event() -> None:
    result = CliRunner().invoke(cli, ["sim", "--seed", "3", "--trace"])
    assert result.exit_code == 0, result.output
    assert len(result.output.splitlines()) >= run_seed(3).events


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        ["--seeds", "1..2", "--seed", "1"],
        ["--seeds", "5..2"],
        ["--seeds", "a..b"],
        ["--seeds", "1..2", "--trace"],
        ["--seed", "1", "--profile", "none"],
    ],
)
def test_wrong_usage_ends_with_2(wrong: list[str], tmp_path: Path) -> None:
    assert CliRunner().invoke(cli, ["sim", *wrong]).exit_code == 2

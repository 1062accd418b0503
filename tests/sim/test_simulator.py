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
from spark_replication.sim.faults import DEFAULT, FAULTS, KINDS, MIXES, profile_of
from spark_replication.sim.run import run_seed, run_seeds, shrink

FEW = range(1, 12)  # once each mix: 2,000 are run with all tests


@pytest.mark.slow
def test_nothing_is_found() -> None:
    report = run_seeds(FEW, jobs=1)
    assert [failed.sentence() for failed in report.failures] == []
    assert report.events_min >= 300
    assert report.epochs_min >= 3


@pytest.mark.parametrize("seeds", [range(1, 2), pytest.param(range(2, 6), marks=pytest.mark.slow)])
@pytest.mark.parametrize("profile", sorted(MIXES))
def test_nothing_is_found_with_any_mix_of_faults(profile: str, seeds: range) -> None:
    report = run_seeds(seeds, profile, jobs=1)
    assert [failed.sentence(profile) for failed in report.failures] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "profile"),
    [
        (874, DEFAULT),  # a leader that wrote over a state which was removed and made again at the version that it knew
        (923602, DEFAULT),  # a recovery that began while nobody lived, and answers that came while the controller wrote
        (
            1618036375,
            DEFAULT,
        ),  # records that only a log of an earlier epoch still held: that one gives way
        (2236076732, DEFAULT),  # a reassignment that was to be completed together with one that met another write
        (2645763540, DEFAULT),  # news of the simulator's that were deleted although nobody had heard of them
        (915972247, DEFAULT),  # garbage that the simulator's controller met, and was told of only if it was there still
        (577217113, DEFAULT),  # a command that knew nothing of what its leader had written, where it could not be read
        (3141619752, DEFAULT),  # a dead process's registration that the simulator took although another had come since
        (943162, DEFAULT),  # a throttled copy that took longer than the run waited for it
        (915554, DEFAULT),  # a follower's cut that was not on the disk
        (5810073, DEFAULT),  # retention that left a member of the ISR with an empty log
        (1680466358, DEFAULT),  # a disk that failed below a partition whose leaderAndISR could not be read
        (1680466375, DEFAULT),  # a read of a leaderAndISR that was taken in after its topic had been made again
        (1680466776, DEFAULT),  # a partition that a full disk could not open, and that nobody commanded again
        (349, "cuts"),
        (1618759623, DEFAULT),
        (1618759754, DEFAULT),
        (1050954680, DEFAULT),  # a full disk of the only one that could lead, which nobody tried again
        (125740695, DEFAULT),
        (1050954779, DEFAULT),  # a controller of the simulator that met garbage after it had been mended
        (225, DEFAULT),  # records below its leader's log start that a follower kept though they part from the leader's
        (155, "network"),  # the same, of one that ended where its leader's log begins
        (1000000550, DEFAULT),  # a leadership of a registration that was over when its reading came
        (1680466639, DEFAULT),  # a retry of a batch that retention had removed before the present history began
        (1414218550, DEFAULT),  # a low-water mark of the mirror that rose over what nobody could read
        (374964676, DEFAULT),  # the same
        (1362675912, DEFAULT),  # a process killed before it could tell of a sync that had failed
        (1414218349, DEFAULT),  # a deposed leader that a command from before its own last ISR write brought back
        (2718287304, DEFAULT),  # one whose disk was well again, but had been so before the last leader was lost
        (4067632359, DEFAULT),  # an empty log that every command put aside, so that its replica was never in sync
        (1610172607, DEFAULT),  # a process of the simulator that went on early, and took a fetch before its hello
        (211, DEFAULT),  # a batch refused over one connection, stored over another, renumbered over the first
        (1135367723, DEFAULT),  # a broker whose disk ended its process as it stopped
        (5121, "queries"),  # attempts side by side that placed a task's rows by other numbers of partitions
        (5401, "queries"),  # a request to reassign a partition that was removed meanwhile
        (2897520409, "queries"),  # a topic of which brokers told without the partitions that were to be made again
        (25232, "queries"),  # likewise, where no other partition of the topic could be read
        (303903, DEFAULT),  # a partition that was made again, and then missing in what had been told of all before
        (467, "admin"),  # a state that was removed, and made again just as its leader of before changed it
        (100589, "queries"),  # a partition that went once the query had nothing more to do
        (60194, "queries"),  # an answer that came once an attempt had heard that it is fenced
        (5007, "guardians"),  # a driver that commanded no more, and submitted guardians
        (12666, "guardians"),  # a broker that nobody needed, in the place of one that was
        (4162380648, "guardians"),  # a broker on a host that was looked at when another driver had not made it yet
        (2897520661, "guardians"),  # brokers that began side by side on a host, of which one was remembered
    ],
)
def test_nothing_is_found_where_something_was_found_once(seed: int, profile: str) -> None:
    assert run_seed(seed, profile).failure is None


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
@pytest.mark.timeout(1_800)
def test_every_fault_and_every_election_occurs() -> None:
    unseen = {f"fault_{kind}" for kind in FAULTS} | {f"elected_{kind}" for kind in ELECTIONS}
    looked_at = [(range(first, first + 40), DEFAULT) for first in range(1, 401, 40)]
    apart = [
        (range(1, 21), "queries"),
        (range(1, 41), "guardians"),
        (range(1, 21), "groups"),
        (range(1, 21), "tables"),
    ]  # what no default mix has
    for seeds, profile in [*apart, *looked_at]:
        report = run_seeds(seeds, profile)
        assert [failed.sentence() for failed in report.failures] == []
        unseen -= {name for name in unseen if report.counts[name]}
        if not unseen:
            return
    assert unseen == set()


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
    assert set(told["faults"]) == set(FAULTS)
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

"""The runner is trusted with the rules: it must fail where a rule does not hold, and refuse what it does not know."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from spark_replication.sim.scenarios.expectation import BadScenario
from spark_replication.sim.scenarios.scenario import Result, files, run_file

SCENARIOS = Path(__file__).parents[2] / "scenarios"

GOOD = """
name: the first live ISR member leads
brokers: [1, 2]
topics: {foo: {partitions: {0: {replicas: [1, 2], isr: [1, 2], leader: 1}}}}
steps:
  - broker_down: 1
    expect: {foo-0: {leader: 2}}
"""
LOG = """
name: an append is at the end
log: {leader: 1, leader_epoch: 1, replicas: [1, 2], isr: [1, 2]}
steps:
  - append: {records: 2, as: a}
    expect: {log_end: 2, acked: []}
"""


def results(tmp_path: Path, text: str) -> list[Result]:
    path = tmp_path / "scenario.yaml"
    path.write_text(text)
    return list(run_file(path))


@pytest.mark.parametrize("path", sorted(SCENARIOS.rglob("*.yaml")), ids=lambda path: path.stem)
def test_every_scenario_of_the_rules_holds(path: Path) -> None:
    failed = [str(result) for result in run_file(path) if result.failure is not None]
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("text", [GOOD, LOG])
def test_what_holds_passes(tmp_path: Path, text: str) -> None:
    assert [result.failure for result in results(tmp_path, text)] == [None]


@pytest.mark.parametrize(
    ("text", "replaced", "by", "found"),
    [
        (GOOD, "leader: 2", "leader: 1", 2),
        (GOOD, "leader: 2", "isr: [1, 2]", [2]),
        (GOOD, "leader: 2", "leader: {one_of: [1, 3]}", 2),
        (GOOD, "leader: 2", "leader: {not: 2}", 2),
        (GOOD, "leader: 2", "replicas: {size: 3}", (1, 2)),
        (GOOD, "foo-0: {leader: 2}", "writes_at_most: 0", 1),
        (GOOD, "foo-0: {leader: 2}", "not_sent: [{to: 2, kind: leader_and_isr}]", None),
        (GOOD, "foo-0: {leader: 2}", "sent: [{to: 1, kind: leader_and_isr}]", None),
        (GOOD, "foo-0: {leader: 2}", "error: any", "none"),
        (LOG, "log_end: 2", "log_end: 3", 2),
        (LOG, "acked: []", "acked: [a]", []),
        (LOG, "log_end: 2", "identical: false", None),
    ],
)
def test_what_does_not_hold_fails_with_what_was_found(
    tmp_path: Path, text: str, replaced: str, by: str, found: object
) -> None:
    (result,) = results(tmp_path, text.replace(replaced, by))
    assert result.failure is not None
    assert result.failure.step == 1
    assert found is None or result.failure.found == found


@pytest.mark.parametrize(
    ("text", "replaced", "by", "named"),
    [
        (GOOD, "leader: 2", "laeder: 2", "laeder"),
        (GOOD, "foo-0: {leader", "fo-0: {leader", "fo-0"),
        (GOOD, "broker_down: 1", "broker_dwon: 1", "broker_dwon"),
        (GOOD, "broker_down: 1", "broker_down: 7", "7"),
        (GOOD, "broker_down: 1", "reassign: [foo-0]", "reassign"),
        (GOOD, "broker_down: 1", "cancel_reassignment: foo-0", "cancel_reassignment"),
        (GOOD, "broker_down: 1", "elect: {type: prefered}", "prefered"),
        (GOOD, "broker_down: 1", "refuse: {broker: 2, partitions: {foo-0: NOT_READY}}", "was sent no LeaderAndIsr"),
        (GOOD, "broker_down: 1", "stale_isr: {foo-0: {isr: [2], version: 9}}", "cannot leave the ISR by itself"),
        (GOOD, "broker_down: 1", "stale_isr: {foo-0: {isr: [], epoch: 9}}", "no leader that could write"),
        (GOOD, "brokers: [1, 2]", "brokers: [1, 2]\nbroker: [1]", "broker"),
        (GOOD, "isr: [1, 2]", "isr: [1, 7]", "7"),
        (GOOD, "isr: [1, 2]", "irs: [1, 2]", "irs"),
        (GOOD, "leader: 2}", "leader: {oneof: [2]}}", "oneof"),
        (GOOD, "brokers: [1, 2]", "brokers: [1, 2]\nconfig: {min.insync.replica: 1}", "min.insync.replica"),
        (GOOD, "name: the", "title: the", "title"),
        (GOOD, "foo-0: {leader: 2}", "foo-0@9: {state: online}", "9"),
        (GOOD, "foo-0: {leader: 2}", "sent: [{to: 2, kind: leader_and_irs}]", "leader_and_irs"),
        (GOOD, "foo-0: {leader: 2}", "metrics: {offline: 0}", "offline"),
        (GOOD, "    expect", "    expct", "expct"),
        (LOG, "log_end: 2", "log_ned: 2", "log_ned"),
        (LOG, "as: a", "az: a", "az"),
        (LOG, "isr: [1, 2]", "isr: [1, 3]", "3"),
        (LOG, "append: {records: 2, as: a}", "isr_answer: maybe", "maybe"),
        (LOG, "records: 2", "records: two", "two"),
        (LOG, "append: {records: 2, as: a}", "become_leader: {replica: 1, epoch: 2, start_at: ten}", "ten"),
        (LOG, "append: {records: 2, as: a}", "become_follower: {replica: 1, leader: 3, epoch: 2}", "3"),
    ],
)
def test_a_misspelt_file_is_an_error_that_names_it(
    tmp_path: Path, text: str, replaced: str, by: str, named: str
) -> None:
    assert replaced in text
    with pytest.raises(BadScenario, match=named):
        results(tmp_path, text.replace(replaced, by))


def test_a_field_expected_of_a_partition_that_is_a_set_takes_a_list(tmp_path: Path) -> None:
    with pytest.raises(BadScenario, match="write a list"):
        results(tmp_path, GOOD.replace("leader: 2", "isr: 2"))


def test_nothing_to_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadScenario, match=r"no \.yaml"):
        list(files([tmp_path]))
    with pytest.raises(BadScenario, match="not there"):
        list(files([tmp_path / "none.yaml"]))
    with pytest.raises(BadScenario, match="no scenario"):
        results(tmp_path, "")
    with pytest.raises(BadScenario, match="no YAML"):
        results(tmp_path, "a: [")
    with pytest.raises(BadScenario, match="twice"):
        results(tmp_path, GOOD + "steps: []\n")


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        (GOOD, 0, "1 passed, 0 failed"),
        (GOOD.replace("leader: 2", "leader: 1"), 1, "0 passed, 1 failed"),
        (GOOD.replace("leader: 2", "laeder: 2"), 2, "laeder"),
    ],
)
def test_the_command_says_it_with_its_exit_code(tmp_path: Path, text: str, code: int, says: str) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(text)
    command = [sys.executable, "-m", "spark_replication", "scenario", str(path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == code
    assert says in ran.stdout + ran.stderr

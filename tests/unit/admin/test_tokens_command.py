"""`spark-replication tokens`: how the cluster's file is changed, and when a change of it is said to hold."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_replication.admin.cli import tokens_command
from spark_replication.admin.token_files import tokens_in
from spark_replication.errors import NotReady
from spark_replication.messages.observing import DescribeTokens, KnownTokens
from spark_replication.process.files import changed_alone
from tests.unit.admin.conftest import Run
from tests.unit.client.fake_cluster import FakeCluster

ALICE, MALLORY = "alice the-secret-of-alice\n", "mallory the-secret-of-mallory\n"
BOTH = f"# of the shop\n{ALICE}{MALLORY}"


@pytest.fixture(autouse=True)
def _careless_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "tokens"
    found.touch(mode=0o600)
    found.write_text(BOTH)
    return found


NOT_THERE = (
    "does not hold there: it has not read such a file: is FILE changed on its host, too, and with the same salt?"
)


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_token_is_made_for_whoever_has_none(run: Run, tmp_path: Path) -> None:
    """And the file, if it is the first."""
    file, own = tmp_path / "tokens", tmp_path / "alice"
    for _ in range(2):
        ran = run("tokens", "add", file, "alice", "--client-file", own)
        assert (ran.exit, ran.out) == (0, "")
        assert ran.err == "written. With -b the controller and the brokers are asked whether it holds there\n"
        assert [mode_of(path) for path in (file, own)] == [0o600, 0o600]
        (token,), (mine,) = tokens_in(file), tokens_in(own)
        assert (token.name, token.mark) == ("alice", mine.mark)
        assert len(token.bearer) > 40
    assert file.read_text() == own.read_text(), "who is in it already is not added again"


def test_a_token_that_there_is_goes_below_the_others(run: Run, file: Path, tmp_path: Path) -> None:
    own = tmp_path / "alice"
    own.touch(mode=0o600)
    own.write_text("alice another-secret-of-alice\n")
    assert run("tokens", "add", file, "alice", "--client-file", own).exit == 0
    assert file.read_text() == f"{BOTH}alice another-secret-of-alice\n"
    assert run("tokens", "remove", file, "alice", "--but-newest").exit == 0
    assert file.read_text() == f"# of the shop\n{MALLORY}alice another-secret-of-alice\n"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (MALLORY, "is to have one line, with a token of alice: it has another"),
        (f"{ALICE}{ALICE}", "is to have one line"),
        ("alice short\n", "has fewer than 16 characters"),
    ],
)
def test_a_clients_file_that_will_not_do_changes_nothing(
    run: Run, file: Path, tmp_path: Path, content: str, why: str
) -> None:
    own = tmp_path / "alice"
    own.touch(mode=0o600)
    own.write_text(content)
    ran = run("tokens", "add", file, "alice", "--client-file", own)
    assert ran.exit == 1
    assert why in ran.err
    assert file.read_text() == BOTH


def test_who_is_removed_is_gone_and_all_else_stays(run: Run, file: Path) -> None:
    assert run("tokens", "remove", file, "mallory").exit == 0
    assert (file.read_text(), mode_of(file)) == (f"# of the shop\n{ALICE}", 0o600)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("bob",), "has not a token of bob: `spark-replication tokens list` says whose it has"),
        (("alice", "--but-newest"), "has not more than one token of alice"),
    ],
)
def test_who_is_not_there_is_not_removed(run: Run, file: Path, words: tuple[str, ...], why: str) -> None:
    ran = run("tokens", "remove", file, *words)
    assert ran.exit == 1
    assert why in ran.err
    assert file.read_text() == BOTH


def test_the_last_one_stays(run: Run, file: Path) -> None:
    """Whoever reads a file without any goes on with what it has read before."""
    file.write_text(f"# of the shop\n{MALLORY}")
    ran = run("tokens", "remove", file, "mallory")
    assert ran.exit == 1
    assert "the last token" in ran.err
    assert file.read_text() == f"# of the shop\n{MALLORY}"


@pytest.mark.parametrize("words", [("list",), ("remove", "mallory"), ("add", "alice")])
def test_a_file_that_is_open_to_everybody_is_not_used(run: Run, file: Path, tmp_path: Path, words: list[str]) -> None:
    """What is in it may be known: to change its mode is for a person who knows that."""
    file.chmod(0o644)
    own = ("--client-file", tmp_path / "own") if words[0] == "add" else ()
    ran = run("tokens", words[0], file, *words[1:], *own)
    assert ran.exit == 1
    assert "is open to every user of this host: chmod o-rwx" in ran.err
    assert (file.read_text(), mode_of(file)) == (BOTH, 0o644)


def test_two_at_a_time_do_not_undo_each_other(run: Run, file: Path) -> None:
    with changed_alone(file):
        ran = run("tokens", "remove", file, "mallory")
    assert ran.exit == 1
    assert "another command changes a file in" in ran.err
    assert file.read_text() == BOTH


def test_what_cannot_be_written_is_as_it_was(run: Run, tmp_path: Path) -> None:
    ran = run("tokens", "add", tmp_path / "none" / "tokens", "alice", "--client-file", tmp_path / "alice")
    assert ran.exit == 1
    assert "cannot be changed, and is as it was" in ran.err
    assert [*tmp_path.iterdir()] == []


def test_it_is_said_to_hold_once_it_does_everywhere(run: Run, file: Path, cluster: FakeCluster) -> None:
    (_, mallory) = tokens_in(file)
    asked: list[int] = []

    def known(broker: int, question: DescribeTokens) -> KnownTokens:
        assert question.marks == (mallory.mark,)
        asked.append(broker)
        if broker == 2 and asked.count(2) == 1:
            raise NotReady("this broker is starting")
        is_late = broker == 1 and asked.count(1) <= 3  # as the controller, too
        return KnownTokens(marks=question.marks if is_late else (), trouble="")

    cluster.known_tokens = known
    ran = run("tokens", "remove", file, "mallory", "-b", cluster.bootstrap)
    assert (ran.exit, ran.out, ran.err) == (0, "holds everywhere: controller, broker 1, broker 2\n", "")
    assert asked.count(1) > 3


def test_where_it_does_not_hold_in_time_is_said(run: Run, file: Path, cluster: FakeCluster, tmp_path: Path) -> None:
    def known(broker: int, question: DescribeTokens) -> KnownTokens:
        trouble = "tokens is open to every user" if broker == 2 else ""
        return KnownTokens(marks=(), trouble=trouble)

    cluster.known_tokens = known
    added = ("tokens", "add", file, "bob", "--client-file", tmp_path / "bob", "-b", cluster.bootstrap, "--within", 0)
    ran = run(*added)
    assert (ran.exit, ran.out) == (1, "")
    assert ran.err.splitlines() == [
        f"error: controller: {NOT_THERE}",
        f"error: broker 1: {NOT_THERE}",
        "error: broker 2: does not hold there: tokens is open to every user",
    ]


def test_the_list_says_whose_and_where(run: Run, file: Path, cluster: FakeCluster) -> None:
    alice, mallory = tokens_in(file)
    rows = [
        {"principal": each.name, "kind": "in the clear", "mark": each.mark[: tokens_command.MARK_SHOWN]}
        for each in (alice, mallory)
    ]
    ran = run("tokens", "list", file, "--format=json")
    assert (ran.exit, ran.err) == (0, "")
    assert json.loads(ran.out) == [{**row, "holds_at": [], "not_at": []} for row in rows]

    def known(broker: int, question: DescribeTokens) -> KnownTokens:
        if broker == 1:
            return KnownTokens(marks=question.marks, trouble="")
        return KnownTokens(marks=(alice.mark,), trouble="broker-token is empty")

    cluster.known_tokens = known
    ran = run("tokens", "list", file, "-b", cluster.bootstrap, "--format=json")
    assert json.loads(ran.out) == [
        {**rows[0], "holds_at": ["controller", "broker 1", "broker 2"], "not_at": []},
        {**rows[1], "holds_at": ["controller", "broker 1"], "not_at": ["broker 2"]},
    ]
    assert ran.err == "error: broker 2: broker-token is empty\n"
    assert "the-secret" not in run("tokens", "list", file, "-b", cluster.bootstrap).out

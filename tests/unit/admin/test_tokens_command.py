"""`spark-replication tokens`: how the cluster's file is changed, and when a change of it is said to hold."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_replication.admin.cli import tokens_command
from spark_replication.admin.token_files import tokens_in
from spark_replication.errors import NotReady
from spark_replication.messages.observing import DescribeTokens, KnownTokens
from spark_replication.messages.replication import COST_MIN, Salt
from spark_replication.process.files import changed_alone
from spark_replication.transport.proofs.token import Token
from spark_replication.transport.proofs.tokens import read_tokens
from spark_replication.transport.proofs.verifier import Verifier
from tests.printed import printed
from tests.unit.admin.conftest import Run
from tests.unit.client.fake_cluster import FakeCluster

ALICE, MALLORY = "alice the-secret-of-alice\n", "mallory the-secret-of-mallory\n"
SALT = Salt(value=b"s" * 16, cost=COST_MIN)
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


def test_what_the_guide_prints_of_salted_tokens(
    run: Run, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = []
    for line in printed("security", "spark-replication tokens add tokens alice --client-file alice.token --salted"):
        program, *words = shlex.split(line, comments=True)
        ran = run(*words)
        assert (program, ran.exit) == ("spark-replication", 0), (line, ran)
        said.append(ran.out)
    assert said[-1].count("salted") == 3
    assert [type(token) for token in tokens_in(file)] == [Verifier] * 3


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
        assert isinstance(token, Token)
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


# Verifiers in the place of tokens


def kinds(file: Path) -> list[tuple[str, type]]:
    return [(token.name, type(token)) for token in tokens_in(file)]


def lets_in(file: Path, client_file: Path) -> bool:
    """Whether the file knows the token of that one."""
    (token,) = tokens_in(client_file)
    assert isinstance(token, Token)
    known = read_tokens("security.token.file", str(file), "client")
    assert known is not None
    found = known.shown([token.bearer])
    return found is not None and found.name == token.name


def test_a_salted_token_is_in_its_owners_file_alone(run: Run, tmp_path: Path) -> None:
    file, alice, bob = tmp_path / "tokens", tmp_path / "alice", tmp_path / "bob"
    for name, own in (("alice", alice), ("bob", bob), ("alice", alice)):
        assert run("tokens", "add", file, name, "--client-file", own, "--salted").exit == 0
    assert kinds(file) == [("alice", Verifier), ("bob", Verifier)], "who is in it already is not added again"
    assert not any(own.read_text().split()[1] in file.read_text() for own in (alice, bob))
    assert [mode_of(path) for path in (file, alice, bob)] == [0o600] * 3
    assert len({token.salt for token in tokens_in(file) if isinstance(token, Verifier)}) == 1
    assert [lets_in(file, own) for own in (alice, bob)] == [True, True]
    assert run("tokens", "add", file, "alice", "--client-file", alice).exit == 0
    assert kinds(file) == [("alice", Verifier), ("bob", Verifier)], "a token that is salted is not written in the clear"


def test_a_token_in_the_clear_that_is_added_salted_is_there_once(run: Run, file: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.touch(mode=0o600)
    own.write_text(MALLORY)
    assert run("tokens", "add", file, "mallory", "--client-file", own, "--salted").exit == 0
    assert kinds(file) == [("alice", Token), ("mallory", Verifier)]
    assert lets_in(file, own)


def test_a_clients_file_with_a_verifier_is_none(run: Run, file: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.touch(mode=0o600)
    own.write_text(f"alice {Verifier.of(Token('the-secret-of-alice', 'alice'), SALT).text}\n")
    ran = run("tokens", "add", file, "alice", "--client-file", own)
    assert ran.exit == 1
    assert "is to have one line, with a token of alice: it has another" in ran.err
    assert file.read_text() == BOTH


def test_all_tokens_of_a_file_are_salted_in_their_place(run: Run, file: Path, tmp_path: Path) -> None:
    file.write_text(f"{BOTH}the-secret-of-nobody\n")
    file.chmod(0o640)
    inode = file.stat().st_ino
    ran = run("tokens", "salt", file)
    assert (ran.exit, ran.out) == (0, "")
    assert mode_of(file) == 0o640
    assert file.stat().st_ino != inode, "whoever reads it meanwhile reads what was, whole"
    lines = file.read_text().splitlines()
    assert lines[0] == "# of the shop"
    assert kinds(file) == [("alice", Verifier), ("mallory", Verifier), ("client", Verifier)]
    assert "the-secret" not in file.read_text()
    for name, line in (("alice", ALICE), ("client", "the-secret-of-nobody\n")):
        own = tmp_path / name
        own.touch(mode=0o600)
        own.write_text(line)
        assert lets_in(file, own)
    ran = run("tokens", "salt", file)
    assert ran.exit == 1
    assert "has no token in the clear: nothing is to be done" in ran.err
    assert file.read_text().splitlines() == lines


def test_what_is_salted_later_has_the_salt_that_is_there(run: Run, file: Path, tmp_path: Path) -> None:
    assert run("tokens", "add", file, "bob", "--client-file", tmp_path / "bob", "--salted").exit == 0
    assert kinds(file) == [("alice", Token), ("mallory", Token), ("bob", Verifier)]
    assert run("tokens", "salt", file).exit == 0
    assert len({token.salt for token in tokens_in(file) if isinstance(token, Verifier)}) == 1
    assert run("tokens", "remove", file, "mallory").exit == 0
    assert kinds(file) == [("alice", Verifier), ("bob", Verifier)]


def test_a_mistake_in_a_file_salts_nothing(run: Run, file: Path) -> None:
    file.write_text(f"{ALICE}mallory scrypt-ed25519:ln=14\n")
    ran = run("tokens", "salt", file)
    assert ran.exit == 1
    assert "line 2: the verifier of mallory is not scrypt-ed25519:" in ran.err
    assert file.read_text() == f"{ALICE}mallory scrypt-ed25519:ln=14\n"


def test_the_list_says_which_are_salted(run: Run, file: Path, tmp_path: Path) -> None:
    assert run("tokens", "add", file, "bob", "--client-file", tmp_path / "bob", "--salted").exit == 0
    listed = json.loads(run("tokens", "list", file, "--format=json").out)
    assert [(row["principal"], row["kind"]) for row in listed] == [
        ("alice", "in the clear"),
        ("mallory", "in the clear"),
        ("bob", "salted"),
    ]


@pytest.mark.parametrize(("has", "exit_code"), [(0, 0), (1, 1)])
def test_who_is_removed_here_and_salted_apart_there_is_not_said_to_be_gone(
    run: Run, file: Path, cluster: FakeCluster, has: int, exit_code: int
) -> None:
    """The same token has another mark under another salt."""

    def known(broker: int, question: DescribeTokens) -> KnownTokens:
        assert question.principals == ("mallory",)
        return KnownTokens(marks=(), counts={"mallory": has} if broker == 2 else {}, trouble="")

    cluster.known_tokens = known
    ran = run("tokens", "remove", file, "mallory", "-b", cluster.bootstrap, "--within", 0)
    assert ran.exit == exit_code
    assert ran.err.splitlines() == ([f"error: broker 2: {NOT_THERE}"] if has else [])


def test_a_file_is_said_to_be_salted_once_it_is_everywhere(run: Run, file: Path, cluster: FakeCluster) -> None:
    def known(broker: int, question: DescribeTokens) -> KnownTokens:
        assert len(question.marks) == 2
        return KnownTokens(marks=question.marks if broker == 1 else question.marks[:1], trouble="")

    cluster.known_tokens = known
    ran = run("tokens", "salt", file, "-b", cluster.bootstrap, "--within", 0)
    assert (ran.exit, ran.err.splitlines()) == (1, [f"error: broker 2: {NOT_THERE}"])

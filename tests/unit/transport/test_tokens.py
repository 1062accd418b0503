"""The tokens of a file: several principals, several tokens of one, and what happens when the file changes."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from spark_replication.errors import InvalidConfig
from spark_replication.messages.lane import ClientFrame
from spark_replication.process import files
from spark_replication.transport.proofs import tokens
from spark_replication.transport.proofs.token import Token
from spark_replication.transport.proofs.tokens import Tokens, read_tokens
from spark_replication.transport.proofs.verifier import Known

SETTING = "security.token.file"
HELLO = ClientFrame(name="alice", port=1, nonce=b"n" * 32)
NONCE = b"l" * 32
ONE, TWO, THREE, FOUR = (f"the-secret-number-{number}" for number in (1, 2, 3, 4))
OLD, NEW = ONE, TWO


def read(file: Path) -> Tokens:
    found = read_tokens(SETTING, str(file), "client")
    assert found is not None
    return found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "tokens"
    found.touch(mode=0o600)
    return found


def proving(known: Tokens, secret: str, name: str = "alice") -> Known | None:
    proof = Token(secret, name).proof("client", HELLO, NONCE)
    return known.proving(name, proof, "client", HELLO, NONCE)


def test_a_line_is_a_principals_token(file: Path) -> None:
    file.write_text(f"# of the shop\n\nalice {ONE}\nbob {TWO}\n  {THREE}  \nalice {FOUR}\n")
    known = read(file)
    assert [(token.name, token.bearer) for token in known.all() if isinstance(token, Token)] == [
        ("alice", f"Bearer {ONE}"),
        ("bob", f"Bearer {TWO}"),
        ("client", f"Bearer {THREE}"),
        ("alice", f"Bearer {FOUR}"),
    ]
    assert known.own.bearer == f"Bearer {ONE}", "where it is a client's"
    for secret in (ONE, FOUR):
        token = proving(known, secret)
        assert token is not None
        assert token.name == "alice"
    assert proving(known, TWO) is None, "bob's"
    assert proving(known, ONE, "bob") is None, "alice's"
    assert proving(known, ONE, "carol") is None
    shown = known.shown([f"Bearer {TWO}"])
    assert shown is not None
    assert shown.name == "bob"
    assert known.shown(["Bearer the-secret-number-5"]) is None


def test_no_file_is_no_tokens() -> None:
    assert read_tokens(SETTING, "", "client") is None


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("# nothing else\n", "the token is empty"),
        ("alice one two\n", "a line is NAME TOKEN, or TOKEN alone, and one has more words"),
        ("älice one\n", "of 1 to 255 visible ASCII characters"),
        (f"{'a' * 256} one\n", "of 1 to 255 visible ASCII characters"),
        (f"alice {'x' * 1025}\n", "visible ASCII characters without blanks"),
        ("alice \x07\n", "visible ASCII characters without blanks"),
        ("".join(f"alice {ONE}{each}\n" for each in range(11)), "alice has more than 10 tokens: remove the old ones"),
        ("alice x-15-characters\n", r"of alice has fewer than 16 characters.*: make one with python3 -c"),
        ("short\n", "the token of client has fewer than 16 characters"),
    ],
)
def test_a_file_that_will_not_do(file: Path, content: str, why: str) -> None:
    file.write_text(content)
    with pytest.raises(InvalidConfig, match=f"{SETTING}={file}: .*{why}"):
        read(file)


def test_a_token_is_replaced_without_a_restart(file: Path) -> None:
    file.write_text(f"alice {OLD}\n")
    known = read(file)
    old, new = Token(OLD, "alice"), Token(NEW, "alice")
    assert proving(known, NEW) is None
    file.write_text(f"alice {OLD}\nalice {NEW}\n")
    assert proving(known, NEW) is not None, "whoever uses it at once is not refused"
    assert proving(known, OLD) is not None
    assert known.is_known(old.mark)
    file.write_text(f"alice {NEW}\n")
    assert known.own.bearer == f"Bearer {NEW}"
    assert not known.is_known(old.mark)
    assert known.is_known(new.mark)
    assert proving(known, OLD) is None


def test_a_token_that_was_removed_is_forgotten_in_time(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text(f"alice {OLD}\nalice {NEW}\n")
    known = read(file)
    file.write_text(f"alice {NEW}\n")
    monkeypatch.setattr(files, "LOOK_S", 0.0)
    assert not known.is_known(Token(OLD, "alice").mark)


@pytest.mark.parametrize(
    ("content", "mode"),
    [("", 0o600), ("alice one two three\n", 0o600), (f"alice {TWO}\n", 0o604), ("alice two\n", 0o600)],
)
def test_a_file_that_will_not_do_any_longer_changes_nothing(file: Path, content: str, mode: int) -> None:
    file.write_text(f"alice {ONE}\n")
    known = read(file)
    file.write_text(content)
    file.chmod(mode)
    assert known.own.bearer == f"Bearer {ONE}"
    assert proving(known, ONE) is not None
    assert proving(known, TWO) is None


def test_a_removal_that_nobody_can_trust_lets_nobody_stay(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`grep -v mallory tokens > new; mv new tokens`, with a umask of 022."""
    monkeypatch.setattr(files, "LOOK_S", 0.0)
    file.write_text(f"alice {ONE}\nmallory {TWO}\n")
    known = read(file)
    made = file.with_name("new")
    made.touch(mode=0o644)
    made.write_text(f"alice {ONE}\n")
    made.rename(file)
    alice, mallory = Token(ONE, "alice"), Token(TWO, "mallory")
    assert known.is_known(mallory.mark), "for a moment"
    assert "open to every user of this host" in known.trouble
    monkeypatch.setattr(files, "UNTRUSTED_S", 0.0)
    assert not known.is_known(mallory.mark)
    assert not known.is_known(alice.mark), "whoever could read the file could pose as her"
    assert proving(known, TWO, "mallory") is None
    assert known.own.mark == alice.mark, "whether that is good is up to whom it is proven to"
    file.chmod(0o600)
    assert known.is_known(alice.mark)
    assert not known.is_known(mallory.mark)
    assert known.trouble == ""


def test_each_token_of_a_name_is_tried(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    monkeypatch.setattr(tokens, "OF_A_NAME_MAX", 2)
    file.write_text(f"alice {ONE}\nalice {TWO}\nbob {THREE}\nbob {FOUR}\n")
    assert [proving(read(file), secret) is not None for secret in (ONE, TWO, THREE)] == [True, True, False]


def test_tokens_show_and_leave_nothing() -> None:
    known = Tokens.of(Token("a-secret", "alice"))
    assert "a-secret" not in f"{known!r} {known.own!r} {known.own.mark}"
    for each in (known, known.own):
        with pytest.raises(TypeError, match="hand on the name of its file"):
            pickle.dumps(each)

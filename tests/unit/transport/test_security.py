"""What security.mode and its files say: every wrong combination is one clear refusal at the start."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from spark_replication.config import Settings, settings_from
from spark_replication.errors import InvalidConfig
from spark_replication.messages.replication import HelloFrame
from spark_replication.process.files import Care, read_named
from spark_replication.transport.proofs.token import TOKEN_BYTES_MAX, Token
from spark_replication.transport.security.security import NO_SECURITY, Security, read_security
from tests.unit.transport.certificates import Authority, Files, locked_key, tls_settings

SECRET = "the-secret-of-this-cluster"


def token_settings(directory: Path, secret: str = SECRET) -> dict[str, Any]:
    file = directory / "token"
    file.touch(mode=0o600)
    file.write_text(f"{secret}\n")
    return {"security.mode": "token", "security.token.file": str(file)}


def broker_settings(directory: Path) -> dict[str, Any]:
    """What no client has."""
    file = directory / "broker-token"
    file.touch(mode=0o600)
    file.write_text("of-brokers-alone\n")
    return {"security.broker.token.file": str(file)}


class Party:
    """A directory with a CA, a certificate, and a token."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority(directory)
        self.files = self.authority.issue("broker")
        self.token = token_settings(directory)
        self.tls = tls_settings(self.authority, self.files)


@pytest.fixture(scope="module")
def party(tmp_path_factory: pytest.TempPathFactory) -> Party:
    return Party(tmp_path_factory.mktemp("party"))


def test_each_mode_reads_what_it_needs(party: Party) -> None:
    assert read_security(Settings()).mode == "none"
    token = read_security(settings_from(party.token))
    assert (token.mode, token.tls) == ("token", None)
    assert token.tokens is not None
    assert token.tokens.own.bearer == f"Bearer {SECRET}"
    tls = read_security(settings_from(party.tls))
    assert tls.tls is not None
    assert (tls.mode, tls.tokens, tls.tls.mutual) == ("tls", None, False)
    both = read_security(settings_from({**party.token, **party.tls, "security.tls.mutual": True}))
    assert both.tls is not None
    assert (both.tokens is not None, both.tls.mutual) == (True, True)


def without(settings: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in names}


WRONG: dict[str, tuple[Callable[[Party], dict[str, Any]], str]] = {
    "token mode without a file": (
        lambda p: {"security.mode": "token"},
        "security.mode=token needs security.token.file",
    ),
    "a token that nobody asks for": (lambda p: without(p.token, "security.mode"), "security.mode=none does not use it"),
    "tls files that nobody uses": (lambda p: {**p.tls, **p.token}, "security.mode=token does not use"),
    "mutual that nobody uses": (lambda p: {"security.tls.mutual": True}, "security.tls.mutual is set"),
    "a token file that is not there": (
        lambda p: {**p.token, "security.token.file": "/no/such/file"},
        "security.token.file=/no/such/file cannot be read: No such file",
    ),
    "tls without a CA": (lambda p: without(p.tls, "security.tls.ca.file"), "needs security.tls.ca.file"),
    "a CA that is not there": (lambda p: {**p.tls, "security.tls.ca.file": "/no/ca"}, "ca.file=/no/ca cannot be read"),
    "a CA that is none": (
        lambda p: {**p.tls, "security.tls.ca.file": str(p.files.key)},
        "security.tls.ca.file=.* holds no certificate in PEM",
    ),
    "a certificate without a key": (lambda p: without(p.tls, "security.tls.key.file"), "go together"),
    "a key without a certificate": (lambda p: without(p.tls, "security.tls.certificate.file"), "go together"),
    "mutual without a certificate": (
        lambda p: tls_settings(p.authority, None, mutual=True),
        "security.tls.mutual needs a certificate",
    ),
    "another's key": (
        lambda p: {**p.tls, "security.tls.key.file": str(p.authority.issue("another").key)},
        "are no certificate and its key in PEM: KEY_VALUES_MISMATCH",
    ),
    "a certificate that does not parse": (
        lambda p: {**p.tls, "security.tls.certificate.file": p.token["security.token.file"]},
        "are no certificate and its key in PEM",
    ),
    "a key that is not there": (lambda p: {**p.tls, "security.tls.key.file": "/no/key"}, "key.file=/no/key cannot be"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_combination_is_one_clear_sentence(party: Party, case: str) -> None:
    settings, why = WRONG[case]
    with pytest.raises(InvalidConfig, match=why):
        read_security(settings_from(settings(party)))


@pytest.mark.parametrize(
    ("content", "mode", "why"),
    [
        ("", 0o600, "is empty"),
        (" \n", 0o600, "is empty"),
        ("three words here", 0o600, "one has more words"),
        ("schlüssel", 0o600, "not one text"),
        ("x" * (TOKEN_BYTES_MAX + 1), 0o600, "not one text of at most 1024"),
        ("password", 0o600, "the token of client has fewer than 16 characters"),
        (SECRET, 0o604, "open to every user of this host: chmod o-rwx"),
        (SECRET, 0o602, "open to every user"),
    ],
)
def test_a_token_file_that_will_not_do(tmp_path: Path, content: str, mode: int, why: str) -> None:
    settings = token_settings(tmp_path)
    file = Path(settings["security.token.file"])
    file.write_text(content)
    file.chmod(mode)
    with pytest.raises(InvalidConfig, match=f"security.token.file={file}.*{why}") as refused:
        read_security(settings_from(settings))
    assert SECRET not in str(refused.value)


def test_what_was_checked_is_what_is_used(party: Party, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever changes a file after the look at it changes nothing of what came of that."""
    files, others = party.authority.issue("changing"), party.authority.issue("others")
    chain = files.certificate.read_bytes()

    def read_and_changed(setting: str, path: str, care: Care = Care.NONE) -> bytes:
        found = read_named(setting, path, care)
        if path == str(files.key):
            files.key.write_bytes(others.key.read_bytes())
        return found

    monkeypatch.setattr("spark_replication.transport.security.certificates.read_named", read_and_changed)
    tls = read_security(settings_from(tls_settings(party.authority, files))).tls
    assert tls is not None
    assert tls.certificate is not None
    assert (tls.certificate.chain, tls.as_server is None) == (chain, False)


def test_a_key_that_everybody_may_read_is_refused(party: Party) -> None:
    files = party.authority.issue("careless")
    files.key.chmod(0o644)
    with pytest.raises(InvalidConfig, match=r"security.tls.key.file=.*open to every user"):
        read_security(settings_from(tls_settings(party.authority, files)))


@pytest.mark.parametrize(("mode", "is_refused"), [(0o666, True), (0o602, True), (0o664, False), (0o644, False)])
def test_cas_that_everybody_may_write_are_refused(tmp_path: Path, mode: int, *, is_refused: bool) -> None:
    """Whoever writes them lets in whom he likes."""
    authority = Authority(tmp_path)
    settings = settings_from(tls_settings(authority, authority.issue("broker")))
    authority.file.chmod(mode)
    if not is_refused:
        assert read_security(settings).tls is not None
        return
    with pytest.raises(InvalidConfig, match=r"security.tls.ca.file=.*may be written by every user.*: chmod o-w "):
        read_security(settings)


def test_cas_that_everybody_may_write_later_are_told_of_and_not_read(tmp_path: Path) -> None:
    """What was read before holds on: to trust nobody would part the brokers."""
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    security = read_security(settings_from(tls_settings(old, old.issue("broker"))))
    before = security.tls
    assert before is not None
    assert security.certificates is not None
    old.file.write_text(new.file.read_text())
    old.file.chmod(0o666)
    assert not security.certificates.look()
    assert security.tls is before
    assert security.trouble.endswith("what was read before holds on")
    old.file.chmod(0o644)
    assert security.certificates.look()
    assert (security.tls.ca, security.trouble) == (new.file.read_bytes(), "")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_cas_of_another_user_are_refused(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    settings = settings_from(tls_settings(authority, authority.issue("broker")))
    os.chown(authority.file, 65_534, -1)
    with pytest.raises(InvalidConfig, match=r"security.tls.ca.file=.* belongs to user 65534, who may .*change it"):
        read_security(settings)


def test_a_group_may_share_a_token_file(tmp_path: Path) -> None:
    settings = token_settings(tmp_path)
    Path(settings["security.token.file"]).chmod(0o640)
    assert read_security(settings_from(settings)).tokens is not None


def test_a_key_with_a_password_is_refused_and_asks_nobody_for_it(party: Party) -> None:
    key = party.directory / "locked.key"
    key.touch(mode=0o600)
    key.write_text(locked_key())
    with pytest.raises(InvalidConfig, match="the key has a password"):
        read_security(settings_from(tls_settings(party.authority, Files(party.files.certificate, key))))


def test_a_token_shows_itself_to_nobody(party: Party) -> None:
    security = read_security(settings_from({**party.token, **party.tls}))
    key = party.files.key.read_text().splitlines()[1]
    for shown in (repr(security), str(security), f"{security.tokens}", f"{security.tls!r}"):
        assert SECRET not in shown
        assert key not in shown
    assert "Tokens(client, …)" in repr(security)
    with pytest.raises(TypeError, match="hand on the name of its file"):
        pickle.dumps(security)
    with pytest.raises(TypeError):
        msgspec.json.encode(security)


@pytest.mark.parametrize(
    ("headers", "admitted"),
    [
        ([f"Bearer {SECRET}"], True),
        ([f"bearer {SECRET}"], True),
        ([], False),
        ([""], False),
        ([SECRET], False),
        ([f"Basic {SECRET}"], False),
        (["Bearer "], False),
        ([f"Bearer {SECRET}x"], False),
        ([f"Bearer {SECRET[:-1]}"], False),
        ([f"Bearer  {SECRET}"], False),
        (["Bearer ü\ud800"], False),
        ([f"Bearer {SECRET}", f"Bearer {SECRET}"], False),
        (["Bearer x", f"Bearer {SECRET}"], False),
    ],
)
def test_only_the_token_is_admitted(headers: list[str], admitted: bool) -> None:
    assert Token(SECRET).admits(headers) is admitted


def test_a_proof_is_of_one_side_one_life_and_one_connection() -> None:
    token = Token(SECRET)
    hello = HelloFrame(cluster_id="c", broker_id=1, broker_epoch=2, nonce=b"f" * 32)
    mine = token.proof("follower", hello, b"l" * 32)
    assert token.proven(mine, "follower", hello, b"l" * 32)
    others = [
        token.proof("server", hello, b"l" * 32),
        token.proof("follower", hello, b"m" * 32),
        token.proof("follower", msgspec.structs.replace(hello, nonce=b"g" * 32), b"l" * 32),
        token.proof("follower", msgspec.structs.replace(hello, cluster_id="d"), b"l" * 32),
        token.proof("follower", msgspec.structs.replace(hello, broker_id=3), b"l" * 32),
        token.proof("follower", msgspec.structs.replace(hello, broker_epoch=3), b"l" * 32),
        Token("another").proof("follower", hello, b"l" * 32),
    ]
    assert len({mine, *others}) == 8
    assert not any(token.proven(other, "follower", hello, b"l" * 32) for other in (*others, b""))


def test_a_seal_is_of_one_text_and_one_secret_and_is_no_proof() -> None:
    token = Token(SECRET)
    assert token.sealed("page until 5") == token.sealed("page until 5")
    assert (
        len({token.sealed("page until 5"), token.sealed("page until 6"), Token("another").sealed("page until 5")}) == 3
    )
    assert SECRET not in token.sealed(SECRET)


ELSEWHERE = "0.0.0.0"


def test_nothing_listens_beyond_loopback_unless_clients_prove_who_they_are(party: Party) -> None:
    mutual = {**party.tls, "security.tls.mutual": True}
    one_sided = read_security(settings_from(party.tls))
    for security in (NO_SECURITY, one_sided):
        security.require_may_bind("127.0.0.1")
        security.require_may_bind("localhost")
    with pytest.raises(InvalidConfig, match=r"without security only loopback is served.*set security.mode"):
        NO_SECURITY.require_may_bind(ELSEWHERE)
    with pytest.raises(InvalidConfig, match=r"Set security.tls.mutual=true or security.token.file"):
        one_sided.require_may_bind(ELSEWHERE)
    with pytest.raises(
        InvalidConfig, match=r"send the token over the network in the clear.*security.token.in.clear=true"
    ):
        read_security(settings_from(party.token)).require_may_bind(ELSEWHERE)
    read_security(settings_from(party.token)).require_may_bind("127.0.0.1")
    waived = {**party.token, "security.token.in.clear": True}
    for settings in (waived, mutual, {**party.token, **party.tls}):
        read_security(settings_from(settings)).require_may_bind(ELSEWHERE)


def test_tls_without_a_certificate_serves_nothing(party: Party) -> None:
    client_only = read_security(settings_from(tls_settings(party.authority, None)))
    with pytest.raises(InvalidConfig, match=r"set security.tls.certificate.file and security.tls.key.file"):
        client_only.require_may_bind("127.0.0.1")


def test_endpoints_name_the_scheme_that_is_spoken_there(party: Party) -> None:
    assert NO_SECURITY.location("h:1") == "grpc://h:1"
    assert read_security(settings_from(party.token)).location("h:1") == "grpc://h:1"
    assert read_security(settings_from(party.tls)).location("h:1") == "grpc+tls://h:1"


def test_clients_give_settings_by_name_or_what_was_read(party: Party) -> None:
    read = read_security(settings_from(party.token))
    assert Security.of(read) is read
    assert Security.of(None) is NO_SECURITY
    given = Security.of({"security": {"mode": "token", "token": {"file": party.token["security.token.file"]}}})
    assert given.tokens is not None
    with pytest.raises(InvalidConfig, match=r"unknown setting security.token"):
        Security.of({"security.token": SECRET})

"""Verifiers in the place of tokens: whoever has the token is let in as before, and whoever has read the file is not."""

from __future__ import annotations

import base64
import hmac
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace
from pyarrow import flight

from spark_replication.config import settings_from
from spark_replication.decoding import error_of
from spark_replication.errors import AuthenticationFailed, InvalidConfig, Overloaded, ReplicationError
from spark_replication.messages.actions import DESCRIBE_TOKENS, INIT_PRODUCER
from spark_replication.messages.envelope import to_json
from spark_replication.messages.frames import Frame
from spark_replication.messages.lane import ClientFrame
from spark_replication.messages.observing import DescribeTokens
from spark_replication.messages.records import InitProducer, ProducerId
from spark_replication.messages.replication import (
    COST_MAX,
    COST_MIN,
    PROVING_VERSION,
    SALTS_MAX,
    ChallengeFrame,
    ErrorFrame,
    ProofFrame,
    Salt,
)
from spark_replication.process import files
from spark_replication.transport.flight.actions import call
from spark_replication.transport.meter import CALL
from spark_replication.transport.proofs import salting
from spark_replication.transport.proofs.handshake import admitted, introduce_client
from spark_replication.transport.proofs.salting import STRANGERS_MAX, Roots
from spark_replication.transport.proofs.token import Proofs, SharedKey, Token, said
from spark_replication.transport.proofs.tokens import Tokens, read_tokens
from spark_replication.transport.proofs.verifier import Verifier, proofs_of, proving_server
from spark_replication.transport.security.security import Security, read_security
from spark_replication.transport.sockets.frames import FrameReceiver, encoded, send
from tests.unit.transport.test_flight_client import Server
from tests.waiting import eventually

SETTING = "security.token.file"
SALT, OTHER_SALT = (Salt(value=bytes([number]) * 16, cost=COST_MIN) for number in (1, 2))
SECRET, OTHER_SECRET = "the-secret-of-alice", "the-secret-of-bob"
ALICE, BOB = Token(SECRET, "alice"), Token(OTHER_SECRET, "bob")
LINE = f"alice {Verifier.of(ALICE, SALT).text}\n"
KIND, _PARAMETERS, SALT_TEXT, PUBLIC, SERVER_KEY = LINE.split()[1].split(":")
TIMEOUT_S = 20.0
NONCE = b"l" * 32
HELLO = ClientFrame(v=PROVING_VERSION, name="alice", port=9, nonce=b"n" * 32)
TIMEOUT_MS = 20_000


def raw(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "tokens"
    found.touch(mode=0o600)
    found.write_text(LINE)
    return found


def read(file: Path) -> Tokens:
    found = read_tokens(SETTING, str(file), "client")
    assert found is not None
    return found


def proving(known: Tokens, token: Token, hello: ClientFrame = HELLO) -> str:
    """Whose token that is, as the server finds. Empty: nobody's."""
    offered = known.offered(hello.name)
    given = proofs_of(token, hello, ChallengeFrame(nonce=NONCE, in_clear=offered.in_clear, salts=offered.salts))
    found = known.proving(hello.name, given.proof, "client", hello, NONCE, given.signatures)
    return "" if found is None else found.name


# The file


def test_a_line_shows_nothing_of_its_token_and_is_read_as_it_was_written(file: Path) -> None:
    (found,) = read(file).all()
    assert isinstance(found, Verifier)
    assert f"alice {found.text}\n" == LINE
    assert found.mark == Verifier.of(ALICE, SALT).mark
    assert SECRET not in f"{LINE} {found!r} {found.mark}"
    assert (KIND, raw(SALT_TEXT)) == ("scrypt-ed25519", SALT.value)


def test_what_is_made_of_a_token_is_another_for_each_salt_and_name() -> None:
    texts = [Verifier.of(token, salt).text.split(":")[3:] for token in (ALICE, Token(SECRET, "bob")) for salt in SALTS]
    assert len({part for parts in texts for part in parts}) == 8


SALTS = (SALT, OTHER_SALT)
#: Changes of a verifier's text, and what is said of it.
MALFORMED: dict[str, tuple[Callable[[str], str], str]] = {
    "another kind": (
        lambda text: text.replace("ed25519", "ed25519-2"),
        "is of a kind that is not known here, scrypt-ed",
    ),
    "a part less": (lambda text: text.rpartition(":")[0], "is not scrypt-ed25519:ln=COST,r=8,p=1:SALT:PUBLIC:SERVER"),
    "a part more": (lambda text: f"{text}:", "is not scrypt-ed25519:ln=COST"),
    "a weak cost": (lambda text: text.replace("ln=14", "ln=13"), "has ln=13, and from 14 to 16 is what clients accept"),
    "a huge cost": (lambda text: text.replace("ln=14", "ln=99999"), "has ln=9999, and"),
    "no cost": (lambda text: text.replace("ln=14", "ln="), "has other parameters of scrypt"),
    "a cost in other digits": (lambda text: text.replace("ln=14", "ln=²"), "has other parameters of scrypt"),
    "a cost without its name": (lambda text: text.replace("ln=14", "14"), "has other parameters of scrypt"),
    "another block": (lambda text: text.replace("r=8", "r=1"), "has other parameters of scrypt"),
    "a short salt": (
        lambda text: text.replace(SALT_TEXT, SALT_TEXT[:-2]),
        "the salt of the verifier of alice is not 16",
    ),
    "a short key": (
        lambda text: text.replace(PUBLIC, PUBLIC[:-3]),
        "the public key of the verifier of alice is not 32",
    ),
    "a key of other letters": (
        lambda text: text.replace(SERVER_KEY, "!" * 43),
        "the server key of the verifier of ali",
    ),
    "a key with more bits": (lambda text: f"{text[:-1]}{'_' if text[-1] != '_' else '9'}", "the server key of the ver"),
}


@pytest.mark.parametrize("change", MALFORMED)
def test_a_malformed_verifier_is_refused_by_its_line_and_changes_nothing(file: Path, change: str) -> None:
    known = read(file)
    changed, why = MALFORMED[change]
    file.write_text(f"# of the shop\n{changed(LINE.strip())}\n", "utf-8")
    with pytest.raises(InvalidConfig, match=f"{SETTING}={file}: line 2: .*{why}"):
        read(file)
    assert proving(known, ALICE) == "alice"
    assert "line 2: " in known.trouble
    assert SERVER_KEY not in known.trouble


def test_a_file_has_few_salts(file: Path) -> None:
    salts = [base64.urlsafe_b64encode(bytes([each]) * 16).decode().rstrip("=") for each in range(SALTS_MAX + 1)]
    lines = [f"alice {LINE.split()[1].replace(SALT_TEXT, salt)}\n" for salt in salts]
    file.write_text("".join(lines[:-1]))
    assert len(read(file).offered("alice").salts) == SALTS_MAX
    file.write_text("".join(lines))
    with pytest.raises(InvalidConfig, match="more than 4 salts: make them anew, with one"):
        read(file)


@pytest.mark.parametrize("setting", ["security.broker.token.file", "security.session.token.file"])
def test_what_is_proven_here_is_no_verifier(file: Path, tmp_path: Path, setting: str) -> None:
    own = tmp_path / "own"
    own.touch(mode=0o600)
    own.write_text(LINE)
    with pytest.raises(InvalidConfig, match=f"{setting}=.*own: a verifier is there, and who proves this secret needs"):
        read_security(settings_from({"security.mode": "token", SETTING: str(file), setting: str(own)}))


# Who is let in


def test_whoever_has_the_token_is_known_by_either_kind_of_line(file: Path) -> None:
    file.write_text(f"{LINE}bob {OTHER_SECRET}\n")
    known = read(file)
    assert [proving(known, ALICE), proving(known, BOB, replace(HELLO, name="bob"))] == ["alice", "bob"]
    assert proving(known, BOB) == ""
    assert proving(known, Token(OTHER_SECRET, "alice")) == ""
    assert proving(known, ALICE, replace(HELLO, name="bob")) == ""
    assert known.offered("alice") == (False, (SALT,)), "no HMAC of hers is asked for"
    assert known.offered("bob") == (True, ())
    assert known.offered("carol") == (True, (SALT,)), "as of whoever is there"


def test_a_token_is_replaced_and_taken_back_without_a_restart(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known, old, new = read(file), ALICE, Token("the-next-secret", "alice")
    assert proving(known, new) == ""
    made = [Verifier.of(token, salt) for token, salt in ((old, SALT), (new, OTHER_SALT))]
    file.write_text("".join(f"alice {each.text}\n" for each in made))
    assert [proving(known, token) for token in (new, old)] == ["alice", "alice"], "at once, by either salt"
    assert all(known.is_known(each.mark) for each in made)
    file.write_text(f"alice {made[1].text}\n")
    monkeypatch.setattr(files, "LOOK_S", 0.0)
    assert [known.is_known(each.mark) for each in made] == [False, True]
    assert [proving(known, token) for token in (new, old)] == ["alice", ""]


def test_a_header_with_the_token_is_of_its_principal(file: Path) -> None:
    file.write_text(f"{LINE}bob {Verifier.of(BOB, SALT).text}\ncarol the-secret-of-carol\n")
    known = read(file)
    for secret, name in ((SECRET, "alice"), (OTHER_SECRET, "bob"), ("the-secret-of-carol", "carol")):
        found = known.shown([f"Bearer {secret}"])
        assert found is not None
        assert found.name == name
    assert known.all()[0].admits([f"bearer {SECRET}"])
    assert not known.all()[0].admits([SECRET])


def test_a_token_that_was_good_is_not_looked_at_again_after_many_that_were_not(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(salting, "TRIED_MAX", 1)
    known, made = read(file), counted(monkeypatch)
    for secret in (SECRET, "the-secret-of-nobody", SECRET):
        known.shown([f"Bearer {secret}"])
    assert len(made) == 2


@pytest.mark.parametrize("shown", [LINE.split()[1], SERVER_KEY, PUBLIC, raw(SERVER_KEY).hex(), "the-secret-of-nobody"])
def test_what_is_in_the_file_is_no_token(file: Path, shown: str) -> None:
    known = read(file)
    assert known.shown([f"Bearer {shown}"]) is None
    if not shown.startswith(KIND):
        assert proving(known, Token(shown, "alice")) == ""


def test_whoever_has_a_verifier_alone_proves_nothing_with_it(file: Path) -> None:
    with pytest.raises(
        InvalidConfig, match=r"verifiers alone, by which nobody is let in: .*security\.session\.token\.file"
    ):
        _ = read(file).own
    with pytest.raises(InvalidConfig, match="not one text of at most"):
        Token(f"{LINE}", "alice")


def thief_signs(key: bytes, hello: ClientFrame) -> Proofs:
    return Proofs(b"", (Ed25519PrivateKey.from_private_bytes(key).sign(said("client", hello, NONCE)),))


def signature_of_alice(hello: ClientFrame = HELLO, nonce: bytes = NONCE) -> tuple[bytes, ...]:
    return proofs_of(ALICE, hello, ChallengeFrame(nonce=nonce, in_clear=False, salts=(SALT,))).signatures


STOLEN = SharedKey(raw(SERVER_KEY))
THIEVES: dict[str, Proofs] = {
    "an HMAC by the server key": Proofs(STOLEN.proof("client", HELLO, NONCE)),
    "the server's own proof": Proofs(STOLEN.proof("server", HELLO, NONCE)),
    "an HMAC in a signature's place": Proofs(b"", (STOLEN.proof("client", HELLO, NONCE) * 2,)),
    "the server key as the private one": thief_signs(raw(SERVER_KEY), HELLO),
    "the public key as the private one": thief_signs(raw(PUBLIC), HELLO),
    "what the file would make of it": thief_signs(
        hmac.digest(raw(SERVER_KEY), b"private key of alice", "sha256"), HELLO
    ),
    "nothing": Proofs(b""),
    "a signature for another nonce": Proofs(b"", signature_of_alice(nonce=b"m" * 32)),
    "a signature for another port": Proofs(b"", signature_of_alice(replace(HELLO, port=8))),
    "a signature for another life": Proofs(b"", signature_of_alice(replace(HELLO, nonce=b"m" * 32))),
    "a signature as a reader": Proofs(b"", signature_of_alice(replace(HELLO, reads=True))),
    "a signature by another salt": Proofs(
        b"", proofs_of(ALICE, HELLO, ChallengeFrame(nonce=NONCE, salts=(OTHER_SALT,))).signatures
    ),
    "her HMAC": Proofs(ALICE.proof("client", HELLO, NONCE)),
}


@pytest.mark.parametrize("thief", THIEVES)
def test_whoever_has_read_the_file_cannot_log_in(file: Path, thief: str) -> None:
    known, given = read(file), THIEVES[thief]
    assert known.proving("alice", given.proof, "client", HELLO, NONCE, given.signatures) is None
    found = known.proving("alice", b"", "client", HELLO, NONCE, (*given.signatures, *signature_of_alice()))
    assert found is not None, "among others hers is found"


def test_a_verifier_seals_what_its_file_cannot() -> None:
    one = Verifier.of(ALICE, SALT)
    assert one.sealed("page until 5") == Verifier.of(ALICE, SALT).sealed("page until 5")
    seals = {SharedKey(raw(SERVER_KEY)).session_key(b"page until 5").hex(), Token(SERVER_KEY).sealed("page until 5")}
    assert one.sealed("page until 5") not in {*seals, one.sealed("page until 6"), ALICE.sealed("page until 5")}
    command = (
        "from spark_replication.transport.proofs.verifier import Verifier; "
        f"print(Verifier.read('alice', '{one.text}').sealed('page until 5'))"
    )
    other = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    assert one.sealed("page until 5") != other.stdout.strip(), "another process of the thief's makes another"


# Both sides, over a connection


def shaken(client: Tokens, server: Callable[[socket.socket], object]) -> None:
    """The client's handshake with this server. Raises what the client meets."""
    ours, theirs = socket.socketpair()

    def serve() -> None:
        with suppress(OSError, ReplicationError):
            server(theirs)

    serving = threading.Thread(target=serve, daemon=True)
    serving.start()
    with ours:
        hello = ClientFrame(port=9)
        try:
            introduce_client(ours, FrameReceiver(ours, 1 << 20), hello, client, TIMEOUT_S)
        finally:
            theirs.shutdown(socket.SHUT_RDWR)
            serving.join(TIMEOUT_S)


class Impostor:
    """Has read the cluster's file, and keeps what a client says to it."""

    def __init__(self, salt: Salt = SALT, *, in_clear: bool = False) -> None:
        self.heard: list[Any] = []
        self._salt = salt
        self._in_clear = in_clear

    def __call__(self, theirs: socket.socket) -> None:
        receiver = FrameReceiver(theirs, 1 << 20)
        self.heard.append(hello := receiver.receive_first(lambda: None))
        challenge = ChallengeFrame(nonce=NONCE, in_clear=self._in_clear, salts=(self._salt,))
        send(theirs, encoded(challenge))
        self.heard.append(receiver.receive_first(lambda: None))
        send(theirs, encoded(ProofFrame(proof=STOLEN.proof("server", hello, NONCE))))  # type: ignore[arg-type]
        send(theirs, encoded(ErrorFrame(error="NOT_READY", message="it was believed")))


@pytest.mark.parametrize("in_clear", [False, True])
def test_a_stolen_server_key_gets_nothing_to_log_in_with(file: Path, *, in_clear: bool) -> None:
    """Whoever has it can pose as the server: that alone."""
    impostor = Impostor(in_clear=in_clear)
    with pytest.raises(ReplicationError, match="it was believed"):
        shaken(Tokens.of(ALICE), impostor)
    hello, told = impostor.heard
    known = read(file)
    assert bool(told.proof) == in_clear, "an HMAC, against which guesses are quick, goes to who asks for one alone"
    assert SECRET not in repr(impostor.heard)
    assert known.proving("alice", told.proof, "client", hello, NONCE, told.signatures) is not None, "what it asked for"
    for other in (replace(hello, port=8), replace(hello, nonce=b"m" * 32)):
        assert known.proving("alice", told.proof, "client", other, NONCE, told.signatures) is None
    assert known.proving("alice", told.proof, "client", hello, b"m" * 32, told.signatures) is None
    shared = SharedKey(told.proof) if told.proof else STOLEN
    given = Proofs(shared.proof("client", hello, b"m" * 32))
    assert known.proving("alice", given.proof, "client", hello, b"m" * 32) is None


@pytest.mark.parametrize(
    ("salt", "why"),
    [
        (OTHER_SALT, "the leader does not know this cluster's token"),
        (Salt(value=SALT.value, cost=COST_MIN + 1), "the leader does not know this cluster's token"),
        (Salt(value=SALT.value, cost=COST_MIN - 1), "Expected `int` >= 14"),
        (Salt(value=SALT.value, cost=COST_MAX + 1), "Expected `int` <= 16"),
    ],
)
def test_a_server_that_chooses_the_salt_gains_nothing(salt: Salt, why: str) -> None:
    """A weak one would be quick to guess against, and a huge one would take the client's memory."""
    impostor = Impostor(salt)
    with pytest.raises(ReplicationError, match=why):
        shaken(Tokens.of(ALICE), impostor)
    signed = [each.signatures for each in impostor.heard[1:]]
    assert all(THIEVES["nothing"].signatures != each and signature_of_alice() != each for each in signed)


def test_a_client_believes_no_server_without_the_key() -> None:
    asked = ChallengeFrame(nonce=NONCE, in_clear=False, salts=SALTS)
    good = SharedKey(raw(SERVER_KEY)).proof("server", HELLO, NONCE)
    assert proving_server(ALICE, HELLO, asked, good) is not None
    assert proving_server(ALICE, HELLO, replace(asked, salts=(OTHER_SALT,)), good) is None
    assert proving_server(BOB, HELLO, asked, good) is None
    assert proving_server(ALICE, HELLO, asked, ALICE.proof("server", HELLO, NONCE)) is None, "nobody said to have that"
    assert proving_server(ALICE, HELLO, replace(asked, in_clear=True), ALICE.proof("server", HELLO, NONCE)) is not None


def told_by(hello: ClientFrame, known: Tokens) -> ErrorFrame:
    """What a server answers to this, by hand."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send(ours, encoded(hello))
        with pytest.raises(ReplicationError) as refused:
            admitted(theirs, FrameReceiver(theirs, 1 << 20), lambda _hello: known, 9, 1.0)
        return ErrorFrame(error=refused.value.code, message=refused.value.message)


def test_a_peer_that_proves_by_another_version_is_told_so(file: Path) -> None:
    told = told_by(replace(HELLO, v=1), read(file))
    assert told.error == "UNSUPPORTED_VERSION"
    assert told.message == (
        "a client proves its token by version 1 of that, and here 2 is known: upgrade the other side"
    )
    older = error_of("UNSUPPORTED_VERSION", "ClientFrame version 2 is not known here, 1 is: upgrade this side")
    frame: Frame = ErrorFrame(error=older.code, message=older.message)
    with pytest.raises(type(older), match="ClientFrame version 2 is not known here"):
        shaken(Tokens.of(ALICE), lambda theirs: send(theirs, encoded(frame)))


# Over Flight


@pytest.fixture
def server(file: Path, tmp_path: Path) -> Iterator[Server]:
    brokers = tmp_path / "brokers"
    brokers.touch(mode=0o600)
    brokers.write_text("the-secret-of-brokers\n")
    found = Server(
        read_security(
            settings_from({"security.mode": "token", SETTING: str(file), "security.broker.token.file": str(brokers)})
        )
    )
    yield found
    threading.Thread(target=found.shutdown, daemon=True).start()


def as_client(token: Token) -> Security:
    return Security(mode="token", tokens=Tokens.of(token))


def asked(server: Server, security: Security) -> int:
    with security.client(f"127.0.0.1:{server.port}") as client:
        return call(client, INIT_PRODUCER, InitProducer(), TIMEOUT_MS).producer


def shown_to(server: Server, secret: str) -> list[bytes]:
    options = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {secret}".encode())], timeout=TIMEOUT_S)
    with flight.connect(f"grpc://127.0.0.1:{server.port}") as client:
        return [each.body.to_pybytes() for each in client.do_action(("init_producer", b"{}"), options)]


def test_a_client_of_flight_is_let_in_and_its_answers_are_proven(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = counted(monkeypatch)
    security = as_client(ALICE)
    assert [asked(server, security) for _ in range(3)] == [7, 7, 7]
    with pytest.raises(AuthenticationFailed, match="alice does not know a token of this cluster"):
        asked(server, as_client(Token("another-secret-of-hers", "alice")))
    assert len(made) == 2, "scrypt, once for each token"
    assert asked(server, Security(mode="token", broker_tokens=Tokens.of(Token("the-secret-of-brokers", "broker")))) == 7


def test_a_server_tells_how_many_tokens_a_principal_has(server: Server, file: Path) -> None:
    """Whatever their salts are."""
    file.write_text(f"{LINE}bob {OTHER_SECRET}\nalice another-secret-of-hers\n")
    question = DescribeTokens(marks=(Verifier.of(ALICE, OTHER_SALT).mark,), principals=("alice", "carol"))
    with as_client(BOB).client(f"127.0.0.1:{server.port}") as client:
        told = call(client, DESCRIBE_TOKENS, question, TIMEOUT_MS)
    assert (told.marks, told.counts) == ((), {"alice": 2})


def test_another_flight_client_may_send_the_token_with_each_call(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = counted(monkeypatch)
    answer = [to_json(ProducerId(producer=7, epoch=0))]
    assert [shown_to(server, SECRET) for _ in range(3)] == [answer] * 3
    assert len(made) == 1
    for other in (SERVER_KEY, LINE.split()[1]):
        with pytest.raises(flight.FlightUnauthenticatedError, match="another token than this cluster's"):
            shown_to(server, other)
    assert shown_to(server, SECRET) == answer
    assert len(made) == 3
    with pytest.raises(flight.FlightUnauthenticatedError):
        shown_to(server, "too-short")
    assert len(made) == 3, "no token is so short"


def counted(monkeypatch: pytest.MonkeyPatch) -> list[Salt]:
    made: list[Salt] = []
    really = salting._made

    def count(secret: bytes, salt: Salt) -> bytes:
        made.append(salt)
        return really(secret, salt)

    monkeypatch.setattr(salting, "_made", count)
    for roots in (salting.ROOTS._kept, salting.ROOTS._tried):
        roots.clear()
    return made


def test_of_tokens_that_nobody_knows_few_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Semaphore(0), threading.Event()

    def slow(secret: bytes, _salt: Salt) -> bytes:
        begun.release()
        assert go_on.wait(TIMEOUT_S)
        return secret

    monkeypatch.setattr(salting, "_made", slow)
    roots = Roots()
    waiting = [
        threading.Thread(target=roots.tried, args=(b"guess %d" % each, SALT), daemon=True)
        for each in range(STRANGERS_MAX)
    ]
    for thread in waiting:
        thread.start()
    assert begun.acquire(timeout=TIMEOUT_S)
    eventually(lambda: not roots._strangers._value, "all of them wait")
    with pytest.raises(Overloaded, match="8 tokens that nobody knows are looked at here: retry later"):
        roots.tried(b"one more", SALT)
    assert not begun.acquire(blocking=False), "one at a time"
    own = threading.Thread(target=roots.of, args=(b"mine", SALT), daemon=True)
    own.start()
    assert begun.acquire(timeout=TIMEOUT_S), "what this process has itself waits for no stranger"
    go_on.set()
    for thread in (*waiting, own):
        thread.join(TIMEOUT_S)
    assert roots.tried(b"guess 1", SALT) == b"guess 1", "and those who come later are looked at"


def test_what_is_kept_has_a_bound_and_good_tokens_outlive_guesses(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[bytes] = []

    def count(secret: bytes, _salt: Salt) -> bytes:
        made.append(secret)
        return secret

    monkeypatch.setattr(salting, "_made", count)
    monkeypatch.setattr(salting, "TRIED_MAX", 2)
    monkeypatch.setattr(salting, "KEPT_MAX", 2)
    roots = Roots()
    roots.tried(b"good", SALT)
    roots.is_good(b"good", SALT)
    for guess in (b"a", b"b", b"c"):
        roots.tried(guess, SALT)
    roots.tried(b"good", SALT)
    assert made == [b"good", b"a", b"b", b"c"]
    assert (len(roots._tried), len(roots._kept)) == (2, 1)
    for own in (b"mine", b"yours"):
        roots.of(own, SALT)
    assert len(roots._kept) == 2
    roots.tried(b"good", SALT)
    assert made[4:] == [b"mine", b"yours", b"good"], "a token that is out of the bound is looked at again"
    roots.of(b"mine", OTHER_SALT)
    assert made[7:] == [b"mine"]


def test_a_server_says_that_it_has_too_much_to_look_at(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(STRANGERS_MAX):
        assert salting.ROOTS._strangers.acquire(blocking=False)
    try:
        with pytest.raises(flight.FlightServerError, match="THROTTLING_QUOTA_EXCEEDED: 8 tokens that nobody knows"):
            shown_to(server, "a-guess-that-nobody-made-before")
        assert server.meter.refusals()[CALL, Overloaded.code] == 1
    finally:
        for _ in range(STRANGERS_MAX):
            salting.ROOTS._strangers.release()


# The cluster's own session, and what a client needs


def test_the_clusters_own_session_has_a_token_of_its_own(server: Server, file: Path, tmp_path: Path) -> None:
    own = tmp_path / "session"
    own.touch(mode=0o600)
    own.write_text(f"alice {SECRET}\n")
    settings = {"security.mode": "token", SETTING: str(file)}
    with pytest.raises(InvalidConfig, match=r"verifiers alone.*: where a cluster runs, name a file with a token as"):
        asked(server, read_security(settings_from(settings)))
    with_own = read_security(settings_from({**settings, "security.session.token.file": str(own)}))
    assert asked(server, with_own) == 7
    assert with_own.client_tokens is not None
    assert with_own.client_tokens.own.name == "alice"
    own.write_text("alice short\n")
    assert with_own.session_tokens is not None
    assert with_own.session_tokens._read.look() is False
    assert "security.session.token.file" in with_own.trouble


def test_a_session_token_is_of_use_beside_tokens_alone(file: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"security\.mode=none does not use it"):
        read_security(settings_from({"security.session.token.file": str(file)}))
    given: dict[str, Any] = {"security.mode": "tls", "security.session.token.file": str(file)}
    with pytest.raises(
        InvalidConfig, match=r"session\.token\.file is set, and without security\.token\.file nobody asks"
    ):
        read_security(settings_from(given))


def test_without_the_package_a_client_is_told_what_to_install(file: Path) -> None:
    """And with a token in the clear it needs none."""
    command = """
import sys
sys.modules["cryptography"] = None
from spark_replication.messages.lane import ClientFrame
from spark_replication.messages.replication import ChallengeFrame, Salt
from spark_replication.transport.proofs.token import Token
from spark_replication.transport.proofs.verifier import proofs_of
token, hello = Token("the-secret-of-alice", "alice"), ClientFrame(name="alice", port=1, nonce=b"n" * 32)
assert proofs_of(token, hello, ChallengeFrame(nonce=b"l" * 32)).proof
try:
    proofs_of(token, hello, ChallengeFrame(nonce=b"l" * 32, salts=(Salt(value=b"s" * 16, cost=14),)))
except Exception as error:
    print(error)
"""
    ran = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    assert "needs cryptography, which is not installed: pip install 'spark_replication[salted]'" in ran.stdout

"""What a Flight server gives to callers that have proven that they know a token (messages.introducing).

A ticket is of use to this server alone, until it ends, while the token is there, and not for long. So a program that
has the port of a server that ended learns nothing that another server believes.

Nothing is kept of a caller: challenges and tickets carry the server's seal.
"""

from __future__ import annotations

import base64
import hmac
import os
from collections.abc import Callable
from typing import Protocol

import msgspec

from spark_replication.errors import AuthenticationFailed
from spark_replication.messages.introducing import Admission, Challenge, Introduce, Prove
from spark_replication.messages.replication import NONCE_BYTES
from spark_replication.transport.proofs.caller import Caller
from spark_replication.transport.proofs.token import session_of
from spark_replication.transport.proofs.tokens import Tokens

TICKET_MS = 600_000
ANSWER_MS = 10_000  # from a challenge to its proof
TICKET_CHARACTERS_MAX = 2_048

CHECK_FILES = "compare security.mode, security.broker.token.file and security.token.file of both sides"


class TokensOf(Protocol):
    def __call__(self, *, is_of_cluster: bool) -> Tokens | None:
        """What a caller that says so of itself has to know one of."""


def passed_on(dialled: object, here: int) -> str:
    return (
        f"port {dialled} was dialled, and this is port {here}: what listens there passes connections on, and is not to "
        "be trusted"
    )


class _Ticket(msgspec.Struct, frozen=True):
    name: str
    is_of_cluster: bool
    mark: str
    session: bytes
    ends_ms: int


class Tickets:
    """What one server gives."""

    def __init__(self, tokens_of: TokensOf, *, port: Callable[[], int], now_ms: Callable[[], int]) -> None:
        """port: None of its callers dialled another."""
        self._tokens_of = tokens_of
        self._port = port
        self._now_ms = now_ms
        self._key = os.urandom(32)

    def challenge(self, introduced: Introduce) -> Challenge:
        nonce, said_ms = os.urandom(NONCE_BYTES), self._now_ms()
        stamp = self._stamp(introduced, nonce, said_ms)
        tokens = self._tokens_of(is_of_cluster=introduced.is_of_cluster)
        if tokens is None:  # which it is told once it proves something
            return Challenge(nonce=nonce, said_ms=said_ms, stamp=stamp)
        offered = tokens.offered(introduced.name)
        return Challenge(nonce=nonce, said_ms=said_ms, stamp=stamp, in_clear=offered.in_clear, salts=offered.salts)

    def admitted(self, prove: Prove) -> Admission:
        introduced, challenge = prove.introduced, prove.challenge
        stamp = self._stamp(introduced, challenge.nonce, challenge.said_ms)
        now_ms = self._now_ms()
        if not hmac.compare_digest(stamp, challenge.stamp) or not 0 <= now_ms - challenge.said_ms <= ANSWER_MS:
            raise AuthenticationFailed("this answers no challenge of this process, or too late: introduce again")
        tokens = self._tokens_of(is_of_cluster=introduced.is_of_cluster)
        if tokens is None:
            raise AuthenticationFailed(
                f"the caller wants to prove that it knows a token, and none is set here: {CHECK_FILES}"
            )
        token = tokens.proving(introduced.name, prove.proof, "caller", introduced, challenge.nonce, prove.signatures)
        if token is None:
            raise AuthenticationFailed(f"{introduced.name} does not know a token of this cluster: {CHECK_FILES}")
        if introduced.port != self._port():
            raise AuthenticationFailed(passed_on(introduced.port, self._port()))
        session = session_of(introduced, challenge.nonce)
        given = _Ticket(token.name, introduced.is_of_cluster, token.mark, session, now_ms + TICKET_MS)
        return Admission(
            proof=token.proof("server", introduced, challenge.nonce), ticket=self._sealed(given), lasts_ms=TICKET_MS
        )

    def caller(self, ticket: str) -> Caller | None:
        """None if the ticket is not, or no longer, good here."""
        if len(ticket) > TICKET_CHARACTERS_MAX:
            return None
        try:
            raw = base64.urlsafe_b64decode(ticket)
            said, seal = raw[:-32], raw[-32:]
            if not hmac.compare_digest(seal, self._seal(b"ticket", said)):
                return None
            found = msgspec.msgpack.decode(said, type=_Ticket)
        except (ValueError, msgspec.MsgspecError):
            return None
        if found.ends_ms <= self._now_ms():
            return None
        return Caller(found.name, found.is_of_cluster, found.mark, session=found.session)

    def _sealed(self, ticket: _Ticket) -> str:
        said = msgspec.msgpack.encode(ticket)
        return base64.urlsafe_b64encode(said + self._seal(b"ticket", said)).decode()

    def _stamp(self, introduced: Introduce, nonce: bytes, said_ms: int) -> bytes:
        return self._seal(b"challenge", msgspec.msgpack.encode((introduced, nonce, said_ms)))

    def _seal(self, kind: bytes, said: bytes) -> bytes:
        return hmac.digest(self._key, kind + b" " + said, "sha256")

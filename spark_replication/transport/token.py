"""The cluster's shared secret. A Flight server compares it; brokers prove to each other that they know it, unsent."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from typing import Literal, NoReturn

import msgspec

from spark_replication.errors import InvalidConfig
from spark_replication.messages.lane import ClientFrame
from spark_replication.messages.replication import HelloFrame

AUTHORIZATION = "authorization"
TOKEN_BYTES_MAX = 1_024

_SCHEME = "bearer "
_PROOF_VERSION = "spark_replication replication 1"
_SEAL_VERSION = "spark_replication seal 1"

Caller = Literal["follower", "client"]
Side = Literal[Caller, "leader"]


class Token:
    """Only `bearer` shows the secret. A token cannot be pickled: another process reads the file itself."""

    __slots__ = ("_secret",)

    def __init__(self, secret: str) -> None:
        if not secret:
            raise InvalidConfig("the token is empty: put a long random text there")
        if len(secret) > TOKEN_BYTES_MAX or not all("!" <= character <= "~" for character in secret):
            raise InvalidConfig(
                f"the token is not one line of at most {TOKEN_BYTES_MAX} visible ASCII characters without blanks"
            )
        self._secret = secret.encode()

    def __repr__(self) -> str:
        return "Token(…)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a token stays in its process: hand on the name of its file")

    @property
    def bearer(self) -> str:
        """The value of the header."""
        return f"Bearer {self._secret.decode()}"

    def admits(self, headers: Sequence[str]) -> bool:
        """Whether a call may go on. headers: all values of AUTHORIZATION that came with it."""
        if len(headers) != 1 or not headers[0].lower().startswith(_SCHEME):
            return False
        shown = headers[0][len(_SCHEME) :].encode(errors="replace")
        return hmac.compare_digest(shown, self._secret)

    def sealed(self, said: str) -> str:
        """A seal of this text, which only a holder of the secret can make. It cannot be used as a proof."""
        return hmac.digest(self._secret, f"{_SEAL_VERSION} {said}".encode(), "sha256").hex()

    def proof(self, side: Side, hello: HelloFrame | ClientFrame, leader_nonce: bytes) -> bytes:
        """Proves that this side knows the secret, for this connection and this life of the follower only."""
        who = (hello.broker_id, hello.broker_epoch) if isinstance(hello, HelloFrame) else (caller_of(hello),)
        said = (_PROOF_VERSION, side, hello.cluster_id, *who, hello.nonce, leader_nonce)
        return hmac.digest(self._secret, msgspec.msgpack.encode(said), "sha256")

    def proven(self, proof: bytes, side: Side, hello: HelloFrame | ClientFrame, leader_nonce: bytes) -> bool:
        return hmac.compare_digest(proof, self.proof(side, hello, leader_nonce))


def caller_of(hello: HelloFrame | ClientFrame) -> Caller:
    return "follower" if isinstance(hello, HelloFrame) else "client"

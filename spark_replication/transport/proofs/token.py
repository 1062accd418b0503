"""A secret that a principal shares with the cluster. Our own processes prove that they know it, and never send it.

A Flight client of somebody else's may send it in a header. The cluster may have a verifier in its place
(transport.proofs.verifier).
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import Literal, NamedTuple, NoReturn

import msgspec

from spark_replication.errors import InvalidConfig
from spark_replication.messages.introducing import NAME_CHARACTERS_MAX, Introduce
from spark_replication.messages.lane import ClientFrame
from spark_replication.messages.replication import HelloFrame, Salt
from spark_replication.transport.proofs.salting import ROOTS

AUTHORIZATION = "authorization"
CLIENT, BROKER = "client", "broker"  # principals whose tokens have no name
TOKEN_BYTES_MAX = 1_024

_SCHEME = "bearer "
_PROOF_VERSION = "spark_replication proof 3"
_SEAL_VERSION = "spark_replication seal 1"
_SESSION_VERSION = "spark_replication session 1"

#: Who proves something, and by which protocol. The other side is the server.
Caller = Literal["follower", "client", "caller"]
Side = Literal[Caller, "server"]
#: What a caller says of itself, with its nonce, the server's port, and the name of its token.
Hello = HelloFrame | ClientFrame | Introduce


class Proofs(NamedTuple):
    """What proves one token, for a server that has the token, or verifiers of it."""

    #: By the token. Empty if the server has none in the clear.
    proof: bytes
    signatures: tuple[bytes, ...] = ()


class SharedKey:
    """What both sides have, and prove to have."""

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        self._key = key

    def proof(self, side: Side, hello: Hello, server_nonce: bytes) -> bytes:
        """Prove that this side has the key, for this connection only: for this server, and this life of a follower."""
        return hmac.digest(self._key, said(side, hello, server_nonce), "sha256")

    def proven(self, proof: bytes, side: Side, hello: Hello, server_nonce: bytes) -> bool:
        return hmac.compare_digest(proof, self.proof(side, hello, server_nonce))

    def session_key(self, session: bytes) -> bytes:
        """The key to what is proven within a session that began with proofs of this key. See session_of."""
        return hmac.digest(self._key, _SESSION_VERSION.encode() + b" " + session, "sha256")


class Token(SharedKey):
    """Only `bearer` shows the secret. A token cannot be pickled: another process reads the file itself."""

    __slots__ = ("mark", "name")

    def __init__(self, secret: str, name: str = CLIENT) -> None:
        """name: the principal's."""
        if not secret:
            raise InvalidConfig("the token is empty: put a long random text there")
        if len(secret) > TOKEN_BYTES_MAX or not _is_visible(secret):
            raise InvalidConfig(
                f"the token is not one text of at most {TOKEN_BYTES_MAX} visible ASCII characters without blanks"
            )
        require_name(name)
        super().__init__(secret.encode())
        self.name = name
        #: Tells this token from others, and shows nothing of it.
        self.mark = self.sealed(f"mark of {name}")

    def __repr__(self) -> str:
        return f"Token({self.name}, …)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a token stays in its process: hand on the name of its file")

    @property
    def bearer(self) -> str:
        """The value of the header."""
        return f"Bearer {self._key.decode()}"

    def admits(self, headers: Sequence[str]) -> bool:
        """Whether a call may go on. headers: all values of AUTHORIZATION that came with it."""
        secret = secret_shown(headers)
        return secret is not None and self.is_of(secret)

    def is_of(self, secret: bytes) -> bool:
        return hmac.compare_digest(secret, self._key)

    def is_proven_by(self, given: Proofs, side: Caller, hello: Hello, server_nonce: bytes) -> bool:
        return self.proven(given.proof, side, hello, server_nonce)

    def root(self, salt: Salt) -> bytes:
        """What its keys are made of, where the cluster has a verifier of it."""
        return ROOTS.of(self._key, salt)

    def sealed(self, what: str) -> str:
        """A seal of this text, which only a holder of the secret can make. It cannot be used as a proof."""
        return hmac.digest(self._key, f"{_SEAL_VERSION} {what}".encode(), "sha256").hex()


def require_name(name: str) -> None:
    if not name or len(name) > NAME_CHARACTERS_MAX or not _is_visible(name):
        raise InvalidConfig(
            f"the name {name!r} is not of 1 to {NAME_CHARACTERS_MAX} visible ASCII characters without blanks"
        )


def secret_shown(headers: Sequence[str]) -> bytes | None:
    """The token in what came as AUTHORIZATION. None if there is none, or several came."""
    if len(headers) != 1 or not headers[0].lower().startswith(_SCHEME):
        return None
    return headers[0][len(_SCHEME) :].encode(errors="replace")


def said(side: Side, hello: Hello, server_nonce: bytes) -> bytes:
    """What a proof covers."""
    return msgspec.msgpack.encode((_PROOF_VERSION, side, msgspec.msgpack.encode(hello), server_nonce))


def session_of(hello: Hello, server_nonce: bytes) -> bytes:
    """Names the session that began with what both sides have said here. It is no secret."""
    return hashlib.sha256(msgspec.msgpack.encode((hello, server_nonce))).digest()


def caller_of(hello: Hello) -> Caller:
    match hello:
        case HelloFrame():
            return "follower"
        case ClientFrame():
            return "client"
        case Introduce():
            return "caller"


def _is_visible(text: str) -> bool:
    return all("!" <= character <= "~" for character in text)

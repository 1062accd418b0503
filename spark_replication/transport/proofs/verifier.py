"""What a file has in place of a token: enough to know who has the token, and too little to be whom it names.

```
scrypt-ed25519:ln=14,r=8,p=1:SALT:PUBLIC:SERVER          in base64 as URLs have it

root       = scrypt(token, SALT)
private key = HMAC(root, "private key of alice")          of Ed25519: PUBLIC is its other half
SERVER      = HMAC(root, "server key of alice")
```

Whoever has the token makes both keys of it, and signs what is to be proven. The server knows the signature by PUBLIC,
and proves itself by SERVER. Who has read the file can do the server's part, and no client's: a signature shows nothing
of the private key, and is good for one connection.

All verifiers of a file have one salt as a rule (admin.token_files): a token that comes without a name, as in a header,
is then looked at once, and not once for each principal.
"""

from __future__ import annotations

import base64
import hmac
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, NoReturn, Protocol

from spark_replication.errors import InvalidConfig
from spark_replication.messages.replication import COST_MAX, COST_MIN, SALT_BYTES, Salt
from spark_replication.process.extras import importing_for
from spark_replication.transport.proofs.salting import BLOCK, PARALLEL, ROOTS
from spark_replication.transport.proofs.token import (
    Caller,
    Hello,
    Proofs,
    SharedKey,
    Token,
    caller_of,
    require_name,
    said,
    secret_shown,
)

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

KIND = "scrypt-ed25519"
FAMILY = "scrypt-"  # begins what is a verifier, of this kind or of one that is not known
KEY_BYTES = 32

_PARTS = "ln=COST,r=8,p=1", "SALT", "PUBLIC", "SERVER"
#: Seals of verifiers are made with it: what is in the file would make them, too.
_sealing_key = os.urandom(32)


class Asked(Protocol):
    """What a server that asks for a proof says."""

    @property
    def nonce(self) -> bytes: ...
    @property
    def in_clear(self) -> bool: ...
    @property
    def salts(self) -> tuple[Salt, ...]: ...


class Verifier(SharedKey):
    """Its shared key is the server key. A server alone proves something by that: see is_proven_by."""

    __slots__ = ("_public", "mark", "name", "salt")

    def __init__(self, name: str, salt: Salt, public: bytes, server_key: bytes) -> None:
        require_name(name)
        super().__init__(server_key)
        self.name = name
        self.salt = salt
        self._public = public
        #: Tells this verifier from others, and shows nothing of it.
        self.mark = hmac.digest(server_key, f"mark of {name}".encode() + public, "sha256").hex()

    @classmethod
    def of(cls, token: Token, salt: Salt) -> Verifier:
        keys = _Keys(token.root(salt), token.name)
        return cls(token.name, salt, keys.private.public_key().public_bytes_raw(), keys.server_key)

    @classmethod
    def read(cls, name: str, text: str) -> Verifier:
        """Raises InvalidConfig, and NotInstalled where no signature can be looked at."""
        kind, *parts = text.split(":")
        if kind != KIND:
            raise InvalidConfig(f"the verifier of {name} is of a kind that is not known here, {KIND} is: {kind[:40]}")
        if len(parts) != len(_PARTS):
            raise InvalidConfig(f"the verifier of {name} is not {':'.join([KIND, *_PARTS])}: it was cut, or changed")
        salt = Salt(value=_raw(name, "salt", parts[1], SALT_BYTES), cost=_cost(name, parts[0]))
        public, server_key = (
            _raw(name, what, part, KEY_BYTES)
            for what, part in zip(("public key", "server key"), parts[2:], strict=True)
        )
        found = cls(name, salt, public, server_key)
        found._key_to_signatures()
        return found

    def __repr__(self) -> str:
        return f"Verifier({self.name}, …)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a verifier stays in its process: hand on the name of its file")

    @property
    def text(self) -> str:
        """As a file has it."""
        raws = (self.salt.value, self._public, self._key)
        parts = (base64.urlsafe_b64encode(raw).decode().rstrip("=") for raw in raws)
        return ":".join([KIND, f"ln={self.salt.cost},r={BLOCK},p={PARALLEL}", *parts])

    def is_of(self, secret: bytes) -> bool:
        """Whether that is the token. Raises Overloaded: see Roots.tried."""
        keys = _Keys(ROOTS.tried(secret, self.salt), self.name)
        if not hmac.compare_digest(keys.server_key, self._key):
            return False
        ROOTS.is_good(secret, self.salt)
        return True

    def admits(self, headers: Sequence[str]) -> bool:
        """See Token.admits."""
        secret = secret_shown(headers)
        return secret is not None and self.is_of(secret)

    def is_proven_by(self, given: Proofs, side: Caller, hello: Hello, server_nonce: bytes) -> bool:
        """Whether one of these signatures is of whoever has the token. An HMAC by the server key proves nothing here:
        that is in the file."""
        from cryptography.exceptions import InvalidSignature  # it was there as this was read

        what, key = said(side, hello, server_nonce), self._key_to_signatures()
        for signature in given.signatures:
            try:
                key.verify(signature, what)
            except InvalidSignature:
                continue
            return True
        return False

    def sealed(self, what: str) -> str:
        """A seal of this text, which only this process can make: it ends with it."""
        return hmac.digest(_sealing_key, f"{self.mark} {what}".encode(), "sha256").hex()

    def _key_to_signatures(self) -> Ed25519PublicKey:
        with importing_for("a token's verifier"):
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        return Ed25519PublicKey.from_public_bytes(self._public)


#: What a server has of a principal.
Known = Token | Verifier


def proofs_of(token: Token, hello: Hello, asked: Asked) -> Proofs:
    """The client's side: what the server can know the token by. Raises NotInstalled where nothing can be signed."""
    side = caller_of(hello)
    what = said(side, hello, asked.nonce)
    return Proofs(
        token.proof(side, hello, asked.nonce) if asked.in_clear else b"",
        tuple(_Keys(token.root(salt), token.name).private.sign(what) for salt in asked.salts),
    )


def proving_server(token: Token, hello: Hello, asked: Asked, proof: bytes) -> SharedKey | None:
    """What this side has in common with the server, whose proof this is. None: it has nothing that it claimed."""
    shared = [token] if asked.in_clear else []
    keys = (SharedKey(_Keys(token.root(salt), token.name).server_key) for salt in asked.salts)
    return next((key for key in (*shared, *keys) if key.proven(proof, "server", hello, asked.nonce)), None)


class _Keys(NamedTuple):
    root: bytes
    name: str

    @property
    def server_key(self) -> bytes:
        return hmac.digest(self.root, f"server key of {self.name}".encode(), "sha256")

    @property
    def private(self) -> Ed25519PrivateKey:
        with importing_for("a token of which the cluster has a verifier alone"):
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(
            hmac.digest(self.root, f"private key of {self.name}".encode(), "sha256")
        )


def _cost(name: str, part: str) -> int:
    ln, *others = part.split(",")
    digits = ln.removeprefix("ln=")
    if others != [f"r={BLOCK}", f"p={PARALLEL}"] or ln == digits or not (digits.isascii() and digits.isdecimal()):
        raise InvalidConfig(
            f"the verifier of {name} has other parameters of scrypt than ln=COST,r={BLOCK},p={PARALLEL}"
        )
    if not COST_MIN <= int(digits[:4]) <= COST_MAX:
        raise InvalidConfig(
            f"the verifier of {name} has ln={digits[:4]}, and from {COST_MIN} to {COST_MAX} is what clients accept"
        )
    return int(digits[:4])


def _raw(name: str, what: str, text: str, count: int) -> bytes:
    try:
        found = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
    except ValueError:
        found = b""
    if len(found) != count or base64.urlsafe_b64encode(found).decode().rstrip("=") != text:
        raise InvalidConfig(
            f"the {what} of the verifier of {name} is not {count} bytes in base64: it was cut, or changed"
        )
    return found

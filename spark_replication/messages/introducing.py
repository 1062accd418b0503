"""How a caller of a Flight server proves that it knows a token, which is not sent: two actions, and then a ticket.

```
caller                                   server
introduce(name, nonce)          ───▶
                                ◀───     nonce, stamp, salts
prove(all of it, proofs)        ───▶
                                ◀───     HMAC of it, ticket
any call, with the ticket       ───▶
                                ◀───     the answer, HMAC of it (AnswerProof)
```

A proof is an HMAC of all of it by the token, where the server has that, and a signature where it has a verifier of it
(transport.proofs.verifier). The server keeps nothing in between: the stamp is its own proof that it gave this nonce to
this caller, not long ago.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from spark_replication.messages.envelope import Message
from spark_replication.messages.replication import PROVING_VERSION, Nonce, Salts, Signatures
from spark_replication.model import Count, Port

NAME_CHARACTERS_MAX = 255
PROOF_BYTES = 32

PrincipalName = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_CHARACTERS_MAX)]
Proof = Annotated[bytes, msgspec.Meta(min_length=PROOF_BYTES, max_length=PROOF_BYTES)]


class ProvingMessage(Message, frozen=True, kw_only=True):
    versions: ClassVar[tuple[int, ...]] = (PROVING_VERSION,)

    v: int = PROVING_VERSION


class Introduce(ProvingMessage, frozen=True, kw_only=True):
    """Say whose token the caller knows. Anybody may."""

    name: PrincipalName
    #: Whether it is the secret of brokers, controllers and guardians.
    is_of_cluster: bool = False
    #: The server's port, as the caller dialled it: what passes a connection on has another.
    port: Port
    nonce: Nonce


class Challenge(ProvingMessage, frozen=True, kw_only=True):
    """The answer to Introduce."""

    nonce: Nonce
    #: When this was said, by the server's clock.
    said_ms: Count
    stamp: Proof
    #: Whether the server has a token of that name itself.
    in_clear: bool = True
    #: Of the verifiers that it has of that name.
    salts: Salts = ()


class Prove(ProvingMessage, frozen=True, kw_only=True):
    """Prove that the caller knows that token. Anybody may try."""

    introduced: Introduce
    challenge: Challenge
    #: By the token. Empty if the server has no such token.
    proof: Annotated[bytes, msgspec.Meta(max_length=PROOF_BYTES)] = b""
    #: By the private key of each salt.
    signatures: Signatures = ()


class Admission(ProvingMessage, frozen=True, kw_only=True):
    """The answer to Prove: the server knows the token, too."""

    proof: Proof
    #: For the header of calls to this server.
    ticket: str
    lasts_ms: Count


class AnswerProof(Message, frozen=True, kw_only=True):
    """The last message of an answer to an action, for callers that want it: see transport.proofs.answer_proofs."""

    proof: Proof
    #: Whether the message before is the text of an error.
    is_error: bool = False

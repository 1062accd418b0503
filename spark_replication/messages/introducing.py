"""How a caller of a Flight server proves that it knows a token, which is not sent: two actions, and then a ticket.

```
caller                                   server
introduce(name, nonce)          ───▶
                                ◀───     nonce, stamp
prove(all of it, HMAC of it)    ───▶
                                ◀───     HMAC of it, ticket
any call, with the ticket       ───▶
                                ◀───     the answer, HMAC of it (AnswerProof)
```

The server keeps nothing in between: the stamp is its own proof that it gave this nonce to this caller, not long ago.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from spark_replication.messages.envelope import Message
from spark_replication.messages.replication import Nonce
from spark_replication.model import Count, Port

NAME_CHARACTERS_MAX = 255
PROOF_BYTES = 32

PrincipalName = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_CHARACTERS_MAX)]
Proof = Annotated[bytes, msgspec.Meta(min_length=PROOF_BYTES, max_length=PROOF_BYTES)]


class Introduce(Message, frozen=True, kw_only=True):
    """Say whose token the caller knows. Anybody may."""

    name: PrincipalName
    #: Whether it is the secret of brokers, controllers and guardians.
    is_of_cluster: bool = False
    #: The server's port, as the caller dialled it: what passes a connection on has another.
    port: Port
    nonce: Nonce


class Challenge(Message, frozen=True, kw_only=True):
    """The answer to Introduce."""

    nonce: Nonce
    #: When this was said, by the server's clock.
    said_ms: Count
    stamp: Proof


class Prove(Message, frozen=True, kw_only=True):
    """Prove that the caller knows that token. Anybody may try."""

    introduced: Introduce
    challenge: Challenge
    proof: Proof


class Admission(Message, frozen=True, kw_only=True):
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

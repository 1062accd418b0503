"""Proofs that an answer is the server's to whom a ticket belongs, whatever the connection is that it came over (W2).

A ticket is good for minutes, and gRPC connects anew by itself: to whoever has the port of a server that has ended. So
each answer to an action comes with a proof of its own, which its caller checks before it believes a word of it:

```
caller                                              server
action, body, ticket, nonce             ───▶
                                        ◀───        answer, or error; HMAC(session's key, nonce, action, body, answer)
```

Both sides make the session's key of the token and of what was said as the ticket was given; it is never sent. The
server needs its seal to read the ticket, so another server, who knows the token, too, has no key for it. A proof covers
what was asked: who passes calls on changes neither the question nor the answer unseen.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from spark_replication.errors import (
    AuthenticationFailed,
    BrokerNotAvailable,
    InvalidRequest,
    Overloaded,
    ReplicationError,
    UnsupportedVersion,
)
from spark_replication.messages.envelope import from_json, to_json
from spark_replication.messages.introducing import AnswerProof
from spark_replication.messages.replication import NONCE_BYTES

NONCE_HEADER = "spark-replication-nonce"  # of a caller that wants a proof: in hexadecimal

_VERSION = "spark_replication answer 1"


def new_nonce() -> bytes:
    return os.urandom(NONCE_BYTES)


def nonce_of(values: Sequence[str]) -> bytes | None:
    """values: all of that header. None: no proof is wanted, or nobody could give it."""
    try:
        found = bytes.fromhex(values[0]) if len(values) == 1 else b""
    except ValueError:
        return None
    return found if len(found) == NONCE_BYTES else None


class Question(NamedTuple):
    """What was asked, as both sides know it."""

    #: The session's.
    key: bytes
    nonce: bytes
    action: str
    body: bytes

    def answered(self, answer: bytes, *, is_error: bool = False) -> list[bytes]:
        """The server's side: the messages of the answer."""
        return [answer, to_json(AnswerProof(proof=self._proof(answer, is_error=is_error), is_error=is_error))]

    def believed(self, messages: Sequence[bytes], address: str) -> tuple[bytes, bool]:
        """The caller's side: the answer, and whether it is the text of an error. Raises BrokerNotAvailable if that was
        not proven."""
        try:
            answer, last = messages
            told = from_json(last, AnswerProof)
        except (ValueError, InvalidRequest):
            raise unproven_answer(address, f"it came with {len(messages)} messages") from None
        if not hmac.compare_digest(told.proof, self._proof(answer, is_error=told.is_error)):
            raise unproven_answer(address, "its proof is wrong")
        return answer, told.is_error

    def _proof(self, answer: bytes, *, is_error: bool) -> bytes:
        said = (_VERSION, self.nonce, self.action, self.body, answer, is_error)
        return hmac.digest(self.key, msgspec.msgpack.encode(said), "sha256")


def believed_unproven(error: ReplicationError, address: str) -> ReplicationError:
    """What an error says that comes before its sender has proven anything. Who has no business there may say of a topic
    what it likes."""
    if isinstance(error, (AuthenticationFailed, Overloaded, UnsupportedVersion)):
        return error
    return unproven_answer(address, str(error))


def unproven_answer(address: str, what: str) -> BrokerNotAvailable:
    return BrokerNotAvailable(
        f"an answer from {address} did not prove that it is of the server that was asked, and is not believed: {what}. "
        "Another program may have the port of a server that has ended, or the server is of an earlier release",
        maybe_written=True,
    )

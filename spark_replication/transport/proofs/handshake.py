"""How a replication connection begins, on both sides.

A follower says who it is, and a client says that it is one. If the cluster has a token, both sides prove that they know
it, without sending it.

```
follower, or client                     leader
Hello, or Client(nonce)        ───▶
                               ◀───    Challenge(nonce, salts)
Proof(of all the above)        ───▶
                               ◀───    Proof, or Error
                               ◀───    Welcome, to a client
```

A proof is an HMAC by the token. Where the leader has a verifier in the token's place (transport.proofs.verifier), the
other side signs, and the leader's proof is an HMAC by the verifier's server key.

The leader proves nothing to a stranger, who could try guesses against a proof. A proof covers both nonces, so that it
serves once only, and the leader's port, so that it serves nobody who passes it on. It names its side, so that it cannot
be sent back as the answer. Without a token Hello is all.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from msgspec import UNSET
from msgspec.structs import replace

from spark_replication.decoding import error_of
from spark_replication.errors import (
    AuthenticationFailed,
    InvalidRequest,
    ReplicationError,
    UnsupportedVersion,
)
from spark_replication.messages.frames import Frame
from spark_replication.messages.lane import ClientFrame, WelcomeFrame
from spark_replication.messages.replication import (
    NONCE_BYTES,
    PROVING_VERSION,
    ChallengeFrame,
    ErrorFrame,
    HelloFrame,
    ProofFrame,
)
from spark_replication.transport.proofs.answer_proofs import believed_unproven
from spark_replication.transport.proofs.caller import ANYBODY, Caller
from spark_replication.transport.proofs.tickets import CHECK_FILES, passed_on
from spark_replication.transport.proofs.token import caller_of
from spark_replication.transport.proofs.tokens import Tokens
from spark_replication.transport.proofs.verifier import Known, proofs_of, proving_server
from spark_replication.transport.sockets.frames import Channel, FrameReceiver, encoded, send


class _Opening:
    """Exchanges frames with a peer that is not known yet, all of them within one timeout."""

    def __init__(self, channel: Channel, receiver: FrameReceiver, timeout_s: float) -> None:
        self._channel = channel
        self._receiver = receiver
        self._deadline = time.monotonic() + timeout_s

    def _limit(self) -> None:
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the peer did not finish its handshake in time")
        self._channel.settimeout(left_s)

    def say(self, frame: Frame) -> None:
        self._limit()
        send(self._channel, encoded(frame))

    def hear(self) -> Frame:
        frame = self._receiver.receive_first(self._limit)
        if isinstance(frame, ErrorFrame):
            raise error_of(frame.error, frame.message)
        return frame

    def hear_unproven(self) -> Frame:
        """Hear a peer that has proven nothing yet: few of its errors are believed."""
        try:
            return self.hear()
        except ReplicationError as error:
            raise believed_unproven(error, "the peer") from error

    def over(self) -> None:
        self._channel.settimeout(None)


def introduce(
    channel: Channel, receiver: FrameReceiver, hello: HelloFrame, tokens: Tokens | None, timeout_s: float
) -> None:
    """The follower's side."""
    opening = _Opening(channel, receiver, timeout_s)
    _introduce(opening, hello, tokens)
    opening.over()


def introduce_client(
    channel: Channel, receiver: FrameReceiver, hello: ClientFrame, tokens: Tokens | None, timeout_s: float
) -> WelcomeFrame:
    """The client's side."""
    opening = _Opening(channel, receiver, timeout_s)
    _introduce(opening, hello, tokens)
    welcome = opening.hear()
    if not isinstance(welcome, WelcomeFrame):
        raise InvalidRequest(f"a broker welcomes a client, and does not send {type(welcome).__name__}")
    opening.over()
    return welcome


def _introduce(opening: _Opening, hello: HelloFrame | ClientFrame, tokens: Tokens | None) -> None:
    if tokens is None:
        opening.say(replace(hello, port=UNSET))  # as a broker expects it that knows no more
        return
    token = tokens.own
    hello = replace(hello, v=PROVING_VERSION, name=token.name, nonce=os.urandom(NONCE_BYTES))
    opening.say(hello)
    challenge = opening.hear_unproven()
    if not isinstance(challenge, ChallengeFrame):
        raise AuthenticationFailed(f"the leader did not ask for the token: {CHECK_FILES}")
    given = proofs_of(token, hello, challenge)
    opening.say(ProofFrame(proof=given.proof, signatures=given.signatures))
    answer = opening.hear_unproven()
    if not isinstance(answer, ProofFrame) or proving_server(token, hello, challenge, answer.proof) is None:
        raise AuthenticationFailed(f"the leader does not know this cluster's token: {CHECK_FILES}")


def admitted(
    channel: Channel,
    receiver: FrameReceiver,
    tokens_of: Callable[[HelloFrame | ClientFrame], Tokens | None],
    port: int,
    timeout_s: float,
) -> tuple[HelloFrame | ClientFrame, Caller]:
    """The leader's side. Returns what the other side says of itself, and who has proven to be there. tokens_of: one of
    which it has to know then. port: this side's."""
    opening = _Opening(channel, receiver, timeout_s)
    hello = opening.hear()
    if not isinstance(hello, (HelloFrame, ClientFrame)):
        raise InvalidRequest(f"a connection begins with Hello or Client, not with {type(hello).__name__}")
    tokens = tokens_of(hello)
    if tokens is None and hello.nonce is not UNSET:
        raise AuthenticationFailed(
            f"the {caller_of(hello)} wants proof of a token, and none is set here: {CHECK_FILES}"
        )
    if tokens is None:
        caller = ANYBODY
    else:
        token = _checked(opening, hello, tokens, port)
        caller = Caller(token.name, is_of_cluster=isinstance(hello, HelloFrame), mark=token.mark)
    opening.over()
    return hello, caller


def _checked(opening: _Opening, hello: HelloFrame | ClientFrame, tokens: Tokens, port: int) -> Known:
    if hello.nonce is UNSET:
        raise AuthenticationFailed(
            f"this broker wants proof of the cluster's token, and a {caller_of(hello)} has none: {CHECK_FILES}"
        )
    if hello.v != PROVING_VERSION:
        raise UnsupportedVersion(
            f"a {caller_of(hello)} proves its token by version {hello.v} of that, and here {PROVING_VERSION} is known: "
            "upgrade the other side"
        )
    nonce, offered = os.urandom(NONCE_BYTES), tokens.offered(hello.name)
    opening.say(ChallengeFrame(nonce=nonce, in_clear=offered.in_clear, salts=offered.salts))
    answer = opening.hear()
    token = None
    if isinstance(answer, ProofFrame):
        token = tokens.proving(hello.name, answer.proof, caller_of(hello), hello, nonce, answer.signatures)
    if token is None:
        raise AuthenticationFailed(f"a {caller_of(hello)} does not know this cluster's token: {CHECK_FILES}")
    if hello.port != port:
        raise AuthenticationFailed(passed_on(hello.port, port))
    opening.say(ProofFrame(proof=token.proof("server", hello, nonce)))
    return token

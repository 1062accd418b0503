"""How a replication connection begins, on both sides.

The follower says who it is. If the cluster has a token, both sides prove that they know it, without sending it.

```
follower                                leader
Hello(who, nonce)              ───▶
                               ◀───    Challenge(nonce)
Proof(HMAC of all the above)   ───▶
                               ◀───    Proof, or Error
```

The leader proves nothing to a stranger, who could try guesses against a proof. A proof covers both nonces, so that it
serves once only. It names its side, so that it cannot be sent back as the answer. Without a token Hello is all.
"""

from __future__ import annotations

import os
import time

from msgspec import UNSET
from msgspec.structs import replace

from spark_replication.errors import AuthenticationFailed, InvalidRequest, error_of
from spark_replication.messages.replication import (
    NONCE_BYTES,
    ChallengeFrame,
    ErrorFrame,
    Frame,
    HelloFrame,
    ProofFrame,
)
from spark_replication.transport.frames import Channel, FrameReceiver, encoded, send
from spark_replication.transport.token import Token

_CHECK_FILES = "compare security.mode and security.token.file of both brokers"


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

    def over(self) -> None:
        self._channel.settimeout(None)


def introduce(
    channel: Channel, receiver: FrameReceiver, hello: HelloFrame, token: Token | None, timeout_s: float
) -> None:
    """The follower's side."""
    opening = _Opening(channel, receiver, timeout_s)
    if token is None:
        opening.say(hello)
        opening.over()
        return
    hello = replace(hello, nonce=os.urandom(NONCE_BYTES))
    opening.say(hello)
    challenge = opening.hear()
    if not isinstance(challenge, ChallengeFrame):
        raise AuthenticationFailed(f"the leader did not ask for the token: {_CHECK_FILES}")
    opening.say(ProofFrame(proof=token.proof("follower", hello, challenge.nonce)))
    answer = opening.hear()
    if not isinstance(answer, ProofFrame) or not token.proven(answer.proof, "leader", hello, challenge.nonce):
        raise AuthenticationFailed(f"the leader does not know this cluster's token: {_CHECK_FILES}")
    opening.over()


def admitted(channel: Channel, receiver: FrameReceiver, token: Token | None, timeout_s: float) -> HelloFrame:
    """The leader's side. Returns the Hello that says who the follower is."""
    opening = _Opening(channel, receiver, timeout_s)
    hello = opening.hear()
    if not isinstance(hello, HelloFrame):
        raise InvalidRequest(f"a connection begins with Hello, not with {type(hello).__name__}")
    if token is None and hello.nonce is not UNSET:
        raise AuthenticationFailed(f"the follower wants proof of a token, and none is set here: {_CHECK_FILES}")
    if token is not None:
        _check(opening, hello, token)
    opening.over()
    return hello


def _check(opening: _Opening, hello: HelloFrame, token: Token) -> None:
    if hello.nonce is UNSET:
        raise AuthenticationFailed(
            f"this broker wants proof of the cluster's token, and a follower has none: {_CHECK_FILES}"
        )
    nonce = os.urandom(NONCE_BYTES)
    opening.say(ChallengeFrame(nonce=nonce))
    answer = opening.hear()
    if not isinstance(answer, ProofFrame) or not token.proven(answer.proof, "follower", hello, nonce):
        raise AuthenticationFailed(f"a follower does not know this cluster's token: {_CHECK_FILES}")
    opening.say(ProofFrame(proof=token.proof("leader", hello, nonce)))

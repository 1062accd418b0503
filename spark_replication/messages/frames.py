"""All frames of the replication port, and how one becomes bytes. `type` tells them apart.

An unknown version is refused as such, even if the fields are unknown, too.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import ClassVar

import msgspec

from spark_replication import decoding
from spark_replication.decoding import UNDECODABLE
from spark_replication.errors import InvalidRequest
from spark_replication.messages.envelope import VERSION, Message, Versioned, check_told, check_version
from spark_replication.messages.groups import GroupAnswerFrame, GroupFrame, GroupNewsFrame
from spark_replication.messages.lane import (
    ClientFrame,
    PutAnswersFrame,
    PutFrame,
    ReadAnswerFrame,
    ReadFrame,
    StreamFrame,
    ThrottledFrame,
    WelcomeFrame,
)
from spark_replication.messages.replication import (
    PROVING_VERSION,
    ChallengeFrame,
    ErrorFrame,
    FetchedFrame,
    FetchFrame,
    HelloFrame,
    ProofFrame,
)

Frame = (
    HelloFrame
    | ClientFrame
    | ChallengeFrame
    | ProofFrame
    | FetchFrame
    | FetchedFrame
    | WelcomeFrame
    | StreamFrame
    | PutFrame
    | PutAnswersFrame
    | ReadFrame
    | ReadAnswerFrame
    | ThrottledFrame
    | GroupFrame
    | GroupAnswerFrame
    | GroupNewsFrame
    | ErrorFrame
)


class AnyFrame(Message, frozen=True, kw_only=True):
    """A frame that cannot be read: its version alone is looked at."""

    versions: ClassVar[tuple[int, ...]] = (VERSION, PROVING_VERSION)


to_frame: Callable[[Frame], bytes] = msgspec.msgpack.Encoder().encode


def from_frame(data: bytes | memoryview) -> Frame:
    try:
        frame: Frame = decoding.from_msgpack(data, Frame)
    except UNDECODABLE as error:
        with suppress(*UNDECODABLE):  # a newer version may have other fields: then its version is the better answer
            check_told(decoding.from_msgpack(data, Versioned), AnyFrame)
        raise InvalidRequest(f"not a replication frame: {error}") from error
    if frame.v not in frame.versions:
        check_version(frame.v, type(frame))
    return frame

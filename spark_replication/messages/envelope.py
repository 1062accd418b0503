"""The version that every message has, and how a message becomes bytes.

An unknown version is refused with UNSUPPORTED_VERSION, an unknown key with INVALID_REQUEST.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TypeVar

import msgspec

from spark_replication import decoding
from spark_replication.decoding import UNDECODABLE
from spark_replication.errors import InvalidRequest, UnsupportedVersion

VERSION = 1
NONE = "NONE"  # the error code of success, as in Kafka


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    v: int = VERSION


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a message. It has no version of its own."""


class Done(Message, frozen=True, kw_only=True):
    """The answer to a request that is done and returns nothing."""


Kind = TypeVar("Kind", bound=msgspec.Struct)
_json = msgspec.json.Encoder()


class Versioned(msgspec.Struct):
    v: int = VERSION


def to_json(message: msgspec.Struct) -> bytes:
    return _json.encode(message)


def from_json(data: bytes, kind: type[Kind]) -> Kind:
    try:
        message = decoding.from_json(data, kind)
    except UNDECODABLE as error:
        with suppress(*UNDECODABLE):  # a newer version may have other fields: then its version is the better answer
            check_version(decoding.from_json(data, Versioned).v, kind)
        raise InvalidRequest(f"not a {kind.__name__}: {error}") from error
    if isinstance(message, Message):
        check_version(message.v, kind)
    return message


def check_version(found: int, kind: type[msgspec.Struct]) -> None:
    if found != VERSION and issubclass(kind, Message):
        raise UnsupportedVersion(f"{kind.__name__} version {found} is not known here, {VERSION} is: upgrade this side")

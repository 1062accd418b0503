"""The version that every message has, and how a message becomes bytes.

An unknown version is refused with UNSUPPORTED_VERSION, an unknown key with INVALID_REQUEST.
"""

from __future__ import annotations

from contextlib import suppress
from typing import ClassVar, TypeVar

import msgspec

from spark_replication import decoding
from spark_replication.decoding import UNDECODABLE
from spark_replication.errors import InvalidRequest, UnsupportedVersion

VERSION = 1
NONE = "NONE"  # the error code of success, as in Kafka


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    #: Those that are understood here.
    versions: ClassVar[tuple[int, ...]] = (VERSION,)

    v: int = VERSION


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a message. It has no version of its own."""


class Done(Message, frozen=True, kw_only=True):
    """The answer to a request that is done and returns nothing."""


Kind = TypeVar("Kind", bound=msgspec.Struct)
_json = msgspec.json.Encoder()


class Versioned(msgspec.Struct):
    v: int | msgspec.UnsetType = msgspec.UNSET


def to_json(message: msgspec.Struct) -> bytes:
    return _json.encode(message)


def from_json(data: bytes, kind: type[Kind]) -> Kind:
    try:
        message = decoding.from_json(data, kind)
    except UNDECODABLE as error:
        with suppress(*UNDECODABLE):  # a newer version may have other fields: then its version is the better answer
            check_told(decoding.from_json(data, Versioned), kind)
        raise InvalidRequest(f"not a {kind.__name__}: {error}") from error
    if isinstance(message, Message):
        check_version(message.v, kind)
    return message


def check_told(found: Versioned, kind: type[msgspec.Struct]) -> None:
    if found.v is not msgspec.UNSET:
        check_version(found.v, kind)


def check_version(found: int, kind: type[msgspec.Struct]) -> None:
    if issubclass(kind, Message) and found not in kind.versions:
        known = " and ".join(map(str, kind.versions))
        older = "this side" if found > max(kind.versions) else "the other side"
        raise UnsupportedVersion(f"{kind.__name__} version {found} is not known here, {known} is: upgrade {older}")

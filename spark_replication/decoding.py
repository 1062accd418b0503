"""Decodes bytes and plain values into typed values, from any number of threads at one time.

msgspec reads the annotations of a type when it first decodes it. msgspec 0.22 crashes if two threads do so at once: one
may use what the other has only half built. So this module builds one decoder at a time, under a lock. All decoding goes
through this module.
"""

from __future__ import annotations

import re
import threading
from typing import Any, TypeVar

import msgspec

from spark_replication.errors import ReplicationError

# What msgspec raises for bytes from outside: it passes on the errors of Python's own decoder and stack.
UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

Decoded = TypeVar("Decoded")

_json: dict[Any, msgspec.json.Decoder[Any]] = {}
_msgpack: dict[Any, msgspec.msgpack.Decoder[Any]] = {}
_meeting = threading.Lock()


def from_json(data: bytes | str, kind: type[Decoded]) -> Decoded:
    decoder = _json.get(kind)
    if decoder is None:
        with _meeting:
            decoder = _json[kind] = msgspec.json.Decoder(kind)
    found: Decoded = decoder.decode(data)
    return found


def from_msgpack(data: bytes | memoryview, kind: Any) -> Any:
    """Decode into `kind`, a type or a union of types."""
    decoder = _msgpack.get(kind)
    if decoder is None:
        with _meeting:
            decoder = _msgpack[kind] = msgspec.msgpack.Decoder(kind)
    return decoder.decode(data)


def from_builtins(value: Any, kind: type[Decoded], *, strict: bool = True) -> Decoded:
    """strict: otherwise text may stand for numbers."""
    with _meeting:
        return msgspec.convert(value, type=kind, strict=strict)


# Errors that a peer named.


def _tree(kind: type[ReplicationError]) -> list[type[ReplicationError]]:
    return [kind, *(deeper for child in kind.__subclasses__() for deeper in _tree(child))]


_CODE = re.compile(r"\b([A-Z][A-Z_]{4,}): ")
#: Every kind of error.
BY_CODE = {kind.code: kind for kind in _tree(ReplicationError)}


def error_of(code: str, message: str, *, maybe_written: bool = False) -> ReplicationError:
    """The error that a peer named by its code. An unknown code gives a plain ReplicationError, whose text names it."""
    if (kind := BY_CODE.get(code)) is None:
        return ReplicationError(f"{code}: {message}", maybe_written=maybe_written)
    return kind(message, maybe_written=maybe_written)


def error_of_text(text: str) -> ReplicationError | None:
    """The error whose `CODE: message` stands in the text of a library's error. None if there is none."""
    found = next((each for each in _CODE.finditer(text) if each.group(1) in BY_CODE), None)
    return None if found is None else error_of(found.group(1), text[found.end() :])

"""Bytes and plain values into typed ones, from any number of threads at one time.

msgspec reads the annotations of a type when it first meets it. Two threads that do so at once end the process: one may
use what the other has only half made (msgspec 0.22). So types are met here, by one thread at a time, before their first
value is decoded. Whatever decodes goes through this module.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import msgspec

# What msgspec raises for bytes from outside: it lets through what Python's own decoder and stack say.
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
    """kind: a type, or a union of them."""
    decoder = _msgpack.get(kind)
    if decoder is None:
        with _meeting:
            decoder = _msgpack[kind] = msgspec.msgpack.Decoder(kind)
    return decoder.decode(data)


def from_builtins(value: Any, kind: type[Decoded]) -> Decoded:
    with _meeting:
        return msgspec.convert(value, type=kind)

"""What a browser shows of a value: a text of bounded length. No large value is decoded as a whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain, islice

import pyarrow as pa

CELL_CHARACTERS_MAX = 120
BINARY_BYTES_MAX = 24
CUT = "…"


def shown_value(value: pa.Scalar) -> str | None:
    """One line of printable text. None for null, which a text may say, too."""
    if not value.is_valid:
        return None
    if _is_text(value.type):
        return _printable(_head_of_text(value))
    text = "".join(islice(chain.from_iterable(_pieces(value)), CELL_CHARACTERS_MAX + 1))
    return _printable(text if len(text) <= CELL_CHARACTERS_MAX else f"{text[:CELL_CHARACTERS_MAX]}{CUT}")


def _pieces(value: pa.Scalar) -> Iterator[str]:
    """The parts of its text, one after the other: whoever has enough takes no more."""
    kind = value.type
    if not value.is_valid:
        yield "null"
    elif _wraps_another(kind):
        yield from _pieces(value.value)
    elif pa.types.is_struct(kind):
        fields = ((json.dumps(kind[place].name), value[place]) for place in range(len(kind)))
        yield from _joined("{", (chain((name, ": "), _pieces(each)) for name, each in fields), "}")
    elif pa.types.is_map(kind):
        pairs = zip(value.values.field(0), value.values.field(1), strict=True)
        yield from _joined("{", (chain(_pieces(key), (": ",), _pieces(each)) for key, each in pairs), "}")
    elif pa.types.is_nested(kind):
        yield from _joined("[", map(_pieces, value.values), "]")
    elif _is_text(kind):
        yield json.dumps(_head_of_text(value), ensure_ascii=False)
    elif _is_binary(kind):
        yield _head_of_binary(value)
    else:
        yield _atom(value)


def _joined(before: str, items: Iterator[Iterator[str]], after: str) -> Iterator[str]:
    yield before
    for place, item in enumerate(items):
        if place:
            yield ", "
        yield from item
    yield after


def _wraps_another(kind: pa.DataType) -> bool:
    is_one_of_several = pa.types.is_union(kind) or pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind)
    return is_one_of_several or isinstance(kind, pa.BaseExtensionType)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_binary(kind: pa.DataType) -> bool:
    is_sized = pa.types.is_fixed_size_binary(kind) or pa.types.is_binary(kind)
    return bool(is_sized or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))


def _head_of_text(value: pa.Scalar) -> str:
    stored = value.as_buffer()
    head = bytes(memoryview(stored)[: 4 * CELL_CHARACTERS_MAX + 4]).decode(errors="ignore")
    if len(head) <= CELL_CHARACTERS_MAX:
        return head
    return f"{head[:CELL_CHARACTERS_MAX]}{CUT} ({stored.size:,} bytes)"


def _head_of_binary(value: pa.Scalar) -> str:
    stored = value.as_buffer()
    head = bytes(memoryview(stored)[:BINARY_BYTES_MAX]).hex(" ")
    return head if stored.size <= BINARY_BYTES_MAX else f"{head} {CUT} ({stored.size:,} bytes)"


def _atom(value: pa.Scalar) -> str:
    """As Arrow writes it: it knows nanoseconds, and dates of any year."""
    try:
        return str(value.cast(pa.string()).as_py())
    except pa.ArrowException:
        try:
            return str(value.as_py())
        except (ValueError, LookupError, OverflowError):  # a time zone that nobody knows
            return f"({value.type})"


def _printable(text: str) -> str:
    """Write control characters, and those that turn the direction of writing, as escapes."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)

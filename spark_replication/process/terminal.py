"""Text from data, names or errors on its way to a terminal or a log: it is shown, and steers nothing."""

from __future__ import annotations

import re

# Control characters (C0 but newline, DEL, C1), and characters that reorder or hide the text around them.
_STEERING = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")


def harmless(text: str) -> str:
    r"""The text with each escape sequence shown as the text \x1b[…"""
    return _STEERING.sub(lambda found: _escaped(ord(found[0])), text)


def harmless_line(text: str) -> str:
    r"""The same in one line: a newline is shown as the text \n."""
    return harmless(text).replace("\n", "\\n")


def harmless_json(text: str) -> str:
    """The same document: JSON has an escape for every character, and its own newlines and spaces stay."""
    return _STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _escaped(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"

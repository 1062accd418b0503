"""What a notebook shows of a value: HTML in which every name and text is only text.

No background, and no colour but STYLES': the notebook may be light or dark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

# Their contrast is at least 4 to 1, on white and on JupyterLab's dark background (#111).
STYLES: Mapping[str, str] = {
    "healthy": "font-weight: bold; color: #1a8550",
    "degraded": "font-weight: bold; color: #a86d00",
    "critical": "font-weight: bold; color: #de4a24",
    "warning": "font-weight: bold; color: #a86d00",
}


class Markup(str):
    """HTML already: nothing in it is escaped again."""

    __slots__ = ()


def markup(value: Any) -> Markup:
    """Of any value: a list by its members, None as nothing."""
    if isinstance(value, Markup):
        return value
    if isinstance(value, (list, tuple)):
        value = ", ".join(map(str, value))
    return Markup("" if value is None else escape(str(value)))


def styled(kind: str, value: Any = None) -> Markup:
    """kind: whose style it is; a verdict or severity is its own value."""
    return Markup(f'<span style="{STYLES[kind]}">{markup(kind if value is None else value)}</span>')


def link(address: str, value: Any) -> Markup:
    """What is no page of the web is no link: `javascript:`, say."""
    if not address.startswith(("http://", "https://")):
        return markup(f"{value}: {address}")
    return Markup(f'<a href="{escape(address)}" target="_blank" rel="noopener">{markup(value)}</a>')


def joined(*parts: Any) -> Markup:
    return Markup("".join(map(markup, parts)))


def paragraph(*parts: Any) -> Markup:
    return Markup(f"<p>{joined(*parts)}</p>")


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Markup:
    """Columns are shown with spaces in place of underscores."""
    head = "".join(f"<th>{markup(name.replace('_', ' '))}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(f'<td>{markup(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return Markup(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")

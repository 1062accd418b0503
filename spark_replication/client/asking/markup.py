"""HTML for notebooks. Every name and text is escaped.

There is no background, and no colour but those of STYLES: a notebook may be light or dark.
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
    """A string that is HTML: it is not escaped again."""

    __slots__ = ()


def markup(value: Any) -> Markup:
    """The HTML of any value: the members of a list, and nothing for None."""
    if isinstance(value, Markup):
        return value
    if isinstance(value, (list, tuple)):
        value = ", ".join(map(str, value))
    return Markup("" if value is None else escape(str(value)))


def styled(kind: str, value: Any = None) -> Markup:
    """The value in the style of `kind`; without a value, the name of the kind itself (a verdict or a severity)."""
    return Markup(f'<span style="{STYLES[kind]}">{markup(kind if value is None else value)}</span>')


def link(address: str, value: Any) -> Markup:
    """A link, if the address is a web page. Anything else, such as `javascript:`, is shown as text."""
    if not address.startswith(("http://", "https://")):
        return markup(f"{value}: {address}")
    return Markup(f'<a href="{escape(address)}" target="_blank" rel="noopener">{markup(value)}</a>')


def joined(*parts: Any) -> Markup:
    return Markup("".join(map(markup, parts)))


def paragraph(*parts: Any) -> Markup:
    return Markup(f"<p>{joined(*parts)}</p>")


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Markup:
    """A table. Underscores in the names of columns become spaces."""
    head = "".join(f"<th>{markup(name.replace('_', ' '))}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(f'<td>{markup(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return Markup(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")

"""The page itself: one document with its style and its script within, so that a browser fetches nothing but JSON."""

from __future__ import annotations

import gzip
from base64 import b64encode
from hashlib import sha256
from html import escape
from pathlib import Path

FOLDER = Path(__file__).parent / "document"
# Joined in this order into one script: each file uses those before it.
SCRIPTS = ("elements.js", "words.js", "state.js", "charts.js", "grid.js", "tables.js", "views.js", "main.js")
STYLE = "page.css"


class Document:
    """The document, read once from its files."""

    def __init__(self) -> None:
        style, script = _read(STYLE), "".join(_read(name) for name in SCRIPTS)
        html = _read("page.html").replace("{{style}}", style).replace("{{script}}", script)
        self.html = html.encode()
        self.zipped = gzip.compress(self.html, mtime=0)
        self._login = _read("login.html").replace("{{style}}", style)
        self._linked = _read("login_link.html").replace("{{style}}", style)
        self._docs = _read("docs.html").replace("{{style}}", style)
        #: The headers of every answer. They allow this very script and this very style alone.
        self.headers = {
            "Content-Security-Policy": "; ".join(
                (
                    "default-src 'none'",
                    f"script-src '{_hash(script)}'",
                    f"style-src '{_hash(style)}'",
                    "connect-src 'self'",
                    "img-src data:",
                    "form-action 'self'",
                    "base-uri 'none'",
                    "frame-ancestors 'none'",
                )
            ),
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cache-Control": "no-store",
        }

    def login(self, refused: str) -> str:
        """The form that asks for a token."""
        return self._login.replace("{{refused}}", escape(refused))

    def linked(self, refused: str) -> str:
        """What is shown to who comes without the link that lets in."""
        return self._linked.replace("{{refused}}", escape(refused))

    def docs(self, title: str, body: str) -> bytes:
        """A page of the guide. `body` is HTML."""
        return self._docs.replace("{{title}}", escape(title)).replace("{{body}}", body).encode()


def _read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"

"""The page itself: one document with its style and its script within, so that a browser fetches nothing but JSON."""

from __future__ import annotations

import gzip
from base64 import b64encode
from hashlib import sha256
from html import escape
from pathlib import Path

FOLDER = Path(__file__).parent / "document"
# Joined in this order into one script: each file uses those before it.
SCRIPTS = (
    "elements.js",
    "words.js",
    "state.js",
    "charts.js",
    "grid.js",
    "tables.js",
    "views.js",
    "groups.js",
    "records.js",
    "main.js",
)
STYLE = "page.css"
TITLE = "spark_replication"


class Document:
    """The document, read once from its files."""

    def __init__(self) -> None:
        style, script = _read(STYLE), "".join(_read(name) for name in SCRIPTS)
        self._layout = _read("layout.html").replace("{{style}}", style)
        self.html = self._laid_out(_read("page.html").replace("{{script}}", script)).encode()
        self.zipped = gzip.compress(self.html, mtime=0)
        self._login = self._laid_out(_read("login.html"))
        self._linked = self._laid_out(_read("login_link.html"))
        self._docs = _read("docs.html")
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
        return self._laid_out(self._docs.replace("{{body}}", body), f"{escape(title)} – {TITLE}").encode()

    def _laid_out(self, body: str, title: str = TITLE) -> str:
        return self._layout.replace("{{title}}", title).replace("{{body}}", body.rstrip("\n"))


def _read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"

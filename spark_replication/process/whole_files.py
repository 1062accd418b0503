"""Small files of a process that others read while it writes them."""

from __future__ import annotations

from pathlib import Path


def replace_text(path: Path, text: str) -> None:
    """Write the file whole or not at all. It is not flushed to the disk: what must outlive the host is not written so.
    One process at a time writes it, which has a lock on its folder."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)

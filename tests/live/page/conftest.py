"""A browser's tab, and the folder for pictures of what it shows."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live.page.chromium import Tab, chromium

WIDTHS = (1280, 400)


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(os.environ.get("PICTURES") or tmp_path_factory.mktemp("pictures"))
    folder.mkdir(parents=True, exist_ok=True)
    sys.stderr.write(f"pictures of the page: {folder}\n")
    return folder


@pytest.fixture
def tab(tmp_path: Path) -> Iterator[Tab]:
    with chromium(tmp_path) as found:
        found.size(WIDTHS[0], 900, is_dark=False)
        yield found
        assert found.said == []


def drawn(tab: Tab) -> Any:
    """Whether the grid, or what else the view is, stands there."""
    return tab.ask(
        "document.documentElement?.dataset.version && document.getElementById('view')?.innerText.length > 40"
    )


def show(tab: Tab, url: str, text: str) -> None:
    tab.open(url)
    tab.wait(lambda: drawn(tab), f"{url} is drawn")
    says(tab, text)


def says(tab: Tab, text: str, timeout_s: float = 30.0) -> float:
    return tab.wait(lambda: text in tab.text(), f"the page says {text!r}", timeout_s)


def photograph(tab: Tab, url: str, pictures: Path, name: str, text: str) -> None:
    """In each of both schemes and widths; nothing is wider than the window."""
    for width in WIDTHS:
        for scheme in ("light", "dark"):
            tab.size(width, 900, is_dark=scheme == "dark")
            show(tab, url, text)
            assert tab.ask("document.documentElement.scrollWidth") <= width, (name, width)
            tab.picture(pictures / f"{name}-{width}-{scheme}.png", whole=True)
    tab.size(WIDTHS[0], 900, is_dark=False)

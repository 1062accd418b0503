"""Logs in a temporary folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.storage.storage_stories import Open, StoryLog, log_in


@pytest.fixture
def open_log(tmp_path: Path) -> Iterator[Open]:
    """Opens (again) the log in `tmp_path/name`, recovering it; all are closed at the end."""
    opened: list[StoryLog] = []

    def opener(name: str = "leader", **given: Any) -> StoryLog:
        (tmp_path / name).mkdir(exist_ok=True)
        opened.append(log_in(tmp_path / name, **given))
        return opened[-1]

    yield opener
    for log in opened:
        log.close()

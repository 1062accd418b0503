"""Every test here is marked `hosts`, and left out, with what is missing, where no hosts can be made."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hosts.bed import lacking

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ours = [item for item in items if HERE in item.path.parents]
    missing = lacking() if ours else ""
    for item in ours:
        item.add_marker(pytest.mark.hosts)
        if missing:
            item.add_marker(pytest.mark.skip(reason=missing))

"""Tests that start processes take turns in one of the workers of `make test`; the others run beside them."""

from __future__ import annotations

from typing import Any

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

# How long an example takes is the machine's business, which other tests share.
hypothesis.settings.register_profile("shared", deadline=None)
hypothesis.settings.load_profile("shared")


class ProcessesTakeTurns(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    def _split_scope(self, nodeid: str) -> str:
        return "processes" if nodeid.startswith("tests/live/") else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ProcessesTakeTurns | None:
    return ProcessesTakeTurns(config, log) if config.getvalue("dist") == "loadscope" else None

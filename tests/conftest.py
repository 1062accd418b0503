"""Of the workers of `make test` one runs the tests that start brokers and ZooKeepers, in turn, another those that start
a Spark cluster, and the third those that share a Spark session; whatever is left runs in each once it is free."""

from __future__ import annotations

import os
from typing import Any

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

from spark_replication.process.java import QUICK_START

# How long an example takes is the machine's business, which other tests share.
hypothesis.settings.register_profile("shared", deadline=None)
hypothesis.settings.load_profile("shared")

os.environ.setdefault("JDK_JAVA_OPTIONS", " ".join(QUICK_START))


class ProcessesTakeTurns(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    def _split_scope(self, nodeid: str) -> str:
        live, _, rest = nodeid.partition("tests/live/")
        if live or not rest:
            return nodeid
        folder = rest.partition("/")[0]
        return folder if folder in ("spark", "mirror") else "processes"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ProcessesTakeTurns | None:
    return ProcessesTakeTurns(config, log) if config.getvalue("dist") == "loadscope" else None

"""Of the workers of `make check` each has its share of every file: those that wait keep nobody waiting at the end.

Of the two of `make test` and `make trust` one runs all tests with real processes, in turn: Spark gives a Python process
that plans a stream 10 s to begin, and no setting changes that; three such workers left one too little of two
processors. The other runs what nothing waits for, on what the first leaves of the processors.

`make trust` begins with another module each time. With TRUST_S in its environment it begins no test after so many
seconds, and says how many it left out.

A failure is named as it comes: a run may be ended before it can tell of all at its end."""

from __future__ import annotations

import gc
import logging
import os
import random
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

from spark_replication.process.java import QUICK_START

# How long an example takes is the machine's business, which other tests share.
hypothesis.settings.register_profile("shared", deadline=None)
hypothesis.settings.register_profile("quick", deadline=None, max_examples=25)  # `make check`
hypothesis.settings.load_profile("shared")

os.environ.setdefault("JDK_JAVA_OPTIONS", " ".join(QUICK_START))


# Where tests/sim/test_fresh_seeds.py begins. Set before xdist starts its workers, so that all of them agree.
FRESH_SEEDS_FROM = "FRESH_SEEDS_FROM"
os.environ.setdefault(FRESH_SEEDS_FROM, str(secrets.randbelow(1 << 32)))


# The worker that is patient if one is, and how nice it is.
PATIENT = "gw1"
LIVE = "live"  # all tests with real processes
NICE = 10
AUTOGROUP = Path("/proc/self/autogroup")  # how nice the whole session is, where Linux was built for that

TRUST, TRUST_S, TRUST_UNTIL = "trust", "TRUST_S", "TRUST_UNTIL"
if TRUST_S in os.environ:
    os.environ.setdefault(TRUST_UNTIL, str(time.time() + float(os.environ[TRUST_S])))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--patient", action="store_true", help="the second worker runs what has no processes, and is nice")


def pytest_configure(config: pytest.Config) -> None:
    """Linux shares processors evenly between sessions. Each broker has one, and all workers with their Spark sessions
    were in another together, with Spark's planners, which it gives 10 s to begin. So each worker has one, too, where
    nobody presses Ctrl-C, which would not reach it. How nice a process is counts within its session only."""
    worker = getattr(config, "workerinput", {}).get("workerid")
    if worker is None:
        config.pluginmanager.register(FailuresAtOnce(config))
    in_own_session = "CI" in os.environ and worker is not None
    if in_own_session:
        os.setsid()
    if worker == PATIENT and config.getoption("patient"):
        os.nice(NICE)
        if in_own_session and AUTOGROUP.exists():
            AUTOGROUP.write_text(str(NICE))


@pytest.fixture(autouse=True)
def spark_keeps_its_log_format_to_itself(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """pytest listens to each logger that keeps its lines to itself, which two of Spark's do from their first error on:
    and they give their own format to whoever listens."""
    ours = caplog.handler.formatter
    yield
    caplog.handler.setFormatter(ours)
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        if name in logging.root.manager.loggerDict:
            logging.getLogger(name).propagate = True


class FailuresAtOnce:
    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            terminal.write_line(f"\nFAILED in its {report.when}: {report.nodeid}")


def pytest_report_header() -> str:
    first = os.environ[FRESH_SEEDS_FROM]
    return f"fresh seeds of the simulator: from {first} on; `make fresh FROM={first}` runs them again"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is imported and collected stays to the end: to look through it for garbage again and again is a third of
    the work of a worker that collects, and some of each test's."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["dist"] = node.config.getvalue("dist")  # xdist itself tells its workers "no"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deals the tests out as cards are dealt, and lets each worker begin at another place of its hand. `worksteal`
    gives it neighbours to begin with: one that held all of a client's deadlines would wait for them at the end."""
    if config.getoption("markexpr") == TRUST:
        modules = sorted({item.path for item in items})
        random.Random(os.environ[FRESH_SEEDS_FROM]).shuffle(modules)
        places = {path: place for place, path in enumerate(modules)}
        items.sort(key=lambda item: places[item.path])
    told = getattr(config, "workerinput", {})
    if told.get("dist") == "worksteal":
        workers = told["workercount"]
        hands = [items[worker::workers] for worker in range(workers)]
        begins = [worker * len(hand) // workers for worker, hand in enumerate(hands)]
        items[:] = [item for hand, begin in zip(hands, begins, strict=True) for item in hand[begin:] + hand[:begin]]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    until = os.environ.get(TRUST_UNTIL)
    if until is not None and time.time() > float(until) and item.get_closest_marker(TRUST) is not None:
        pytest.skip(f"{os.environ[TRUST_S]} s are over: `make {TRUST}` runs all")


class ProcessesTakeTurns(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    def _split_scope(self, nodeid: str) -> str:
        return LIVE if nodeid.startswith(("tests/hosts/", "tests/live/")) else nodeid

    def _reschedule(self, node: Any) -> None:
        if self._is_patient(node) and not node.shutting_down and self._without_processes() is None:
            node.shutdown()
        else:
            super()._reschedule(node)

    def _assign_work_unit(self, node: Any) -> None:
        if self._is_patient(node):
            if (scope := self._without_processes()) is not None:
                self.workqueue.move_to_end(scope, last=False)
        elif LIVE in self.workqueue:
            self.workqueue.move_to_end(LIVE, last=False)
        super()._assign_work_unit(node)

    def _is_patient(self, node: Any) -> bool:
        return node.gateway.id == PATIENT and bool(self.config.getoption("patient"))

    def _without_processes(self) -> str | None:
        return next((scope for scope in self.workqueue if scope != LIVE), None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ProcessesTakeTurns | None:
    return ProcessesTakeTurns(config, log) if config.getvalue("dist") == "loadscope" else None

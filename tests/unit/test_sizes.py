"""Modules, functions and names have a size that a reader can hold. What is larger is listed here, and gets smaller."""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

from tests.unit.sources import statements

PACKAGE = Path(__file__).parents[2] / "spark_replication"
LINES_MAX = 500
FUNCTION_LINES_MAX = 60
# Programs of their own, whose names nobody meets beside the product's.
TOOLS = ("admin/", "sim/", "page/")
# Who works on one of these takes it off the list. None may be added, and none may stay once it fits.
LARGE_MODULES = {
    "client/asking/admin.py",
    "config.py",
    "core/controller/cluster.py",
    "engine/broker/broker_loop.py",
    "engine/ends/fetch_session.py",
    "live/broker/life.py",
    "live/controller/host.py",
    "sim/injector.py",
    "sim/judges/checkers.py",
    "sim/scenarios/cluster_scenario.py",
    "spark/cluster.py",
    "storage/log/partition_log.py",
    "zk/session.py",
}
LARGE_FUNCTIONS = {
    "live/broker/life.py: _recover",
}


@cache
def modules() -> dict[str, str]:
    return {str(path.relative_to(PACKAGE)): path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}


def test_a_module_has_at_most_five_hundred_lines() -> None:
    assert {name for name, text in modules().items() if len(text.splitlines()) > LINES_MAX} == LARGE_MODULES


def test_a_function_has_at_most_sixty_lines() -> None:
    found = {
        f"{name}: {node.name}"
        for name, text in modules().items()
        for node in statements(ast.parse(text))
        if isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) - node.lineno >= FUNCTION_LINES_MAX
    }
    assert found == LARGE_FUNCTIONS


def test_a_class_has_one_home() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for name, text in modules().items():
        if not name.startswith(TOOLS):
            for node in ast.parse(text).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    homes[node.name].append(name)
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}

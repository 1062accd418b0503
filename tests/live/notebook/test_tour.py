"""The tour runs from top to bottom in a kernel without Spark, and its charts show without a network."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import spark_replication as sr
from spark_replication.admin.notebook.frames import BROKER_COLUMNS, LAG_COLUMNS
from spark_replication.config import BOOTSTRAP_VARIABLE

pytestmark = [pytest.mark.trust, pytest.mark.live, pytest.mark.timeout(180)]

ROOT = Path(__file__).parents[3]
TIMEOUT_S = 120.0
# What fetches: an address of Vega's schema, or of SVG's names, is a name.
FETCHES = re.compile(r"""(?:src|href)\s*=\s*["']?\s*(?:https?:)?//|@import|\bimport\s*\(|"url"\s*:""")


@pytest.fixture(scope="module")
def toured() -> dict[str, Any]:
    with sr.LocalCluster.start(brokers=3) as cluster:
        ran = subprocess.run(
            [sys.executable, "tests/live/notebook/run_cells.py", "jobs/notebooks/tour.py"],
            cwd=ROOT,
            env={**os.environ, BOOTSTRAP_VARIABLE: cluster.zookeeper, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
        assert ran.returncode == 0, ran.stderr
        assert cluster.admin.describe_topics() == []
    return dict(json.loads(ran.stdout))


@pytest.fixture
def cells(toured: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """By their last line."""
    return {cell["code"].splitlines()[-1]: cell for cell in toured["cells"]}


def test_a_kernel_without_spark_is_enough(toured: dict[str, Any]) -> None:
    assert not {"pyspark", "py4j", "delta"} & {*toured["modules"]}


def test_the_verdict_comes_first(cells: dict[str, dict[str, Any]]) -> None:
    assert cells["cluster"]["html"].startswith("<p><span style=")
    assert ">healthy</span>: 3 brokers, 0 topics, 0 partitions" in cells["cluster"]["html"]
    assert cells["health"]["text"].startswith("Health(healthy: 3 brokers, 0 topics, 0 partitions, controller ")


def test_tables_have_their_columns(cells: dict[str, dict[str, Any]]) -> None:
    assert cells["cluster.brokers()"]["columns"] == BROKER_COLUMNS.names
    assert cells["cluster.lag([TOPIC])"]["columns"] == LAG_COLUMNS.names
    assert cells['moved[["partition", "leader", "replicas"]]']["columns"] == ["partition", "leader", "replicas"]


@pytest.mark.parametrize("drawn", ["cluster.grid()", "cluster.timeline(TOPIC, since=began)"])
def test_charts_bring_along_what_draws_them(cells: dict[str, dict[str, Any]], drawn: str) -> None:
    html = cells[drawn]["html"]
    assert cells[drawn]["kind"] == "OfflineChart"
    assert "window.vegaEmbed = " in html or "window.vegaEmbed=" in html
    assert FETCHES.findall(html) == []


def test_a_plan_is_shown_before_it_is_applied(cells: dict[str, dict[str, Any]]) -> None:
    assert "partitions change" in cells["plan"]["html"]
    assert " MiB</td>" in cells["plan"]["html"] or " KiB</td>" in cells["plan"]["html"]
    assert " a second</p>" in cells["plan"]["html"]
    applied = cells["refused"]
    assert applied["text"] == "{}"
    assert re.fullmatch(r"(\d+) of \1 partitions have begun to move", applied["printed"].splitlines()[0])
    assert re.fullmatch(r"(\d+) of \1 partitions have moved", applied["printed"].splitlines()[-1])


def test_a_drill_loses_nothing(cells: dict[str, dict[str, Any]]) -> None:
    assert cells["drill"]["text"].startswith("DrillResult(passed: kill -9 of broker ")
    assert ", lost 0, doubled 0" in cells["drill"]["html"]

"""A session as users have it: of their own process, or of Spark Connect, of which only the client is in it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live.datasource.stories import Topic

pytestmark = [pytest.mark.trust, pytest.mark.live, pytest.mark.spark, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[3]
TIMEOUT_S = 300


@pytest.mark.parametrize("session", [None, "--connect"], ids=["of_its_own", "connect"])
def test_a_session_that_is_told_of_a_cluster_asks_its_views_and_writes_and_reads_its_topics(
    topic: Topic, tmp_path: Path, session: str | None
) -> None:
    there = topic.another("there")
    copy = topic.another("copy")
    cluster = topic.cluster
    told = {"bootstrap": cluster.bootstrap, "mirror": cluster.mirror_path, "folder": tmp_path}
    told |= {"topic": there.name, "copy": copy.name}
    options = [f"--{name}={value}" for name, value in told.items()]
    driver = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("connected.py")), *options, *filter(None, [session])],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert driver.returncode == 0, driver.stderr
    assert driver.stdout.endswith("100 rows, 100 copied\n")


def test_a_server_whose_python_does_not_have_the_package_is_told_of(tmp_path: Path) -> None:
    """The one that this environment was made with: Spark gives it PySpark, and nobody gives it the rest."""
    bare = Path(sys.base_prefix) / "bin" / "python3.11"
    options = ("--bootstrap=127.0.0.1:1", "--mirror=", "--topic=none", "--copy=none", f"--folder={tmp_path}")
    driver = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("connected.py")), *options, "--connect"],
        env={**os.environ, "PYSPARK_PYTHON": str(bare), "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert driver.returncode != 0
    assert "InvalidRequest: INVALID_REQUEST: the Python that this session's server starts for tasks has no " in (
        driver.stderr
    )

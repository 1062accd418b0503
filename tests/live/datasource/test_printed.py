"""What README and the guide print, run as printed: a page's blocks one after the other, against a cluster of four
brokers that has the topic `orders`, and the table `clicks`. tests/printed.py names the blocks that are run
elsewhere."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import spark_replication as sr
from tests.live.wheel.printed_python import BATCH, SCHEMA, placed
from tests.printed import BLOCKS, GUIDE, ROOT, Block, why_not_run

pytestmark = [pytest.mark.live, pytest.mark.spark, pytest.mark.timeout(300)]

LINE_S = 120
PAGES = sorted({block.page for block in BLOCKS if why_not_run(block) is None and block.language != "text"})
#: Commands that go on until Ctrl-C.
_ENDLESS = ("--watch", "--follow")
#: 1 and 2 tell how the cluster is.
_EXITS = {"health": (0, 1, 2)}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sr.LocalCluster]:
    """Where the commands run, as a checkout that has a cluster: with `.data`, `jobs` and `conf`."""
    home = tmp_path_factory.mktemp("home")
    with sr.LocalCluster.start(brokers=4, directory=home / ".data") as cluster:
        for name in ("jobs", "conf", "tests"):
            (home / name).symlink_to(ROOT / name)
        cluster.admin.create_topic("orders", SCHEMA, partitions=6)
        cluster.admin.create_topic("clicks", SCHEMA, partitions=2, config={"table": True})
        with sr.Producer(cluster.bootstrap) as producer:
            for partition in range(6):
                producer.send("orders", BATCH, partition=partition).result(30)
        yield cluster


@pytest.mark.parametrize("page", PAGES)
def test_a_page_does_what_it_prints(
    page: str, served: sr.LocalCluster, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = served.directory.parent
    monkeypatch.chdir(home)
    monkeypatch.setenv("SPARK_REPLICATION_BOOTSTRAP", served.zookeeper)
    served.wait_healthy()
    with sr.Producer(served.bootstrap) as producer:
        given = {"cluster": served, "producer": producer}
        scope: dict[str, Any] = {"pa": pa, "sr": sr, "spark": spark, "batch": BATCH, **given}
        scope |= {"frame": BATCH.to_pandas(), "bootstrap": served.bootstrap}
        for block in BLOCKS:
            if block.page != page or why_not_run(block) is not None:
                continue
            if block.language == "python":
                _run(block, scope, served, tmp_path)
                scope |= given if page == "python" else {}  # its first block has closed its own
            for line in block.commands:
                _type(line, served, home)
    for query in spark.streams.active:
        query.stop()


def test_each_metric_of_a_cluster_is_in_the_reference(served: sr.LocalCluster) -> None:
    page = (GUIDE / "reference" / "metrics.md").read_text()
    told = [served.admin.metrics(broker, per_partition=True) for broker in (None, 1)]
    names = {name for text in told for name in re.findall(r"^# HELP (spark_replication_\w+)", text, re.MULTILINE)}
    assert len(names) > 50
    assert sorted(name for name in names if f"`{name}`" not in page) == []


def _run(block: Block, scope: dict[str, Any], cluster: sr.LocalCluster, folder: Path) -> None:
    text = placed(block.text, cluster).replace('"/data/', f'"{folder}/')
    text = text.replace(".data/mirror", f"{cluster.directory}/mirror")  # the JVM was not started in this folder
    if block.text.startswith("    "):
        text = f"if True:\n{text}"
    exec(compile(text, f"<{block.page}: {block.first}>", "exec"), scope)
    if (query := scope.get("query")) is not None:
        query.processAllAvailable()


def _type(line: str, cluster: sr.LocalCluster, home: Path) -> None:
    if line.startswith("export "):
        return  # as it is in this process's environment
    python = [sys.executable, "-m", "spark_replication"]
    text = re.sub(r"^(\.venv/bin/)?spark-replication\b", " ".join(python), placed(line, cluster))
    text = re.sub(r"^\.venv/bin/python\b", sys.executable, text)
    text = text.replace("/var/lib/broker-1", str(cluster.directory / "logs" / "broker-1"))
    process = subprocess.Popen(
        ["bash", "-c", f"exec {text}"],
        cwd=home,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    first = ""
    if any(each in line for each in _ENDLESS):
        assert process.stdout is not None
        first = process.stdout.readline()
        process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=LINE_S)
    command = line.partition("spark-replication ")[2].partition(" ")[0]
    assert process.returncode in _EXITS.get(command, (0,)), (line, first, output, errors)
    assert "Traceback" not in errors, (line, errors)

"""A declarative pipeline, by `spark-pipelines` as people run it: a table of a topic, and a sink into another."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import spark_replication as sr
from tests.live.datasource.stories import Topic

pytestmark = [pytest.mark.trust, pytest.mark.live, pytest.mark.spark, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[3]
TIMEOUT_S = 300
SPEC = """
name: orders
storage: {storage}
libraries:
  - glob:
      include: definitions/**
configuration:
  spark.sql.python.filterPushdown.enabled: "true"
  spark.sql.adaptive.streaming.stateless.enabled: "false"
"""
DEFINITIONS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

import spark_replication as sr

spark = SparkSession.active()
sr.register(spark, bootstrap="{bootstrap}")


@dp.table
def orders():
    return spark.readStream.format("replicated_log").options(topic="{topic}", startingOffsets="earliest").load()


dp.create_sink("copies", "replicated_log", {{"topic": "{copy}"}})


@dp.append_flow(target="copies")
def copied():
    return spark.readStream.table("orders")
"""


def ran(folder: Path) -> str:
    """What it says. Its exit code tells nothing: once a run is complete, the client of Spark 4.2 does not know what
    Python's workers report (UNKNOWN_RESPONSE), whichever data source of Python's the pipeline has."""
    program = Path(sys.executable).with_name("spark-pipelines")
    quiet = ["--conf", "spark.ui.enabled=false", "--conf", "spark.driver.memory=512m"]
    done = subprocess.run(
        [str(program), "run", *quiet, "--spec", "spark-pipeline.yml"],
        env={
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
            "SPARK_TESTING": "1",  # Spark then takes a port of the system
        },
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    return done.stdout + done.stderr


def test_a_pipeline_has_a_table_of_a_topic_and_a_sink_into_another(topic: Topic, tmp_path: Path) -> None:
    copy = topic.another("copy")
    topic.fill(0, 10, 20)
    (tmp_path / "spark-pipeline.yml").write_text(SPEC.format(storage=(tmp_path / "storage").as_uri()))
    definitions = tmp_path / "definitions"
    definitions.mkdir()
    told = {"bootstrap": topic.cluster.bootstrap, "topic": topic.name, "copy": copy.name}
    (definitions / "orders.py").write_text(DEFINITIONS.format(**told))
    said = ran(tmp_path)
    assert "Run is COMPLETED" in said, said
    with sr.Reader(topic.cluster.bootstrap) as reader:
        found = sorted(each for batch in reader.read(copy.name) for each in batch.batch.column("id").to_pylist())
    assert found == [*range(30)], said

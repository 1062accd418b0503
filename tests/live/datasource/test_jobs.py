"""The jobs that produce and read orders, as Spark jobs: what they say is what is there."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from threading import Event

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

import spark_replication as sr
from spark_replication.admin.jobs.order_load import SCHEMA
from spark_replication.admin.jobs.order_pipeline import orders_into
from tests.live.cluster.waiting import eventually
from tests.live.datasource.stories import Topic

pytestmark = [pytest.mark.trust, pytest.mark.live, pytest.mark.spark, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[3]
TIMEOUT_S = 120
ROWS = 30_000


def python(*command: str) -> subprocess.Popen[str]:
    return started(sys.executable, *command)


def submit(*command: str) -> subprocess.Popen[str]:
    """By pyspark's own spark-submit, which gives errors out with the rest, as the guide prints it: no `--jars`."""
    conf = ("--master", "local[2]", "--conf", "spark.driver.memory=512m")
    script = Path(sys.prefix) / "bin" / "spark-submit"
    return started(str(script), *conf, "--properties-file", "conf/spark-defaults.conf", *command)


def started(*command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    output, errors = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, output, errors


def test_a_load_and_a_stream_into_a_table_by_spark_submit(
    cluster: sr.LocalCluster, spark: SparkSession, tmp_path: Path
) -> None:
    where = ("--bootstrap", cluster.zookeeper, "--topic", "spark-orders")
    code, output, errors = ended(submit("jobs/produce_orders.py", *where, "--spark", "--rows", str(ROWS)))
    assert code == 0, errors
    assert f"{ROWS} rows acknowledged" in output
    table = str(tmp_path / "orders")
    code, output, errors = ended(submit("jobs/read_orders.py", *where, "--into", table))
    assert code == 0, errors
    assert output.endswith(f"{ROWS} rows read, 0 behind\n{ROWS} rows of spark-orders are in {table}\n")
    found = spark.read.format("delta").load(table).agg(sql.count("id"), sql.countDistinct("id"), sql.max("id")).first()
    assert found is not None
    assert tuple(found) == (ROWS, ROWS, ROWS - 1)


def test_a_stream_that_follows_goes_on_until_it_is_told_to_stop(
    cluster: sr.LocalCluster, spark: SparkSession, tmp_path: Path
) -> None:
    cluster.admin.create_topic("followed-orders", SCHEMA, partitions=2)
    table = str(tmp_path / "orders")
    where = ("--bootstrap", cluster.bootstrap, "--topic", "followed-orders")
    reading = python("jobs/read_orders.py", *where, "--into", table, "--follow")
    eventually((Path(table) / "_checkpoints").exists, "the stream has begun")
    code, _, errors = ended(python("jobs/produce_orders.py", *where, "--spark", "--rows", "500"))
    assert code == 0, errors

    def rows() -> int:
        return spark.read.format("delta").load(table).count() if (Path(table) / "_delta_log").exists() else 0

    eventually(lambda: rows() == 500, "all of it is in the table")
    reading.send_signal(signal.SIGINT)
    code, output, errors = ended(reading)
    assert (code, output) == (0, f"500 rows of followed-orders are in {table}\n"), errors


def test_what_earlier_runs_put_into_a_table_counts_as_there(topic: Topic, spark: SparkSession, tmp_path: Path) -> None:
    """And what a stop came into, of which Spark tells nothing: so the table is asked, not Spark."""
    table = str(tmp_path / "table")

    def run() -> tuple[list[tuple[int, int | None]], int]:
        told: list[tuple[int, int | None]] = []
        stream = orders_into(spark, table, topic=topic.name, options={}, follow=False)
        stream.run(Event(), lambda rows, behind: told.append((rows, behind)))
        return told, stream.rows_there()

    told, rows = run()
    assert (told[-1], rows) == ((0, 0), 0)
    topic.fill(0, rows=100)
    told, rows = run()
    assert (told[-1], rows) == ((100, 0), 100)
    told, rows = run()
    assert (told[-1], rows) == ((0, 0), 100)


def test_a_job_that_cannot_work_says_so_in_one_sentence(cluster: sr.LocalCluster, tmp_path: Path) -> None:
    where = ("--bootstrap", cluster.bootstrap, "--topic", "no-such-topic")
    code, output, errors = ended(python("jobs/read_orders.py", *where, "--into", str(tmp_path / "t")))
    assert (code, output) == (1, "")
    assert "error: UNKNOWN_TOPIC_OR_PARTITION: nobody knows a topic 'no-such-topic': check its name" in errors
    assert "SQLSTATE" not in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(("told", "master"), [(("--master", "spark://127.0.0.1:1"), "spark://127.0.0.1:1"), ((), None)])
def test_a_job_runs_where_spark_submit_was_told_to(told: tuple[str, ...], master: str | None, tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text("from spark_replication.spark.session import submitted_master\nprint(submitted_master())\n")
    script = str(Path(sys.prefix) / "bin" / "spark-submit")
    code, output, errors = ended(started(script, *told, str(job)))
    assert (code, output) == (0, f"{master}\n"), errors

"""The jobs that produce and read orders, as a user runs them: what they say is what is there."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest

import spark_replication as sr
from spark_replication.admin.jobs.order_load import SCHEMA, order_batch
from tests.live.spark.waiting import wait_for

pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]

ROOT = Path(__file__).parents[3]
TIMEOUT_S = 90.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sr.LocalCluster]:
    with sr.LocalCluster.start(brokers=3, directory=tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )


def sums(ran: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert ran.returncode == 0, ran.stderr
    return list(json.loads(ran.stdout))


def test_orders_are_produced_and_read(cluster: sr.LocalCluster) -> None:
    bootstrap = ("--bootstrap", cluster.zookeeper)
    ran = run("jobs/produce_orders.py", *bootstrap, "--rows", "1050", "--rate", "0", "--partitions", "2")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "1050 rows acknowledged in 11 batches and 2 partitions of orders: " in ran.stdout
    read = sums(run("jobs/read_orders.py", *bootstrap, "--format", "json"))
    assert [(row["partition"], row["rows"], row["first_offset"], row["last_offset"]) for row in read] == [
        (0, 550, 0, 549),  # of eleven batches of a hundred it has the odd ones, and the last fifty rows
        (1, 500, 0, 499),
    ]
    assert sum(row["amount"] for row in read) == pytest.approx(sum(order / 100 for order in range(1050)))
    # From an offset, of one partition alone; and from a time that is yet to come.
    (part,) = sums(run("jobs/read_orders.py", *bootstrap, "--from", "500", "-p", "0", "--format", "json"))
    assert (part["rows"], part["first_offset"], part["last_offset"]) == (50, 500, 549)
    later = sums(run("jobs/read_orders.py", *bootstrap, "--from", "2100-01-01T00:00:00Z", "--format", "json"))
    assert [(row["rows"], row["first_offset"]) for row in later] == [(0, None), (0, None)]


def test_a_reader_follows_a_producer_until_it_is_told_to_stop(cluster: sr.LocalCluster, tmp_path: Path) -> None:
    topic = ("--bootstrap", cluster.bootstrap, "--topic", "followed")
    cluster.admin.create_topic("followed", SCHEMA, partitions=3)
    with sr.Producer(cluster.bootstrap) as producer:
        producer.send("followed", order_batch(0, 7, 0), partition=0).result(TIMEOUT_S)
    progress, output = tmp_path / "progress", tmp_path / "output"
    with progress.open("wb") as told, output.open("wb") as summed:
        command = ["jobs/read_orders.py", *topic, "--from", "earliest", "--follow", "--format", "json"]
        reader = subprocess.Popen([sys.executable, *command], cwd=ROOT, stdout=summed, stderr=told)
    try:
        wait_for("the first rows", lambda: "7 rows read, 0 behind" in progress.read_text())
        # Without --rows and --seconds it goes on until Ctrl-C: what it has said it had sent is then acknowledged.
        with (tmp_path / "produced").open("wb") as told:
            command = ["jobs/produce_orders.py", *topic, "--rate", "2000"]
            load = subprocess.Popen([sys.executable, *command], cwd=ROOT, stdout=told, stderr=subprocess.STDOUT)
        wait_for("some load", lambda: "rows acknowledged, " in (tmp_path / "produced").read_text())
        load.send_signal(signal.SIGINT)
        assert load.wait(TIMEOUT_S) == 0
        rows = 7 + int((tmp_path / "produced").read_text().splitlines()[-1].split()[0])
        wait_for("all rows", lambda: f"{rows} rows read, 0 behind" in progress.read_text())
        reader.send_signal(signal.SIGINT)
        assert reader.wait(TIMEOUT_S) == 0, progress.read_text()
        assert sum(row["rows"] for row in json.loads(output.read_text())) == rows
    finally:
        reader.kill()
        reader.wait()


def test_the_jobs_run_under_spark_submit(cluster: sr.LocalCluster) -> None:
    submit = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
    options = ["--master", "local[1]", "--conf", f"spark.pyspark.python={sys.executable}"]
    job = ["jobs/produce_orders.py", "--bootstrap", cluster.bootstrap, "--topic", "submitted", "--rows", "10"]
    ran = subprocess.run(
        [submit, *options, *job], cwd=ROOT, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )
    assert ran.returncode == 0, ran.stderr
    assert "10 rows acknowledged in 1 batches and 3 partitions of submitted: " in ran.stdout


@pytest.mark.parametrize(
    ("command", "sentence", "code"),
    [
        (["jobs/read_orders.py", "--topic", "none"], "error: UNKNOWN_TOPIC_OR_PARTITION: ", 1),
        (["jobs/read_orders.py", "--from", "soon"], "'soon' is no offset, no name and no time with a zone", 2),
        (["jobs/read_orders.py", "--from", "2026-11-21T10:00:00"], "no time with a zone", 2),
        (["jobs/produce_orders.py", "--rows", "0"], "'0' is not a number from 1 on", 2),
        (["jobs/produce_orders.py", "--rate", "-1"], "'-1' is not a number from 0 on", 2),
        (["jobs/produce_orders.py", "--set", "security.mode=tokens"], "error: INVALID_CONFIG: ", 1),
    ],
)
def test_what_is_wrong_is_a_sentence(cluster: sr.LocalCluster, command: list[str], sentence: str, code: int) -> None:
    ran = run(*command, "--bootstrap", cluster.bootstrap)
    assert (ran.returncode, ran.stdout) == (code, "")
    assert sentence in ran.stderr
    assert "Traceback" not in ran.stderr


def test_rows_without_an_answer_are_told(cluster: sr.LocalCluster) -> None:
    """A topic of another schema refuses them."""
    cluster.admin.create_topic("numbers", SCHEMA.set(2, pa.field("amount", pa.int64())), partitions=1)
    ran = run("jobs/produce_orders.py", "--bootstrap", cluster.bootstrap, "--topic", "numbers", "--rows", "100")
    assert ran.returncode == 1
    assert ran.stdout.startswith("0 rows acknowledged")
    assert "error: 100 rows have no acknowledgement: SCHEMA_MISMATCH: " in ran.stderr

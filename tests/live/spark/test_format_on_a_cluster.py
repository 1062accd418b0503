"""Jobs of another application beside the guardians' stage, on a standalone cluster: rows are there once, whatever is
killed or tried twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import spark_replication as sr
from spark_replication.admin.jobs.order_load import SCHEMA
from spark_replication.mirror.delta.reading import rows_of
from spark_replication.spark.session import delta_jars
from spark_replication.spark.standalone import Standalone
from tests.live.datasource.processes import descendants, kill_if_there
from tests.live.spark import speculating
from tests.live.spark.applications import ROOT, Application
from tests.live.spark.waiting import children, wait_for

pytestmark = [pytest.mark.live, pytest.mark.spark, pytest.mark.timeout(600)]

BROKERS = 3
HOSTS = [f"127.0.0.{number}" for number in range(2, 7)]  # two more than brokers: Spark speculates on another host
ROWS = 300_000
END_S = 180


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    standalone = Standalone(tmp_path_factory.mktemp("spark"), HOSTS)
    yield standalone
    standalone.stop()


@pytest.fixture(scope="module")
def cluster(spark: Standalone, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    only_guardians = {"spark.cores.max": str(BROKERS)}
    application = Application(tmp_path_factory.mktemp("cluster"), spark.url, brokers=BROKERS, spark=only_guardians)
    try:
        application.start()
        application.wait_healthy()
        yield application
        application.stop()
    finally:
        application.clean_up()


class Job:
    """Of an application of its own, on one executor that nobody else has."""

    def __init__(self, spark: Standalone, folder: Path, name: str, command: list[str]) -> None:
        self._spark = spark
        self._mark = _marks_executors(name)
        self._log = folder / f"{name}.log"
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}  # spark-submit finds Spark by it
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )

    def says(self) -> str:
        return self._log.read_text(errors="replace")

    def wait_for(self, what: str, found: Callable[[], bool]) -> None:
        def so() -> bool:
            assert self.process.poll() is None, self.says()
            return found()

        wait_for(what, so)

    def kill_executor(self) -> None:
        """In the midst of a task."""

        def executor() -> int | None:
            assert self.process.poll() is None, self.says()
            workers = [self._spark.worker_pid(number) for number in range(len(HOSTS))]
            mine = [pid for pid, command in children(*workers) if self._mark.encode() in command]
            return next((pid for pid in mine if any("pyspark" in each for each in descendants(pid).values())), None)

        os.kill(wait_for("its executor has a task", executor), signal.SIGKILL)

    def stop(self) -> None:
        """The job itself: spark-submit's own process is a JVM, which ends with it, and by a signal without it."""
        (job,) = [pid for pid, command in descendants(self.process.pid).items() if "jobs/read_orders.py" in command]
        os.kill(job, signal.SIGINT)
        self.wait_ended()

    def wait_ended(self) -> None:
        assert self.process.wait(END_S) == 0, self.says()

    def clean_up(self) -> None:
        for pid in (*descendants(self.process.pid), self.process.pid):
            kill_if_there(pid)
        self.process.wait()


def _marks_executors(job: str) -> str:
    """On their command lines: which executors of a standalone cluster are this job's."""
    return f"-Djob={job}"


def submitted(spark: Standalone, name: str, *command: str) -> list[str]:
    """By spark-submit."""
    settings = {"spark.cores.max": "1", "spark.executor.memory": "512m", "spark.driver.memory": "512m"}
    settings["spark.executor.extraJavaOptions"] = _marks_executors(name)
    options = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    options += ["--master", spark.url, "--jars", ",".join(map(str, delta_jars()))]
    script = str(Path(sys.prefix) / "bin" / "spark-submit")
    return [script, "--properties-file", "conf/spark-defaults.conf", *options, *command]


def ids(zookeeper: str, topic: str) -> list[int]:
    with sr.Reader(zookeeper) as reader, sr.Admin(zookeeper) as admin:
        (found,) = admin.describe_topics([topic])
        batches = [each.batch for part in found.partitions for each in reader.read(topic, partition=part.partition)]
    return sorted(pa.Table.from_batches(batches)["id"].to_pylist())


def test_a_load_and_a_stream_of_it_lose_and_double_nothing_as_their_executors_are_killed(
    spark: Standalone, cluster: Application, tmp_path: Path
) -> None:
    zookeeper, table = cluster.found.zookeeper, tmp_path / "orders"
    with sr.Admin(zookeeper) as admin:
        admin.create_topic("orders", SCHEMA, partitions=6, replication_factor=BROKERS)
    where = ("--bootstrap", zookeeper, "--topic", "orders")
    reads = ("jobs/read_orders.py", *where, "--into", str(table), "--follow")
    reading = Job(spark, tmp_path, "read", submitted(spark, "read", *reads))
    producing = None
    try:
        reading.wait_for("the stream has begun", (table / "_checkpoints").exists)
        load = ("jobs/produce_orders.py", *where, "--spark", "--rows", str(ROWS))
        producing = Job(spark, tmp_path, "produce", submitted(spark, "produce", *load))
        producing.kill_executor()
        reading.kill_executor()
        producing.wait_ended()
        assert f"{ROWS} rows acknowledged" in producing.says()

        def found() -> list[int]:
            if not (table / "_delta_log").exists():
                return []
            return sorted(rows_of(DeltaTable(str(table)), ["id"])["id"].to_pylist())

        reading.wait_for("all of it is in the table", lambda: len(found()) >= ROWS)
        reading.stop()
        assert found() == list(range(ROWS))
        assert ids(zookeeper, "orders") == list(range(ROWS))
        cluster.wait_healthy()
    finally:
        reading.clean_up()
        if producing is not None:
            producing.clean_up()


def test_what_two_attempts_of_a_task_write_at_one_time_is_there_once(
    spark: Standalone, cluster: Application, tmp_path: Path
) -> None:
    zookeeper = cluster.found.zookeeper
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    with sr.Admin(zookeeper) as admin:
        for topic in ("batch", "stream"):
            admin.create_topic(topic, schema, partitions=2, replication_factor=BROKERS)
    told = {"master": spark.url, "bootstrap": zookeeper, "batch": "batch", "stream": "stream", "folder": str(tmp_path)}
    options = [f"--{name}={value}" for name, value in told.items()]
    job = Job(spark, tmp_path, "job", [sys.executable, "-m", "tests.live.spark.speculating", *options])
    try:
        job.wait_ended()
    finally:
        job.clean_up()
    for topic in ("batch", "stream"):
        last = speculating.TASKS - 1
        assert all((tmp_path / f"{topic}-{last}-{attempt}").exists() for attempt in (0, 1)), "both have run"
        assert ids(zookeeper, topic) == list(range(speculating.ROWS))

"""Rows through Spark: read from a topic and written to one, beside Parquet files of the same rows in the same session,
and beside Kafka by its own connector.

Rows that are read go to Spark's `noop`, which takes every column of every row and keeps none.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from spark_replication.admin.bench.harness import MEDIAN, RATE, WORST, Harness, Measure, Measured, Round, Row
from spark_replication.admin.bench.kafka.jars import VERSION, connector_jars
from spark_replication.admin.bench.kafka.theirs import Theirs
from spark_replication.admin.bench.ours import Ours
from spark_replication.admin.bench.side import WHOLE
from spark_replication.admin.bench.spark_time import TimedRead, Timer
from spark_replication.spark.datasource.data_source import FORMAT
from spark_replication.spark.registering import register_format
from spark_replication.spark.session import build_session, delta_jars, end_session

SCHEMA = pa.schema([("id", pa.int64()), ("at_ms", pa.int64()), ("amount", pa.float64()), ("text", pa.string())])
COLUMNS = "id long, at_ms long, amount double, text string"
TEXT = "sha1(CAST(id AS STRING))"  # 40 characters that no compression takes away
ROW_BYTES = 8 + 8 + 8 + 4 + 40  # of the rows as Arrow has them
SOURCE, FIRST_TOPIC, TRIGGERS, TIMED = "rows", "spark-0", "triggers", "timed"
LOOK_S = 0.02
ROW_RATE = Measure("rows", "rows/s", "more")
ASKED = Measure("in which Spark asks how far the source is", "ms", None)
PLANNED = Measure("in which Spark plans", "ms", None)
# As in a user's long session: our own sessions compile quickly, which suits short ones.
COMPILED = {"spark.driver.defaultJavaOptions": "-XX:+TieredCompilation"}


class Load(NamedTuple):
    rows: int
    partitions: int
    #: Of Spark.
    master: str


class Bench(NamedTuple):
    spark: SparkSession
    ours: Ours
    kafka: Theirs | None
    folder: Path
    load: Load

    def generated(self) -> DataFrame:
        return self.spark.range(0, self.load.rows, 1, self.load.partitions).selectExpr(
            "id", "id + 1700000000000 AS at_ms", "id / 7D AS amount", f"{TEXT} AS text"
        )

    def rows(self) -> DataFrame:
        """The same, in files."""
        return self.spark.read.schema(COLUMNS).parquet(self.path(SOURCE))

    def path(self, name: str) -> str:
        return f"{self.folder}/{name}"


@contextmanager
def started(load: Load, ours: Ours, kafka: Theirs | None, harness: Harness) -> Iterator[Bench]:
    """A Spark session, of all this process has."""
    with ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        harness.progress("a Spark session starts")
        own = [] if kafka is None else sorted(connector_jars(harness.progress).glob("*.jar"))
        jars = {"spark.jars": ",".join(map(str, (*delta_jars(), *own)))} if own else {}
        spark = build_session("bench", load.master, {"spark.driver.memory": "2g", **COMPILED, **jars})
        running.callback(end_session, spark)
        register_format(spark, {"bootstrap": ours.bootstrap})
        yield Bench(spark, ours, kafka, folder, load)


class Way(Protocol):
    """A source and a sink that Spark has."""

    @property
    def name(self) -> str: ...

    def make(self, topic: str) -> None: ...

    def append(self, rows: DataFrame, topic: str) -> None: ...

    def read(self, reader: Any, topic: str) -> DataFrame:
        """reader: of batches or of streams."""


class Log:
    def __init__(self, bench: Bench, name: str = "ours", **options: str) -> None:
        self.name = name
        self._bench = bench
        self._options = options

    def make(self, topic: str) -> None:
        self._bench.ours.cluster.admin.create_topic(topic, SCHEMA, partitions=self._bench.load.partitions)

    def append(self, rows: DataFrame, topic: str) -> None:
        rows.write.format(FORMAT).options(topic=topic).mode("append").save()

    def read(self, reader: Any, topic: str) -> DataFrame:
        options = {"topic": topic, "startingOffsets": "earliest", **self._options}
        found: DataFrame = reader.format(FORMAT).options(**options).load()
        return found


class Parquet:
    """A topic is a folder of files."""

    name = "Parquet"

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    def make(self, topic: str) -> None:
        """The first rows make it."""

    def append(self, rows: DataFrame, topic: str) -> None:
        rows.write.mode("append").parquet(self._bench.path(topic))

    def read(self, reader: Any, topic: str) -> DataFrame:
        found: DataFrame = reader.schema(COLUMNS).parquet(self._bench.path(topic))
        return found


class Kafka:
    """Rows are JSON, which is made as they are written, and not taken apart as they are read."""

    name = f"Kafka {VERSION}"

    def __init__(self, bench: Bench, side: Theirs) -> None:
        self._bench = bench
        self._side = side
        self._where = {"kafka.bootstrap.servers": side.bootstrap}

    def make(self, topic: str) -> None:
        self._side.create(topic, self._bench.load.partitions, WHOLE)

    def append(self, rows: DataFrame, topic: str) -> None:
        values = rows.selectExpr("CAST(id AS STRING) AS key", "to_json(struct(*)) AS value")
        options = {**self._where, "kafka.acks": "all", "topic": topic}
        values.write.format("kafka").options(**options).mode("append").save()

    def read(self, reader: Any, topic: str) -> DataFrame:
        options = {**self._where, "subscribe": topic, "startingOffsets": "earliest"}
        found: DataFrame = reader.format("kafka").options(**options).load()
        return found


class Through(NamedTuple):
    bench: Bench
    does: Literal["write", "read", "stream"]

    @property
    def what(self) -> str:
        return f"{self.does} {self.bench.load.rows:,} rows, {self.bench.load.partitions} partitions"

    @contextmanager
    def begun(self, side: Way, harness: Harness) -> Iterator[Round]:
        topics = (f"spark-{number}" for number in count())

        def once() -> Measured:
            topic = next(topics)
            if self.does == "write":
                side.make(topic)
            began_s = time.perf_counter()
            self._do(side, topic)
            took_s = time.perf_counter() - began_s
            return {RATE: self.bench.load.rows * ROW_BYTES / took_s / 1e6, ROW_RATE: self.bench.load.rows / took_s}

        once()
        yield once

    def _do(self, side: Way, topic: str) -> None:
        spark = self.bench.spark
        match self.does:
            case "write":
                side.append(self.bench.rows(), topic)
            case "read":
                side.read(spark.read, FIRST_TOPIC).write.format("noop").mode("overwrite").save()
            case "stream":
                writer = side.read(spark.readStream, FIRST_TOPIC).writeStream.format("noop")
                writer = writer.option("checkpointLocation", self.bench.path(f"checkpoint-{time.monotonic_ns()}"))
                writer.trigger(availableNow=True).start().awaitTermination()


class Trigger(NamedTuple):
    """Micro-batches of one row, into a Delta table."""

    bench: Bench
    #: In a round, after two that do not count.
    batches: int

    @property
    def what(self) -> str:
        return "a micro-batch of one row"

    @contextmanager
    def begun(self, side: Way, harness: Harness) -> Iterator[Round]:
        row = self.bench.spark.range(1).selectExpr("id", "0L AS at_ms", "0D AS amount", "'x' AS text")
        side.make(TRIGGERS)
        side.append(row, TRIGGERS)
        yield lambda: self._triggered(side, row)

    def _triggered(self, side: Way, row: DataFrame) -> Measured:
        table = self.bench.path(f"table-{time.monotonic_ns()}")
        writer = side.read(self.bench.spark.readStream, TRIGGERS).writeStream.format("delta")
        query = writer.option("checkpointLocation", f"{table}-checkpoint").start(table)
        found: dict[int, dict[str, int]] = {}
        while len(found) < self.batches + 2:
            side.append(row, TRIGGERS)
            before = len(found)
            while len(found) == before:
                time.sleep(LOOK_S)
                told = [json.loads(each.json) for each in query.recentProgress]
                found |= {each["batchId"]: each["durationMs"] for each in told if each["numInputRows"]}
        query.stop()
        took = [found[batch] for batch in sorted(found)[2:]]
        total_ms = [each["triggerExecution"] for each in took]
        return {
            MEDIAN: statistics.median(total_ms),
            WORST: max(total_ms),
            ASKED: statistics.median(each["latestOffset"] for each in took),
            PLANNED: statistics.median(each["queryPlanning"] for each in took),
        }


def through(bench: Bench, harness: Harness) -> Iterator[Row]:
    """Writes, reads and streams."""
    bench.generated().write.parquet(bench.path(SOURCE))
    ways: list[Way] = [*_clusters(bench), Parquet(bench)]
    yield from harness.measure(Through(bench, "write"), ways)
    over_network = Log(bench, "ours, over the network", localReads="false")
    yield from harness.measure(Through(bench, "read"), [*ways, over_network])
    yield from harness.measure(Through(bench, "stream"), ways)


def triggers(bench: Bench, batches: int, harness: Harness) -> Iterator[Row]:
    yield from harness.measure(Trigger(bench, batches), _clusters(bench))


def _clusters(bench: Bench) -> list[Way]:
    return [Log(bench)] if bench.kafka is None else [Log(bench), Kafka(bench, bench.kafka)]


def read_times(bench: Bench, harness: Harness) -> Iterator[Row]:
    """Where the time of a read goes, beside a read that finds nothing."""
    log = Log(bench)
    log.make(TIMED)
    log.append(bench.generated(), TIMED)
    reads = [
        TimedRead("from files"),
        TimedRead("over the network", localReads="false"),
        TimedRead("one column", columns="id"),
        TimedRead("nothing", startingOffsets="latest"),
    ]
    folder = Path(bench.path("times"))
    folder.mkdir()
    defaults = {"bootstrap": bench.ours.bootstrap, "topic": TIMED}
    timer = Timer(bench.spark, defaults, folder, f"read {bench.load.rows:,} rows")
    yield from harness.measure(timer, reads)

"""Rows through Spark: read from a topic and written to one, beside Parquet files of the same rows in the same session,
and beside Kafka by its own connector if one runs.

Rows that are read go to Spark's `noop`, which takes every column of every row and keeps none.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from spark_replication.admin.bench.replicate import Progress
from spark_replication.admin.bench.rounds import Rounds, exactly
from spark_replication.admin.bench.spark_time import ReadTime, Timer
from spark_replication.live.local_cluster import LocalCluster
from spark_replication.spark.datasource.data_source import FORMAT
from spark_replication.spark.registering import register_format
from spark_replication.spark.session import build_session, delta_jars, end_session

SCHEMA = pa.schema([("id", pa.int64()), ("at_ms", pa.int64()), ("amount", pa.float64()), ("text", pa.string())])
COLUMNS = "id long, at_ms long, amount double, text string"
TEXT = "sha1(CAST(id AS STRING))"  # 40 characters that no compression takes away
ROW_BYTES = 8 + 8 + 8 + 4 + 40
LOOK_S = 0.02
# As in a user's long session: our own sessions compile quickly, which suits short ones.
COMPILED = {"spark.driver.defaultJavaOptions": "-XX:+TieredCompilation"}


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    what: str
    rows_per_s: int
    #: In 10^6 bytes of the rows as Arrow has them.
    mb_per_s: float
    #: The rate divided by that of Parquet at the same.
    ratio: float


COLUMNS_SHOWN = Figures.__struct_fields__


class Trigger(msgspec.Struct, frozen=True, kw_only=True):
    """The times of micro-batches of one row into a Delta table."""

    what: str
    p50_ms: float
    worst_ms: float
    #: The part in which Spark asks how far the source is.
    asked_ms: float
    #: The part in which Spark plans.
    planned_ms: float
    #: The median divided by ours.
    ratio: float


TRIGGER_COLUMNS = Trigger.__struct_fields__
TIME_COLUMNS = ReadTime.__struct_fields__


class Kafka(msgspec.Struct, frozen=True):
    """A Kafka that runs."""

    bootstrap: str
    #: The jars of its connector, separated by commas.
    jars: str


def measure(*, master: str, kafka: Kafka | None, progress: Progress, rounds: Rounds, **sizes: int) -> Iterator[Figures]:
    """Measure writes, reads and streams. `sizes` are the rows and partitions of _Bench."""
    with _started(master=master, kafka=kafka, progress=progress, rounds=rounds, **sizes) as bench:
        yield from bench.run()


def triggers(count: int, *, master: str, kafka: Kafka | None, progress: Progress) -> Iterator[Trigger]:
    with _started(master=master, kafka=kafka, progress=progress, rows=1, partitions=12, rounds=exactly(1)) as bench:
        yield from bench.triggers(count)


def read_times(*, master: str, progress: Progress, rounds: Rounds, **sizes: int) -> Iterator[ReadTime]:
    with _started(master=master, kafka=None, progress=progress, rounds=rounds, **sizes) as bench:
        yield from bench.read_times()


@contextmanager
def _started(*, master: str, kafka: Kafka | None, progress: Progress, rounds: Rounds, **sizes: int) -> Iterator[_Bench]:
    with ExitStack() as started:
        folder = Path(started.enter_context(tempfile.TemporaryDirectory(prefix="spark-replication-")))
        progress("a cluster of three brokers and a Spark session start")
        cluster = started.enter_context(LocalCluster.start(brokers=3))
        jars = {} if kafka is None else {"spark.jars": ",".join([*map(str, delta_jars()), kafka.jars])}
        spark = build_session("bench", master, {"spark.driver.memory": "2g", **COMPILED, **jars})
        started.callback(end_session, spark)
        register_format(spark, {"bootstrap": cluster.bootstrap})
        yield _Bench(
            spark=spark, cluster=cluster, folder=folder, kafka=kafka, progress=progress, rounds=rounds, **sizes
        )


@dataclass(frozen=True, kw_only=True)
class _Bench:
    spark: SparkSession
    cluster: LocalCluster
    folder: Path
    rows: int
    partitions: int
    rounds: Rounds
    kafka: Kafka | None
    progress: Progress

    def run(self) -> Iterator[Figures]:
        source = f"{self.folder}/rows"
        self._generated().write.parquet(source)
        rows = self.spark.read.schema(COLUMNS).parquet(source)
        yield from self._in_turn("write", self._writes(rows))
        yield from self._in_turn("read", self._reads(source))
        yield from self._in_turn("stream", self._streams(source))

    def read_times(self) -> Iterator[ReadTime]:
        self._to_log("timed", self._generated())
        folder = self.folder / "times"
        folder.mkdir()
        slots = self.spark.sparkContext.defaultParallelism
        timer = Timer(self.spark, {"bootstrap": self.cluster.bootstrap, "topic": "timed"}, folder, slots)
        yield timer.measure("nothing", self.rounds.most, startingOffsets="latest")
        yield timer.measure("from files", self.rounds.most)
        yield timer.measure("over the network", self.rounds.most, localReads="false")
        yield timer.measure("one column", self.rounds.most, columns="id")

    def _generated(self) -> DataFrame:
        return self.spark.range(0, self.rows, 1, self.partitions).selectExpr(
            "id", "id + 1700000000000 AS at_ms", "id / 7D AS amount", f"{TEXT} AS text"
        )

    def _to_log(self, topic: str, rows: DataFrame) -> None:
        self.cluster.admin.create_topic(topic, SCHEMA, partitions=self.partitions)
        rows.write.format(FORMAT).options(topic=topic).mode("append").save()

    def _in_turn(self, what: str, ways: dict[str, Callable[[int], Any]]) -> Iterator[Figures]:
        """The median of each way. All ways run in turn, after one round that does not count."""
        took: dict[str, list[float]] = {way: [] for way in ways}
        for number in chain((0,), (1 + number for number in self.rounds.numbers())):
            for way, do in ways.items():
                began = time.perf_counter()
                do(number)
                seconds = time.perf_counter() - began
                self.progress(f"{what} {way}: {seconds:.2f} s")
                if number:
                    took[way].append(seconds)
        least = statistics.median(took["parquet"])
        for way, seconds_taken in took.items():
            seconds = statistics.median(seconds_taken)
            yield Figures(
                what=f"{what} {way}",
                rows_per_s=round(self.rows / seconds),
                mb_per_s=round(self.rows * ROW_BYTES / seconds / 1e6, 1),
                ratio=round(least / seconds, 2),
            )

    def _writes(self, rows: DataFrame) -> dict[str, Callable[[int], Any]]:
        def to_parquet(number: int) -> None:
            rows.write.parquet(f"{self.folder}/written-{number}")

        ways: dict[str, Callable[[int], Any]] = {
            "parquet": to_parquet,
            "log": lambda number: self._to_log(f"written-{number}", rows),
        }
        if self.kafka is not None:
            options = {"kafka.bootstrap.servers": self.kafka.bootstrap, "kafka.acks": "all"}
            values = rows.selectExpr("CAST(id AS STRING) AS key", "to_json(struct(*)) AS value")
            ways["kafka"] = lambda number: (
                values.write.format("kafka").options(**options, topic=f"bench-{number}").mode("append").save()
            )
        return ways

    def _reads(self, source: str) -> dict[str, Callable[[int], Any]]:
        def log(**options: str) -> DataFrame:
            return self.spark.read.format(FORMAT).options(topic="written-1", **options).load()

        ways: dict[str, Callable[[int], Any]] = {
            "parquet": lambda _number: _taken(self.spark.read.schema(COLUMNS).parquet(source)),
            "log": lambda _number: _taken(log()),
            "log, no files": lambda _number: _taken(log(localReads="false")),
        }
        if self.kafka is not None:
            ways["kafka"] = lambda _number: _taken(self._of_kafka(self.spark.read).load())
        return ways

    def _streams(self, source: str) -> dict[str, Callable[[int], Any]]:
        def streamed(rows: DataFrame, number: int) -> None:
            way = f"{self.folder}/checkpoint-{time.monotonic_ns()}-{number}"
            query = rows.writeStream.format("noop").option("checkpointLocation", way).trigger(availableNow=True).start()
            query.awaitTermination()

        def log() -> DataFrame:
            reader = self.spark.readStream.format(FORMAT)
            return reader.options(topic="written-1", startingOffsets="earliest").load()

        ways: dict[str, Callable[[int], Any]] = {
            "parquet": lambda number: streamed(self.spark.readStream.schema(COLUMNS).parquet(source), number),
            "log": lambda number: streamed(log(), number),
        }
        if self.kafka is not None:
            ways["kafka"] = lambda number: streamed(self._of_kafka(self.spark.readStream).load(), number)
        return ways

    def _of_kafka(self, reader: Any, topic: str = "bench-1") -> Any:
        assert self.kafka is not None
        options = {"kafka.bootstrap.servers": self.kafka.bootstrap, "subscribe": topic}
        return reader.format("kafka").options(**options, startingOffsets="earliest")

    def triggers(self, count: int) -> Iterator[Trigger]:
        self.cluster.admin.create_topic("triggers", SCHEMA, partitions=self.partitions)
        row = self.spark.range(1).selectExpr("id", "0L AS at_ms", "0D AS amount", "'x' AS text")
        took = {"log": self._triggered(self._log_rows(), lambda: self._send(row, FORMAT, topic="triggers"), count)}
        if self.kafka is not None:
            value, to = row.selectExpr("'x' AS value"), {"kafka.bootstrap.servers": self.kafka.bootstrap}
            name = f"triggers-{time.time_ns()}"
            self._send(value, "kafka", topic=name, **to)
            rows = self._of_kafka(self.spark.readStream, name).load()
            took["kafka"] = self._triggered(rows, lambda: self._send(value, "kafka", topic=name, **to), count)
        ours = statistics.median(each["triggerExecution"] for each in took["log"])
        for way, found in took.items():
            total = [each["triggerExecution"] for each in found]
            yield Trigger(
                what=way,
                p50_ms=statistics.median(total),
                worst_ms=max(total),
                asked_ms=statistics.median(each["latestOffset"] for each in found),
                planned_ms=statistics.median(each["queryPlanning"] for each in found),
                ratio=round(statistics.median(total) / ours, 2),
            )

    def _log_rows(self) -> DataFrame:
        return self.spark.readStream.format(FORMAT).options(topic="triggers", startingOffsets="earliest").load()

    def _triggered(self, rows: DataFrame, send: Callable[[], None], count: int) -> list[dict[str, int]]:
        """The durations that Spark reports of each micro-batch, after two that do not count."""
        table = f"{self.folder}/table-{time.monotonic_ns()}"
        writer = rows.writeStream.format("delta").option("checkpointLocation", f"{table}-checkpoint")
        query = writer.start(table)
        found: dict[int, dict[str, int]] = {}
        while len(found) < count + 2:
            send()
            before = len(found)
            while len(found) == before:
                time.sleep(LOOK_S)
                told = [json.loads(each.json) for each in query.recentProgress]
                found |= {each["batchId"]: each["durationMs"] for each in told if each["numInputRows"]}
            self.progress(f"micro-batch {len(found)}: {found[max(found)]['triggerExecution']} ms")
        query.stop()
        return [found[batch] for batch in sorted(found)[2:]]

    def _send(self, rows: DataFrame, kind: str, **options: str) -> None:
        rows.write.format(kind).options(**options).mode("append").save()


def _taken(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()

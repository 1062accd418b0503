"""Where the time of a read goes: before its tasks read, in reading, and in Spark, which takes what was read."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_replication.admin.bench.harness import Harness, Measure, Measured, Round
from spark_replication.spark.datasource.batch_reader import BatchReader
from spark_replication.spark.datasource.data_source import ReplicatedLog

FORMAT = "replicated_log_timed"

# Times of tasks are the share of one slot.
WHOLE_S = Measure("whole", "s")
BEGIN_S = Measure("planning, and the start of the first task", "s")
READING_S = Measure("our code in tasks: files or network, checksums, decoding", "s")
TAKING_S = Measure("Spark while a task waits: Arrow into the JVM, and into rows", "s")
REST_S = Measure("Spark between tasks, and after the last batch of each", "s")


class _TaskTime(msgspec.Struct, frozen=True):
    #: By the clock of all processes on this machine.
    began_s: float
    reading_s: float
    taking_s: float


class TimedRead:
    """A side: one way to read."""

    def __init__(self, name: str, **options: str) -> None:
        self.name = name
        self.options = options


class Timer:
    """The case."""

    def __init__(self, spark: SparkSession, defaults: dict[str, str], folder: Path, what: str) -> None:
        spark.dataSource.register(timed_source(defaults, folder))
        self.what = what
        self._spark = spark
        self._folder = folder
        #: The slots of the session, all of which a read has.
        self._slots = spark.sparkContext.defaultParallelism

    @contextmanager
    def begun(self, side: TimedRead, harness: Harness) -> Iterator[Round]:
        self._read(side)
        yield lambda: self._read(side)

    def _read(self, side: TimedRead) -> Measured:
        began_s = time.time()
        rows = self._spark.read.format(FORMAT).options(**side.options).load()
        rows.write.format("noop").mode("overwrite").save()
        whole_s = time.time() - began_s
        tasks = []
        for path in self._folder.iterdir():
            tasks.append(msgspec.json.decode(path.read_bytes(), type=_TaskTime))
            path.unlink()
        begin_s = min(task.began_s for task in tasks) - began_s
        reading_s = sum(task.reading_s for task in tasks) / self._slots
        taking_s = sum(task.taking_s for task in tasks) / self._slots
        return {
            WHOLE_S: whole_s,
            BEGIN_S: begin_s,
            READING_S: reading_s,
            TAKING_S: taking_s,
            REST_S: whole_s - begin_s - reading_s - taking_s,
        }


def timed_source(defaults: dict[str, str], folder: Path) -> type[ReplicatedLog]:
    """The data source of register_format, with tasks that each leave their times in a file in `folder`."""

    class Timed(BatchReader):
        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            began_s, reading_s, taking_s = time.time(), 0.0, 0.0
            batches = super().read(partition)
            before = time.perf_counter()
            for batch in batches:
                read = time.perf_counter()
                reading_s += read - before
                yield batch
                before = time.perf_counter()
                taking_s += before - read
            reading_s += time.perf_counter() - before
            told = msgspec.json.encode(_TaskTime(began_s, reading_s, taking_s))
            (folder / f"{time.monotonic_ns()}-{id(self)}.json").write_bytes(told)

    class TimedLog(ReplicatedLog):
        @classmethod
        def name(cls) -> str:
            return FORMAT

        def reader(self, schema: StructType) -> DataSourceReader:
            return Timed(self._options(is_stream=False), schema)

    TimedLog.defaults = defaults
    return TimedLog

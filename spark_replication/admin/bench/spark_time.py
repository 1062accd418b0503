"""Where the time of a read goes: before its tasks read, in reading, and in Spark, which takes what was read."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_replication.spark.datasource.batch_reader import BatchReader
from spark_replication.spark.datasource.data_source import ReplicatedLog

TIMED = "replicated_log_timed"


class ReadTime(msgspec.Struct, frozen=True, kw_only=True):
    """The times of one job, as medians of the rounds. Times of tasks are the share of one slot."""

    what: str
    whole_s: float
    #: Planning, and the start of the first task.
    begin_s: float
    #: Our code in tasks: files or network, checksums, decoding.
    reading_s: float
    #: Spark, while a task waits: Arrow into the JVM, and into rows.
    taking_s: float
    #: Spark, between tasks and after the last batch of each.
    rest_s: float


class _TaskTime(msgspec.Struct, frozen=True):
    #: By the clock of all processes on this machine.
    began_s: float
    reading_s: float
    taking_s: float


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
            return TIMED

        def reader(self, schema: StructType) -> DataSourceReader:
            return Timed(self._options(is_stream=False), schema)

    TimedLog.defaults = defaults
    return TimedLog


class _Round(NamedTuple):
    whole_s: float
    begin_s: float
    reading_s: float
    taking_s: float


class Timer:
    def __init__(self, spark: SparkSession, defaults: dict[str, str], folder: Path, slots: int) -> None:
        spark.dataSource.register(timed_source(defaults, folder))
        self._spark = spark
        self._folder = folder
        #: The slots of the session, all of which a read has.
        self._slots = slots

    def measure(self, what: str, rounds: int, **options: str) -> ReadTime:
        """Measure `rounds` reads, after one that does not count."""
        found = [self._round(self._spark.read.format(TIMED).options(**options).load()) for _ in range(rounds + 1)][1:]
        medians: dict[str, Any] = {
            name: round(statistics.median(getattr(each, name) for each in found), 2) for name in _Round._fields
        }
        in_tasks = medians["begin_s"] + medians["reading_s"] + medians["taking_s"]
        return ReadTime(what=what, **medians, rest_s=round(medians["whole_s"] - in_tasks, 2))

    def _round(self, rows: DataFrame) -> _Round:
        began_s = time.time()
        rows.write.format("noop").mode("overwrite").save()
        whole_s = time.time() - began_s
        tasks = []
        for path in self._folder.iterdir():
            tasks.append(msgspec.json.decode(path.read_bytes(), type=_TaskTime))
            path.unlink()
        return _Round(
            whole_s=whole_s,
            begin_s=min(task.began_s for task in tasks) - began_s,
            reading_s=sum(task.reading_s for task in tasks) / self._slots,
            taking_s=sum(task.taking_s for task in tasks) / self._slots,
        )

"""A batch, then a stream, written into a topic by tasks of which one hangs until Spark has started another for it.

Both attempts have the same rows, and write them. For tests, on a cluster with two hosts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from spark_replication.spark.datasource.data_source import FORMAT
from spark_replication.spark.registering import register_format
from spark_replication.spark.session import build_session

ROWS = 4_000
TASKS = 4
# 1.5 MB of a task and partition: in a batch two appends, of which the first goes before the attempt hangs and the other
# as its rows end; in a stream one. Both attempts send all of them.
TEXT = "repeat('x', 3000) AS text"
HANGS_S = 90
EAGER = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.25",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.cores.max": "2",
    "spark.executor.memory": "512m",
    "spark.driver.memory": "512m",
}


def hanging(folder: Path, kind: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The first attempt of the last task gives its rows, and ends only once the next has begun."""

    def hang(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None
        attempt = folder / f"{kind}-{task.partitionId()}-{task.attemptNumber()}"
        attempt.touch()
        yield from batches
        deadline = time.monotonic() + HANGS_S
        while task.partitionId() == TASKS - 1 and not task.attemptNumber() and time.monotonic() < deadline:
            if (folder / f"{kind}-{task.partitionId()}-1").exists():
                break
            time.sleep(0.05)

    return hang


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("master", "bootstrap", "batch", "stream", "folder"):
        parser.add_argument(f"--{name}", required=True)
    told = parser.parse_args()
    folder = Path(told.folder)
    spark = build_session("speculating", told.master, EAGER)
    register_format(spark, {"bootstrap": told.bootstrap})

    def hung(rows: DataFrame, kind: str) -> DataFrame:
        return rows.mapInArrow(hanging(folder, kind), "id long, text string")

    rows = spark.range(0, ROWS, 1, TASKS).selectExpr("id", TEXT)
    hung(rows, "batch").write.format(FORMAT).options(topic=told.batch, partitionBy="id").mode("append").save()
    source = spark.readStream.format(FORMAT).options(topic=told.batch, startingOffsets="earliest").load()
    writer = hung(source.repartition(TASKS), "stream").writeStream.format(FORMAT)
    options = {"topic": told.stream, "partitionBy": "id", "checkpointLocation": str(folder / "checkpoint")}
    writer.options(**options).trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()

"""A driver of two queries from one topic, into a Delta table and into another topic, for tests to kill.

It says `batch` with each micro-batch that has ended; with --to-the-end it ends once it has read what is there.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from spark_replication.spark.datasource.data_source import FORMAT
from spark_replication.spark.registering import register_format
from spark_replication.spark.session import build_session
from tests.waiting import eventually

FIRST_S = 120.0


class Says(StreamingQueryListener):
    def onQueryStarted(self, event: QueryStartedEvent) -> None: ...  # noqa: N802
    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None: ...  # noqa: N802
    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        if event.progress.numInputRows:
            sys.stdout.write(f"batch {event.progress.batchId}\n")
            sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("bootstrap", "source", "target", "folder"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--rows-per-trigger", default="600")
    parser.add_argument("--to-the-end", action="store_true")
    told = parser.parse_args()
    spark = build_session("pipeline", "local[2, 4]", {"spark.driver.memory": "512m"})
    register_format(spark, {"bootstrap": told.bootstrap})
    spark.streams.addListener(Says())
    first = started(spark, told, "table", {"format": "delta"}, f"{told.folder}/table")
    # Spark gives the Python process that plans a query 10 s to begin: on a busy machine two would share them.
    eventually(lambda: first.lastProgress is not None or not first.isActive, "the first query plans", FIRST_S)
    second = started(spark, told, "topic", {"format": FORMAT, "topic": told.target, "partitionBy": "text"}, None)
    for query in (first, second):
        query.awaitTermination()


def started(spark: SparkSession, told: argparse.Namespace, name: str, sink: dict[str, str], path: str | None) -> Any:
    options = {"topic": told.source, "startingOffsets": "earliest", "maxRecordsPerTrigger": told.rows_per_trigger}
    rows = spark.readStream.format(FORMAT).options(**options, includeMetadata="true").load()
    if path is None:
        rows = rows.select("id", "amount", "text")
    writer = rows.writeStream.format(sink.pop("format")).options(
        **sink, checkpointLocation=f"{told.folder}/{name}-checkpoint"
    )
    return (writer.trigger(availableNow=True) if told.to_the_end else writer).start(path)


if __name__ == "__main__":
    main()

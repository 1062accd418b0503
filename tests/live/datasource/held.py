"""The format `held_log`: replicated_log, whose processes can be held at any POINT of a micro-batch until the test lets
them go; and a driver that runs queries from one topic into another by it.

A folder of files says what is held: `point` has the name of a point and how many times it is to be reached; the process
that has done so writes its pid into `at`, and waits for `go`.

The driver reads a query a line, as JSON, and answers with `ended` or `failed`, and why.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition, WriterCommitMessage
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from spark_replication.client.producing.producer import Producer
from spark_replication.spark.datasource import writing
from spark_replication.spark.datasource.data_source import ReplicatedLog
from spark_replication.spark.datasource.options import LogOptions
from spark_replication.spark.datasource.sink_schema import SinkSchema
from spark_replication.spark.datasource.stream_reader import StreamReader
from spark_replication.spark.datasource.writing import StreamWriter, Written
from spark_replication.spark.registering import register_format
from spark_replication.spark.session import build_session
from tests.waiting import eventually

NAME = "held_log"
FOLDER = "holds"  # the option that names the folder
HELD_S = 120.0

_OUR_ERROR = re.compile(r"spark_replication\.errors\.\w+: .*")

#: In the order in which a micro-batch comes to them.
POINTS = (
    "before its end is chosen",
    "before planning",
    "after planning",
    "as a task begins",
    "once a task has its rows",
    "before a send",
    "after a send",
    "after an acknowledgement",
    "before the task's message",
    "before the commit of the sink",
    "after the commit of the sink",
    "after the commit of the query",
)
OF_TASKS = POINTS[3:9]


def hold(folder: Path, point: str) -> None:
    """Wait here if the test says so."""
    wanted, _, times = (folder / "point").read_text().partition("\n")
    if point != wanted:
        return
    with (folder / "reached").open("ab") as reached:
        reached.write(b".")
        reached.flush()
        is_it = os.fstat(reached.fileno()).st_size == int(times)
    if is_it:
        (folder / "at.new").write_text(str(os.getpid()))
        (folder / "at.new").rename(folder / "at")
        eventually((folder / "go").exists, "the test lets it go", HELD_S)


class HeldLog(ReplicatedLog):
    @classmethod
    def name(cls) -> str:
        return NAME

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._folder = Path(self.options.pop(FOLDER))

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802
        return HeldReader(self._folder, self._options(is_stream=True), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        return HeldWriter(self._folder, *self._sink(schema, overwrite=overwrite))


class HeldReader(StreamReader):
    def __init__(self, folder: Path, options: LogOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._folder = folder

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        hold(self._folder, POINTS[0])
        return super().latestOffset(start, limit)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        hold(self._folder, POINTS[1])
        planned = super().partitions(start, end)
        hold(self._folder, POINTS[2])
        return planned

    def commit(self, end: dict[str, Any]) -> None:
        hold(self._folder, POINTS[11])
        super().commit(end)


class HeldWriter(StreamWriter):
    def __init__(self, folder: Path, options: LogOptions, sink: SinkSchema) -> None:
        super().__init__(options, sink)
        self._folder = folder

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        folder = self._folder
        writing.Producer = type("Held", (HeldProducer,), {"folder": folder})  # type: ignore[attr-defined, assignment]
        hold(folder, POINTS[3])

        def rows() -> Iterator[pa.RecordBatch]:
            yield from iterator
            hold(folder, POINTS[4])

        written = super().write(rows())
        hold(folder, POINTS[8])
        return written

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        hold(self._folder, POINTS[9])
        super().commit(messages, batchId)
        hold(self._folder, POINTS[10])


class HeldProducer(Producer):
    folder: Path

    def send(self, *given: Any, **named: Any) -> Any:
        hold(self.folder, POINTS[5])
        future = super().send(*given, **named)
        hold(self.folder, POINTS[6])
        if (self.folder / "point").read_text().startswith(POINTS[7]):
            future.exception()
            hold(self.folder, POINTS[7])
        return future


def carry_out(spark: SparkSession, query: dict[str, str]) -> str:
    holds = {FOLDER: f"{query['folder']}/holds"}
    source = {"topic": query["source"], "startingOffsets": "earliest", "maxRecordsPerTrigger": query["rows"], **holds}
    sink = {"topic": query["target"], "checkpointLocation": f"{query['folder']}/checkpoint", **holds}
    sink |= {"deadlineMs": query["deadline_ms"], **({"partitionBy": query["by"]} if query["by"] else {})}
    rows = spark.readStream.format(NAME).options(**source, minPartitions="4").load()
    try:
        rows.writeStream.format(NAME).options(**sink).trigger(availableNow=True).start().awaitTermination()
    except PySparkException as error:
        text = " ".join(str(error).split())
        ours = _OUR_ERROR.search(text)
        return f"failed {(ours.group() if ours else text)[:200]}"
    return "ended"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", required=True)
    spark = build_session("held", "local[2]", {"spark.driver.memory": "512m"})
    bootstrap = parser.parse_args().bootstrap
    register_format(spark, {"bootstrap": bootstrap})
    spark.dataSource.register(type("Here", (HeldLog,), {"defaults": {"bootstrap": bootstrap}}))
    for line in sys.stdin:
        sys.stdout.write(f"\n= {carry_out(spark, json.loads(line))}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

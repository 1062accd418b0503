"""A topic that stories fill, read and write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import spark_replication as sr
from spark_replication.engine.client.sending import Ack
from spark_replication.messages.ranges import WantedRange
from spark_replication.spark.datasource.data_source import FORMAT

SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), pa.field("amount", pa.float64()), ("text", pa.string())]
)
TIMEOUT_S = 120


class Topic:
    def __init__(self, cluster: sr.LocalCluster, spark: SparkSession, name: str) -> None:
        self.cluster = cluster
        self.spark = spark
        self.name = name

    def another(self, name: str, schema: pa.Schema = SCHEMA, **given: Any) -> Topic:
        self.cluster.admin.create_topic(f"{self.name}-{name}", schema, **{"partitions": 3, **given})
        return Topic(self.cluster, self.spark, f"{self.name}-{name}")

    def log_start(self, partition: int = 0) -> int:
        """As its leader says now."""
        with sr.Reader(self.cluster.bootstrap) as reader:
            (found,) = reader.ranges([WantedRange(topic=self.name, partition=partition)]).values()
            return found.log_start

    def fill(self, *firsts: int, rows: int = 10, partitions: int = 3) -> list[Ack]:
        """A batch for each of `firsts`, with ids from there on, to the partitions in turn."""
        with sr.Producer(self.cluster.bootstrap, batch_bytes=0) as producer:
            sent = [
                producer.send(self.name, orders(first, rows), partition=number % partitions)
                for number, first in enumerate(firsts)
            ]
            return [future.result() for future in sent]

    def rows(self, **options: Any) -> DataFrame:
        return self.spark.read.format(FORMAT).options(topic=self.name, **_text(options)).load()

    def ids(self, **options: Any) -> list[int]:
        return sorted(row["id"] for row in self.rows(**options).select("id").collect())

    def stream(self, **options: Any) -> DataFrame:
        told = _text({"topic": self.name, "startingOffsets": "earliest", **options})
        return self.spark.readStream.format(FORMAT).options(**told).load()

    def write(self, rows: DataFrame, **options: Any) -> None:
        rows.write.format(FORMAT).options(topic=self.name, **_text(options)).mode("append").save()

    def written(self, rows: DataFrame, checkpoint: Path, **options: Any) -> StreamingQuery:
        """All that is there of a stream, and no more."""
        told = {"topic": self.name, "checkpointLocation": str(checkpoint), **_text(options)}
        query = rows.writeStream.format(FORMAT).options(**told).trigger(availableNow=True).start()
        return ended(query)


def ended(query: StreamingQuery, timeout_s: int = TIMEOUT_S) -> StreamingQuery:
    assert query.awaitTermination(timeout_s), "the query goes on"
    return query


def orders(first: int, rows: int) -> pa.RecordBatch:
    ids = pa.array(range(first, first + rows), pa.int64())
    return pa.record_batch(
        [ids, pa.array([number / 4 for number in range(rows)]), pa.array([f"order {first}"] * rows)], schema=SCHEMA
    )


def _text(options: dict[str, Any]) -> dict[str, str]:
    """None: not given."""
    return {name: str(value) for name, value in options.items() if value is not None}

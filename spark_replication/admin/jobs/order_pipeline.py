"""Orders through Spark: a batch of orders into a topic, and a stream of orders from the topic into a Delta table."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event
from typing import Any

from delta.tables import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from spark_replication.admin.jobs.order_load import PENNIES
from spark_replication.config import Settings
from spark_replication.decoding import error_of_text
from spark_replication.errors import InvalidRequest
from spark_replication.spark.datasource.data_source import FORMAT
from spark_replication.spark.registering import register_format, security_options
from spark_replication.spark.session import end_session
from spark_replication.spark.session import session as spark_session

TOLD_EVERY_S = 1


@contextmanager
def session(name: str, bootstrap: str, settings: Settings) -> Iterator[SparkSession]:
    """A Spark session that knows the cluster: that of spark-submit, or one on this machine."""
    before = signal.getsignal(signal.SIGINT)
    spark = spark_session(name)
    signal.signal(signal.SIGINT, before)  # Spark has taken Ctrl-C for itself
    try:
        register_format(spark, {"bootstrap": bootstrap, **security_options(settings)})
        yield spark
    finally:
        end_session(spark)


def load_orders(spark: SparkSession, topic: str, rows: int) -> None:
    """Write so many orders at once, with acks=all. One task for each slot writes, each order to the partition of its
    id."""
    orders = spark.range(rows).select(
        "id",
        sql.expr("unix_millis(current_timestamp())").alias("at_ms"),
        (sql.col("id") % PENNIES / 100).alias("amount"),
    )
    with_our_errors(lambda: orders.write.format(FORMAT).options(topic=topic, partitionBy="id").mode("append").save())


def orders_into(spark: SparkSession, table: str, *, topic: str, options: dict[str, str], follow: bool) -> OrderStream:
    orders = with_our_errors(lambda: spark.readStream.format(FORMAT).options(topic=topic, **options).load())
    return OrderStream(orders, table, follow=follow)


class OrderStream:
    """A stream that puts each order into a table once. After a stop or a kill, it goes on from its checkpoint there."""

    def __init__(self, orders: DataFrame, table: str, *, follow: bool) -> None:
        writer = orders.writeStream.format("delta").option("checkpointLocation", f"{table}/_checkpoints/orders")
        self._query = (writer if follow else writer.trigger(availableNow=True)).start(table)
        self._spark = orders.sparkSession
        self._table = table
        self._read = 0

    def run(self, stopping: Event, tell: Callable[[int, int | None], None]) -> None:
        """Run until the stream's end, or until `stopping`. `tell` is called with the rows read and the rows behind;
        None until a micro-batch has told how many."""
        told = -1
        behind: int | None = 0  # at the end of one that does not follow all of it is read
        while not with_our_errors(lambda: self._query.awaitTermination(TOLD_EVERY_S)):
            told = self._tell(told, tell, None)
            if stopping.is_set():
                behind = None
                break
        self._query.stop()
        self._tell(told, tell, behind)

    def rows_there(self) -> int:
        """In the table, which Delta knows without reading it: those of a micro-batch too that a stop came into, of
        which Spark tells nothing, and those of earlier runs."""
        if not DeltaTable.isDeltaTable(self._spark, self._table):
            return 0
        return self._spark.read.format("delta").load(self._table).count()

    def _tell(self, told: int, tell: Callable[[int, int | None], None], behind: int | None) -> int:
        """behind: if no micro-batch has told."""
        for each in self._query.recentProgress:
            progress: dict[str, Any] = json.loads(each.json)
            if progress["batchId"] > told:
                told = progress["batchId"]
                self._read += progress["numInputRows"]
            behind = sum(((progress["sources"][0]["latestOffset"] or {}).get("behind") or {}).values())
        tell(self._read, behind)
        return told


def with_our_errors(do: Callable[[], Any]) -> Any:
    """Run `do`. An error of a broker or of our source is raised as ours again, one of Spark as a single sentence."""
    try:
        return do()
    except PySparkException as error:
        # An error of a task or a planner stands in the last line but for Spark's SQLSTATE, below its traceback.
        lines = str(error).splitlines() or [type(error).__name__]
        ours = next((found for line in lines if (found := error_of_text(line)) is not None), None)
        raise ours or InvalidRequest(lines[0]) from error

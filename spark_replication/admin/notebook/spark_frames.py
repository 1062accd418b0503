"""The rows of `frames` as Spark's DataFrames: from the mirror's tables if a session can read them, else as told.

Import this module only with a Spark session.
"""

from __future__ import annotations

from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql

from spark_replication.admin.notebook.frames import (
    BROKER_COLUMNS,
    EVENT_COLUMNS,
    PARTITION_COLUMNS,
    Frame,
)
from spark_replication.messages.mirroring import DescribeEvents
from spark_replication.mirror.asking.load import load_partitions, load_table
from spark_replication.mirror.tables.brokers import BROKERS
from spark_replication.mirror.tables.events import EVENTS
from spark_replication.spark.session import DELTA_EXTENSION
from spark_replication.spark.views import readable
from spark_replication.view.conditions import WORST_IN_SQL


def has_delta(spark: SparkSession) -> bool:
    return DELTA_EXTENSION in (spark.conf.get("spark.sql.extensions", "") or "")


def as_told(spark: SparkSession, frame: Frame) -> DataFrame:
    """A DataFrame of these very rows, whatever becomes of the cluster."""
    return spark.createDataFrame(frame.to_arrow())


def mirrored_partitions(spark: SparkSession, path: str) -> DataFrame:
    """The rows of partitions. Each query reads the newest version of the table, here and below."""
    with readable(spark, path):
        rows = load_partitions(spark, path).withColumn("condition", sql.expr(WORST_IN_SQL))
        return rows.select(*PARTITION_COLUMNS.names)


def mirrored_brokers(spark: SparkSession, path: str) -> DataFrame:
    with readable(spark, path):
        return load_table(spark, BROKERS, path).where("NOT deleted").select(*BROKER_COLUMNS.names)


def mirrored_events(spark: SparkSession, path: str, asked: DescribeEvents, last: int | None) -> DataFrame:
    """The rows of events, in no order. `last` is how many of the newest; if it is None, all that the table keeps."""
    with readable(spark, path):
        rows = load_table(spark, EVENTS, path)
        about = _about(asked)
        if about:
            rows = rows.where(reduce(or_, about))
        if asked.cause is not None:
            rows = rows.where(sql.col("cause") == asked.cause)
        if last is not None:
            rows = rows.orderBy(sql.col("number").desc()).limit(last)
        return rows.select(*EVENT_COLUMNS.names)


def _about(asked: DescribeEvents) -> list[Column]:
    """The conditions of which any holds for an event that was asked for, as in mirror.asking.told_events."""
    topic, partition = sql.col("topic"), sql.col("partition")
    about = [(topic == each.topic) & (partition == each.partition) for each in asked.partitions]
    about += [topic.isin(*asked.topics)] if asked.topics else []
    about += [sql.col("broker").isin(*asked.brokers)] if asked.brokers else []
    return about

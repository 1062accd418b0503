"""The same rows as Spark's DataFrames: of the mirror's tables where a session can read them, else as they were told.

Only who has a Spark session imports this module.
"""

from __future__ import annotations

from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql

from spark_replication.admin.notebook.frames import (
    BROKER_COLUMNS,
    EVENT_COLUMNS,
    IN_SYNC,
    LEADERLESS,
    PARTITION_COLUMNS,
    UNDER_MIN_ISR,
    UNDER_REPLICATED,
    Frame,
)
from spark_replication.messages.mirroring import DescribeEvents
from spark_replication.mirror.brokers import BROKERS
from spark_replication.mirror.events import EVENTS
from spark_replication.mirror.load import load_partitions, load_table
from spark_replication.spark.session import DELTA_EXTENSION
from spark_replication.spark.views import readable

# As frames.condition_of has it.
_CONDITION = f"""CASE
    WHEN leader IS NULL THEN '{LEADERLESS}'
    WHEN size(isr) < min_isr THEN '{UNDER_MIN_ISR}'
    WHEN size(isr) < size(replicas) THEN '{UNDER_REPLICATED}'
    ELSE '{IN_SYNC}'
END"""


def has_delta(spark: SparkSession) -> bool:
    return DELTA_EXTENSION in (spark.conf.get("spark.sql.extensions", "") or "")


def as_told(spark: SparkSession, frame: Frame) -> DataFrame:
    """These rows, whatever becomes of the cluster."""
    return spark.createDataFrame(frame.to_arrow())


def mirrored_partitions(spark: SparkSession, path: str) -> DataFrame:
    """Each query reads the newest version of the table, as of the others below."""
    with readable(spark, path):
        rows = load_partitions(spark, path).withColumn("condition", sql.expr(_CONDITION))
        return rows.select(*PARTITION_COLUMNS.names)


def mirrored_brokers(spark: SparkSession, path: str) -> DataFrame:
    with readable(spark, path):
        return load_table(spark, BROKERS, path).where("NOT deleted").select(*BROKER_COLUMNS.names)


def mirrored_events(spark: SparkSession, path: str, asked: DescribeEvents, last: int | None) -> DataFrame:
    """In no order, as tables are. last: of the newest; None: all that the table keeps."""
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
    """Any of these: as mirror.told_events has it."""
    topic, partition = sql.col("topic"), sql.col("partition")
    about = [(topic == each.topic) & (partition == each.partition) for each in asked.partitions]
    about += [topic.isin(*asked.topics)] if asked.topics else []
    about += [sql.col("broker").isin(*asked.brokers)] if asked.brokers else []
    return about

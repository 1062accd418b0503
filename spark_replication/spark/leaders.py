"""The partition of each row, and its leader, by Spark's own expressions and a broadcast join."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sql
from pyspark.sql.types import BinaryType, BooleanType, DataType, DateType, IntegralType, NullType, StringType

from spark_replication.errors import InvalidRequest
from spark_replication.mirror.asking.load import load_partitions
from spark_replication.mirror.delta.paths import mirror_path
from spark_replication.mirror.tables.keys import KEY_TYPES, SEPARATOR
from spark_replication.spark.session import java_reason
from spark_replication.spark.views import led_partitions, readable

ADDED = ("_partition", "_leader", "_leader_host", "_leader_port", "_leader_epoch")

_PLACE = "_place_of_partition"  # its place among the partitions of its topic, in ascending order
_AS_TEXT = (StringType, IntegralType, BooleanType, DateType, NullType)


def with_leader(topic: str, *, key: str | Sequence[str], mirror: str | None = None) -> Callable[[DataFrame], DataFrame]:
    """Add _partition, _leader, _leader_host, _leader_port and _leader_epoch to a DataFrame, by
    `df.transform(sr.with_leader("orders", key=["id"], mirror=path))`. No ZooKeeper is asked, and no row passes through
    Python.

    The partition is the one that Producer.send(key=...) chooses for the bytes of the key; mirror.tables.keys says which
    those are. The columns of a leader are null until one has confirmed that it leads: wait, or send by any broker. Each
    query, and each micro-batch of a stream, reads the tables anew. Executors must reach them at the same path.

    Raises InvalidRequest if there are no tables, if they do not have this topic, or if this DataFrame has no such
    key."""
    columns = [key] if isinstance(key, str) else list(key)
    path = mirror_path(mirror)

    def added(rows: DataFrame) -> DataFrame:
        bytes_of_key = _key_bytes(rows, columns)
        spark = rows.sparkSession
        with readable(spark, path):
            partitions = load_partitions(spark, path).where(sql.col("topic") == topic)
            if partitions.isEmpty():
                raise InvalidRequest(f"the tables at {path} have no topic {topic!r}: check its name, or create it")
            leaders = _leaders(led_partitions(spark, path).where(sql.col("topic") == topic))
            count = partitions.agg(sql.count("*").alias("count")).scalar()
            place = sql.crc32(bytes_of_key) % sql.nullif(count, sql.lit(0))
            joined = rows.join(sql.broadcast(leaders), place == sql.col(_PLACE), "left").drop(_PLACE)
            # An expression of the column, not of the join: Spark evaluates no condition of a join with an empty table.
            gone = sql.raise_error(sql.lit(f"the tables at {path} have no topic {topic!r} any more"))
            return joined.withColumn("_partition", sql.coalesce("_partition", gone.cast("int")))

    return added


def _leaders(led: DataFrame) -> DataFrame:
    place = sql.row_number().over(Window.partitionBy("topic").orderBy("partition")) - 1
    return led.select(
        place.cast("long").alias(_PLACE),
        sql.col("partition").alias("_partition"),
        sql.col("leader").alias("_leader"),
        sql.col("host").alias("_leader_host"),
        sql.col("port").alias("_leader_port"),
        sql.col("leader_epoch").alias("_leader_epoch"),
    )


def _key_bytes(rows: DataFrame, columns: Sequence[str]) -> Column:
    taken = {name.lower() for name in rows.columns} & {*ADDED, _PLACE}
    if taken:
        raise InvalidRequest(f"the DataFrame has columns {sorted(taken)} already: drop them, or name them otherwise")
    if not columns:
        raise InvalidRequest("a key of no column: name one at least")
    try:
        types = [field.dataType for field in rows.select(*columns).schema]
    except AnalysisException as error:
        raise InvalidRequest(f"no key can be made of {columns}: {java_reason(error)}") from error
    if len(types) != len(columns):
        raise InvalidRequest(f"{columns} stand for {len(types)} columns: name each column of the key")
    parts = [_bytes_of_column(name, kind) for name, kind in zip(columns, types, strict=True)]
    between = [part for each in parts for part in (sql.lit(SEPARATOR), each)]
    return sql.concat(*between[1:])


def _bytes_of_column(name: str, kind: DataType) -> Column:
    column = sql.col(name)
    if isinstance(kind, _AS_TEXT):
        column = column.cast("string").cast("binary")
    elif not isinstance(kind, BinaryType):
        raise InvalidRequest(f"column {name} of {kind.simpleString()} cannot be a key: {KEY_TYPES}")
    return sql.coalesce(column, sql.lit(b""))

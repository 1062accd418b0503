"""Spark looks for data sources in top-level modules of such names: the format is known without `register`."""

from spark_replication.spark.datasource.data_source import ReplicatedLog as DefaultSource

__all__ = ["DefaultSource"]

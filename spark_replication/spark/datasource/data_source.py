"""`format("replicated_log")`: the data source as Spark sees it."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Mapping
from typing import ClassVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from spark_replication.errors import InvalidRequest
from spark_replication.spark.datasource.appends import WriteName
from spark_replication.spark.datasource.batch_reader import BatchReader, FilteringReader
from spark_replication.spark.datasource.options import LogOptions, over, parse
from spark_replication.spark.datasource.sink_schema import SinkSchema
from spark_replication.spark.datasource.stream_reader import StreamReader
from spark_replication.spark.datasource.tasks import columns_together
from spark_replication.spark.datasource.topic import Topic, described
from spark_replication.spark.datasource.writing import BatchWriter, StreamWriter

FORMAT = "replicated_log"
# The module that asks for the reader where Spark pushes conditions down. Where Spark does not
# (spark.sql.python.filterPushdown.enabled), it refuses a reader that takes them, and it does not say which is the case.
PUSHING_DOWN = "pyspark.sql.worker.data_source_pushdown_filters"


class ReplicatedLog(DataSource):
    """The data source. Spark makes one for each question, in a process of its own."""

    #: The options that a query need not name: a subclass has those that `register` was given.
    defaults: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        options = self._options(is_stream=False)
        return columns_together(described(options), options)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = self._options(is_stream=False)
        return FilteringReader(options, schema) if PUSHING_DOWN in sys.modules else BatchReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (Spark's name)
        return StreamReader(self._options(is_stream=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 (Spark's)
        options, sink = self._sink(schema, overwrite=overwrite)
        name = WriteName(options.write_id or uuid.uuid4().hex, options.write_batch, sink.topic)
        return BatchWriter(options, sink, name)

    def streamWriter(  # noqa: N802 (Spark's name)
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001 (Spark's)
    ) -> DataSourceStreamWriter:
        return StreamWriter(*self._sink(schema, overwrite=overwrite))

    def _sink(self, schema: StructType, *, overwrite: bool) -> tuple[LogOptions, SinkSchema]:
        options = self._options(is_stream=False)
        if overwrite:
            raise InvalidRequest('a log is appended to, and keeps what it has: .mode("append"), .outputMode("append")')
        if not options.topic or options.assigned is not None:
            raise InvalidRequest(
                'a write goes to one topic, of which each row finds its partition: add .option("topic", "orders"), '
                "and leave out what says which topics are read"
            )
        return options, SinkSchema.of(Topic(options).metadata(), schema, options.partition_by)

    def _options(self, *, is_stream: bool) -> LogOptions:
        return parse(over(self.defaults, dict(self.options)), os.environ, is_stream=is_stream)

"""What a task says of a write that failed."""

from __future__ import annotations

from concurrent.futures import Future
from types import TracebackType
from typing import Any

import pyarrow as pa
import pytest

from spark_replication.client.sender import Ack, Identity
from spark_replication.errors import InvalidProducerEpoch, InvalidRequest, ReplicationError
from spark_replication.spark.datasource import writing
from spark_replication.spark.datasource.options import LogOptions
from spark_replication.spark.datasource.sink_schema import SinkSchema

SCHEMA = pa.schema([("text", pa.string())])
TEXT = "x" * (writing.APPEND_BYTES // 2 + 1)  # two are more than one append


class Task:
    """Spark's, of a batch."""

    def partitionId(self) -> int:  # noqa: N802 (Spark's name)
        return 0


class Refusing:
    """A producer under fixed numbers: its first batch fails, and what comes behind it is refused at once."""

    def __init__(self, failed: ReplicationError) -> None:
        self._failed = failed
        self._over = False

    def __enter__(self) -> Refusing:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def send(self, _topic: str, _batch: pa.RecordBatch, **_told: Any) -> Future[Ack]:
        if self._over:
            raise InvalidRequest("a batch for orders-0 has failed, and this one would have its number: begin anew")
        self._over = True
        future: Future[Ack] = Future()
        future.set_exception(self._failed)
        return future


def test_the_batch_that_failed_says_why_and_not_the_one_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(_options: LogOptions, _identity: Identity) -> Refusing:
        return Refusing(InvalidProducerEpoch("another batch 0 than the one that is stored"))

    monkeypatch.setattr(writing, "_producer", refusing)
    monkeypatch.setattr(writing, "_task", Task)
    options = LogOptions(topic="orders", bootstrap="127.0.0.1:1", security={})
    sink = SinkSchema("orders", SCHEMA, (0,))
    batches = [pa.record_batch([[TEXT]], schema=SCHEMA) for _ in range(4)]
    with pytest.raises(InvalidProducerEpoch, match=r"another batch 0 .+ had its rows in another order"):
        writing.BatchWriter(options, sink, "one").write(iter(batches))

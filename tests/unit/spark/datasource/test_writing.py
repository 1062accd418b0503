"""What a task says of a write that failed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Any

import pyarrow as pa
import pytest

from spark_replication.engine.client.repeating import Append
from spark_replication.engine.client.sending import Ack
from spark_replication.errors import BatchTooLarge, InvalidProducerEpoch, InvalidRequest, ReplicationError
from spark_replication.spark.datasource import writing
from spark_replication.spark.datasource.appends import APPEND_BYTES, WriteName
from spark_replication.spark.datasource.options import LogOptions
from spark_replication.spark.datasource.sink_schema import SinkSchema

SCHEMA = pa.schema([("text", pa.string())])
TEXT = "x" * (APPEND_BYTES // 2 + 1)  # two are more than one append


class Task:
    """Spark's, of a batch."""

    def partitionId(self) -> int:  # noqa: N802 (Spark's name)
        return 0

    def getLocalProperty(self, _name: str) -> str:  # noqa: N802
        return "false"


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


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Writes four batches, of which the first fails with an error."""

    def refused(error: ReplicationError, **options: Any) -> None:
        monkeypatch.setattr(writing, "_producer", lambda _options, _identity: Refusing(error))
        monkeypatch.setattr(writing, "_task", Task)
        monkeypatch.setattr(writing, "_known", lambda _options, _producer: ((0,), {}))
        told = LogOptions(topic="orders", bootstrap="127.0.0.1:1", security={}, **options)
        sink = SinkSchema("orders", SCHEMA, (0,))
        batches = [pa.record_batch([[TEXT]], schema=SCHEMA) for _ in range(4)]
        writing.BatchWriter(told, sink, WriteName("one", None, "orders")).write(iter(batches))

    return refused


def test_the_batch_that_failed_says_why_and_not_the_one_behind_it(refused: Callable[..., None]) -> None:
    with pytest.raises(InvalidProducerEpoch, match=r"another batch 0 .+ had its rows in another order"):
        refused(InvalidProducerEpoch("another batch 0 than the one that is stored"))


def test_a_name_that_was_given_twice_is_named(refused: Callable[..., None]) -> None:
    with pytest.raises(InvalidProducerEpoch, match=r"other rows were written under this writeId"):
        refused(InvalidProducerEpoch("another batch 0 than the one that is stored"), write_id="one")


def test_an_append_that_is_too_large_names_the_option(refused: Callable[..., None]) -> None:
    with pytest.raises(BatchTooLarge, match=r"set the option appendBytes"):
        refused(BatchTooLarge("over batch.bytes.max=262144: split it"))


class Answering:
    """A producer that gives these answers."""

    def __init__(self, *answers: Future[Ack]) -> None:
        self._answers = list(answers)

    def send(self, _topic: str, _batch: pa.RecordBatch, **_told: Any) -> Future[Ack]:
        return self._answers.pop(0)


def test_the_next_producer_of_a_task_begins_once_the_one_before_has_its_answers_from_the_partition() -> None:
    failed, good, open_ = Future[Ack](), Future[Ack](), Future[Ack]()
    failed.set_exception(InvalidProducerEpoch("no"))
    good.set_result(Ack(topic="orders", partition=1, base_offset=0, last_offset=0))
    opened: list[int] = []

    def opens(producer: int) -> Any:
        opened.append(producer)
        return Answering(failed, good) if producer == 0 else Answering(open_)

    sending = writing.Appending("orders", opens)
    batch = pa.record_batch([["x"]], schema=SCHEMA)
    sending.send(Append(0, 0, batch))
    sending.send(Append(1, 0, batch))
    sending.send(Append(1, 1, batch))
    assert (opened, sending.sent) == ([0, 1], [failed, good, open_])
    with pytest.raises(InvalidProducerEpoch, match="no"):
        sending.send(Append(0, 1, batch))
    assert sending.sent == [failed, good, open_]

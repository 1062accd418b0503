"""A write stream while its topic is widened."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from spark_replication.config import Settings
from spark_replication.model import TopicPartition
from spark_replication.storage.batches import TopicSchema
from spark_replication.transport.put_stream import AnswersInOrder, PutStream
from tests.unit.storage.storage_stories import SCHEMA, TOPIC, WIDENED, WIDER, rows
from tests.unit.transport.replicas import Brokers

ORDERS = TopicPartition("orders", 0)


class Chunk(NamedTuple):
    data: pa.RecordBatch
    app_metadata: None = None


class Chunks:
    """A Flight reader."""

    def __init__(self, chunks: Iterator[pa.RecordBatch]) -> None:
        self._chunks = chunks

    def read_chunk(self) -> Chunk:
        return Chunk(next(self._chunks))


class Written(list[dict[str, Any]]):
    def write(self, data: bytes) -> None:
        self.append(msgspec.json.decode(data))


def test_an_open_stream_is_served_in_the_version_that_the_broker_knows_by_then(tmp_path: Path) -> None:
    brokers = Brokers(tmp_path)
    broker = brokers.start(1)
    broker.command(ORDERS, 1, (1,))
    schemas: list[TopicSchema] = [TOPIC]
    new = pa.RecordBatch.from_arrays([*rows(2, 2).columns, pa.array([7, None], pa.int8())], schema=WIDER)

    def sent() -> Iterator[pa.RecordBatch]:
        yield rows(0, 2)
        yield new  # the broker has not heard of it
        schemas.append(WIDENED)
        yield new
        yield rows(4, 2)

    written = Written()
    stream = PutStream(
        lambda _: broker.replicas[ORDERS], lambda: schemas[-1], AnswersInOrder, Settings(), lambda: 0, lambda: None
    )
    stream.run(Chunks(sent()), written)
    assert [answer.get("base_offset") for answer in written] == [0, None, 2, 4]
    assert (written[1]["error"], written[1]["retriable"], written[1]["maybe_written"]) == (
        "UNKNOWN_SCHEMA_VERSION",
        True,
        False,
    )
    folder = broker.folder(ORDERS)
    first, second = (pa.ipc.open_stream(path.read_bytes()) for path in sorted(folder.glob("*.arrow")))
    assert (first.schema, second.schema) == (SCHEMA, WIDER)
    assert first.read_all().to_pydict() == {"row": [0, 1], "text": ["row 0", "row 1"]}
    assert second.read_all().column("late").to_pylist() == [7, None, None, None]
    brokers.close()

"""Some columns of a stored batch: the same bytes that Arrow would write, whatever the types, and whether or not the
buffers can be taken out as they are."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_replication.errors import CorruptLog
from spark_replication.storage.format.batches import schema_to_bytes, stored_schema
from spark_replication.storage.format.column_pick import ColumnPick, column_pick
from spark_replication.storage.format.ipc_message import ColumnCut
from tests.unit.storage.every_type import TOPICS, Sample, kinds
from tests.unit.storage.storage_stories import rows
from tests.unit.storage.test_ipc_message import NESTED, stream_of

IDS, TEXTS = pa.array([1, 2, 3]), pa.array(["a", None, "ccc"])
CHOSEN = [each for count in (1, 2, 3) for each in permutations(range(3), count)]


def picked(batch: pa.RecordBatch, places: Sequence[int], message: bytes | None = None) -> bytes:
    found = ColumnPick(batch.schema, places).of(memoryview(message or bytes(batch.serialize())))
    return bytes(found)


def is_cut(batch: pa.RecordBatch, places: Sequence[int], message: bytes | None = None) -> bool:
    cut = ColumnPick(batch.schema, places)._cut
    return cut is not None and cut.of(memoryview(message or bytes(batch.serialize()))) is not None


def beside(sample: Sample) -> pa.RecordBatch:
    """This column between two others, as a topic keeps it."""
    column = pa.ipc.read_record_batch(pa.py_buffer(sample.message), sample.schema).column(0)
    return pa.record_batch([IDS, column, TEXTS], names=["id", "it", "text"])


@pytest.mark.parametrize(
    "sample", [each for each in TOPICS if each.name not in ("dictionary", "several")], ids=lambda sample: sample.name
)
def test_columns_of_every_type_are_as_arrow_writes_them(sample: Sample) -> None:
    batch = beside(sample)
    assert batch.schema == stored_schema(batch.schema)
    has_views = any(pa.types.is_string_view(kind) or pa.types.is_binary_view(kind) for kind in kinds(sample.schema))
    for part in (batch, batch.slice(1, 1), batch.slice(1)):
        for places in CHOSEN:
            assert picked(part, places) == bytes(part.select(places).serialize()), places
            assert is_cut(part, places) == (not has_views and not (sample.name == "null" and places == (1,)))


@pytest.mark.parametrize("places", [(0,), (1,), (2, 0), (3, 1, 2), (0, 1, 2, 3)])
@pytest.mark.parametrize("batch", [NESTED, NESTED.slice(1), NESTED.slice(0, 1)])
def test_columns_within_columns_come_with_them(batch: pa.RecordBatch, places: tuple[int, ...]) -> None:
    assert picked(batch, places) == bytes(batch.select(places).serialize())
    assert is_cut(batch, places)


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_columns_of_a_compressed_batch_come_without_compression(compression: str) -> None:
    batch = rows(0, 1_000)
    message = stream_of(batch, compression=compression)[len(schema_to_bytes(batch.schema)) : -8]
    assert picked(batch, [1], message) == bytes(batch.select([1]).serialize())
    assert not is_cut(batch, [1], message)


def test_no_column_leaves_the_rows() -> None:
    found = ColumnPick(rows(0, 3).schema, ())
    batch = pa.ipc.read_record_batch(pa.py_buffer(found.of(memoryview(rows(0, 3).serialize()))), pa.schema([]))
    assert (batch.num_columns, batch.num_rows) == (0, 3)


def test_a_batch_that_another_arrow_has_laid_out_is_read_by_this_one() -> None:
    batch = rows(0, 3)
    message = bytearray(batch.serialize())
    length = int.from_bytes(message[4:8], "little")
    message[4:8] = (length + 8).to_bytes(4, "little")
    laid_out = bytes(message[: 8 + length]) + bytes(8) + bytes(message[8 + length :])
    assert not is_cut(batch, [1], laid_out)
    assert picked(batch, [1], laid_out) == bytes(batch.select([1]).serialize())


def test_metadata_in_which_anything_but_a_number_differs_is_not_what_this_arrow_writes() -> None:
    batch = rows(0, 3)
    message = bytes(batch.serialize())
    metadata = 8 + int.from_bytes(message[4:8], "little")
    cut = [at for at in range(metadata) if is_cut(batch, [1], _with_bit(message, at))]
    assert len(cut) <= 8 * (2 + 2 * 2 + 2 * 5), "the body's bytes, the rows, two nodes, and five buffers"


def _with_bit(message: bytes, at: int) -> bytes:
    return message[:at] + bytes([message[at] ^ 1]) + message[at + 1 :]


@pytest.mark.parametrize("place", [0, 1])
def test_a_message_that_is_shorter_than_it_says_is_damage(place: int) -> None:
    batch = rows(0, 3)
    message = bytes(batch.serialize())
    for length in (1, 7, 8, 100, len(message) - 8, len(message) - 1):
        assert not is_cut(batch, [place], message[:length])
        with pytest.raises(CorruptLog, match="does not parse"):
            picked(batch, [place], message[:length])


@given(st.integers(8, len(bytes(rows(0, 3).serialize())) - 1), st.binary(min_size=8, max_size=8))
def test_changed_metadata_ends_no_process(at: int, change: bytes) -> None:
    message = bytearray(rows(0, 3).serialize())
    message[at : at + 8] = change
    pick = ColumnPick(rows(0, 3).schema, [1])
    assert pick._cut is not None
    cut = pick._cut.of(memoryview(message))
    assert cut is None or cut[:4] == b"\xff\xff\xff\xff"


def test_what_was_picked_is_remembered() -> None:
    head = schema_to_bytes(NESTED.schema)
    assert column_pick(head, (1, 0)) is column_pick(bytes(bytearray(head)), (1, 0))
    assert column_pick(head, (1, 0)).head == schema_to_bytes(NESTED.select([1, 0]).schema)
    assert column_pick(head, (0, 1)) is not column_pick(head, (1, 0))


def test_examples_of_batches_without_a_body_say_nothing() -> None:
    message = bytes(pa.record_batch({"nothing": pa.nulls(1)}).serialize())
    assert ColumnCut.by_examples(message, message, [message], [0]) is None

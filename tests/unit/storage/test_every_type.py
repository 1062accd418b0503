"""Batches of every type of Arrow, sound and damaged: each is stored sound, or refused by an error of ours, and nothing
else is ever raised. A failure of Arrow's own code shows as a crash of the tests, whose name has the seed's number.

`make fuzz` makes a million of them of a new seed, `make test` a minute's of the same seed each time."""

from __future__ import annotations

import os
import random
import struct
from base64 import b64encode
from contextlib import nullcontext

import pyarrow as pa
import pytest
from crc32c import crc32c

from spark_replication.errors import InvalidRequest, InvalidSchema
from spark_replication.storage.format.batches import (
    TopicSchema,
    as_sent,
    prepare,
    schema_change,
    stored_schema,
)
from spark_replication.storage.format.soundness import require_shown
from tests.unit.storage.every_type import BATCH_BYTES_MAX, SAMPLES, TOPICS, Sample, attack, kinds

BATCHES = int(os.environ.get("FUZZ_BATCHES", "120_000"))  # of the long one, in all
SEED = os.environ.get("FUZZ_SEED", "20261128")
PARTS = 20
FEW = 500

UNSHOWN = [sample for sample in SAMPLES if not sample.is_shown]


def sent(sample: Sample, topic: TopicSchema) -> pa.RecordBatch:
    message = sample.message
    stored = as_sent(message, sample.schema, topic, crc=crc32c(message), batch_bytes_max=BATCH_BYTES_MAX)
    return pa.ipc.read_record_batch(pa.py_buffer(stored.message), topic.newest)


def test_every_type_of_arrow_is_among_them() -> None:
    known = {name: getattr(pa.lib, name) for name in dir(pa.lib) if name.startswith("Type_")}
    found = {kind.id for sample in SAMPLES for kind in kinds(sample.schema)}
    assert {name for name, number in known.items() if number not in found} == set()


@pytest.mark.parametrize("sample", TOPICS, ids=lambda sample: sample.name)
def test_what_is_sound_is_stored(sample: Sample) -> None:
    if sample.name == "dictionary":  # its values come in messages of their own, which a frame does not have
        with pytest.raises(InvalidRequest):
            sent(sample, TopicSchema(stored_schema(sample.schema)))
        return
    require_shown(sample.schema)
    found = sent(sample, TopicSchema(stored_schema(sample.schema)))
    assert found.equals(pa.ipc.read_record_batch(pa.py_buffer(sample.message), sample.schema))


@pytest.mark.parametrize("sample", UNSHOWN, ids=lambda sample: sample.name)
def test_what_pyarrow_cannot_show_is_refused_where_it_comes_in(sample: Sample) -> None:
    """As the schema of a stream, of a topic, and of a batch."""
    text = b64encode(sample.head).decode()
    for refuse in (require_shown, stored_schema):
        with pytest.raises(InvalidRequest, match="column 0 has a type that pyarrow cannot show"):
            refuse(sample.schema)
    with pytest.raises(InvalidSchema, match="column 0 has a type that pyarrow cannot show"):
        schema_change(b64encode(TOPICS[0].head).decode(), text)
    for topic in TOPICS[:3]:
        with pytest.raises(InvalidRequest):
            sent(sample, TopicSchema(stored_schema(topic.schema)))


OUT_OF_ITS_BUFFERS = {
    "a buffer that is not there": struct.pack("<i4xii", 0, -(1 << 31), 0),
    "another buffer": struct.pack("<i4sii", 34, b"too ", 7, 0),
    "beyond its buffer": struct.pack("<i4sii", 34, b"too ", 0, 1 << 30),
    "a negative size": struct.pack("<i12x", -5),
}
WITHIN = {"nothing": bytes(16), "what another value has": struct.pack("<i4sii", 34, b"too ", 0, 0)}


def views(null: bytes, kind: pa.DataType) -> pa.Array:
    """Whose null has this view."""
    sound = pa.array(["a", None, "too long to be within a view of it"], kind)
    valid, places, *data = sound.buffers()
    damaged = places.to_pybytes()[:16] + null + places.to_pybytes()[32:]
    return pa.Array.from_buffers(kind, len(sound), [valid, pa.py_buffer(damaged), *data])


def held(where: str, values: pa.Array) -> pa.Array:
    if where == "a list":
        return pa.ListArray.from_arrays([0, 1, 2, 3], values)
    if where == "a struct":
        return pa.StructArray.from_arrays([values], ["x"])
    if where == "a map":
        return pa.MapArray.from_arrays([0, 1, 2, 3], ["a", "b", "c"], values)
    if where == "a union":
        return pa.UnionArray.from_sparse(pa.array([0, 0, 0], pa.int8()), [values])
    if where == "run ends":
        return pa.RunEndEncodedArray.from_arrays(pa.array([1, 2, 3], pa.int32()), values)
    if where == "an extension":
        return pa.ExtensionArray.from_storage(pa.opaque(values.type, "theirs", "elsewhere"), values)
    return values


@pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view()], ids=str)
@pytest.mark.parametrize("where", ["a column", "a list", "a struct", "a map", "a union", "run ends", "an extension"])
def test_a_null_that_leads_out_of_its_buffers_is_refused(where: str, kind: pa.DataType) -> None:
    """The attack: Arrow's validation looks at no null, and its casts look at all of them. One frame with any_order
    ended the broker, and a stored batch whoever read it."""
    for null in (*OUT_OF_ITS_BUFFERS.values(), *WITHIN.values()):
        batch = pa.record_batch({"column": held(where, views(null, kind))})
        batch.validate(full=True)
        topic = TopicSchema(stored_schema(batch.schema))
        with nullcontext() if null in WITHIN.values() else pytest.raises(InvalidRequest, match="not sound Arrow data"):
            prepare(batch, topic, batch_bytes_max=BATCH_BYTES_MAX, any_order=True)


def test_a_null_of_a_dictionary_that_leads_out_of_its_buffers_is_refused() -> None:
    """It is decoded with what the topic has."""
    for null in OUT_OF_ITS_BUFFERS.values():
        indices = pa.array([0, 2, 2], pa.int8())
        column = pa.DictionaryArray.from_arrays(indices, views(null, pa.string_view()))
        batch = pa.record_batch({"column": column})
        with pytest.raises(InvalidRequest, match="not sound Arrow data"):
            prepare(batch, TopicSchema(stored_schema(batch.schema)), batch_bytes_max=BATCH_BYTES_MAX)


def test_views_of_an_earlier_version_are_looked_at_in_the_columns_that_it_has() -> None:
    schema = pa.schema([("column", pa.string_view())])
    topic = TopicSchema(schema.append(pa.field("late", pa.string_view())), (1,))
    for null in (*OUT_OF_ITS_BUFFERS.values(), *WITHIN.values()):
        batch = pa.record_batch([views(null, pa.string_view())], schema=schema)
        with nullcontext() if null in WITHIN.values() else pytest.raises(InvalidRequest, match="not sound Arrow data"):
            prepare(batch, topic, batch_bytes_max=BATCH_BYTES_MAX)


NOTHING = pa.dense_union([])


@pytest.mark.parametrize(
    "kind",
    [
        NOTHING,
        pa.sparse_union([]),
        pa.list_(NOTHING),
        pa.list_(NOTHING, 2),
        pa.list_view(NOTHING),
        pa.map_(pa.string(), NOTHING),
        pa.struct([("a", pa.int8()), ("b", NOTHING)]),
        pa.sparse_union([pa.field("a", pa.sparse_union([]))]),
        pa.run_end_encoded(pa.int16(), NOTHING),
        pa.dictionary(pa.int8(), NOTHING),
        pa.opaque(NOTHING, "theirs", "elsewhere"),
    ],
    ids=str,
)
def test_a_union_without_fields_is_refused_before_anybody_makes_nulls_of_it(kind: pa.DataType) -> None:
    """The attack: such nulls end the process, and a schema is all that it takes. Found by the flood below."""
    schema = pa.schema([("id", pa.int64()), ("column", kind)])
    with pytest.raises(InvalidRequest, match=r"column 1 has a type that pyarrow cannot show .*without fields"):
        require_shown(schema)
    with pytest.raises(InvalidRequest, match="without fields"):
        stored_schema(schema)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_damaged_batches(seed: int) -> None:
    assert 0 < attacked(f"{seed}", FEW) < FEW


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(PARTS))
def test_a_flood_of_damaged_batches(part: int) -> None:
    attacked(f"{SEED} {part}", BATCHES // PARTS)


def attacked(seed: str, count: int) -> int:
    """How many were stored."""
    rng, stored = random.Random(seed), 0
    for number in range(count):
        try:
            stored += attack(rng)
        except Exception as error:
            raise AssertionError(f"FUZZ_SEED={seed} batch={number}: {error!r}") from error
    return stored

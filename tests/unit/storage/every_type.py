"""A batch of every type of Arrow, as bytes, and what somebody who means harm makes of them."""

from __future__ import annotations

import random
import struct
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from spark_replication.errors import ReplicationError
from spark_replication.storage.format.batches import (
    TopicSchema,
    as_sent,
    schema_change,
    schema_from_bytes,
    stored_schema,
)
from spark_replication.storage.format.soundness import require_shown
from tests.unit.transport.hostile import any_of, damaged

BATCH_BYTES_MAX = 1 << 20
#: The units of Arrow's interval that pyarrow reads and cannot show, by what Arrow calls the type.
UNSHOWN = {"month_interval": 0, "day_time_interval": 1}
_SHOWN_UNIT = 2


@dataclass(frozen=True)
class Sample:
    name: str
    #: The message of the schema.
    head: bytes
    #: The message of a batch.
    message: bytes
    #: Whether a topic may have this schema.
    is_shown: bool = True

    @property
    def schema(self) -> pa.Schema:
        return schema_from_bytes(self.head, self.name)


def _columns() -> dict[str, pa.Array]:
    """By what is special about it."""
    numbers, texts = [1, None, 3], ["a", None, "too long to be within a view of it"]
    small = pa.array([0, 1, 0], pa.int8())
    parts = [pa.array([1, 2, 3]), pa.array(["x", "y", "z"])]
    typed: list[tuple[list[Any], tuple[pa.DataType, ...]]] = [
        ([None] * 3, (pa.null(),)),
        ([True, None, False], (pa.bool_(),)),
        (numbers, (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())),
        ([np.float16(1.5), None, np.float16(2)], (pa.float16(),)),
        ([1.5, None, 2.0], (pa.float32(), pa.float64())),
        ([Decimal("1.5"), None, Decimal(2)], (pa.decimal32(5, 2), pa.decimal64(9, 2), pa.decimal128(20, 2))),
        ([Decimal("1.5"), None, Decimal(2)], (pa.decimal256(50, 2),)),
        ([date(2026, 11, 28), None, date(1969, 1, 1)], (pa.date32(), pa.date64())),
        ([datetime(2026, 11, 28, tzinfo=UTC), None, None], (pa.timestamp("us", "UTC"), pa.timestamp("ns"))),
        ([time(1, 2, 3), None, time(0)], (pa.time32("s"), pa.time64("us"))),
        ([timedelta(seconds=1), None, timedelta(0)], (pa.duration("ms"),)),
        ([pa.MonthDayNano([1, 2, 3]), None, None], (pa.month_day_nano_interval(),)),
        (texts, (pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view())),
        ([b"abc", None, b"def"], (pa.binary(3),)),
        ([[1, None], None, []], (pa.list_(pa.int8()), pa.large_list(pa.int16()), pa.list_view(pa.int32()))),
        ([["a"], None, []], (pa.large_list_view(pa.string()), pa.list_(pa.string_view()))),
        ([[1, 2], None, [3, 4]], (pa.list_(pa.int8(), 2),)),
        ([[("k", 1)], None, []], (pa.map_(pa.string(), pa.int8()),)),
        (
            [{"x": 1, "y": ["a"]}, None, {"x": None, "y": None}],
            (pa.struct([("x", pa.int8()), ("y", pa.list_(pa.string()))]),),
        ),
    ]
    found = {str(kind): pa.array(values, kind) for values, kinds in typed for kind in kinds}
    uuids = pa.array([bytes(16)] * 3, pa.binary(16))
    tensors = pa.array([[1, 2]] * 3, pa.list_(pa.int32(), 2))
    return found | {
        "sparse_union": pa.UnionArray.from_sparse(small, parts),
        "dense_union": pa.UnionArray.from_dense(small, pa.array([0, 0, 1], pa.int32()), parts),
        "dictionary": pa.array(texts).dictionary_encode(),
        "run_end_encoded": pa.RunEndEncodedArray.from_arrays(pa.array([1, 3], pa.int32()), pa.array([7, None])),
        "uuid": pa.ExtensionArray.from_storage(pa.uuid(), uuids),
        "bool8": pa.ExtensionArray.from_storage(pa.bool8(), small),
        "json": pa.ExtensionArray.from_storage(pa.json_(pa.string()), pa.array(["1", None, "{}"])),
        "opaque": pa.ExtensionArray.from_storage(pa.opaque(pa.int8(), "theirs", "elsewhere"), small),
        "tensor": pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.int32(), (2,)), tensors),
    }


def _sample(name: str, **columns: pa.Array) -> Sample:
    batch = pa.record_batch(columns)
    return Sample(name, bytes(batch.schema.serialize()), bytes(batch.serialize()))


def _unshown() -> Iterator[Sample]:
    """Types that pyarrow cannot make: a schema with another unit, and a batch of numbers that lie in memory alike."""
    kind = pa.month_day_nano_interval()
    for name, unit in UNSHOWN.items():
        numbers = pa.array([1, 2, 3], pa.int64() if unit else pa.int32())
        within = {
            "": (kind, numbers),
            " in a list": (pa.list_(kind), pa.ListArray.from_arrays([0, 1, 2, 3], numbers)),
            " in a struct": (pa.struct([("x", kind)]), pa.StructArray.from_arrays([numbers], ["x"])),
            " in a dictionary": (pa.dictionary(pa.int8(), kind), numbers.dictionary_encode()),
            " in a map": (pa.map_(pa.string(), kind), pa.MapArray.from_arrays([0, 1, 2, 3], ["a", "b", "c"], numbers)),
        }
        for where, (of, values) in within.items():
            head = _with_unit(bytes(pa.schema([("column", of)]).serialize()), name, unit)
            message = bytes(pa.record_batch({"column": values}).serialize())
            yield Sample(f"{name}{where}", head, message, is_shown=False)


def _with_unit(head: bytes, name: str, unit: int) -> bytes:
    """This schema, with another unit in its interval: there is one place alone where Arrow then reads that type."""
    for place in range(0, len(head) - 1, 2):
        if head[place : place + 2] == struct.pack("<h", _SHOWN_UNIT):
            tried = head[:place] + struct.pack("<h", unit) + head[place + 2 :]
            try:
                read = pa.ipc.read_schema(pa.py_buffer(tried))
                if name in str(read.field(0).type).replace("month_day_nano_interval", ""):
                    return tried
            except (pa.ArrowException, OSError):
                continue
    raise AssertionError(f"no {name} can be made of {head!r}")


_COLUMNS = _columns()
SAMPLES: tuple[Sample, ...] = (
    *(_sample(name, column=column) for name, column in _COLUMNS.items()),
    _sample("several", id=_COLUMNS["int64"], text=_COLUMNS["string"], tags=_COLUMNS["large_list<item: int16>"]),
    *_unshown(),
)
TOPICS = tuple(sample for sample in SAMPLES if sample.is_shown)


def kinds(schema: pa.Schema) -> Iterator[pa.DataType]:
    """All that are in it, at any depth."""
    waiting = list(schema.types)
    while waiting:
        kind = waiting.pop()
        yield kind
        waiting += [kind.field(place).type for place in range(kind.num_fields)]


def attack(rng: random.Random) -> bool:
    """One batch, damaged or not, for a topic of its schema or of another. Raises whatever a broker would meet. Returns
    whether it was stored: then it is sound."""
    sample = rng.choice(SAMPLES)
    head = any_of(rng, [sample.head]) if rng.random() < 0.3 else sample.head
    message = damaged(rng, sample.message) if rng.random() < 0.7 else sample.message
    try:
        if rng.random() < 0.1:
            schema_change(b64encode(TOPICS[0].head).decode(), b64encode(head).decode())
        schema = schema_from_bytes(head, "a stream")
        if rng.random() < 0.5:  # as frames and Flight do; what is stored depends on it no more than on anything else
            require_shown(schema)
        topic = _topic(rng, sample)
        stored = as_sent(
            message,
            schema,
            topic,
            crc=crc32c(message),
            batch_bytes_max=BATCH_BYTES_MAX,
            compression=rng.choice(("none", "none", "lz4")),
            any_order=rng.random() < 0.5,
        )
    except ReplicationError:
        return False
    read = pa.ipc.read_record_batch(pa.py_buffer(stored.message), topic.newest)
    read.validate(full=True)
    assert len(read.columns) == topic.width
    for column in read.columns:
        _look(column)
    return True


def _look(column: pa.Array) -> None:
    """As any reader may, with Arrow's own code: it fails, perhaps, by a number that Python does not have."""
    with suppress(pa.ArrowException, ValueError, OverflowError, ArithmeticError):
        column.to_pylist()
    for plain in (pa.large_string(), pa.large_binary(), pa.list_(pa.int32()), pa.large_list(pa.string())):
        with suppress(pa.ArrowException):
            column.cast(plain)
    with suppress(pa.ArrowException):
        pa.concat_arrays([column, column]).unique()


_topics: dict[tuple[str, bool], TopicSchema] = {}


def _topic(rng: random.Random, sample: Sample) -> TopicSchema:
    """Mostly one that takes the sample, if any does: perhaps with columns that it lacks."""
    own = sample if sample.is_shown and rng.random() < 0.8 else rng.choice(TOPICS)
    is_wider = rng.random() < 0.2
    if (own.name, is_wider) not in _topics:
        schema = stored_schema(own.schema)
        late = [pa.field(f"late{place}", other.schema.field(0).type) for place, other in enumerate(TOPICS)]
        widened = stored_schema(pa.schema([*schema, *late]))
        _topics[own.name, is_wider] = TopicSchema(widened, (len(schema),)) if is_wider else TopicSchema(schema)
    return _topics[own.name, is_wider]

"""What an IPC message says of itself, and that no bytes whatever end the process that looks at them."""

from __future__ import annotations

import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_replication.errors import ReplicationError
from spark_replication.storage.format.batches import TopicSchema, as_sent
from spark_replication.storage.format.ipc_message import is_plain_batch
from tests.unit.storage.storage_stories import rows

NESTED = pa.record_batch(
    {
        "text": pa.array(["a", "", None]),
        "lists": pa.array([[["a"], []], None, []], pa.list_(pa.list_(pa.string()))),
        "structs": pa.array([{"x": 1, "flag": True}, None, {"x": None, "flag": None}]),
        "fixed": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int8(), 2)),
    }
)
VIEWS = pa.record_batch(
    {
        "text": pa.array(["a", "too long to be within its view", None], pa.string_view()),
        "lists": pa.array([[1], None, [2, 3]], pa.list_view(pa.int32())),
        "runs": pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array(["a", None])),
        "union": pa.UnionArray.from_dense(
            pa.array([0, 1, 0], pa.int8()), pa.array([0, 0, 1], pa.int32()), [pa.array([1, 2]), pa.array(["x"])]
        ),
    }
)
NOTHING = pa.record_batch({"nothing": pa.nulls(3)})
WORDS = pa.record_batch({"word": pa.array(["a", "b"]).dictionary_encode()})
PLAIN = {"rows": rows(0, 3), "nested": NESTED, "views": VIEWS, "nothing": NOTHING, "no rows": rows(0, 0)}
MESSAGES = {name: bytes(batch.serialize()) for name, batch in PLAIN.items()}


def stream_of(batch: pa.RecordBatch, **options: object) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def messages_of(stream: bytes) -> dict[str, bytes]:
    """The last one of each kind."""
    return {each.type: bytes(each.serialize()) for each in pa.ipc.MessageReader.open_stream(stream)}


@pytest.mark.parametrize("name", MESSAGES)
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda message: memoryview(pa.py_buffer(message))])
def test_a_batch_without_compression_is_plain_wherever_it_lies(name: str, kind: type[bytes]) -> None:
    assert is_plain_batch(kind(MESSAGES[name]))


def test_a_batch_of_a_stream_is_plain_too() -> None:
    assert is_plain_batch(messages_of(stream_of(NESTED))["record batch"])
    assert is_plain_batch(messages_of(stream_of(WORDS))["record batch"])


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
@pytest.mark.parametrize("name", [name for name in PLAIN if name != "no rows"])
def test_a_compressed_batch_is_not_plain(name: str, codec: str) -> None:
    assert not is_plain_batch(messages_of(stream_of(PLAIN[name], compression=codec))["record batch"])


def test_other_messages_and_whole_streams_are_not_plain_batches() -> None:
    stream = stream_of(WORDS)
    messages = messages_of(stream)
    assert set(messages) == {"schema", "dictionary", "record batch"}
    for other in (messages["schema"], messages["dictionary"], stream, stream_of(NESTED)):
        assert not is_plain_batch(other)


def test_a_batch_as_it_was_written_before_messages_had_a_marker_is_not_plain() -> None:
    stream = stream_of(NESTED, use_legacy_format=True)
    reader = pa.ipc.MessageReader.open_stream(stream)
    length = int.from_bytes(stream[:4], "little")
    assert reader.read_next_message().type == "schema"
    assert not is_plain_batch(stream[4 + length :])


@pytest.mark.parametrize("name", MESSAGES)
def test_what_is_cut_anywhere_or_has_more_behind_it_is_not_plain(name: str) -> None:
    message = MESSAGES[name]
    assert [length for length in range(len(message)) if is_plain_batch(message[:length])] == []
    assert [more for more in range(1, 17) if is_plain_batch(message + bytes(more))] == []
    assert not is_plain_batch(message + message)


def test_a_message_without_its_marker_is_not_plain() -> None:
    message = MESSAGES["rows"]
    for marker in (bytes(4), b"\xff\xff\xff\xfe", b"\xfe\xff\xff\xff"):
        assert not is_plain_batch(marker + message[4:])


def test_a_table_whose_fields_are_listed_before_the_metadata_is_not_plain() -> None:
    """Python would count such a place from the end, where this message has the list."""
    message = MESSAGES["rows"]
    length = int.from_bytes(message[4:8], "little")
    metadata = bytearray(message[8 : 8 + length])
    table = int.from_bytes(metadata[:4], "little")
    back = int.from_bytes(metadata[table : table + 4], "little")
    fields = metadata[table - back : table].ljust(16, b"\0")
    metadata[table : table + 4] = (table + len(fields)).to_bytes(4, "little")
    head = message[:4] + (length + len(fields)).to_bytes(4, "little")
    assert not is_plain_batch(head + metadata + fields + message[8 + length :])


@pytest.mark.parametrize("length", [-1, -(1 << 31), (1 << 31) - 1, 0])
def test_metadata_of_no_possible_length_is_not_plain(length: int) -> None:
    message = MESSAGES["rows"]
    assert not is_plain_batch(message[:4] + length.to_bytes(4, "little", signed=True) + message[8:])


def test_a_body_of_negative_length_does_not_make_up_for_metadata_that_is_too_long() -> None:
    """Together they are as long as the message."""
    message = MESSAGES["rows"]
    metadata = int.from_bytes(message[4:8], "little")
    body = len(message) - 8 - metadata
    at = message.index(body.to_bytes(8, "little"))
    more = len(message)
    changed = bytearray(message)
    changed[4:8] = (metadata + more).to_bytes(4, "little")
    changed[at : at + 8] = (body - more).to_bytes(8, "little", signed=True)
    with pytest.raises(ReplicationError):
        sent(bytes(changed), rows(0, 3))


def sent(message: bytes, batch: pa.RecordBatch) -> None:
    """As a broker takes it. What it stores it can read."""
    topic = TopicSchema(batch.schema)
    stored = as_sent(message, batch.schema, topic, crc=crc32c(message), batch_bytes_max=1 << 20)
    assert stored.crc == crc32c(stored.message)
    found = pa.ipc.read_record_batch(pa.py_buffer(stored.message), topic.newest)
    found.validate(full=True)
    assert (found.num_rows, found.schema) == (stored.rows, topic.newest)


@given(st.binary(max_size=300))
def test_garbage_is_not_plain(garbage: bytes) -> None:
    assert not is_plain_batch(garbage)
    assert not is_plain_batch(b"\xff\xff\xff\xff" + garbage)


@pytest.mark.slow
@given(st.sampled_from(["rows", "nested", "views", "nothing"]), st.data())
@settings(max_examples=500)
def test_a_changed_message_is_stored_as_something_sound_or_refused(name: str, data: st.DataObject) -> None:
    message = bytearray(MESSAGES[name])
    places = st.integers(0, len(message) - 1)
    changes = st.one_of(
        st.binary(min_size=1, max_size=10),
        st.integers(-(1 << 63), (1 << 63) - 1).map(lambda number: number.to_bytes(8, "little", signed=True)),
        st.integers(-64, 64).map(lambda number: number.to_bytes(4, "little", signed=True)),
    )
    for at, change in data.draw(st.lists(st.tuples(places, changes), min_size=1, max_size=4)):
        message[at : at + len(change)] = change
    changed = bytes(message)
    is_plain = is_plain_batch(changed)
    try:
        sent(changed, PLAIN[name])
    except ReplicationError:
        return
    assert is_plain

"""Messages: whole and checked from birth. An unknown version and an unknown key are told apart."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from spark_replication.errors import InvalidRequest, ReplicationError, UnsupportedVersion
from spark_replication.messages.commands import LeaderAndIsr
from spark_replication.messages.envelope import from_json, to_json
from spark_replication.messages.frames import Frame, from_frame, to_frame
from spark_replication.messages.guarding import RenewLease
from spark_replication.messages.records import BatchMetadata, PutAck, ReadTicket
from spark_replication.messages.replication import (
    NONCE_BYTES,
    ErrorFrame,
    FetchedFrame,
    FetchedPartition,
    FetchFrame,
    FetchPartition,
    HelloFrame,
)
from spark_replication.messages.requests import CreateTopic, WidenTopic
from spark_replication.model import AtTime, Start, TopicConfig
from tests.unit.core.stories import FOO, FOO_ID, command, registration, state


class Lenient(msgspec.Struct):
    """Skips what it does not know."""


@pytest.mark.parametrize(
    "message",
    [
        LeaderAndIsr(
            controller_epoch=3,
            partitions=(command(state(1, [1, 2], elr=[3], min_isr=3), 7),),
            topics={"foo": TopicConfig(schema="s")},
            brokers={1: registration(1)},
            init=True,
        ),
        CreateTopic(name="foo", assignment={0: (1, 2)}, config={"min.insync.replicas": 1}),
        WidenTopic(topic="foo", schema="s"),
        RenewLease(controller_epoch=1, attempt=2, lease_ms=3),
        BatchMetadata(acks=1, producer=7, epoch=1, sequence=0),
        PutAck(base_offset=3, last_offset=4),
        ReadTicket(topic="foo", partition=0, from_offset=5, columns=("a",)),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_message_is_read_as_it_was_sent(message: msgspec.Struct) -> None:
    assert from_json(to_json(message), type(message)) == message


def test_a_ticket_is_written_as_the_page_says() -> None:
    ticket = from_json(b'{"topic":"foo","partition":0,"from":5}', ReadTicket)
    assert ticket == ReadTicket(topic="foo", partition=0, from_offset=5)


@pytest.mark.parametrize(
    ("begins", "start"),
    [
        ("", 0),
        (',"from":0', 0),
        (',"from":5', 5),
        (',"from":"earliest"', "earliest"),
        (',"from":"latest"', "latest"),
        (',"from_time":7', AtTime(7)),
        (',"from_time":0', AtTime(0)),
    ],
)
def test_a_ticket_begins_at_one_place(begins: str, start: Start) -> None:
    assert from_json(b'{"topic":"foo","partition":0%s}' % begins.encode(), ReadTicket).start == start


@pytest.mark.parametrize(
    ("data", "kind", "error", "text"),
    [
        (b'{"v":2,"name":"foo"}', CreateTopic, UnsupportedVersion, "CreateTopic version 2 is not known here, 1 is"),
        (b'{"v":2,"title":"foo"}', CreateTopic, UnsupportedVersion, "version 2"),  # whatever else it holds
        (b'{"v":0,"name":"foo"}', CreateTopic, UnsupportedVersion, "version 0"),
        (b'{"v":"1","name":"foo"}', CreateTopic, InvalidRequest, "Expected `int`, got `str`"),
        (b'{"name":"foo","nmae":1}', CreateTopic, InvalidRequest, "not a CreateTopic: .* unknown field `nmae`"),
        (b"{}", CreateTopic, InvalidRequest, "missing required field `name`"),
        (b"[]", CreateTopic, InvalidRequest, "Expected `object`"),
        (b"", CreateTopic, InvalidRequest, "truncated"),
        (b'{"name":"\xff"}', CreateTopic, InvalidRequest, "utf-8"),
        (b'{"x":' + b"[" * 100_000, CreateTopic, InvalidRequest, "unknown field `x`"),
        (b'{"x":' + b"[" * 100_000, Lenient, InvalidRequest, "recursion"),
        # A piece of a message has no version of its own: it is an unknown key.
        (b'{"v":2,"base_offset":1,"last_offset":2}', PutAck, InvalidRequest, "unknown field `v`"),
        (b'{"acks":2}', BatchMetadata, InvalidRequest, "Invalid enum value 2"),
        (b'{"producer":7}', BatchMetadata, InvalidRequest, "producer and sequence come together"),
        (b'{"sequence":0}', BatchMetadata, InvalidRequest, "producer and sequence come together"),
        (b'{"producer":-1,"sequence":0}', BatchMetadata, InvalidRequest, "Expected `int` >= 0"),
        (b'{"topic":"a","partition":0,"max_wait_ms":300001}', ReadTicket, InvalidRequest, "<= 300000"),
        (b'{"topic":"a","partition":0,"from":0,"from_time":7}', ReadTicket, InvalidRequest, "name one of the two"),
        (b'{"topic":"a","partition":0,"from":"newest"}', ReadTicket, InvalidRequest, "Invalid enum value"),
        (b'{"topic":"a","partition":0,"from_time":-1}', ReadTicket, InvalidRequest, ">= 0"),
        (b'{"topic":"a","partition":0,"from":-1}', ReadTicket, InvalidRequest, ">= 0"),
        (b'{"topic":"a","partition":0,"to":-1}', ReadTicket, InvalidRequest, ">= 0"),
        (b'{"topic":"a","partition":-1}', ReadTicket, InvalidRequest, ">= 0"),
        (b'{"topic":"a","partition":0,"from":5,"to":4}', ReadTicket, InvalidRequest, "from=5 to=4 is no range"),
        (b'{"topic":"a","partition":2147483648}', ReadTicket, InvalidRequest, "<= 2147483647"),
        (b'{"topic":"a","partition":0,"to":9223372036854775808}', ReadTicket, InvalidRequest, "<= 9223372036854775807"),
        (b'{"controller_epoch":2147483648,"attempt":0,"lease_ms":1}', RenewLease, InvalidRequest, "<= 2147483647"),
        (b'{"controller_epoch":1,"attempt":0,"lease_ms":1%s}' % (b"0" * 5_000), RenewLease, InvalidRequest, "range"),
    ],
)
def test_what_is_not_the_message_is_refused(
    data: bytes, kind: type[msgspec.Struct], error: type[ReplicationError], text: str
) -> None:
    with pytest.raises(error, match=text):
        from_json(data, kind)


@pytest.mark.parametrize("field", ["leader_epoch", "last_epoch", "clean_since", "partition"])
def test_a_fetch_names_no_epoch_or_partition_beyond_31_bits(field: str) -> None:
    with pytest.raises(InvalidRequest, match="<= 2147483647"):
        from_frame(to_frame(FetchFrame(number=1, partitions=(msgspec.structs.replace(FETCH, **{field: 1 << 31}),))))


def test_a_hello_names_no_epoch_beyond_31_bits() -> None:
    with pytest.raises(InvalidRequest, match="<= 2147483647"):
        from_frame(to_frame(HelloFrame(cluster_id="c", broker_id=1, broker_epoch=1 << 40)))


FETCH = FetchPartition(topic="foo", partition=0, topic_id=FOO_ID, leader_epoch=4, offset=9, last_epoch=3, clean_since=0)
FETCHED = FetchedPartition(topic="foo", partition=0, topic_id=FOO_ID, leader_epoch=4, data_bytes=7)


@pytest.mark.parametrize(
    "frame",
    [
        HelloFrame(cluster_id="c", broker_id=1, broker_epoch=2),
        FetchFrame(number=3, partitions=(FETCH,)),
        FetchedFrame(number=3, partition=FETCHED),
        ErrorFrame(error="NOT_READY", message="retry"),
    ],
    ids=lambda frame: type(frame).__name__,
)
def test_a_frame_is_read_as_it_was_sent(frame: Frame) -> None:
    assert from_frame(to_frame(frame)) == from_frame(memoryview(to_frame(frame))) == frame


HELLO: dict[str, Any] = {"type": "hello", "v": 1, "cluster_id": "c", "broker_id": 1, "broker_epoch": 2}


@pytest.mark.parametrize(
    ("changed", "error", "text"),
    [
        ({"v": 3}, UnsupportedVersion, "HelloFrame version 3 is not known here, 1 and 2 is: upgrade this side"),
        ({"v": 0}, UnsupportedVersion, "HelloFrame version 0 is not known here, 1 and 2 is: upgrade the other side"),
        ({"v": 3, "mood": "good"}, UnsupportedVersion, "version 3"),
        ({"v": 3, "type": "wave"}, UnsupportedVersion, "version 3"),
        ({"mood": "good"}, InvalidRequest, "not a replication frame: .*unknown field `mood`"),
        ({"type": "wave"}, InvalidRequest, "Invalid value 'wave'"),
        ({"broker_epoch": -1}, InvalidRequest, "Expected `int` >= 0"),
        ({"v": "1"}, InvalidRequest, "Expected `int`, got `str`"),
    ],
)
def test_a_frame_of_another_version_or_with_an_unknown_key_is_refused(
    changed: dict[str, Any], error: type[ReplicationError], text: str
) -> None:
    with pytest.raises(error, match=text):
        from_frame(msgspec.msgpack.encode(HELLO | changed))


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x81", msgspec.msgpack.encode([1])])
def test_what_is_no_frame_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest, match="not a replication frame"):
        from_frame(data)


def test_what_a_message_is_about() -> None:
    about = command(state(1, [1]), 7)
    assert (about.topic_partition, about.order) == (FOO, (4, 7))
    assert FETCH.topic_partition == FETCHED.topic_partition == FOO


def test_a_hello_without_a_nonce_is_what_it_was_before_there_were_any() -> None:
    hello = HelloFrame(cluster_id="c", broker_id=1, broker_epoch=2)
    said = {"type": "hello", "v": 1, "cluster_id": "c", "broker_id": 1, "broker_epoch": 2}
    assert msgspec.msgpack.decode(to_frame(hello)) == said
    assert from_frame(msgspec.msgpack.encode(said)) == hello


@pytest.mark.parametrize("nonce", [b"", b"n" * (NONCE_BYTES - 1), b"n" * (NONCE_BYTES + 1)])
def test_a_nonce_has_one_length(nonce: bytes) -> None:
    with pytest.raises(InvalidRequest, match="not a replication frame"):
        from_frame(msgspec.msgpack.encode({"type": "challenge", "nonce": nonce}))

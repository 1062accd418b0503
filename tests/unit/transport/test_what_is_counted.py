"""What a broker's servers count, over real connections."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight

from spark_replication.config import settings_from
from spark_replication.errors import AuthenticationFailed, InvalidRequest, MisroutedCall, UnknownTopicOrPartition
from spark_replication.messages.actions import INIT_PRODUCER, METADATA
from spark_replication.messages.descriptions import GetMetadata
from spark_replication.messages.records import InitProducer
from spark_replication.model import TopicPartition
from spark_replication.transport.flight.actions import call
from spark_replication.transport.meter import CALL, FETCH, GET, INFO, PUT, UNKNOWN, Moved
from spark_replication.transport.security.security import NO_SECURITY, read_security
from tests.unit.transport.flight_broker import FlightBroker, get, written
from tests.unit.transport.replicas import Brokers
from tests.unit.transport.test_security import token_settings
from tests.waiting import eventually

SCHEMA = pa.schema([("number", pa.int64())])
TIMEOUT_MS = 10_000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[FlightBroker]:
    started = FlightBroker(tmp_path, SCHEMA, batch_bytes_max=1_000)
    yield started
    started.close()


def rows(count: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(range(count), pa.int64())], schema=SCHEMA)


def counted(broker: FlightBroker, kind: str) -> int:
    return sum(broker.server.meter.durations()[kind].counts)


def test_batches_are_counted_with_their_answers_and_what_is_refused(broker: FlightBroker) -> None:
    with broker.client() as client:
        written(client, rows(3))
        assert b"MESSAGE_TOO_LARGE" in written(client, rows(1_000))
        with pytest.raises(flight.FlightServerError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            client.do_put(flight.FlightDescriptor.for_path("payments", "0"), SCHEMA)[1].read()
    assert counted(broker, PUT) == 2  # a stream that is refused as a whole has no batch
    assert broker.server.meter.refusals() == {(PUT, "MESSAGE_TOO_LARGE"): 1, (PUT, UnknownTopicOrPartition.code): 1}
    produced = broker.server.produced.so_far
    assert (produced.batches, produced.records) == (1, 3)
    assert produced.bytes > 3 * 8


def test_reads_are_counted_and_what_they_deliver(broker: FlightBroker) -> None:
    with broker.client() as client:
        written(client, rows(3))
        written(client, rows(4))
        assert get(client, from_offset=1).read_all().num_rows == 6
        for ticket in ({"topic": "payments"}, {"from_offset": 99}):
            with pytest.raises(flight.FlightServerError):
                get(client, **ticket).read_all()
    assert counted(broker, GET) == 3
    assert broker.server.meter.refusals() == {
        (GET, UnknownTopicOrPartition.code): 1,
        (GET, "OFFSET_OUT_OF_RANGE"): 1,
    }
    consumed = broker.server.consumed.so_far
    assert (consumed.batches, consumed.records) == (2, 6)
    assert consumed.bytes == broker.server.produced.so_far.bytes


def test_that_nobody_can_say_where_to_read_is_counted(broker: FlightBroker) -> None:
    with broker.client() as client:
        client.get_flight_info(flight.FlightDescriptor.for_path("orders"))
        with pytest.raises(flight.FlightServerError):
            client.get_flight_info(flight.FlightDescriptor.for_path("payments"))
    assert broker.server.meter.refusals() == {(INFO, UnknownTopicOrPartition.code): 1}


def test_actions_are_counted_by_name_and_those_that_are_unknown_together(broker: FlightBroker) -> None:
    with broker.client() as client:
        for _ in range(2):
            call(client, INIT_PRODUCER, InitProducer(), TIMEOUT_MS)
        for name in ("one", "another"):
            with pytest.raises(flight.FlightServerError, match="is not known here"):
                list(client.do_action((name, b"")))
        with pytest.raises(flight.FlightServerError, match="INVALID_REQUEST"):
            list(client.do_action((METADATA.name, b"[]")))
    assert [counted(broker, kind) for kind in (INIT_PRODUCER.name, UNKNOWN, METADATA.name)] == [2, 2, 1]
    assert broker.server.meter.refusals() == {
        (UNKNOWN, InvalidRequest.code): 2,
        (METADATA.name, InvalidRequest.code): 1,
    }


def test_calls_that_are_refused_before_anybody_looks_at_them_are_counted(tmp_path: Path) -> None:
    ours = read_security(settings_from(token_settings(tmp_path))).of_cluster(lambda: "ours")
    broker = FlightBroker(tmp_path / "logs", SCHEMA, security=ours)
    for security, refusal in ((NO_SECURITY, AuthenticationFailed), (ours.of_cluster(lambda: "theirs"), MisroutedCall)):
        with broker.client(security=security) as client, pytest.raises(refusal):
            call(client, METADATA, GetMetadata(), TIMEOUT_MS)
    assert broker.server.meter.refusals() == {(CALL, AuthenticationFailed.code): 1, (CALL, MisroutedCall.code): 1}
    assert counted(broker, METADATA.name) == 0
    broker.close()


def test_what_a_leader_sends_its_follower_has_received(tmp_path: Path) -> None:
    orders, nowhere = TopicPartition("orders", 0), TopicPartition("nowhere", 0)
    brokers = Brokers(tmp_path)
    leader, follower = brokers.start(1), brokers.start(2)
    try:
        for broker in (leader, follower):
            broker.command(orders, 1, (1, 2))
        leader.produce(orders, 3)
        eventually(lambda: follower.files(orders) == leader.files(orders), "the follower has it all")
        sent, received = leader.replication.sent, follower.replication.received
        eventually(lambda: received.so_far == sent.so_far, "it has counted that")
        end = leader.replica(orders).log.log_end
        assert (sent.so_far.batches, sent.so_far.records) == (3, end)
        assert sent.so_far.bytes > 0
        assert (leader.replication.received.so_far, follower.replication.sent.so_far) == (Moved(), Moved())
        assert leader.replication.meter.refusals() == {}
        follower.command(nowhere, 1, (1, 2))
        refusal = (FETCH, UnknownTopicOrPartition.code)
        eventually(lambda: refusal in leader.replication.meter.refusals(), "its fetch is refused")
    finally:
        brokers.close()

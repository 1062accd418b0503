"""Whatever a client's connection raises ends that connection, or what was asked over it, and nothing else (W1): it is
logged and counted. What a partition is in the midst of ends the process."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from spark_replication.engine.ends.put_end import PutEnd
from spark_replication.engine.replica.partition import is_half_done
from spark_replication.engine.replica.replica_loop import ReplicaLoop
from spark_replication.errors import InvalidRequest, ReplicationError
from spark_replication.messages.lane import ReadAnswerFrame
from spark_replication.messages.replication import ErrorFrame
from spark_replication.process import logs
from spark_replication.process.logs import Seldom
from spark_replication.transport.flight import actions, put_stream
from spark_replication.transport.frames import reader_connection, replication_server
from spark_replication.transport.frames.producer_connection import ProducerShared
from spark_replication.transport.frames.reader_connection import ReaderConnection
from spark_replication.transport.meter import CONNECTION, GET, INFO, PUT
from tests.unit.storage.every_type import SAMPLES
from tests.unit.storage.storage_stories import SCHEMA, rows
from tests.unit.transport.flight_broker import FlightBroker, get, written
from tests.unit.transport.replicas import TIMEOUT_S, Broker, Brokers
from tests.unit.transport.test_lane import Client, leads, put, still_serves, stream
from tests.unit.transport.test_reader_lane import Peer
from tests.waiting import eventually

TOPIC_ROWS = rows(0, 2)
UNKNOWN = ReplicationError.code
UNSHOWN = [sample for sample in SAMPLES if not sample.is_shown]


class Mistaken(Exception):
    """What nobody expected."""


def mistaken(*_: object, **__: object) -> Any:
    raise Mistaken


@pytest.fixture(autouse=True)
def logged(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    """What was logged a moment ago is logged again."""
    monkeypatch.setattr(logs, "_MISTAKES", Seldom(logs.MISTAKE_MS))
    caplog.set_level(logging.ERROR)
    return caplog


def was_logged(logged: pytest.LogCaptureFixture) -> bool:
    return any(each.exc_info is not None and isinstance(each.exc_info[1], Mistaken) for each in logged.records)


def refused(broker: Broker) -> dict[tuple[str, str], int]:
    server = broker.replication._server
    return {
        key: count
        for meter in (server.meter, server.lane.meter, server.reads.meter)
        for key, count in meter.refusals().items()
    }


# Frames.


@pytest.mark.parametrize("sample", UNSHOWN, ids=lambda sample: sample.name)
def test_a_stream_whose_type_cannot_be_shown_is_refused(
    brokers: Brokers, logged: pytest.LogCaptureFixture, sample: Any
) -> None:
    """The attack: two frames, of whoever may write to one topic. The broker's process ended. Other streams of that
    client go on."""
    leader = leads(brokers)
    client = Client(leader)
    client.say(stream(1, schema=sample.head), stream(), put(0, sample.message, of_stream=1), put(1))
    told = client.answers(2)
    assert told[0].error == InvalidRequest.code
    assert "column 0 has a type that pyarrow cannot show" in told[0].message
    assert told[1].base_offset == 0
    assert refused(leader) == {(PUT, InvalidRequest.code): 1}
    assert not logged.records, "it was expected"
    still_serves(leader)


@pytest.mark.parametrize("is_aside", [False, True])
def test_a_batch_that_fails(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture, *, is_aside: bool
) -> None:
    leader = leads(brokers)
    with monkeypatch.context() as patched:
        patched.setattr(ProducerShared, "prepare", mistaken)
        patched.setattr(PutEnd, "large_bytes_min", 1 if is_aside else 1 << 30)
        client = Client(leader)
        client.say(stream(), put(0))
        if is_aside:
            told = client.is_told(0)
            assert (told.error, told.retriable, told.maybe_written) == (UNKNOWN, False, True)
        else:
            assert client.hears_error().error == UNKNOWN
    kind = PUT if is_aside else CONNECTION
    eventually(lambda: refused(leader) == {(kind, UNKNOWN): 1}, "it is counted")
    assert was_logged(logged)
    assert leader.replication._server.lane.kept.bytes == 0
    still_serves(leader)


@pytest.mark.parametrize("where", ["the look", "the columns", "the answer", "what is found"])
def test_a_question_that_fails(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture, where: str
) -> None:
    leader = leads(brokers)
    writer = Client(leader)
    writer.say(stream(), put(0))
    writer.is_told(0)
    reader = Peer(leader)
    with monkeypatch.context() as patched:
        if where == "the look":
            patched.setattr(ReplicaLoop, "served_end", mistaken)
        elif where == "the columns":
            patched.setattr(reader_connection, "with_columns", mistaken)
        elif where == "the answer":
            patched.setattr(ReaderConnection, "_say", mistaken)
        else:
            patched.setattr(reader_connection, "are_all_columns", mistaken)
        reader.ask(columns=("row",))
        told, _ = reader.hears()
        assert isinstance(told, ReadAnswerFrame if where in ("the look", "the columns") else ErrorFrame)
        assert told.error == UNKNOWN
    kind = GET if isinstance(told, ReadAnswerFrame) else CONNECTION
    eventually(lambda: refused(leader) == {(kind, UNKNOWN): 1}, "it is counted")
    assert was_logged(logged)
    eventually(lambda: leader.replication._server.reads.room._bytes == 0, "its room is given back")
    other = Peer(leader)
    other.ask()
    assert other.answer().rows() == [0, 1]
    still_serves(leader)


def test_a_handshake_that_fails(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture
) -> None:
    """Its thread would end the process, as any other."""
    leader = leads(brokers)
    server = leader.replication._server
    with monkeypatch.context() as patched:
        patched.setattr(replication_server, "admitted", mistaken)
        with socket.create_connection(("127.0.0.1", leader.replication.port), timeout=TIMEOUT_S) as stranger:
            heard = b""
            while came := stranger.recv(1 << 16):
                heard += came
    assert UNKNOWN.encode() in heard
    assert not server._connections
    assert refused(leader) == {(CONNECTION, UNKNOWN): 1}
    assert was_logged(logged)
    still_serves(leader)


# Flight.


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[FlightBroker]:
    found = FlightBroker(tmp_path, SCHEMA)
    yield found
    found.close()


def code_of(ask: Callable[[], object]) -> str:
    with pytest.raises(flight.FlightError) as told:
        ask()
    return str(told.value).partition(":")[0]


@pytest.mark.parametrize("sample", UNSHOWN, ids=lambda sample: sample.name)
def test_a_flight_stream_whose_type_cannot_be_shown_is_refused(broker: FlightBroker, sample: Any) -> None:
    if "dictionary" not in sample.name:  # pyarrow's own client cannot send it
        batch = pa.ipc.read_record_batch(pa.py_buffer(sample.message), sample.schema)
        assert code_of(lambda: written(broker.client(), batch)) == InvalidRequest.code
        assert broker.server.meter.refusals() == {(PUT, InvalidRequest.code): 1}


def test_flight_calls_that_fail(
    broker: FlightBroker, monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture
) -> None:
    client = broker.client()
    with monkeypatch.context() as patched:
        patched.setattr(put_stream, "prepare", mistaken)
        assert code_of(lambda: written(client, TOPIC_ROWS)) == UNKNOWN
    written(client, TOPIC_ROWS)
    with monkeypatch.context() as patched:
        patched.setattr(ReplicaLoop, "served_end", mistaken)
        assert code_of(lambda: get(client).read_all()) == UNKNOWN
    with monkeypatch.context() as patched:
        patched.setattr(broker.server, "_described", mistaken)
        assert code_of(lambda: list(client.list_flights())) == UNKNOWN
    assert get(client).read_all().num_rows == TOPIC_ROWS.num_rows
    assert broker.server.meter.refusals() == {(PUT, UNKNOWN): 2, (GET, UNKNOWN): 1, (INFO, UNKNOWN): 1}
    assert was_logged(logged)


def test_answers_that_fail_end_their_stream(
    broker: FlightBroker, monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(put_stream, "_told", mistaken)
        writer, answers = broker.client().do_put(flight.FlightDescriptor.for_path("orders", "0"), SCHEMA)
        writer.write_batch(TOPIC_ROWS)
        eventually(lambda: was_logged(logged), "it has failed")
        writer.write_batch(TOPIC_ROWS)
        with suppress(StopIteration, flight.FlightError, OSError):
            while answers.read() is not None:
                pass
        writer.close()
    assert b"base_offset" in written(broker.client(), TOPIC_ROWS)


def test_a_flight_batch_that_is_half_done_ends_the_process(
    broker: FlightBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its partition is in a state that nobody knows: what goes on with it could lose what was acknowledged."""
    ended: list[BaseException | None] = []
    monkeypatch.setattr(threading, "excepthook", lambda ending: ended.append(ending.exc_value))
    with monkeypatch.context() as patched:
        patched.setattr(ReplicaLoop, "produce", mistaken)
        assert code_of(lambda: written(broker.client(), TOPIC_ROWS)) == UNKNOWN
    (error,) = ended
    assert isinstance(error, Mistaken)
    assert is_half_done(error)


# The log.


def test_a_mistake_that_comes_often_is_logged_seldom(logged: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("spark_replication.tests")

    def fail() -> None:
        raise Mistaken

    def fail_elsewhere() -> None:
        raise Mistaken

    for _ in range(5):
        for failing in (fail, fail_elsewhere):
            try:
                failing()
            except Mistaken as error:
                logs.log_mistake(log, error, "a connection ends")
    assert len(logged.records) == 2, "one of each place"
    assert actions.log.name.startswith("spark_replication")

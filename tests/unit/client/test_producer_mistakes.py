"""What one batch, argument or callback can do to a producer: nothing to any other, and nobody waits for ever."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future

import numpy as np
import pyarrow as pa
import pytest

from spark_replication.client.producing import lane as lanes
from spark_replication.client.producing.producer import Producer
from spark_replication.engine.client.numbers import Identity
from spark_replication.engine.client.sending import Ack
from spark_replication.errors import InvalidRequest
from spark_replication.messages.records import KEPT_PRODUCER
from spark_replication.storage.format import batches
from tests.unit.client.fake_cluster import FakeCluster
from tests.unit.client.test_producer import WAIT_S, failure, numbers, offsets, send

#: The program is told of it by threading.excepthook, as of any thread that ends by an error.
TOLD = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


@pytest.fixture
def producer(cluster: FakeCluster) -> Iterator[Producer]:
    with Producer(cluster.bootstrap, deadline_ms=15_000) as opened:
        yield opened


def test_a_partition_may_be_a_number_of_numpy(cluster: FakeCluster, producer: Producer) -> None:
    ack = producer.send("orders", numbers(7), np.int64(2)).result(WAIT_S)
    assert ack == Ack(topic="orders", partition=2, base_offset=0, last_offset=0)
    assert type(ack.partition) is int
    assert cluster.log(partition=2).numbers == [7]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"topic": "orders", "partition": "1"}, "partition='1' is no whole number"),
        ({"topic": "orders", "partition": 1.0}, "partition=1.0 is no whole number"),
        ({"topic": "orders", "partition": -1}, "partition=-1: it is 0 to 2147483647"),
        ({"topic": "orders", "partition": 1 << 31}, "it is 0 to 2147483647"),
        ({"topic": "orders", "key": 7}, "key=7 is int: it is bytes"),
        ({"topic": "orders", "partition": 1, "key": b"a"}, "partition=1 and a key"),
        ({"topic": 7}, "topic=7 is no text"),
    ],
)
def test_a_wrong_argument_is_refused_where_the_caller_is(
    producer: Producer, arguments: dict[str, object], why: str
) -> None:
    with pytest.raises(InvalidRequest, match=why):
        producer.send(batch=numbers(1), **arguments)  # type: ignore[call-overload]
    assert producer.send("orders", numbers(1), 0).result(WAIT_S).base_offset == 0


@pytest.mark.parametrize(
    ("numbers_of_a_program", "why"),
    [
        ({"producer": 1 << 100}, "producer=1267650600228229401496703205376: it is 0 to"),
        ({"producer": -1}, "producer=-1"),
        ({"producer": "etl"}, "producer='etl' is no whole number"),
        ({"producer": 1, "epoch": 1 << 31}, "epoch=2147483648: it is 0 to 2147483647"),
    ],
)
def test_an_identity_that_no_broker_understands_is_refused_at_once(
    numbers_of_a_program: dict[str, int], why: str
) -> None:
    with pytest.raises(InvalidRequest, match=why):
        Identity(**numbers_of_a_program)  # type: ignore[arg-type]


def test_an_identity_has_plain_numbers() -> None:
    largest = Identity(producer=np.uint64(2 * KEPT_PRODUCER - 1), epoch=np.int32(7))  # type: ignore[arg-type]
    assert (type(largest.producer), type(largest.epoch)) == (int, int)
    assert largest == Identity(producer=2 * KEPT_PRODUCER - 1, epoch=7)


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), MemoryError(), ValueError("mine")])
def test_a_callback_that_fails_is_alone_with_it(cluster: FakeCluster, producer: Producer, error: BaseException) -> None:
    def fails(_future: Future[Ack]) -> None:
        raise error

    with cluster.silent():
        futures = send(producer, 9)
        futures[0].add_done_callback(fails)
    assert offsets(futures) == list(range(9))
    assert offsets(send(producer, 9, first=9)) == list(range(9, 18)), "and those that come later"


@pytest.mark.parametrize("error", [MemoryError(), KeyError(21), pa.ArrowInvalid("no such thing")])
def test_a_batch_that_cannot_be_written_is_alone_with_it(
    cluster: FakeCluster, producer: Producer, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:

    def serialized(batch: pa.RecordBatch) -> tuple[memoryview, int]:
        if 13 in batch.column(0).to_pylist():
            raise error
        return batches.serialized(batch)

    monkeypatch.setattr(lanes, "serialized", serialized)
    with cluster.silent():  # so that they are joined
        futures = send(producer, 20)
        elsewhere = producer.send("orders", numbers(0), partition=1)
    assert "cannot be written as Arrow IPC" in str(failure(futures.pop(13)))
    assert offsets(futures) == list(range(19))
    assert elsewhere.result(WAIT_S).base_offset == 0


@TOLD
def test_a_loop_that_ends_all_the_same_fails_everybody_and_the_next_send_has_another(
    cluster: FakeCluster, producer: Producer
) -> None:
    producer.send("orders", numbers(0), 0).result(WAIT_S)
    ended = producer._senders.links._running()
    with cluster.silent():
        futures = [producer.send("orders", numbers(1), partition) for partition in range(3)]
        ended.post(_fail)
        errors = [failure(future) for future in futures]
    assert all("the producer's thread ended by an error that nobody expected" in str(error) for error in errors)
    assert not any(error.retriable for error in errors)
    assert producer.send("orders", numbers(2), 0).result(WAIT_S).partition == 0
    assert producer._senders.links._running() is not ended


@TOLD
def test_who_waits_for_room_while_the_loop_ends_does_not_wait_on(cluster: FakeCluster) -> None:
    with Producer(cluster.bootstrap, in_flight_batches_max=1, batch_bytes=0, deadline_ms=60_000) as producer:
        with cluster.silent():
            first = producer.send("orders", numbers(1), 0)
            sent: list[Future[Ack]] = []
            waiting = threading.Thread(target=lambda: sent.append(producer.send("orders", numbers(2), 0)))
            waiting.start()
            producer._senders.links._running().post(_fail)
            failure(first)
            waiting.join(WAIT_S)
        assert sent, "there was room once the first had failed"
        assert sent[0].result(WAIT_S).partition == 0


@TOLD
def test_a_thread_that_cannot_connect_tells_who_waits_for_it(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "opened", _fail)
    with Producer(cluster.bootstrap, deadline_ms=60_000) as producer:
        error = failure(producer.send("orders", numbers(1), 0))
        assert "the connection to 127.0.0.1" in str(error)
        monkeypatch.undo()
        assert producer.send("orders", numbers(2), 0).result(WAIT_S).base_offset == 0


@TOLD
def test_a_thread_that_cannot_ask_tells_who_waits_for_it(cluster: FakeCluster, producer: Producer) -> None:
    producer.send("orders", numbers(0), 0).result(WAIT_S)
    renew = producer._routes.renew
    producer._routes.renew = _fail  # type: ignore[method-assign]
    cluster.lead(2)
    assert "the search for a leader" in str(failure(producer.send("orders", numbers(1), 0)))
    producer._routes.renew = renew  # type: ignore[method-assign]
    assert producer.send("orders", numbers(2), 0).result(WAIT_S).base_offset == 1


def _fail(*_arguments: object, **_options: object) -> None:
    raise RuntimeError("a mistake")

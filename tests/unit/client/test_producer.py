"""What a producer promises: every acknowledged batch is there once, and every future is resolved in time."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial

import pyarrow as pa
import pytest

from spark_replication.client.producing import lane as lanes
from spark_replication.client.producing import producer as producers
from spark_replication.client.producing import sends
from spark_replication.client.producing.producer import BATCH_BYTES, Producer
from spark_replication.client.producing.sender import SEND_BYTES
from spark_replication.core.replica.producers import Producers
from spark_replication.engine.client import sending
from spark_replication.engine.client.numbers import Identity
from spark_replication.engine.client.sending import Ack, SenderSettings
from spark_replication.errors import (
    AuthenticationFailed,
    BatchTooLarge,
    ClientClosed,
    InvalidProducerEpoch,
    InvalidRequest,
    LeaderNotAvailable,
    NotEnoughReplicas,
    NotLeader,
    Overloaded,
    ReplicationError,
    RequestTimedOut,
    SchemaMismatch,
    UnknownSchemaVersion,
    UnknownTopicOrPartition,
)
from spark_replication.messages.records import BatchMetadata
from spark_replication.model import TopicPartition
from spark_replication.storage.format import batches
from spark_replication.transport.proofs.token import Token
from spark_replication.transport.proofs.tokens import Tokens
from spark_replication.transport.security.security import Security
from tests.unit.client.fake_cluster import PASSES_MS, SCHEMA, FakeBroker, FakeCluster, FakeLog
from tests.waiting import eventually

WAIT_S = 20.0


def test_a_producer_has_as_many_threads_for_many_partitions_as_for_one(cluster: FakeCluster) -> None:
    cluster.create("wide", 100)
    before = set(threading.enumerate())
    with Producer(cluster.bootstrap) as producer:
        for future in [producer.send("wide", numbers(0), partition) for partition in range(100)]:
            future.result(WAIT_S)
        began = [each.name for each in set(threading.enumerate()) - before]
        ours = [name for name in began if "producer" in name]
        assert set(ours) <= {"producer", "producer-asks", "producer-connects"}
        assert len(ours) <= 3
        assert not any("wide" in name for name in began)


def test_a_send_waits_for_no_route(cluster: FakeCluster) -> None:
    """In an outage of thousands of partitions, some route is always asked for."""
    with Producer(cluster.bootstrap, deadline_ms=PASSES_MS) as producer:
        producer.send("orders", numbers(0), 0).result(WAIT_S)
        cluster.lead(None)
        cluster.refuse_metadata = LeaderNotAvailable("wait")
        producer._routes.stale(producer._routes.latest(TopicPartition("orders", 0)))
        asked = cluster.asked_metadata
        began_s = time.monotonic()
        sent = [producer.send("orders", numbers(number), 0) for number in range(100)]
        assert time.monotonic() - began_s < PASSES_MS / 2_000
        assert all(failure(future) for future in sent)
        assert cluster.asked_metadata > asked


@pytest.fixture(params=[0, BATCH_BYTES], ids=["each_alone", "joined"])
def producer(cluster: FakeCluster, request: pytest.FixtureRequest) -> Iterator[Producer]:
    with Producer(cluster.bootstrap, deadline_ms=15_000, batch_bytes=request.param) as opened:
        yield opened


def numbers(*values: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.int64())], schema=SCHEMA)


def send(producer: Producer, count: int, first: int = 0) -> list[Future[Ack]]:
    return [producer.send("orders", numbers(number), 0) for number in range(first, first + count)]


def offsets(futures: list[Future[Ack]]) -> list[int]:
    return [future.result(WAIT_S).base_offset for future in futures]


def failure(future: Future[Ack]) -> ReplicationError:
    error = future.exception(WAIT_S)
    assert isinstance(error, ReplicationError)
    return error


def cut_once(cluster: FakeCluster, after: int) -> None:
    """The connection is lost after that many appends, just before the answer to the last of them."""
    left = [after]

    def before_answer(broker: FakeBroker) -> None:
        left[0] -= 1
        if left[0] == 0:
            broker.proxy.cut()

    cluster.before_answer = before_answer


def test_whoever_took_a_dead_leaders_port_keeps_nobody_from_the_next_leader(cluster: FakeCluster) -> None:
    cluster.tokens = Tokens.of(Token("of-this-cluster"))
    security = Security(mode="token", tokens=cluster.tokens)
    with Producer(cluster.bootstrap, security=security, deadline_ms=15_000) as producer:
        producer.send("orders", numbers(1), 0).result(WAIT_S)
        cluster.impostors = {1}
        for broker in cluster.brokers.values():
            broker.proxy.cut()
        cluster.after_refusal = lambda: cluster.lead(2)
        producer.send("orders", numbers(2), 0).result(WAIT_S)
    assert [each.batch.column(0).to_pylist() for each in cluster.log().batches] == [[1], [2]]


def test_a_leader_that_lets_nobody_in_is_told_of_once_time_is_over(cluster: FakeCluster) -> None:
    cluster.tokens = Tokens.of(Token("of-this-cluster"))
    security = Security(mode="token", tokens=cluster.tokens)
    cluster.impostors = {1}
    with Producer(cluster.bootstrap, security=security, deadline_ms=2_000) as producer:
        refused = producer.send("orders", numbers(1), 0).exception(WAIT_S)
    assert isinstance(refused, AuthenticationFailed)
    assert not refused.maybe_written
    assert "given up after 2000 ms" in refused.message


def test_a_producer_that_no_broker_lets_in_does_not_wait(cluster: FakeCluster) -> None:
    cluster.tokens = Tokens.of(Token("of-this-cluster"))
    security = Security(mode="token", tokens=Tokens.of(Token("of-another")))
    with Producer(cluster.bootstrap, security=security, deadline_ms=60_000) as producer:
        refused = producer.send("orders", numbers(1), 0).exception(WAIT_S)
    assert isinstance(refused, AuthenticationFailed)


def test_batches_are_pipelined_and_acknowledged_in_order(cluster: FakeCluster) -> None:
    with Producer(cluster.bootstrap, batch_bytes=0) as producer:
        with cluster.silent():
            futures = send(producer, 100)
            assert not any(future.done() for future in futures)
        assert offsets(futures) == list(range(100))
    assert cluster.log().numbers == list(range(100))
    assert [metadata.sequence for _, metadata in cluster.received] == list(range(100)), "one stream, each sent once"
    assert futures[7].result() == Ack(topic="orders", partition=0, base_offset=7, last_offset=7)


def test_partitions_have_sequences_of_their_own(cluster: FakeCluster, producer: Producer) -> None:
    for partition in (0, 2):
        for number in (1, 2):
            producer.send("orders", numbers(number), partition=partition).result(WAIT_S)
    assert cluster.log(partition=0).numbers == cluster.log(partition=2).numbers == [1, 2]
    assert len({metadata.producer for _, metadata in cluster.received}) == 1


def test_every_producer_draws_an_id_and_asks_nobody_for_it(cluster: FakeCluster) -> None:
    for number in (1, 2):
        with Producer(cluster.bootstrap) as producer:
            assert producer.send("orders", numbers(number), 0).result(WAIT_S).base_offset == number - 1
    ids = {metadata.producer for _, metadata in cluster.received}
    assert len(ids) == 2
    assert all(number is not None and 0 <= number < 1 << 63 for number in ids)


def test_a_table_goes_as_one_batch(cluster: FakeCluster, producer: Producer) -> None:
    table = pa.Table.from_batches([numbers(1, 2), numbers(3)])
    assert producer.send("orders", table, 0).result(WAIT_S).last_offset == 2
    assert [stored.batch.num_rows for stored in cluster.log().batches] == [3]


def test_partitions_of_one_leader_and_topic_share_a_stream(cluster: FakeCluster) -> None:
    cluster.lead(2, partition=2)
    cluster.create("words")
    with Producer(cluster.bootstrap) as producer:
        for _ in range(3):
            for partition in (0, 1, 2):
                producer.send("orders", numbers(partition), partition=partition).result(WAIT_S)
            producer.send("words", numbers(3)).result(WAIT_S)
    assert sorted(cluster.streams) == [(1, "orders"), (1, "words"), (2, "orders")]


def test_a_partition_that_moves_leaves_the_others_on_their_stream(cluster: FakeCluster) -> None:
    with Producer(cluster.bootstrap, batch_bytes=0) as producer:
        for partition in (0, 1):
            producer.send("orders", numbers(0), partition=partition).result(WAIT_S)
        cluster.lead(2, partition=1)
        futures = [producer.send("orders", numbers(1), partition=partition) for partition in (1, 0, 1, 0)]
        assert {future.result(WAIT_S).partition for future in futures} == {0, 1}
    assert cluster.streams == [(1, "orders"), (2, "orders")]
    assert [metadata.sequence for broker, metadata in cluster.received if metadata.partition == 0] == [0, 1, 2]


def test_an_answer_to_what_was_never_sent_ends_the_stream_and_says_so(cluster: FakeCluster) -> None:
    cluster.first_number = 7
    with Producer(cluster.bootstrap) as producer:
        error = failure(producer.send("orders", numbers(1), 0))
        assert isinstance(error, InvalidRequest)
        assert error.maybe_written
        assert "answered batch 7, which is not owed" in str(error)
        cluster.first_number = 0
        assert producer.send("orders", numbers(2), 0).result(WAIT_S).base_offset == 1


def test_a_stream_that_answers_nothing_is_left_long_before_its_batches_run_out_of_time(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its partitions all leave it, the one with nothing to send, too."""
    monkeypatch.setattr(producers, "SenderSettings", partial(SenderSettings, silence_s_max=1.5))
    with Producer(cluster.bootstrap, batch_bytes=0, deadline_ms=60_000) as producer:
        for partition in (0, 1):
            producer.send("orders", numbers(0), partition=partition).result(WAIT_S)
        cluster.brokers[1].proxy.swallow()
        began_s = time.monotonic()
        assert offsets(send(producer, 3, first=1)) == [1, 2, 3]
        assert producer.send("orders", numbers(1), partition=1).result(WAIT_S).base_offset == 1
        assert time.monotonic() - began_s < WAIT_S
    assert cluster.log().numbers == [0, 1, 2, 3]
    assert cluster.streams == 2 * [(1, "orders")], "the silent one, and one for both partitions"


@pytest.mark.parametrize("after", [1, 2, 37, 100])
def test_a_lost_connection_loses_and_doubles_nothing(cluster: FakeCluster, producer: Producer, after: int) -> None:
    cut_once(cluster, after)
    assert offsets(send(producer, 100)) == list(range(100))
    assert cluster.log().numbers == list(range(100))


def test_connections_that_are_lost_again_and_again_lose_and_double_nothing(
    cluster: FakeCluster, producer: Producer
) -> None:
    appends = [0]

    def before_answer(broker: FakeBroker) -> None:
        appends[0] += 1
        if appends[0] % 40 == 0 and appends[0] <= 400:
            broker.proxy.cut()

    cluster.before_answer = before_answer
    assert offsets(send(producer, 500)) == list(range(500))
    assert cluster.log().numbers == list(range(500))


def test_a_new_leader_gets_everything_that_has_no_answer(cluster: FakeCluster, producer: Producer) -> None:
    def before_answer(broker: FakeBroker) -> None:
        if cluster.log().end >= 20 and cluster.log().leader == 1:
            cluster.lead(2)
            broker.proxy.down()

    cluster.before_answer = before_answer
    futures = send(producer, 60)
    assert offsets(futures) == list(range(60))
    assert offsets(send(producer, 20, first=60)) == list(range(60, 80))
    assert cluster.log().numbers == list(range(80))
    assert {stored.leader_epoch for stored in cluster.log().batches} == {0, 1}


def test_a_leader_that_says_it_leads_no_more_is_left(cluster: FakeCluster, producer: Producer) -> None:
    producer.send("orders", numbers(0), 0).result(WAIT_S)
    cluster.lead(2)
    assert offsets(send(producer, 10, first=1)) == list(range(1, 11))
    assert cluster.log().numbers == list(range(11))
    assert cluster.received[-1][0] == 2


def test_a_leader_that_hangs_is_left_when_another_is_elected(cluster: FakeCluster, producer: Producer) -> None:
    hang = threading.Event()
    cluster.before_answer = lambda broker: None if broker.id == 2 else _wait(hang)
    futures = send(producer, 5)
    with cluster.changed:
        assert cluster.changed.wait_for(lambda: cluster.log().end >= 1, WAIT_S)
    cluster.lead(2)
    try:
        assert offsets(futures) == list(range(5))
    finally:
        hang.set()
    assert cluster.log().numbers == list(range(5))


def test_a_broker_without_metadata_of_now_does_not_lead_back(cluster: FakeCluster, producer: Producer) -> None:
    cluster.brokers[1].frozen_metadata = cluster.metadata(None)
    producer.send("orders", numbers(0), 0).result(WAIT_S)
    cluster.lead(2)
    for number in range(1, 6):
        producer.send("orders", numbers(number), 0).result(WAIT_S)
        cluster.brokers[2].proxy.cut()
    assert cluster.log().numbers == list(range(6))


@pytest.mark.parametrize("refused", [{0}, {5}, {5, 6}, {3, 9}, {9}])
def test_a_refused_batch_fails_alone(cluster: FakeCluster, producer: Producer, refused: set[int]) -> None:
    def refuse(batch: pa.RecordBatch, _metadata: BatchMetadata) -> ReplicationError | None:
        return BatchTooLarge("split it") if refused.intersection(batch.column(0).to_pylist()) else None

    cluster.refuse = refuse
    with cluster.silent():
        futures = send(producer, 10)
    for number, future in enumerate(futures):
        if number in refused:
            error = failure(future)
            assert isinstance(error, BatchTooLarge)
            assert not error.maybe_written
        else:
            future.result(WAIT_S)
    good = [number for number in range(10) if number not in refused]
    assert cluster.log().numbers == good
    producer.send("orders", numbers(10), 0).result(WAIT_S)
    assert cluster.log().numbers == [*good, 10]


def test_a_refusal_that_passes_is_tried_again(cluster: FakeCluster, producer: Producer) -> None:
    left = [3]

    def refuse(_batch: pa.RecordBatch, _metadata: BatchMetadata) -> ReplicationError | None:
        left[0] -= 1
        return NotEnoughReplicas("wait for followers") if left[0] >= 0 else None

    cluster.refuse = refuse
    assert offsets(send(producer, 10)) == list(range(10))
    assert cluster.log().numbers == list(range(10))
    assert cluster.streams == [(1, "orders")], "over one connection"


def test_a_broker_that_has_forgotten_the_producer_goes_on_in_a_new_epoch(
    cluster: FakeCluster, producer: Producer
) -> None:
    send(producer, 3)
    producer.flush()
    cluster.log().producers.truncated(0)
    assert offsets(send(producer, 3, first=3)) == [3, 4, 5]
    assert cluster.log().numbers == list(range(6))
    assert cluster.log().batches[-1].metadata.epoch == 1, "and not in one for each batch"


def test_another_schema_is_refused_before_it_is_sent(cluster: FakeCluster, producer: Producer) -> None:
    error = failure(producer.send("orders", pa.record_batch({"number": pa.array(["one"])}), 0))
    assert isinstance(error, SchemaMismatch)
    assert not error.maybe_written
    assert "column 0 ('number') is string in the batch and int64 in the topic" in str(error)
    assert cluster.received == []
    producer.send("orders", numbers(1), 0).result(WAIT_S)


def test_a_topic_made_again_with_another_schema_is_noticed(cluster: FakeCluster, producer: Producer) -> None:
    producer.send("orders", numbers(1), 0).result(WAIT_S)
    words = pa.record_batch({"word": pa.array(["one"])})
    cluster.create("orders", 3, words.schema)
    assert producer.send("orders", words, 0).result(WAIT_S).base_offset == 0
    assert cluster.log().batches[0].batch.equals(words)


WIDER = SCHEMA.append(pa.field("name", pa.string()))


def named(number: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array([number]), pa.array(["a"])], schema=WIDER)


def test_who_sends_an_earlier_version_does_not_notice_and_who_sends_the_newest_finds_it(
    cluster: FakeCluster, producer: Producer
) -> None:
    producer.send("orders", numbers(0), 0).result(WAIT_S)
    stale = cluster.metadata(None)
    cluster.widen("orders", WIDER)
    asked = cluster.asked_metadata
    producer.send("orders", numbers(1), 0).result(WAIT_S)
    assert cluster.asked_metadata == asked
    cluster.brokers[1].frozen_metadata = stale  # it hears later than the other
    assert offsets([producer.send("orders", batch, 0) for batch in (named(2), numbers(3), named(4))]) == [2, 3, 4]
    assert [stored.batch.schema.equals(WIDER) for stored in cluster.log().batches] == [False, False, True, False, True]


def test_versions_may_alternate(cluster: FakeCluster, producer: Producer) -> None:
    cluster.widen("orders", WIDER)
    batches = [named(number) if number % 2 else numbers(number) for number in range(10)]
    assert offsets([producer.send("orders", batch, 0) for batch in batches]) == list(range(10))
    assert cluster.log().numbers == list(range(10))
    assert len(cluster.received) == 10, "none is sent again"


def test_a_version_that_no_broker_tells_of_is_looked_for_and_then_refused(
    cluster: FakeCluster, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sends, "UNKNOWN_VERSION_MS", 200)
    asked = cluster.asked_metadata
    error = failure(producer.send("orders", named(0), 0))
    assert isinstance(error, UnknownSchemaVersion)
    assert "column 1 ('name') of the batch is not in the topic: widen the topic" in str(error)
    assert cluster.asked_metadata > asked + 1
    assert cluster.received == []
    cluster.widen("orders", WIDER)
    assert producer.send("orders", named(0), 0).result(WAIT_S).base_offset == 0


def test_a_leader_that_has_not_heard_of_a_version_is_tried_again(cluster: FakeCluster, producer: Producer) -> None:
    cluster.widen("orders", WIDER)
    left = [3]

    def refuse(batch: pa.RecordBatch, _metadata: BatchMetadata) -> ReplicationError | None:
        left[0] -= batch.schema.equals(WIDER)
        unknown = batch.schema.equals(WIDER) and left[0] > 0
        return UnknownSchemaVersion("column 1: widen the topic, or wait") if unknown else None

    cluster.refuse = refuse
    futures = [producer.send("orders", batch, 0) for batch in (numbers(0), named(1), numbers(2))]
    assert offsets(futures) == [0, 1, 2]
    assert left[0] <= 0
    assert cluster.log().numbers == [0, 1, 2], "none is lost, doubled or overtaken"


def test_a_leader_that_never_hears_of_a_version_is_given_up_in_time(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two tries, and none under way when time is over: that one might be written.
    monkeypatch.setattr(sending, "back_off_s", lambda failures: 0.01 if failures == 1 else 60.0)
    cluster.widen("orders", WIDER)
    cluster.refuse = lambda _batch, _metadata: UnknownSchemaVersion("column 1: widen the topic, or wait")
    with Producer(cluster.bootstrap, deadline_ms=PASSES_MS) as producer:
        error = failure(producer.send("orders", named(0), 0))
    assert isinstance(error, UnknownSchemaVersion)
    assert f"given up after {PASSES_MS} ms, nothing is written" in str(error)
    assert len(cluster.received) > 1


@pytest.mark.parametrize("batch", [numbers(), pa.table({"number": pa.array([], pa.int64())}), [1, 2]])
def test_what_is_no_batch_is_refused(producer: Producer, batch: object) -> None:
    assert isinstance(failure(producer.send("orders", batch, 0)), InvalidRequest)


@pytest.mark.parametrize(("topic", "partition"), [("ordrs", 0), ("orders", 3)])
def test_an_unknown_topic_or_partition_is_named_soon(producer: Producer, topic: str, partition: int) -> None:
    error = failure(producer.send(topic, numbers(1), partition))
    assert isinstance(error, UnknownTopicOrPartition)
    assert f"{topic}" in str(error)


def test_no_answer_in_time_may_be_written(cluster: FakeCluster) -> None:
    with Producer(cluster.bootstrap, deadline_ms=PASSES_MS) as producer, cluster.silent():
        error = failure(producer.send("orders", numbers(1), 0))
        assert isinstance(error, RequestTimedOut)
        assert error.maybe_written
        assert error.retriable


def test_what_was_refused_and_could_not_be_sent_again_is_surely_not_written(cluster: FakeCluster) -> None:
    def refuse(_batch: pa.RecordBatch, _metadata: BatchMetadata) -> ReplicationError:
        cluster.lead(None)
        return NotLeader("another will be elected")

    cluster.refuse = refuse
    with Producer(cluster.bootstrap, deadline_ms=PASSES_MS) as producer:
        error = failure(producer.send("orders", numbers(1), 0))
        assert isinstance(error, LeaderNotAvailable)
        assert not error.maybe_written
        assert "nothing is written" in str(error)
        cluster.refuse = lambda _batch, _metadata: None
        cluster.lead(1)
        producer.send("orders", numbers(2), 0).result(WAIT_S)
    assert cluster.log().numbers == [2]


def test_the_producer_is_usable_after_a_deadline_that_passed(cluster: FakeCluster) -> None:
    with Producer(cluster.bootstrap, deadline_ms=PASSES_MS) as producer:
        with cluster.silent():
            assert failure(producer.send("orders", numbers(1), 0)).maybe_written
        producer.send("orders", numbers(2), 0).result(WAIT_S)
    assert cluster.log().numbers in ([2], [1, 2])


def test_nobody_to_send_to_names_the_addresses_that_were_tried(cluster: FakeCluster) -> None:
    for broker in cluster.brokers.values():
        broker.proxy.down()
    with Producer(cluster.bootstrap, deadline_ms=PASSES_MS) as producer:
        error = failure(producer.send("orders", numbers(1), 0))
    assert not error.maybe_written
    assert all(broker.address in str(error) for broker in cluster.brokers.values())


def test_a_full_window_makes_send_wait_and_then_says_so(cluster: FakeCluster) -> None:
    with Producer(cluster.bootstrap, deadline_ms=PASSES_MS, in_flight_batches_max=4, batch_bytes=0) as producer:
        with cluster.silent():
            futures = send(producer, 4)
            with pytest.raises(
                Overloaded, match=f"for orders-0 .* had no answer within {PASSES_MS} ms.*slow down"
            ) as refused:
                send(producer, 1, first=4)
            assert not refused.value.maybe_written
            assert all(failure(future).maybe_written for future in futures)
        producer.send("orders", numbers(5), 0).result(WAIT_S)
    assert 4 not in cluster.log().numbers


def test_room_in_the_window_lets_send_go_on(cluster: FakeCluster) -> None:
    with Producer(cluster.bootstrap, deadline_ms=15_000, in_flight_bytes_max=3 * SEND_BYTES) as producer:
        assert offsets(send(producer, 200)) == list(range(200))
    assert cluster.log().numbers == list(range(200))


def test_flush_and_close_wait_for_answers(cluster: FakeCluster) -> None:
    producer = Producer(cluster.bootstrap, deadline_ms=15_000)
    futures = send(producer, 50)
    producer.flush()
    assert all(future.done() for future in futures)
    more = send(producer, 50, first=50)
    producer.close()
    assert all(future.done() for future in more)
    assert cluster.log().numbers == list(range(100))
    with pytest.raises(ClientClosed) as closed:
        producer.send("orders", numbers(1), 0)
    assert not closed.value.retriable, "or a loop that tries again would never end"


def test_a_first_send_ends_with_its_producer(cluster: FakeCluster) -> None:
    cluster.refuse_metadata = LeaderNotAvailable("wait")
    producer = Producer(cluster.bootstrap, deadline_ms=60_000)
    told: list[str] = []

    def send_first() -> None:
        with pytest.raises(ClientClosed, match="closed"):
            producer.send("orders", numbers(1), 0)
        told.append("closed")

    sending = threading.Thread(target=send_first)
    sending.start()
    eventually(lambda: cluster.asked_metadata > 4, "it asks again and again")
    producer.close()
    sending.join(WAIT_S)
    assert told == ["closed"]


def test_nothing_looks_after_a_producer_that_was_closed_before_its_batches_had_answers(cluster: FakeCluster) -> None:
    producer = Producer(cluster.bootstrap, deadline_ms=60_000)
    producer.send("orders", numbers(0), 0).result(WAIT_S)
    with cluster.silent():
        future = producer.send("orders", numbers(1), 0)
        window = producer._senders.of(TopicPartition("orders", 0))._sending.window
        eventually(lambda: window.unanswered, "it is sent")
        loop = producer._senders.links._running()
        producer._senders.links.close(WAIT_S)
        error = failure(future)
        assert isinstance(error, ClientClosed)
        assert error.maybe_written
    producer.close()
    assert producer._senders.links._loop is None
    assert not loop._thread.is_alive()


def test_a_callback_may_send(cluster: FakeCluster, producer: Producer) -> None:
    second: list[Future[Ack]] = []
    sent = threading.Event()

    def chain(_first: Future[Ack]) -> None:
        second.append(producer.send("orders", numbers(2), 0))
        sent.set()

    producer.send("orders", numbers(1), 0).add_done_callback(chain)
    assert sent.wait(WAIT_S)
    assert second[0].result(WAIT_S).base_offset == 1


def test_an_answer_that_promises_nothing_is_asked_again(cluster: FakeCluster, producer: Producer) -> None:
    """A leader that steps aside after the append: the batch is there already."""
    first = [True]

    def refuse(batch: pa.RecordBatch, metadata: BatchMetadata) -> ReplicationError | None:
        if first.pop() if first else False:
            cluster.log().append(batch, metadata)
            return NotLeader("stepped aside", maybe_written=True)
        return None

    cluster.refuse = refuse
    assert offsets(send(producer, 5)) == list(range(5))
    assert cluster.log().numbers == list(range(5))


@pytest.mark.parametrize(
    "settings",
    [
        {"acks": 2},
        {"in_flight_batches_max": 0},
        {"in_flight_batches_max": 501},
        {"linger_ms": -1},
        {"linger_ms": 30_000},
        {"batch_bytes": -1},
        {"batch_bytes": (1 << 30) + 1},
    ],
)
def test_settings_out_of_range_are_refused(cluster: FakeCluster, settings: dict[str, int]) -> None:
    with pytest.raises(InvalidRequest):
        Producer(cluster.bootstrap, **settings)  # type: ignore[arg-type]


def _wait(event: threading.Event) -> None:
    event.wait(WAIT_S)


def test_batches_of_one_key_go_to_one_partition(cluster: FakeCluster, producer: Producer) -> None:
    acks = [producer.send("orders", numbers(number), key=b"customer-1").result(WAIT_S) for number in range(3)]
    assert [(ack.partition, ack.base_offset) for ack in acks] == [(acks[0].partition, offset) for offset in range(3)]
    others = {producer.send("orders", numbers(0), key=b"%d" % key).result(WAIT_S).partition for key in range(20)}
    assert len(others) > 1


def test_a_producer_soon_places_keys_by_partitions_that_were_added(cluster: FakeCluster) -> None:
    """Order by key holds if every producer hears of them."""
    keys = [b"%d" % key for key in range(20)]

    def placed(producer: Producer) -> list[int]:
        return [producer.send("orders", numbers(0), key=key).result(WAIT_S).partition for key in keys]

    with Producer(cluster.bootstrap) as living:
        placed(living)
        with cluster.changed:
            cluster.logs[TopicPartition("orders", 3)] = FakeLog()
        with Producer(cluster.bootstrap) as young:
            wanted = placed(young)
        assert 3 in wanted
        began_s = time.monotonic()
        eventually(lambda: placed(living) == wanted, "it has heard of the fourth")
        assert time.monotonic() - began_s < 5, "within a second, on an idle machine"


def test_looking_for_more_partitions_asks_about_the_next_one_alone(cluster: FakeCluster) -> None:
    cluster.create("wide", 100)
    with Producer(cluster.bootstrap) as producer:
        producer.send("wide", numbers(0), key=b"a").result(WAIT_S)
        first = cluster.asked_metadata

        def looked() -> bool:
            producer.send("wide", numbers(0), key=b"a").result(WAIT_S)
            return cluster.asked_metadata > first

        eventually(looked, "it has looked")
        assert cluster.asked_only == {"wide": (99, 100)}
        assert producer._routes.known(TopicPartition("wide", 0)) is not None, "nothing is stale"


def test_a_producer_that_was_forgotten_goes_on_in_another_epoch(cluster: FakeCluster) -> None:
    with Producer(cluster.bootstrap, batch_bytes=0) as producer:
        for number in range(3):
            producer.send("orders", numbers(number), 0).result(WAIT_S)
        cluster.log().producers = Producers(1)
        futures = [producer.send("orders", numbers(number), 0) for number in range(3, 9)]
        assert [future.result(WAIT_S).base_offset for future in futures] == list(range(3, 9))
    assert cluster.log().numbers == list(range(9))
    assert {stored.metadata.epoch for stored in cluster.log().batches[3:]} == {1}


def under(cluster: FakeCluster, *values: int, epoch: int = 3, any_order: bool = False) -> list[Future[Ack]]:
    """What a program sends under numbers of its own, a batch for each of these."""
    identity = Identity(producer=77, epoch=epoch, any_order=any_order)
    with Producer(cluster.bootstrap, deadline_ms=15_000, identity=identity) as producer:
        return [producer.send("orders", numbers(value), 0) for value in values]


def test_what_is_sent_again_under_its_owners_numbers_is_stored_once(cluster: FakeCluster) -> None:
    first = [future.result(WAIT_S) for future in under(cluster, 1, 2, 3)]
    assert [future.result(WAIT_S) for future in under(cluster, 1, 2, 3, 4)][:3] == first
    log = cluster.log("orders", 0)
    assert log.numbers == [1, 2, 3, 4], "each send is a batch of its own"
    assert [(each.metadata.epoch, each.metadata.sequence) for each in log.batches] == [(3, 0), (3, 1), (3, 2), (3, 3)]


def test_under_its_owners_numbers_an_earlier_epoch_is_fenced(cluster: FakeCluster) -> None:
    under(cluster, 1, epoch=4)
    (late,) = under(cluster, 1, epoch=3)
    with pytest.raises(InvalidProducerEpoch, match="epoch 3 is fenced by 4"):
        late.result(WAIT_S)


def test_with_a_batch_that_fails_under_its_owners_number_all_behind_it_fails(cluster: FakeCluster) -> None:
    cluster.refuse = lambda batch, _metadata: BatchTooLarge("too large") if batch.column(0).to_pylist() == [2] else None
    identity = Identity(producer=77)
    with Producer(cluster.bootstrap, deadline_ms=15_000, identity=identity) as producer:
        sent = [producer.send("orders", numbers(value), 0) for value in (1, 2, 3)]
        assert sent[0].result(WAIT_S).base_offset == 0
        for future in sent[1:]:
            with pytest.raises(ReplicationError):
                future.result(WAIT_S)
        with pytest.raises(InvalidRequest, match="this one would have its number"):
            producer.send("orders", numbers(4), 0)
    assert cluster.log("orders", 0).numbers == [1]


def test_a_batch_that_no_broker_would_take_is_refused_alone_and_not_sent(cluster: FakeCluster) -> None:
    cluster.batch_bytes_max = 1_000
    with Producer(cluster.bootstrap, batch_bytes=0) as producer:
        futures = [producer.send("orders", numbers(*range(count)), 0) for count in (1, 500, 1)]
        error = failure(futures[1])
        assert isinstance(error, BatchTooLarge)
        assert "over batch.bytes.max=1000: split it" in error.message
        assert not error.maybe_written
        assert [futures[0].result(WAIT_S).base_offset, futures[2].result(WAIT_S).base_offset] == [0, 1]
    assert cluster.log().numbers == [0, 0]


def test_a_batch_that_arrow_cannot_write_is_refused_alone(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def serialized(batch: pa.RecordBatch) -> tuple[memoryview, int]:
        if batch.column(0).to_pylist() == [2]:
            raise pa.ArrowInvalid("no such buffer")
        return batches.serialized(batch)

    monkeypatch.setattr(lanes, "serialized", serialized)
    with Producer(cluster.bootstrap, batch_bytes=0) as producer:
        futures = [producer.send("orders", numbers(number), 0) for number in (1, 2, 3)]
        error = failure(futures[1])
        assert isinstance(error, InvalidRequest)
        assert "no such buffer" in error.message
        assert [futures[0].result(WAIT_S).base_offset, futures[2].result(WAIT_S).base_offset] == [0, 1]


@pytest.mark.parametrize("says", [b"SSH-2.0-somebody\r\n" * 9, b""], ids=["another_program", "nothing"])
def test_whatever_else_has_the_port_of_a_broker_is_no_broker(cluster: FakeCluster, says: bytes) -> None:
    """Its answers fail no batch, which goes to the leader as soon as that is known."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        broker = cluster.brokers[1]
        port = other.getsockname()[1]
        broker.other_replication_port = port
        with Producer(cluster.bootstrap, deadline_ms=15_000) as producer:
            future = producer.send("orders", numbers(1), 0)
            connection, _ = other.accept()
            broker.other_replication_port = None
            with connection:
                connection.sendall(says)
            assert future.result(WAIT_S).base_offset == 0


def test_a_connection_with_as_many_streams_as_it_may_have_gets_a_successor(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "STREAMS_MAX", 2)
    for name in "abcd":
        cluster.create(name)
    with Producer(cluster.bootstrap) as producer:
        for _ in range(2):
            for name in "abcd":
                producer.send(name, numbers(1)).result(WAIT_S)
    assert [cluster.log(name).numbers for name in "abcd"] == 4 * [[1, 1]]
    assert sorted(cluster.streams) == [(1, name) for name in "abcd"], "none is left for another"

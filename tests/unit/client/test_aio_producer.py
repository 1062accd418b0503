"""What a producer in an event loop promises beyond any other: nothing that it waits for blocks the loop."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
import pytest

import spark_replication as sr
from spark_replication.client.aio.producer import AsyncProducer, _SentRows
from spark_replication.client.producing.sender import Sender
from spark_replication.engine.client.numbers import Identity
from spark_replication.engine.client.sending import Ack
from spark_replication.errors import (
    BatchTooLarge,
    ClientClosed,
    InvalidRequest,
    Overloaded,
    RequestTimedOut,
    SchemaMismatch,
    UnknownSchemaVersion,
    UnknownTopicOrPartition,
)
from spark_replication.model import TopicPartition
from tests.unit.client.fake_cluster import PASSES_MS, FakeCluster
from tests.unit.client.test_producer import WIDER, named, numbers
from tests.waiting import eventually, eventually_here

#: A window of one batch for each partition, and a batch for each send.
NARROW: dict[str, Any] = {"in_flight_batches_max": 1, "batch_bytes": 0, "deadline_ms": 15_000}


def sends(producer: AsyncProducer, count: int, first: int = 0, topic: str = "orders") -> list[asyncio.Future[Ack]]:
    return [producer.send(topic, numbers(number), 0) for number in range(first, first + count)]


async def offsets(sent: list[asyncio.Future[Ack]]) -> list[int]:
    return [ack.base_offset for ack in await asyncio.gather(*sent)]


async def turns(count: int = 20) -> None:
    """The event loop goes on so far."""
    for _ in range(count):
        await asyncio.sleep(0)


def run(cluster: FakeCluster, story: Callable[[AsyncProducer], Awaitable[None]], **arguments: Any) -> None:
    async def told() -> None:
        async with sr.aio.Producer(cluster.bootstrap, **arguments) as producer:
            await story(producer)

    asyncio.run(told())


def test_each_of_many_sends_has_its_own_ack(cluster: FakeCluster) -> None:
    async def story(producer: AsyncProducer) -> None:
        assert await producer.send("orders", numbers(0), 0) == Ack(
            topic="orders", partition=0, base_offset=0, last_offset=0
        )
        assert await offsets(sends(producer, 1_000, first=1)) == list(range(1, 1_001))

    run(cluster, story)
    assert cluster.log().numbers == list(range(1_001))


def test_answers_that_come_together_wake_the_event_loop_once(cluster: FakeCluster) -> None:
    async def story(producer: AsyncProducer) -> None:
        await producer.send("orders", numbers(0), 0)
        loop = asyncio.get_running_loop()
        wakes: list[object] = []
        call_soon = loop.call_soon_threadsafe

        def counted(call: Callable[..., object], *given: Any, **named: Any) -> asyncio.Handle:
            wakes.append(call)
            return call_soon(call, *given, **named)

        loop.call_soon_threadsafe = counted  # type: ignore[method-assign, assignment]
        with cluster.silent():
            sent = sends(producer, 1_000, first=1)
        await asyncio.gather(*sent)
        assert 1 <= len(wakes) < 100

    run(cluster, story)


def test_a_future_is_given_to_whatever_takes_futures(cluster: FakeCluster) -> None:
    async def story(producer: AsyncProducer) -> None:
        future = producer.send("orders", numbers(0), 0)
        assert asyncio.isfuture(future)
        done, _ = await asyncio.wait([future, *sends(producer, 2, first=1)])
        assert sorted(each.result().base_offset for each in done) == [0, 1, 2]

        async def one(number: int) -> int:
            return (await producer.send("orders", numbers(number), 0)).base_offset

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(number)) for number in range(3, 6)]
        assert [task.result() for task in tasks] == [3, 4, 5]

    run(cluster, story)


def test_keys_place_rows_as_those_of_any_producer(cluster: FakeCluster) -> None:
    rows = {"number": list(range(20))}
    with sr.Producer(cluster.bootstrap) as threaded:
        expected = threaded.send("orders", rows, key="number").result(20)
        by_bytes = threaded.send("orders", rows, key=b"a").result(20).partition

    async def story(producer: AsyncProducer) -> None:
        acks = await producer.send("orders", rows, key="number")
        assert [(ack.partition, ack.last_offset - ack.base_offset) for ack in acks] == [
            (ack.partition, ack.last_offset - ack.base_offset) for ack in expected
        ]
        assert (await producer.send("orders", rows, key=b"a")).partition == by_bytes

    run(cluster, story)


def test_parts_are_stored_or_refused_on_their_own(cluster: FakeCluster) -> None:
    cluster.refuse = lambda _batch, of: BatchTooLarge("no") if of.partition == 1 else None

    async def story(producer: AsyncProducer) -> None:
        with pytest.raises(BatchTooLarge, match="partitions 0, 2 are stored") as refused:
            await producer.send("orders", {"number": list(range(20))}, key="number")
        assert refused.value.maybe_written

    run(cluster, story)


def test_an_error_of_the_rows_is_in_the_future(cluster: FakeCluster) -> None:
    other = pa.record_batch({"name": pa.array(["a"])})

    async def story(producer: AsyncProducer) -> None:
        for _ in range(2):  # the topic is asked for, and then known
            mistaken = producer.send("orders", other, 0)
            with pytest.raises(SchemaMismatch):
                await mistaken
        empty = producer.send("orders", {"number": []}, 0)
        with pytest.raises(InvalidRequest, match="at least one row"):
            await empty
        with pytest.raises(UnknownTopicOrPartition):
            await producer.send("nothing", numbers(0))
        with pytest.raises(UnknownTopicOrPartition, match="there is no orders-9"):
            await producer.send("orders", numbers(0), 9)
        assert TopicPartition("orders", 9) not in producer._sends._senders._senders

    run(cluster, story)


def test_what_is_wrong_with_an_argument_is_raised_where_the_caller_is(cluster: FakeCluster) -> None:
    async def story(producer: AsyncProducer) -> None:
        with pytest.raises(InvalidRequest, match="partition=1 and a key"):
            producer.send("orders", numbers(1), 1, key=b"a")
        with pytest.raises(InvalidRequest, match="topic=7 is no text"):
            producer.send(7, numbers(1))  # type: ignore[call-overload]
        with pytest.raises(InvalidRequest, match="linger_ms=-1"):
            sr.aio.Producer(cluster.bootstrap, linger_ms=-1)
        assert (await producer.send("orders", numbers(1), 0)).base_offset == 0

    run(cluster, story)


def test_where_there_is_no_room_sends_wait_in_their_order_and_the_loop_goes_on(cluster: FakeCluster) -> None:
    async def story(producer: AsyncProducer) -> None:
        await producer.send("orders", numbers(0), 0)
        threads = set(threading.enumerate())  # some are of other tests, and may end meanwhile
        with cluster.silent():
            waiting = sends(producer, 20, first=1)
            await turns()
            assert not any(each.done() for each in waiting)
            assert len(producer._waiting) == 19, "the window has one"
            assert threads.issuperset(threading.enumerate()), "none waits"
            beside = producer.send("orders", numbers(50), 1)  # another partition has room
            await turns()
            assert len(producer._waiting) == 19
        assert await offsets(waiting) == list(range(1, 21))
        assert (await beside).base_offset == 0
        assert not producer._waiting
        assert not producer._turns
        assert producer._sends._senders.of(TopicPartition("orders", 0))._told == []

    run(cluster, story, **NARROW)
    assert cluster.log().numbers == list(range(21))


def test_who_has_room_overtakes_nobody_who_waits(cluster: FakeCluster) -> None:
    """Room comes while the event loop is elsewhere, and the next call finds it before those that wait."""

    async def story(producer: AsyncProducer) -> None:
        await producer.send("orders", numbers(0), 0)
        with cluster.silent():
            waiting = sends(producer, 2, first=1)
            await turns()
        eventually(lambda: cluster.log().numbers == [0, 1], "the first of them is stored")
        sender = producer._sends._senders.of(TopicPartition("orders", 0))
        eventually(lambda: sender.is_idle, "there is room")
        waiting += sends(producer, 3, first=3)
        assert await offsets(waiting) == [1, 2, 3, 4, 5]

    run(cluster, story, **NARROW)
    assert cluster.log().numbers == list(range(6))


def test_parts_of_one_send_wait_each_for_its_partition(cluster: FakeCluster) -> None:
    async def story(producer: AsyncProducer) -> None:
        await producer.send("orders", {"number": list(range(20))}, key="number")
        with cluster.silent():
            waiting = [producer.send("orders", {"number": list(range(20))}, key="number") for _ in range(3)]
            await turns()
        for acks in await asyncio.gather(*waiting):
            assert [ack.partition for ack in acks] == [0, 1, 2]

    run(cluster, story, **NARROW)


def test_who_finds_no_room_until_the_deadline_is_told_so(cluster: FakeCluster) -> None:
    async def story(producer: AsyncProducer) -> None:
        await producer.send("orders", numbers(0), 0)
        with cluster.silent():
            sent, *waiting = sends(producer, 4, first=1)
            parts = producer.send("orders", {"number": list(range(20))}, key="number")
            for each in waiting:
                with pytest.raises(Overloaded, match=f"had no answer within {PASSES_MS} ms.*slow down") as refused:
                    await each
                assert not refused.value.maybe_written
            with pytest.raises(RequestTimedOut):
                await sent
            with pytest.raises((Overloaded, RequestTimedOut)):
                await parts

    run(cluster, story, **{**NARROW, "deadline_ms": PASSES_MS})


def test_who_waits_for_room_waits_no_longer_than_its_deadline(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(producer: AsyncProducer) -> None:
        await producer.send("orders", numbers(0), 0)
        monkeypatch.setattr(Sender, "_tell", lambda _sender: [])  # nothing happens that might make room
        with cluster.silent():
            _, waiting = sends(producer, 2, first=1)
            with pytest.raises(Overloaded):
                await waiting
        monkeypatch.undo()

    run(cluster, story, **{**NARROW, "deadline_ms": PASSES_MS})


def test_an_outcome_that_comes_before_anybody_asks_for_it_is_there(cluster: FakeCluster) -> None:
    async def story(producer: AsyncProducer) -> None:
        ack = await producer.send("orders", numbers(0), 0)
        for outcome in (ack, Overloaded("no")):
            sent = _SentRows(producer._loop)
            assert not sent.done()
            assert not sent.settled().done()
            told = _SentRows(producer._loop)
            for each in (sent, told):
                each.set_result(outcome) if isinstance(outcome, Ack) else each.set_exception(outcome)
            assert told.done()
            assert told.settled().done()
            assert told.exception() is (None if outcome is ack else outcome)
            await sent.settled()
            found = await asyncio.gather(sent.answered, told.answered, return_exceptions=True)
            assert [*found] == [outcome, outcome]

    run(cluster, story)


def test_a_topic_that_is_asked_for_changes_no_order_and_blocks_no_loop(cluster: FakeCluster) -> None:
    async def story(producer: AsyncProducer) -> None:
        with cluster.changed:  # no metadata
            early = sends(producer, 50, topic="later")
            known = sends(producer, 50)
            await turns()
            assert not any(each.done() for each in (*early, *known))
        await eventually_here(lambda: ("later",) in cluster.asked_topics, "the topic is asked for")
        cluster.create("later")
        assert await offsets(early + sends(producer, 50, first=50, topic="later")) == list(range(100))
        assert await offsets(known) == list(range(50))

    run(cluster, story)
    assert cluster.log("later").numbers == list(range(100))
    assert cluster.log().numbers == list(range(50))


def test_a_partition_that_nobody_can_read_yet_is_waited_for(cluster: FakeCluster) -> None:
    cluster.hidden = {TopicPartition("orders", 0)}

    async def story(producer: AsyncProducer) -> None:
        await producer.send("orders", numbers(1), 1)
        waiting = producer.send("orders", numbers(0), 0)
        assert (await producer.send("orders", numbers(1))).partition != 0
        assert not waiting.done()
        cluster.hidden = set()
        assert (await waiting).partition == 0

    run(cluster, story)


def test_a_version_that_brokers_learn_of_is_looked_for_without_the_loop(cluster: FakeCluster) -> None:
    async def story(producer: AsyncProducer) -> None:
        await producer.send("orders", numbers(0), 0)
        wider = pa.record_batch([[1], ["a"], [2]], WIDER.append(pa.field("more", pa.int64())))
        early = producer.send("orders", named(1), 0)
        await turns()
        assert not early.done()
        cluster.widen("orders", WIDER)
        assert await offsets([early, producer.send("orders", numbers(2), 0)]) == [1, 2]
        with pytest.raises(UnknownSchemaVersion):
            await producer.send("orders", wider)

    run(cluster, story)


def test_a_cancelled_send_is_written_all_the_same_and_disturbs_nobody(cluster: FakeCluster) -> None:
    async def story(producer: AsyncProducer) -> None:
        await producer.send("orders", numbers(0), 0)
        with cluster.silent():
            cancelled, after = sends(producer, 2, first=1)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(cancelled, 0.01)
            flushing = asyncio.create_task(producer.flush())
            await turns()
            assert not flushing.done()
        await flushing
        assert cluster.log().numbers == [0, 1, 2]
        assert await offsets([after]) == [2]
        assert cancelled.cancelled()

    run(cluster, story)


def test_who_is_cancelled_while_it_waits_for_room_leaves_its_turn(cluster: FakeCluster) -> None:
    async def story(producer: AsyncProducer) -> None:
        await producer.send("orders", numbers(0), 0)
        with cluster.silent():
            sent, first, second, third = sends(producer, 4, first=1)
            await turns()
            assert first.cancel()
            assert second.cancel()
            await turns()
            assert len(producer._waiting) == 1
            assert producer.send("orders", numbers(9), 0).cancel(), "before it has begun to wait"
        assert await offsets([sent, third]) == [1, 2]

    run(cluster, story, **NARROW)
    assert cluster.log().numbers == [0, 1, 4]


def test_flush_waits_for_all_that_was_sent_before(cluster: FakeCluster) -> None:
    async def story(producer: AsyncProducer) -> None:
        await producer.flush()
        sent = sends(producer, 50)  # they wait for the topic, and most of them for room
        async with asyncio.timeout(10):  # no batch waits for more sends
            await producer.flush()
        assert all(each.done() for each in sent)

    run(cluster, story, **NARROW)
    run(cluster, story, deadline_ms=15_000, linger_ms=14_000)


def test_flush_tells_of_what_has_no_answer(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(producer: AsyncProducer) -> None:
        await producer.send("orders", numbers(0), 0)
        unanswered = producer._sends.unanswered
        monkeypatch.setattr(producer._sends, "unanswered", lambda: (unanswered()[0], 0.01))
        with cluster.silent():
            sent = sends(producer, 3, first=1)
            with pytest.raises(RequestTimedOut, match="3 sends have no answer within 30000 ms: ask their futures"):
                await producer.flush()
        assert await offsets(sent) == [1, 2, 3]

    run(cluster, story)


def test_close_waits_for_all_that_was_sent(cluster: FakeCluster) -> None:
    async def story(producer: AsyncProducer) -> None:
        await producer.send("orders", numbers(0), 0)
        with cluster.silent():
            sent = sends(producer, 3, first=1)
            await turns()
            closing = asyncio.create_task(producer.close())
            await turns()
            assert not closing.done()
            with pytest.raises(ClientClosed):
                producer.send("orders", numbers(4), 0)
        await closing
        assert [each.result().base_offset for each in sent] == [1, 2, 3]
        await producer.flush()
        await producer.close()

    run(cluster, story, **NARROW)


def test_a_close_that_is_cancelled_waits_for_what_is_in_flight_alone(cluster: FakeCluster) -> None:
    async def story(producer: AsyncProducer) -> None:
        await producer.send("orders", numbers(0), 0)
        with cluster.silent():
            sent, *waiting = sends(producer, 3, first=1)
            closing = asyncio.create_task(producer.close())
            await turns()
            closing.cancel()
            for each in waiting:
                with pytest.raises(ClientClosed):
                    await asyncio.wait_for(each, 5)
        assert await offsets([sent]) == [1]
        with pytest.raises(asyncio.CancelledError):
            await closing

    run(cluster, story, **NARROW)


def test_a_producer_of_fixed_numbers_ends_with_its_first_failure(cluster: FakeCluster) -> None:
    cluster.refuse = lambda batch, _of: BatchTooLarge("no") if batch.column(0)[0].as_py() == 1 else None

    async def story(producer: AsyncProducer) -> None:
        await producer.send("orders", numbers(0), 0)
        with pytest.raises(BatchTooLarge):
            await producer.send("orders", numbers(1), 0)
        with pytest.raises(InvalidRequest, match="this one would have its number"):
            producer.send("orders", numbers(2), 0)
        with pytest.raises(InvalidRequest, match=r"begin anew .the rows for the partitions 1, 2 are stored"):
            await producer.send("orders", {"number": list(range(20))}, key="number")
        with pytest.raises(InvalidRequest, match="give partition= or key="):
            producer.send("orders", numbers(2))

    run(cluster, story, identity=Identity(producer=7, epoch=0))


def test_a_producer_works_in_its_event_loop_alone(cluster: FakeCluster) -> None:
    with pytest.raises(InvalidRequest, match=r"no event loop runs here: make a Producer of sr.aio in a coroutine"):
        sr.aio.Producer(cluster.bootstrap)

    async def story(producer: AsyncProducer) -> None:
        async def elsewhere() -> None:
            with pytest.raises(InvalidRequest, match="was made in another event loop"):
                producer.send("orders", numbers(0), 0)
            with pytest.raises(InvalidRequest, match="was made in another event loop"):
                await producer.flush()
            with pytest.raises(InvalidRequest, match="was made in another event loop"):
                await producer.close()

        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, elsewhere()).result(20)
            with pytest.raises(InvalidRequest, match="was made in another event loop"):
                thread.submit(producer.send, "orders", numbers(0), 0).result(20)
        assert (await producer.send("orders", numbers(0), 0)).base_offset == 0

    run(cluster, story)


FORKED = """
import asyncio, os, sys
import pyarrow as pa
import spark_replication as sr
batch = pa.record_batch({"number": pa.array([1])})
async def main():
    async with sr.aio.Producer(sys.argv[1]) as producer, sr.aio.Reader(sys.argv[1]) as reader:
        await producer.send("orders", batch, 0)
        await reader.topics()
        child = os.fork()
        if not child:
            asks = {"Producer": lambda: producer.send("orders", batch), "Reader": lambda: reader.read("orders")}
            for client, ask in asks.items():
                try:
                    ask()
                except sr.errors.InvalidRequest as error:
                    assert f"by spawn or forkserver, and make a {client} in it" in error.message
                else:
                    os._exit(1)
            await producer.close()
            await reader.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        print((await producer.send("orders", batch, 0)).base_offset)
asyncio.run(main())
"""

UNHELD = """
import asyncio, sys
import pyarrow as pa
import spark_replication as sr
async def main():
    producer = sr.aio.Producer(sys.argv[1], deadline_ms=int(sys.argv[2]), linger_ms=int(sys.argv[2]) - 1)
    for number in range(100):
        producer.send("orders", pa.record_batch({"number": pa.array([number])}), 0)
    while producer._waiting:
        await asyncio.sleep(0.01)
asyncio.run(main())
"""


def program(text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "always", "-c", text, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.slow
def test_a_fork_is_told_at_once_to_make_clients_of_its_own(cluster: FakeCluster) -> None:
    said = program(FORKED, cluster.bootstrap)
    assert (said.returncode, said.stdout, said.stderr) == (0, "1\n", "")


@pytest.mark.slow
def test_a_program_whose_loop_ends_without_close_has_written_what_it_sent(cluster: FakeCluster) -> None:
    said = program(UNHELD, cluster.bootstrap, "15000")
    assert (said.returncode, said.stderr) == (0, "")
    assert cluster.log().numbers == list(range(100))


def test_what_nobody_waits_for_and_cannot_be_written_is_told_in_the_log(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(silence: ExitStack) -> None:
        producer = sr.aio.Producer(cluster.bootstrap, deadline_ms=PASSES_MS)
        await producer.send("orders", numbers(0), 0)
        silence.enter_context(cluster.silent())
        sends(producer, 3, first=1)

    with caplog.at_level(logging.ERROR), ExitStack() as silence:
        asyncio.run(main(silence))
        eventually(lambda: caplog.messages, "it is told")
    assert "nobody holds it any more" in caplog.messages[0]
    assert "3 of its last 3 sends are not acknowledged" in caplog.messages[0]

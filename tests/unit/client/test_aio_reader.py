"""What a reader in an event loop promises beyond any other: it blocks no loop, and what is left leaves nothing."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import pyarrow as pa
import pytest

import spark_replication as sr
from spark_replication.client.aio import reader as readers
from spark_replication.client.aio.reader import AHEAD, AHEAD_BYTES, AsyncReader
from spark_replication.client.reading import read_connections
from spark_replication.client.reading.log_batch import LogBatch
from spark_replication.client.reading.read_connections import ReadConnection
from spark_replication.client.reading.reading_together import LOOK_S
from spark_replication.errors import ClientClosed, InvalidRequest, OffsetOutOfRange, UnknownTopicOrPartition
from tests.unit.client.fake_cluster import SCHEMA, FakeCluster
from tests.unit.client.test_reader import numbers, write
from tests.waiting import eventually, eventually_here

#: A read that would last: brokers hold its question for 5 s.
AT_ONCE_S = LOOK_S / 2
#: Of a batch that `write` makes.
BATCH_BYTES = pa.ipc.get_record_batch_size(pa.record_batch([[0, 1, 2]], schema=SCHEMA))


def threads() -> list[str]:
    return sorted(each.name for each in threading.enumerate() if each.name.startswith(("aio", "reads-")))


class Connections:
    """Those that readers make in a test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made = made = list[ReadConnection]()

        class Noted(ReadConnection):
            def __init__(self, *given: Any) -> None:
                super().__init__(*given)
                made.append(self)

        monkeypatch.setattr(read_connections, "ReadConnection", Noted)

    def open(self) -> list[ReadConnection]:
        return [each for each in self.made if each._channel.fileno() != -1]


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> Connections:
    return Connections(monkeypatch)


async def ended() -> None:
    """What read has ended, at once."""
    await eventually_here(lambda: not [name for name in threads() if name != "aio_0"], "its threads end", AT_ONCE_S)


async def full(reader: AsyncReader) -> None:
    (ahead,) = reader._reads
    await eventually_here(lambda: len(ahead._waiting) == AHEAD, "it reads ahead")


async def taken(read: Any) -> list[LogBatch]:
    return [found async for found in read]


def run(cluster: FakeCluster, story: Callable[[AsyncReader], Awaitable[None]], **arguments: Any) -> None:
    async def told() -> None:
        async with sr.aio.Reader(cluster.bootstrap, **arguments) as reader:
            await story(reader)

    asyncio.run(told())
    eventually(lambda: not threads(), "no thread is left")


def test_it_reads_what_any_reader_reads(cluster: FakeCluster) -> None:
    write(cluster, 20)
    with sr.Reader(cluster.bootstrap) as threaded:
        expected = [list(threaded.read("orders", *of)) for of in ((), (0,), (0, 7, 11))]

    async def story(reader: AsyncReader) -> None:
        assert [await taken(reader.read("orders", *of)) for of in ((), (0,), (0, 7, 11))] == expected
        assert (await taken(reader.read("orders", 0, columns=["number"], stop=1)))[0].batch.schema.names == ["number"]
        assert (await reader.topic("orders")).name == "orders"
        assert await reader.topics() == ["orders"]

    run(cluster, story)


def test_its_errors_are_those_of_any_reader(cluster: FakeCluster) -> None:
    async def story(reader: AsyncReader) -> None:
        with pytest.raises(UnknownTopicOrPartition):
            await taken(reader.read("nothing"))
        with pytest.raises(OffsetOutOfRange):
            await taken(reader.read("orders", 0, start=9))
        with pytest.raises(InvalidRequest, match="an offset is of one partition of orders"):
            reader.read("orders", start=9)
        with pytest.raises(TypeError, match="starts"):
            reader.read("orders", starts=9)  # type: ignore[call-arg]
        with pytest.raises(UnknownTopicOrPartition):
            await reader.topic("nothing")

    run(cluster, story)
    with pytest.raises(InvalidRequest, match="no event loop runs here: make a Reader"):
        sr.aio.Reader(cluster.bootstrap)


def test_an_error_comes_after_what_was_read_before(cluster: FakeCluster) -> None:
    write(cluster, 2)

    async def story(reader: AsyncReader) -> None:
        found = []
        with pytest.raises(UnknownTopicOrPartition):  # noqa: PT012
            async for batch in reader.read("orders", 0, follow=True):
                found.append(batch)
                if len(found) == 2:
                    with cluster.changed:
                        del cluster.topics["orders"]
                        cluster.log().leader = None
                        cluster.changed.notify_all()
        assert numbers(found) == list(range(6))

    run(cluster, story, deadline_ms=1_000)


@pytest.mark.parametrize("partition", [None, 0], ids=["all", "one"])
def test_a_read_that_waits_leaves_the_loop_to_others(cluster: FakeCluster, partition: int | None) -> None:
    async def story(reader: AsyncReader) -> None:
        found: list[LogBatch] = []

        async def follow() -> None:
            async for batch in reader.read("orders", partition, follow=True):
                found.append(batch)

        following = asyncio.create_task(follow())
        for count in range(1, 4):
            write(cluster, 1)
            await eventually_here(lambda count=count: len(found) == count, "it comes")  # type: ignore[misc]
        assert numbers(found) == list(range(9))
        following.cancel()
        await ended()

    run(cluster, story)


@pytest.mark.parametrize(("bytes_max", "batches"), [(AHEAD_BYTES, AHEAD), (3 * BATCH_BYTES, 3), (1, 1)])
def test_a_read_is_a_few_batches_ahead_and_no_more(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, bytes_max: int, batches: int
) -> None:
    write(cluster, 200)
    monkeypatch.setattr(readers, "AHEAD_BYTES", bytes_max)

    async def story(reader: AsyncReader) -> None:
        read = reader.read("orders", 0)
        first = await anext(read)
        (ahead,) = reader._reads
        await eventually_here(lambda: len(ahead._waiting) == batches, "it reads ahead")
        assert len(cluster.served) <= 2 * batches + 2, "taken, waiting, in hand, and asked for before that"
        assert numbers([first, *await taken(read)]) == list(range(600))

    run(cluster, story)


@pytest.mark.parametrize("partition", [None, 0], ids=["all", "one"])
@pytest.mark.parametrize("left", ["break", "error", "cancel", "close", "aclose"])
def test_whoever_leaves_a_read_leaves_no_thread_and_no_connection(
    cluster: FakeCluster, connections: Connections, partition: int | None, left: str
) -> None:
    write(cluster, 3)

    async def story(reader: AsyncReader) -> None:
        found: list[LogBatch] = []

        async def follow(read: AsyncGenerator[LogBatch, None]) -> None:
            async for batch in read:
                found.append(batch)
                if len(found) == 3 and left == "break":
                    break
                if len(found) == 3 and left == "error":
                    raise LookupError
                if len(found) == 3 and left == "aclose":
                    await read.aclose()

        following = asyncio.create_task(follow(reader.read("orders", partition, follow=True)))
        await eventually_here(lambda: len(found) == 3, "it reads")
        if left == "cancel":
            following.cancel()
        if left == "close":
            await reader.close()
        await asyncio.wait([following])
        assert following.cancelled() == (left == "cancel")
        if left == "error":
            assert isinstance(following.exception(), LookupError)
        del following  # with the frames that its error has
        await ended()
        assert connections.made
        assert connections.open() == []
        assert numbers(found) == list(range(9))

    run(cluster, story)


def test_a_read_that_is_full_ends_when_it_is_left(cluster: FakeCluster) -> None:
    write(cluster, 200)

    async def story(reader: AsyncReader) -> None:
        async with aclosing(reader.read("orders", 0)) as read:
            await anext(read)
            await full(reader)
        await ended()
        with pytest.raises(StopAsyncIteration):
            await anext(read)

    run(cluster, story)


def test_a_full_read_ends_with_its_reader_and_what_it_has_is_taken(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(cluster, 200)

    async def story(reader: AsyncReader) -> None:
        read = reader.read("orders", 0)
        first = await anext(read)
        await full(reader)
        await reader.close()
        assert threads() in ([], ["aio-closes_0"])
        rest = await taken(read)
        assert AHEAD < 1 + len(rest) <= 2 * AHEAD
        assert numbers([first, *rest]) == list(range(3 + 3 * len(rest)))
        monkeypatch.setattr(readers, "_ReadAhead", None)  # it begins nothing
        with pytest.raises(ClientClosed):
            await taken(reader.read("orders", 0))
        with pytest.raises(ClientClosed):
            await reader.topics()
        await reader.close()

    run(cluster, story)


@pytest.mark.parametrize("topic", ["nothing", "orders"])
def test_a_read_that_looks_for_its_topic_ends_when_it_is_left(cluster: FakeCluster, topic: str) -> None:
    """An unknown topic is looked for for 3 s, one that nobody tells of for as long as the deadline."""

    async def story(reader: AsyncReader) -> None:
        if topic == "orders":
            cluster.hidden = {each for each in cluster.logs if each.partition == 0}
        for partition in (0, None):
            looking = asyncio.create_task(taken(reader.read(topic, partition, follow=True)))
            await eventually_here(lambda: "aio-reads" in threads(), "it has begun")
            cluster.asked_topics.clear()
            await eventually_here(lambda: (topic,) in cluster.asked_topics, "it is looked for")
            looking.cancel()
            await ended()

    run(cluster, story)


def test_one_read_ends_and_others_of_its_reader_go_on(cluster: FakeCluster) -> None:
    write(cluster, 1)

    async def story(reader: AsyncReader) -> None:
        first, second = (reader.read("orders", 0, follow=True) for _ in range(2))
        assert (await anext(first)).base_offset == (await anext(second)).base_offset == 0
        await first.aclose()
        write(cluster, 1)
        assert (await anext(second)).base_offset == 3
        await second.aclose()

    run(cluster, story)


def test_reads_one_after_the_other_share_a_connection(cluster: FakeCluster, connections: Connections) -> None:
    write(cluster, 3)

    async def story(reader: AsyncReader) -> None:
        await taken(reader.read("orders", 0))
        (first,) = connections.open()
        for _ in range(10):
            await taken(reader.read("orders", 0))
        assert connections.open() == [first]

    run(cluster, story)


def test_a_generator_that_nobody_takes_from_begins_nothing(cluster: FakeCluster) -> None:
    async def story(reader: AsyncReader) -> None:
        read = reader.read("orders")
        assert threads() == []
        del read

    run(cluster, story)


def test_a_mistake_in_the_thread_is_raised_where_somebody_waits(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mistaken(*_of: object, **_named: object) -> None:
        raise ZeroDivisionError("a mistake")

    async def story(reader: AsyncReader) -> None:
        monkeypatch.setattr("spark_replication.client.reading.reader.PartitionRead", mistaken)
        with pytest.raises(ZeroDivisionError, match="a mistake"):
            await taken(reader.read("orders", 0))

    run(cluster, story)


PROGRAM = """
import asyncio, sys
import spark_replication as sr

async def follow(read):
    async for found in read:
        print(found.batch.num_rows, flush=True)

async def main():
    async for found in sr.aio.Reader(sys.argv[1]).read("orders", follow=True):
        print(found.batch.num_rows, flush=True)
        break
    reader = sr.aio.Reader(sys.argv[1])
    global read, following
    read = reader.read("orders", 0, follow=True)  # held to the end
    following = asyncio.create_task(follow(read))
    while not following.done() and not await reader.topics():
        pass
    await asyncio.wait([following], timeout=0.5)

asyncio.run(main())
"""


@pytest.mark.slow
def test_a_program_ends_at_once_and_is_warned_of_nothing(cluster: FakeCluster) -> None:
    write(cluster, 1)
    command = [sys.executable, "-W", "always", "-c", PROGRAM, cluster.bootstrap]
    began_s = time.monotonic()
    said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (said.returncode, said.stdout, said.stderr) == (0, "3\n3\n", "")
    assert time.monotonic() - began_s < 5, "it waits for no broker's next answer"

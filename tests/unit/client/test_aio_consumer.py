"""What a consumer in an event loop promises beyond any other: it blocks no loop, and a wait that is given up loses
nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

import spark_replication as sr
from spark_replication.client.aio.consumer import AsyncConsumer
from spark_replication.client.reading.log_batch import LogBatch
from spark_replication.errors import ClientClosed, InvalidRequest
from spark_replication.model import TopicPartition
from tests.unit.client.fake_cluster import FakeCluster
from tests.unit.client.test_reader import numbers, write
from tests.waiting import eventually, eventually_here


def in_a_loop(cluster: FakeCluster, story: Callable[[AsyncConsumer], Awaitable[None]]) -> None:
    async def told() -> None:
        async with sr.aio.Consumer(cluster.bootstrap, ["orders"]) as consumer:
            await story(consumer)

    asyncio.run(told())
    eventually(lambda: not any(each.name.startswith("aio") for each in threading.enumerate()), "its threads end")


def test_batches_come_as_from_any_consumer(cluster: FakeCluster) -> None:
    write(cluster, 3)

    async def story(consumer: AsyncConsumer) -> None:
        found: list[int] = []
        async for batch in consumer:
            found += numbers([batch])
            if len(found) >= 9:
                break
        assert found == list(range(9))
        assert consumer.assignment == [TopicPartition("orders", number) for number in range(3)]
        assert await consumer.poll(0) is None

    in_a_loop(cluster, story)


def test_the_loop_goes_on_while_it_waits(cluster: FakeCluster) -> None:
    async def story(consumer: AsyncConsumer) -> None:
        waiting = asyncio.create_task(consumer.poll(None))
        ticks = 0
        while ticks < 20:
            await asyncio.sleep(0.01)
            ticks += 1
        assert not waiting.done()
        await asyncio.to_thread(write, cluster, 1)
        found = await waiting
        assert found is not None
        assert numbers([found]) == [0, 1, 2]

    in_a_loop(cluster, story)


def test_a_wait_that_was_cancelled_loses_nothing(cluster: FakeCluster) -> None:
    async def story(consumer: AsyncConsumer) -> None:
        given_up = asyncio.create_task(consumer.poll(None))
        await eventually_here(lambda: consumer.assignment, "it reads, and waits for what comes")
        given_up.cancel()
        await asyncio.to_thread(write, cluster, 1)
        taken: list[LogBatch] = []

        async def ask() -> None:
            found = await consumer.poll(10)
            assert found is not None
            taken.append(found)

        await ask()
        assert given_up.cancelled()
        assert numbers(taken) == [0, 1, 2]

    in_a_loop(cluster, story)


def test_a_wait_ends_in_time(cluster: FakeCluster) -> None:
    async def story(consumer: AsyncConsumer) -> None:
        began_s = asyncio.get_running_loop().time()
        assert await consumer.poll(0.2) is None
        assert 0.2 <= asyncio.get_running_loop().time() - began_s < 5

    in_a_loop(cluster, story)


def test_closing_ends_a_wait(cluster: FakeCluster) -> None:
    async def story(consumer: AsyncConsumer) -> None:
        waiting = asyncio.create_task(consumer.poll(None))
        await eventually_here(lambda: bool(consumer.assignment) or not waiting.done(), "it waits")
        await consumer.close()
        with pytest.raises(ClientClosed):
            await waiting
        assert [found async for found in consumer] == []

    in_a_loop(cluster, story)


def test_its_errors_are_those_of_any_consumer(cluster: FakeCluster) -> None:
    async def story(consumer: AsyncConsumer) -> None:
        with pytest.raises(InvalidRequest, match="nothing to commit to"):
            await consumer.commit()
        with pytest.raises(InvalidRequest, match="name them in a list"):
            sr.aio.Consumer(cluster.bootstrap, "orders")

    in_a_loop(cluster, story)

"""An Admin in an event loop has what every Admin has, and waits in threads of its own."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import spark_replication as sr
from spark_replication.client.aio.admin import AsyncAdmin
from spark_replication.client.aio.own_loop import THREADS_MAX
from spark_replication.errors import ClientClosed, InvalidRequest, TopicAlreadyExists, UnknownTopicOrPartition
from tests.unit.client.fake_cluster import SCHEMA, FakeCluster
from tests.waiting import eventually, eventually_here


def public(owner: type) -> dict[str, Callable[..., Any]]:
    """Of it alone, and of what it is made of."""
    return {name: each for name, each in inspect.getmembers(owner, inspect.isfunction) if not name.startswith("_")}


def threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("aio")]


def run(cluster: FakeCluster, story: Callable[[AsyncAdmin], Awaitable[None]], **arguments: Any) -> None:
    async def told() -> None:
        async with sr.aio.Admin(cluster.bootstrap, **arguments) as admin:
            await story(admin)

    asyncio.run(told())
    eventually(lambda: not threads(), "no thread is left")


@pytest.mark.parametrize("name", ["Admin", "Producer", "Reader"])
def test_each_client_has_the_arguments_and_the_methods_of_the_one_for_threads(name: str) -> None:
    threaded, looped = getattr(sr, name), getattr(sr.aio, name)
    assert inspect.signature(looped).parameters == inspect.signature(threaded).parameters
    assert public(looped).keys() == public(threaded).keys()
    for method, of in public(threaded).items():
        found = public(looped)[method]
        assert inspect.signature(found).parameters == inspect.signature(of).parameters, method
        assert inspect.getdoc(found) or not inspect.getdoc(of), method
        assert inspect.iscoroutinefunction(found) == ((name, method) not in {("Producer", "send"), ("Reader", "read")})


def test_a_method_does_what_it_does_for_threads(cluster: FakeCluster) -> None:
    async def story(admin: AsyncAdmin) -> None:
        made = await admin.create_topic("more", SCHEMA, partitions=2)
        assert [topic.name for topic in await admin.describe_topics()] == ["more", "orders"]
        assert await admin.describe_topics(["more"]) == [made]
        with pytest.raises(TopicAlreadyExists):
            await admin.create_topic("more", SCHEMA)
        with pytest.raises(UnknownTopicOrPartition):
            await admin.describe_topics(["nothing"])
        with pytest.raises(TypeError, match="partition"):
            await admin.create_topic("wrong", SCHEMA, partition=2)  # type: ignore[call-arg]

    run(cluster, story)
    with pytest.raises(InvalidRequest, match=r"no event loop runs here: make an? Admin"):
        sr.aio.Admin(cluster.bootstrap)


def test_calls_wait_beside_each_other_in_a_few_threads_and_the_loop_goes_on(cluster: FakeCluster) -> None:
    async def story(admin: AsyncAdmin) -> None:
        await admin.describe_cluster()
        with cluster.changed:  # brokers answer nothing
            asked = [asyncio.ensure_future(admin.describe_topics()) for _ in range(3 * THREADS_MAX)]
            await eventually_here(lambda: len(threads()) == THREADS_MAX, "they are asked")
            assert not any(each.done() for each in asked)
        assert [len(topics) for topics in await asyncio.gather(*asked)] == [1] * 3 * THREADS_MAX

    run(cluster, story)


def test_a_closed_admin_says_so(cluster: FakeCluster) -> None:
    async def story(admin: AsyncAdmin) -> None:
        await admin.close()
        with pytest.raises(ClientClosed):
            await admin.describe_cluster()
        await admin.close()

    run(cluster, story)


def test_an_admin_works_in_its_event_loop_alone(cluster: FakeCluster) -> None:
    async def story(admin: AsyncAdmin) -> None:
        with ThreadPoolExecutor(1) as thread:
            for asked in (admin.describe_cluster(), admin.close()):
                with pytest.raises(InvalidRequest, match="was made in another event loop"):
                    thread.submit(asyncio.run, asked).result(20)
        assert await admin.describe_topics()

    run(cluster, story)


def test_whoever_is_cancelled_leaves_an_admin_that_works(cluster: FakeCluster) -> None:
    async def story(admin: AsyncAdmin) -> None:
        await admin.describe_cluster()
        with cluster.changed, pytest.raises(TimeoutError):
            await asyncio.wait_for(admin.describe_topics(), 0.05)
        assert [topic.name for topic in await admin.describe_topics()] == ["orders"]

    run(cluster, story)

"""A consumer for asyncio: what comes wakes the event loop, and no thread waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from spark_replication.client.aio.own_loop import LoopClient, in_a_thread, with_arguments_of
from spark_replication.client.consuming.consumer import LOOK_S, Consumer
from spark_replication.client.reading.log_batch import LogBatch
from spark_replication.errors import ClientClosed
from spark_replication.model import TopicPartition


class AsyncConsumer(LoopClient[Consumer]):
    """Reads topics together with others, as sr.Consumer does, and takes its arguments. It is made, used and closed in
    one event loop.

    Whoever is cancelled as it waits for a batch loses none: the next to ask gets it."""

    @with_arguments_of(Consumer.__init__)
    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__("Consumer", partial(Consumer, *given, **named))
        self._came = asyncio.Event()
        self._client.call_on_change(lambda: self._loop.post(self._came.set))

    commit = in_a_thread(Consumer.commit)

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that this consumer reads at present."""
        return self._client.assignment

    async def poll(self, timeout_s: float | None = 0.0) -> LogBatch | None:
        """The next batch; None if there is none in time. timeout_s: None to wait as long as it takes."""
        self._loop.require()
        now_s = asyncio.get_running_loop().time
        until_s = None if timeout_s is None else now_s() + timeout_s
        while True:
            self._came.clear()
            if self._client.looks:
                await self._loop.in_a_thread(self._client.look)
            found = self._client.take()
            left_s = LOOK_S if until_s is None else until_s - now_s()
            if found is not None or left_s <= 0:
                return found
            try:
                async with asyncio.timeout(min(LOOK_S, left_s)):
                    await self._came.wait()
            except TimeoutError:
                pass  # its time is over, or it looks for partitions that have come

    def __aiter__(self) -> AsyncIterator[LogBatch]:
        return self

    async def __anext__(self) -> LogBatch:
        """Wait for the next batch. Ends once the consumer is closed."""
        try:
            found = await self.poll(None)
        except ClientClosed:
            raise StopAsyncIteration from None
        assert found is not None, "it has waited"
        return found

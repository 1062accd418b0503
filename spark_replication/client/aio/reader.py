"""A reader for asyncio. Each read has a thread, which reads as every reader does, a few batches ahead."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import closing
from functools import partial
from typing import Any
from weakref import WeakSet

import pyarrow as pa

from spark_replication.client.aio.own_loop import LoopClient, OwnLoop, in_a_thread, with_arguments_of
from spark_replication.client.reading.log_batch import LogBatch
from spark_replication.client.reading.reader import Reader, ReaderApart
from spark_replication.errors import ClientClosed

Batches = Generator[LogBatch, None, None]

# How much of a read waits for whoever takes it: as many batches, or one that is larger. Who takes them takes all.
AHEAD = 64
AHEAD_BYTES = 1 << 20
CLOSE_S = 5.0  # how long threads may take to end: a question to a broker is answered, or given up, before that


class AsyncReader(LoopClient[Reader]):
    """Reads topics, as sr.Reader does, and takes its arguments. It is made, used and closed in one event loop."""

    @with_arguments_of(Reader.__init__)
    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__("Reader", partial(Reader, *given, **named))
        #: Those whose thread runs, or whose generator is there.
        self._reads: WeakSet[_ReadAhead] = WeakSet()

    topic = in_a_thread(Reader.topic)
    topics = in_a_thread(Reader.topics)
    ranges = in_a_thread(Reader.ranges)

    @with_arguments_of(Reader.read)
    def read(self, *given: Any, **named: Any) -> AsyncGenerator[LogBatch, None]:
        """Read batches, with `async for`: arguments, batches and errors are those of sr.Reader.read. A thread of the
        read is at most a few batches ahead.

        The read ends, and its thread with it, when the loop is left, its task is cancelled, or the reader is closed.
        Whoever keeps the generator beyond its loop closes it: `async with contextlib.aclosing(reader.read(…))`.
        """
        self._loop.require()
        reader = ReaderApart(self._client)
        return self._taken(reader, reader.read(*given, **named))

    async def _close(self) -> None:
        """Each loop over a read ends, or raises ClientClosed."""
        reads = list(self._reads)

        def close() -> None:
            for each in reads:
                each.stop()
            self._client.close()
            for each in reads:
                each.join(CLOSE_S)

        await self._loop.close(close)

    async def _taken(self, reader: ReaderApart, batches: Batches) -> AsyncGenerator[LogBatch, None]:
        if self._loop.is_closed:
            raise ClientClosed("this reader is closed: open another")
        ahead = _ReadAhead(self._loop, reader, batches)
        self._reads.add(ahead)
        try:
            while batches_ahead := await ahead.take():
                for found in batches_ahead:
                    yield found
        finally:
            ahead.leave()


class _ReadAhead:
    """The thread of a read, and the batches that wait."""

    def __init__(self, loop: OwnLoop, reader: ReaderApart, batches: Batches) -> None:
        self._loop = loop
        self._reader = reader
        self._batches = batches
        self._came = asyncio.Event()  # for the event loop alone
        self._changed = threading.Condition()  # guards everything below
        self._waiting: list[LogBatch] = []
        self._bytes = 0  # of what waits
        self._is_awaited = False  # whether the event loop is to be told of the next batch
        self._is_left = False  # nobody takes any more
        self._is_over = False  # nothing comes any more, but for this error
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="aio-reads", daemon=True)
        self._thread.start()

    async def take(self) -> list[LogBatch]:
        """All batches that wait, at least one. None of them: all is read. Raises the error of the read, after what had
        come before."""
        while True:
            self._came.clear()
            with self._changed:
                waiting, self._waiting, self._bytes = self._waiting, [], 0
                self._changed.notify()
                if waiting:
                    return waiting
                if self._error is not None:
                    raise self._error
                if self._is_over:
                    return []
                self._is_awaited = True
            await self._came.wait()

    def stop(self) -> None:
        """End the read. What waits may be taken."""
        self._reader.close()

    def leave(self) -> None:
        """End the read, and have its thread end: nobody takes what comes."""
        with self._changed:
            self._is_left = True
            self._waiting = []
            self._changed.notify()
        self.stop()

    def join(self, timeout_s: float) -> None:
        with self._changed:
            self._is_left = True
            self._changed.notify()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            with closing(self._batches):
                for found in self._batches:
                    if not self._put(found):
                        break
        except BaseException as failed:  # noqa: BLE001 (whoever takes meets it)
            error = failed
        with self._changed:
            self._is_over, self._error = True, error
        self._loop.post(self._came.set)

    def _put(self, found: LogBatch) -> bool:
        """Add a batch once there is room. Return False if nobody takes any more."""
        size = pa.ipc.get_record_batch_size(found.batch)
        with self._changed:
            self._changed.wait_for(lambda: self._is_left or not self._waiting or self._has_room(size))
            if self._is_left:
                return False
            self._waiting.append(found)
            self._bytes += size
            awaited, self._is_awaited = self._is_awaited, False
        if awaited:
            self._loop.post(self._came.set)
        return True

    def _has_room(self, size: int) -> bool:
        return len(self._waiting) < AHEAD and self._bytes + size <= AHEAD_BYTES

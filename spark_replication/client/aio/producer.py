"""A producer for asyncio. Batches go the way of every producer: only who waits for room waits otherwise.

A send that need not wait takes no turn. Those that must wait, for a topic to be known or for room in the window of a
partition, take turns in the order in which they came, and no later one overtakes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, SupportsIndex, cast, overload
from weakref import WeakValueDictionary

import pyarrow as pa

from spark_replication.client.aio.own_loop import Answer, LoopClient, OwnLoop, with_arguments_of
from spark_replication.client.finding.deadline import Deadline
from spark_replication.client.producing.lane import CLOSED
from spark_replication.client.producing.producer import Producer, acks_of_parts
from spark_replication.client.producing.rows import Rows
from spark_replication.client.producing.sender import Sender
from spark_replication.client.producing.sends import AskedSend, Parts
from spark_replication.engine.client.sending import Ack
from spark_replication.errors import ClientClosed, ReplicationError

#: A topic and the partition that a send names, which may have to be asked for, or a sender, which may have no room.
_Awaited = tuple[str, int | None] | Sender


class AsyncProducer(LoopClient[Producer]):
    """Writes batches to topics, as sr.Producer does, and takes its arguments. It is made, used and closed in one event
    loop: `async with sr.aio.Producer(bootstrap) as producer`."""

    @with_arguments_of(Producer.__init__)
    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__("Producer", partial(Producer, *given, **named))
        self._sends = self._client.sends
        #: A lock is there as long as somebody waits for it or has it.
        self._turns: WeakValueDictionary[_Awaited, asyncio.Lock] = WeakValueDictionary()
        self._is_closing = False
        #: What waits for its turn.
        self._waiting: set[asyncio.Future[Any]] = set()
        #: What awaits the answers of others.
        self._answers: set[asyncio.Future[Any]] = set()

    @overload
    def send(
        self, topic: str, batch: Rows, partition: SupportsIndex | None = None, *, key: bytes | None = None
    ) -> asyncio.Future[Ack]: ...
    @overload
    def send(self, topic: str, batch: Rows, *, key: str | Sequence[str]) -> asyncio.Future[tuple[Ack, ...]]: ...
    def send(
        self,
        topic: str,
        batch: Rows,
        partition: SupportsIndex | None = None,
        *,
        key: bytes | str | Sequence[str] | None = None,
    ) -> asyncio.Future[Any]:
        """Send rows: arguments, results and errors are those of sr.Producer.send.

        This is no coroutine: the rows are on their way, and what it returns is a future of asyncio, to be awaited now
        or later, or given to asyncio.gather. It needs no create_task, which takes coroutines alone.

        Rows that cannot go yet, since their topic is asked for or the window is full, wait up to the deadline, and the
        event loop goes on. Nothing limits how many wait: whoever sends without end awaits futures. Sends that name the
        same partition are stored in the order of their calls, and so are those to one partition that name none.

        A future that is cancelled does not take its rows back: they may be written, and nobody is told of their Ack.
        """
        self._loop.require()
        if self._is_closing:
            raise ClientClosed(CLOSED)
        asked = self._sends.asked(topic, partition, key)
        turn = self._turn_of((topic, asked.partition))
        if turn is None:
            try:
                parts = self._sends.parts_at_once(asked, batch)
            except ReplicationError as error:
                return self._loop.failed(error)
            if parts is not None:
                return self._handed_over(asked, parts)
            turn = self._turns[topic, asked.partition] = asyncio.Lock()
        return self._later(self._known(turn, asked, batch))

    async def flush(self) -> None:
        """Wait until every batch that was sent before is acknowledged or has failed: its future says which."""
        self._loop.require()
        answers = self._answers.copy()
        await self._all_handed_over()
        unanswered, patience_s = self._sends.unanswered()
        settled = [each.settled() for each in cast("list[_SentRows]", unanswered)]
        if settled or answers:
            _, left = await asyncio.wait({*settled, *answers}, timeout=patience_s)
            self._sends.require_none(sum(each in left for each in settled))

    async def close(self) -> None:
        """Wait for what was sent, up to the deadline. Nothing can be sent after that. In a fork, this does nothing."""
        await super().close()

    async def _close(self) -> None:
        self._is_closing = True
        try:
            await self._all_handed_over()
        finally:
            await super()._close()

    async def _all_handed_over(self) -> None:
        for _ in range(2):  # who waited for a topic may wait for room after that
            if self._waiting:
                await asyncio.wait(self._waiting.copy())

    def _handed_over(self, asked: AskedSend, parts: Parts) -> asyncio.Future[Any]:
        if asked.columns:
            return self._begun(_together([self._part_sent(*part, asked.deadline) for part in parts]), self._answers)
        ((sender, rows),) = parts
        return self._sent(sender, rows, asked.deadline)

    def _part_sent(self, sender: Sender, rows: pa.RecordBatch, deadline: Deadline) -> asyncio.Future[Ack]:
        try:
            return self._sent(sender, rows, deadline)
        except ReplicationError as error:  # other parts are on their way
            return self._loop.failed(error)

    def _sent(self, sender: Sender, rows: pa.RecordBatch, deadline: Deadline) -> asyncio.Future[Ack]:
        expired = sender.expired
        turn = self._turn_of(sender)
        if turn is None:
            sent = _SentRows(self._loop)
            if sender.send_at_once(rows, deadline, sent, expired=expired):
                return sent.answered
            turn = self._turns[sender] = asyncio.Lock()
        return self._later(self._taken(turn, sender, rows, deadline, expired))

    # Who waits

    def _turn_of(self, what: _Awaited) -> asyncio.Lock | None:
        return self._turns.get(what) if self._waiting else None

    def _later(self, handing_over: Coroutine[Any, Any, asyncio.Future[Answer]]) -> asyncio.Future[Answer]:
        waiting = self._begun(handing_over, self._waiting)

        async def answer() -> Answer:
            return await (await waiting)

        answered = self._begun(answer(), self._answers)
        answered.add_done_callback(lambda _answered: waiting.cancel())  # nobody waits, if it was cancelled
        return answered

    def _begun(self, coroutine: Coroutine[Any, Any, Answer], among: set[asyncio.Future[Any]]) -> asyncio.Future[Answer]:
        begun = asyncio.ensure_future(coroutine)
        among.add(begun)
        begun.add_done_callback(among.discard)
        return begun

    async def _known(self, turn: asyncio.Lock, asked: AskedSend, rows: Rows) -> asyncio.Future[Any]:
        """Hand rows over once their topic is known."""
        async with turn:
            parts = self._sends.parts_at_once(asked, rows)  # whoever was before may have asked
            if parts is None:
                parts = await self._loop.in_a_thread(partial(self._sends.parts, asked, rows))
            return self._handed_over(asked, parts)

    async def _taken(
        self, turn: asyncio.Lock, sender: Sender, rows: pa.RecordBatch, deadline: Deadline, expired: int
    ) -> asyncio.Future[Ack]:
        """Hand rows over once there is room."""
        sent = _SentRows(self._loop)
        async with turn:
            while True:
                changed = asyncio.Event()
                told = partial(self._loop.post, changed.set)
                if sender.send_at_once(rows, deadline, sent, expired=expired, changed=told):
                    return sent.answered
                with suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), deadline.remaining_s)


class _SentRows:
    """Takes the outcome from the producer's thread to the event loop. It costs half of what a Future of threads does,
    and the producer's loop takes no part in it."""

    __slots__ = ("_loop", "_outcome", "_settled", "answered")

    def __init__(self, loop: OwnLoop) -> None:
        #: Whoever cancels it is not told of the outcome.
        self.answered: asyncio.Future[Ack] = loop.future()
        self._loop = loop
        self._outcome: Ack | BaseException | None = None
        self._settled: asyncio.Future[None] | None = None

    # See Promise.

    def set_result(self, ack: Ack) -> None:
        self._outcome = ack
        self._loop.post(self._settle)

    def set_exception(self, error: BaseException) -> None:
        self._outcome = error
        self._loop.post(self._settle)

    def done(self) -> bool:
        return self._outcome is not None

    def exception(self) -> BaseException | None:
        return self._outcome if isinstance(self._outcome, BaseException) else None

    # On the event loop

    def settled(self) -> asyncio.Future[None]:
        """Is done once there is an outcome, whether or not somebody waits for it."""
        if self._settled is None:
            self._settled = self._loop.future()
            if self._outcome is not None:
                self._settled.set_result(None)
        return self._settled

    def _settle(self) -> None:
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(None)
        if self.answered.done():
            return
        if isinstance(self._outcome, Ack):
            self.answered.set_result(self._outcome)
        elif self._outcome is not None:
            self.answered.set_exception(self._outcome)


async def _together(futures: Sequence[asyncio.Future[Ack]]) -> tuple[Ack, ...]:
    await asyncio.gather(*futures, return_exceptions=True)
    return acks_of_parts(futures)

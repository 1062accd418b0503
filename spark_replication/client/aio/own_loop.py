"""A client's way from its threads to the event loop in which it was made, and from there to threads."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from spark_replication.client.finding.own_process import OwnProcess
from spark_replication.errors import InvalidRequest

THREADS_MAX = 8  # how many calls of one client wait at once


class Closing(Protocol):
    def close(self) -> None:
        """See Producer, Reader and Admin."""


Client = TypeVar("Client", bound=Closing)
Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


class OwnLoop:
    """The event loop of a client, in the process that made the client."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._process = OwnProcess(what)
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError as error:
            raise InvalidRequest(f"no event loop runs here: make a {what} of sr.aio in a coroutine") from error
        self._threads = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="aio")
        self.is_closed = False
        self._posted: deque[Callable[[], object]] = deque()
        #: Invariant: while it is False, nothing is posted that the event loop will not look at.
        self._is_woken = False

    @property
    def is_of_this_process(self) -> bool:
        return self._process.is_this

    def require(self) -> None:
        """Raise InvalidRequest in another process, and in another event loop."""
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:  # none runs here, or this is a fork
            running = None
        if running is not self._loop:
            self._process.require()
            raise InvalidRequest(
                f"this {self._what} was made in another event loop, and works nowhere else: make one in each"
            )

    def post(self, call: Callable[[], object]) -> None:
        """Have the event loop make this call. For any thread. What is posted before the loop looks wakes it once: a
        broker answers thousands of sends in one frame."""
        self._posted.append(call)
        if not self._is_woken:
            self._is_woken = True
            try:
                self._loop.call_soon_threadsafe(self._call_posted)
            except RuntimeError:  # the loop is closed, and nobody waits in it
                self._is_woken = False
                self._posted.clear()

    def _call_posted(self) -> None:
        self._is_woken = False  # before the look: what is posted after it wakes the loop again
        for _ in range(len(self._posted)):
            self._posted.popleft()()

    def future(self) -> asyncio.Future[Any]:
        return self._loop.create_future()

    def failed(self, error: Exception) -> asyncio.Future[Any]:
        failed = self._loop.create_future()
        failed.set_exception(error)
        return failed

    async def in_a_thread(self, call: Callable[[], Answer]) -> Answer:
        if self.is_closed:
            return call()  # it raises ClientClosed at once, or has nothing to wait for
        return await self._loop.run_in_executor(self._threads, call)

    async def close(self, close: Callable[[], None]) -> None:
        """Make the last call, which ends the waits of all others: so it has a thread to itself."""
        self.is_closed = True
        self._threads.shutdown(wait=False)
        closing = ThreadPoolExecutor(1, thread_name_prefix="aio-closes")
        closed = self._loop.run_in_executor(closing, close)
        closing.shutdown(wait=False)
        await closed


class LoopClient(Generic[Client]):
    """What clients for asyncio have in common: each has another client, and an event loop."""

    def __init__(self, what: str, make: Callable[[], Client]) -> None:
        self._loop = OwnLoop(what)
        self._client = make()

    async def close(self) -> None:
        """End what the client waits for, and its threads. In a fork, this does nothing."""
        if self._loop.is_of_this_process:
            self._loop.require()
            await self._close()

    async def _close(self) -> None:
        await self._loop.close(self._client.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


def in_a_thread(
    method: Callable[Concatenate[Client, Arguments], Answer],
) -> Callable[Concatenate[LoopClient[Client], Arguments], Coroutine[Any, Any, Answer]]:
    """A coroutine with the name, the arguments, the docstring and the result of this method."""

    @wraps(method)
    async def called(self: LoopClient[Client], /, *given: Arguments.args, **named: Arguments.kwargs) -> Answer:
        self._loop.require()
        return await self._loop.in_a_thread(partial(method, self._client, *given, **named))

    return called


def with_arguments_of(
    method: Callable[Concatenate[Any, Arguments], object],
) -> Callable[[Callable[..., Answer]], Callable[Concatenate[Any, Arguments], Answer]]:
    """For a method that takes whatever that one takes: so people, help() and mypy know its arguments."""

    def decorated(function: Any) -> Any:
        returned = inspect.signature(function).return_annotation
        function.__signature__ = inspect.signature(method).replace(return_annotation=returned)
        return function

    return decorated

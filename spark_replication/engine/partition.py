"""A partition's replica, and the only way to it: whoever has it has it alone.

| who                                           | how                       | while somebody else has it      |
| --------------------------------------------- | ------------------------- | ------------------------------- |
| the broker's loop: fetches and their answers  | do, try_do                | the event comes when it is free |
| any other thread, for what may come later     | post: the loop does it    | the event comes when it is free |
| who may wait: a producer's stream, a command  | with partition as replica | waits                           |
| who looks at many: ticks, metrics             | Holds                     | leaves it for the next time     |

So the loop never waits for a partition, whatever its disk does; and what it is to do for one stays in its order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from types import TracebackType
from typing import Protocol

from spark_replication.config import Compression
from spark_replication.core.replica.replica import Following, Leading
from spark_replication.engine.replica_loop import ReplicaLoop
from spark_replication.model import TopicPartition

#: Has the broker's loop do something soon; from any thread.
Post = Callable[[Callable[[], None]], None]

FOR_EVER = -1.0


class Lock(Protocol):
    """As threading.Lock: whoever has it already waits for ever."""

    def acquire(self, blocking: bool = True, timeout: float = FOR_EVER) -> bool: ...  # noqa: FBT001, FBT002
    def release(self) -> None: ...
    def __enter__(self) -> bool: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


class Turns:
    """_waiting: what the loop is to do as soon as the turn is free, in order. Only the loop takes from it."""

    def __init__(self, lock: Lock, post: Post) -> None:
        self._lock = lock
        self._post_to_loop = post
        self._waiting: deque[Callable[[], None]] = deque()

    def post(self, event: Callable[[], None]) -> None:
        self._post_to_loop(partial(self.do, event))

    def do(self, event: Callable[[], None]) -> None:
        """By the loop: now, or later."""
        self._waiting.append(event)
        self._go_on()

    def try_do(self, event: Callable[[], None]) -> bool:
        """By the loop: now, or not at all."""
        if self._waiting or not self._lock.acquire(blocking=False):
            return False
        try:
            event()
        finally:
            self._lock.release()
        self._go_on()
        return True

    def take(self, timeout_s: float) -> bool:
        return self._lock.acquire(timeout=timeout_s)

    def give_back(self) -> None:
        self._lock.release()
        # The loop adds to what waits before it looks whether the turn is free: one of the two sees the other.
        if self._waiting:
            self._post_to_loop(self._go_on)

    def _go_on(self) -> None:
        while self._waiting and self._lock.acquire(blocking=False):
            try:
                self._waiting.popleft()()
            finally:
                self._lock.release()


class Partition:
    """unguarded: for who is alone: tests, and the simulator's judges."""

    def __init__(self, replica: ReplicaLoop, turns: Turns) -> None:
        self.topic_partition: TopicPartition = replica.partition
        self.topic_id = replica.topic_id
        self.unguarded = replica
        self._turns = turns

    # What is true at some moment, without having it: frozen values, and what they say.

    @property
    def part(self) -> Leading | Following | None:
        return self.unguarded.part

    @property
    def leads(self) -> bool:
        return self.unguarded.leads

    @property
    def order(self) -> tuple[int, int]:
        return self.unguarded.order

    @property
    def waits_for_time(self) -> bool:
        return self.unguarded.waits_for_time

    @property
    def compression(self) -> Compression:
        return self.unguarded.compression

    # Having it.

    def do(self, event: Callable[[ReplicaLoop], None]) -> None:
        self._turns.do(partial(event, self.unguarded))

    def try_do(self, event: Callable[[ReplicaLoop], None]) -> bool:
        return self._turns.try_do(partial(event, self.unguarded))

    def post(self, event: Callable[[ReplicaLoop], None]) -> None:
        self._turns.post(partial(event, self.unguarded))

    def take(self, timeout_s: float) -> ReplicaLoop | None:
        """`give_back` is to follow. None: it was not free in time."""
        return self.unguarded if self._turns.take(timeout_s) else None

    def give_back(self) -> None:
        self._turns.give_back()

    def __enter__(self) -> ReplicaLoop:
        self._turns.take(FOR_EVER)
        return self.unguarded

    def __exit__(self, *error: object) -> None:
        self._turns.give_back()


FindPartition = Callable[[TopicPartition], Partition]

#: Within: the replica; None if somebody else has it, since who looks at many may not wait for one.
Holds = Callable[[Partition], AbstractContextManager[ReplicaLoop | None]]


@contextmanager
def waiting(partition: Partition) -> Iterator[ReplicaLoop]:
    """Has it, however long that takes."""
    with partition as replica:
        yield replica

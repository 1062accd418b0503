"""A partition's replica, and the only way to it: one thread has it at a time, alone.

| who                                           | how                       | while another thread has it        |
| --------------------------------------------- | ------------------------- | ---------------------------------- |
| the broker's loop: fetches and their answers  | do, try_do                | the event is done once it is free  |
| any other thread, for what may be done later  | post: the loop does it    | the event is done once it is free  |
| one that may wait: a stream, a command        | with partition as replica | the thread waits                   |
| one that looks at many: ticks, metrics        | Holds                     | the partition is left for later    |

So the loop never waits for a partition, whatever its disk does. Its events for one partition stay in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from types import TracebackType
from typing import Protocol

from spark_replication.config import Compression
from spark_replication.core.replica.replica import Following, Leading
from spark_replication.engine.replica.replica_loop import ReplicaLoop
from spark_replication.errors import ReplicationError
from spark_replication.model import TopicPartition
from spark_replication.ports import DamagedBatch

#: Has the broker's loop make a call soon; from any thread.
Post = Callable[[Callable[[], None]], None]

FOR_EVER = -1.0


HALF_DONE = "a partition was in hand"


def is_half_done(error: BaseException) -> bool:
    """Whether an event has failed by this error with its partition in hand, and nobody expected the error. Nobody knows
    how much of the event was done, so nothing goes on after it: the process ends, and recovers its logs."""
    return HALF_DONE in getattr(error, "__notes__", ())


class Lock(Protocol):
    """Like threading.Lock, it is not reentrant."""

    def acquire(self, blocking: bool = True, timeout: float = FOR_EVER) -> bool: ...  # noqa: FBT001, FBT002
    def release(self) -> None: ...
    def __enter__(self) -> bool: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


class Turns:
    """Who has the partition: the holder of the lock. Events of the loop wait in a queue."""

    def __init__(self, lock: Lock, post: Post) -> None:
        self._lock = lock
        self._post_to_loop = post
        #: Events for the loop to do once the lock is free, in order: few, or none. Only the loop adds and takes.
        self._waiting: list[Callable[[], None]] = []

    def post(self, event: Callable[[], None]) -> None:
        self._post_to_loop(partial(self.do, event))

    def do(self, event: Callable[[], None]) -> None:
        """On the loop: does the event now, or once the lock is free."""
        if not self._waiting and self._lock.acquire(blocking=False):  # as nearly always
            self._do_now(event)
        else:
            self._waiting.append(event)
        if self._waiting:
            self._go_on()

    def try_do(self, event: Callable[[], None]) -> bool:
        """On the loop: does the event now, or not at all."""
        if self._waiting or not self._lock.acquire(blocking=False):
            return False
        self._do_now(event)
        self._go_on()
        return True

    def take(self, timeout_s: float) -> bool:
        return self._lock.acquire(timeout=timeout_s)

    def give_back(self) -> None:
        self._lock.release()
        # The loop adds an event before it tries the lock, and this thread releases before it looks: one sees the other.
        if self._waiting:
            self._post_to_loop(self._go_on)

    def _go_on(self) -> None:
        while self._waiting and self._lock.acquire(blocking=False):
            self._do_now(self._waiting.pop(0))

    def _do_now(self, event: Callable[[], None]) -> None:
        try:
            event()
        except (OSError, ReplicationError):
            raise  # the world's: whoever has the event refuses it
        except Exception as error:
            error.add_note(HALF_DONE)
            raise
        finally:
            self._lock.release()


class Partition:
    def __init__(self, replica: ReplicaLoop, turns: Turns) -> None:
        self.topic_partition: TopicPartition = replica.partition
        self.topic_id = replica.topic_id
        #: For callers without other threads: tests, and the simulator's judges.
        self.unguarded = replica
        self._turns = turns

    # What may be read without having the partition: frozen values, true at some moment.

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
    def damaged(self) -> tuple[DamagedBatch, ...]:
        return self.unguarded.damage.batches

    @property
    def disk_refuses(self) -> bool:
        return self.unguarded.disk_trouble.is_recent

    @property
    def may_tell(self) -> bool:
        return self.unguarded.may_tell

    @property
    def owes_a_checkpoint(self) -> bool:
        return self.unguarded.owes_a_checkpoint

    @property
    def compression(self) -> Compression:
        return self.unguarded.compression

    # Having the partition.

    def do(self, event: Callable[[ReplicaLoop], None]) -> None:
        self._turns.do(partial(event, self.unguarded))

    def try_do(self, event: Callable[[ReplicaLoop], None]) -> bool:
        return self._turns.try_do(partial(event, self.unguarded))

    def post(self, event: Callable[[ReplicaLoop], None]) -> None:
        self._turns.post(partial(event, self.unguarded))

    def take(self, timeout_s: float) -> ReplicaLoop | None:
        """Take the partition until `give_back`. None: it was not free in time."""
        return self.unguarded if self._turns.take(timeout_s) else None

    def give_back(self) -> None:
        self._turns.give_back()

    def __enter__(self) -> ReplicaLoop:
        self._turns.take(FOR_EVER)
        return self.unguarded

    def __exit__(self, _kind: object, error: object, _traceback: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, (OSError, ReplicationError)):
            error.add_note(HALF_DONE)
        self._turns.give_back()


FindPartition = Callable[[TopicPartition], Partition]

#: Has a partition for the length of a `with`. None if another thread has it: a look at many waits for none of them.
Holds = Callable[[Partition], AbstractContextManager[ReplicaLoop | None]]


@contextmanager
def waiting(partition: Partition) -> Iterator[ReplicaLoop]:
    """A Holds that waits, however long that takes."""
    with partition as replica:
        yield replica

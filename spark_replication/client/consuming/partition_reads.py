"""Reads of partitions that come and go: each has a thread, which waits once ROOM of its batches have not been taken."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Generator
from contextlib import closing
from typing import NamedTuple

from spark_replication.client.reading.log_batch import LogBatch
from spark_replication.errors import ReplicationError
from spark_replication.model import TopicPartition

ROOM = 2


class ReadOf(NamedTuple):
    """A read of a partition under one grant."""

    partition: TopicPartition
    owner_epoch: int


class TakenBatch(NamedTuple):
    read: ReadOf
    topic_id: str
    batch: LogBatch


#: Begins a read: the topic's id, and its batches.
Begin = Callable[[], tuple[str, Generator[LogBatch, None, None]]]


class PartitionReads:
    """Whoever calls has the lock, which is given."""

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        self._reads: dict[TopicPartition, ReadOf] = {}
        self._waiting: deque[TakenBatch] = deque()
        self._room: dict[ReadOf, int] = {}
        #: Why reads have ended. Each stays until its partition is read anew, or not at all.
        self.failed: dict[TopicPartition, ReplicationError] = {}

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition in self._reads

    @property
    def partitions(self) -> Collection[TopicPartition]:
        return self._reads.keys()

    def begin(self, read: ReadOf, begin: Begin) -> None:
        self.end(read.partition)
        self._reads[read.partition] = read
        self._room[read] = ROOM
        threading.Thread(target=self._run, args=(read, begin), name=f"consumes-{read.partition}", daemon=True).start()

    def end(self, partition: TopicPartition) -> None:
        """Nothing of it is taken from here on. Its thread ends with the broker's next answer."""
        read = self._reads.pop(partition, None)
        self.failed.pop(partition, None)
        if read is not None:
            self._room.pop(read, None)
            self._waiting = deque(each for each in self._waiting if each.read != read)
            self._changed.notify_all()

    def end_all(self) -> None:
        for partition in [*self._reads]:
            self.end(partition)

    def take(self) -> TakenBatch | None:
        """The next batch, of those partitions first that have waited longest. Raises the error of a read that has
        failed, once all that came before was taken."""
        if self._waiting:
            taken = self._waiting.popleft()
            self._room[taken.read] += 1
            self._changed.notify_all()
            return taken
        for error in self.failed.values():
            raise error
        return None

    def _run(self, read: ReadOf, begin: Begin) -> None:
        try:
            topic_id, batches = begin()
            with closing(batches):
                for batch in batches:
                    if not self._put(TakenBatch(read, topic_id, batch)):
                        return
        except ReplicationError as error:
            with self._changed:
                if self._reads.get(read.partition) == read:
                    self.failed[read.partition] = error
                    self._changed.notify_all()

    def _put(self, batch: TakenBatch) -> bool:
        """Add a batch once there is room. False: the read has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._room.get(batch.read, 1) > 0)
            if batch.read not in self._room:
                return False
            self._room[batch.read] -= 1
            self._waiting.append(batch)
            self._changed.notify_all()
            return True

"""Partitions whose disk was slow a moment ago: what is written to them next is written by another thread than the
broker's loop, which all partitions share."""

from __future__ import annotations

from spark_replication.model import TopicPartition

SLOW_MS = 50  # a disk that took so long for one write may take as long for the next
SLOW_FOR_MS = 5_000
FAST_AGAIN = 8  # a disk that was fast so many times in a row is slow no longer


class SlowDisks:
    def __init__(self) -> None:
        self._slow_until_ms: dict[TopicPartition, float] = {}
        #: How many writes in a row a slow disk has done fast.
        self._fast: dict[TopicPartition, int] = {}

    @property
    def are_some(self) -> bool:
        return bool(self._slow_until_ms)

    def has(self, partition: TopicPartition, now_ms: float) -> bool:
        return self._slow_until_ms.get(partition, 0.0) > now_ms

    def took(self, partition: TopicPartition, took_ms: float, now_ms: float, *, wrote: bool) -> None:
        """Note how long something took, without the time in which it waited for its turn. What wrote nothing does not
        show that the disk is fast."""
        if took_ms >= SLOW_MS:
            self._slow_until_ms[partition] = now_ms + SLOW_FOR_MS
            self._fast[partition] = 0
        elif wrote and partition in self._fast:
            self._fast[partition] += 1
            if self._fast[partition] == FAST_AGAIN:
                del self._fast[partition], self._slow_until_ms[partition]

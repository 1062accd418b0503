"""Replicas that a disk refused to open, or to lead with (B4).

The controller is told of the refusal and decides who else can have the replica, but it sends this broker the same
command only once. So the broker itself tries again after `disk.retry.ms`. Otherwise a replica that was assigned while
the disk was full would stay missing once there is room, and a leader that is alone in the ISR would never lead.
"""

from __future__ import annotations

from spark_replication.model import TopicPartition


class RefusedReplicas:
    def __init__(self) -> None:
        self._since_ms: dict[TopicPartition, int] = {}

    def __len__(self) -> int:
        return len(self._since_ms)

    def add(self, partition: TopicPartition, now_ms: int) -> None:
        """A replica that waits already keeps its time: commands that come meanwhile do not put it off."""
        self._since_ms.setdefault(partition, now_ms)

    def clear(self) -> None:
        self._since_ms.clear()

    def take(self, now_ms: int, retry_ms: int) -> list[TopicPartition]:
        """Take those to be tried now. One that is refused again is added again."""
        due = sorted(partition for partition, since_ms in self._since_ms.items() if now_ms - since_ms >= retry_ms)
        for partition in due:
            del self._since_ms[partition]
        return due

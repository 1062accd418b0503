"""The fetches of one partition's followers that its leader has not answered yet, one a follower.

A fetch waits at the log end, or, of a replica that is being copied, for its turn (engine.copy_throttle).
Whoever calls has the partition.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from spark_replication.engine.copy_throttle import CopyThrottle
from spark_replication.messages.replication import FetchPartition
from spark_replication.model import BrokerId, Offset, TopicPartition
from spark_replication.ports import FollowerLinks


class FollowerFetches:
    """_held: whose fetches wait for their turn. _told: whose are to be answered already, which is not said again with
    every batch that comes meanwhile."""

    def __init__(self, partition: TopicPartition, links: FollowerLinks, throttle: CopyThrottle) -> None:
        self._partition = partition
        self._links = links
        self._throttle = throttle
        self._fetches: dict[BrokerId, FetchPartition] = {}
        self._held: set[BrokerId] = set()
        self._told: set[BrokerId] = set()

    def came(self, by: BrokerId, fetch: FetchPartition) -> None:
        """In place of the one before, which waits for nothing any longer."""
        self._let_go(by)
        self._told.discard(by)
        self._fetches[by] = fetch

    def ready(self, by: BrokerId) -> None:
        if by not in self._told:
            self._told.add(by)
            self._links.ready(by, self._partition)

    def records_for(self, by: BrokerId, copying: Collection[BrokerId], now_ms: int) -> None:
        """There are some for its fetch, now or when it is its turn."""
        if by not in copying or not self._throttle.limits:
            self.ready(by)
        elif by not in self._held:
            self._held.add(by)
            self._throttle.wait(by, self._partition, now_ms)

    def appended(self, log_end: Offset, copying: Collection[BrokerId], now_ms: int) -> None:
        for by, fetch in self._fetches.items():
            if fetch.offset < log_end:
                self.records_for(by, copying, now_ms)

    def still_copying(self, copying: Collection[BrokerId]) -> None:
        """The others wait for no turn: acknowledgements may wait for them."""
        if self._held:
            for by in sorted(self._held.difference(copying)):
                self._let_go(by)
                self.ready(by)

    def reached(self, high_watermark: Offset) -> None:
        """Who waits at the log end hears of a high watermark that has moved since; who waits for its turn, then."""
        for by, fetch in sorted(self._fetches.items()):
            if fetch.high_watermark < high_watermark and by not in self._held:
                self.ready(by)

    def answer_all(self) -> None:
        self.answer(self._fetches)

    def answer(self, followers: Iterable[BrokerId]) -> None:
        """Those of them that wait."""
        for by in sorted(self._fetches.keys() & followers):
            self._let_go(by)
            self.ready(by)

    def take(self, by: BrokerId) -> tuple[FetchPartition, int | None] | None:
        """The fetch that is to be answered, and how much it may be sent if it had to wait for its turn, and has it.
        `sent` is to follow. None: it has been answered."""
        fetch = self._fetches.pop(by, None)
        if fetch is None:
            return None
        self._told.discard(by)
        allowed = self._throttle.take(by, self._partition) if by in self._held else None
        self._held.discard(by)
        return fetch, allowed

    def sent(self, by: BrokerId, count: int) -> None:
        self._throttle.sent(by, self._partition, count)

    def must_wait(self, by: BrokerId, copying: Collection[BrokerId]) -> bool:
        """Whether a fetch that is taken without its turn gets no records."""
        return by in copying and self._throttle.limits

    def _let_go(self, by: BrokerId) -> None:
        if by in self._held:
            self._held.discard(by)
            self._throttle.take(by, self._partition)
            self._throttle.sent(by, self._partition, 0)

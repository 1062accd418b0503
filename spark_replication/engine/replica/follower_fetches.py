"""The fetches of one partition's followers that its leader has not answered yet, one for each follower.

A fetch waits at the log end. The fetch of a replica that is being added may wait for its turn
(engine.replica.copy_throttle). Whoever calls has the partition.
"""

from __future__ import annotations

from collections.abc import Iterable

from spark_replication.engine.replica.copy_throttle import CopyThrottle
from spark_replication.messages.replication import FetchPartition
from spark_replication.model import BrokerId, Offset, TopicPartition
from spark_replication.ports import FollowerLinks


class FollowerFetches:
    def __init__(self, partition: TopicPartition, links: FollowerLinks, throttle: CopyThrottle) -> None:
        self._partition = partition
        self._links = links
        self._throttle = throttle
        self._fetches: dict[BrokerId, FetchPartition] = {}
        #: Replicas that a throttle may delay.
        self._copying: frozenset[BrokerId] = frozenset()
        #: Followers whose fetch waits for its turn.
        self._held: set[BrokerId] = set()
        #: Followers of whose fetch `links.ready` was told: it is not told again with every batch that comes meanwhile.
        self._told: set[BrokerId] = set()
        #: Whether a fetch has come, or the high watermark has moved, since `reached` was called.
        self.is_news = False

    def came(self, by: BrokerId, fetch: FetchPartition) -> None:
        """Take a fetch in, in place of the follower's earlier one."""
        if by in self._held:
            self._let_go(by)
        self._told.discard(by)
        self._fetches[by] = fetch
        self.is_news = True

    def ready(self, by: BrokerId) -> None:
        if by not in self._told:
            self._told.add(by)
            self._links.ready(by, self._partition)

    def records_for(self, by: BrokerId, now_ms: int) -> None:
        """There are records for its fetch: it is ready, now or when its turn comes."""
        if by not in self._copying or not self._throttle.limits:
            self.ready(by)
        elif by not in self._held:
            self._held.add(by)
            self._throttle.wait(by, self._partition, now_ms)

    def appended(self, log_end: Offset, now_ms: int) -> None:
        for by, fetch in self._fetches.items():
            if fetch.offset < log_end:
                self.records_for(by, now_ms)

    def copying(self, replicas: frozenset[BrokerId]) -> None:
        """A throttle may delay these from here on. Fetches of all others wait for no turn any longer: acknowledgements
        may wait for these followers."""
        self._copying = replicas
        for by in sorted(self._held - replicas):
            self._let_go(by)
            self.ready(by)

    def reached(self, high_watermark: Offset) -> None:
        """Make fetches ready that do not know this high watermark. A fetch that waits for its turn hears of it
        then."""
        self.is_news = False
        for by, fetch in sorted(self._fetches.items()):
            if fetch.high_watermark < high_watermark and by not in self._held:
                self.ready(by)

    def answer_all(self) -> None:
        self.answer(self._fetches)

    def answer(self, followers: Iterable[BrokerId]) -> None:
        """Make the fetches of these followers ready, if they have any."""
        for by in sorted(self._fetches.keys() & followers):
            self._let_go(by)
            self.ready(by)

    def take(self, by: BrokerId) -> tuple[FetchPartition, int | None] | None:
        """Take the fetch that is to be answered, and how many bytes its turn allows, if it had to wait for one. Then
        call `sent`. None if the fetch has been answered."""
        fetch = self._fetches.pop(by, None)
        if fetch is None:
            return None
        self._told.discard(by)
        allowed = self._throttle.take(by, self._partition) if by in self._held else None
        self._held.discard(by)
        return fetch, allowed

    def sent(self, by: BrokerId, count: int) -> None:
        self._throttle.sent(by, self._partition, count)

    def must_wait(self, by: BrokerId) -> bool:
        """Whether a fetch that is answered without a turn gets no records."""
        return by in self._copying and self._throttle.limits

    def _let_go(self, by: BrokerId) -> None:
        if by in self._held:
            self._held.discard(by)
            self._throttle.take(by, self._partition)
            self._throttle.sent(by, self._partition, 0)

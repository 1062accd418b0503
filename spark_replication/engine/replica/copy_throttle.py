"""Whose turn it is when a leader sends to replicas that are being added. core.replica.throttle says how much.

Followers take turns, and each follower's partitions take turns in the order of their fetches. A follower has one grant
at a time, so that a follower that takes nothing holds up nobody else.

One throttle serves all partitions of a broker. Its lock may be taken while a partition is held, never before one.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import msgspec

from spark_replication.core.replica import throttle
from spark_replication.core.replica.throttle import NO_LIMIT, Bucket
from spark_replication.model import BrokerId, TopicPartition
from spark_replication.ports import FollowerLinks

GRANT_MS_MAX = 10_000  # a grant that nothing was sent under for so long ends, and its follower has its next turn


class Grant(msgspec.Struct, frozen=True):
    partition: TopicPartition
    allowed: int
    at_ms: int


class CopyThrottle:
    def __init__(self, links: FollowerLinks, lock: AbstractContextManager[object]) -> None:
        self._links = links
        self._lock = lock
        self._bucket = Bucket()
        self._waiting: dict[BrokerId, dict[TopicPartition, None]] = {}  # only followers with a partition that waits
        self._grants: dict[BrokerId, Grant] = {}

    @property
    def limits(self) -> bool:
        return self._bucket.bytes_per_second != NO_LIMIT

    def configure(self, bytes_per_second: int) -> None:
        """Set the limit from now on. Without a limit nobody waits."""
        with self._lock:
            self._bucket = throttle.limited(self._bucket, bytes_per_second)
            if bytes_per_second == NO_LIMIT:
                waiting, self._waiting = self._waiting, {}
                for follower, partitions in waiting.items():
                    for partition in partitions:
                        self._links.ready(follower, partition)

    def wait(self, follower: BrokerId, partition: TopicPartition, now_ms: int) -> None:
        """Queue a fetch that has something to get: FollowerLinks.ready is called when its turn comes."""
        with self._lock:
            if not self.limits:  # the limit has gone since the caller looked
                self._links.ready(follower, partition)
                return
            self._waiting.setdefault(follower, {})[partition] = None
            self._bucket = throttle.refilled(self._bucket, now_ms)
            self._give_turns()

    def tick(self, now_ms: int) -> None:
        with self._lock:
            if not self._waiting and not self._grants:
                return
            self._bucket = throttle.refilled(self._bucket, now_ms)
            for follower, grant in list(self._grants.items()):
                if now_ms - grant.at_ms >= GRANT_MS_MAX:
                    self._return(follower, grant, 0)
            self._give_turns()

    def take(self, follower: BrokerId, partition: TopicPartition) -> int | None:
        """End the wait. Returns how many bytes the follower may be sent, if this is its turn: then call `sent`."""
        with self._lock:
            waiting = self._waiting.get(follower)
            if waiting is not None:
                waiting.pop(partition, None)
                if not waiting:
                    del self._waiting[follower]
            grant = self._grants.get(follower)
            return grant.allowed if grant is not None and grant.partition == partition else None

    def sent(self, follower: BrokerId, partition: TopicPartition, count: int) -> None:
        """End the turn, in which `count` bytes were sent, and give the next one."""
        with self._lock:
            grant = self._grants.get(follower)
            if grant is not None and grant.partition == partition:
                self._return(follower, grant, count)
                self._give_turns()

    def _return(self, follower: BrokerId, grant: Grant, count: int) -> None:
        self._bucket = throttle.returned(self._bucket, grant.allowed, count)
        del self._grants[follower]

    def _give_turns(self) -> None:
        while self._bucket.may_send:
            follower = next((each for each in self._waiting if each not in self._grants), None)
            if follower is None:
                return
            partitions = self._waiting.pop(follower)
            partition = next(iter(partitions))
            del partitions[partition]
            if partitions:
                self._waiting[follower] = partitions  # behind the others
            self._bucket, allowed = throttle.granted(self._bucket)
            self._grants[follower] = Grant(partition, allowed, self._bucket.at_ms)
            self._links.ready(follower, partition)

"""Who is registered, as a broker knows it: the controller tells it, and it is read in ZooKeeper.

What counts is when it was told, or its reading began: a reading that began earlier may be the older one.
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_replication.core.law.unreadable import Unreadable
from spark_replication.model import BrokerId, Registration

# And whose registration cannot be read.
Registered = tuple[Mapping[BrokerId, Registration], Unreadable]


class RegisteredBrokers:
    """Not thread-safe, but for `known`, which is replaced as a whole."""

    def __init__(self) -> None:
        self.known: Mapping[BrokerId, Registration] = {}
        self._begun = 0
        self._known_from = 0  # the telling, or the beginning of the reading, that it is from

    def told(self, brokers: Mapping[BrokerId, Registration]) -> None:
        self._known_from = self.begin_reading()
        self.known = dict(brokers)

    def told_by_chance(self, brokers: Mapping[BrokerId, Registration]) -> None:
        """It may be old: better than nothing."""
        self.known = self.known or dict(brokers)

    def begin_reading(self) -> int:
        """`read` wants it."""
        self._begun += 1
        return self._begun

    def read(self, began: int, found: Registered) -> None:
        """One whose registration cannot be read is where it was."""
        if began > self._known_from:
            self._known_from = began
            brokers, unreadable = found
            kept = {broker: self.known[broker] for broker in unreadable.brokers if broker in self.known}
            self.known = {**brokers, **kept}

"""Which brokers are registered, as a broker knows it: from the controller's commands, and by reading ZooKeeper.

What counts is when a command came, or when a reading began: a reading that began earlier may be the older one.
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_replication.core.law.unreadable import Unreadable
from spark_replication.model import BrokerId, Registration

# The registrations, and whose cannot be read.
Registered = tuple[Mapping[BrokerId, Registration], Unreadable]


class RegisteredBrokers:
    """Not thread-safe, except for `known`, which is replaced as a whole."""

    def __init__(self) -> None:
        self.known: Mapping[BrokerId, Registration] = {}
        self._begun = 0
        self._known_from = 0  # the number of the command, or of the reading, that `known` is from

    def told(self, brokers: Mapping[BrokerId, Registration]) -> None:
        self._known_from = self.begin_reading()
        self.known = dict(brokers)

    def told_by_chance(self, brokers: Mapping[BrokerId, Registration]) -> None:
        """Take what may be old, but only if nothing is known yet."""
        self.known = self.known or dict(brokers)

    def begin_reading(self) -> int:
        """Return the number for `read`."""
        self._begun += 1
        return self._begun

    def read(self, began: int, found: Registered) -> None:
        """A broker whose registration cannot be read stays as it was known."""
        if began > self._known_from:
            self._known_from = began
            brokers, unreadable = found
            kept = {broker: self.known[broker] for broker in unreadable.brokers if broker in self.known}
            self.known = {**brokers, **kept}

"""Who may be counted on, as a value that every decision is made from."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from spark_replication.model import BrokerEpoch, BrokerId, Registration


class Brokers(msgspec.Struct, frozen=True):
    """Who may be counted on, at one moment.

    live: registered. electable: live and not shutting down (L1). epochs: the present one of each broker that ever
    registered. clean_since: the first epoch of its unbroken chain of clean registrations (I8). refusing: who would be
    electable, had its disk not refused the partition (B4).
    """

    live: frozenset[BrokerId]
    electable: frozenset[BrokerId]
    epochs: Mapping[BrokerId, int]
    clean_since: Mapping[BrokerId, int]
    refusing: frozenset[BrokerId] = frozenset()

    @classmethod
    def of(cls, registered: Mapping[BrokerId, Registration], broker_epochs: Mapping[BrokerId, BrokerEpoch]) -> Brokers:
        return cls(
            live=frozenset(registered),
            electable=frozenset(broker for broker, found in registered.items() if not found.shutting_down),
            epochs={broker: found.epoch for broker, found in broker_epochs.items()},
            clean_since={broker: found.clean_since for broker, found in broker_epochs.items()},
        )

    def void(self, joined: Mapping[BrokerId, int]) -> frozenset[BrokerId]:
        """The members that registered uncleanly after they joined: whatever they had may be gone (I8)."""
        return frozenset(broker for broker, epoch in joined.items() if epoch < self.clean_since.get(broker, 0))

    def without(self, failed: frozenset[BrokerId]) -> Brokers:
        """For a partition whose replicas on these are offline, though the brokers live (B4)."""
        if not failed:
            return self
        return replace(
            self, live=self.live - failed, electable=self.electable - failed, refusing=self.electable & failed
        )

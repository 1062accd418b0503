"""The brokers that may be counted on, as a value that every decision is made from."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from spark_replication.model import BrokerEpoch, BrokerId, Registration


class Brokers(msgspec.Struct, frozen=True):
    """The brokers that may be counted on, at one moment."""

    #: Registered.
    live: frozenset[BrokerId]
    #: Live and not shutting down (L1).
    electable: frozenset[BrokerId]
    #: The present epoch of each broker that ever registered.
    epochs: Mapping[BrokerId, int]
    #: The first epoch of each broker's unbroken chain of clean registrations (I8).
    clean_since: Mapping[BrokerId, int]
    #: Would be electable if its disk had not refused the partition (B4).
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
        """The brokers for a partition whose replicas on `failed` are offline, though those brokers live (B4)."""
        if not failed:
            return self
        return replace(
            self, live=self.live - failed, electable=self.electable - failed, refusing=self.electable & failed
        )

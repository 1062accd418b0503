"""Both sides of a lease: a broker lives for as long as somebody renews its lease, and so ends with its application.

(controller epoch, attempt) orders leases. A later one takes over, and an earlier one orders nothing. This also holds in
the broker's next lives, since the holder is written down in its directory: a guardian that was taken over cannot start
the broker again either.
"""

from __future__ import annotations

import msgspec

from spark_replication.errors import StaleLease
from spark_replication.messages.guarding import BrokerDied, Kept

NEVER = 0  # of a lease that does not end
LOOKS_APART_MS = 2_000  # twice what lies between a broker's looks; beyond it, its process stood still
REFUSALS_BEFORE_REPORT = 2  # a reset connection, and a refused one after it


class Lease(msgspec.Struct, frozen=True, order=True):
    """A later lease takes a broker over, an earlier one is refused."""

    controller_epoch: int
    attempt: int


def renew_s(lease_ms: int, most_s: float) -> float:
    """The time between two renewals: three to a lease, or more."""
    return min(lease_ms / 3_000 or most_s, most_s)


class HeldLease:
    """The lease as its broker holds it.

    Only time in which the process runs counts: if it stands still (SIGSTOP, a paused container), nobody can renew its
    lease, and an end at its first breath would end brokers whose guardians live.
    """

    def __init__(self, holder: Lease, *, lease_ms: int, now_ms: int) -> None:
        #: Whose orders count. It only ever grows.
        self.holder = holder
        #: How long the lease runs after it was renewed.
        self.lease_ms = lease_ms
        self._renewed_ms = self._looked_ms = now_ms

    def take(self, lease: Lease) -> bool:
        """Give the lease to whoever orders anything. Returns whether the holder is a new one, which has to be written
        down before the order is carried out. StaleLease: a later guardian has it."""
        if lease < self.holder:
            raise StaleLease(
                f"the lease of controller epoch {lease.controller_epoch}, attempt {lease.attempt} is over: epoch "
                f"{self.holder.controller_epoch}, attempt {self.holder.attempt} has taken over this broker. Leave it "
                "alone"
            )
        is_new = lease != self.holder
        self.holder = lease
        return is_new

    def renewed(self, lease_ms: int, now_ms: int) -> None:
        """Its holder has renewed it. A renewal is a look as well."""
        self.lease_ms = lease_ms
        self._renewed_ms = self._looked_ms = now_ms

    def left_ms(self, now_ms: int) -> int | None:
        """How long the lease still runs; None if it never ends."""
        self._renewed_ms += max(0, now_ms - self._looked_ms - LOOKS_APART_MS)
        self._looked_ms = now_ms
        return None if self.lease_ms == NEVER else max(0, self._renewed_ms + self.lease_ms - now_ms)


class KeptLeases:
    """The leases that a guardian's task renews over the network, of brokers that no guardian is near.

    It starts no broker: only a guardian on the host that has the directory can."""

    def __init__(self) -> None:
        self._kept: tuple[Kept, ...] = ()
        #: How often each broker that is kept has refused a connection since it last answered.
        self._refusals: dict[Kept, int] = {}

    def keep(self, kept: tuple[Kept, ...]) -> bool:
        """Keep these brokers from the next round on, and no others. Returns whether they are others than before."""
        changed = kept != self._kept
        self._kept = kept
        return changed

    def due(self) -> tuple[Kept, ...]:
        """Begin a round: the brokers whose leases are to be renewed in it."""
        kept = self._kept
        self._refusals = {each: count for each, count in self._refusals.items() if each in kept}
        return kept

    def renewed(self, kept: Kept) -> None:
        self._refusals.pop(kept, None)

    def refused(self, kept: Kept) -> BrokerDied | None:
        """Nobody takes connections at that address. Returns what is to be told to the controller, if it is: once for
        each incarnation that is gone."""
        self._refusals[kept] = self._refusals.get(kept, 0) + 1
        if self._refusals[kept] != REFUSALS_BEFORE_REPORT:
            return None
        return BrokerDied(broker_id=kept.broker_id, incarnation=kept.incarnation)

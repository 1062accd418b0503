"""lease.json: who holds a broker's lease is known to the broker's next lives, too."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_replication.engine.guarding.leases import Lease
from spark_replication.errors import StaleLease
from spark_replication.live.broker.lease import BrokerLease, holder_in


def test_who_orders_holds_the_lease_in_the_next_life_too(tmp_path: Path) -> None:
    assert holder_in(tmp_path) < Lease(0, 0)
    lease = BrokerLease(tmp_path, 2, 5, lease_ms=100, now_ms=0)
    lease.take(2, 6)
    assert holder_in(tmp_path) == Lease(2, 6)
    for late in ((2, 5), (1, 9)):
        with pytest.raises(StaleLease, match="epoch 2, attempt 6 has taken over"):
            lease.take(*late)
        with pytest.raises(StaleLease):
            lease.renew(*late, lease_ms=100, now_ms=50)
        with pytest.raises(StaleLease):
            BrokerLease(tmp_path, *late, lease_ms=100, now_ms=50)
    assert (lease.expired(99), lease.expired(100)) == (False, True), "an order renews nothing"
    lease.renew(3, 0, lease_ms=100, now_ms=60)
    assert (lease.expired(159), lease.expired(160)) == (False, True)
    assert holder_in(tmp_path) == Lease(3, 0)

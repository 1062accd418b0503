"""Who holds a broker's lease, and may order anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_replication.errors import StaleLease
from spark_replication.live.broker.lease import LOOKS_APART_MS, BrokerLease


def test_who_orders_holds_the_lease_and_an_earlier_one_orders_nothing(tmp_path: Path) -> None:
    lease = BrokerLease(tmp_path, 2, 5, lease_ms=100, now_ms=0)
    lease.take(2, 5)
    lease.take(2, 6)
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


def test_while_the_process_stands_still_the_lease_does(tmp_path: Path) -> None:
    """Nobody could renew it meanwhile. What was left of it is left when the process goes on."""
    lease = BrokerLease(tmp_path, 1, 0, lease_ms=10_000, now_ms=0)
    for now_ms in range(0, 4_001, LOOKS_APART_MS):
        assert not lease.expired(now_ms)
    goes_on_ms = 1_000_000
    assert not lease.expired(goes_on_ms)
    left_ms = lease.left_ms(goes_on_ms)
    assert left_ms == 10_000 - 4_000 - LOOKS_APART_MS
    for now_ms in range(goes_on_ms, goes_on_ms + left_ms, LOOKS_APART_MS):
        assert not lease.expired(now_ms)
    assert lease.expired(goes_on_ms + left_ms)
    lease.renew(1, 0, lease_ms=10_000, now_ms=2_000_000)
    assert lease.left_ms(2_000_000) == 10_000, "a renewal is a look as well"

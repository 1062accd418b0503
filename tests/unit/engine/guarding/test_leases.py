"""Who holds a broker's lease and may order anything; when one that is kept is reported."""

from __future__ import annotations

import pytest

from spark_replication.engine.guarding.leases import LOOKS_APART_MS, NEVER, HeldLease, KeptLeases, Lease, renew_s
from spark_replication.errors import StaleLease
from spark_replication.messages.guarding import BrokerDied, Kept


def held(lease_ms: int = 100) -> HeldLease:
    return HeldLease(Lease(2, 5), lease_ms=lease_ms, now_ms=0)


@pytest.mark.parametrize(("lease", "is_new"), [(Lease(2, 5), False), (Lease(2, 6), True), (Lease(3, 0), True)])
def test_a_later_lease_takes_over_and_is_to_be_written_down(lease: Lease, *, is_new: bool) -> None:
    of_broker = held()
    assert of_broker.take(lease) is is_new
    assert of_broker.holder == lease


@pytest.mark.parametrize("lease", [Lease(2, 4), Lease(1, 9)])
def test_an_earlier_lease_orders_nothing(lease: Lease) -> None:
    of_broker = held()
    with pytest.raises(StaleLease, match="epoch 2, attempt 5 has taken over"):
        of_broker.take(lease)
    assert of_broker.holder == Lease(2, 5)


def test_an_order_renews_nothing_and_a_renewal_does() -> None:
    of_broker = held()
    of_broker.take(Lease(3, 0))
    assert of_broker.left_ms(99) == 1
    assert of_broker.left_ms(100) == 0
    of_broker.renewed(50, 100)
    assert (of_broker.lease_ms, of_broker.left_ms(149), of_broker.left_ms(160)) == (50, 1, 0)


def test_a_lease_of_no_length_never_ends() -> None:
    assert held(NEVER).left_ms(1 << 40) is None


def test_while_the_process_stands_still_the_lease_does() -> None:
    """Nobody could renew it meanwhile. What was left of it is left when the process goes on."""
    of_broker = held(10_000)
    for now_ms in range(0, 4_001, LOOKS_APART_MS):
        assert of_broker.left_ms(now_ms) == 10_000 - now_ms
    goes_on_ms = 1_000_000
    left_ms = 10_000 - 4_000 - LOOKS_APART_MS
    assert of_broker.left_ms(goes_on_ms) == left_ms
    for passed_ms in range(0, left_ms, LOOKS_APART_MS):
        assert of_broker.left_ms(goes_on_ms + passed_ms) == left_ms - passed_ms
    assert of_broker.left_ms(goes_on_ms + left_ms) == 0
    of_broker.renewed(10_000, 2_000_000)
    assert of_broker.left_ms(2_000_000) == 10_000, "a renewal is a look as well"


@pytest.mark.parametrize(("lease_ms", "apart_s"), [(600, 0.2), (60_000, 5.0), (NEVER, 5.0)])
def test_a_lease_is_renewed_three_times_in_its_length_or_more(lease_ms: int, apart_s: float) -> None:
    assert renew_s(lease_ms, 5.0) == apart_s


def kept(broker: int, incarnation: str = "a") -> Kept:
    return Kept(broker_id=broker, address=f"h:{broker}", incarnation=incarnation)


DIED = BrokerDied(broker_id=1, incarnation="a")


def test_who_refuses_twice_is_reported_once() -> None:
    leases = KeptLeases()
    leases.keep((kept(1), kept(2)))
    told = [[leases.refused(each) for each in leases.due() if each == kept(1)] for _ in range(4)]
    assert told == [[None], [DIED], [None], [None]]


def test_who_answers_in_between_is_not_reported() -> None:
    leases = KeptLeases()
    leases.keep((kept(1),))
    assert leases.due() == (kept(1),)
    assert leases.refused(kept(1)) is None
    leases.renewed(kept(1))
    assert leases.refused(kept(1)) is None


def test_who_is_kept_no_more_or_anew_has_refused_nothing_yet() -> None:
    leases = KeptLeases()
    assert leases.keep((kept(1),))
    assert not leases.keep((kept(1),))
    assert leases.refused(kept(1)) is None
    assert leases.keep((kept(1, "b"),))
    assert leases.due() == (kept(1, "b"),)
    assert leases.refused(kept(1, "b")) is None
    assert leases.keep((kept(1),))
    assert leases.due() == (kept(1),)
    assert leases.refused(kept(1)) is None

"""T2: every rack once before any twice, leaders spread, live brokers only."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_replication.core.moves.placement import place
from spark_replication.errors import InvalidReplicationFactor
from spark_replication.model import BrokerId, Registration
from tests.unit.core.stories import registration


def on_racks(*racks: str | None) -> dict[BrokerId, Registration]:
    return {broker: registration(broker, rack=rack) for broker, rack in enumerate(racks, 1)}


def spread(counts: Counter[BrokerId], brokers: dict[BrokerId, Registration]) -> int:
    each = [counts[broker] for broker in brokers]
    return max(each) - min(each)


def test_partitions_go_round_the_brokers() -> None:
    assert place(range(3), 2, on_racks(None, None, None)) == {0: (1, 2), 1: (3, 1), 2: (2, 3)}


def test_where_no_rack_is_named_the_host_is_one() -> None:
    brokers = {1: registration(1, host="a"), 2: registration(2, host="a"), 3: registration(3, host="b")}
    assert place([0], 2, brokers) == {0: (1, 3)}


def test_those_that_lead_and_hold_least_so_far_come_first() -> None:
    assert place([4, 5], 2, on_racks(None, None, None), [(1, 2), (1, 3), (2, 1)]) == {4: (3, 2), 5: (3, 1)}


def test_the_others_share_what_a_broker_led() -> None:
    """Where each holds everything, too: else all that a dead broker led would go to one of the others."""
    assert place(range(6), 3, on_racks(None, None, None)) == {
        0: (1, 2, 3),
        1: (2, 1, 3),
        2: (3, 1, 2),
        3: (1, 3, 2),
        4: (2, 3, 1),
        5: (3, 2, 1),
    }


@pytest.mark.parametrize("factor", [-1, 0, 4])
def test_too_few_brokers_are_refused(factor: int) -> None:
    with pytest.raises(InvalidReplicationFactor, match=f"replication factor {factor} needs .* there are 3"):
        place([0], factor, on_racks(None, None, None))


@given(
    racks=st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=6),
    count=st.integers(1, 12),
    data=st.data(),
)
def test_every_rack_is_used_before_any_twice_and_leaders_are_spread(
    racks: list[str | None], count: int, data: st.DataObject
) -> None:
    brokers = on_racks(*racks)
    factor = data.draw(st.integers(1, len(brokers)))
    placed = place(range(count), factor, brokers)

    assert sorted(placed) == list(range(count))
    names = {broker: found.rack or found.host for broker, found in brokers.items()}
    for replicas in placed.values():
        assert len(set(replicas)) == len(replicas) == factor
        assert len({names[replica] for replica in replicas}) == min(factor, len(set(names.values())))
    assert spread(Counter(replicas[0] for replicas in placed.values()), brokers) <= 1


@given(brokers=st.integers(1, 6), count=st.integers(1, 12), data=st.data())
def test_without_racks_replicas_are_spread_too(brokers: int, count: int, data: st.DataObject) -> None:
    known = on_racks(*[None] * brokers)
    placed = place(range(count), data.draw(st.integers(1, brokers)), known)
    assert spread(Counter(replica for replicas in placed.values() for replica in replicas), known) <= 1

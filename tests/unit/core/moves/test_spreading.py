"""A4, T2: topics over chosen brokers, evenly, and with little to copy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_replication.core.moves.spreading import spread
from spark_replication.errors import InvalidReplicaAssignment, InvalidReplicationFactor
from spark_replication.model import BrokerId, TopicPartition
from tests.unit.core.stories import registration

RACKS = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c", 6: "c"}
HOSTS = dict.fromkeys(range(1, 9))


def on(*replicas: tuple[BrokerId, ...]) -> dict[TopicPartition, tuple[BrokerId, ...]]:
    return {TopicPartition("foo", number): each for number, each in enumerate(replicas)}


def spread_over(
    present: Mapping[TopicPartition, tuple[BrokerId, ...]],
    over: tuple[BrokerId, ...],
    racks: Mapping[BrokerId, str | None] = HOSTS,
    bytes_of: Mapping[TopicPartition, int] | None = None,
) -> list[tuple[BrokerId, ...]]:
    brokers = {broker: registration(broker, rack=rack) for broker, rack in racks.items()}
    return list(spread(present, over, brokers, bytes_of or {}).values())


@pytest.mark.parametrize(
    ("present", "over", "racks", "after"),
    [
        # Even already: nothing moves, nobody else leads.
        (on((1, 2), (2, 3), (3, 1)), (1, 2, 3), HOSTS, [(1, 2), (2, 3), (3, 1)]),
        # One more broker takes its share, and not more.
        (on((1, 2), (2, 1), (1, 2), (2, 1)), (1, 2, 3), HOSTS, [(3, 2), (1, 3), (1, 2), (2, 1)]),
        # Who is not named goes; the others stay in their places.
        (on((1, 2), (2, 3), (3, 1)), (2, 3, 4), HOSTS, [(4, 2), (2, 3), (3, 4)]),
        # Two in one rack, while another rack has none.
        (on((1, 2)), (1, 2, 3), RACKS, [(1, 3)]),
        # More replicas than racks: each has one before any has two.
        (on((1, 2, 3)), (1, 2, 3), RACKS, [(1, 2, 3)]),
        (on((1, 2, 3, 4)), (1, 2, 3, 5), RACKS, [(1, 2, 3, 5)]),
        # A rack with one broker takes a replica of each partition, whatever the others hold.
        (on((1, 3), (3, 1), (1, 3)), (1, 3, 4), RACKS, [(4, 1), (3, 1), (1, 3)]),
        # Leaderships are evened out where nothing has to be copied.
        (on((1, 2), (1, 2), (1, 2), (1, 2)), (1, 2), HOSTS, [(2, 1), (2, 1), (1, 2), (1, 2)]),
    ],
)
def test_a_spread_keeps_what_may_stay(
    present: dict[TopicPartition, tuple[BrokerId, ...]],
    over: tuple[BrokerId, ...],
    racks: dict[BrokerId, str | None],
    after: list[tuple[BrokerId, ...]],
) -> None:
    assert spread_over(present, over, racks) == after


def test_of_what_could_go_the_smallest_does_and_what_nobody_knows_stays() -> None:
    present = on((1,), (1,), (1,), (1,))
    sizes = {TopicPartition("foo", 0): 50, TopicPartition("foo", 1): 5, TopicPartition("foo", 2): 40}
    assert spread_over(present, (1, 2), bytes_of=sizes) == [(1,), (2,), (2,), (1,)]


@pytest.mark.parametrize("over", [(1, 9), (1, 2)])
def test_only_brokers_that_live_and_stay_can_be_given(over: tuple[BrokerId, ...]) -> None:
    brokers = {1: registration(1), 2: msgspec.structs.replace(registration(2), shutting_down=True)}
    with pytest.raises(InvalidReplicaAssignment, match=rf"broker {over[1]} is not live.*\[1\] can be given"):
        spread(on((1,)), over, brokers, {})


def test_too_few_brokers_for_the_replicas_are_refused() -> None:
    with pytest.raises(InvalidReplicationFactor, match=r"foo-0 has 2 replicas, and \[1\] are 1 brokers"):
        spread_over(on((1, 2)), (1, 1))


@given(st.data())
def test_any_spread_shares_equally(data: st.DataObject) -> None:
    over = data.draw(st.lists(st.integers(1, 8), min_size=2, max_size=6, unique=True))
    factor = data.draw(st.integers(1, len(over)))
    replicas = st.permutations(range(1, 9)).map(lambda drawn: tuple(drawn[:factor]))
    after = spread_over(on(*data.draw(st.lists(replicas, min_size=1, max_size=12))), tuple(over))
    assert all(set(target) <= set(over) and len(set(target)) == factor for target in after)
    holding = Counter(broker for target in after for broker in target)
    shares = [holding[broker] for broker in over]
    assert max(shares) - min(shares) <= 1, "each host is a rack: nothing is in the way"


@given(st.data())
def test_single_replicas_move_no_more_than_they_must(data: st.DataObject) -> None:
    """What is elsewhere, and what a broker holds above its share, the larger ones going to those that hold most."""
    over = data.draw(st.lists(st.integers(1, 8), min_size=2, max_size=6, unique=True))
    present = on(*((broker,) for broker in data.draw(st.lists(st.integers(1, 8), min_size=1, max_size=20))))
    after = spread_over(present, tuple(over))
    before = Counter(broker for (broker,) in present.values() if broker in over)
    share, larger = divmod(len(present), len(over))
    above = sorted((before[broker] - share for broker in over), reverse=True)
    must_go = sum(max(0, excess - (place < larger)) for place, excess in enumerate(above))
    copied = sum(target != was for target, was in zip(after, present.values(), strict=True))
    assert copied == len(present) - before.total() + must_go


@given(st.data())
def test_any_spread_over_racks_uses_each_once_before_any_twice(data: st.DataObject) -> None:
    over = data.draw(st.lists(st.sampled_from(sorted(RACKS)), min_size=1, max_size=6, unique=True))
    factor = data.draw(st.integers(1, len(over)))
    replicas = st.permutations(sorted(RACKS)).map(lambda drawn: tuple(drawn[:factor]))
    present = on(*data.draw(st.lists(replicas, min_size=1, max_size=8)))
    sizes = Counter(RACKS[broker] for broker in over)
    for target in spread_over(present, tuple(over), RACKS):
        used = Counter(RACKS[broker] for broker in target)
        for rack, size in sizes.items():
            assert used[rack] == size or all(used[other] <= used[rack] + 1 for other in sizes)

"""Who may be counted on (L1, I8, B4)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from spark_replication.core.law.brokers import Brokers
from spark_replication.model import BrokerEpoch, BrokerId
from tests.unit.core.stories import brokers, registration


def test_they_are_what_is_registered_and_what_ever_was() -> None:
    registered = {1: registration(1, epoch=4), 2: replace(registration(2), shutting_down=True)}
    epochs = {
        1: BrokerEpoch(epoch=4, incarnation="a", clean_since=2),
        2: BrokerEpoch(epoch=0, incarnation="b", clean_since=0),
        3: BrokerEpoch(epoch=9, incarnation="c", clean_since=9),
    }
    assert Brokers.of(registered, epochs) == Brokers(
        live=frozenset({1, 2}), electable=frozenset({1}), epochs={1: 4, 2: 0, 3: 9}, clean_since={1: 2, 2: 0, 3: 9}
    )


@pytest.mark.parametrize(
    ("joined", "void"),
    [
        ({}, set()),
        ({1: 4, 2: 5, 3: 6}, {1}),  # all are clean since epoch 5, whether they live or not
        ({9: 0}, set()),  # nothing is known of it
    ],
)
def test_who_registered_uncleanly_since_it_joined_is_void(joined: dict[BrokerId, int], void: set[BrokerId]) -> None:
    clean = dict.fromkeys((1, 2, 3), 5)
    assert brokers(2, epochs=dict.fromkeys(clean, 7), clean_since=clean).void(joined) == void


@pytest.mark.parametrize(
    ("failed", "left"),
    [
        (frozenset[int](), brokers(1, 2, 3, shutting_down=[2])),
        (frozenset({3, 9}), replace(brokers(1, 2, shutting_down=[2]), refusing=frozenset({3}))),
        (frozenset({2}), brokers(1, 3)),  # it shuts down: it could not be elected anyway
    ],
)
def test_where_a_disk_failed_its_broker_is_not_counted_on(failed: frozenset[BrokerId], left: Brokers) -> None:
    assert brokers(1, 2, 3, shutting_down=[2]).without(failed) == left

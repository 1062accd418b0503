"""Which broker each guardian takes: no directory twice, and no orphan left while somebody could guard it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_replication.core.guardianship import FoundDirectory, Sight, assign
from spark_replication.model import BrokerId


def sight(host: str, *, alive: tuple[BrokerId, ...] = (), dead: tuple[BrokerId, ...] = ()) -> Sight:
    found = [FoundDirectory(broker, True) for broker in alive] + [FoundDirectory(broker, False) for broker in dead]
    return Sight(host, tuple(found))


@pytest.mark.parametrize(
    ("sights", "assigned"),
    [
        ({}, {}),
        ({0: sight("a")}, {0: None}),
        ({0: sight("a", alive=(5,), dead=(1,))}, {0: 5}),  # an orphan goes before a restart
        ({0: sight("a", dead=(3, 2))}, {0: 2}),
        ({1: sight("a", alive=(4, 5)), 0: sight("a", alive=(4, 5))}, {0: 4, 1: 5}),
        ({0: sight("a", alive=(4,)), 1: sight("a", alive=(4,))}, {0: 4, 1: None}),
        ({0: sight("a", alive=(4,)), 1: sight("b", dead=(1,))}, {0: 4, 1: 1}),
        # A copied directory: each host has its own, and its broker says whether it may start.
        ({0: sight("a", dead=(1,)), 1: sight("b", dead=(1,))}, {0: 1, 1: 1}),
    ],
)
def test_guardians_take(sights: dict[int, Sight], assigned: dict[int, BrokerId | None]) -> None:
    assert assign(sights) == assigned


HOSTS = st.dictionaries(
    st.sampled_from(["a", "b"]),
    st.dictionaries(st.integers(0, 9), st.booleans(), max_size=5),
    min_size=2,
)


@given(hosts=HOSTS, guardians=st.lists(st.sampled_from(["a", "b"]), max_size=8))
def test_none_is_taken_twice_and_all_live_ones_are_adopted_if_there_are_enough_guardians(
    hosts: dict[str, dict[BrokerId, bool]], guardians: list[str]
) -> None:
    found = {host: tuple(FoundDirectory(*each) for each in directories.items()) for host, directories in hosts.items()}
    assigned = assign({number: Sight(host, found[host]) for number, host in enumerate(guardians)})

    assert list(assigned) == list(range(len(guardians)))
    for host, directories in hosts.items():
        taken = [assigned[number] for number, other in enumerate(guardians) if other == host]
        known = [broker for broker in taken if broker is not None]
        live = {broker for broker, alive in directories.items() if alive}
        assert len(set(known)) == len(known) == min(len(taken), len(directories))
        assert set(known) <= directories.keys()
        assert live <= set(known) or set(known) <= live


@given(
    sights=st.dictionaries(st.integers(0, 5), st.builds(sight, st.just("a"), alive=st.just((1, 2)), dead=st.just(())))
)
def test_the_order_in_which_sights_are_heard_changes_nothing(sights: dict[int, Sight]) -> None:
    assert assign(dict(reversed(sights.items()))) == assign(sights)

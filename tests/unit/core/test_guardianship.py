"""Which broker each guardian takes: no directory twice, and no orphan left while somebody could guard it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_replication.core.guardianship import (
    FoundDirectory,
    Patience,
    Sight,
    assign,
    check_reach,
    guardians_for,
    missing,
    must_gather_again,
    shortages,
)
from spark_replication.errors import InvalidConfig
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


@pytest.mark.parametrize(("brokers", "slots", "guardians"), [(3, 4, 3), (3, 3, 3), (3, 2, 2), (3, 0, 0)])
def test_there_are_as_many_guardians_as_brokers_where_spark_has_slots_for_them(
    brokers: int, slots: int, guardians: int
) -> None:
    assert guardians_for(brokers, slots) == guardians


@pytest.mark.parametrize(
    ("slots", "guardians", "reporting", "again"),
    [
        (4, 3, 3, False),
        (4, 3, 0, False),  # they are starting, or wait for slots that other jobs use
        (2, 2, 2, False),  # fewer than are wanted, and no more can be had
        (3, 2, 2, True),  # an executor has come
        (3, 2, 0, True),
        (2, 3, 0, True),  # an executor went before they started: they would wait for ever
        (2, 3, 2, True),
        (2, 3, 3, False),  # Spark is about to end them, or an executor leaves that runs none of them
    ],
)
def test_guardians_gather_again_when_more_can_be_had_or_so_many_cannot(
    slots: int, guardians: int, reporting: int, again: bool
) -> None:
    assert must_gather_again(brokers=3, slots=slots, guardians=guardians, reporting=reporting) is again


SHORT = "Spark has 2 slots for the guardians of 3 brokers: add executors or cores, and the fleet takes them"
UNGUARDED = "broker 3 serves unguarded: nobody starts it again, and it stops when its lease runs out"


@pytest.mark.parametrize(
    ("slots", "guarded", "registered", "said"),
    [
        (4, {1, 2, 3}, {1, 2, 3}, []),
        (2, {1, 2}, {1, 2}, [SHORT]),
        (2, {1, 2}, {1, 2, 3}, [SHORT, UNGUARDED]),
        (4, {1, 2, 4}, {1, 2, 3, 4}, [UNGUARDED]),  # of an earlier start with more brokers
        (2, {1}, {1, 2, 3}, []),  # they are gathering: who is unguarded is not known yet
        (4, {1, 2}, {1, 2, 3}, []),
    ],
)
def test_what_goes_on_unguarded_is_said(
    slots: int, guarded: set[BrokerId], registered: set[BrokerId], said: list[str]
) -> None:
    assert shortages(brokers=3, slots=slots, guarded=guarded, registered=registered) == said


@pytest.mark.parametrize(
    ("registered", "serving", "failure", "said"),
    [
        ({1, 2, 3}, {1, 2, 3}, "", []),
        ({1, 2, 3, 4}, {1, 2, 3, 4}, "", []),  # of an earlier start with more brokers
        ({1, 2, 3}, {1, 3}, "", ["1 of 3 brokers are not guarded yet"]),  # its guardian has yet to say where it serves
        ({1, 2}, {1, 2, 3}, "", ["1 of 3 brokers are not guarded yet"]),  # it serves, and has yet to register
        ({1, 2}, {3}, "no Python", ["3 of 3 brokers are not guarded yet (no Python)"]),
        (set(), set(), "", ["3 of 3 brokers are not guarded yet"]),
    ],
)
def test_who_is_missing_is_said(
    registered: set[BrokerId], serving: set[BrokerId], failure: str, said: list[str]
) -> None:
    assert missing(brokers=3, registered=registered, serving=serving, failure=failure) == said


@pytest.mark.parametrize(
    ("loopbacks", "knows_clients", "embedded", "refused"),
    [
        (["here", "here"], False, True, None),
        ([], False, True, None),
        (["here", "there"], False, False, "set security.mode"),
        (["there", "there"], False, False, "set security.mode"),  # together, but not with the driver
        (["here", "there"], True, True, "set zookeeper.connect"),
        (["here", "there"], True, False, None),
    ],
)
def test_what_serves_loopback_only_is_no_cluster_of_several_hosts(
    loopbacks: list[str], knows_clients: bool, embedded: bool, refused: str | None
) -> None:
    def check() -> None:
        check_reach(loopbacks, "here", knows_clients=knows_clients, zookeeper_embedded=embedded)

    if refused is None:
        check()
    else:
        with pytest.raises(InvalidConfig, match=refused):
            check()


def test_a_start_is_waited_for_while_it_gets_on() -> None:
    patience = Patience(10, now_s=100)

    def ends(now_s: float, slots: int, guarding: int) -> bool:
        return patience.ends(brokers=3, slots=slots, guarding=guarding, now_s=now_s)

    assert not ends(110, 0, 0)
    assert not ends(115, 1, 0), "the first slot"
    assert not ends(124, 2, 0)
    assert not ends(133, 2, 1), "the first guardian"
    assert not ends(143, 9, 0), "more slots, though the guardian is gone: as much as ever before"
    assert ends(144, 9, 0), "slots that no broker needs are no progress"


def test_a_start_whose_executors_come_and_go_ends() -> None:
    patience = Patience(10, now_s=0)
    found = [patience.ends(brokers=3, slots=now % 2, guarding=0, now_s=now) for now in range(1, 14)]
    assert found == [False] * 11 + [True] * 2

"""Which broker each guardian takes: no directory twice, and no orphan left while somebody could guard it."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_replication.core.guardianship import (
    FoundDirectory,
    Gathered,
    GuardianDuty,
    Patience,
    Placement,
    Sight,
    assign,
    check_reach,
    guardians_for,
    kept_by,
    missing,
    must_step_aside,
    preferred_hosts,
    shortages,
    why_gather_again,
)
from spark_replication.errors import InvalidConfig
from spark_replication.model import BrokerId


def sight(host: str, *, alive: tuple[BrokerId, ...] = (), dead: tuple[BrokerId, ...] = ()) -> Sight:
    found = [FoundDirectory(broker, True) for broker in alive] + [FoundDirectory(broker, False) for broker in dead]
    return Sight(host, tuple(found))


NEW, IDLE = GuardianDuty.NEW_BROKER, GuardianDuty.IDLE


@pytest.mark.parametrize(
    ("sights", "known", "assigned"),
    [
        ({}, (), {}),
        ({0: sight("a")}, (), {0: NEW}),
        ({0: sight("a", alive=(5,), dead=(1,))}, (1, 5), {0: 5}),  # an orphan goes before a restart
        ({0: sight("a", dead=(3, 2))}, (2, 3), {0: 2}),
        ({1: sight("a", alive=(4, 5)), 0: sight("a", alive=(4, 5))}, (), {0: 4, 1: 5}),
        ({0: sight("a", alive=(4,)), 1: sight("a", alive=(4,))}, (4,), {0: 4, 1: NEW}),
        ({0: sight("a", alive=(4,)), 1: sight("b", dead=(1,))}, (), {0: 4, 1: 1}),
        # A copied directory: each host has its own, and its broker says whether it may start.
        ({0: sight("a", dead=(1,)), 1: sight("b", dead=(1,))}, (1,), {0: 1, 1: 1}),
        # A host without a directory, while another that nobody looks at has one.
        ({0: sight("a", alive=(1,)), 1: sight("b"), 2: sight("c", alive=(2,))}, (1, 2, 3), {0: 1, 1: IDLE, 2: 2}),
        ({0: sight("a", alive=(1,)), 1: sight("b"), 2: sight("c")}, (1, 3), {0: 1, 1: NEW, 2: IDLE}),
        # What nobody knows of any more holds nothing: it is made again as seldom as a new one.
        ({0: sight("a", dead=(9,))}, (1, 2, 3), {0: IDLE}),
        ({0: sight("a", dead=(9,)), 1: sight("b", dead=(8,))}, (1, 2), {0: 9, 1: IDLE}),
        ({0: sight("a", alive=(9,))}, (1, 2), {0: 9}),  # but one that lives is adopted
        ({0: sight("a", alive=(9,))}, (1, 2, 3), {0: IDLE}),  # unless it was let go: as many are known as are wanted
        ({0: sight("a", alive=(1, 2, 3)), 1: sight("a", alive=(1, 2, 3))}, (1, 3, 4), {0: 1, 1: 3}),
        ({0: sight("a", dead=(1, 9)), 1: sight("a", dead=(1, 9))}, (9,), {0: 9, 1: 1}),
    ],
)
def test_guardians_take(
    sights: dict[int, Sight], known: tuple[BrokerId, ...], assigned: dict[int, BrokerId | GuardianDuty]
) -> None:
    assert assign(sights, known=known, wanted=3) == assigned


HOSTS = st.dictionaries(
    st.sampled_from(["a", "b"]),
    st.dictionaries(st.integers(0, 9), st.booleans(), max_size=5),
    min_size=2,
)


@given(hosts=HOSTS, guardians=st.lists(st.sampled_from(["a", "b"]), max_size=8), wanted=st.integers(0, 9))
def test_none_is_taken_twice_and_all_live_ones_are_adopted_if_there_are_enough_guardians(
    hosts: dict[str, dict[BrokerId, bool]], guardians: list[str], wanted: int
) -> None:
    found = {host: tuple(FoundDirectory(*each) for each in directories.items()) for host, directories in hosts.items()}
    everything = {broker for directories in hosts.values() for broker in directories}
    sights = {number: Sight(host, found[host]) for number, host in enumerate(guardians)}
    assigned = assign(sights, known=everything, wanted=wanted)

    assert list(assigned) == list(range(len(guardians)))
    for host, directories in hosts.items():
        taken = [assigned[number] for number, other in enumerate(guardians) if other == host]
        ids = [broker for broker in taken if not isinstance(broker, GuardianDuty)]
        live = {broker for broker, alive in directories.items() if alive}
        assert len(set(ids)) == len(ids) == min(len(taken), len(directories))
        assert set(ids) <= directories.keys()
        assert live <= set(ids) or set(ids) <= live
    made = sum(duty is GuardianDuty.NEW_BROKER for duty in assigned.values())
    assert made <= max(0, wanted - len(everything))


@given(
    sights=st.dictionaries(st.integers(0, 5), st.builds(sight, st.just("a"), alive=st.just((1, 2)), dead=st.just(())))
)
def test_the_order_in_which_sights_are_heard_changes_nothing(sights: dict[int, Sight]) -> None:
    assert assign(dict(reversed(sights.items())), known=(1,), wanted=3) == assign(sights, known=(1,), wanted=3)


@pytest.mark.parametrize(
    ("brokers", "slots", "known", "guardians"),
    [
        (3, 4, 0, 3),
        (3, 3, 3, 3),
        (3, 2, 3, 2),
        (3, 0, 3, 0),
        (3, 6, 5, 5),  # of an earlier start with more brokers
        (3, 5, 5, 4),  # but the last slot is for other jobs
        (3, 4, 5, 3),
    ],
)
def test_there_are_as_many_guardians_as_brokers_where_spark_has_slots_for_them(
    brokers: int, slots: int, known: int, guardians: int
) -> None:
    assert guardians_for(brokers, slots, known) == guardians


def placement(slots: str, homes: str = "", looked: str = "") -> Placement:
    """`abb` is a slot on a and two on b; `ac.` are brokers 1 and 2 on a and c, and 3 nobody knows where."""
    return Placement(
        total=len(slots),
        slots=dict(sorted(Counter(slots).items())),
        homes={number: host.strip(".") for number, host in enumerate(homes, 1)},
        looked=frozenset(looked),
    )


@pytest.mark.parametrize(
    ("known", "guardians", "hosts"),
    [
        (placement("abcd"), 3, "abc"),
        (placement("abcd", "bdc"), 3, "bdc"),
        (placement("abcd", "dd"), 3, "dab"),  # one slot, two brokers: the other is kept from elsewhere
        (placement("ddab", "dd"), 3, "dda"),
        (placement("aabb", "a"), 3, "aba"),  # spread, where nothing else decides
        (placement("abcd", "ab.", "abc"), 3, "abd"),  # the lost one may be on d, where nobody has looked
        (placement("abcd", "abx", "abc"), 3, "abd"),  # its host has no executor: its directory may be on another
        (placement("abcd", "ab.", "abcd"), 3, "abc"),
        (placement("ab", "ab"), 3, "ab"),
        (placement(""), 3, ""),
    ],
)
def test_guardians_prefer_the_hosts_of_known_brokers(known: Placement, guardians: int, hosts: str) -> None:
    assert preferred_hosts(known, guardians) == list(hosts)


def gathered(guarded: str, size: int = 3) -> Gathered:
    """`12.`: guardians 0 and 1 have brokers 1 and 2, guardian 2 idles."""
    return Gathered(size=size, guarded={n: None if each == "." else int(each) for n, each in enumerate(guarded)})


@pytest.mark.parametrize(
    ("known", "present", "reason"),
    [
        (placement("aaaa", "aaa"), gathered("123"), ""),
        (placement("aaaa", "aaa"), gathered(""), ""),  # they are starting, or wait for slots that other jobs use
        (placement("aa", "aa"), gathered("12", 2), ""),  # fewer than are wanted, and no more can be had
        (placement("aaa", "aa"), gathered("12", 2), "Spark has 3 slots"),  # an executor has come
        (placement("aaa", "aa"), gathered("", 2), "Spark has 3 slots"),
        (placement("aa", "aa"), gathered(""), "wait for slots"),  # an executor went before they started
        (placement("aa", "aaa"), gathered("12"), "wait for slots"),
        (placement("aa", "aaa"), gathered("123"), ""),  # Spark is about to end them, or another's executor leaves
        # Broker 3 is on c, which has a slot, and its guardian idles on d.
        (placement("abcd", "abc"), gathered("12."), "brokers 3 have no guardian"),
        (placement("abd", "abc", "abd"), gathered("12."), ""),  # c has no executor: it can be kept only
        (placement("aabcd", "abcd"), gathered("124"), "Spark has 5 slots"),  # as many guardians as known brokers
        (placement("abcd", "abcd"), gathered("124"), ""),  # one too many for the slots: none is better than another
        (placement("abb", "aab"), gathered("13."), ""),  # broker 2 shares a's only slot with broker 1
        (placement("abcd", "ab.", "abd"), gathered("12."), "on none of the hosts looked at: c"),
        (placement("abcd", "ab.", "abcd"), gathered("12."), ""),
        (placement("abcd", "...", ""), gathered("12."), "brokers [3] are on none of the hosts looked at: a"),
        (placement("abcd", "..", ""), gathered("12."), "fewer brokers are known than wanted"),
        (placement("abcd", "...", ""), gathered("123"), ""),  # nobody has said yet where they are
        (placement("abcd", "ab", "abd"), gathered("12."), "fewer brokers are known than wanted"),
        (placement("abcd", "ab", "abd"), gathered("129"), ""),  # 9 has yet to register
    ],
)
def test_guardians_gather_again_where_that_covers_more_brokers(
    known: Placement, present: Gathered, reason: str
) -> None:
    found = why_gather_again(known, present, brokers=3)
    assert reason in found
    assert bool(found) is bool(reason)


@pytest.mark.parametrize(
    ("slots", "unchanged_s", "lease_ms", "aside"),
    [
        (0, 21, 60_000, True),
        (0, 20, 60_000, False),
        (1, 99, 60_000, False),
        (0, 9_999, 0, False),  # leases never run out
    ],
)
def test_who_has_had_no_slots_for_long_steps_aside(slots: int, unchanged_s: float, lease_ms: int, aside: bool) -> None:
    assert must_step_aside(slots=slots, unchanged_s=unchanged_s, lease_ms=lease_ms) is aside


def test_unguarded_brokers_are_shared_among_the_guardians() -> None:
    assert kept_by({7, 3, 5}, {2, 0}) == {0: (3, 7), 2: (5,)}
    assert kept_by({7}, set()) == {}
    assert kept_by(set(), {0}) == {0: ()}


SHORT = "Spark has 2 slots for the guardians of 3 brokers: add executors or cores, and the fleet takes them"
UNGUARDED = "broker 3 has no guardian on its host: one elsewhere renews its lease, and nobody starts it again"
DOWN = (
    "broker 3 is down, and no guardian is on a host that has its directory: bring that host back, or move its replicas "
    "to others, and a new broker takes its place"
)


@pytest.mark.parametrize(
    ("slots", "idle", "guarded", "registered", "known", "said"),
    [
        (4, 0, {1, 2, 3}, {1, 2, 3}, {1, 2, 3}, []),
        (2, 0, {1, 2}, {1, 2}, {1, 2}, [SHORT]),
        (2, 0, {1, 2}, {1, 2, 3}, {1, 2, 3}, [SHORT, UNGUARDED]),
        (4, 0, {1, 2, 4}, {1, 2, 3, 4}, {1, 2, 3, 4}, [UNGUARDED]),  # of an earlier start with more brokers
        (2, 0, {1}, {1, 2, 3}, {1, 2, 3}, []),  # they are gathering: who is unguarded is not known yet
        (4, 0, {1, 2}, {1, 2, 3}, {1, 2, 3}, []),
        (4, 1, {1, 2}, {1, 2, 3}, {1, 2, 3}, [UNGUARDED]),  # one idles on another host
        (4, 1, {1, 2}, {1, 2}, {1, 2, 3}, [DOWN]),
        (4, 0, {1, 2, 3}, {1, 2}, {1, 2, 3}, []),  # its guardian says what it waits for
    ],
)
def test_what_goes_on_unguarded_is_said(
    slots: int,
    idle: int,
    guarded: set[BrokerId],
    registered: set[BrokerId],
    known: set[BrokerId],
    said: list[str],
) -> None:
    found = shortages(brokers=3, slots=slots, guarded=guarded, registered=registered, known=known, idle=idle)
    assert found == said


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
    ("loopbacks", "may_leave_loopback", "embedded", "refused"),
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
    loopbacks: list[str], may_leave_loopback: bool, embedded: bool, refused: str | None
) -> None:
    def check() -> None:
        check_reach(loopbacks, "here", may_leave_loopback=may_leave_loopback, zookeeper_embedded=embedded)

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

"""Who is to own what: all of it, once, evenly, with as few moves as that takes, and near where that costs nothing."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_replication.core.groups.sharing import Hosts, Wish, shares
from spark_replication.model import TopicPartition

HOSTS = ("h1", "h2", "h3")
Shares = Mapping[str, frozenset[TopicPartition]]


def of(topic: str, *numbers: int) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic, number) for number in numbers)


def partitions(topic: str, count: int) -> dict[TopicPartition, frozenset[str]]:
    return {TopicPartition(topic, number): frozenset() for number in range(count)}


def wishes(*names: str, topics: tuple[str, ...] = ("a",), owned: Shares | None = None) -> dict[str, Wish]:
    return {name: Wish(topics, f"host of {name}", (owned or {}).get(name, frozenset())) for name in names}


@pytest.mark.parametrize(
    ("names", "count", "sizes"),
    [((), 3, []), (("x",), 3, [3]), (("x", "y"), 3, [1, 2]), (("x", "y", "z"), 2, [0, 1, 1]), (("x", "y"), 0, [0, 0])],
)
def test_each_owns_as_many_or_one_more(names: tuple[str, ...], count: int, sizes: list[int]) -> None:
    assert sorted(map(len, shares(wishes(*names), partitions("a", count)).values())) == sizes


def test_who_comes_gets_what_others_have_too_much_of_and_nothing_else_moves() -> None:
    before = {"x": of("a", 0, 1, 2), "y": of("a", 3, 4, 5)}
    found = shares(wishes("x", "y", "z", owned=before), partitions("a", 6))
    assert [len(found[name]) for name in "xyz"] == [2, 2, 2]
    assert found["x"] < before["x"]
    assert found["y"] < before["y"]


def test_what_somebody_leaves_is_shared_by_those_who_stay_and_nothing_else_moves() -> None:
    before = {"x": of("a", 0, 1), "y": of("a", 2, 3)}
    found = shares(wishes("x", "y", owned=before), partitions("a", 6))
    assert (found["x"] >= before["x"], found["y"] >= before["y"]) == (True, True)
    assert [len(found["x"]), len(found["y"])] == [3, 3]


def test_what_does_not_come_out_even_stays_where_it_is() -> None:
    before = {"y": of("a", 0, 1), "x": of("a", 2)}
    assert shares(wishes("x", "y", owned=before), partitions("a", 3)) == before


def test_a_partition_goes_to_who_is_near() -> None:
    near = {TopicPartition("a", number): frozenset({f"host of {name}"}) for number, name in enumerate("yxyx")}
    assert shares(wishes("x", "y"), near) == {"x": of("a", 1, 3), "y": of("a", 0, 2)}


def test_nobody_gets_more_for_being_near() -> None:
    near = {TopicPartition("a", number): frozenset({"host of x"}) for number in range(4)}
    assert [len(found) for found in shares(wishes("x", "y"), near).values()] == [2, 2]


def test_what_is_near_is_kept_rather() -> None:
    before = {"x": of("a", 0, 1, 2, 3)}
    near = {**partitions("a", 4), TopicPartition("a", 3): frozenset({"host of x"})}
    assert TopicPartition("a", 3) in shares(wishes("x", "y", owned=before), near)["x"]


def test_who_reads_more_topics_gets_less_of_each() -> None:
    """Of what both read, the one that reads another topic alone gets less."""
    both = {**wishes("x", topics=("a", "b")), **wishes("y", topics=("a",))}
    found = shares(both, {**partitions("a", 4), **partitions("b", 4)})
    assert (found["x"], found["y"]) == (of("b", 0, 1, 2, 3), of("a", 0, 1, 2, 3))


def test_a_topic_that_nobody_reads_or_that_is_not_there_is_nobodys() -> None:
    found = shares(wishes("x", topics=("a", "none")), {**partitions("a", 1), **partitions("b", 1)})
    assert found == {"x": of("a", 0)}


def test_what_is_owned_and_does_not_exist_any_longer_is_given_up() -> None:
    assert shares(wishes("x", owned={"x": of("a", 0, 7)}), partitions("a", 1)) == {"x": of("a", 0)}


NAMES = st.lists(st.sampled_from("uvwxyz"), unique=True, min_size=1)


@st.composite
def stories(draw: st.DrawFn) -> tuple[dict[str, Wish], Hosts]:
    """Members of up to three topics, who own anything at present, each partition once."""
    counts = {topic: draw(st.integers(0, 7)) for topic in "abc"}
    there = {
        TopicPartition(topic, number): frozenset(draw(st.sets(st.sampled_from(HOSTS))))
        for topic, count in counts.items()
        for number in range(count)
    }
    names = draw(NAMES)
    owners = {partition: draw(st.sampled_from([*names, ""])) for partition in there}
    found = {}
    for name in names:
        topics = draw(st.sets(st.sampled_from("abc"), min_size=1))
        owned = [partition for partition, owner in owners.items() if owner == name]
        found[name] = Wish(sorted(topics), draw(st.sampled_from(HOSTS)), owned)
    return found, there


@given(stories())
def test_all_that_somebody_reads_has_one_owner_who_reads_it(story: tuple[dict[str, Wish], Hosts]) -> None:
    members, there = story
    found = shares(members, there)
    owned = [partition for share in found.values() for partition in share]
    read = {topic for wish in members.values() for topic in wish.topics}
    assert sorted(owned) == sorted(partition for partition in there if partition.topic in read)
    assert all(partition.topic in members[name].topics for name, share in found.items() for partition in share)


@given(stories())
def test_those_that_read_the_same_own_as_many_or_one_more(story: tuple[dict[str, Wish], Hosts]) -> None:
    members, there = story
    found = shares(members, there)
    for one in members:
        for other in members:
            if members[one].topics == members[other].topics:
                assert abs(len(found[one]) - len(found[other])) <= 1


@given(stories())
def test_once_all_own_what_they_are_to_own_nothing_moves(story: tuple[dict[str, Wish], Hosts]) -> None:
    members, there = story
    found = shares(members, there)
    settled = {name: wish._replace(owned=found[name]) for name, wish in members.items()}
    assert shares(settled, there) == found


@given(NAMES, st.integers(0, 20), st.sampled_from("uvwxyz"))
def test_one_members_coming_or_going_moves_what_must_move(names: list[str], count: int, other: str) -> None:
    there = partitions("a", count)
    before = shares(wishes(*names), there)
    if other in names:
        staying = [name for name in names if name != other]
        after = shares(wishes(*staying, owned=before), there)
        assert all(after[name] >= before[name] for name in staying)
    else:
        after = shares(wishes(*names, other, owned=before), there)
        assert all(after[name] <= before[name] for name in names)
        assert len(after[other]) == count // (len(names) + 1)

"""What a coordinator decides about one group, and what it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from spark_replication.core.groups import deciding
from spark_replication.core.groups.deciding import MEMBERS_MAX, MemberShares
from spark_replication.core.groups.group import (
    Change,
    ConsumerGroup,
    GroupDeleted,
    MemberJoined,
    MemberLeft,
    PartitionsGranted,
    PartitionsReleased,
    Placed,
    Position,
    PositionsCommitted,
    PositionsReset,
)
from spark_replication.errors import FencedMemberEpoch, GroupNotEmpty, InvalidRequest, ReplicationError, UnknownMember
from spark_replication.messages.groups import Commit, Introduction
from spark_replication.model import TopicPartition

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
THERE: dict[TopicPartition, frozenset[str]] = {A0: frozenset(), A1: frozenset()}
X = Introduction(topics=("a",), host="h1", name="x's", session_ms=6_000)
NOW_MS = 77


def group(*changes: Change) -> ConsumerGroup:
    found = ConsumerGroup("etl")
    for change in changes:
        found.apply(change)
    return found


def joined(epoch: int = 1, member: str = "x") -> MemberJoined:
    return MemberJoined(group="etl", epoch=epoch, member=member, introduction=X)


def granted(epoch: int, *partitions: TopicPartition, member: str = "x") -> PartitionsGranted:
    return PartitionsGranted(group="etl", epoch=epoch, member=member, partitions=partitions)


def position(offset: int, owner_epoch: int, sequence: int, committed_ms: int = NOW_MS) -> Position:
    return Position(
        topic_id="id",
        offset=offset,
        last_epoch=3,
        owner_epoch=owner_epoch,
        sequence=sequence,
        committed_ms=committed_ms,
    )


def commit(offset: int, owner_epoch: int, partition: int = 0) -> Commit:
    return Commit(topic="a", partition=partition, topic_id="id", owner_epoch=owner_epoch, offset=offset, last_epoch=3)


def owner(*before: Change) -> ConsumerGroup:
    """x owns a-0 since epoch 2."""
    return group(joined(), granted(2, A0), *before)


def test_who_joins_is_a_member_with_an_epoch_of_its_own() -> None:
    assert deciding.joins(group(), "x", X) == [joined()]
    assert deciding.joins(owner(), "y", X) == [joined(3, "y")]


def test_who_joins_again_owns_nothing_and_its_earlier_epoch_is_over() -> None:
    again = owner()
    again.apply(*deciding.joins(again, "x", X))
    assert not again.members["x"].owned
    with pytest.raises(FencedMemberEpoch, match="has joined group etl again since, at epoch 3"):
        deciding.member_of(again, "x", 1)


def test_a_stranger_is_no_member() -> None:
    with pytest.raises(UnknownMember, match="Join again"):
        deciding.member_of(owner(), "y", 1)


def test_a_group_has_a_limit() -> None:
    full = group(*(joined(number + 1, f"m{number}") for number in range(MEMBERS_MAX)))
    with pytest.raises(InvalidRequest, match="1000 members"):
        deciding.joins(full, "x", X)
    assert deciding.joins(full, "m7", X)  # it is one already


def test_a_spark_query_has_no_members() -> None:
    with pytest.raises(InvalidRequest, match="group spark:etl is a Spark query"):
        deciding.joins(ConsumerGroup("spark:etl"), "x", X)
    assert deciding.joins(ConsumerGroup("spark"), "x", X)


def test_a_member_without_a_name_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="a member has a name"):
        deciding.joins(group(), "", X)


@pytest.mark.parametrize(
    ("held", "heard", "released"),
    [
        ({A0, A1}, 9, ()),
        ({A0}, 9, (A1,)),
        ((), 9, (A0, A1)),
        ((), 3, (A0, A1)),
        ((), 2, (A0,)),  # it has not heard yet that it owns the other
        ((), 1, ()),
    ],
)
def test_what_a_member_was_told_to_own_and_holds_no_longer_is_released(
    held: Sequence[TopicPartition], heard: int, released: tuple[TopicPartition, ...]
) -> None:
    changes = deciding.holds(owner(granted(3, A1)), "x", 1, set(held), heard)
    assert changes == ([PartitionsReleased(group="etl", epoch=4, member="x", partitions=released)] if released else [])


def test_only_a_member_says_what_it_holds() -> None:
    with pytest.raises(UnknownMember):
        deciding.holds(owner(), "y", 1, set(), 9)


def test_what_nobody_owns_is_granted_to_who_is_to_own_it() -> None:
    found = owner(joined(3, "y"))
    assigned = deciding.assignment(found, THERE)
    assert assigned == MemberShares({"x": frozenset({A0}), "y": frozenset({A1})})
    assert deciding.grants(found, assigned) == [granted(4, A1, member="y")]


def test_what_somebody_owns_is_granted_once_that_one_has_released_it() -> None:
    found = owner(granted(3, A1), joined(4, "y"))
    assigned = deciding.assignment(found, THERE)
    moves = next(iter(assigned.targets["y"]))
    assert deciding.grants(found, assigned) == []
    assert assigned.hands_over("x", found.members["x"]) == [moves]
    assert list(assigned.keeps("x", found.members["x"])) == [next(iter({A0, A1} - {moves}))]
    found.apply(PartitionsReleased(group="etl", epoch=5, member="x", partitions=(moves,)))
    assert deciding.grants(found, assigned) == [granted(6, moves, member="y")]


def test_grants_to_several_have_epochs_of_their_own() -> None:
    found = group(joined(1), joined(2, "y"))
    assert deciding.grants(found, deciding.assignment(found, THERE)) == [granted(3, A0), granted(4, A1, member="y")]


def test_a_commit_of_what_is_owned_is_taken() -> None:
    taken = deciding.commits(owner(), "x", 1, 1, [commit(10, 2)], NOW_MS)
    assert taken == ([PositionsCommitted(group="etl", positions=(Placed("a", 0, position(10, 2, 1)),))], ())


@pytest.mark.parametrize("owner_epoch", [1, 3])
def test_a_commit_under_another_grant_changes_nothing(owner_epoch: int) -> None:
    assert deciding.commits(owner(), "x", 1, 1, [commit(10, owner_epoch)], NOW_MS) == ([], (A0,))


def test_of_a_commit_what_is_owned_is_taken_and_the_rest_refused() -> None:
    taken = deciding.commits(owner(), "x", 1, 1, [commit(10, 2), commit(5, 2, partition=1)], NOW_MS)
    assert taken == ([PositionsCommitted(group="etl", positions=(Placed("a", 0, position(10, 2, 1)),))], (A1,))


@pytest.mark.parametrize(("name", "epoch", "error"), [("y", 1, UnknownMember), ("x", 9, FencedMemberEpoch)])
def test_a_commit_of_no_member_changes_nothing(name: str, epoch: int, error: type[ReplicationError]) -> None:
    with pytest.raises(error):
        deciding.commits(owner(), name, epoch, 1, [commit(10, 2)], NOW_MS)


@pytest.mark.parametrize(
    ("known", "sequence", "is_taken"), [((2, 6), 7, True), ((2, 7), 7, False), ((2, 8), 7, False), ((1, 9), 7, True)]
)
def test_a_commit_that_comes_late_is_taken_and_changes_nothing(
    known: tuple[int, int], sequence: int, *, is_taken: bool
) -> None:
    before = PositionsCommitted(group="etl", positions=(Placed("a", 0, position(50, *known)),))
    taken = deciding.commits(owner(before), "x", 1, sequence, [commit(10, 2)], NOW_MS)
    assert (bool(taken.changes), taken.refused) == (is_taken, ())


def test_a_group_has_a_limit_of_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deciding, "POSITIONS_MAX", 1)
    with pytest.raises(InvalidRequest, match="positions: use another group"):
        deciding.commits(owner(granted(3, A1)), "x", 1, 1, [commit(10, 2), commit(10, 3, partition=1)], NOW_MS)


def test_a_person_resets_the_positions_of_a_group_without_members() -> None:
    left = owner(MemberLeft(group="etl", epoch=3, member="x", why="it left"))
    changes = deciding.resets(left, {A0: ("id", 4, 3)}, [A1], NOW_MS)
    assert changes == [
        PositionsReset(group="etl", epoch=4, positions=(Placed("a", 0, position(4, 4, 0)),), dropped=(A1,))
    ]
    left.apply(*changes)
    assert left.positions == {A0: position(4, 4, 0)}


@pytest.mark.parametrize("asked", [lambda found: deciding.resets(found, {}, [], 0), deciding.deletes])
def test_a_group_with_members_is_not_touched(asked: Any) -> None:
    with pytest.raises(GroupNotEmpty, match="x on h1"):
        asked(owner())


def test_a_group_without_members_is_deleted() -> None:
    assert deciding.deletes(group()) == [GroupDeleted(group="etl")]


def test_who_leaves_owns_nothing() -> None:
    found = owner()
    found.apply(*deciding.leaves(found, "x", "it left", 5))
    assert (found.members, found.epoch) == ({}, 3)

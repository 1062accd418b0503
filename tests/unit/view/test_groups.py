"""What a group comes to in a list, and which group comes first."""

from __future__ import annotations

from spark_replication.view.groups import GroupSummary, most_behind_first, summary_of
from tests.unit.view.described_groups import group, member, position


def test_a_group_is_summed_up() -> None:
    etl = group(
        "etl",
        position("bar", 0, 3, 3, committed_ms=90),
        position("foo", 0, 4, 10, committed_ms=70),
        position("foo", 1, None, 5),
        position("foo", 2, 9, None, committed_ms=80),
        members=(member("a"), member("b")),
        state="moving",
    )
    assert summary_of(etl) == GroupSummary(
        group="etl", state="moving", members=2, partitions=4, behind=11, unknown=1, committed_ms=90
    )
    assert summary_of(etl, etl.partitions[2:]) == GroupSummary(
        group="etl", state="moving", members=2, partitions=2, behind=5, unknown=1, committed_ms=80
    )


def test_a_group_that_has_never_committed_says_so() -> None:
    assert summary_of(group("new", position("foo", 0, None, 0))).committed_ms is None
    assert summary_of(group("none")) == GroupSummary(
        group="none", state="empty", members=0, partitions=0, behind=0, unknown=0, committed_ms=None
    )


def test_those_most_behind_come_first_and_then_those_of_which_nobody_knows() -> None:
    groups = (
        group("b", position("foo", 0, 9, 9)),
        group("a", position("foo", 0, 9, 9)),
        group("silent", position("foo", 0, 9, None)),
        group("slow", position("foo", 0, 1, 9)),
        group("slower", position("foo", 0, 0, 9)),
    )
    found = most_behind_first(map(summary_of, groups))
    assert [each.group for each in found] == ["slower", "slow", "silent", "a", "b"]

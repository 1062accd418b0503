"""A group is what the rows of its log say, from any snapshot on."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_replication.core.groups.group import (
    Change,
    ConsumerGroup,
    GroupDeleted,
    Groups,
    MemberLeft,
    PartitionsReleased,
    Placed,
    PositionsCommitted,
    PositionsReset,
    Row,
    SnapshotBegun,
    SnapshotEnded,
)
from spark_replication.decoding import from_json
from tests.unit.core.groups.test_deciding import A0, A1, granted, joined, owner, position

EVERY_ROW: list[Row] = [
    joined(),
    granted(2, A0, A1),
    PartitionsReleased(group="etl", epoch=3, member="x", partitions=(A1,)),
    PositionsCommitted(group="etl", positions=(Placed("a", 0, position(7, 2, 1)),)),
    MemberLeft(group="etl", epoch=4, member="x", why="silent for 6000 ms", left_ms=5),
    PositionsReset(group="etl", epoch=5, positions=(Placed("a", 1, position(3, 5, 0)),), dropped=(A0,)),
    GroupDeleted(group="etl"),
    owner().kept(),
    SnapshotBegun(snapshot="at-9"),
    SnapshotEnded(snapshot="at-9"),
]


def known(groups: Groups) -> dict[str, Any]:
    return {
        name: (group.epoch, group.members, group.positions, group.used_ms) for name, group in groups.by_name.items()
    }


def after(rows: list[Row]) -> Groups:
    groups = Groups()
    for row in rows:
        groups.apply(row)
    return groups


@pytest.mark.parametrize("row", EVERY_ROW, ids=lambda row: type(row).__name__)
def test_a_row_is_json(row: Row) -> None:
    text = msgspec.json.encode(row)
    found: Row = from_json(text, cast(Any, Row))
    assert (found, type(found)) == (row, type(row))


def test_a_group_is_what_its_rows_say() -> None:
    group = after(EVERY_ROW[:4]).by_name["etl"]
    assert (group.epoch, group.members["x"].owned, group.positions) == (3, {A0: 2}, {A0: position(7, 2, 1)})
    assert list(group.owners()) == [(A0, "x")]
    group = after(EVERY_ROW[:6]).by_name["etl"]
    assert (group.epoch, group.members, group.positions) == (5, {}, {A1: position(3, 5, 0)})


def test_a_group_that_was_deleted_is_not_there() -> None:
    assert known(after(EVERY_ROW[:7])) == {}


Kinds = list[tuple[str, str, str]]
KINDS: st.SearchStrategy[Kinds] = st.lists(
    st.tuples(
        st.sampled_from(["joined", "left", "granted", "released", "committed", "deleted"]),
        st.sampled_from(["etl", "alerts"]),
        st.sampled_from(["x", "y"]),
    ),
    max_size=40,
)


def story(kinds: Kinds) -> list[Change]:
    """Changes as a coordinator makes them: of members that are there, with epochs that rise."""
    groups = Groups()
    found: list[Change] = []
    for number, (kind, name, member) in enumerate(kinds):
        group = groups.by_name.get(name) or ConsumerGroup(name)
        epoch = group.epoch + 1
        change: Change
        if kind == "joined":
            change = msgspec.structs.replace(joined(epoch, member), group=name)
        elif kind == "committed":
            change = PositionsCommitted(group=name, positions=(Placed("a", number % 2, position(number, epoch, 0)),))
        elif kind == "deleted" and not group.members and name in groups.by_name:
            change = GroupDeleted(group=name)
        elif member not in group.members:
            continue
        elif kind == "left":
            change = MemberLeft(group=name, epoch=epoch, member=member, why="", left_ms=1_000 - epoch)
        elif kind == "granted":
            change = msgspec.structs.replace(granted(epoch, A0, member=member), group=name)
        else:
            change = PartitionsReleased(group=name, epoch=epoch, member=member, partitions=(A0,))
        groups.apply(change)
        found.append(change)
    return found


@given(KINDS, st.data())
def test_a_log_may_begin_anywhere_before_a_whole_snapshot(
    kinds: list[tuple[str, str, str]], data: st.DataObject
) -> None:
    """The groups of a snapshot are written one after the other, with other changes between them."""
    changes = story(kinds)
    begins = data.draw(st.integers(0, len(changes)))
    rows: list[Row] = list(changes[:begins])
    left = sorted(after(rows).by_name)
    rows.append(SnapshotBegun(snapshot="s"))
    for change in changes[begins:]:
        is_written = data.draw(st.booleans())
        if left and is_written:
            group = after(rows).by_name.get(left.pop())
            rows += [] if group is None else [group.kept()]
        rows.append(change)
    rows += [group.kept() for name in left if (group := after(rows).by_name.get(name)) is not None]
    rows.append(SnapshotEnded(snapshot="s"))
    first = data.draw(st.integers(0, begins))
    assert known(after(rows[first:])) == known(after(list(changes)))

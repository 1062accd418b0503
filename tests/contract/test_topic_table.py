"""ports.TopicTable: one suite for the simulator's table and for those on disk (TB1, TB5)."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_replication.core.tables.table import RowRange, TableVersion
from spark_replication.errors import StorageFailed, TableChanged, WrongCluster
from tests.contract.topic_table_cast import TOPIC_ID, InMemory, OfDelta, TableCast, origin_of


@pytest.fixture(params=["in memory", "on disk"])
def cast(request: pytest.FixtureRequest, tmp_path: Path) -> TableCast:
    return InMemory() if request.param == "in memory" else OfDelta(str(tmp_path / "tables" / "orders"))


def rows(partition: int, start: int, end: int, epoch: int = 0) -> RowRange:
    return RowRange(partition=partition, start=start, end=end, last_epoch=epoch, confirmed_epoch=epoch)


def stored(*ranges: tuple[int, int, int]) -> list[tuple[int, int]]:
    """The rows of (partition, start, end)."""
    return [(partition, offset) for partition, start, end in ranges for offset in range(start, end)]


def commit(cast: TableCast, *ranges: RowRange, on: TableVersion | None = None) -> TableVersion:
    table = cast.handle()
    return table.commit(table.load() if on is None else on, ranges, [cast.upload(ranges)] if ranges else [])


def test_a_table_that_is_not_there_has_nothing(cast: TableCast) -> None:
    assert cast.handle().load() == TableVersion()


def test_a_commit_is_what_the_next_load_tells(cast: TableCast) -> None:
    first = commit(cast, rows(0, 0, 3, epoch=2), rows(4, 7, 9, epoch=1))
    assert (first.ends, first.epochs) == ({0: 3, 4: 9}, {0: 2, 4: 1})
    second = commit(cast, rows(4, 9, 10, epoch=1))
    assert second == cast.handle().load()
    assert (second.ends, second.epochs) == ({0: 3, 4: 10}, {0: 2, 4: 1})
    assert (second.number or 0) > (first.number or 0)
    assert cast.rows() == stored((0, 0, 3), (4, 7, 10))


def test_a_commit_without_files_moves_the_end_all_the_same(cast: TableCast) -> None:
    """Its writer has said that these rows are in the files: nobody else looks."""
    table = cast.handle()
    assert table.commit(table.load(), [rows(0, 0, 3)], []).ends == {0: 3}


def test_of_two_commits_of_one_partition_on_one_version_the_second_is_refused(cast: TableCast) -> None:
    one, other = cast.handle(), cast.handle()
    seen, also_seen = one.load(), other.load()
    stored_first = one.commit(seen, [rows(0, 0, 3)], [cast.upload([rows(0, 0, 3)])])
    with pytest.raises(TableChanged):
        other.commit(also_seen, [rows(0, 0, 2)], [cast.upload([rows(0, 0, 2)])])
    with pytest.raises(TableChanged):
        other.commit(also_seen, [rows(1, 0, 2), rows(0, 0, 3)], [cast.upload([rows(1, 0, 2), rows(0, 0, 3)])])
    assert other.load() == stored_first
    assert cast.rows() == stored((0, 0, 3))


def test_a_refused_writer_may_go_on_from_what_it_loads(cast: TableCast) -> None:
    one, other = cast.handle(), cast.handle()
    before, also_before = one.load(), other.load()
    one.commit(before, [rows(0, 0, 3)], [cast.upload([rows(0, 0, 3)])])
    with pytest.raises(TableChanged):
        other.commit(also_before, [rows(0, 0, 2)], [])
    other.commit(other.load(), [rows(0, 3, 5)], [cast.upload([rows(0, 3, 5)])])
    assert cast.rows() == stored((0, 0, 5))


def test_commits_of_other_partitions_go_on_from_where_they_were(cast: TableCast) -> None:
    one, other = cast.handle(), cast.handle()
    seen, also_seen = one.load(), other.load()
    one.commit(seen, [rows(0, 0, 3)], [cast.upload([rows(0, 0, 3)])])
    both = other.commit(also_seen, [rows(1, 0, 2)], [cast.upload([rows(1, 0, 2)])])
    assert both.ends == {0: 3, 1: 2}
    assert cast.rows() == stored((0, 0, 3), (1, 0, 2))


def test_a_seal_names_an_epoch_and_keeps_the_ends(cast: TableCast) -> None:
    commit(cast, rows(0, 0, 3, epoch=1), rows(1, 0, 1, epoch=1))
    table = cast.handle()
    sealed = table.seal(table.load(), {0: 5, 2: 4})
    assert (sealed.ends, sealed.epochs) == ({0: 3, 1: 1}, {0: 5, 1: 1, 2: 4})
    assert cast.handle().load() == sealed
    assert cast.rows() == stored((0, 0, 3), (1, 0, 1))


def test_a_seal_makes_the_table(cast: TableCast) -> None:
    table = cast.handle()
    sealed = table.seal(table.load(), {3: 0})
    assert (sealed.ends, sealed.epochs) == ({}, {3: 0})
    assert cast.handle().load() == sealed
    assert sealed.number is not None


def test_what_was_read_before_a_seal_is_refused_after_it(cast: TableCast) -> None:
    before = commit(cast, rows(0, 0, 3))
    writer, controller = cast.handle(), cast.handle()
    assert writer.load() == before
    controller.seal(controller.load(), {0: 1})
    with pytest.raises(TableChanged):
        writer.commit(before, [rows(0, 3, 4)], [cast.upload([rows(0, 3, 4)])])
    assert cast.rows() == stored((0, 0, 3))


def test_a_seal_that_has_not_seen_the_last_commit_is_refused(cast: TableCast) -> None:
    before = commit(cast, rows(0, 0, 3))
    writer, controller = cast.handle(), cast.handle()
    assert controller.load() == before
    after = writer.commit(writer.load(), [rows(0, 3, 4)], [cast.upload([rows(0, 3, 4)])])
    with pytest.raises(TableChanged):
        controller.seal(before, {0: 1})
    assert cast.handle().load() == after


def test_of_two_seals_on_one_version_the_second_is_refused(cast: TableCast) -> None:
    before = commit(cast, rows(0, 0, 3))
    one, other = cast.handle(), cast.handle()
    one.seal(one.load(), {0: 1})
    other.load()
    with pytest.raises(TableChanged):
        other.seal(before, {0: 2})
    assert other.load().epochs == {0: 1}


def test_a_seal_of_one_partition_leaves_the_others_to_their_writers(cast: TableCast) -> None:
    before = commit(cast, rows(0, 0, 3))
    writer, controller = cast.handle(), cast.handle()
    writer.load()
    controller.seal(controller.load(), {0: 1})
    after = writer.commit(before, [rows(1, 0, 2)], [cast.upload([rows(1, 0, 2)])])
    assert (after.ends, after.epochs) == ({0: 3, 1: 2}, {0: 1, 1: 0})


@pytest.mark.parametrize(
    "ranges",
    [
        pytest.param((), id="nothing"),
        pytest.param((rows(0, 2, 4, epoch=2),), id="below the end"),
        pytest.param((rows(0, 4, 5, epoch=2),), id="behind the end"),
        pytest.param((rows(0, 3, 4, epoch=1),), id="of an earlier epoch"),
        pytest.param((rows(1, 0, 1), rows(1, 1, 2)), id="one partition twice"),
    ],
)
def test_what_does_not_continue_the_version_is_a_mistake(cast: TableCast, ranges: tuple[RowRange, ...]) -> None:
    before = commit(cast, rows(0, 0, 3, epoch=2))
    with pytest.raises(ValueError, match=r"is no continuation|a commit adds"):
        commit(cast, *ranges)
    assert cast.handle().load() == before


@pytest.mark.parametrize("epochs", [{}, {0: 2}, {0: 1}, {1: 4, 0: 2}])
def test_a_seal_that_does_not_raise_an_epoch_is_a_mistake(cast: TableCast, epochs: dict[int, int]) -> None:
    before = commit(cast, rows(0, 0, 3, epoch=2))
    with pytest.raises(ValueError, match=r"a seal names epochs|is not above"):
        cast.handle().seal(before, epochs)
    assert cast.handle().load() == before


# A topic that goes on with the table of an earlier one (TB7)


def test_a_table_that_is_taken_over_ends_where_it_did_and_is_of_no_earlier_epoch(cast: TableCast) -> None:
    before = commit(cast, rows(0, 3, 5, epoch=2), rows(1, 0, 1, epoch=7))
    file, later = cast.upload([rows(0, 5, 6, epoch=3)]), cast.handle("later")
    taken = later.take_over(origin_of(TOPIC_ID))
    assert (taken.starts, taken.ends, taken.epochs) == (before.starts, before.ends, {0: 3, 1: 8})
    assert (taken.number or 0) > (before.number or 0)
    assert cast.handle("later").load() == taken
    assert cast.handle("later").take_over(origin_of(TOPIC_ID)) == taken, "done again, it does nothing"
    later.commit(taken, [rows(0, 5, 6, epoch=3)], [file])
    assert later.load().ends == {0: 6, 1: 1}


def test_whose_table_was_taken_over_is_refused_whatever_it_asks(cast: TableCast) -> None:
    seen = commit(cast, rows(0, 0, 2))
    earlier, file = cast.handle(), cast.upload([rows(0, 2, 3)])
    taken = cast.handle("later").take_over(origin_of(TOPIC_ID))
    with pytest.raises(WrongCluster):
        earlier.commit(seen, [rows(0, 2, 3)], [file])
    with pytest.raises(WrongCluster):
        earlier.seal(seen, {0: 9})
    with pytest.raises(WrongCluster):
        earlier.load()
    with pytest.raises(WrongCluster):
        cast.handle("another").take_over(origin_of(TOPIC_ID))
    assert cast.handle("later").load() == taken


def test_a_table_may_be_taken_over_from_who_has_taken_it_over(cast: TableCast) -> None:
    commit(cast, rows(0, 0, 2, epoch=4))
    cast.handle("later").take_over(origin_of(TOPIC_ID))
    assert cast.handle("last").take_over(origin_of("later")).epochs == {0: 6}
    with pytest.raises(WrongCluster):
        cast.handle("later").load()


def test_where_there_is_no_table_none_is_taken_over(cast: TableCast) -> None:
    with pytest.raises(StorageFailed):
        cast.handle("later").take_over(origin_of(TOPIC_ID))

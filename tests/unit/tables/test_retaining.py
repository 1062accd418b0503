"""A table gives up its oldest files; what it says of itself stays true."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, TableFeatures

from spark_replication.core.tables.retaining import TableRetention
from spark_replication.core.tables.table import RowRange
from spark_replication.model import TableOrigin
from spark_replication.process.threads import now_ms
from spark_replication.tables import replacing, retaining
from spark_replication.tables.delta_table import DeltaTopicTable, TableOwner
from spark_replication.tables.folder import TableFolder
from spark_replication.tables.joining import join
from spark_replication.tables.replacing import TableFile, files_in
from spark_replication.tables.retaining import retain
from spark_replication.tables.upkeep import TableUpkeep, UpkeepRules
from spark_replication.tables.verifying import faults_of
from tests.unit.tables.table_stories import contents, data_files, files_of, numbers, opened, rows, uploads

OWNER = TableOwner(cluster_id="ours", topic="orders", topic_id="first")
TOPIC = pa.schema([("number", pa.int64())])
DAY_MS = 86_400_000
OLD = TableRetention(ms=DAY_MS)
ALL = TableRetention(ms=0)


@pytest.fixture
def table(tmp_path: Path) -> DeltaTopicTable:
    return DeltaTopicTable(str(tmp_path / "orders"), OWNER, TOPIC, now_ms=now_ms)


def write(table: DeltaTopicTable, *added: RowRange, age_ms: int = 0) -> None:
    """Rows that are as old."""
    stored = [numbers(each, TOPIC)._replace(timestamp_ms=now_ms() - age_ms) for each in added]
    table.commit(table.load(), added, uploads(table, stored))


def retained(table: DeltaTopicTable, retention: TableRetention = OLD) -> int:
    return retain(table.folder, OWNER, retention, lambda: now_ms() + 1)


def joined(table: DeltaTopicTable) -> int:
    return join(table.folder, OWNER, 1 << 20, now_ms, 2)


def offsets(table: DeltaTopicTable) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for row in contents(table):
        found.setdefault(row["_partition"], []).append(row["_offset"])
    return found


def is_right(table: DeltaTopicTable, starts: Mapping[int, int], ends: Mapping[int, int]) -> bool:
    version = table.load()
    return (version.starts, version.ends, faults_of(opened(table), version)) == (starts, ends, [])


def test_the_oldest_rows_go_and_the_table_says_where_it_begins(table: DeltaTopicTable) -> None:
    write(table, rows(0, 0, 3), rows(1, 7, 9), age_ms=3 * DAY_MS)
    write(table, rows(0, 3, 4), age_ms=2 * DAY_MS)
    write(table, rows(0, 4, 6))
    assert is_right(table, {0: 0, 1: 7}, {0: 6, 1: 9})
    before = table.load()
    assert retained(table) == 2
    assert is_right(table, {0: 4, 1: 9}, before.ends)
    assert (table.load().epochs, offsets(table)) == (before.epochs, {0: [4, 5]})
    assert retained(table) == 0, "what is left is young"
    write(table, rows(1, 9, 10))
    assert is_right(table, {0: 4, 1: 9}, {0: 6, 1: 10})


@pytest.mark.parametrize("done", [retained, joined])
def test_what_is_told_to_be_done_is_on_the_disk(
    table: DeltaTopicTable, monkeypatch: pytest.MonkeyPatch, done: Callable[[DeltaTopicTable], int]
) -> None:
    for start in range(2):
        write(table, rows(0, start, start + 1), age_ms=3 * DAY_MS)
    synced = list[int]()
    sync_version = TableFolder.sync_version

    def noted(folder: TableFolder, number: int) -> None:
        sync_version(folder, number)
        synced.append(number)

    monkeypatch.setattr(TableFolder, "sync_version", noted)
    assert done(table) == 2
    assert synced == [table.load().number]


@pytest.mark.parametrize(("done", "is_change"), [(retained, True), (joined, False)])
def test_who_follows_the_tables_changes_hears_of_rows_that_go_and_of_no_others(
    table: DeltaTopicTable, done: Callable[[DeltaTopicTable], int], *, is_change: bool
) -> None:
    for start in range(2):
        write(table, rows(0, start, start + 1), age_ms=3 * DAY_MS)
    assert done(table) == 2
    commit_file = Path(table.folder.uri) / "_delta_log" / f"{table.load().number:020}.json"
    actions = [json.loads(line) for line in commit_file.read_text().splitlines()]
    told = [each[kind]["dataChange"] for each in actions for kind in ("add", "remove") if kind in each]
    assert told == [is_change] * (2 if is_change else 3)


def test_without_limits_nothing_is_looked_at(table: DeltaTopicTable, monkeypatch: pytest.MonkeyPatch) -> None:
    write(table, rows(0, 0, 3), age_ms=9 * DAY_MS)
    monkeypatch.setattr(retaining, "last_version", lambda *_: pytest.fail("nobody asked"))
    assert retained(table, TableRetention()) == 0


def test_where_nothing_is_too_old_no_row_is_looked_at(table: DeltaTopicTable, monkeypatch: pytest.MonkeyPatch) -> None:
    write(table, rows(0, 0, 3))
    monkeypatch.setattr(retaining, "_starts_of", lambda *_: pytest.fail("that may be a look at all rows"))
    assert retained(table) == 0


def test_a_table_that_is_not_there_gives_up_nothing(table: DeltaTopicTable) -> None:
    assert retained(table) == 0


def test_an_old_row_behind_a_young_one_stays(table: DeltaTopicTable) -> None:
    """Producers' clocks differ: times do not rise with offsets."""
    write(table, rows(0, 0, 2))
    write(table, rows(0, 2, 4), age_ms=3 * DAY_MS)
    assert retained(table) == 0
    assert is_right(table, {0: 0}, {0: 4})


def test_the_oldest_files_go_until_there_is_no_more_than_is_kept(table: DeltaTopicTable) -> None:
    for start in range(4):
        write(table, rows(0, start, start + 1), age_ms=DAY_MS - start * 1_000)
    sizes = [Path(table.folder.uri, path).stat().st_size for path in files_of(table)]
    assert retained(table, TableRetention(bytes=sum(sizes[2:]))) == 2
    assert is_right(table, {0: 2}, {0: 4})
    assert retained(table, TableRetention(bytes=sum(sizes[2:]))) == 0


def test_many_files_go_a_few_at_a_time(table: DeltaTopicTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retaining, "FILES_MAX", 2)
    for start in range(3):
        write(table, rows(0, start, start + 1), age_ms=3 * DAY_MS - start * 1_000)
    assert [retained(table), retained(table), retained(table)] == [2, 1, 0]
    assert is_right(table, {0: 3}, {0: 3})


def test_joined_files_are_as_old_as_their_newest_row(table: DeltaTopicTable) -> None:
    write(table, rows(0, 0, 2), age_ms=3 * DAY_MS)
    write(table, rows(0, 2, 4))
    assert joined(table) == 2
    assert retained(table) == 0
    assert retained(table, ALL) == 1
    assert is_right(table, {0: 4}, {0: 4})


@pytest.mark.parametrize("columns", [("number",), ("_partition",), ("_offset",), ("_day",)], ids="".join)
def test_whatever_a_table_is_partitioned_by(tmp_path: Path, columns: tuple[str, ...]) -> None:
    table = DeltaTopicTable(str(tmp_path / "orders"), OWNER, TOPIC, now_ms=now_ms, partition_by=columns)
    write(table, rows(0, 0, 3), rows(1, 0, 2), age_ms=3 * DAY_MS)
    write(table, rows(0, 3, 5))
    assert retained(table) > 0
    assert is_right(table, {0: 3, 1: 2}, {0: 5, 1: 2})


def test_what_others_have_written_anew_goes_too(table: DeltaTopicTable) -> None:
    """Spark's OPTIMIZE, say; delta-rs' here."""
    for start in range(3):
        write(table, rows(0, start, start + 1), age_ms=3 * DAY_MS)
    opened(table).optimize.compact()
    assert len(files_of(table)) == 1
    assert retained(table) == 1
    assert is_right(table, {0: 3}, {0: 3})


def test_rows_that_an_earlier_release_began_are_looked_at(table: DeltaTopicTable) -> None:
    write(table, rows(0, 4, 6), age_ms=3 * DAY_MS)
    write(table, rows(0, 6, 7))
    of_before = TableOwner(cluster_id="ours", topic="orders", topic_id="before")
    begun_without_a_start(DeltaTopicTable(table.folder.uri, of_before, TOPIC, now_ms=now_ms))
    carried = DeltaTopicTable(table.folder.uri, of_before, TOPIC, now_ms=now_ms)
    assert (carried.load().starts, carried.load().ends) == ({}, {0: 7})
    assert retain(carried.folder, of_before, OLD, now_ms) == 1
    assert (carried.load().starts, offsets(carried)) == ({0: 6}, {0: [6]})


def begun_without_a_start(table: DeltaTopicTable) -> None:
    """As that release took tables over: it carried ends and epochs along."""
    found = table.take_over(TableOrigin(cluster_id="ours", topic_id="first"))
    assert found.starts == {0: 4}
    log = Path(table.folder.uri) / "_delta_log" / f"{found.number:020}.json"
    log.write_text("".join(line for line in log.read_text().splitlines(keepends=True) if "/start" not in line))


def test_a_table_with_others_features_is_left_alone(table: DeltaTopicTable) -> None:
    write(table, rows(0, 0, 2), age_ms=3 * DAY_MS)
    DeltaTable(table.folder.uri).alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
    assert retained(table) == 0


def between(monkeypatch: pytest.MonkeyPatch, then: Callable[[], object]) -> None:
    """Once, after the table was looked at, and before the commit."""
    looked, left = retaining._starts_of, [then]

    def and_then(*arguments: object) -> object:
        found = looked(*arguments)  # type: ignore[arg-type]
        if left:
            left.pop()()
        return found

    monkeypatch.setattr(retaining, "_starts_of", and_then)


def test_a_writer_goes_on_meanwhile(table: DeltaTopicTable, monkeypatch: pytest.MonkeyPatch) -> None:
    write(table, rows(0, 0, 2), age_ms=3 * DAY_MS)
    between(monkeypatch, lambda: write(table, rows(0, 2, 3), rows(1, 5, 6)))
    assert retained(table) == 1
    assert is_right(table, {0: 2, 1: 5}, {0: 3, 1: 6})


def test_a_writer_that_is_always_faster_keeps_nothing_from_going(
    table: DeltaTopicTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each of the first tries there is another version before the commit."""
    write(table, rows(0, 0, 2), age_ms=3 * DAY_MS)
    looks: list[int] = []

    def while_it_looks(opened: DeltaTable) -> list[TableFile]:
        looks.append(len(looks))
        if 0 < looks[-1] < 4:
            write(table, rows(0, looks[-1] + 1, looks[-1] + 2))
        return files_in(opened)

    for module in (retaining, replacing):
        monkeypatch.setattr(module, "files_in", while_it_looks)
    assert retained(table) == 1
    assert looks == [0, 1, 2, 3, 4], "each look but the first is a try"
    assert is_right(table, {0: 2}, {0: 5})


def test_a_writer_that_was_about_to_commit_still_can(table: DeltaTopicTable) -> None:
    write(table, rows(0, 0, 2), age_ms=3 * DAY_MS)
    before, added = table.load(), rows(0, 2, 3)
    files = uploads(table, [numbers(added, TOPIC)])
    assert retained(table) == 1
    table.commit(before, [added], files)
    assert is_right(table, {0: 2}, {0: 3})


@pytest.mark.parametrize("else_done", ["retained", "joined", "removed"])
def test_what_somebody_else_has_done_meanwhile_is_left_so(
    table: DeltaTopicTable, monkeypatch: pytest.MonkeyPatch, else_done: str
) -> None:
    for start in range(2):
        write(table, rows(0, start, start + 1), age_ms=3 * DAY_MS)
    write(table, rows(0, 2, 3))
    done = {
        "retained": lambda: retain(table.folder, OWNER, OLD, now_ms),
        "joined": lambda: joined(table),
        "removed": lambda: opened(table).delete("_offset = 0"),
    }
    between(monkeypatch, done[else_done])
    assert retained(table) == 0
    if else_done != "removed":
        starts = {0: 2 if else_done == "retained" else 0}
        assert is_right(table, starts, {0: 3})


def test_the_files_stay_for_readers_of_earlier_versions(table: DeltaTopicTable) -> None:
    write(table, rows(0, 0, 2), age_ms=3 * DAY_MS)
    write(table, rows(0, 2, 4))
    done = TableUpkeep(table.folder, OWNER, now_ms).tidy(UpkeepRules(file_bytes=1 << 20, retention=OLD))
    assert done == (1, 0, 0)
    assert len(data_files(table.folder.uri)) == 2
    assert DeltaTable(table.folder.uri, version=1).to_pyarrow_table().num_rows == 2

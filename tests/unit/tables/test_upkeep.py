"""What keeps a table small, and what it leaves alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from spark_replication.errors import StorageFailed, TableChanged
from spark_replication.mirror.tables.history import (
    HISTORY,
    LOG_AT_LEAST,
    RETENTION_OF_DATA,
    RETENTION_OF_LOG,
    StoredFile,
    as_interval,
    from_interval,
)
from spark_replication.process.threads import now_ms
from spark_replication.tables.aside import UpkeepTask, tidied_aside
from spark_replication.tables.delta_table import UPLOAD_AGE_MS_MAX, DeltaTopicTable, TableOwner
from spark_replication.tables.joining import JOINED_MIN, join
from spark_replication.tables.upkeep import SWEPT_AGE_MS, TableUpkeep, UpkeepRules, _swept
from spark_replication.tables.verifying import faults_of
from tests.unit.tables.table_stories import (
    FILE_BYTES,
    checkpointed,
    commit,
    contents,
    data_files,
    files_of,
    made_older,
    numbers,
    opened,
    rows,
    uploads,
)

OWNER = TableOwner(cluster_id="ours", topic="orders", topic_id="first")
TOPIC = pa.schema([("number", pa.int64())])
RULES = UpkeepRules(file_bytes=FILE_BYTES)
HOUR_MS = 3_600_000


@pytest.fixture
def table(tmp_path: Path) -> DeltaTopicTable:
    return DeltaTopicTable(str(tmp_path / "orders"), OWNER, TOPIC, now_ms=now_ms)


def upkeep(table: DeltaTopicTable, clock: Callable[[], int] | None = None) -> TableUpkeep:
    return TableUpkeep(table.folder, OWNER, now_ms if clock is None else clock)


def test_a_table_that_is_not_there_needs_nothing(table: DeltaTopicTable) -> None:
    upkeep(table).tidy(RULES)
    assert not Path(table.folder.uri).exists()


NOW_MS = 1_000 * HOUR_MS
DAY = timedelta(days=1)


@pytest.mark.parametrize(
    ("of_log", "age_h", "swept"),
    [
        pytest.param({"a.parquet": None}, 900, False, id="in the table, however old"),
        pytest.param({"a.parquet": NOW_MS - 23 * HOUR_MS}, 900, False, id="earlier versions may be read"),
        pytest.param({"a.parquet": NOW_MS - 25 * HOUR_MS}, 900, True, id="earlier versions are over"),
        pytest.param({"a.parquet": NOW_MS - 25 * HOUR_MS}, 0, True, id="whenever it was written"),
        pytest.param({"b.parquet": None}, 23, False, id="it may yet be committed"),
        pytest.param({"b.parquet": None}, 25, True, id="an orphan"),
    ],
)
def test_which_files_are_swept(of_log: Mapping[str, int | None], age_h: int, *, swept: bool) -> None:
    file = StoredFile("_day=2026-11-28/a.parquet", 1, datetime.fromtimestamp((NOW_MS - age_h * HOUR_MS) / 1000, UTC))
    assert _swept([file], of_log, NOW_MS, 24 * HOUR_MS, DAY) == ([file.path] if swept else [])


def test_a_writer_may_wait_for_less_time_than_its_files() -> None:
    assert 2 * UPLOAD_AGE_MS_MAX <= SWEPT_AGE_MS, "clocks differ, too"


@pytest.mark.parametrize("checkpointed", [False, True])
def test_orphans_are_swept_and_nothing_else(table: DeltaTopicTable, *, checkpointed: bool) -> None:
    for start in range(4):
        commit(table, TOPIC, rows(0, start, start + 1))
    folder = Path(table.folder.uri)
    orphan, young = (uploads(table, [numbers(rows(0, 4, 5), TOPIC)])[0].path for _ in range(2))
    for path in data_files(table.folder.uri) - {young}:
        made_older(folder / path, SWEPT_AGE_MS + 1_000)
    (folder / "not ours.txt").touch()
    made_older(folder / "not ours.txt", 9 * SWEPT_AGE_MS)
    if checkpointed:
        upkeep(table).shorten_log()
    kept, version = contents(table), table.load()
    assert upkeep(table).sweep() == [orphan]
    assert contents(table) == kept
    assert data_files(table.folder.uri) == {young, *files_of(table)}
    assert (folder / "not ours.txt").exists()
    assert (table.load().ends, table.load().epochs) == (version.ends, version.epochs)
    before = table.load().number
    assert upkeep(table).sweep() == []
    assert table.load().number == before, "without orphans it leaves the table alone"


def test_it_says_how_many_files_it_has_joined_and_removed(table: DeltaTopicTable) -> None:
    assert upkeep(table).tidy(RULES) == (0, 0, 0)
    for start in range(JOINED_MIN):
        commit(table, TOPIC, rows(0, start, start + 1))
    orphan = uploads(table, [numbers(rows(0, 90, 91), TOPIC)])[0].path
    made_older(Path(table.folder.uri) / orphan, SWEPT_AGE_MS + 1_000)
    assert upkeep(table).tidy(RULES) == (0, JOINED_MIN, 1)
    assert upkeep(table).tidy(RULES) == (0, 0, 0)


@pytest.mark.parametrize("cut", [False, True], ids=["as it is", "the log is cut"])
def test_what_was_joined_is_swept_once_earlier_versions_are_over(table: DeltaTopicTable, *, cut: bool) -> None:
    for start in range(3):
        commit(table, TOPIC, rows(0, start, start + 1))
    parts = sorted(files_of(table))
    assert join(table.folder, OWNER, FILE_BYTES, now_ms, 2) == 3
    if cut:
        checkpointed(table.folder.uri)
    for path in data_files(table.folder.uri):
        made_older(Path(table.folder.uri) / path, 900 * HOUR_MS)
    assert upkeep(table).sweep() == []
    assert upkeep(table, lambda: now_ms() + 25 * HOUR_MS).sweep() == parts
    assert len(contents(table)) == 3


def test_a_writer_that_was_stopped_commits_no_file_that_is_swept(table: DeltaTopicTable) -> None:
    """It looked at the table, and at the age of its files, and was stopped for a week before it stored the commit."""
    before = commit(table, TOPIC, rows(0, 0, 1))
    files = uploads(table, [numbers(rows(0, 1, 2), TOPIC)])
    made_older(Path(table.folder.uri) / files[0].path, SWEPT_AGE_MS + 1_000)
    clock = [now_ms()]

    class Stopped(DeltaTopicTable):
        def _refuse_unfit(self, opened: DeltaTable, files: object) -> None:
            super()._refuse_unfit(opened, files)  # type: ignore[arg-type]
            clock[0] += 7 * 24 * HOUR_MS
            assert len(upkeep(table).sweep()) == 1

    writer = Stopped(table.folder.uri, OWNER, TOPIC, now_ms=lambda: clock[0])
    with pytest.raises(TableChanged, match="waiting for its commit too long"):
        writer.commit(before, [rows(0, 1, 2)], files)
    assert [row["_offset"] for row in contents(table)] == [0]


def test_a_file_that_is_committed_while_it_is_swept_stays(table: DeltaTopicTable) -> None:
    """It is old enough, and a writer with a slow clock has just committed it."""
    before = commit(table, TOPIC, rows(0, 0, 1))
    files = uploads(table, [numbers(rows(0, 1, 2), TOPIC)])
    made_older(Path(table.folder.uri) / files[0].path, SWEPT_AGE_MS + 1_000)
    committed: list[object] = []

    class Slow(type(table.folder)):  # type: ignore[misc]
        def files(self) -> list[StoredFile]:
            found: list[StoredFile] = super().files()
            if not committed:
                committed.append(table.commit(before, [rows(0, 1, 2)], files))
            return found

    assert TableUpkeep(Slow(table.folder.uri), OWNER, now_ms).sweep() == []
    assert committed
    assert [row["_offset"] for row in contents(table)] == [0, 1]


def test_the_log_is_cut_and_nothing_is_lost(table: DeltaTopicTable) -> None:
    for start in range(5):
        commit(table, TOPIC, rows(0, start, start + 1), rows(1, start, start + 1))
    before = table.load()
    log = Path(table.folder.uri) / "_delta_log"
    for each in log.glob("*.json"):
        made_older(each, 8 * 24 * HOUR_MS)
    kept = contents(table)
    upkeep(table).shorten_log()
    assert len([*log.glob("*.json")]) < 5
    fresh = DeltaTopicTable(table.folder.uri, OWNER, TOPIC, now_ms=now_ms)
    assert (fresh.load().ends, fresh.load().epochs) == (before.ends, before.epochs)
    assert contents(fresh) == kept
    commit(fresh, TOPIC, rows(0, 5, 6))
    assert faults_of(opened(table), table.load()) == []


def test_a_log_that_grows_large_is_kept_for_less_time(table: DeltaTopicTable, monkeypatch: pytest.MonkeyPatch) -> None:
    for start in range(3):
        commit(table, TOPIC, rows(0, start, start + 1))
    for each in (Path(table.folder.uri) / "_delta_log").glob("*.json"):
        made_older(each, 2 * HOUR_MS)
    upkeep(table).shorten_log()
    assert opened(table).metadata().configuration[RETENTION_OF_LOG] == as_interval(HISTORY)
    monkeypatch.setattr("spark_replication.tables.upkeep.LOG_BYTES_MAX", 1)
    upkeep(table).shorten_log()
    kept = from_interval(opened(table).metadata().configuration[RETENTION_OF_LOG])
    assert kept is not None
    assert LOG_AT_LEAST <= kept < timedelta(hours=3)


@pytest.mark.slow
def test_another_process_does_all_of_it(table: DeltaTopicTable) -> None:
    for start in range(JOINED_MIN):
        commit(table, TOPIC, rows(0, start, start + 1))
    orphan = uploads(table, [numbers(rows(0, 99, 100), TOPIC)])[0].path
    opened(table).alter.set_table_properties({RETENTION_OF_DATA: as_interval(timedelta())})
    task = UpkeepTask(uri=table.folder.uri, owner=OWNER, store={}, rules=RULES, swept_age_ms=0)
    assert tidied_aside(task) == (0, JOINED_MIN, JOINED_MIN + 1), "what was joined, and the orphan"
    assert len(files_of(table)) == 1
    assert data_files(table.folder.uri) == {*files_of(table)}
    assert orphan not in data_files(table.folder.uri)
    assert [*(Path(table.folder.uri) / "_delta_log").glob("*.checkpoint.parquet")]


def test_what_another_process_could_not_do_is_told(table: DeltaTopicTable) -> None:
    commit(table, TOPIC, rows(0, 0, 1))
    other = TableOwner(cluster_id="theirs", topic="orders", topic_id="first")
    task = UpkeepTask(uri=table.folder.uri, owner=other, store={}, rules=RULES)
    with pytest.raises(StorageFailed, match=r"was not tidied: .*is topic first's of cluster ours"):
        tidied_aside(task)

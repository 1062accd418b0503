"""Tables in an object store: many writers, lost answers, a store that is away."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta

import msgspec
import pytest

from spark_replication.core.tables.retaining import TableRetention
from spark_replication.core.tables.table import RowRange, TableVersion
from spark_replication.errors import InvalidRequest, StorageFailed
from spark_replication.mirror.delta.object_store import PATIENCE
from spark_replication.mirror.tables.history import RETENTION_OF_DATA, as_interval
from spark_replication.model import TableOrigin
from spark_replication.process.threads import now_ms
from spark_replication.tables.aside import UpkeepTask, tidied_aside
from spark_replication.tables.folder import SMALL_BYTES_MAX, TableFolder
from spark_replication.tables.found import found_tables
from spark_replication.tables.replacing import files_in
from spark_replication.tables.retaining import retain
from spark_replication.tables.upkeep import UpkeepRules
from spark_replication.tables.verifying import faults_of
from tests.contract.topic_table_cast import FILE_BYTES, OWNER, OfDelta
from tests.live.mirror.object_store import BUCKET, SECRET, ObjectStore
from tests.live.tables.racing_writer import ROWS, SHARED, Answers

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

URI = f"s3a://{BUCKET}/tables/orders"
WRITERS, COMMITS = 3, 4
TIMEOUT_S = 120.0


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    started = ObjectStore()
    yield started
    started.down()


@pytest.fixture
def forgetful() -> Iterator[ObjectStore]:
    """Each commit is stored, and its first answer lost."""
    started = ObjectStore(ANSWERS_LOST=r"_delta_log/\d+\.json$")
    yield started
    started.down()


def cast_in(store: ObjectStore) -> OfDelta:
    return OfDelta(URI, {**PATIENCE, **store.options})


def rows(partition: int, start: int, end: int) -> RowRange:
    return RowRange(partition=partition, start=start, end=end, last_epoch=0, confirmed_epoch=0)


def raced(store: ObjectStore) -> list[Answers]:
    command = [sys.executable, "-m", "tests.live.tables.racing_writer", URI]
    writers = [
        subprocess.Popen(
            [*command, str(number), str(COMMITS)], stdout=subprocess.PIPE, env={**os.environ, **store.environment}
        )
        for number in range(1, WRITERS + 1)
    ]
    return [msgspec.json.decode(writer.communicate(timeout=TIMEOUT_S)[0], type=Answers) for writer in writers]


def test_what_was_answered_is_there_once_and_every_loser_was_told(store: ObjectStore) -> None:
    """Each writer has a partition of its own, and one is all writers'; they make the table at once, too."""
    answers = raced(store)
    cast = cast_in(store)
    version = cast.handle().load()
    opened = cast.handle().opened()
    assert opened is not None
    assert faults_of(opened, version) == []
    stored = sorted(each for answer in answers for each in answer.stored)
    assert len(set(stored)) == len(stored), "no range was told to two"
    assert not any(answer.unknown for answer in answers)
    assert sum(answer.refused for answer in answers) > 0, "they met"
    total = WRITERS * COMMITS * ROWS
    assert version.ends == {SHARED: total, **dict.fromkeys(range(1, WRITERS + 1), COMMITS * ROWS)}
    assert cast.rows() == sorted((partition, at) for partition, start, end in stored for at in range(start, end))


def test_a_commit_whose_answer_was_lost_is_known_as_stored(forgetful: ObjectStore) -> None:
    cast = cast_in(forgetful)
    table = cast.handle()
    version = table.seal(TableVersion(), {4: 2})
    for start in range(0, 9, 3):
        version = table.commit(version, [rows(0, start, start + 3)], [cast.upload([rows(0, start, start + 3)])])
        assert version == cast.handle().load()
    assert (version.ends, version.epochs) == ({0: 9}, {0: 0, 4: 2})
    assert cast.rows() == [(0, at) for at in range(9)]


def test_writers_whose_answers_are_lost_do_no_harm_to_each_other(forgetful: ObjectStore) -> None:
    answers = raced(forgetful)
    cast = cast_in(forgetful)
    opened = cast.handle().opened()
    assert opened is not None
    assert faults_of(opened, cast.handle().load()) == []
    stored = sorted(each for answer in answers for each in answer.stored)
    assert len(set(stored)) == len(stored)
    assert set(stored) <= {(each[0], at, at + ROWS) for each in stored for at in range(0, each[2], ROWS)}
    assert sum(end - start for _, start, end in stored) == len(cast.rows()), "nothing is there that nobody was told of"


def test_a_store_that_is_away_leaves_the_outcome_open(store: ObjectStore) -> None:
    cast = cast_in(store)
    impatient = OfDelta(URI, {**cast.store, "max_retries": "0", "timeout": "2s", "retry_timeout": "2s"})
    version = cast.handle().seal(TableVersion(), {0: 0})
    file = cast.upload([rows(0, 0, 3)])
    store.down()
    with pytest.raises(StorageFailed, match="did not store a commit") as told:
        impatient.handle().commit(version, [rows(0, 0, 3)], [file])
    assert SECRET not in str(told.value)
    with pytest.raises(StorageFailed, match=r"did not store a file|is partitioned") as told:
        impatient.upload([rows(0, 0, 3)])
    assert SECRET not in str(told.value)
    store.up()


def test_files_of_any_size_are_read_whole(store: ObjectStore) -> None:
    folder = TableFolder(URI, cast_in(store).store)
    contents = {"small": b"small", "edge": b"e" * SMALL_BYTES_MAX, "large": b"l" * (2 * SMALL_BYTES_MAX + 1)}
    for name, content in contents.items():
        sink = folder.create(name)
        sink.write(content)
        sink.close()
    assert [*folder.read([*contents, "none"])] == [*contents.values(), None]
    folder.remove("small")
    folder.remove("none")
    assert [*folder.read(["small"])] == [None]


def test_a_table_there_is_tidied_by_another_process(store: ObjectStore) -> None:
    cast = cast_in(store)
    table = cast.handle()
    version = table.load()
    for start in range(16):
        added = rows(0, start, start + 1)
        version = table.commit(version, [added], [cast.upload([added])])
    cast.upload([rows(0, 50, 51)])
    opened = table.opened()
    assert opened is not None
    opened.alter.set_table_properties({RETENTION_OF_DATA: as_interval(timedelta())})
    rules = UpkeepRules(file_bytes=FILE_BYTES)
    tidied_aside(UpkeepTask(uri=URI, owner=OWNER, store=dict(cast.store), rules=rules, swept_age_ms=-60_000))
    opened = table.opened()
    assert opened is not None
    (joined,) = files_in(opened)
    data = [
        file.path for file in table.folder.files() if file.path.endswith(".parquet") and "_delta_log" not in file.path
    ]
    assert data == [joined.path]
    fresh = cast.handle().load()
    assert (fresh.ends, fresh.epochs) == (version.ends, version.epochs)
    assert cast.rows() == [(0, at) for at in range(16)]
    assert faults_of(opened, fresh) == []


def test_tables_there_are_found_by_who_knows_of_none(store: ObjectStore) -> None:
    cast, path = cast_in(store), f"s3a://{BUCKET}/tables"
    assert [*found_tables(path, cast.store)] == []
    version = cast.handle().load()
    version = cast.handle().commit(version, [rows(1, 4, 9)], [cast.upload([rows(1, 4, 9)])])
    for beside in ("notes/read-me", "orders.txt"):
        sink = TableFolder(path, cast.store).create(beside)
        sink.write(b"no table")
        sink.close()
    (found,) = found_tables(path, cast.store)
    assert (found.topic, found.uri, found.version, found.row_count) == ("orders", URI, version, 5)
    assert found.origin == TableOrigin(cluster_id=OWNER.cluster_id, topic_id=OWNER.topic_id)
    with pytest.raises(InvalidRequest, match="there is no table none below"):
        [*found_tables(path, cast.store, ["none"])]
    with pytest.raises(InvalidRequest, match="is no table of a topic"):
        [*found_tables(path, cast.store, ["notes"])]
    store.down()
    with pytest.raises(StorageFailed, match="did not say which tables are in it") as told:
        [*found_tables(path, {**cast.store, "max_retries": "0", "timeout": "2s", "retry_timeout": "2s"})]
    assert SECRET not in str(told.value)
    store.up()


def test_a_table_there_gives_up_its_oldest_rows(store: ObjectStore) -> None:
    cast = cast_in(store)
    table = cast.handle()
    version = table.load()
    for start in range(0, 6, 2):
        added = rows(0, start, start + 2)
        version = table.commit(version, [added], [cast.upload([added])])
    folder = TableFolder(URI, cast.store)
    assert retain(folder, OWNER, TableRetention(bytes=0), now_ms) == 3
    after = cast.handle().load()
    assert (after.starts, after.ends, cast.rows()) == ({0: 6}, version.ends, [])

"""A topic's table on a disk, others at it meanwhile (TB1, TB5, TB8). What any table does is in tests/contract."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, TableFeatures
from deltalake.schema import Field, PrimitiveType
from msgspec.structs import replace

from spark_replication.core.tables.restoring import TopicOutline
from spark_replication.core.tables.table import TableVersion
from spark_replication.errors import InvalidRequest, InvalidSchema, StorageFailed, TableChanged, WrongCluster
from spark_replication.model import TableOrigin
from spark_replication.process.threads import now_ms
from spark_replication.storage.format.batches import schema_to_bytes
from spark_replication.tables.delta_table import OUTLINE as OUTLINE_PROPERTY
from spark_replication.tables.delta_table import UPLOAD_AGE_MS_MAX, DeltaTopicTable, ParquetUpload, TableOwner
from spark_replication.tables.folder import TableFolder
from spark_replication.tables.found import found_table, found_tables
from spark_replication.tables.joining import join
from spark_replication.tables.parquet_files import StoredRows
from spark_replication.tables.table_log import TableLog
from spark_replication.tables.upkeep import TableUpkeep
from spark_replication.tables.verifying import faults_of
from tests.unit.tables.table_stories import FILE_BYTES, checkpointed, commit, contents, numbers, opened, rows, uploads

OWNER = TableOwner(cluster_id="ours", topic="orders", topic_id="first")
TOPIC = pa.schema([("number", pa.int64())])
WIDE = pa.schema([("number", pa.int64()), ("more", pa.uint16())])
DAY_MS = 86_400_000


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return str(tmp_path / "orders")


def table_at(uri: str, schema: pa.Schema = TOPIC, owner: TableOwner = OWNER) -> DeltaTopicTable:
    return DeltaTopicTable(uri, owner, schema, now_ms=now_ms)


class Interrupted(DeltaTopicTable):
    """A writer to whom something happens between its look at the table and its commit."""

    meanwhile: list[Callable[[], object]]

    def _refuse_unfit(self, opened: DeltaTable, files: object) -> None:
        super()._refuse_unfit(opened, files)  # type: ignore[arg-type]
        if self.meanwhile:
            self.meanwhile.pop(0)()


def interrupted(uri: str, *meanwhile: Callable[[], object]) -> Interrupted:
    table = Interrupted(uri, OWNER, TOPIC, now_ms=now_ms)
    table.meanwhile = [*meanwhile]
    return table


MEANWHILE: dict[str, Callable[[str], object]] = {
    "others commit": lambda uri: commit(table_at(uri), TOPIC, rows(1, 0, 5)),
    "others seal": lambda uri: (one := table_at(uri)).seal(one.load(), {1: 9}),
    "the topic is widened": lambda uri: commit(table_at(uri, WIDE), WIDE, rows(1, 0, 5)),
    "somebody adds a column": lambda uri: DeltaTable(uri).alter.add_columns([Field("his", PrimitiveType("string"))]),
    "properties change": lambda uri: DeltaTable(uri).alter.set_table_properties(
        {"of": "somebody"}, raise_if_not_exists=False
    ),
    "files are joined": lambda uri: join(table_at(uri).folder, OWNER, FILE_BYTES, now_ms, 2),
    "the log is cut": checkpointed,
}


@pytest.mark.slow
@pytest.mark.parametrize("what", MEANWHILE)
def test_what_others_do_meanwhile_refuses_no_commit(what: str, uri: str) -> None:
    commit(table_at(uri), TOPIC, rows(0, 0, 3))
    before = commit(table_at(uri), TOPIC, rows(0, 3, 5))
    writer = interrupted(uri, lambda: MEANWHILE[what](uri))
    after = commit(writer, TOPIC, rows(0, 5, 6), on=before)
    assert not writer.meanwhile
    assert after == table_at(uri).load()
    assert after.end_of(0) == 6
    assert [row["_offset"] for row in contents(writer) if row["_partition"] == 0] == [*range(6)]
    assert faults_of(opened(writer), after) == []
    assert writer.seal(after, {0: 7}) == table_at(uri).load()


@pytest.mark.parametrize("tidied", [False, True], ids=["as it is", "after a checkpoint and clean-up"])
@pytest.mark.parametrize("seals", [False, True], ids=["a commit", "a seal"])
def test_what_others_do_with_the_same_partition_refuses_it(uri: str, *, tidied: bool, seals: bool) -> None:
    before = commit(table_at(uri), TOPIC, rows(0, 0, 3))

    def meanwhile() -> None:
        other = table_at(uri)
        if seals:
            other.seal(other.load(), {0: 1})
        else:
            commit(other, TOPIC, rows(0, 3, 4))
        if tidied:
            checkpointed(uri)

    # Once the log is cut, nobody can tell whether the other commit was this one, whose answer was lost.
    with pytest.raises(StorageFailed if tidied else TableChanged):
        commit(interrupted(uri, meanwhile), TOPIC, rows(0, 3, 5), on=before)
    with pytest.raises(TableChanged, match=r"partitions 0 of .* have changed"):
        commit(table_at(uri), TOPIC, rows(0, 3, 5), on=before)
    with pytest.raises(TableChanged, match=r"partitions 0 of .* have changed"):
        table_at(uri).seal(before, {0: 5})
    assert [row["_offset"] for row in contents(table_at(uri))] == [*range(3 if seals else 4)]


@pytest.mark.parametrize("tidied", [False, True])
def test_a_seal_between_the_look_and_the_seal_refuses_it(uri: str, *, tidied: bool) -> None:
    before = commit(table_at(uri), TOPIC, rows(0, 0, 3))

    def meanwhile() -> None:
        commit(table_at(uri), TOPIC, rows(0, 3, 4))
        if tidied:
            checkpointed(uri)

    with pytest.raises(StorageFailed if tidied else TableChanged):
        interrupted(uri, meanwhile).seal(before, {0: 1})
    assert table_at(uri).load().epochs == {0: 0}


def test_a_handle_that_has_slept_knows_what_happened_since(uri: str) -> None:
    slept = table_at(uri)
    commit(slept, TOPIC, rows(0, 0, 3), rows(7, 4, 5))
    commit(table_at(uri), TOPIC, rows(0, 3, 4))
    checkpointed(uri)
    commit(table_at(uri), TOPIC, rows(0, 4, 5))
    assert slept.load().ends == {0: 5, 7: 5}
    checkpointed(uri)
    assert table_at(uri).load() == slept.load()


def test_a_table_that_was_made_again_is_another(uri: str) -> None:
    handle = table_at(uri)
    for start in range(5):
        commit(handle, TOPIC, rows(0, start, start + 1))
    shutil.rmtree(uri)
    assert handle.load() == TableVersion()
    commit(table_at(uri), TOPIC, rows(3, 0, 1))
    assert handle.load().ends == {3: 1}
    shutil.rmtree(uri)
    for start in range(9):
        commit(table_at(uri), TOPIC, rows(1, start, start + 1))
    assert handle.load().ends == {1: 9}


@pytest.mark.slow
def test_a_table_that_others_write_all_the_time_is_given_up(uri: str) -> None:
    before = commit(table_at(uri), TOPIC, rows(0, 0, 3))
    busy = [lambda at=at: commit(table_at(uri), TOPIC, rows(1, at, at + 1)) for at in range(50)]
    with pytest.raises(StorageFailed, match="was written by others 50 times"):
        commit(interrupted(uri, *busy), TOPIC, rows(0, 3, 4), on=before)
    assert table_at(uri).load().ends == {0: 3, 1: 50}


@pytest.mark.parametrize(
    "other", [replace(OWNER, cluster_id="theirs"), replace(OWNER, topic_id="second")], ids=["cluster", "topic"]
)
def test_anothers_table_stays_as_it_is(uri: str, other: TableOwner) -> None:
    commit(table_at(uri), TOPIC, rows(0, 0, 3))
    handle = table_at(uri, owner=other)
    attempts: tuple[Callable[[], object], ...] = (
        handle.load,
        handle.layout,
        lambda: handle.seal(TableVersion(), {0: 1}),
        lambda: TableUpkeep(handle.folder, other, now_ms).sweep(),
    )
    for attempt in attempts:
        with pytest.raises(WrongCluster, match=r"is topic first's of cluster ours, and this is topic .*table\.path"):
            attempt()
    assert DeltaTable(uri).version() == 1


def test_a_table_of_nobody_is_refused_too(uri: str) -> None:
    DeltaTable.create(uri, TOPIC)
    with pytest.raises(WrongCluster, match="topic None's of cluster None"):
        table_at(uri).load()


NEW = TableOwner(cluster_id="another", topic="orders", topic_id="second")
ORIGIN = TableOrigin(cluster_id=OWNER.cluster_id, topic_id=OWNER.topic_id)
OUTLINE = TopicOutline(schema=base64.b64encode(schema_to_bytes(TOPIC)).decode(), settings={"table": True}, partitions=3)


def outlined(uri: str, owner: TableOwner = OWNER, outline: TopicOutline = OUTLINE) -> DeltaTopicTable:
    return DeltaTopicTable(uri, owner, TOPIC, now_ms=now_ms, outline=outline)


@pytest.mark.parametrize("tidied", [False, True])
def test_who_takes_a_table_over_has_all_of_it_in_one_commit_and_the_owner_before_is_refused(
    uri: str, *, tidied: bool
) -> None:
    old = table_at(uri)
    before = commit(old, TOPIC, rows(0, 0, 3, epoch=4), rows(2, 5, 6, epoch=1))
    added = rows(0, 3, 5, epoch=4)
    files = uploads(old, [numbers(added, TOPIC)])
    if tidied:
        checkpointed(uri)
    assert before.number is not None
    new = outlined(uri, NEW)
    after = new.take_over(ORIGIN)
    assert after == TableVersion(number=before.number + 1, ends={0: 3, 2: 6}, epochs={0: 5, 2: 2}, starts={0: 0, 2: 5})
    assert new.take_over(ORIGIN) == after, "done again, it does nothing"
    assert new.is_outlined
    attempts: tuple[Callable[[], object], ...] = (
        lambda: old.commit(before, [added], files),
        old.load,
        lambda: old.seal(before, {0: 9}),
    )
    for attempt in attempts:
        with pytest.raises(WrongCluster, match="is topic second's of cluster another"):
            attempt()
    found = found_table(TableFolder(uri), "orders")
    assert found is not None
    assert (found.origin.topic_id, found.outline, found.version, found.row_count) == ("second", OUTLINE, after, 4)
    commit(new, TOPIC, rows(0, 3, 4, epoch=6))
    assert [row["_offset"] for row in contents(new)] == [0, 1, 2, 3, 5]


@pytest.mark.parametrize("widens", [False, True])
def test_who_has_looked_before_a_take_over_commits_nothing_after_it(uri: str, *, widens: bool) -> None:
    before = commit(table_at(uri), TOPIC, rows(0, 0, 3))
    schema = WIDE if widens else TOPIC
    writer = Interrupted(uri, OWNER, schema, now_ms=now_ms)
    writer.meanwhile = [lambda: outlined(uri, NEW).take_over(ORIGIN)]
    with pytest.raises(WrongCluster):
        commit(writer, schema, rows(0, 3, 4), on=before)
    assert outlined(uri, NEW).load().ends == {0: 3}


def test_what_is_committed_before_a_take_over_that_has_looked_already_is_taken_over_too(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(table_at(uri), TOPIC, rows(0, 0, 3))
    whole, meanwhile = DeltaTopicTable._set_properties, [lambda: commit(table_at(uri), TOPIC, rows(0, 3, 4))]

    def after_others(self: DeltaTopicTable, *given: Any) -> bool:
        if meanwhile:
            meanwhile.pop()()
        return whole(self, *given)

    monkeypatch.setattr(DeltaTopicTable, "_set_properties", after_others)
    assert outlined(uri, NEW).take_over(ORIGIN).ends == {0: 4}


def test_a_table_of_a_third_is_not_taken_over_and_neither_is_none(uri: str) -> None:
    with pytest.raises(StorageFailed, match="there is no table at"):
        outlined(uri, NEW).take_over(ORIGIN)
    commit(table_at(uri), TOPIC, rows(0, 0, 3))
    with pytest.raises(WrongCluster, match="another has it by now"):
        outlined(uri, NEW).take_over(replace(ORIGIN, topic_id="third"))
    assert table_at(uri).load().ends == {0: 3}


def test_a_table_says_what_its_topic_is_by_now(uri: str) -> None:
    outlined(uri).make()
    wider = replace(OUTLINE, partitions=4)
    other = outlined(uri, outline=wider)
    before = other.load()
    assert (before, other.is_outlined) == (TableVersion(number=0), False)
    other.make()
    other.make()
    assert (other.load(), other.is_outlined) == (TableVersion(number=1), True)
    found = found_table(TableFolder(uri), "orders")
    assert found is not None
    assert found.outline == wider


@pytest.mark.parametrize(
    "text", [None, "{}", "no JSON", '{"schema":"abc","partitions":1}', '{"v":2,"schema":"abc","partitions":1}']
)
def test_a_table_without_an_outline_that_can_be_read_is_found_all_the_same(uri: str, text: str | None) -> None:
    commit(table_at(uri), TOPIC, rows(0, 0, 3))
    if text is not None:
        DeltaTable(uri).alter.set_table_properties({OUTLINE_PROPERTY: text}, raise_if_not_exists=False)
    (found,) = found_tables(str(Path(uri).parent), {})
    assert (found.topic, found.outline, found.columns) == ("orders", None, ("number:int64",))


def test_only_tables_of_topics_are_found(uri: str, tmp_path: Path) -> None:
    assert list(found_tables(str(tmp_path / "nowhere"), {})) == []
    DeltaTable.create(str(tmp_path / "plain"), TOPIC)
    (tmp_path / "empty").mkdir()
    commit(table_at(uri), TOPIC, rows(0, 0, 3))
    assert [each.topic for each in found_tables(str(tmp_path), {})] == ["orders"]
    with pytest.raises(InvalidRequest, match="there is no table missing below"):
        list(found_tables(str(tmp_path), {}, ["missing"]))
    with pytest.raises(InvalidRequest, match="plain is no table of a topic"):
        list(found_tables(str(tmp_path), {}, ["plain"]))


def test_of_many_that_make_a_table_at_once_all_commit(uri: str) -> None:
    def write(partition: int) -> None:
        handle = table_at(uri)
        for start in range(3):
            while True:
                try:
                    commit(handle, TOPIC, rows(partition, start, start + 1))
                    break
                except StorageFailed:
                    if handle.load().end_of(partition) != start:
                        break

    with ThreadPoolExecutor(4) as writers:
        for each in [writers.submit(write, partition) for partition in range(4)]:
            each.result(60)
    assert table_at(uri).load().ends == dict.fromkeys(range(4), 3)
    assert faults_of(opened(table_at(uri)), table_at(uri).load()) == []
    assert len(contents(table_at(uri))) == 12


def test_a_widened_topic_widens_its_table_once(uri: str) -> None:
    commit(table_at(uri), TOPIC, rows(0, 0, 1))
    late = table_at(uri)
    commit(table_at(uri, WIDE), WIDE, rows(0, 1, 2))
    version = commit(table_at(uri, WIDE), WIDE, rows(0, 2, 3)).number
    assert version == 4, "two commits, one that widens, and one"
    commit(late, TOPIC, rows(0, 3, 4))  # its topic's schema is not the newest
    assert [(row["number"], row["more"]) for row in contents(late)] == [(0, None), (1, 1), (2, 2), (3, None)]
    assert [field.name for field in opened(late).schema().fields][-1] == "more"


def test_two_that_widen_at_once_both_commit(uri: str) -> None:
    commit(table_at(uri), TOPIC, rows(0, 0, 1))
    with ThreadPoolExecutor(3) as writers:
        found = [writers.submit(commit, table_at(uri, WIDE), WIDE, rows(partition, 0, 1)) for partition in range(1, 4)]
        for each in found:
            each.result(60)
    assert table_at(uri).load().ends == dict.fromkeys(range(4), 1)


def test_a_column_of_another_type_is_refused(uri: str) -> None:
    commit(table_at(uri), TOPIC, rows(0, 0, 1))
    other = pa.schema([("number", pa.string())])
    with pytest.raises(InvalidSchema, match=r"column 'number' of .* is .*long.*string"):
        commit(table_at(uri, other), other, rows(0, 1, 2))


def test_a_topic_that_can_have_no_table_is_refused_at_once(uri: str) -> None:
    with pytest.raises(InvalidSchema, match="column 'at' is time"):
        table_at(uri, pa.schema([("at", pa.time32("s"))]))
    assert not Path(uri).exists()


def test_files_that_have_waited_too_long_are_not_committed(uri: str) -> None:
    before = commit(table_at(uri), TOPIC, rows(0, 0, 3))
    table = table_at(uri)
    (fresh,) = uploads(table, [numbers(rows(0, 3, 4), TOPIC)])
    old = replace(fresh, written_ms=now_ms() - UPLOAD_AGE_MS_MAX - 1)
    with pytest.raises(TableChanged, match="has been waiting for its commit too long"):
        table.commit(before, [rows(0, 3, 4)], [old])
    assert table.commit(before, [rows(0, 3, 4)], [fresh]).end_of(0) == 4


def test_files_of_another_layout_are_written_again(uri: str) -> None:
    table = table_at(uri)
    (file,) = uploads(table, [numbers(rows(0, 0, 1), TOPIC)])
    DeltaTopicTable(uri, OWNER, TOPIC, now_ms=now_ms, partition_by=["_day"]).seal(TableVersion(), {5: 0})
    with pytest.raises(TableChanged, match=r"is partitioned by \(_day\): write the files again"):
        table.commit(TableVersion(), [rows(0, 0, 1)], [file])
    assert table.layout().partition_by == ("_day",)
    assert "_day" in table.layout().schema.names
    commit(table, TOPIC, rows(0, 0, 1))
    assert [row["_day"] for row in contents(table)] == [datetime.now(UTC).date()]


def test_a_table_by_columns_keeps_them_beside_its_files(uri: str) -> None:
    schema = pa.schema([("kind", pa.large_string()), ("number", pa.int64())])
    table = DeltaTopicTable(uri, OWNER, schema, now_ms=now_ms, partition_by=["kind", "_day"])
    batch = pa.record_batch([pa.array(["a", "b", None, "a"], pa.large_string()), pa.array([0, 1, 2, 3])], schema)
    files = uploads(table, [StoredRows(0, 0, DAY_MS, 0, batch), StoredRows(0, 4, 2 * DAY_MS, 0, batch)])
    assert sorted((file.partition_values["kind"] or "", file.partition_values["_day"]) for file in files) == [
        (kind, day) for kind in ("", "a", "b") for day in ("1970-01-02", "1970-01-03")
    ]
    table.commit(TableVersion(), [rows(0, 0, 8)], files)
    assert [(row["kind"], row["number"]) for row in contents(table)] == 2 * [("a", 0), ("b", 1), (None, 2), ("a", 3)]


def test_a_place_that_cannot_be_written_is_told_with_what_to_check(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    table = table_at(str(tmp_path / "file" / "orders"))
    with pytest.raises(
        StorageFailed, match=r"did not store a commit: .*Check that this process can write to table\.path"
    ):
        table.seal(TableVersion(), {0: 1})


def test_a_commit_that_delta_refuses_for_good_is_tried_once(uri: str) -> None:
    before = commit(table_at(uri), TOPIC, rows(0, 0, 3))
    DeltaTable(uri).alter.add_feature(TableFeatures.RowTracking, allow_protocol_versions_increase=True)
    looked: list[None] = []
    writer = interrupted(uri, *[lambda: looked.append(None)] * 9)
    with pytest.raises(
        StorageFailed, match=r"did not store a commit: Unsupported table features required: .RowTracking"
    ):
        commit(writer, TOPIC, rows(0, 3, 4), on=before)
    assert len(looked) == 1


def test_a_log_with_parts_missing_is_told(uri: str) -> None:
    commit(table_at(uri), TOPIC, rows(0, 0, 3))
    commit(table_at(uri), TOPIC, rows(0, 3, 4))
    checkpointed(uri)
    (Path(uri) / "_delta_log" / "_last_checkpoint").write_text('{"version": 99, "size": 1}')
    with pytest.raises(StorageFailed):
        table_at(uri).load()


def test_a_commit_is_found_by_its_id(uri: str) -> None:
    table = table_at(uri)
    commit(table, TOPIC, rows(0, 0, 3))
    assert TableLog(table.folder).has_commit("no such", 0, 1) is None
    assert ParquetUpload(path="", bytes=0, written_ms=0, row_count=0, statistics="").partition_values == {}

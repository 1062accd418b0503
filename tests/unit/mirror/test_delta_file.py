"""What one write after the other leaves in the table, several writers at it (M2, M6)."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from msgspec.structs import replace

from spark_replication.errors import StorageFailed, WrongCluster
from spark_replication.mirror.delta import delta_file
from spark_replication.mirror.delta.delta_file import LOW_WATER, OWNER, DeltaFile
from spark_replication.mirror.tables.columns import Tombstone
from spark_replication.mirror.tables.events import EVENTS, EventRow
from spark_replication.mirror.tables.groups import GROUPS, GroupRow
from spark_replication.mirror.tables.history import (
    DATA_AT_LEAST,
    HISTORY,
    RETENTION_OF_DATA,
    RETENTION_OF_LOG,
    as_interval,
)
from spark_replication.mirror.tables.partitions import PARTITIONS, PartitionRow
from spark_replication.mirror.tables.status import STATUS
from spark_replication.mirror.telling.events_file import EventsFile
from spark_replication.mirror.telling.latest import TableBatch
from spark_replication.process.threads import now_ms
from spark_replication.sim.cast.mirror import MirrorTable
from tests.live.mirror.mirror_stories import CLUSTER, command, gone, group_row, row

File = DeltaFile[PartitionRow]


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return str(tmp_path / "mirror" / "partitions")


@pytest.fixture
def file(uri: str) -> File:
    return DeltaFile(PARTITIONS, uri, CLUSTER)


def merge(file: File, live: Iterable[PartitionRow] = (), dead: Iterable[Tombstone] = ()) -> None:
    rows = PARTITIONS.rows(list(live), list(dead))
    file.merge(lambda _opened: rows)


def stored(uri: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = DeltaTable(uri).to_pyarrow_table().to_pylist()
    return sorted(rows, key=lambda row: (row["topic"], row["partition"]))


def as_stored(*rows: PartitionRow) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = PARTITIONS.rows(list(rows), []).to_pylist()
    return found


def test_new_rows_are_inserted_whole(file: File, uri: str) -> None:
    rows = [row(command("orders", 0), 10), row(command("orders", 1, leader=None, leader_epoch=4), 11, active_epoch=3)]
    merge(file, rows)
    assert stored(uri) == as_stored(*rows)


FIRST = row(command(leader=1, leader_epoch=5), 10, active_epoch=4)


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        pytest.param(r := row(command(leader=3, leader_epoch=6), 11, active_epoch=6), r, id="a higher zxid wins"),
        pytest.param(row(command(leader=3, leader_epoch=4), 9, active_epoch=4), FIRST, id="an older zxid does nothing"),
        pytest.param(
            row(command(leader=3, leader_epoch=6), 9, active_epoch=6),
            FIRST,
            id="an older zxid does nothing, whatever it says of epochs",
        ),
        pytest.param(
            r := row(command(leader=1, leader_epoch=5), 10, active_epoch=5), r, id="equal zxid: a confirmation wins"
        ),
        pytest.param(
            row(command(leader=1, leader_epoch=5), 10), FIRST, id="equal zxid: a lower active_epoch does nothing"
        ),
        pytest.param(
            row(command(leader=1, leader_epoch=5, partition_epoch=9), 12),
            row(command(leader=1, leader_epoch=5, partition_epoch=9), 12, active_epoch=4),
            id="a new controller's change keeps what was confirmed to the old one",
        ),
        pytest.param(
            r := row(command(leader=1, leader_epoch=0, topic_id="second"), 12),
            r,
            id="a topic made again starts unconfirmed",
        ),
    ],
)
def test_which_of_two_rows_counts(told: PartitionRow, kept: PartitionRow, file: File, uri: str) -> None:
    merge(file, [FIRST])
    merge(file, [told])
    assert stored(uri) == as_stored(kept)
    simulated = MirrorTable(PARTITIONS, lambda _table, _row: None)
    for each in (FIRST, told):
        simulated.merge(TableBatch([each], []))
    assert list(simulated.rows.values()) == [kept]


def test_what_is_gone_is_not_brought_back_by_a_late_writer(file: File, uri: str) -> None:
    merge(file, [FIRST])
    merge(file, dead=[gone("orders", 3, 20), gone("orders", 4, 20)])
    merge(file, [row(command(leader_epoch=6), 19), row(command("orders", 4), 18)])
    assert [(found["zxid"], found["deleted"]) for found in stored(uri)] == [(20, True), (20, True)]


def test_forgotten_tombstones_let_nothing_older_in(file: File, uri: str) -> None:
    merge(file, [FIRST])
    merge(file, dead=[gone("orders", 4, 20), gone("orders", 5, 21)])
    late = DeltaFile(PARTITIONS, uri, CLUSTER)
    late.open()  # it has seen the table before, as one that was stopped since
    file.forget(20)
    assert [found["partition"] for found in stored(uri)] == [3, 5]
    merge(late, [row(command("orders", 4), 19), row(command("orders", 6), 20), row(command("orders", 7), 21)])
    assert [found["partition"] for found in stored(uri)] == [3, 5, 7]
    file.forget(19)  # it does not fall
    assert DeltaTable(uri).metadata().configuration[LOW_WATER] == "20"
    assert [found["partition"] for found in stored(uri)] == [3, 5, 7]


def test_who_lost_a_race_looks_again_before_it_writes(file: File, uri: str) -> None:
    merge(file, [FIRST])
    other = DeltaFile(PARTITIONS, uri, CLUSTER)
    seen: list[int] = []

    def rows(opened: DeltaTable) -> pa.Table:
        seen.append(opened.version())
        if len(seen) == 1:
            merge(other, [row(command("orders", 4), 11)])
        return PARTITIONS.rows([row(command("orders", 5), 12)], [])

    file.merge(rows)
    assert len(seen) == 2
    assert seen[0] < seen[1]
    assert [found["partition"] for found in stored(uri)] == [3, 4, 5]


def test_a_merge_is_stored_on_the_version_that_it_was_made_on_only(file: File, uri: str) -> None:
    """Even if nothing contradicts it: a vacuum of another writer may have removed the files of this merge, which no
    version names yet."""
    merge(file, [FIRST])
    merge(file, [row(command(leader_epoch=6), 11)])
    seen: list[int] = []

    def rows(opened: DeltaTable) -> pa.Table:
        seen.append(opened.version())
        if len(seen) == 1:
            other = DeltaTable(uri)
            assert other.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True)
            assert other.version() > opened.version()
        return PARTITIONS.rows([row(command("orders", 4), 12)], [])

    file.merge(rows)
    assert len(seen) == 2
    assert [found["partition"] for found in stored(uri)] == [3, 4]


def test_a_write_of_nothing_new_makes_no_version(file: File, uri: str) -> None:
    merge(file, [FIRST])
    before = DeltaTable(uri).version()
    merge(file, [FIRST])
    merge(file)
    assert DeltaTable(uri).version() == before


def test_another_clusters_table_is_refused_and_stays(file: File, uri: str) -> None:
    merge(file, [FIRST])
    with pytest.raises(WrongCluster, match=r"cluster cluster-a's, and this is cluster cluster-b.*mirror\.path"):
        merge(DeltaFile(PARTITIONS, uri, "cluster-b"), [replace(FIRST, zxid=99)])
    assert stored(uri) == as_stored(FIRST)


def test_a_table_that_names_no_cluster_is_refused_and_stays(file: File, uri: str) -> None:
    write_deltalake(uri, PARTITIONS.rows([FIRST], []))
    with pytest.raises(WrongCluster, match=r"name no cluster, and this is cluster cluster-a.*mirror\.path"):
        merge(file, [replace(FIRST, zxid=99)])
    assert OWNER not in DeltaTable(uri).metadata().configuration
    assert stored(uri) == as_stored(FIRST)


def test_columns_that_a_table_lacks_are_added_empty(file: File, uri: str) -> None:
    rows = PARTITIONS.rows([FIRST], []).drop_columns(["adding", "elected_how"])
    write_deltalake(uri, rows)
    DeltaTable(uri).alter.set_table_properties({OWNER: CLUSTER}, raise_if_not_exists=False)
    merge(file, [row(command(leader_epoch=6), 11), row(command("payments", 0), 12)])
    assert [(found["topic"], found["adding"]) for found in stored(uri)] == [("orders", []), ("payments", [])]
    added = {field.name: field for field in DeltaTable(uri).schema().fields}["elected_how"]
    assert "how the present or last leader was elected" in added.metadata["comment"]


def test_columns_say_what_they_mean(file: File, uri: str) -> None:
    file.open()
    fields = {field.name: field for field in DeltaTable(uri).schema().fields}
    assert "route to the leader once it equals" in fields["active_epoch"].metadata["comment"]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "mirror").write_text("a file where the folder should be")
    file = DeltaFile(PARTITIONS, str(tmp_path / "mirror" / "partitions"), CLUSTER)
    with pytest.raises(StorageFailed, match=r"mirror/partitions was not written: .*mirror\.path"):
        file.open()


@pytest.mark.slow
def test_tidying_leaves_every_row(file: File, uri: str) -> None:
    for number in range(12):
        merge(file, [row(command("orders", number), 10 + number)])
    files = len(DeltaTable(uri).file_uris())
    file.tidy(1 << 30)
    assert len(DeltaTable(uri).file_uris()) < files
    assert [found["partition"] for found in stored(uri)] == list(range(12))
    merge(file, [row(command("orders", 3, leader_epoch=1), 99)])
    assert [found["leader_epoch"] for found in stored(uri)] == [0, 0, 0, 1, *[0] * 8]


def test_what_others_do_to_the_table_is_no_obstacle(file: File, uri: str) -> None:
    merge(file, [FIRST])
    DeltaTable(uri).optimize.compact(commit_properties=CommitProperties())
    DeltaTable(uri).delete("zxid < 0")
    merge(file, [row(command(leader_epoch=6), 11)])
    assert [found["leader_epoch"] for found in stored(uri)] == [6]


def test_who_knows_all_that_was_stored_may_write_what_is_older_than_the_tombstones_that_were_forgotten(
    file: File, uri: str
) -> None:
    """Somebody removed rows by hand: the next whole set brings them back, and no earlier one."""
    merge(file, [FIRST])
    file.forget(20)
    DeltaTable(uri).delete()
    for as_of, there in ((19, []), (20, as_stored(FIRST))):
        file.merge(lambda _opened: PARTITIONS.rows([FIRST], []), as_of=as_of)
        assert stored(uri) == there


def test_of_one_leadership_the_earliest_time_is_kept(file: File, uri: str) -> None:
    """A new controller knows only when the partition was last written."""
    for zxid, (leader_epoch, since_ms) in enumerate([(5, 1_000), (5, 4_000), (6, 5_000)], start=10):
        merge(file, [replace(row(command(leader_epoch=leader_epoch), zxid), leader_since_ms=since_ms)])
        (found,) = stored(uri)
        assert found["leader_since"].timestamp() * 1_000 == {5: 1_000, 6: 5_000}[leader_epoch]


@pytest.mark.slow
def test_a_table_that_changes_a_lot_keeps_less_of_its_history(file: File, uri: str) -> None:
    for number in range(10):
        merge(file, [row(command("orders", 3, leader_epoch=number), 10 + number)])
    file.tidy(1 << 30)
    kept = DeltaTable(uri).metadata().configuration
    assert kept[RETENTION_OF_DATA] == kept[RETENTION_OF_LOG] == as_interval(HISTORY)
    file.tidy(2 * 4_096)
    kept = DeltaTable(uri).metadata().configuration
    assert kept[RETENTION_OF_DATA] == as_interval(DATA_AT_LEAST)
    assert [found["leader_epoch"] for found in stored(uri)] == [9]


def test_so_many_writes_make_it_untidy(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_file, "WRITES_UNTIDY", 5)
    for number in range(5):
        assert not file.is_untidy
        merge(file, [row(command("orders", 3), 10 + number)])
    assert file.is_untidy
    file.tidy(1 << 30)
    assert not file.is_untidy


# What is only appended


@pytest.fixture
def events(tmp_path: Path) -> DeltaFile[EventRow]:
    return DeltaFile(EVENTS, str(tmp_path / "mirror" / "events"), CLUSTER)


def event(number: int, *, at_ms: int = 0) -> EventRow:
    return EventRow(cluster_id=CLUSTER, number=number, kind="request", subject={}, at_ms=at_ms, told_ms=0)


def append(file: DeltaFile[EventRow], *numbers: int) -> list[int]:
    """As the mirror does it: what the table has is left out. Returns the last number that it had at each try."""
    lasts = []

    def rows(_opened: DeltaTable, last: int) -> tuple[pa.Table, int]:
        lasts.append(last)
        left = [event(number) for number in numbers if number > last]
        return EVENTS.rows(left, []), max(numbers)

    file.append(rows)
    return lasts


def numbers_in(file: DeltaFile[EventRow]) -> list[int]:
    found: list[int] = file.read(["number"])["number"].to_pylist()
    return sorted(found)


def test_what_is_appended_again_is_there_once(events: DeltaFile[EventRow]) -> None:
    assert append(events, 1, 2) == [-1]
    assert append(events, 1, 2) == [2]
    assert append(events, 2, 3) == [2]
    assert append(DeltaFile(EVENTS, events.uri, CLUSTER), 3, 4) == [3]
    assert numbers_in(events) == [1, 2, 3, 4]


def test_who_appends_knows_what_others_appended_in_the_meantime(events: DeltaFile[EventRow]) -> None:
    append(events, 1)
    append(DeltaFile(EVENTS, events.uri, CLUSTER), 2)
    assert append(events, 2, 3) == [1, 2]
    assert numbers_in(events) == [1, 2, 3]


def test_rows_are_appended_to_the_version_that_they_were_made_for_only(events: DeltaFile[EventRow]) -> None:
    """Even if nothing contradicts them: here another writer has compacted the table meanwhile."""
    append(events, 1)
    append(events, 2)
    lasts = []

    def rows(opened: DeltaTable, last: int) -> tuple[pa.Table, int]:
        lasts.append(last)
        if len(lasts) == 1:
            other = DeltaTable(events.uri)
            other.optimize.compact()
            assert other.version() > opened.version()
        return EVENTS.rows([event(3)], []), 3

    events.append(rows)
    assert lasts == [2, 2]
    assert numbers_in(events) == [1, 2, 3]


def test_the_last_number_outlives_tidying(events: DeltaFile[EventRow], monkeypatch: pytest.MonkeyPatch) -> None:
    append(events, 1)
    append(events, 2)
    monkeypatch.setattr(delta_file, "retention", lambda *_, **_named: {RETENTION_OF_LOG: timedelta(0)})
    events.tidy(0)
    assert append(DeltaFile(EVENTS, events.uri, CLUSTER), 2, 3) == [2]
    assert numbers_in(events) == [1, 2, 3]


def test_events_are_kept_for_a_time(tmp_path: Path) -> None:
    status = DeltaFile(STATUS, str(tmp_path / "status"), CLUSTER)
    file = EventsFile(DeltaFile(EVENTS, str(tmp_path / "events"), CLUSTER), CLUSTER, 1, status)
    now = now_ms()
    rows = [event(1, at_ms=now - 3_600_000), event(2, at_ms=now - 60_000), event(3, at_ms=now)]
    file.file.append(lambda _opened, _last: (EVENTS.rows(rows, []), 3))
    file.expire(600_000)
    assert numbers_in(file.file) == [2, 3]
    assert append(file.file, 3, 4) == [3]


def groups_in(uri: str) -> list[tuple[str, int, int]]:
    rows = DeltaTable(uri).to_pyarrow_table().sort_by([("group", "ascending"), ("partition", "ascending")]).to_pylist()
    return [(each["group"], each["partition"], each["position"]) for each in rows]


def replace_groups(file: DeltaFile[GroupRow], term: int, *rows: GroupRow) -> None:
    file.replace(GROUPS.rows(rows, []), term)


def test_rows_that_are_told_together_replace_all_others(tmp_path: Path) -> None:
    file = DeltaFile(GROUPS, str(tmp_path / "groups"), CLUSTER)
    replace_groups(file, 4, group_row(0, 5), group_row(1, 6), group_row(0, 1, group="other"))
    assert groups_in(file.uri) == [("etl", 0, 5), ("etl", 1, 6), ("other", 0, 1)]
    replace_groups(file, 4, group_row(0, 7))
    assert groups_in(file.uri) == [("etl", 0, 7)]
    replace_groups(file, 4)
    assert groups_in(file.uri) == []


def test_no_rows_in_the_place_of_none_are_no_write(tmp_path: Path) -> None:
    file = DeltaFile(GROUPS, str(tmp_path / "groups"), CLUSTER)
    file.open()
    version = DeltaTable(file.uri).version()
    replace_groups(file, 4)
    assert DeltaTable(file.uri).version() == version


def test_rows_of_an_earlier_term_replace_nothing_however_late_they_come(tmp_path: Path) -> None:
    uri = str(tmp_path / "groups")
    deposed, next_one = DeltaFile(GROUPS, uri, CLUSTER), DeltaFile(GROUPS, uri, CLUSTER)
    replace_groups(deposed, 4, group_row(0, 5))  # it has the table open from here on
    replace_groups(next_one, 5, group_row(0, 6))
    replace_groups(deposed, 4, group_row(0, 9))
    assert groups_in(uri) == [("etl", 0, 6)]
    replace_groups(DeltaFile(GROUPS, uri, CLUSTER), 4)
    assert groups_in(uri) == [("etl", 0, 6)]
    replace_groups(next_one, 5, group_row(0, 7))
    assert groups_in(uri) == [("etl", 0, 7)]


@pytest.mark.slow
def test_a_table_of_groups_is_tidied(tmp_path: Path) -> None:
    file = DeltaFile(GROUPS, str(tmp_path / "groups"), CLUSTER)
    for position in range(delta_file.WRITES_UNTIDY):
        replace_groups(file, 4, group_row(0, position))
    file.tidy(1 << 20)
    assert not file.is_untidy
    replace_groups(DeltaFile(GROUPS, file.uri, CLUSTER), 3, group_row(0, 0))
    assert groups_in(file.uri) == [("etl", 0, delta_file.WRITES_UNTIDY - 1)], "whose they are is still known"

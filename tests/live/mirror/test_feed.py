"""The mirror's thread and real tables: it coalesces, never blocks who tells it, tries again, and ends up complete."""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from spark_replication.config import settings_from
from spark_replication.core.controller.news import News
from spark_replication.core.law.unreadable import Unreadable
from spark_replication.errors import RequestTimedOut, StorageFailed
from spark_replication.mirror.asking.load import UNREADABLE, read_groups
from spark_replication.mirror.delta import delta_file
from spark_replication.mirror.delta.delta_file import DeltaFile
from spark_replication.mirror.tables.facts import term_of
from spark_replication.mirror.tables.partitions import PARTITIONS
from spark_replication.mirror.tables.status import STATUS
from spark_replication.mirror.telling import feed
from spark_replication.mirror.telling.feed import MirrorThread, Teller
from spark_replication.mirror.telling.latest_rows import MUCH, LatestRows
from spark_replication.model import TopicPartition
from spark_replication.ports import MirrorFeed
from tests.live.mirror.mirror_stories import (
    CLUSTER,
    DEADLINE_S,
    changed,
    command,
    everything,
    group_row,
    thread,
    wait_for,
)

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

TELLER = Teller(CLUSTER, controller_epoch=4, address="127.0.0.1:9000")
ORDERS_3 = TopicPartition("orders", 3)
Start = Callable[..., MirrorThread]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "mirror")


@pytest.fixture
def start(path: str) -> Iterator[Start]:
    started: list[MirrorThread] = []

    def starter(interval_ms: int = 100, heartbeat_ms: int = 60_000) -> MirrorThread:
        started.append(thread(path, TELLER, interval_ms=interval_ms, heartbeat_ms=heartbeat_ms))
        return started[-1]

    yield starter
    for mirror in started:
        mirror.close()


def stored(path: str) -> list[dict[str, Any]]:
    """What exists."""
    rows = DeltaTable(PARTITIONS.path(path)).to_pyarrow_table().to_pylist()
    return sorted((row for row in rows if not row["deleted"]), key=lambda row: (row["topic"], row["partition"]))


def topics(path: str) -> list[str]:
    return [row["topic"] for row in stored(path)]


def test_a_decision_and_its_confirmation_arrive(path: str, start: Start) -> None:
    mirror = start()
    as_told: MirrorFeed = mirror
    as_told.tell(changed((command(leader=1, leader_epoch=7), 10)))
    mirror.flush(DEADLINE_S)
    (before,) = stored(path)
    as_told.confirmed(ORDERS_3, command().topic_id, 7)
    mirror.flush(DEADLINE_S)
    (after,) = stored(path)
    assert (before["leader_epoch"], before["active_epoch"]) == (7, -1)
    assert (after["leader_epoch"], after["active_epoch"]) == (7, 7)
    assert (mirror.pending, mirror.lag_ms(), mirror.wants_all) == (0, 0, False)


@pytest.mark.parametrize(("mode", "permissions"), [("700", 0o700), ("750", 0o750), ("", 0o705)])
def test_the_folder_of_the_tables_has_the_mode_that_it_is_to_have(path: str, mode: str, permissions: int) -> None:
    """Also if it was there before, with another one; without a setting it stays as it is."""
    Path(path).mkdir()
    Path(path).chmod(0o705)
    mirror = MirrorThread(path, TELLER, settings_from({"mirror.files.mode": mode}))
    mirror.tell(changed((command(), 10)))
    mirror.flush(DEADLINE_S)
    assert Path(path).stat().st_mode & 0o777 == permissions
    assert len(stored(path)) == 1
    mirror.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_nothing_is_written_into_anothers_folder_that_is_to_have_a_mode(path: str) -> None:
    Path(path).mkdir()
    os.chown(path, 65_534, -1)
    mirror = MirrorThread(path, TELLER, settings_from({"mirror.files.mode": "700"}))
    mirror.tell(changed((command(), 10)))
    wait_for(lambda: mirror.error is not None)
    assert "belongs to user 65534" in str(mirror.error)
    mirror.close()
    assert list(Path(path).iterdir()) == []


def test_a_deleted_topic_leaves(path: str, start: Start) -> None:
    mirror = start()
    mirror.tell(changed((command("orders"), 10), (command("payments"), 10)))
    mirror.tell(News(deleted=(("orders", 11),)))
    mirror.flush(DEADLINE_S)
    assert topics(path) == ["payments"]


def test_what_went_while_nobody_could_write_is_gone_after_the_next_take_over(path: str, start: Start) -> None:
    before = start()
    before.tell(changed((command("orders"), 10), (command("payments"), 11), (command("garbage"), 12)))
    before.flush(DEADLINE_S)
    before.close()
    version = DeltaTable(PARTITIONS.path(path)).version()
    hidden = Unreadable(topics=frozenset({"garbage", "never shown"}))
    after = start()
    after.tell(everything(20, (command("payments"), 11), unreadable=hidden))
    after.flush(DEADLINE_S)
    assert topics(path) == ["garbage", "payments"]
    # One version for the tombstone; what is there already is not written again.
    assert DeltaTable(PARTITIONS.path(path)).version() == version + 1
    assert DeltaTable(PARTITIONS.path(path)).count() == 3
    # What nobody could read may be from before that, and is shown once it can be. Only then may tombstones go.
    after.tell(everything(21, (command("payments"), 11), (command("garbage"), 12), (command("never shown"), 13)))
    after.flush(DEADLINE_S)
    assert topics(path) == ["garbage", "never shown", "payments"]
    assert DeltaTable(PARTITIONS.path(path)).count() == 3


def test_a_take_over_of_what_nobody_changed_writes_nothing(path: str, start: Start) -> None:
    first = start()
    told = [(command("orders", number, leader_epoch=2), 10 + number) for number in range(5)]
    first.tell(everything(9, *told))
    first.confirmed(ORDERS_3, command().topic_id, 2)
    first.flush(DEADLINE_S)
    first.close()
    rows = stored(path)
    second = start()
    second.tell(everything(9, *told))
    second.flush(DEADLINE_S)
    assert stored(path) == rows
    assert rows[3]["active_epoch"] == 2


def test_a_deposed_controllers_last_write_changes_nothing_newer(path: str, start: Start) -> None:
    deposed, present = start(), start()
    deposed.tell(changed((command("orders", 3, leader_epoch=1), 10), (command("removed", 0), 11)))
    deposed.flush(DEADLINE_S)
    present.tell(everything(20, (command("orders", 3, leader_epoch=2), 15)))
    present.flush(DEADLINE_S)
    deposed.tell(changed((command("orders", 3, leader_epoch=1, partition_epoch=4), 12), (command("removed", 0), 13)))
    deposed.flush(DEADLINE_S)
    assert [(row["topic"], row["leader_epoch"]) for row in stored(path)] == [("orders", 2)]


def test_a_thousand_changes_are_few_writes_and_nobody_waits_for_them(path: str, start: Start) -> None:
    mirror = start(interval_ms=300)
    mirror.tell(changed((command("orders", 0), 1)))
    mirror.flush(DEADLINE_S)
    first = DeltaTable(PARTITIONS.path(path)).version()
    slowest_s = 0.0
    for zxid in range(2, 1_002):
        told = time.monotonic()
        mirror.tell(changed((command("orders", zxid % 4, leader_epoch=zxid), zxid)))
        slowest_s = max(slowest_s, time.monotonic() - told)
    assert mirror.pending <= 4
    mirror.flush(DEADLINE_S)
    assert slowest_s < 1.0  # a write, or the pause between two, is not waited for
    assert DeltaTable(PARTITIONS.path(path)).version() - first <= 20
    assert {row["partition"]: row["zxid"] for row in stored(path)} == {0: 1_000, 1: 1_001, 2: 998, 3: 999}


def much_is_told_during_a_write(
    mirror: MirrorThread, monkeypatch: pytest.MonkeyPatch, then: Callable[[], None]
) -> None:
    """A confirmation of orders-3, and more rows than are written together with it. Afterwards, but before that write
    ends, `then` is called."""
    writes, told, merge = threading.Event(), threading.Event(), DeltaFile.merge

    def held(file: DeltaFile[Any], *given: Any, **named: Any) -> None:
        merge(file, *given, **named)
        writes.set()
        assert told.wait(DEADLINE_S)

    monkeypatch.setattr(DeltaFile, "merge", held)
    mirror.tell(changed((command(leader_epoch=1), 11)))
    assert writes.wait(DEADLINE_S)
    mirror.confirmed(ORDERS_3, command().topic_id, 1)
    mirror.tell(changed(*((command("payments", number), 12) for number in range(MUCH + 1))))
    then()
    told.set()


def test_a_flush_is_not_content_with_the_rows_that_go_first(
    path: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While much waits, what leaders have confirmed is a write of its own, and the rest is the next one."""
    mirror = start()
    much_is_told_during_a_write(mirror, monkeypatch, then=lambda: None)
    mirror.flush(DEADLINE_S)
    assert mirror.pending == 0
    assert [row["active_epoch"] for row in stored(path) if row["topic"] == "orders"] == [1]
    assert len(stored(path)) == MUCH + 2


def test_a_failing_path_is_reported_once_and_tried_again(
    path: str, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    Path(path).write_text("a file where the folder should be")
    with caplog.at_level(logging.INFO, logger="spark_replication.mirror"):
        mirror = start()
        mirror.tell(changed((command(leader_epoch=1), 10)))
        wait_for(lambda: mirror.error is not None)
        error = mirror.error
        with pytest.raises(RequestTimedOut, match=r"1 rows are not in .*KAFKA_STORAGE_ERROR"):
            mirror.flush(2.0)
        mirror.tell(changed((command(leader_epoch=2), 11)))
        assert (mirror.pending, mirror.lag_ms() > 0, mirror.wants_all) == (1, True, True)
        Path(path).unlink()
        mirror.flush(DEADLINE_S)

    assert isinstance(error, StorageFailed)
    assert "mirror.path" in error.message
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert mirror.error is None
    assert [found["leader_epoch"] for found in stored(path)] == [2]
    mirror.tell(everything(20, (command(leader_epoch=2), 11)))
    assert not mirror.wants_all


def test_a_table_that_somebody_removes_is_whole_again_once_all_is_told(path: str, start: Start) -> None:
    mirror = start()
    mirror.tell(changed((command("orders"), 10), (command("payments"), 11)))
    mirror.flush(DEADLINE_S)
    for file in sorted(Path(path).rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    mirror.tell(changed((command("payments", leader_epoch=3), 12)))
    wait_for(lambda: mirror.wants_all)
    mirror.tell(everything(20, (command("orders"), 10), (command("payments", leader_epoch=3), 12)))
    mirror.flush(DEADLINE_S)
    assert [(row["topic"], row["leader_epoch"]) for row in stored(path)] == [("orders", 0), ("payments", 3)]


class PanicException(BaseException):
    """What pyo3 raises where delta-rs panics: it is no Exception."""


def panics(*_given: object, **_named: object) -> None:
    raise PanicException("already shut down")


def test_a_panic_of_delta_rs_is_the_mirrors_own_trouble(
    path: str, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    mirror = start()
    with monkeypatch.context() as panicking:
        panicking.setattr(DeltaFile, "merge", panics)
        mirror.tell(everything(10, (command(), 10)))
        wait_for(lambda: mirror.error is not None)
        assert "already shut down" in str(mirror.error)
    mirror.tell(everything(10, (command(), 10)))
    mirror.flush(DEADLINE_S)
    assert (topics(path), mirror.error) == (["orders"], None)
    with monkeypatch.context() as panicking:
        panicking.setattr(DeltaFile, "tidy", panics)
        panicking.setattr(feed, "TIDY_S", 0.0)
        tidied = start()
        tidied.tell(everything(11, (command(leader_epoch=2), 11)))
        wait_for(lambda: "is tidied later" in caplog.text)
        tidied.flush(DEADLINE_S)


def test_a_mistake_of_the_mirrors_own_is_its_own_trouble(
    path: str, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    mirror, takes, tells = start(), LatestRows.take, LatestRows.tell
    monkeypatch.setattr(LatestRows, "tell", lambda *_given: 1 / 0)
    mirror.tell(changed((command(), 10)))
    assert mirror.wants_all
    monkeypatch.setattr(LatestRows, "tell", tells)
    monkeypatch.setattr(MirrorThread, "_told_of", lambda *_given: 1 / 0)
    mirror.tell(everything(10, (command(), 10)))
    wait_for(lambda: mirror.error is not None)
    assert "division by zero" in str(mirror.error)
    monkeypatch.undo()
    mirror.tell(everything(10, (command(), 10)))
    mirror.flush(DEADLINE_S)
    assert (topics(path), mirror.wants_all, LatestRows.take is takes) == (["orders"], False, True)
    assert caplog.text.count("please report") == 2


def status(path: str) -> dict[str, Any]:
    if not DeltaTable.is_deltatable(STATUS.path(path)):
        return {"zxid": None}
    rows = DeltaTable(STATUS.path(path)).to_pyarrow_table().to_pylist()
    assert len(rows) <= 1
    return dict(rows[0]) if rows else {"zxid": None}


def test_the_status_says_how_far_the_table_is_and_who_writes_it(path: str, start: Start) -> None:
    mirror = start(heartbeat_ms=500)
    mirror.tell(everything(20, (command("orders"), 10)))
    wait_for(lambda: status(path)["zxid"] == 20)
    mirror.tell(changed((command("orders", leader_epoch=3), 31)))
    wait_for(lambda: status(path)["zxid"] == 31)
    first = status(path)
    assert (first["cluster_id"], first["controller"], first["controller_epoch"]) == (CLUSTER, "127.0.0.1:9000", 4)
    assert (first["lag_ms"], first["heartbeat_ms"]) == (0, 500)
    wait_for(lambda: status(path)["as_of"] > first["as_of"])  # though nothing happens


def test_a_deposed_controller_does_not_say_how_far_its_successors_tables_are(path: str) -> None:
    successor = thread(path, TELLER, interval_ms=1, heartbeat_ms=600_000)
    successor.tell(everything(20, (command("orders"), 10)))
    wait_for(lambda: status(path)["zxid"] == 20)
    row = status(path)
    deposed = thread(path, TELLER._replace(controller_epoch=3), interval_ms=1, heartbeat_ms=1)
    deposed.tell(changed((command("orders", leader_epoch=9), 99)))
    wait_for(lambda: "written by the controller of epoch 4" in str(deposed.error))
    deposed.close()
    assert [each["zxid"] for each in stored(path)] == [10]
    assert status(path) == row
    successor.close()


def positions(path: str) -> list[tuple[int, int]]:
    try:
        rows = read_groups(path).to_pylist()
    except UNREADABLE:  # it is being made
        return []
    return sorted((row["partition"], row["position"]) for row in rows)


def test_groups_are_as_they_were_told_last(path: str, start: Start) -> None:
    mirror = start()
    mirror.tell_groups([group_row(0, 5), group_row(1, 6)])
    wait_for(lambda: positions(path) == [(0, 5), (1, 6)])
    mirror.tell(everything(20, (command("orders"), 10)))
    mirror.tell_groups([group_row(0, 8)])
    wait_for(lambda: positions(path) == [(0, 8)])
    mirror.flush(DEADLINE_S)
    assert (topics(path), mirror.error) == (["orders"], None)


def test_a_deposed_controller_does_not_say_how_far_groups_are(path: str, start: Start) -> None:
    start().tell_groups([group_row(0, 5)])
    wait_for(lambda: positions(path) == [(0, 5)])
    deposed = thread(path, TELLER._replace(controller_epoch=3), interval_ms=1)
    deposed.tell_groups([group_row(0, 1)])
    wait_for(lambda: deposed._told_groups is None)
    deposed.close()
    assert positions(path) == [(0, 5)]


def test_groups_that_cannot_be_written_are_the_mirrors_own_trouble(path: str, start: Start) -> None:
    mirror = start(heartbeat_ms=100)
    mirror.tell(everything(20, (command("orders"), 10)))
    mirror.flush(DEADLINE_S)
    shutil.rmtree(Path(path, "groups"))
    Path(path, "groups").write_text("a file where the folder should be")
    mirror.tell_groups([group_row(0, 5)])
    wait_for(lambda: mirror.error is not None)
    assert mirror.wants_all
    Path(path, "groups").unlink()
    mirror.tell_groups([group_row(0, 6)])
    mirror.tell(everything(20, (command("orders"), 10)))
    wait_for(lambda: positions(path) == [(0, 6)])
    wait_for(lambda: mirror.error is None)


def test_a_table_that_cannot_be_written_is_not_said_to_be_fresh(path: str, start: Start) -> None:
    mirror = start(heartbeat_ms=100)
    mirror.tell(everything(20, (command("orders"), 10)))
    wait_for(lambda: status(path)["zxid"] == 20)
    for file in sorted(Path(PARTITIONS.path(path)).rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    Path(PARTITIONS.path(path)).rmdir()
    Path(PARTITIONS.path(path)).write_text("a file where the folder should be")
    mirror.tell(changed((command("orders", leader_epoch=3), 31)))
    wait_for(lambda: mirror.error is not None)
    mirror.heed(["the table cannot be written"])
    wait_for(lambda: status(path)["problems"] == ["the table cannot be written"])
    assert (status(path)["zxid"], mirror.error is None) == (20, False)
    Path(PARTITIONS.path(path)).unlink()
    mirror.heed([])
    mirror.tell(everything(32, (command("orders", leader_epoch=3), 31)))
    wait_for(lambda: status(path)["zxid"] == 32)
    assert (status(path)["problems"], mirror.error) == ([], None)


def test_before_any_row_is_told_there_is_no_status(path: str, start: Start) -> None:
    mirror = start(heartbeat_ms=1)
    for _ in range(2):  # the thread takes the second after the status was due
        mirror.confirmed(ORDERS_3, command().topic_id, 7)  # of a partition that it does not know
        mirror.flush(DEADLINE_S)
    assert status(path) == {"zxid": None}
    mirror.tell(everything(20, (command(), 10)))
    wait_for(lambda: status(path)["zxid"] == 20)


def test_the_status_counts_no_event_whose_row_is_missing(
    path: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next controller reads the events after that number, to know what rows were."""

    def full(*_given: object, **_named: object) -> None:
        raise StorageFailed("no space left on device")

    died = thread(path, TELLER._replace(controller_epoch=3), heartbeat_ms=600_000)
    died.tell(everything(20, (command(), 10)))
    died.flush(DEADLINE_S)
    with monkeypatch.context() as failing:
        failing.setattr(DeltaFile, "merge", full)
        died.tell(changed((command(leader_epoch=1), 31)))
        wait_for(lambda: died.error is not None)
        died.close(DEADLINE_S)
    mirror = start()
    mirror.tell(everything(40, (command("payments"), 12), unreadable=Unreadable(topics=frozenset({"orders"}))))
    wait_for(lambda: status(path)["zxid"] == 40)
    assert (status(path)["controller_epoch"], status(path)["event"]) == (4, -1)
    mirror.tell(everything(41, (command(leader_epoch=1), 31), (command("payments"), 12)))
    wait_for(lambda: status(path)["zxid"] == 41)
    assert term_of(status(path)["event"]) == 4


def test_the_status_says_what_is_wrong_without_waiting_for_the_heartbeat(
    path: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror, merge, changing = start(heartbeat_ms=600_000), DeltaFile.merge, ["2 brokers are gone"]
    mirror.tell(everything(20, (command(), 10)))
    wait_for(lambda: status(path)["zxid"] == 20)

    def changes_meanwhile(file: DeltaFile[Any], *given: Any, **named: Any) -> None:
        if changing:
            mirror.heed([changing.pop()])
        merge(file, *given, **named)

    monkeypatch.setattr(DeltaFile, "merge", changes_meanwhile)
    mirror.heed(["1 broker is gone"])
    wait_for(lambda: status(path)["problems"] == ["2 brokers are gone"])


def test_a_table_that_was_written_often_is_tidied_before_its_hour(
    path: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_file, "WRITES_UNTIDY", 3)
    mirror = start()
    for number in range(4):  # it is tidied before the fourth write
        assert mirror.error is None
        mirror.tell(changed((command("orders", number), 10 + number)))
        mirror.flush(DEADLINE_S)
    operations = [each["operation"] for each in DeltaTable(PARTITIONS.path(path)).history()]
    assert operations.count("MERGE") == 4
    assert "OPTIMIZE" in operations


@pytest.mark.parametrize("fails", ["open", "tidy"])
def test_a_mistake_beside_the_writes_does_not_end_the_mirror(
    path: str, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fails: str
) -> None:
    monkeypatch.setattr(DeltaFile, fails, lambda *_given: 1 / 0)
    monkeypatch.setattr(feed, "TIDY_S", 0.0)
    mirror = start()
    for zxid in (10, 11):
        mirror.tell(changed((command(leader_epoch=zxid), zxid)))
        mirror.flush(DEADLINE_S)
    assert [row["leader_epoch"] for row in stored(path)] == [11]
    wait_for(lambda: "division by zero" in caplog.text)
    wait_for(lambda: mirror.error is None)


def test_closing_writes_what_waits(path: str, start: Start) -> None:
    mirror = start(interval_ms=600_000)
    mirror.tell(changed((command(leader_epoch=1), 10)))
    mirror.flush(DEADLINE_S)
    mirror.tell(changed((command(leader_epoch=2), 11)))
    mirror.close(DEADLINE_S)
    assert [row["leader_epoch"] for row in stored(path)] == [2]
    mirror.tell(changed((command(leader_epoch=3), 12)))
    with pytest.raises(RequestTimedOut, match="has ended"):
        mirror.flush(DEADLINE_S)


def test_closing_gives_up_after_a_last_try(path: str, start: Start) -> None:
    Path(path).write_text("a file where the folder should be")
    mirror = start()
    mirror.tell(changed((command(), 10)))
    mirror.close(DEADLINE_S)
    assert mirror.pending == 1
    with pytest.raises(RequestTimedOut, match="has ended"):
        mirror.flush(DEADLINE_S)


def test_closing_writes_all_that_waits_though_some_rows_go_first(
    path: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = start()
    much_is_told_during_a_write(mirror, monkeypatch, then=lambda: mirror.close(timeout_s=0))
    mirror.close(DEADLINE_S)
    assert (mirror.pending, len(stored(path))) == (0, MUCH + 2)


def test_a_rebuild_brings_back_what_somebody_removed_by_hand(path: str, start: Start) -> None:
    mirror = start()
    told = everything(20, (command("orders", 0), 10), (command("orders", 1), 11))
    mirror.tell(told)
    mirror.flush(DEADLINE_S)
    DeltaTable(PARTITIONS.path(path)).delete("partition = 1")
    with ThreadPoolExecutor(1) as aside:
        rebuilt = aside.submit(mirror.rebuild, DEADLINE_S)
        wait_for(lambda: mirror.wants_all)
        assert not rebuilt.done()
        mirror.tell(told)  # as the controller does with its next tick
        rebuilt.result(DEADLINE_S)
    assert sorted(DeltaTable(PARTITIONS.path(path)).to_pyarrow_table()["partition"].to_pylist()) == [0, 1]


def test_a_rebuild_does_not_wait_for_what_is_told_after_it(
    path: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under load something is always told that is not written yet: here, with each write."""
    mirror = start(interval_ms=20)
    epochs, merge = iter(range(1, 1_000_000)), DeltaFile.merge

    def told_meanwhile(*given: Any, **named: Any) -> None:
        mirror.tell(changed((command("orders", 0, leader_epoch=(epoch := next(epochs))), 22 + epoch)))
        merge(*given, **named)

    mirror.tell(everything(20, (command("orders", 0), 10)))
    mirror.flush(DEADLINE_S)
    monkeypatch.setattr(DeltaFile, "merge", told_meanwhile)
    with ThreadPoolExecutor(1) as aside:
        rebuilt = aside.submit(mirror.rebuild, DEADLINE_S)
        wait_for(lambda: mirror.wants_all)
        mirror.tell(everything(21, (command("orders", 0), 10)))
        rebuilt.result()
    monkeypatch.undo()


def test_what_keeps_tables_from_being_rebuilt_is_told(path: str, start: Start) -> None:
    Path(path).write_text("a file where the folder should be")
    mirror = start()
    wait_for(lambda: mirror.error is not None)
    with ThreadPoolExecutor(1) as aside:
        rebuilt = aside.submit(mirror.rebuild, DEADLINE_S)
        wait_for(lambda: mirror.error is None)
        mirror.tell(everything(20, (command("orders", 0), 10)))
        with pytest.raises(StorageFailed, match=r"mirror/\w+ was not written.*mirror\.path"):
            rebuilt.result(DEADLINE_S)


def test_a_rebuild_that_takes_long_is_asked_for_again(start: Start) -> None:
    with pytest.raises(RequestTimedOut, match="are being written: ask again"):
        start().rebuild(0.1)  # nobody tells it everything

"""A broker's directory: replicas found, recovered, quarantined; one process at a time; proofs of a clean start."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_replication.config import TopicSettings
from spark_replication.errors import (
    CorruptState,
    DirectoryInUse,
    InvalidRequest,
    StorageFailed,
    WrongCluster,
)
from spark_replication.messages.commands import PutAside
from spark_replication.model import DirectoryIdentity, ReplicaOf, TopicPartition
from spark_replication.storage.directory.broker_directory import (
    CleanShutdown,
    DirectoryLock,
    StartRecord,
    boot_id,
    directory_mark,
    drop_proofs,
    probe,
    read_clean_shutdown,
    read_identity,
    read_start_record,
    remove_clean_shutdown,
    write_clean_shutdown,
    write_identity,
    write_start_record,
)
from spark_replication.storage.directory.local_files import LocalLogs
from spark_replication.storage.directory.quarantine import OVERDUE_MS_MAX
from spark_replication.storage.disk.files import LocalFiles
from spark_replication.storage.log.segment_memory import SegmentMemory
from tests.small_disk import fill, small_disk
from tests.unit.storage.failing_files import FailingFiles
from tests.unit.storage.storage_stories import prepared, read_rows

SETTINGS = TopicSettings()
ORDERS = TopicPartition("orders", 3)
DOTTED = TopicPartition("a.b-c", 0)


def logs_in(
    directory: Path, now_ms: int = 0, *, open_files_max: int = 10, files: LocalFiles | None = None
) -> LocalLogs:
    return LocalLogs(
        directory,
        files=files or LocalFiles(open_files_max=open_files_max),
        memory=SegmentMemory(index_bytes_max=1 << 20, batch_bytes_max=1 << 20),
        now_ms=lambda: now_ms,
        before_cut=lambda: drop_proofs(directory),
        distrust=lambda: drop_proofs(directory),
    )


def write_one(logs: LocalLogs, partition: TopicPartition, topic_id: str) -> None:
    log = logs.open(partition, topic_id, SETTINGS)
    log.begin_epoch(0)
    log.append(prepared(0), leader_epoch=0, timestamp_ms=0)
    log.close()


def test_replicas_are_found_and_strangers_left_alone(tmp_path: Path) -> None:
    logs = logs_in(tmp_path / "data")
    assert logs.found() == []
    for partition in (ORDERS, DOTTED):
        write_one(logs, partition, "id1")
    for stranger in ("lost+found", "orders-3", "orders-x.id1", "orders-03.id1", ".id1"):
        (tmp_path / "data" / stranger).mkdir()
    (tmp_path / "data" / "orders-4.id1").write_text("a file")
    assert logs.found() == [(DOTTED, "id1"), (ORDERS, "id1")]


@pytest.mark.parametrize(("topic", "topic_id"), [("../up", "id"), ("orders", "a.b"), ("orders", ""), ("orders", "a/b")])
def test_a_name_that_would_not_be_found_again_is_not_made(tmp_path: Path, topic: str, topic_id: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot name a replica's folder"):
        logs_in(tmp_path).open(TopicPartition(topic, 0), topic_id, SETTINGS)
    assert list(tmp_path.iterdir()) == []


def test_recovery_comes_first_and_drops_the_proofs_before_it_cuts(tmp_path: Path) -> None:
    for partition in (ORDERS, DOTTED):
        write_one(logs_in(tmp_path), partition, "id1")
    write_start_record(tmp_path, StartRecord(boot_id=boot_id(), directory_mark=directory_mark(tmp_path), epoch=7))
    assert [report.lossless for report in logs_in(tmp_path).recover()] == [True, True]
    assert read_start_record(tmp_path) is not None
    (index,) = (tmp_path / "orders-3.id1").glob("*.index")
    index.write_bytes(bytes(80))
    logs = logs_in(tmp_path)
    assert [(report.log_end, report.entries_cut) for report in logs.recover()] == [(2, 0), (0, 1)]
    assert read_start_record(tmp_path) is None
    assert logs.open(ORDERS, "id1", SETTINGS).recovery.entries_cut == 1
    assert logs.open(ORDERS, "id1", SETTINGS).recovery.entries_cut == 0
    kept = logs.open(DOTTED, "id1", SETTINGS)
    assert read_rows(kept) == [0, 1]
    kept.close()


def test_one_log_that_cannot_be_read_keeps_no_other_from_starting(tmp_path: Path) -> None:
    for partition in (ORDERS, DOTTED):
        write_one(logs_in(tmp_path), partition, "id1")
    (index,) = (tmp_path / "orders-3.id1").glob("*.index")
    index.rename(tmp_path / "kept")
    index.mkdir()  # a read of it is refused
    logs = logs_in(tmp_path)
    kept, failed = logs.recover()
    assert (kept.lossless, failed.lossless, failed.failed) == (True, False, True)
    assert failed.why.startswith(f"recovery of {tmp_path / 'orders-3.id1'} failed")
    with pytest.raises(StorageFailed, match="Repair the disk"):
        logs.open(ORDERS, "id1", SETTINGS)
    assert read_rows(logs.open(DOTTED, "id1", SETTINGS)) == [0, 1]
    index.rmdir()
    (tmp_path / "kept").rename(index)
    assert read_rows(logs.open(ORDERS, "id1", SETTINGS)) == [0, 1], "the disk can be repaired while the broker runs"


def quarantined(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / "quarantine").iterdir())


def test_what_was_put_aside_is_told_with_its_day_and_what_was_asked_for_is_not(tmp_path: Path) -> None:
    logs = logs_in(tmp_path, 1_000)
    assert logs.put_aside(500) == []
    for partition, topic_id, asked in ((ORDERS, "id1", False), (ORDERS, "id2", True)):
        write_one(logs, partition, topic_id)
        logs.quarantine(partition, topic_id, asked=asked)
    (tmp_path / "quarantine" / "somebody's.9.unassigned-5").mkdir()
    assert logs.put_aside(500) == [
        PutAside(replica=ReplicaOf(ORDERS, "id1"), folder="quarantine/orders-3.id1.1.unassigned-1000", until_ms=1_500)
    ]
    (tmp_path / "quarantine" / "orders-3.id1.1.unassigned-1000").rename(tmp_path / "rescued")
    assert logs.put_aside(500) == []


def test_a_replica_in_quarantine_is_out_of_service_and_deleted_later(tmp_path: Path) -> None:
    logs = logs_in(tmp_path)
    for now_ms in (1000, 2000):
        logs = logs_in(tmp_path, now_ms)
        write_one(logs, ORDERS, "id1")
        logs.quarantine(ORDERS, "id1", asked=True)
        logs.quarantine(ORDERS, "id1", asked=True)
        assert logs.found() == []
    one, two = "orders-3.id1.1.deleted-1000", "orders-3.id1.2.deleted-2000"
    assert quarantined(tmp_path) == [one, two]
    assert logs.delete_quarantined(asked_delay_ms=500, unasked_delay_ms=0, now_ms=2000) == [one]
    assert logs.delete_quarantined(asked_delay_ms=500, unasked_delay_ms=0, now_ms=2499) == []
    assert logs.delete_quarantined(asked_delay_ms=500, unasked_delay_ms=0, now_ms=2500) == [two]
    assert logs_in(tmp_path / "none").delete_quarantined(asked_delay_ms=0, unasked_delay_ms=0, now_ms=0) == []


def test_what_nobody_asked_to_delete_is_kept_for_longer(tmp_path: Path) -> None:
    logs = logs_in(tmp_path, 1000)
    for partition in (ORDERS, DOTTED):
        write_one(logs, partition, "id1")
        logs.quarantine(partition, "id1", asked=partition == ORDERS)
    delays = {"asked_delay_ms": 10, "unasked_delay_ms": 500}
    assert logs.delete_quarantined(**delays, now_ms=1499) == ["orders-3.id1.1.deleted-1000"]
    assert logs.delete_quarantined(**delays, now_ms=1500) == ["a.b-c-0.id1.2.unassigned-1000"]


@pytest.mark.parametrize(
    ("at_ms", "now_ms"), [(5_000, 4_999), (0, 11 + OVERDUE_MS_MAX)], ids=["in the future", "before the clock was set"]
)
def test_a_date_that_cannot_be_true_begins_the_delay_anew(tmp_path: Path, at_ms: int, now_ms: int) -> None:
    logs = logs_in(tmp_path, at_ms)
    write_one(logs, ORDERS, "id1")
    logs.quarantine(ORDERS, "id1", asked=True)
    delays = {"asked_delay_ms": 10, "unasked_delay_ms": 10}
    assert logs.delete_quarantined(**delays, now_ms=now_ms) == []
    assert quarantined(tmp_path) == [f"orders-3.id1.2.deleted-{now_ms}"]
    assert logs.delete_quarantined(**delays, now_ms=now_ms + 9) == []
    assert logs.delete_quarantined(**delays, now_ms=now_ms + 10) == [f"orders-3.id1.2.deleted-{now_ms}"]


def test_a_folder_that_was_overdue_while_its_broker_was_down_goes(tmp_path: Path) -> None:
    logs = logs_in(tmp_path, 0)
    write_one(logs, ORDERS, "id1")
    logs.quarantine(ORDERS, "id1", asked=True)
    assert logs.delete_quarantined(asked_delay_ms=10, unasked_delay_ms=10, now_ms=10 + OVERDUE_MS_MAX) != []


def test_what_a_person_put_there_is_kept_as_if_it_had_come_when_it_was_first_seen(tmp_path: Path) -> None:
    (tmp_path / "quarantine" / "orders-3.id1.1").mkdir(parents=True)
    logs = logs_in(tmp_path)
    delays = {"asked_delay_ms": 500, "unasked_delay_ms": 1_000}
    for now_ms in (1_499, 2_498):
        assert logs.delete_quarantined(**delays, now_ms=now_ms) == []
    assert logs.delete_quarantined(**delays, now_ms=2_499) != []
    assert quarantined(tmp_path) == []


def test_a_folder_that_cannot_be_deleted_keeps_no_other(tmp_path: Path) -> None:
    files = FailingFiles()
    logs = logs_in(tmp_path, files=files)
    for partition in (ORDERS, DOTTED):
        write_one(logs, partition, "id1")
        logs.quarantine(partition, "id1", asked=True)
    files.refuse("remove_folder", "a.b-c-0.id1.2.deleted-0")
    with pytest.raises(StorageFailed, match="1 folders in quarantine cannot be deleted, 1 were"):
        logs.delete_quarantined(asked_delay_ms=0, unasked_delay_ms=0, now_ms=0)
    assert quarantined(tmp_path) == ["a.b-c-0.id1.2.deleted-0"]


def test_one_process_lives_in_a_directory(tmp_path: Path) -> None:
    assert not probe(tmp_path / "data")
    lock = DirectoryLock.take(tmp_path / "data")
    with pytest.raises(DirectoryInUse, match="another broker lives in"):
        DirectoryLock.take(tmp_path / "data")
    assert probe(tmp_path / "data")
    lock.release()
    assert not probe(tmp_path / "data")
    DirectoryLock.take(tmp_path / "data").release()


def test_a_disk_without_locks_is_no_other_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_handle: int) -> bool:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("spark_replication.storage.directory.broker_directory.take_lock", refuse)
    with pytest.raises(StorageFailed, match="cannot be locked"):
        DirectoryLock.take(tmp_path)


def test_a_lock_is_seen_from_another_process_and_goes_with_its_holder(tmp_path: Path) -> None:
    story = (
        "import sys; from pathlib import Path; from spark_replication.storage.directory.broker_directory import *\n"
        "held = DirectoryLock.take(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", story, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        assert probe(tmp_path)
        with pytest.raises(DirectoryInUse):
            DirectoryLock.take(tmp_path)
        child.kill()
    assert not probe(tmp_path)


def test_a_directory_belongs_to_one_broker_of_one_cluster(tmp_path: Path) -> None:
    assert read_identity(tmp_path) is None
    identity = DirectoryIdentity(cluster_id="c1", broker_id=2)
    write_identity(tmp_path, identity)
    before = (tmp_path / "meta.json").stat().st_ino
    write_identity(tmp_path, identity)
    assert (tmp_path / "meta.json").stat().st_ino == before, "it is not written again: a full disk would refuse"
    with pytest.raises(WrongCluster, match="belongs to broker 2 of cluster c1"):
        write_identity(tmp_path, DirectoryIdentity(cluster_id="c1", broker_id=3))
    assert read_identity(tmp_path) == identity
    (tmp_path / "meta.json").write_text("{")
    with pytest.raises(CorruptState, match=r"meta\.json"):
        read_identity(tmp_path)


def test_proofs_are_written_read_and_dropped_and_a_damaged_one_proves_nothing(tmp_path: Path) -> None:
    assert (read_start_record(tmp_path), read_clean_shutdown(tmp_path)) == (None, None)
    start = StartRecord(boot_id=boot_id(), directory_mark=directory_mark(tmp_path), epoch=4)
    write_start_record(tmp_path, start)
    write_clean_shutdown(tmp_path, CleanShutdown(broker_epoch=4))
    assert (read_start_record(tmp_path), read_clean_shutdown(tmp_path)) == (start, CleanShutdown(broker_epoch=4))
    remove_clean_shutdown(tmp_path)
    assert (read_start_record(tmp_path), read_clean_shutdown(tmp_path)) == (start, None)
    drop_proofs(tmp_path)
    assert read_start_record(tmp_path) is None
    for name in ("start.json", "clean_shutdown.json"):
        (tmp_path / name).write_text('{"v":1')
    assert (read_start_record(tmp_path), read_clean_shutdown(tmp_path)) == (None, None)


def test_what_a_full_disk_refuses_of_a_directory_is_told(tmp_path: Path) -> None:
    record = StartRecord(boot_id="boot", directory_mark="mark", epoch=4)
    with small_disk(tmp_path / "disk", 1 << 20) as mounted:
        fill(mounted)
        refused: list[Callable[[], object]] = [
            lambda: write_start_record(mounted, record),
            lambda: write_clean_shutdown(mounted, CleanShutdown(broker_epoch=4)),
            lambda: write_identity(mounted, DirectoryIdentity(cluster_id="c1", broker_id=2)),
            lambda: directory_mark(mounted),
        ]
        for write in refused:
            with pytest.raises(StorageFailed, match=r"cannot be written.*Free space"):
                write()
    for name in ("start.json", "clean_shutdown.json"):
        (tmp_path / name).mkdir()
    assert (read_start_record(tmp_path), read_clean_shutdown(tmp_path)) == (None, None)
    with pytest.raises(StorageFailed, match="cannot be removed"):
        drop_proofs(tmp_path)
    with pytest.raises(StorageFailed, match="cannot be removed"):
        remove_clean_shutdown(tmp_path)


def test_a_copied_directory_has_another_mark(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    mark = directory_mark(tmp_path / "one")
    assert directory_mark(tmp_path / "one") == mark
    (tmp_path / "two" / "mark").write_bytes((tmp_path / "one" / "mark").read_bytes())
    assert directory_mark(tmp_path / "two") != mark

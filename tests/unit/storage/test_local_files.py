"""A broker's directory: replicas found, recovered, quarantined; one process at a time; proofs of a clean start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from spark_replication.config import TopicSettings
from spark_replication.errors import (
    CorruptState,
    DirectoryInUse,
    InvalidRequest,
    WrongCluster,
)
from spark_replication.model import DirectoryIdentity, TopicPartition
from spark_replication.storage.broker_directory import (
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
from spark_replication.storage.files import LocalFiles
from spark_replication.storage.local_files import LocalLogs
from spark_replication.storage.segment_memory import SegmentMemory
from tests.unit.storage.storage_stories import prepared, read_rows

SETTINGS = TopicSettings()
ORDERS = TopicPartition("orders", 3)
DOTTED = TopicPartition("a.b-c", 0)


def logs_in(directory: Path, now_ms: int = 0, *, open_files_max: int = 10) -> LocalLogs:
    return LocalLogs(
        directory,
        files=LocalFiles(open_files_max=open_files_max),
        memory=SegmentMemory(index_bytes_max=1 << 20, batch_bytes_max=1 << 20),
        now_ms=lambda: now_ms,
        before_cut=lambda: drop_proofs(directory),
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


def test_a_replica_in_quarantine_is_out_of_service_and_deleted_later(tmp_path: Path) -> None:
    logs = logs_in(tmp_path)
    for now_ms in (1000, 2000):
        logs = logs_in(tmp_path, now_ms)
        write_one(logs, ORDERS, "id1")
        logs.quarantine(ORDERS, "id1")
        logs.quarantine(ORDERS, "id1")
        assert logs.found() == []
    unmarked = tmp_path / "quarantine" / "unmarked"
    unmarked.mkdir()
    assert sorted(path.name for path in (tmp_path / "quarantine").iterdir()) == [
        "orders-3.id1.1",
        "orders-3.id1.2",
        "unmarked",
    ]
    assert logs.delete_quarantined(older_than_ms=500, now_ms=1499) == []
    assert logs.delete_quarantined(older_than_ms=500, now_ms=1500) == ["orders-3.id1.1"]
    assert logs.delete_quarantined(older_than_ms=500, now_ms=2500) == ["orders-3.id1.2", "unmarked"]
    assert logs_in(tmp_path / "none").delete_quarantined(older_than_ms=0, now_ms=0) == []


def test_one_process_lives_in_a_directory(tmp_path: Path) -> None:
    assert not probe(tmp_path / "data")
    lock = DirectoryLock.take(tmp_path / "data")
    with pytest.raises(DirectoryInUse, match="another broker lives in"):
        DirectoryLock.take(tmp_path / "data")
    assert probe(tmp_path / "data")
    lock.release()
    assert not probe(tmp_path / "data")
    DirectoryLock.take(tmp_path / "data").release()


def test_a_lock_is_seen_from_another_process_and_goes_with_its_holder(tmp_path: Path) -> None:
    story = (
        "import sys; from pathlib import Path; from spark_replication.storage.broker_directory import *\n"
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
    write_identity(tmp_path, identity)
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


def test_a_copied_directory_has_another_mark(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    mark = directory_mark(tmp_path / "one")
    assert directory_mark(tmp_path / "one") == mark
    (tmp_path / "two" / "mark").write_bytes((tmp_path / "one" / "mark").read_bytes())
    assert directory_mark(tmp_path / "two") != mark

"""What a guardian finds on its host before it starts anything."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spark_replication.config import Settings
from spark_replication.core.guardianship import FoundDirectory
from spark_replication.engine.guarding.leases import Lease
from spark_replication.live.guarding.attempts import next_attempt
from spark_replication.live.guarding.broker_file import BROKER_FILE, BrokerFile, read_broker_file, write_broker_file
from spark_replication.live.guarding.guardian import Assignment, Guardian, found_directories
from spark_replication.model import DirectoryIdentity
from spark_replication.storage.directory.broker_directory import DirectoryLock, write_identity
from spark_replication.transport.security.security import NO_SECURITY
from tests.waiting import eventually


def directory_of(logs: Path, broker_id: int, cluster_id: str) -> Path:
    directory = logs / f"broker-{broker_id}"
    directory.mkdir(parents=True)
    write_identity(directory, DirectoryIdentity(cluster_id=cluster_id, broker_id=broker_id))
    return directory


def test_only_directories_of_this_cluster_are_found_and_whether_somebody_lives_there(tmp_path: Path) -> None:
    directory_of(tmp_path, 1, "ours")
    lock = DirectoryLock.take(directory_of(tmp_path, 2, "ours"))
    directory_of(tmp_path, 3, "theirs")
    (tmp_path / "broker-4").mkdir()
    (tmp_path / "broker-5").mkdir()
    (tmp_path / "broker-5" / "meta.json").write_text("{")
    try:
        found = found_directories(tmp_path, "ours")
    finally:
        lock.release()
    assert found == (FoundDirectory(1, alive=False), FoundDirectory(2, alive=True))
    assert found_directories(tmp_path / "none", "ours") == ()


def test_a_directory_that_cannot_be_read_hides_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory_of(tmp_path, 1, "ours")
    (tmp_path / "broker-0").write_text("a file")
    (tmp_path / "broker-2" / "meta.json").mkdir(parents=True)
    (directory_of(tmp_path, 3, "ours") / "lock").mkdir()
    assert found_directories(tmp_path, "ours") == (FoundDirectory(1, alive=False),)
    for strange in ("broker-0", "broker-2", "broker-3"):
        assert f"{strange} is passed over" in caplog.text


def guardian_of(logs: Path) -> Guardian:
    assignment = Assignment(
        log_directory=str(logs), cluster_id="ours", zookeeper="127.0.0.1:1", host="127.0.0.1", overrides={}
    )
    return Guardian(1, assignment, Lease(1, 0), settings=Settings(), security=NO_SECURITY, report=lambda _died: None)


def test_a_disk_that_refuses_is_this_brokers_trouble_and_ends_no_guardian(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("no directory can be made here")
    guardian = guardian_of(tmp_path / "logs")
    thread = threading.Thread(target=guardian.guard)
    thread.start()
    eventually(lambda: "cannot be used: [Errno 20]" in guardian.trouble, "it says why")
    assert thread.is_alive()
    guardian.stop()
    thread.join(10)
    assert not thread.is_alive()


def test_a_guardian_that_is_gone_leaves_no_descriptors(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        guardian_of(tmp_path).stop()
    gc.collect()
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 4


def test_a_damaged_broker_file_says_nothing(tmp_path: Path) -> None:
    found = BrokerFile(pid=1, incarnation="a", host="h", port=1, replication_port=2, epoch=0)
    write_broker_file(tmp_path, found)
    assert read_broker_file(tmp_path) == found
    (tmp_path / BROKER_FILE).write_bytes(b"")
    assert read_broker_file(tmp_path) is None
    assert read_broker_file(tmp_path / "none") is None


def test_each_start_gets_a_later_attempt_whatever_the_clock_says(tmp_path: Path) -> None:
    assert [next_attempt(tmp_path) for _ in range(3)] == [1, 2, 3]
    with ThreadPoolExecutor(8) as together:
        got = sorted(together.map(lambda _: next_attempt(tmp_path), range(40)))
    assert got == list(range(4, 44))

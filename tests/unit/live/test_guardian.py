"""What a guardian finds on its host before it starts anything."""

from __future__ import annotations

from pathlib import Path

from spark_replication.config import settings_from
from spark_replication.core.guardianship import FoundDirectory
from spark_replication.live.guarding.guardian import found_directories, overrides_of
from spark_replication.model import DirectoryIdentity
from spark_replication.storage.broker_directory import DirectoryLock, write_identity


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


def test_what_is_handed_to_another_process_is_what_differs_from_the_defaults() -> None:
    settings = settings_from({"min.insync.replicas": 1, "segment.bytes": 256 << 20})
    assert overrides_of(settings) == {"min.insync.replicas": 1}
    assert settings_from(overrides_of(settings)) == settings

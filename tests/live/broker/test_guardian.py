"""A guardian whose broker cannot start says why, and goes on: it must not end the stage of all the others."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from spark_replication.config import Settings
from spark_replication.live.guarding.guardian import DIRECTORY, Assignment, Guardian, Lease
from spark_replication.model import DirectoryIdentity
from spark_replication.storage.broker_directory import read_identity, write_identity
from spark_replication.transport.security import NO_SECURITY
from tests.live.broker.brokers import eventually

pytestmark = pytest.mark.live


def test_another_clusters_directory_is_not_taken_and_the_guardian_says_so(tmp_path: Path) -> None:
    directory = tmp_path / DIRECTORY.format(1)
    directory.mkdir()
    theirs = DirectoryIdentity(cluster_id="theirs", broker_id=1)
    write_identity(directory, theirs)
    assignment = Assignment(
        log_directory=str(tmp_path), cluster_id="ours", zookeeper="127.0.0.1:1", host="127.0.0.1", overrides={}
    )
    guardian = Guardian(
        1, assignment, Lease(1, 0), settings=Settings(), security=NO_SECURITY, report=lambda _died: None
    )
    thread = threading.Thread(target=guardian.guard)
    thread.start()
    try:
        eventually(lambda: "belongs to broker 1 of cluster theirs" in guardian.trouble, "it says why")
        assert thread.is_alive()
        assert not guardian.adopted
    finally:
        guardian.stop()
        thread.join()
    assert read_identity(directory) == theirs

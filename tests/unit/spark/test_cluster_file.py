"""cluster.json says who commands, for as long as that is so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spark_replication.config import settings_from
from spark_replication.errors import InvalidConfig
from spark_replication.spark.cluster_file import (
    CLUSTER_FILE,
    ClusterFile,
    OwnClusterFile,
    make_data_directory,
    read_cluster_file,
)

ZOOKEEPER = "zk://127.0.0.1:2181/spark_replication"


def file_of(controller_epoch: int, since_ms: int) -> ClusterFile:
    return ClusterFile(
        zookeeper=ZOOKEEPER, controller_epoch=controller_epoch, driver_pid=os.getpid(), active_since_ms=since_ms
    )


def test_a_data_directory_in_which_everybody_may_write_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(InvalidConfig, match="may write in"):
        make_data_directory(settings_from({"data.dir": str(tmp_path)}))
    tmp_path.chmod(0o775)
    assert make_data_directory(settings_from({"data.dir": str(tmp_path)})) == tmp_path


def test_it_is_there_once_the_start_is_complete_and_has_the_present_epoch(tmp_path: Path) -> None:
    own = OwnClusterFile(tmp_path)
    own.took_over(1, 1_000)
    own.took_over(2, 2_000)
    assert read_cluster_file(tmp_path) is None
    own.started(ZOOKEEPER)
    assert read_cluster_file(tmp_path) == file_of(2, 2_000)
    own.took_over(3, 3_000)
    assert read_cluster_file(tmp_path) == file_of(3, 3_000)


def test_it_goes_with_the_command_and_comes_again(tmp_path: Path) -> None:
    own = OwnClusterFile(tmp_path)
    own.stood_down()
    own.took_over(1, 1_000)
    own.started(ZOOKEEPER)
    own.stood_down()
    assert list(tmp_path.iterdir()) == []
    own.stood_down()
    own.took_over(3, 3_000)
    assert read_cluster_file(tmp_path) == file_of(3, 3_000)


def test_a_start_that_ends_while_another_commands_says_nothing(tmp_path: Path) -> None:
    own = OwnClusterFile(tmp_path)
    own.took_over(1, 1_000)
    own.stood_down()
    own.started(ZOOKEEPER)
    assert read_cluster_file(tmp_path) is None


def test_what_another_driver_has_written_since_stays(tmp_path: Path) -> None:
    own, other = OwnClusterFile(tmp_path), OwnClusterFile(tmp_path)
    for each, epoch in ((own, 1), (other, 2)):
        each.took_over(epoch, 1_000)
        each.started(ZOOKEEPER)
    own.stood_down()
    assert read_cluster_file(tmp_path) == file_of(2, 1_000)


def test_a_disk_that_refuses_ends_no_candidacy(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / CLUSTER_FILE).mkdir()
    own = OwnClusterFile(tmp_path)
    own.took_over(1, 1_000)
    own.started(ZOOKEEPER)
    own.stood_down()
    assert "does not say who commands" in caplog.text

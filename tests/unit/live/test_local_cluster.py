"""What a cluster refuses before it starts anything."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

import spark_replication as sr
from tests.unit.transport.test_security import token_settings


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"brokers": 0}, sr.errors.InvalidRequest, "0 brokers: a cluster has at least 1"),
        ({"zookeepers": 2}, sr.errors.InvalidRequest, "2 ZooKeeper servers: there may be 1 or 3"),
        ({"config": {"min.insync.replica": 1}}, sr.errors.InvalidConfig, r"did you mean min\.insync\.replicas"),
    ],
)
def test_what_cannot_be_started_is_said_and_leaves_nothing(
    tmp_path: Path, options: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        sr.LocalCluster.start(directory=tmp_path / "cluster", **options)
    assert not (tmp_path / "cluster").exists()


def test_a_directory_in_which_everybody_may_write_is_refused_and_gets_no_secret(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with tempfile.TemporaryDirectory() as elsewhere:
        secured = token_settings(Path(elsewhere))
        with pytest.raises(sr.errors.InvalidConfig, match="may write in"):
            sr.LocalCluster.start(directory=tmp_path, config=secured)
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_does_not_exist_is_no_part_of_the_package() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Cluster'"):
        sr.Cluster  # noqa: B018

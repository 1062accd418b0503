"""Where Spark's jars are: beside pyspark, or with the Spark whose spark-submit runs this process."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

from spark_replication.errors import StartFailed
from spark_replication.process.java import spark_jar
from spark_replication.zookeeper_server.server import find_jars


@pytest.fixture
def zipped_pyspark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As spark-submit puts it on the path: a file, with no jars beside it."""
    path = tmp_path / "pyspark.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("pyspark/__init__.py", "")
    monkeypatch.delitem(sys.modules, "pyspark", raising=False)
    monkeypatch.syspath_prepend(str(path))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    return path


@pytest.mark.parametrize("name", ["zookeeper", "ivy", "janino", "commons-compiler"])
def test_they_are_beside_pyspark(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    assert spark_jar(name).is_file()


def test_under_spark_submit_they_are_in_its_home(
    zipped_pyspark: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "spark"
    (home / "jars").mkdir(parents=True)
    for name in ("zookeeper-3.9.3.jar", "zookeeper-jute-3.9.3.jar"):
        (home / "jars" / name).touch()
    monkeypatch.setenv("SPARK_HOME", str(home))
    assert spark_jar("zookeeper") == home / "jars" / "zookeeper-3.9.3.jar"


@pytest.mark.parametrize("home", [None, "none"])
def test_where_there_are_none_it_says_what_to_do(
    zipped_pyspark: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str | None
) -> None:
    if home is not None:
        monkeypatch.setenv("SPARK_HOME", str(tmp_path / home))
    with pytest.raises(StartFailed, match=r"no jar of zookeeper in .* set SPARK_HOME, or name a ZooKeeper"):
        find_jars()

"""One Spark session for all; a mirror in a temporary folder for each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_replication.spark.session import build_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = build_session("mirror tests", "local[2]", {"spark.driver.memory": "1g"})
    yield session
    session.stop()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "mirror")

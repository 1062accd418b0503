"""One Spark session for all tests of a process that want one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from spark_replication.spark.session import build_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A task that fails is tried again, up to four times."""
    session = build_session("tests", "local[2, 4]", {"spark.driver.memory": "1g"})
    yield session
    session.stop()

"""Whether the Python that Spark starts has this package, and what a session of Spark Connect is told."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from pyspark.cloudpickle import dumps
from pyspark.errors import PySparkAttributeError, PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from spark_replication.errors import InvalidRequest
from spark_replication.spark.registering import register, require_our_python, unchanged

SETTINGS = {
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.adaptive.streaming.stateless.enabled": "false",
}


def test_this_python_has_it() -> None:
    require_our_python(sys.executable)
    require_our_python("no-such-python")  # Spark says so itself


@pytest.mark.parametrize("has_it", [False, True])
def test_another_python_that_does_not_have_it_is_named_with_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_it: bool
) -> None:
    another = tmp_path / "python3"
    another.write_text(f"#!/bin/sh\nexit {0 if has_it else 1}\n")
    another.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    if has_it:
        require_our_python("python3")
        return
    with pytest.raises(InvalidRequest, match=f"Spark starts {another}, .* PYSPARK_PYTHON={sys.executable}"):
        require_our_python("python3")


class Connected:
    """What Spark Connect's session has of a session, with its settings and what is registered. `refuses`: whatever it
    raises where a setting is set. `fails`: what it raises where a query runs."""

    def __init__(
        self,
        settings: dict[str, str],
        refuses: PySparkException | None = None,
        fails: PySparkException | None = None,
    ) -> None:
        self.settings = settings
        self._fails = fails
        self.registered: list[type[DataSource]] = []
        self._refuses = refuses

    @property
    def sparkContext(self) -> object:  # noqa: N802 (PySpark's)
        raise PySparkAttributeError(
            errorClass="JVM_ATTRIBUTE_NOT_SUPPORTED", messageParameters={"attr_name": "sparkContext"}
        )

    @property
    def conf(self) -> Connected:
        return self

    @property
    def dataSource(self) -> Connected:  # noqa: N802 (PySpark's)
        return self

    def get(self, name: str, default: str | None) -> str | None:
        return self.settings.get(name, default)

    def set(self, name: str, value: str) -> None:
        if self._refuses is not None:
            raise self._refuses
        self.settings[name] = value

    def range(self, _end: int) -> Connected:
        return self

    def mapInArrow(self, function: object, _schema: str) -> Connected:  # noqa: N802 (PySpark's)
        assert function is unchanged
        return self

    def collect(self) -> None:
        if self._fails is not None:
            raise self._fails

    @property
    def register(self) -> Callable[[type[DataSource]], None]:
        return self.registered.append


@pytest.mark.slow
def test_a_session_of_spark_connect_is_told_where_the_cluster_is() -> None:
    """In a process of its own, as its server has it: of this one's, only the package is there."""
    spark = Connected({})
    register(cast(SparkSession, spark), "127.0.0.1:1")
    assert spark.settings == SETTINGS
    asked = "import pickle, sys; told = pickle.load(sys.stdin.buffer); print(told.name(), told.defaults['bootstrap'])"
    (told,) = spark.registered
    pickled = dumps(told)  # type: ignore[no-untyped-call]
    there = subprocess.run([sys.executable, "-c", asked], input=pickled, capture_output=True, check=True)
    assert there.stdout == b"replicated_log 127.0.0.1:1\n"


def test_a_server_whose_python_lacks_a_module_is_told_of_and_nothing_is_registered() -> None:
    text = "Traceback …\nModuleNotFoundError: No module named 'spark_replication.spark'\n"
    lacking = Connected({}, fails=PySparkException(text))
    with pytest.raises(InvalidRequest, match=r"no module spark_replication: install 'spark_replication\[connect\]'"):
        register(cast(SparkSession, lacking), "127.0.0.1:1")
    assert (lacking.registered, lacking.settings) == ([], {})


def test_where_no_query_may_run_nothing_is_known_of_the_servers_python() -> None:
    of_a_pipeline = Connected({}, fails=PySparkException("ATTEMPT_ANALYSIS_IN_PIPELINE_QUERY_FUNCTION"))
    register(cast(SparkSession, of_a_pipeline), "127.0.0.1:1")
    assert len(of_a_pipeline.registered) == 1


def test_the_definitions_of_a_pipeline_set_nothing_that_is_set_and_say_where_to_set_the_rest() -> None:
    refusal = PySparkException(
        errorClass="SESSION_MUTATION_IN_DECLARATIVE_PIPELINE.SET_RUNTIME_CONF", messageParameters={"method": "set"}
    )
    configured = Connected(dict(SETTINGS), refusal)
    register(cast(SparkSession, configured), "127.0.0.1:1")
    assert len(configured.registered) == 1
    with pytest.raises(InvalidRequest, match=r"configuration. in its spark-pipeline.yml: .*stateless.enabled: .false"):
        register(cast(SparkSession, Connected({}, refusal)), "127.0.0.1:1")
    other = PySparkException(errorClass="JVM_ATTRIBUTE_NOT_SUPPORTED", messageParameters={"attr_name": "x"})
    with pytest.raises(PySparkException, match="JVM_ATTRIBUTE"):
        register(cast(SparkSession, Connected({}, other)), "127.0.0.1:1")

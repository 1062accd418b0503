"""Where a session has Delta from. Without a JVM."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from spark_replication.errors import StartFailed
from spark_replication.spark import session
from spark_replication.spark.session import DELTA_PACKAGE, GATEWAY, delta_jars

ROOT = Path(__file__).parents[3]


class Jvm:
    """The JVM of spark-submit, as far as it is asked."""

    def __init__(self) -> None:
        self.java = self.lang = self.net = self.Thread = self
        self.shown: list[str] = []

    def currentThread(self) -> Jvm:  # noqa: N802 (Java's names)
        return self

    def getContextClassLoader(self) -> Jvm:  # noqa: N802
        return self

    def URL(self, text: str) -> str:  # noqa: N802
        return text

    def addURL(self, url: str) -> None:  # noqa: N802
        self.shown.append(url)


class Submitted:
    """A process that spark-submit has started."""

    told = ""
    _jvm = Jvm()

    @staticmethod
    def _ensure_initialized() -> None: ...

    def get(self, name: str, default: str) -> str:
        assert name == "spark.jars"
        return self.told or default


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> type[Submitted]:
    monkeypatch.setenv(GATEWAY, "1")
    monkeypatch.setattr(session, "SparkContext", Submitted)
    monkeypatch.setattr(session, "SparkConf", Submitted)
    monkeypatch.setattr(Submitted, "_jvm", Jvm())
    monkeypatch.setattr(Submitted, "told", "")
    return Submitted


JARS = [Path("/jars/delta-spark_1.jar"), Path("/jars/delta-storage-1.jar")]


def test_a_session_of_our_own_starts_with_the_jars_or_fetches_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(GATEWAY, raising=False)
    assert session._jars(JARS) == {"spark.jars": "/jars/delta-spark_1.jar,/jars/delta-storage-1.jar"}
    assert session._jars([]) == {"spark.jars.packages": DELTA_PACKAGE}


def test_the_jvm_of_spark_submit_is_shown_what_it_was_not_told_of(submitted: type[Submitted]) -> None:
    assert session._jars(JARS) == {"spark.jars": "/jars/delta-spark_1.jar,/jars/delta-storage-1.jar"}
    assert submitted._jvm.shown == ["file:///jars/delta-spark_1.jar", "file:///jars/delta-storage-1.jar"]


def test_what_spark_submit_was_told_of_stays(submitted: type[Submitted]) -> None:
    submitted.told = "file:/mine.jar,hdfs://there/delta-spark_1.jar"
    assert session._jars(JARS) == {"spark.jars": f"{submitted.told},/jars/delta-storage-1.jar"}
    assert submitted._jvm.shown == ["file:///jars/delta-storage-1.jar"]
    assert session._jars([]) == {"spark.jars": submitted.told}


def test_without_jars_spark_submit_has_to_fetch_them_itself(submitted: type[Submitted]) -> None:
    submitted.told = "file:/mine.jar"
    with pytest.raises(StartFailed, match=f"--packages {DELTA_PACKAGE}"):
        session._jars([])


def test_a_python_without_a_setup_has_no_jars(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert delta_jars() == []


def test_the_package_is_the_one_that_setup_fetches() -> None:
    group, name, version = DELTA_PACKAGE.split(":")
    assert f'Module("{group}", "{name}", "{version}")' in (ROOT / ".ci" / "delta_jars.py").read_text()

"""Questions to a JVM that answers, refuses, hangs, and is gone."""

from __future__ import annotations

import threading
from typing import cast

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkAttributeError, PySparkException
from pyspark.sql import SparkSession

from spark_replication.errors import InvalidConfig, StartFailed
from spark_replication.spark import jvm as jvm_module
from spark_replication.spark.jvm import Jvm, context_of
from spark_replication.spark.spark_watch import SparkWatch


def failing(error: Exception) -> int:
    raise error


@pytest.mark.parametrize(
    "error",
    [
        Py4JNetworkError("the connection is gone"),
        PySparkException("IllegalArgumentException", messageParameters={}),
        ConnectionRefusedError(111, "refused"),
        AttributeError("'NoneType' object has no attribute 'sc'"),
    ],
)
def test_whatever_it_refuses_with_is_an_error_of_ours_and_ends_nothing(error: Exception) -> None:
    jvm = Jvm()
    with pytest.raises(StartFailed, match="Spark says: "):
        jvm.ask(lambda: failing(error))
    assert jvm.answer(lambda: failing(error), 7) == 7
    assert jvm.ask(lambda: 8) == 8
    jvm.close()


def test_one_that_hangs_is_waited_for_once_and_then_but_shortly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jvm_module, "TIMEOUT_S", 0.2)
    monkeypatch.setattr(jvm_module, "SILENT_TIMEOUT_S", 0.1)
    hangs = threading.Event()
    before = threading.enumerate()
    jvm = Jvm()
    with pytest.raises(StartFailed, match="has not answered"):
        jvm.ask(hangs.wait)
    assert jvm.answer(hangs.wait, False) is False
    hangs.set()
    assert jvm.ask(hangs.wait) is True
    jvm.close()
    asking = [thread for thread in threading.enumerate() if thread.name == "asking-spark" and thread not in before]
    for thread in asking:
        thread.join(10)
    assert not any(thread.is_alive() for thread in asking), "abandoned threads end with their answers"


def test_the_watch_says_once_that_spark_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_replication.spark.spark_watch.LOOK_S", 0.01)
    reasons = iter(["", "", "stopped", "stopped"])
    said: list[str] = []
    told = threading.Event()

    def on_gone(reason: str) -> None:
        said.append(reason)
        told.set()

    watch = SparkWatch(lambda: next(reasons), on_gone)
    watch.start()
    assert told.wait(10)
    watch.stop()
    assert (said, next(reasons)) == (["stopped"], "stopped")


def test_a_watch_that_was_stopped_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_replication.spark.spark_watch.LOOK_S", 0.01)
    asked, may_answer = threading.Event(), threading.Event()
    said: list[str] = []

    def why_gone() -> str:
        asked.set()
        may_answer.wait()
        return "stopped"

    watch = SparkWatch(why_gone, said.append)
    watch.start()
    assert asked.wait(10)
    watch.stop()
    may_answer.set()
    for thread in threading.enumerate():
        if thread.name == "spark-watch":
            thread.join(10)
    assert said == []


def test_a_session_of_spark_connect_is_refused_with_what_to_use() -> None:
    class Connected:
        @property
        def sparkContext(self) -> object:  # noqa: N802 (PySpark's)
            raise PySparkAttributeError(
                errorClass="JVM_ATTRIBUTE_NOT_SUPPORTED", messageParameters={"attr_name": "sparkContext"}
            )

    with pytest.raises(InvalidConfig, match="Spark Connect"):
        context_of(cast("SparkSession", Connected()))

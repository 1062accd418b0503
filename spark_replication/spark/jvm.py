"""Questions to Spark's JVM that end. py4j waits for ever for a JVM that hangs, so questions are asked on a thread of
their own, which is abandoned if no answer comes."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from spark_replication.errors import InvalidConfig, StartFailed

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

TIMEOUT_S = 10.0  # a collection of garbage may take some of it
SILENT_TIMEOUT_S = 1.0  # once it has not answered, until it does

Answer = TypeVar("Answer")


class _Failed:
    def __init__(self, error: Exception) -> None:
        self.error = error


class Jvm:
    """One thread, which asks questions in turn. Once it is abandoned, another takes its place."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards these two, and is held while a question is asked
        self._asked: queue.SimpleQueue[Callable[[], None] | None] | None = None
        self._timeout_s = TIMEOUT_S

    def close(self) -> None:
        with self._lock:
            self._end_thread()

    def ask(self, question: Callable[[], Answer]) -> Answer:
        """The JVM's answer. Raises StartFailed if it does not answer, is gone, or refuses."""
        answers: queue.SimpleQueue[Answer | _Failed] = queue.SimpleQueue()

        def run() -> None:
            try:
                answers.put(question())
            except jvm_errors() as error:
                answers.put(_Failed(error))

        with self._lock:
            if self._asked is None:
                self._asked = queue.SimpleQueue()
                threading.Thread(target=_work, args=(self._asked,), name="asking-spark", daemon=True).start()
            self._asked.put(run)
            try:
                answer = answers.get(timeout=self._timeout_s)
            except queue.Empty:
                self._end_thread()
                within_s, self._timeout_s = self._timeout_s, SILENT_TIMEOUT_S
                raise StartFailed(f"Spark's JVM has not answered within {within_s:.0f} s") from None
            self._timeout_s = TIMEOUT_S
        if isinstance(answer, _Failed):
            from spark_replication.spark.session import java_reason

            raise StartFailed(f"Spark says: {java_reason(answer.error)}") from answer.error
        return answer

    def answer(self, question: Callable[[], Answer], otherwise: Answer) -> Answer:
        try:
            return self.ask(question)
        except StartFailed:
            return otherwise

    def _end_thread(self) -> None:
        """Let the thread end as soon as it has its answer."""
        if self._asked is not None:
            self._asked.put(None)
        self._asked = None


def jvm_errors() -> tuple[type[Exception], ...]:
    """The errors that a question may raise. PySpark gives some of Java's errors types of its own, and a stopped context
    lacks the attributes that it would ask."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return (Py4JError, PySparkException, OSError, AttributeError)


def context_of(spark: SparkSession) -> SparkContext:
    """The session's context. Raises InvalidConfig for a session of Spark Connect, whose driver is another process."""
    if speaks_connect(spark):
        raise InvalidConfig(
            "this session speaks Spark Connect, so its driver is another process, and only there can a cluster be "
            "started: use spark-submit, or SparkSession.builder.master(…)"
        )
    return spark.sparkContext


def speaks_connect(spark: SparkSession) -> bool:
    """Whether this is a session of Spark Connect, which has no context."""
    from pyspark.errors import PySparkAttributeError

    try:
        _ = spark.sparkContext
    except PySparkAttributeError:
        return True
    return False


def _work(asked: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    while (each := asked.get()) is not None:
        each()

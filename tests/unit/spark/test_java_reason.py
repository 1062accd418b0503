"""What a person reads of an error that came through py4j."""

from __future__ import annotations

import pytest

STOPPED = """An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.
: java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.
This stopped SparkContext was created at:
org.apache.spark.api.java.JavaSparkContext.<init>(JavaSparkContext.scala:59)
"""


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (STOPPED, "Cannot call methods on a stopped SparkContext."),
        ("An error occurred while calling o5.\n: java.lang.StackOverflowError\n\tat A", "java.lang.StackOverflowError"),
        ("o31.getOrCreate does not exist in the JVM\nand more", "o31.getOrCreate does not exist in the JVM"),
        ("", ""),
    ],
)
def test_java_s_exception_is_told_without_what_py4j_called(said: str, reason: str) -> None:
    from spark_replication.spark.session import java_reason  # with Spark, which costs every worker a second

    assert java_reason(Exception(said)) == reason

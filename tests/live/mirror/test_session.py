"""The session that the project runs in."""

from __future__ import annotations

import socket
import struct
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import spark_replication as sr
from spark_replication.spark.session import CLASSES, build_session

REQUEST = 3  # of Spark's messages: a call that is answered
TIMEOUT_S = 20.0

pytestmark = [pytest.mark.live, pytest.mark.spark, pytest.mark.timeout(300)]


def test_it_has_delta_and_stays_on_this_host(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.extensions") == "io.delta.sql.DeltaSparkSessionExtension"
    assert spark.conf.get("spark.driver.host") == "127.0.0.1"
    assert spark.sparkContext.uiWebUrl is None


def test_a_second_call_gives_the_same_session(spark: SparkSession) -> None:
    assert build_session("again").sparkContext is spark.sparkContext
    assert sr.session().sparkContext is spark.sparkContext


def test_it_starts_with_the_classes_that_setup_has_kept(spark: SparkSession) -> None:
    archive = Path(sys.prefix) / CLASSES
    if not archive.exists():
        pytest.skip("this Java keeps none, as `make setup` has said")
    jvm = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    assert str(archive) in Path(f"/proc/{jvm}/maps").read_text(), "Java has passed over them"


def test_another_user_of_the_host_says_nothing_to_the_driver(spark: SparkSession) -> None:
    """Its port is on loopback, which each of them reaches. Whoever has no secret is not listened to."""
    settings = spark.sparkContext.getConf()
    body = struct.pack("!bqi", REQUEST, 1, len(b"stolen")) + b"stolen"
    host, port = settings.get("spark.driver.host"), settings.get("spark.driver.port")
    assert host is not None
    assert port is not None
    with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as stranger:
        stranger.sendall(struct.pack("!q", len(body) + 8) + body)
        answer = stranger.recv(1 << 12)
    assert b"Expected SaslMessage" in answer

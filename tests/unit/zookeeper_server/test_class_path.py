"""Which of Spark's jars an embedded ZooKeeper is started with."""

from __future__ import annotations

from pathlib import Path

from spark_replication.zookeeper_server.server import class_path, find_jars

NEEDED = ("zookeeper-3.9.5.jar", "zookeeper-jute-3.9.5.jar", "netty-handler-4.2.jar", "log4j-slf4j2-impl-2.25.jar")
OTHERS = (
    "spark-core_2.13-4.2.0.jar",
    "log4j-1.2-api-2.25.4.jar",
    "jackson-module-scala_2.13-2.21.jar",
    "netty-transport-native-epoll-4.2-linux-x86_64.jar",
    "netty-tcnative-boringssl-static-2.0-linux-x86_64.jar",
)


def test_those_that_it_needs_and_no_library_that_is_unpacked(tmp_path: Path) -> None:
    for name in (*NEEDED, *OTHERS):
        (tmp_path / name).touch()
    assert class_path(tmp_path).split(":") == sorted(str(tmp_path / name) for name in NEEDED)


def test_sparks_own_have_them_all() -> None:
    found = class_path(find_jars())
    for name in ("zookeeper-3", "zookeeper-jute", "netty-transport", "slf4j-api", "log4j-core", "metrics-core"):
        assert f"/{name}" in found, name

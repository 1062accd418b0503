"""A Spark application on a host from which no ZooKeeper can be reached knows its cluster by the Delta tables alone."""

from __future__ import annotations

import random
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import spark_replication as sr
from spark_replication.spark.standalone import Standalone
from tests.live.cluster.faults import kill
from tests.live.datasource.processes import descendants, kill_if_there
from tests.live.spark.applications import AUTHENTICATED, ROOT, Application
from tests.live.spark.private_network import PrivateNetwork, can_be_made
from tests.live.spark.routed_pipeline import ROWS, SCHEMA
from tests.live.spark.waiting import wait_for
from tests.unit.transport.test_security import token_settings

pytestmark = [
    pytest.mark.trust,
    pytest.mark.live,
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not can_be_made(), reason="only root may make a host, by `ip` (apt-get install iproute2)"),
]

PARTITIONS = 6
ROUNDS = 10
KILLS = 3
END_TIMEOUT_S = 60


@pytest.fixture
def network() -> Iterator[PrivateNetwork]:
    network = PrivateNetwork(addresses=3)
    yield network
    network.close()


class Pipeline:
    """tests.live.spark.routed_pipeline on the other host."""

    def __init__(self, network: PrivateNetwork, folder: Path, options: list[str]) -> None:
        self._log = folder / "pipeline.log"
        command = network.within(sys.executable, "-m", "tests.live.spark.routed_pipeline", *options)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def wait_for(self, word: str) -> None:
        def said() -> bool:
            assert word in self.says() or self._process.poll() is None, self.says()
            return word in self.says()

        wait_for(f"the pipeline says {word!r}", said)

    def wait_ended(self) -> None:
        assert self._process.wait(END_TIMEOUT_S) == 0, self.says()

    def says(self) -> str:
        return self._log.read_text(errors="replace")

    def clean_up(self) -> None:
        for pid in (*descendants(self._process.pid), self._process.pid):
            kill_if_there(pid)
        self._process.wait()


def reaches(network: PrivateNetwork, host: str, port: int) -> bool:
    """From the other host."""
    connect = f"import socket; socket.create_connection(({host!r}, {port}), 5)"
    ended = subprocess.run(network.within(sys.executable, "-c", connect), capture_output=True, check=False)
    return ended.returncode == 0


def ids(admin_of: str, topic: str, security: dict[str, str]) -> list[int]:
    with sr.Reader(admin_of, security=security) as reader:
        batches = [found.batch for number in range(PARTITIONS) for found in reader.read(topic, partition=number)]
    return sorted(pa.Table.from_batches(batches)["id"].to_pylist())


def test_it_writes_to_leaders_through_their_deaths_and_loses_or_doubles_nothing(
    network: PrivateNetwork, tmp_path: Path
) -> None:
    settings = {name: str(value) for name, value in token_settings(tmp_path).items()}
    spark = Standalone(tmp_path, network.here, settings=AUTHENTICATED)
    cluster = Application(
        tmp_path, spark.url, settings={**settings, "security.token.in.clear": "true"}, spark=AUTHENTICATED
    )
    pipeline = None
    try:
        found = cluster.start()
        cluster.wait_healthy()
        zookeeper, _, _ = found.zookeeper.removeprefix("zk://").partition("/")
        host, _, port = zookeeper.rpartition(":")
        with socket.create_connection((host, int(port)), 5):
            assert not reaches(network, host, int(port)), "the other host has no way to ZooKeeper"
        brokers = cluster.brokers()
        assert all(reaches(network, file.host, file.port) for file in brokers.values())
        near = settings | {"data.dir": str(cluster.data)}
        with sr.Admin(found.zookeeper, security=near) as admin:
            for topic in ("source", "target"):
                admin.create_topic(topic, SCHEMA, partitions=PARTITIONS, replication_factor=3)

        told = ["--source=source", "--target=target", f"--rounds={ROUNDS}", f"--folder={tmp_path}"]
        told += [f"--mirror={cluster.data / 'mirror'}", f"--token={settings['security.token.file']}"]
        pipeline = Pipeline(network, tmp_path, told)
        for number in range(KILLS):
            pipeline.wait_for(f"round {ROUNDS * number // KILLS}")
            kill(cluster.pids()[random.choice(sorted(cluster.living()))])
            cluster.wait_healthy()
        pipeline.wait_for(f"round {ROUNDS - 1}")
        kill(cluster.pids()[random.choice(sorted(cluster.living()))])  # as the stream begins
        pipeline.wait_for("copied")
        pipeline.wait_ended()
        for topic in ("source", "target"):
            assert ids(found.zookeeper, topic, near) == list(range(ROUNDS * ROWS)), topic
        cluster.wait_healthy()
        cluster.stop()
    finally:
        if pipeline is not None:
            pipeline.clean_up()
        cluster.clean_up()
        spark.stop()

"""A stranger whose calls are larger than the memory that a broker, or the controller, may take: gRPC reads them before
it asks for a proof. The process ends before its host suffers, is started again, and nothing is lost."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight

import spark_replication as sr
from tests.live.broker.test_slow_follower import resident_bytes
from tests.unit.transport.test_security import token_settings
from tests.waiting import eventually

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

SCHEMA = pa.schema([("number", pa.int64())])
LIMIT_BYTES = 1 << 30
CALL_BYTES = 192 << 20
CALLS = 8
DEADLINE_S = 60.0


@pytest.mark.parametrize("who", ["broker", "controller"])
def test_what_a_stranger_sends_takes_no_more_memory_than_its_receiver_may(tmp_path: Path, who: str) -> None:
    settings = token_settings(tmp_path)
    config = {**settings, f"{who}.memory.bytes.max": LIMIT_BYTES, "page.enabled": False, "min.insync.replicas": 1}
    with sr.LocalCluster.start(brokers=2, directory=tmp_path / "cluster", config=config) as cluster:
        cluster.admin.create_topic("orders", SCHEMA, partitions=2, replication_factor=2)
        write(cluster, settings, 1)
        pid, address = of_broker(cluster) if who == "broker" else of_controller(cluster)
        largest = 0
        over = threading.Event()

        def watch() -> None:
            nonlocal largest
            with suppress(OSError, ValueError, IndexError):
                while not over.wait(0.005):
                    largest = max(largest, resident_bytes(pid))

        watching = threading.Thread(target=watch)
        watching.start()
        attack(f"grpc://{address}")
        over.set()
        watching.join(DEADLINE_S)
        assert CALL_BYTES < largest < LIMIT_BYTES, "it was attacked, and bounded"
        write(cluster, settings, 2)
        cluster.wait_healthy()
        eventually(lambda: all(in_sync(cluster)), "everything is in sync", DEADLINE_S)
        assert read(cluster, settings) == [1, 2]


def test_what_a_client_has_compressed_takes_no_more_memory_than_a_broker_may(tmp_path: Path) -> None:
    """pyarrow unpacks what comes over Flight before anybody sees it."""
    settings = token_settings(tmp_path)
    config = {**settings, "broker.memory.bytes.max": LIMIT_BYTES, "page.enabled": False, "min.insync.replicas": 1}
    zeros = pa.record_batch([pa.array(memoryview(bytes(LIMIT_BYTES + LIMIT_BYTES // 8)).cast("q"))], schema=SCHEMA)
    with sr.LocalCluster.start(brokers=1, directory=tmp_path / "cluster", config=config) as cluster:
        cluster.admin.create_topic("orders", SCHEMA, partitions=1, replication_factor=1)
        write(cluster, settings, 1)
        (broker,) = cluster.brokers.values()
        options = flight.FlightCallOptions(write_options=pa.ipc.IpcWriteOptions(compression="zstd"), timeout=DEADLINE_S)
        path = flight.FlightDescriptor.for_path("orders", "0")
        security = sr.Security.of(settings)
        with security.client(f"{broker.host}:{broker.port}") as client:
            client.introduce(DEADLINE_S)
            writer, answers = client.do_put(path, SCHEMA, options)
            writer.write_batch(zeros)
            assert answers.read() is None
            with pytest.raises((flight.FlightError, OSError), match="INVALID_REQUEST: the stream cannot be read on"):
                writer.close()
        assert [*cluster.brokers.values()] == [broker], "it lives"
        write(cluster, settings, 2)
        assert read(cluster, settings) == [1, 2]


def of_broker(cluster: sr.LocalCluster) -> tuple[int, str]:
    found = cluster.brokers[min(cluster.brokers)]
    return found.pid, f"{found.host}:{found.port}"


def of_controller(cluster: sr.LocalCluster) -> tuple[int, str]:
    pid, address = cluster.controller_pid, cluster.admin.describe_cluster().controller
    assert pid is not None
    assert address is not None
    return pid, address


def attack(location: str) -> None:
    body = b"x" * CALL_BYTES

    def call() -> None:
        with suppress(flight.FlightError, pa.ArrowException), flight.connect(location) as client:
            list(client.do_action(("metadata", body), flight.FlightCallOptions(timeout=30)))

    threads = [threading.Thread(target=call) for _ in range(CALLS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)


def in_sync(cluster: sr.LocalCluster) -> list[bool]:
    (topic,) = cluster.admin.describe_topics(["orders"])
    return [len(partition.isr) == 2 for partition in topic.partitions]


def write(cluster: sr.LocalCluster, settings: dict[str, object], number: int) -> None:
    with sr.Producer(cluster.bootstrap, security=settings) as producer:
        producer.send("orders", pa.record_batch([pa.array([number])], schema=SCHEMA), partition=0).result(DEADLINE_S)


def read(cluster: sr.LocalCluster, settings: dict[str, object]) -> list[int]:
    with sr.Reader(cluster.bootstrap, security=settings) as reader:
        return [number for batch in reader.read("orders") for number in batch.batch.column(0).to_pylist()]

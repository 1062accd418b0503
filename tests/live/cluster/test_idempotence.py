"""Each batch once: on logs whose head retention has removed, over restarts, and whatever ZooKeeper remembers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future

import pyarrow as pa
import pytest

import spark_replication as sr
from spark_replication.engine.client.sending import Ack
from spark_replication.errors import BatchTooLarge
from spark_replication.zk.session import Session
from tests.live.cluster.faults import kill

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

BROKERS = 2
CONFIG = {
    "min.insync.replicas": 1,
    "log.retention.check.interval.ms": 200,
    "batch.bytes.max": 100_000,
}
SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
TRIMMED = {"segment.bytes": 20_000, "retention.bytes": 1}
FILLER = -1
DEADLINE_S = 60.0


def batch(*ids: int, text: str = "") -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"id": list(ids), "text": [text] * len(ids)}, schema=SCHEMA)


def ids(cluster: sr.LocalCluster, topic: str) -> list[int]:
    """In the log, but for what only filled it."""
    with sr.Reader(cluster.bootstrap) as reader:
        found = reader.read(topic, partition=0, start="earliest")
        return [each for one in found for each in one.batch.column("id").to_pylist() if each != FILLER]


def log_start(cluster: sr.LocalCluster, topic: str) -> int:
    """Of every replica: a follower removes what retention has removed at its leader a moment later."""
    found = cluster.admin.replicas([topic])
    return min(each.log_start for each in found) if len(found) == BROKERS else 0


def trim(cluster: sr.LocalCluster, topic: str) -> None:
    """Fill the log until retention has removed what lies there."""
    deadline = time.monotonic() + DEADLINE_S
    with sr.Producer(cluster.bootstrap, batch_bytes=0) as producer:
        end = producer.send(topic, batch(FILLER), 0).result().last_offset
        while log_start(cluster, topic) <= end:
            assert time.monotonic() < deadline, "retention removes nothing"
            producer.send(topic, batch(FILLER, text="." * 15_000), 0).result()


@pytest.fixture
def trimmed(cluster: sr.LocalCluster, name: str) -> str:
    cluster.admin.create_topic(name, SCHEMA, partitions=1, replication_factor=BROKERS, config=TRIMMED)
    trim(cluster, name)
    return name


def outcomes(futures: list[Future[Ack]]) -> Iterator[str]:
    for future in futures:
        error = future.exception(DEADLINE_S)
        yield "acknowledged" if error is None else type(error).__name__


def test_what_follows_a_refused_batch_is_there_once_on_a_log_whose_head_is_gone(
    cluster: sr.LocalCluster, trimmed: str
) -> None:
    with sr.Producer(cluster.bootstrap, batch_bytes=0) as producer:
        futures = [producer.send(trimmed, batch(0, text="." * 200_000), 0)]
        futures += [producer.send(trimmed, batch(number), 0) for number in range(1, 30)]
        assert list(outcomes(futures)) == [BatchTooLarge.__name__, *["acknowledged"] * 29]
    assert ids(cluster, trimmed) == list(range(1, 30))


def test_a_producer_goes_on_after_retention_has_removed_all_that_it_wrote_and_brokers_were_killed(
    cluster: sr.LocalCluster, trimmed: str
) -> None:
    with sr.Producer(cluster.bootstrap, batch_bytes=0) as producer:
        for number in range(3):
            producer.send(trimmed, batch(number), 0).result(DEADLINE_S)
        trim(cluster, trimmed)
        assert ids(cluster, trimmed) == []
        kill(*[broker.pid for broker in cluster.brokers.values()])
        futures = [producer.send(trimmed, batch(number), 0) for number in range(3, 9)]
        assert list(outcomes(futures)) == ["acknowledged"] * 6
    assert ids(cluster, trimmed) == list(range(3, 9))


def test_producers_need_nothing_that_zookeeper_remembers(cluster: sr.LocalCluster, name: str, truth: Session) -> None:
    cluster.admin.create_topic(name, SCHEMA, partitions=1, replication_factor=BROKERS)
    for number in range(3):
        assert truth.read_now("/producer_ids") is None
        with sr.Producer(cluster.bootstrap) as producer:
            assert producer.send(name, batch(number), 0).result(DEADLINE_S).base_offset == number
        kill(*[broker.pid for broker in cluster.brokers.values()])
        cluster.wait_healthy()
    assert ids(cluster, name) == [0, 1, 2]

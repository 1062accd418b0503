"""Whoever has the port of a dead broker is not believed: not about topics, and least of all about rows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight

import spark_replication as sr
from spark_replication.client.asking.descriptions import BrokerDescription
from spark_replication.errors import ReplicationError
from spark_replication.messages.descriptions import Metadata
from spark_replication.messages.envelope import from_json, to_json
from spark_replication.messages.ranges import DescribeRanges, FoundRange, FoundRanges
from spark_replication.storage.directory.replica_folder import replica_folder
from spark_replication.storage.format.batches import TopicSchema, prepare
from spark_replication.transport.proofs.answer_proofs import NONCE_HEADER, Question, nonce_of
from spark_replication.transport.security.certificates import Certificate
from tests.live.cluster.sides import sides
from tests.unit.storage.storage_stories import log_in
from tests.unit.transport.certificates import Authority
from tests.unit.transport.test_flight_client import CHALLENGE, CLAIM, Squatter
from tests.waiting import eventually

pytestmark = [pytest.mark.trust, pytest.mark.live, pytest.mark.timeout(240)]

SCHEMA = pa.schema([("number", pa.int64())])
TRUE, FORGED = [1, 2], [666, 667]
DEADLINE_S = 30.0
LIES_S = 5.0  # as long as it is asked again and again
CONFIG = {"page.enabled": False, "zookeeper.session.ms": 6_000}
KINDS = ["bare", "proven by another key"]


class Forger(Squatter):
    """Answers whatever clients ask, with a folder of its own in which the rows are others."""

    def __init__(self, topic_id: str, folder: Path, port: int, certificate: Certificate | None, kind: str) -> None:
        self._topic_id, self._folder, self._kind = topic_id, folder, kind
        self.asked: list[str] = []
        super().__init__({"introduce": CHALLENGE, "prove": CLAIM}, port, certificate)

    def do_action(self, context: object, action: flight.Action) -> list[bytes]:
        self.asked.append(action.type)
        if action.type in self.answers:
            return [self.answers[action.type]]
        body = action.body.to_pybytes()
        if action.type == "metadata":
            answer = to_json(Metadata(cluster_id="forged", brokers={}, topics=()))
        elif action.type == "describe_ranges":
            answer = to_json(FoundRanges(ranges=tuple(self._range(body))))
        else:
            raise flight.FlightServerError("UNKNOWN_TOPIC_OR_PARTITION: there is no such topic")
        nonces = [values for name, values in self.overhears.headers[-1].items() if name.lower() == NONCE_HEADER]
        nonce = nonce_of(nonces[0]) if nonces else None
        if self._kind == "bare" or nonce is None:
            return [answer]
        return Question(b"k" * 32, nonce, action.type, body).answered(answer)

    def _range(self, body: bytes) -> Iterator[FoundRange]:
        for wanted in from_json(body, DescribeRanges).ranges:
            yield FoundRange(
                topic=wanted.topic,
                partition=wanted.partition,
                topic_id=self._topic_id,
                start=wanted.start if isinstance(wanted.start, int) else 0,
                end=len(FORGED),
                high_watermark=len(FORGED),
                folder=replica_folder(self._folder),
            )


def forged_folder(directory: Path, topic_id: str) -> Path:
    folder = directory / f"orders-0.{topic_id}"
    folder.mkdir(parents=True)
    log = log_in(folder, segment_bytes=1 << 20)
    log.begin_epoch(0)
    batch = pa.record_batch([pa.array(FORGED)], schema=SCHEMA)
    log.append(prepare(batch, TopicSchema(SCHEMA), batch_bytes_max=1 << 20), leader_epoch=0, timestamp_ms=7)
    log.close()
    return folder


@contextmanager
def forger(dead: BrokerDescription, make: Callable[[int], Forger]) -> Iterator[Forger]:
    """As soon as the port is free."""
    found: list[Forger] = []

    def has_the_port() -> bool:
        with suppress(OSError, pa.ArrowException, flight.FlightError):
            found.append(make(dead.port))
        return bool(found)

    eventually(has_the_port, f"port {dead.port} is free")
    try:
        yield found[0]
    finally:
        threading.Thread(target=found[0].shutdown, daemon=True).start()


def rows(reader: sr.Reader) -> list[int]:
    return [number for each in reader.read("orders", 0, 0, 2) for number in each.batch.column(0).to_pylist()]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["token", "tls"])
def test_no_row_is_forged(tmp_path: Path, mode: str, kind: str) -> None:
    """Readers that have known the broker, those that come anew, and requests about topics."""
    serving, client = sides(mode, tmp_path)
    stranger = Authority(tmp_path, "another CA").issue("stranger") if mode == "tls" else None
    shown = None
    if stranger is not None:
        shown = Certificate(chain=stranger.certificate.read_bytes(), key=stranger.key.read_bytes())
    config = {**CONFIG, **serving}
    with (
        sr.LocalCluster.start(brokers=3, directory=tmp_path / "cluster", config=config) as cluster,
        sr.Producer(cluster.bootstrap, security=client) as producer,
        sr.Reader(cluster.bootstrap, security=client, prefer="near", deadline_ms=2_000) as known,
        sr.Admin(cluster.bootstrap, security=client, deadline_ms=2_000) as admin,
    ):
        cluster.admin.create_topic("orders", SCHEMA, partitions=1)
        producer.send("orders", pa.record_batch([pa.array(TRUE)], schema=SCHEMA), 0).result(DEADLINE_S)
        eventually(lambda: rows(known) == TRUE, "it is read from files")
        (topic,) = admin.describe_topics(["orders"])
        leader = topic.partitions[0].leader
        (dead,) = [broker for broker in admin.describe_cluster().brokers if broker.id == leader]
        folder = forged_folder(tmp_path / "forged", topic.topic_id)
        cluster.kill_broker(dead.id)
        with forger(dead, lambda port: Forger(topic.topic_id, folder, port, shown, kind)) as found:
            until_s, read = time.monotonic() + LIES_S, 0
            while time.monotonic() < until_s:
                with suppress(ReplicationError):
                    assert rows(known) == TRUE
                    read += 1
                with (
                    suppress(ReplicationError),
                    sr.Reader(cluster.bootstrap, security=client, prefer="near", deadline_ms=2_000) as new,
                ):
                    assert rows(new) == TRUE
                with suppress(ReplicationError):
                    assert [each.name for each in admin.describe_topics()] == ["orders"]
            assert read, "another leads"
            assert mode == "tls" or found.asked, "it was asked"
            assert mode == "token" or not found.asked, "no handshake came to its end"

"""Measures acks=all through real brokers, a leader and two followers, and in turn with them the bare loop."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import msgspec
import pyarrow as pa
from pyarrow import flight

from spark_replication.admin.bench.bare import RECENT_BYTES, BareLoop
from spark_replication.admin.bench.load import AnswerReader, Latency, Rate, Target, latency, rate
from spark_replication.client.finding.deadline import Deadline, persistently
from spark_replication.client.finding.routes import Routes
from spark_replication.client.producing.lane import AT_ONCE, Lane, LeaderLinks, Outgoing
from spark_replication.errors import ReplicationError, error_of
from spark_replication.live.local_cluster import LocalCluster
from spark_replication.messages.envelope import NONE, to_json
from spark_replication.messages.lane import PutAnswer
from spark_replication.messages.records import BatchMetadata, ReadTicket
from spark_replication.model import Scalar
from spark_replication.transport.flight.actions import error_of_flight

BROKERS = 3
BATCHES_PER_S = 200  # when latency is measured
CLOSE_S = 5.0
OPEN_MS = 30_000  # until a broker serves what it was just told to lead
SCHEMA = pa.schema([("number", pa.int64())])
# Logs, and the files of the bare loop, keep only what was written last. A virtual machine is slow at the first use of
# memory (a write into it took six times as long): a measurement whose files go on growing would measure that.
RECENT: Mapping[str, Scalar] = {"segment.bytes": RECENT_BYTES // 4, "retention.bytes": RECENT_BYTES}
WHOLE: Mapping[str, Scalar] = {}

Progress = Callable[[str], None]


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    batch_bytes: int
    partitions: int
    mb_per_s: float
    cpu_s_per_gb: float
    p50_ms: float
    p99_ms: float
    bare_mb_per_s: float
    bare_cpu_s_per_gb: float
    bare_p50_ms: float
    bare_p99_ms: float
    #: Our rate divided by the bare loop's.
    ratio: float
    #: Our rate divided by our own with one partition, if that was measured.
    of_one_partition: float | None = None


COLUMNS = Figures.__struct_fields__


def replicate(
    sizes: Sequence[int], partitions: Sequence[int], *, seconds: float, rounds: int, progress: Progress
) -> Iterator[Figures]:
    with started() as cluster:
        for size in sizes:
            batch = batch_of(size)
            one: float | None = None
            for count in partitions:
                progress(f"{size} bytes a batch, {count} partitions")
                with BareLoop(bytes(batch.serialize())) as bare, streams_to(cluster, count, batch) as streams:
                    found = _figures(size, count, streams, bare, seconds=seconds, rounds=rounds)
                one = found.mb_per_s if count == 1 else one
                share = None if one is None else round(found.mb_per_s / one, 2)
                yield msgspec.structs.replace(found, of_one_partition=share)


def _figures(size: int, partitions: int, ours: Target, bare: Target, *, seconds: float, rounds: int) -> Figures:
    """The best of each, measured in turn, so that other work of the machine meets both."""
    rates = [(rate(bare, seconds), rate(ours, seconds)) for _ in range(rounds)]
    bare_rate: Rate = max((each for each, _ in rates), key=lambda found: found.mb_per_s)
    our_rate: Rate = max((each for _, each in rates), key=lambda found: found.mb_per_s)
    bare_latency: Latency = latency(bare, seconds, BATCHES_PER_S)
    our_latency: Latency = latency(ours, seconds, BATCHES_PER_S)
    return Figures(
        batch_bytes=size,
        partitions=partitions,
        mb_per_s=_figure(our_rate.mb_per_s),
        cpu_s_per_gb=_figure(our_rate.cpu_s_per_gb),
        p50_ms=our_latency.p50_ms,
        p99_ms=our_latency.p99_ms,
        bare_mb_per_s=_figure(bare_rate.mb_per_s),
        bare_cpu_s_per_gb=_figure(bare_rate.cpu_s_per_gb),
        bare_p50_ms=bare_latency.p50_ms,
        bare_p99_ms=bare_latency.p99_ms,
        ratio=round(our_rate.mb_per_s / bare_rate.mb_per_s, 2),
    )


def _figure(measured: float) -> float:
    """Round to four digits, so that a small figure never becomes 0."""
    return float(f"{measured:.4g}")


@contextmanager
def started(settings: Mapping[str, Scalar] = WHOLE) -> Iterator[LocalCluster]:
    """Three brokers. The records of a measurement are deleted while it runs, and with its topic."""
    config = {"log.delete.delay.ms": 0, "log.retention.check.interval.ms": 100, **settings}
    with LocalCluster.start(brokers=BROKERS, config=config) as cluster:
        yield cluster


def batch_of(size: int) -> pa.RecordBatch:
    """A batch of about so many bytes."""
    return pa.record_batch([pa.array(range(max(1, size // 8)), pa.int64())], schema=SCHEMA)


@contextmanager
def streams_to(
    cluster: LocalCluster, partitions: int, batch: pa.RecordBatch, config: Mapping[str, Scalar] = RECENT
) -> Iterator[Lanes]:
    """Lanes to a new topic, whose partitions are all led by one broker and lie on the same three."""
    topic = f"bench-{partitions}-{batch.nbytes}"
    created = cluster.admin.create_topic(topic, batch.schema, partitions=1, replication_factor=BROKERS, config=config)
    first = created.partitions[0]
    if partitions > 1:
        cluster.admin.add_partitions(topic, assignment=dict.fromkeys(range(1, partitions), first.replicas))
    brokers = cluster.brokers
    leader = brokers[first.replicas[0]]
    with cluster.security.client(f"{leader.host}:{leader.port}") as client:
        for partition in range(partitions):
            # The partition is led in ZooKeeper, but the broker may not have opened it yet.
            persistently(partial(_look_into, client, topic, partition), Deadline(OPEN_MS))
    pids = tuple(broker.pid for broker in brokers.values())
    streams = Lanes(cluster, topic, range(partitions), batch, pids=pids)
    try:
        yield streams
    finally:
        streams.close()
        cluster.admin.delete_topic(topic)


def _look_into(client: flight.FlightClient, topic: str, partition: int) -> None:
    """Read nothing of the partition. Raises the refusal if it is not led there."""
    ticket = to_json(ReadTicket(topic=topic, partition=partition, to=0))
    try:
        client.do_get(flight.Ticket(ticket)).read_all()
    except (flight.FlightError, pa.ArrowException, OSError) as error:
        raise error_of_flight(error) from error


class Lanes:
    """A load.Target: a lane for each of these partitions, as our Producer has them; acks=all."""

    def __init__(
        self,
        cluster: LocalCluster,
        topic: str,
        partitions: Sequence[int],
        batch: pa.RecordBatch,
        *,
        pids: tuple[int, ...],
    ) -> None:
        self.topic = topic
        self.streams = len(partitions)
        self.batch_bytes = batch.serialize().size
        self.pids = pids
        self._batch = batch
        self._answers = AnswerReader(self.streams)
        self._routes = Routes(cluster.bootstrap, cluster.security)
        self._links = LeaderLinks(self._routes.security)
        self._owners = [_Stream(self, number, BatchMetadata(partition=each)) for number, each in enumerate(partitions)]
        for owner, partition in zip(self._owners, partitions, strict=True):
            route = self._routes.route(topic, partition, Deadline(OPEN_MS))
            self.leader = route.address  # of all partitions
            owner.lane = self._links.lane(route, batch.schema, epoch=0, owner=owner)

    def begin(self, answers: AnswerReader) -> None:
        self._answers = answers

    def send(self, stream: int) -> None:
        self._owners[stream].send()

    def close(self) -> None:
        self._links.close(CLOSE_S)
        self._routes.close()

    # What its streams ask and tell

    @property
    def batch(self) -> pa.RecordBatch:
        return self._batch

    @property
    def answers(self) -> AnswerReader:
        return self._answers


class _Stream:
    """Owns the lane of a partition."""

    lane: Lane

    def __init__(self, lanes: Lanes, number: int, metadata: BatchMetadata) -> None:
        self._lanes = lanes
        self._number = number
        self._metadata = metadata
        self._lock = threading.Lock()
        self._unsent = 0

    def send(self) -> None:
        with self._lock:
            self._unsent += 1
            self.lane.ask_at(AT_ONCE)

    def next_batch(self, lane: Lane) -> Outgoing | None:
        with self._lock:
            lane.asked_at_s = math.inf
            if not self._unsent:
                return None
            self._unsent -= 1
            if self._unsent:
                lane.ask_at(AT_ONCE)
        return Outgoing([self._lanes.batch], self._metadata)

    def answered(self, _lane: Lane, answers: list[PutAnswer]) -> None:
        refused = next((answer for answer in answers if answer.error != NONE), None)
        if refused is not None:
            self._lanes.answers.failed(error_of(refused.error, refused.message))
        self._lanes.answers.came(self._number, len(answers))

    def ended(self, _lane: Lane, error: ReplicationError) -> None:
        self._lanes.answers.failed(error)

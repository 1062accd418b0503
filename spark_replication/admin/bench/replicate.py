"""Measures acks=all through real brokers, a leader and two followers, and in turn with them the bare loop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import msgspec
import pyarrow as pa
from pyarrow import flight

from spark_replication.admin.bench.bare import RECENT_BYTES, BareLoop
from spark_replication.admin.bench.load import AnswerReader, Latency, Rate, Target, latency, rate
from spark_replication.client.deadline import Deadline, persistently
from spark_replication.client.put_stream import AnswersOfStream
from spark_replication.errors import error_of
from spark_replication.live.local_cluster import LocalCluster
from spark_replication.messages.envelope import from_json, to_json
from spark_replication.messages.records import BatchMetadata, ReadTicket
from spark_replication.model import Scalar
from spark_replication.transport.actions import error_of_flight

BROKERS = 3
BATCHES_PER_S = 200  # when latency is measured
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
def started() -> Iterator[LocalCluster]:
    """Three brokers. The records of a measurement are deleted while it runs, and with its topic."""
    config = {"log.delete.delay.ms": 0, "log.retention.check.interval.ms": 100}
    with LocalCluster.start(brokers=BROKERS, config=config) as cluster:
        yield cluster


Connect = Callable[[], flight.FlightClient]


def batch_of(size: int) -> pa.RecordBatch:
    """A batch of about so many bytes."""
    return pa.record_batch([pa.array(range(max(1, size // 8)), pa.int64())], schema=SCHEMA)


@contextmanager
def streams_to(
    cluster: LocalCluster, partitions: int, batch: pa.RecordBatch, config: Mapping[str, Scalar] = RECENT
) -> Iterator[FlightStreams]:
    """Streams to a new topic, whose partitions are all led by one broker and lie on the same three."""
    topic = f"bench-{partitions}-{batch.nbytes}"
    created = cluster.admin.create_topic(topic, batch.schema, partitions=1, replication_factor=BROKERS, config=config)
    first = created.partitions[0]
    if partitions > 1:
        cluster.admin.add_partitions(topic, assignment=dict.fromkeys(range(1, partitions), first.replicas))
    brokers = cluster.brokers
    leader = brokers[first.replicas[0]]
    connect = partial(cluster.security.client, f"{leader.host}:{leader.port}")
    for partition in range(partitions):
        # The partition is led in ZooKeeper, but the broker may not have opened it yet.
        persistently(partial(_look_into, connect, topic, partition), Deadline(OPEN_MS))
    streams = FlightStreams(
        connect,
        topic,
        range(partitions),
        batch,
        pids=tuple(broker.pid for broker in brokers.values()),
    )
    try:
        yield streams
    finally:
        streams.close()
        cluster.admin.delete_topic(topic)


def _look_into(connect: Connect, topic: str, partition: int) -> None:
    """Read nothing of the partition. Raises the refusal if it is not led there."""
    ticket = to_json(ReadTicket(topic=topic, partition=partition, to=0))
    with connect() as client:
        try:
            client.do_get(flight.Ticket(ticket)).read_all()
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            raise error_of_flight(error) from error


class FlightStreams:
    """A load.Target: one DoPut stream for all partitions of a topic, as any Flight client opens it; acks=all."""

    def __init__(
        self, connect: Connect, topic: str, partitions: Sequence[int], batch: pa.RecordBatch, *, pids: tuple[int, ...]
    ) -> None:
        self.topic = topic
        self.streams = len(partitions)
        self.batch_bytes = batch.serialize().size
        self.pids = pids
        self._batch = batch
        self._metadata = [pa.py_buffer(to_json(BatchMetadata(partition=number))) for number in partitions]
        self._answers = AnswerReader(self.streams)
        self._sent: dict[int, int] = {}  # the stream of each batch without an answer, by the batch's number
        self._number = 0
        self.client = connect()
        self._writer, reader = self.client.do_put(flight.FlightDescriptor.for_path(topic), batch.schema)
        self._receiving = threading.Thread(target=self._receive, args=(reader,), name="bench-answers", daemon=True)
        self._receiving.start()

    def begin(self, answers: AnswerReader) -> None:
        self._answers = answers

    def send(self, stream: int) -> None:
        self._sent[self._number] = stream
        self._number += 1
        self._writer.write_with_metadata(self._batch, self._metadata[stream])

    def close(self) -> None:
        self._writer.done_writing()
        self._receiving.join()
        self._writer.close()
        self.client.close()

    def _receive(self, reader: flight.FlightMetadataReader) -> None:
        try:
            while (told := reader.read()) is not None:
                for answer in from_json(told.to_pybytes(), AnswersOfStream).answers:
                    if answer.error:
                        self._answers.failed(error_of(answer.error, answer.message))
                    self._answers.came(self._sent.pop(answer.number), 1)
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            self._answers.failed(error_of_flight(error))

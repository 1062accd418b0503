"""Reads of a whole partition: by our Reader, beside its files over a bare socket; by DoGet, beside Flight alone; and of
its files by LocalReader, beside pyarrow with a memory map.

All of them touch every byte (for its CRC-32C): a map that nobody looks into would cost nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import pyarrow as pa
from crc32c import crc32c
from pyarrow import flight

from spark_replication.admin.bench.bare_file import BareFile
from spark_replication.admin.bench.bare_flight import BareFlight
from spark_replication.admin.bench.load import cpu_s_of, fill
from spark_replication.admin.bench.replicate import WHOLE, Lanes, Progress, batch_of, started, streams_to
from spark_replication.client.reading.local_reader import LocalReader
from spark_replication.client.reading.reader import Reader
from spark_replication.live.local_cluster import LocalCluster
from spark_replication.messages.envelope import to_json
from spark_replication.messages.records import ReadTicket

Looked = TypeVar("Looked")


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    batch_bytes: int
    mb: float
    #: Of our Reader.
    mb_per_s: float
    broker_cpu_s_per_gb: float
    bare_mb_per_s: float
    get_mb_per_s: float
    flight_mb_per_s: float
    local_mb_per_s: float
    mapped_mb_per_s: float

    @property
    def ratio(self) -> float:
        return round(self.mb_per_s / self.bare_mb_per_s, 3)

    @property
    def flight_ratio(self) -> float:
        return round(self.get_mb_per_s / self.flight_mb_per_s, 3)

    @property
    def local_ratio(self) -> float:
        return round(self.local_mb_per_s / self.mapped_mb_per_s, 3)


COLUMNS = (*Figures.__struct_fields__, "ratio", "flight_ratio", "local_ratio")


def read(sizes: Sequence[int], *, total_bytes: int, rounds: int, progress: Progress) -> Iterator[Figures]:
    with started() as cluster:
        for size in sizes:
            progress(f"{size} bytes a batch, {total_bytes >> 20} MiB")
            batch = batch_of(size)
            with streams_to(cluster, 1, batch, WHOLE) as streams:
                batches = max(1, total_bytes // batch.nbytes)
                fill(streams, batches)
                yield _figures(cluster, streams, batch, batches, rounds)


def _figures(cluster: LocalCluster, streams: Lanes, batch: pa.RecordBatch, batches: int, rounds: int) -> Figures:
    files = _segments(cluster, streams.topic)
    expected = crc32c(batch.column(0).buffers()[1]), batches
    ticket = flight.Ticket(to_json(ReadTicket(topic=streams.topic, partition=0)))
    ours, bare, got, alone, mapped, local = (float("inf"),) * 6
    used_s = 0.0
    with (
        Reader(cluster.bootstrap, security=cluster.security) as reader,
        BareFile(files) as bare_file,
        BareFlight(batch) as flight_alone,
        cluster.security.client(streams.leader) as client,
    ):
        for _ in range(rounds):  # in turn: other work of the machine falls on all
            cpu_s = cpu_s_of(streams.pids)
            ours = min(ours, _timed(lambda: _look(_read(reader, streams.topic)), expected))
            used_s += cpu_s_of(streams.pids) - cpu_s
            bare = min(bare, _timed(lambda: _received(bare_file), sum(path.stat().st_size for path in files)))
            got = min(got, _timed(lambda: _look(_batches(client.do_get(ticket))), expected))
            alone = min(alone, _timed(lambda: _look(_batches(flight_alone.batches(batches))), expected))
    for _ in range(rounds):
        mapped = min(mapped, _timed(lambda: _look(_mapped(files)), expected))
        local = min(local, _timed(lambda: _look(_local(files[0].parent)), expected))
    moved = batches * streams.batch_bytes
    return Figures(
        batch_bytes=batch.nbytes,
        mb=round(moved / 1e6, 1),
        mb_per_s=round(moved / ours / 1e6, 1),
        broker_cpu_s_per_gb=round(used_s / rounds / moved * 1e9, 2),
        bare_mb_per_s=round(moved / bare / 1e6, 1),
        get_mb_per_s=round(moved / got / 1e6, 1),
        flight_mb_per_s=round(moved / alone / 1e6, 1),
        local_mb_per_s=round(moved / local / 1e6, 1),
        mapped_mb_per_s=round(moved / mapped / 1e6, 1),
    )


def _segments(cluster: LocalCluster, topic: str) -> list[Path]:
    """The segments of one replica: those of all replicas are the same."""
    log_dir = Path(next(iter(cluster.brokers.values())).log_dir)
    return sorted(log_dir.glob(f"{topic}-0.*/*.arrow"))


def _read(reader: Reader, topic: str) -> Iterator[pa.RecordBatch]:
    return (found.batch for found in reader.read(topic, 0))


def _received(bare: BareFile) -> int:
    """How much has come, each byte of it looked at."""
    count = 0
    for piece in bare.received():
        crc32c(piece)
        count += len(piece)
    return count


def _batches(stream: flight.FlightStreamReader) -> Iterator[pa.RecordBatch]:
    return (chunk.data for chunk in stream)


def _mapped(files: Sequence[Path]) -> Iterator[pa.RecordBatch]:
    for path in files:
        with pa.memory_map(str(path)) as source:
            yield from pa.ipc.open_stream(source)


def _local(folder: Path) -> Iterator[pa.RecordBatch]:
    """The batches of a replica's files, also above the checkpoint: all are committed, but may not be checkpointed."""
    return (found.batch for found in LocalReader(folder).read(uncommitted=True))


def _look(batches: Iterator[pa.RecordBatch]) -> tuple[int, int]:
    """The checksum of the batches, which all have the same, and how many there are."""
    checksum = count = 0
    for batch in batches:
        checksum = crc32c(batch.column(0).buffers()[1])
        count += 1
    return checksum, count


def _timed(look: Callable[[], Looked], expected: Looked) -> float:
    start_s = time.perf_counter()
    found = look()
    took_s = time.perf_counter() - start_s
    assert found == expected, f"read {found}, not {expected}"
    return took_s

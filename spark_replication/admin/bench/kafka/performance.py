"""Kafka's own load, ProducerPerformance and ConsumerPerformance of org.apache.kafka.tools, and what they print."""

from __future__ import annotations

import re
from datetime import datetime

from spark_replication.admin.bench.kafka.nodes import MESSAGE_BYTES_MAX, KafkaCluster
from spark_replication.errors import StartFailed

BUFFER_BYTES = 64 << 20  # as much as our producer may have unanswered; Kafka's default is half of it
REPORTS_MS = 100
# After the warm-up; its MB are MiB.
_STEADY = re.compile(r"^(?P<records>\d+) steady state records sent, (?P<rate>[\d.]+) records/sec", re.MULTILINE)


def producing(
    cluster: KafkaCluster, topic: str, *, row_bytes: int, batch_bytes: int, warm_up_rows: int, rows: int
) -> list[str]:
    """The command that sends so many rows, after those of the warm-up."""
    settings = {
        "acks": "all",
        "batch.size": batch_bytes,
        "buffer.memory": BUFFER_BYTES,
        "max.request.size": MESSAGE_BYTES_MAX,
    }
    return cluster.program(
        "org.apache.kafka.tools.ProducerPerformance",
        f"--bootstrap-server={cluster.bootstrap}",
        f"--topic={topic}",
        f"--num-records={warm_up_rows + rows}",
        f"--warmup-records={warm_up_rows}",
        f"--record-size={row_bytes}",
        "--throughput=-1",
        "--command-property",
        *(f"{name}={value}" for name, value in settings.items()),
    )


def produced_mb_per_s(printed: str, row_bytes: int) -> float:
    """The rate of rows after the warm-up, in 10^6 bytes. Raises StartFailed if it was not printed."""
    found = _STEADY.search(printed)
    if found is None:
        raise StartFailed(f"Kafka's producer printed no rate: {printed[-1_000:]}")
    return float(found["rate"]) * row_bytes / 1e6


def consuming(cluster: KafkaCluster, topic: str, *, rows: int) -> list[str]:
    """The command that reads so many rows from the beginning on."""
    return cluster.program(
        "org.apache.kafka.tools.ConsumerPerformance",
        f"--bootstrap-server={cluster.bootstrap}",
        f"--topic={topic}",
        f"--num-records={rows}",
        "--show-detailed-stats",
        f"--reporting-interval={REPORTS_MS}",
    )


def consumed_mb_per_s(printed: str, row_bytes: int, warm_up_rows: int) -> float:
    """The rate from the first report after the warm-up to the last one, in 10^6 bytes. Raises StartFailed if there are
    not two such reports."""
    reports = [_report(line) for line in printed.splitlines() if line[:1].isdigit()]
    warm = [report for report in reports if report[1] >= warm_up_rows]
    if len(warm) < 2:
        raise StartFailed(f"Kafka's consumer printed no rate after its warm-up: {printed[-1_000:]}")
    (began_s, before), (ended_s, after) = warm[0], warm[-1]
    return (after - before) * row_bytes / (ended_s - began_s) / 1e6


def _report(line: str) -> tuple[float, int]:
    """When a report was made, and how many rows had come: `2026-11-25 21:39:15:751, 0, 0.0010, 0.0004, 1, …`."""
    at, _thread, _mb, _rate, rows, *_ = line.split(", ")
    return datetime.strptime(at, "%Y-%m-%d %H:%M:%S:%f").astimezone().timestamp(), int(rows)

"""The cost of partitions that nobody writes to: CPU of brokers and controller, memory, threads, open files."""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec

from spark_replication.admin.bench import probes
from spark_replication.admin.bench.cluster import Filled, processes
from spark_replication.admin.bench.load import cpu_s_of
from spark_replication.admin.bench.replicate import Progress

SETTLE_S = 3.0  # until the work that follows the first writes is over


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one process."""

    process: str
    partitions: int
    #: Percent of one core.
    cpu_percent: float
    memory_mb: int
    #: By how much its memory grew for each partition, in units of 1,024 bytes.
    kb_per_partition: float
    threads: int
    open_files: int


COLUMNS = Figures.__struct_fields__


def idle(filled: Filled, seconds: float, progress: Progress) -> Iterator[Figures]:
    time.sleep(SETTLE_S)
    progress(f"idle for {seconds} s")
    pids = processes(filled.cluster)
    used = {name: cpu_s_of([pid]) for name, pid in pids.items()}
    began = time.perf_counter()
    time.sleep(seconds)
    for name, pid in pids.items():
        cpu_s, took_s = cpu_s_of([pid]) - used[name], time.perf_counter() - began
        yield Figures(
            process=name,
            partitions=filled.partitions,
            cpu_percent=round(100 * cpu_s / took_s, 1),
            memory_mb=round(probes.memory_kb(pid) / 1024),
            kb_per_partition=round((probes.memory_kb(pid) - filled.empty_kb[name]) / filled.partitions, 2),
            threads=probes.threads(pid),
            open_files=probes.open_files(pid),
        )

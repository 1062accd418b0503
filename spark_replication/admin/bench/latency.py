"""How long an acks=all batch takes to its answer, at a fixed rate, beside the bare loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from spark_replication.admin.bench.bare import BareLoop
from spark_replication.admin.bench.load import latency
from spark_replication.admin.bench.replicate import Progress, batch_of, started, streams_to


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    batch_bytes: int
    partitions: int
    batches_per_s: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    bare_p50_ms: float
    bare_p99_ms: float

    @property
    def ratio(self) -> float:
        """The bare loop's median divided by ours: 1 would be the limit."""
        return round(self.bare_p50_ms / self.p50_ms, 2)


COLUMNS = (*Figures.__struct_fields__, "ratio")


def measure(
    sizes: Sequence[int], partitions: Sequence[int], *, seconds: float, batches_per_s: int, progress: Progress
) -> Iterator[Figures]:
    with started() as cluster:
        for size in sizes:
            batch = batch_of(size)
            for count in partitions:
                progress(f"{size} bytes a batch, {count} partitions, {batches_per_s} batches a second")
                with BareLoop(bytes(batch.serialize())) as bare, streams_to(cluster, count, batch) as streams:
                    limit = latency(bare, seconds, batches_per_s)
                    ours = latency(streams, seconds, batches_per_s)
                    yield Figures(
                        batch_bytes=size,
                        partitions=count,
                        batches_per_s=batches_per_s,
                        p50_ms=ours.p50_ms,
                        p99_ms=ours.p99_ms,
                        max_ms=ours.max_ms,
                        bare_p50_ms=limit.p50_ms,
                        bare_p99_ms=limit.p99_ms,
                    )

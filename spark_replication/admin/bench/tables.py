"""Topics that are tables: what producers lose to the writers beside their brokers, what a file costs beside the same
rows written by delta-rs, what many commits do to a table, and what a writer of many topics holds in memory.

A round with a table ends before its rows are in the table: they are waited for, so that no writer is at work while
producers of the other side are measured.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import pyarrow as pa
from deltalake import WriterProperties, write_deltalake

from spark_replication.admin.bench.columns import COLUMNS, ROW_BYTES, batch_of
from spark_replication.admin.bench.harness import Harness, Measure, Measured, Round, Row, rows
from spark_replication.admin.bench.ours import Ours
from spark_replication.admin.bench.probes import cpu_s_of, memory_kb
from spark_replication.admin.bench.side import BROKERS, Rows
from spark_replication.admin.bench.sides import clusters
from spark_replication.admin.bench.traffic import Acknowledge, Produce
from spark_replication.admin.bench.zookeeper_view import HEALTHY_TIMEOUT_S
from spark_replication.client.finding.deadline import Deadline
from spark_replication.client.finding.ranges import answered_ranges
from spark_replication.client.finding.routes import Routes
from spark_replication.client.producing.producer import Producer
from spark_replication.core.tables.table import RowRange
from spark_replication.errors import RequestTimedOut
from spark_replication.live.guarding.table_writer import FOLDER
from spark_replication.live.tables.table_topics import table_topics
from spark_replication.live.tables.table_writers import TIDY_COMMITS
from spark_replication.messages.ranges import WantedRange
from spark_replication.mirror.delta.object_store import PATIENCE
from spark_replication.model import Scalar
from spark_replication.process.processes import LockedProcess
from spark_replication.process.threads import now_ms
from spark_replication.tables.delta_table import DeltaTopicTable, TableOwner
from spark_replication.tables.folder import TableFolder
from spark_replication.tables.parquet_files import StoredRows, TableFiles, table_batches
from spark_replication.tables.types import table_schema
from spark_replication.tables.upkeep import TableUpkeep, UpkeepRules

FLUSH_MS = 1_000
FLUSHES = 3  # of a table, at least, while single rows are sent
FILE_BYTES = 128 << 20
ROW_BYTES_SENT, PARTITIONS, ROUND_S = 1 << 10, 3, 15.0
ASK_MS = 30_000
SETTLE_S = 600.0
LOOK_S = 0.2
FILES_CPU, STORED = Measure("processor", "CPU s/GB"), Measure("stored", "bytes a byte")
LOAD, OPEN, COMMIT = Measure("load", "ms"), Measure("load anew", "ms"), Measure("commit", "ms")
LOG = Measure("log", "MB")
MEMORY = Measure("largest writer", "MB")
WRITERS_CPU = Measure("writers", "CPU s/GB")
EDGE = 100  # commits that are told of at either end
OWNER = TableOwner(cluster_id="bench", topic="bench", topic_id="bench")

TablePart = Literal["produce", "files", "commits", "topics"]


def measure(
    parts: Collection[TablePart],
    producing: Sequence[BesideWriters],
    harness: Harness,
    *,
    mib: int,
    commits: int,
    topics: int,
) -> Iterator[Row]:
    if "files" in parts:
        yield from harness.measure(WriteFiles(mib=mib), FILE_SIDES)
    if "commits" in parts:
        yield from many_commits(commits, harness)
    if "produce" in parts:
        with clusters(harness) as (side,):
            for case in producing:
                with_a_table = WithTables(side, "with a table", of_tables(case.flush_ms))
                without = WithTables(side, "without", {"table": False})
                yield from harness.measure(case, [with_a_table, without])
    if "topics" in parts:
        with clusters(harness) as (side,):
            yield from many_topics(WithTables(side, "ours", of_tables(FLUSH_MS)), topics, mib, harness)


# Beside producers


def of_tables(flush_ms: int) -> Mapping[str, Scalar]:
    return {"table": True, "table.flush.ms": flush_ms}


def producing(batch_bytes: Iterable[int], mib: int, rates: Iterable[int], flush_ms: int) -> list[BesideWriters]:
    """Batches as fast as they go, and single rows at these rates."""
    seconds = max(ROUND_S, FLUSHES * flush_ms / 1_000)
    cases: list[Produce | Acknowledge] = [
        *(
            Produce(row_bytes=ROW_BYTES_SENT, batch_bytes=each, partitions=PARTITIONS, producers=1, mib=mib)
            for each in batch_bytes
        ),
        *(
            Acknowledge(row_bytes=ROW_BYTES_SENT, rows_per_s=each, partitions=PARTITIONS, seconds=seconds)
            for each in rates
        ),
    ]
    return [BesideWriters(of=each, flush_ms=flush_ms) for each in cases]


class WithTables(Ours):
    """The same cluster, whose topics are tables, or are not."""

    def __init__(self, of: Ours, name: str, settings: Mapping[str, Scalar]) -> None:
        """settings: of its topics."""
        super().__init__(of.cluster, of._admin, name=name, security=of._security)
        self.settings = settings
        self._suffix = f"-{name.replace(' ', '-')}"

    def create(self, topic: str, partitions: int, config: Mapping[str, Scalar], replicas: int = BROKERS) -> None:
        super().create(topic + self._suffix, partitions, {**config, **self.settings}, replicas)

    def delete(self, topic: str) -> None:
        super().delete(topic + self._suffix)

    def sender(self, topic: str, of: Rows, *, joins: bool = False) -> list[str]:
        return super().sender(topic + self._suffix, of, joins=joins)

    def writers(self) -> list[int]:
        """The pid of the writer beside each broker, as far as there are."""
        folders = (Path(broker.log_dir) / FOLDER for broker in self.cluster.brokers.values())
        return [pid for each in folders if (pid := LockedProcess(each).pid()) is not None]


class BesideWriters(msgspec.Struct, frozen=True, kw_only=True):
    """What producers do, while writers take their rows."""

    of: Produce | Acknowledge
    flush_ms: int

    @property
    def what(self) -> str:
        return f"{self.of.what}, a flush every {self.flush_ms / 1_000:g} s"

    @contextmanager
    def begun(self, side: WithTables, harness: Harness) -> Iterator[Round]:
        with closing(Routes(side.bootstrap)) as routes, self.of.begun(side, harness) as do:

            def measured() -> Measured:
                found = do()
                settled(routes)
                return found

            settled(routes)
            yield measured


def settled(routes: Routes) -> None:
    """Wait until all tables have what is committed."""
    until_s = time.monotonic() + SETTLE_S
    for topic in table_topics(routes, ()):
        table = topic.table(PATIENCE)
        asked = [WantedRange(topic=topic.name, partition=each, start="latest") for each in topic.metadata.numbers]
        while True:
            told = answered_ranges(routes, asked, Deadline(ASK_MS)).values()
            ends = table.load().ends
            if len(told) == len(asked) and all(ends.get(each.partition, 0) >= each.end for each in told):
                break
            if time.monotonic() > until_s:
                raise RequestTimedOut(f"the table of {topic.name} has not caught up in {SETTLE_S:.0f} s")
            time.sleep(LOOK_S)


# Files


class WriteFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Write `mib` of Arrow rows as Parquet (zstd, statistics), and commit them."""

    mib: int
    batch_bytes: int = 1 << 20

    @property
    def what(self) -> str:
        return f"{self.mib} MiB of {COLUMNS} columns"

    @contextmanager
    def begun(self, side: FileSide, _: Harness) -> Iterator[Round]:
        whole, each_rows = batch_of((self.mib << 20) // ROW_BYTES), self.batch_bytes // ROW_BYTES
        batches = [whole.slice(start, each_rows) for start in range(0, len(whole), each_rows)]
        gigabytes = sum(each.nbytes for each in batches) / 1e9

        def write() -> Measured:
            with tempfile.TemporaryDirectory(prefix="bench-") as directory:
                began_s = time.process_time()
                side.write(str(Path(directory) / "table"), batches)
                used_s = time.process_time() - began_s
                stored = sum(path.stat().st_size for path in Path(directory).rglob("*.parquet"))
            return {FILES_CPU: used_s / gigabytes, STORED: stored / gigabytes / 1e9}

        write()
        yield write


class FileSide(NamedTuple):
    name: str
    write: Callable[[str, Sequence[pa.RecordBatch]], None]


def by_us(uri: str, batches: Sequence[pa.RecordBatch]) -> None:
    table = DeltaTopicTable(uri, OWNER, batches[0].schema, PATIENCE, now_ms=now_ms)
    table.make()
    files = TableFiles(table.folder, table.layout(), file_bytes=FILE_BYTES, now_ms=now_ms)
    end = 0
    for batch in batches:
        files.add(StoredRows(0, end, now_ms(), 0, batch))
        end += len(batch)
    table.commit(table.load(), [_from(0, end)], files.close())


def by_delta_rs(uri: str, batches: Sequence[pa.RecordBatch]) -> None:
    """Rows with the same columns beside."""
    schema = table_schema(batches[0].schema)
    stored = (StoredRows(0, place * len(batch), now_ms(), 0, batch) for place, batch in enumerate(batches))
    made = pa.RecordBatchReader.from_batches(
        schema, (made for each in stored for made in table_batches([each], schema))
    )
    write_deltalake(uri, made, writer_properties=WriterProperties(compression="ZSTD", compression_level=1))


def _from(start: int, end: int) -> RowRange:
    return RowRange(partition=0, start=start, end=end, last_epoch=0, confirmed_epoch=0)


FILE_SIDES = (FileSide("ours", by_us), FileSide("delta-rs", by_delta_rs))

# Many commits, and many topics


def many_commits(commits: int, harness: Harness) -> list[Row]:
    """What one table costs after so many commits, beside its first ones. It is tidied as a writer does it."""
    batch = pa.record_batch([pa.array(range(10))], ["number"])
    found: list[Measured] = []
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        table = DeltaTopicTable(directory, OWNER, batch.schema, PATIENCE, now_ms=now_ms)
        upkeep = TableUpkeep(TableFolder(directory, PATIENCE), OWNER, now_ms)
        table.make()
        for number in range(1, commits + 1):
            found.append(_one_more(table, batch, number))
            if number % TIDY_COMMITS == 0:
                upkeep.tidy(UpkeepRules(file_bytes=FILE_BYTES))
            if number % 1_000 == 0:
                harness.progress(f"{number:,} commits: {found[-1][COMMIT]:.0f} ms")
    edge = min(EDGE, commits // 2)
    return rows(f"{commits:,} commits", {"the last": found[-edge:], "the first": found[:edge]})


def _one_more(table: DeltaTopicTable, batch: pa.RecordBatch, number: int) -> Measured:
    start = (number - 1) * len(batch)
    files = TableFiles(table.folder, table.layout(), file_bytes=FILE_BYTES, now_ms=now_ms)
    files.add(StoredRows(0, start, now_ms(), 0, batch))
    uploads = files.close()
    began_s = time.perf_counter()
    version = table.load()
    loaded_s = time.perf_counter()
    table.commit(version, [_from(start, start + len(batch))], uploads)
    committed_s = time.perf_counter()
    DeltaTopicTable(table.folder.uri, OWNER, batch.schema, PATIENCE, now_ms=now_ms).load()
    opened_s = time.perf_counter()
    log = sum(path.stat().st_size for path in (Path(table.folder.uri) / "_delta_log").iterdir())
    return {
        LOAD: 1e3 * (loaded_s - began_s),
        COMMIT: 1e3 * (committed_s - loaded_s),
        OPEN: 1e3 * (opened_s - committed_s),
        LOG: log / 1e6,
    }


def many_topics(side: WithTables, topics: int, mib: int, harness: Harness) -> list[Row]:
    """What the largest writer took of memory at most, for so many topics with `mib` of rows in all."""
    batch = batch_of((1 << 20) // ROW_BYTES)
    names = [f"table-{number}" for number in range(topics)]
    for name in names:
        side.cluster.admin.create_topic(name, batch.schema, partitions=1, replication_factor=1, config=side.settings)
    side.cluster.wait_healthy(HEALTHY_TIMEOUT_S)
    harness.progress(f"{topics} topics are made")
    with closing(Routes(side.bootstrap)) as routes, Producer(side.bootstrap) as producer:
        for sent in [producer.send(names[number % topics], batch) for number in range(mib)]:
            sent.result()
        settled(routes)
        gigabytes = mib * (1 << 20) / 1e9
        writers = side.writers()
        measured = {
            MEMORY: max(memory_kb(pid, "VmHWM") for pid in writers) * 1_024 / 1e6,
            WRITERS_CPU: cpu_s_of(writers) / gigabytes,
        }
    for name in names:
        side.cluster.admin.delete_topic(name)
    return rows(f"{topics} topics with {mib} MiB", {"ours": [measured]})

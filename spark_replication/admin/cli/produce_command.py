"""`spark-replication produce`: sends a file, or lines of JSON, in large batches that are pipelined."""

from __future__ import annotations

import secrets
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from pathlib import Path
from typing import BinaryIO, get_args

import click
import pyarrow as pa

from spark_replication.admin.cli.listing import Format, admin_at, bootstrap, output, reach_ms, security, show
from spark_replication.admin.cli.progress_line import ProgressLine
from spark_replication.admin.cli.record_files import FileFormat, format_of, read_batches
from spark_replication.client.producing.placing import Placing
from spark_replication.client.producing.producer import Producer
from spark_replication.engine.client.sending import Ack, Acks
from spark_replication.errors import InvalidRequest
from spark_replication.storage.format.batches import stored_schema
from spark_replication.transport.security.security import Security

BATCH_ROWS = 10_000
WAITING_MAX = 64  # batches without an answer


class Acknowledged:
    """The acknowledged rows of one partition so far. Some offsets between its first and its last may be other
    producers'."""

    def __init__(self) -> None:
        self.batches = 0
        self.rows = 0
        self.first: int | None = None
        self.last: int | None = None

    def add(self, ack: Ack) -> None:
        self.batches += 1
        self.rows += ack.last_offset - ack.base_offset + 1
        self.first = ack.base_offset if self.first is None else self.first
        self.last = ack.last_offset


class Progress:
    """What is acknowledged of all partitions."""

    def __init__(self) -> None:
        self.of: dict[int | None, Acknowledged] = {}

    def add(self, ack: Ack) -> None:
        self.of.setdefault(ack.partition, Acknowledged()).add(ack)

    def __str__(self) -> str:
        rows = sum(each.rows for each in self.of.values())
        return f"{rows} rows acknowledged, in {len(self.of)} partitions"


@click.command()
@bootstrap
@security
@output
@click.argument("topic")
@click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--partition", "-p", type=click.IntRange(min=0), help="all rows to this one")
@click.option(
    "--key",
    "-k",
    "key",
    multiple=True,
    metavar="COLUMN",
    help="rows of one value to one partition, the one that Producer.send(key=…) chooses; several make one key",
)
@click.option("--input-format", type=click.Choice(get_args(FileFormat)), help="of the file; by default its suffix says")
@click.option(
    "--batch-rows", type=click.IntRange(min=1), default=BATCH_ROWS, show_default=True, help="rows that go together"
)
@click.option("--acks", type=click.Choice(("all", "1", "0")), default="all", show_default=True)
def produce(
    bootstrap: str,
    output: Format,
    security: Security,
    topic: str,
    file: Path | None,
    *,
    partition: int | None,
    key: tuple[str, ...],
    input_format: FileFormat | None,
    batch_rows: int,
    acks: str,
) -> None:
    """Write the rows of FILE to TOPIC, or, without FILE, the lines of JSON on standard input.

    Without --partition and --key, batches go to its partitions in turn, from any of them on. The listing at the end
    says what is acknowledged, also if something went wrong: then the rows behind that are to be looked for before they
    are sent again.
    """
    if key and partition is not None:
        raise click.UsageError("A key chooses the partition: give --key or --partition.")
    kind = input_format or ("jsonl" if file is None else format_of(file))
    name = "standard input" if file is None else str(file)
    if file is None and kind != "jsonl":
        raise click.UsageError("standard input is read as lines of JSON: give a FILE")
    with _opened(file) as opened:
        schema, partitions = _described(bootstrap, security, topic)
        unknown = sorted(set(key) - set(schema.names))
        if unknown:
            raise InvalidRequest(f"--key {unknown[0]}: {topic} has the columns {', '.join(schema.names)}")
        batches = read_batches(opened, kind, schema, rows_max=batch_rows, name=name)
        placed = _placed(topic, batches, partitions if partition is None else [partition], key)
        chosen: Acks = "all" if acks == "all" else 1 if acks == "1" else 0
        progress = Progress()
        try:
            with Producer(bootstrap, chosen, security=security, reach_ms=reach_ms()) as producer:
                _send(producer, topic, placed, progress)
        finally:
            _show(topic, partition, progress, output)


def _show(topic: str, partition: int | None, progress: Progress, output: Format) -> None:
    found = progress.of or {partition: Acknowledged()}
    rows = [(topic, number, each.batches, each.rows, each.first, each.last) for number, each in sorted(found.items())]
    show(("topic", "partition", "batches", "rows", "first_offset", "last_offset"), rows, output=output)


def _placed(
    topic: str, batches: Iterator[pa.RecordBatch], partitions: Sequence[int], key: Sequence[str]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    first = secrets.randbelow(len(partitions))  # or small inputs, a call each, would all go to the same partition
    for turn, batch in enumerate(batches, first):
        yield from Placing(topic, partitions, key, turn).parts(batch, batch)


def _send(producer: Producer, topic: str, batches: Iterator[tuple[int, pa.RecordBatch]], progress: Progress) -> None:
    """Send batches until the first that fails. Those in flight behind it count, too, if they are stored."""
    waiting: deque[Future[Ack]] = deque()
    with ProgressLine() as line:
        try:
            for partition, batch in batches:
                waiting.append(producer.send(topic, batch, partition=partition))
                while waiting and (len(waiting) > WAITING_MAX or waiting[0].done()):
                    progress.add(waiting.popleft().result())
                    line.tell(progress)
            while waiting:
                progress.add(waiting.popleft().result())
                line.tell(progress)
        finally:
            for future in waiting:
                if future.exception() is None:
                    progress.add(future.result())


@contextmanager
def _opened(file: Path | None) -> Iterator[BinaryIO]:
    if file is None:
        yield sys.stdin.buffer
        return
    with file.open("rb") as opened:
        yield opened


def _described(bootstrap: str, security: Security, topic: str) -> tuple[pa.Schema, list[int]]:
    """The schema and the partitions of a topic."""
    with closing(admin_at(bootstrap, security)) as admin:
        (found,) = admin.describe_topics([topic])
    if not found.schema:
        raise InvalidRequest(f"topic {topic} has no schema: create it with one")
    return stored_schema(found.arrow_schema), [each.partition for each in found.partitions]

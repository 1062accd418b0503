"""`spark-replication produce`: a file, or lines of JSON, to one partition, in large batches that are pipelined."""

from __future__ import annotations

import base64
import sys
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from pathlib import Path
from typing import BinaryIO, get_args

import click
import pyarrow as pa

from spark_replication.admin.cli.listing import Format, bootstrap, output, security, show
from spark_replication.admin.cli.record_files import FileFormat, format_of, read_batches
from spark_replication.client.admin import Admin
from spark_replication.client.producer import Producer
from spark_replication.client.sender import Ack
from spark_replication.errors import InvalidRequest
from spark_replication.storage.batches import schema_from_bytes, stored_schema
from spark_replication.transport.security import Security

BATCH_ROWS = 10_000
WAITING_MAX = 64  # batches without an answer
PROGRESS_S = 1.0


class Acknowledged:
    """What brokers have answered for, so far. Offsets between its first and its last may be other producers'."""

    def __init__(self) -> None:
        self.batches = 0
        self.rows = 0
        self.first: int | None = None
        self.last: int | None = None
        self._told_s = time.monotonic()

    def add(self, ack: Ack) -> None:
        self.batches += 1
        self.rows += ack.last_offset - ack.base_offset + 1
        self.first = ack.base_offset if self.first is None else self.first
        self.last = ack.last_offset
        if time.monotonic() - self._told_s >= PROGRESS_S:
            self._told_s = time.monotonic()
            click.echo(f"{self.rows} rows acknowledged, to offset {self.last}", err=True)


@click.command()
@bootstrap
@security
@output
@click.argument("topic")
@click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--partition", "-p", type=click.IntRange(min=0), default=0, show_default=True)
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
    partition: int,
    input_format: FileFormat | None,
    batch_rows: int,
    acks: str,
) -> None:
    """Rows of FILE, or without one of the lines of JSON on standard input, to a topic.

    The listing at the end says what is acknowledged, also if something went wrong: then the rows behind that are to be
    looked for before they are sent again.
    """
    kind = input_format or ("jsonl" if file is None else format_of(file))
    name = "standard input" if file is None else str(file)
    if file is None and kind != "jsonl":
        raise click.UsageError("standard input is read as lines of JSON: give a FILE")
    acknowledged = Acknowledged()
    try:
        with (
            _opened(file) as opened,
            Producer(bootstrap, "all" if acks == "all" else 1 if acks == "1" else 0, security=security) as producer,
        ):
            batches = read_batches(opened, kind, _schema(bootstrap, security, topic), rows_max=batch_rows, name=name)
            _send(producer, topic, partition, batches, acknowledged)
    finally:
        columns = ("topic", "partition", "batches", "rows", "first_offset", "last_offset")
        found = (acknowledged.batches, acknowledged.rows, acknowledged.first, acknowledged.last)
        show(columns, [(topic, partition, *found)], output=output)


def _send(
    producer: Producer, topic: str, partition: int, batches: Iterator[pa.RecordBatch], acknowledged: Acknowledged
) -> None:
    """Until the first that fails; those in flight behind it are counted, too, if they are there."""
    waiting: deque[Future[Ack]] = deque()
    try:
        for batch in batches:
            waiting.append(producer.send(topic, batch, partition=partition))
            while waiting and (len(waiting) > WAITING_MAX or waiting[0].done()):
                acknowledged.add(waiting.popleft().result())
        while waiting:
            acknowledged.add(waiting.popleft().result())
    finally:
        for future in waiting:
            if future.exception() is None:
                acknowledged.add(future.result())


@contextmanager
def _opened(file: Path | None) -> Iterator[BinaryIO]:
    if file is None:
        yield sys.stdin.buffer
        return
    with file.open("rb") as opened:
        yield opened


def _schema(bootstrap: str, security: Security, topic: str) -> pa.Schema:
    with closing(Admin(bootstrap, security=security)) as admin:
        (found,) = admin.describe_topics([topic])
    if not found.schema:
        raise InvalidRequest(f"topic {topic} has no schema: create it with one")
    return stored_schema(schema_from_bytes(base64.b64decode(found.schema), f"topic {topic}"))

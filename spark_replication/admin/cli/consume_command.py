"""`spark-replication consume`: rows of a topic, from an offset, a named place or a time on, or from where a consumer
group is."""

from __future__ import annotations

import errno
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, suppress
from datetime import datetime
from functools import wraps
from typing import Any, Protocol, cast, get_args

import click
import msgspec
import pyarrow as pa

from spark_replication.admin.cli.listing import bootstrap, moment, reach_ms, security
from spark_replication.admin.cli.shown_rows import ROWS_SHOWN, RowChoice, first, row_options, show_rows
from spark_replication.client.consuming.consumer import Consumer
from spark_replication.client.reading.bounds import Bounds
from spark_replication.client.reading.log_batch import OFFSET, LogBatch
from spark_replication.client.reading.reader import Reader
from spark_replication.client.reading.selection import Selection, selection
from spark_replication.client.reading.topic_rows import TopicRows
from spark_replication.core.replica.read_start import time_in_ms
from spark_replication.engine.client.reading import Preference
from spark_replication.errors import ClientClosed, UnknownTopicOrPartition
from spark_replication.messages.records import PARTITION
from spark_replication.model import OFFSET_MAX, NamedOffset, Offset, number_of
from spark_replication.process.stop_signals import INTERRUPTED, on_closed_output, on_stop_signals
from spark_replication.storage.format.batches import topic_schema
from spark_replication.transport.security.security import Security


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which rows to read, in the terms of Reader.read."""

    partition: int | None
    start: Offset | NamedOffset
    start_time: int | None
    stop: Offset | None

    @property
    def bounds(self) -> Bounds:
        """The same of what is committed at present."""
        partitions = None if self.partition is None else frozenset({self.partition})
        return Bounds(
            partitions=frozenset() if self.start == "latest" else partitions,  # beyond what there is
            offset_start=self.start if isinstance(self.start, int) else 0,
            offset_end=self.stop,
            time_start_us=None if self.start_time is None else self.start_time * 1_000,
        )


def _start(_context: click.Context, _parameter: click.Parameter, text: str | None) -> Offset | NamedOffset | None:
    if text is None or text in get_args(NamedOffset):
        return cast(NamedOffset | None, text)
    offset = number_of(text, OFFSET_MAX)
    if offset is None:
        raise click.BadParameter(f"{text!r} is neither an offset nor earliest or latest")
    return offset


def _rows_wanted(command: Callable[..., None]) -> Callable[..., None]:
    @click.option("--partition", "-p", type=click.IntRange(min=0), help="this one only; all if not given")
    @click.option("--from", "start", callback=_start, help="offset to start at (0 if not given), earliest or latest")
    @click.option("--from-time", "start_time", callback=moment, help="time to start at, as 2026-11-21T10:00:00Z")
    @click.option("--to", "stop", type=click.IntRange(min=0), help="offset to stop before")
    @wraps(command)
    def with_wanted(
        *,
        partition: int | None,
        start: Offset | NamedOffset | None,
        start_time: datetime | None,
        stop: Offset | None,
        **others: Any,
    ) -> None:
        if start is not None and start_time is not None:
            raise click.UsageError("--from and --from-time are two places to start at: name one")
        if partition is None and (stop is not None or (isinstance(start, int) and start > 0)):
            raise click.UsageError("an offset is of one partition: name that with --partition, too")
        if stop is not None and isinstance(start, int) and stop < start:
            raise click.UsageError(f"--from {start} --to {stop} is no range of offsets: stop after the start")
        start_time_ms = None if start_time is None else time_in_ms(start_time)
        wanted = Wanted(partition=partition, start=start or 0, start_time=start_time_ms, stop=stop)
        command(wanted=wanted, **others)

    return with_wanted


@click.command()
@bootstrap
@security
@click.argument("topic")
@_rows_wanted
@row_options
@click.option(
    "--rows",
    "-n",
    type=click.IntRange(min=1),
    help=f"show no more ({ROWS_SHOWN} in a table if not given, else all, and with --follow all that come)",
)
@click.option(
    "--prefer",
    default="leader",
    show_default=True,
    help="leader, follower, near (on this host, from its files where they may be read) or a broker's id",
)
@click.option("--follow", "-f", is_flag=True, help="show what comes, as it comes, until Ctrl-C: as JSON, a line a row")
@click.option(
    "--group",
    "-g",
    metavar="NAME",
    help="follow as a member of this consumer group, which shares the topic: go on where the group is (a new one: at "
    "--from earliest or latest), and commit what was shown",
)
def consume(
    bootstrap: str,
    security: Security,
    topic: str,
    *,
    wanted: Wanted,
    choice: RowChoice,
    rows: int | None,
    prefer: str,
    follow: bool,
    group: str | None,
) -> None:
    """Rows of a topic, with their partitions and offsets.

    --where may name _partition, _offset and _timestamp, too, and a time as 2026-11-21T10:00:00Z."""
    broker = number_of(prefer)
    whom = cast(Preference, prefer if broker is None else broker)
    follow = follow or group is not None
    rows_max = ROWS_SHOWN if rows is None and choice.output == "table" and not follow else rows
    with ExitStack() as opened:
        reader = opened.enter_context(closing(Reader(bootstrap, security=security, prefer=whom, reach_ms=reach_ms())))
        if group is None:
            schema, batches = (_followed if follow else _committed)(reader, topic, wanted, choice)
            shown = first(_until_closed(batches), rows_max)
            stopped, unread = _ends(reader)
        else:
            start, selected = _start_of_group(wanted), _selected(reader, topic, wanted, choice)
            member = Consumer(
                bootstrap,
                [topic],
                group,
                start=start,
                columns=selected.read,
                security=security,
                prefer=whom,
                reach_ms=reach_ms(),
            )
            stopped, unread = _ends(opened.enter_context(member))
            schema, shown = selected.schema, shared(member, selected, rows_max)
        show_rows(schema, shown, choice.output, follow=follow)
    if unread.is_set():
        raise BrokenPipeError(errno.EPIPE, "nobody reads what is shown")  # it ends as by a write that says so
    if stopped.is_set() and not follow:
        raise click.exceptions.Exit(INTERRUPTED)


def _start_of_group(wanted: Wanted) -> NamedOffset:
    named: dict[object, NamedOffset] = {0: "earliest", "earliest": "earliest", "latest": "latest"}
    if wanted.partition is not None or wanted.start_time is not None or wanted.start not in named:
        raise click.UsageError(
            "a group goes on where it is, in the partitions that it gives to each member: `spark-replication groups "
            "reset` moves it, and --from earliest or latest says where a new one begins"
        )
    return named[wanted.start]


class GroupMember(Protocol):
    """A Consumer that has a group."""

    def __iter__(self) -> Iterator[LogBatch]: ...
    def commit(self, found: LogBatch) -> None: ...


def shared(member: GroupMember, selected: Selection, rows_max: int | None) -> Iterator[pa.RecordBatch]:
    """So many rows of what is selected of all that the member is given, or all. What was shown is committed: once the
    next is asked for, and as far as the last row."""
    left = rows_max
    for found in member:
        shown = selected.rows(found)
        if left is not None and shown.num_rows >= left:
            yield shown.slice(0, left)
            with suppress(ClientClosed):  # by Ctrl-C: what was shown last is shown again
                member.commit(_as_far_as(found, selected, left))
            return
        if left is not None:
            left -= shown.num_rows
        if shown.num_rows:
            yield shown


def _as_far_as(found: LogBatch, selected: Selection, rows: int) -> LogBatch:
    """The least of the batch, from its beginning, that has so many rows that are selected."""

    def beginning(count: int) -> LogBatch:
        last_offset = found.base_offset + count - 1
        return msgspec.structs.replace(found, batch=found.batch.slice(0, count), last_offset=last_offset)

    counts = range(found.batch.num_rows)
    return beginning(bisect_left(counts, rows, key=lambda count: selected.rows(beginning(count)).num_rows))


def _ends(reads: Reader | Consumer) -> tuple[threading.Event, threading.Event]:
    """Have a signal, or a closed pipe, end every read. What has come of it is then shown whole. Returns what is set by
    either."""
    stopped, unread = threading.Event(), threading.Event()

    def end(why: threading.Event) -> None:
        why.set()
        reads.close()

    on_stop_signals(lambda: end(stopped))
    on_closed_output(lambda: end(unread))
    return stopped, unread


def _committed(
    reader: Reader, topic: str, wanted: Wanted, choice: RowChoice
) -> tuple[pa.Schema, Iterable[pa.RecordBatch]]:
    asked = choice.asked(topic, _own_columns(reader, topic, wanted), _place(wanted), wanted.bounds)
    found = TopicRows(topic, reader, asked).to_reader()
    return found.schema, found


def _followed(
    reader: Reader, topic: str, wanted: Wanted, choice: RowChoice
) -> tuple[pa.Schema, Iterable[pa.RecordBatch]]:
    selected = _selected(reader, topic, wanted, choice)
    start_time = wanted.start_time
    if wanted.start == 0 and start_time is None:  # conditions may name a time, too
        start_time = selected.bounds.time_start_ms
    found = reader.read(
        topic,
        partition=wanted.partition,
        start=wanted.start,
        stop=wanted.stop,
        start_time=start_time,
        follow=True,
        columns=selected.read,
    )
    return selected.schema, map(selected.rows, found)


def _selected(reader: Reader, topic: str, wanted: Wanted, choice: RowChoice) -> Selection:
    own = _own_columns(reader, topic, wanted)
    return selection(topic, own, choice.asked(topic, own, _place(wanted)))


def _own_columns(reader: Reader, topic: str, wanted: Wanted) -> pa.Schema:
    found = reader.topic(topic)
    if wanted.partition is not None and wanted.partition not in found.numbers:
        raise UnknownTopicOrPartition(
            f"{topic} has no partition {wanted.partition}, it has {', '.join(map(str, found.numbers))}: name one"
        )
    return topic_schema(found.config).newest


def _place(wanted: Wanted) -> tuple[str, ...]:
    """The columns before all others: a partition that was named is known."""
    return (PARTITION, OFFSET) if wanted.partition is None else (OFFSET,)


def _until_closed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    with suppress(ClientClosed):
        yield from batches

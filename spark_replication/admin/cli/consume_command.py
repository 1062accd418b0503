"""`spark-replication consume`: rows of a topic, from an offset, a named place or a time on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from datetime import datetime
from functools import wraps
from typing import Any, cast, get_args

import click
import msgspec

from spark_replication.admin.cli.listing import Format, Lines, bootstrap, output, reach_ms, security, show
from spark_replication.client.reading.log_batch import LogBatch
from spark_replication.client.reading.reader import Reader
from spark_replication.core.replica.read_start import time_in_ms
from spark_replication.engine.client.reading import Preference
from spark_replication.errors import InvalidRequest
from spark_replication.model import OFFSET_MAX, NamedOffset, Offset, number_of
from spark_replication.transport.security.security import Security

ROWS_SHOWN = 10


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which rows to read, in the terms of Reader.read."""

    start: Offset | NamedOffset
    start_time: int | None
    stop: Offset | None


def _start(_context: click.Context, _parameter: click.Parameter, text: str | None) -> Offset | NamedOffset | None:
    if text is None or text in get_args(NamedOffset):
        return cast(NamedOffset | None, text)
    offset = number_of(text, OFFSET_MAX)
    if offset is None:
        raise click.BadParameter(f"{text!r} is neither an offset nor earliest or latest")
    return offset


def _time_ms(_context: click.Context, _parameter: click.Parameter, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return time_in_ms(datetime.fromisoformat(text))
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is no time such as 2026-11-21T10:00:00Z: {error}") from error
    except InvalidRequest as error:
        raise click.BadParameter(error.message) from error


def _rows_wanted(command: Callable[..., None]) -> Callable[..., None]:
    @click.option("--from", "start", callback=_start, help="offset to start at (0 if not given), earliest or latest")
    @click.option("--from-time", "start_time", callback=_time_ms, help="time to start at, as 2026-11-21T10:00:00Z")
    @click.option("--to", "stop", type=click.IntRange(min=0), help="offset to stop before")
    @wraps(command)
    def with_wanted(
        *, start: Offset | NamedOffset | None, start_time: int | None, stop: Offset | None, **others: Any
    ) -> None:
        if start is not None and start_time is not None:
            raise click.UsageError("--from and --from-time are two places to start at: name one")
        command(wanted=Wanted(start=start or 0, start_time=start_time, stop=stop), **others)

    return with_wanted


@click.command()
@bootstrap
@security
@output
@click.argument("topic")
@click.option("--partition", "-p", type=click.IntRange(min=0), help="this one only; all if not given")
@_rows_wanted
@click.option("--column", "-c", "chosen", multiple=True, help="show this column only; may be given several times")
@click.option(
    "--prefer",
    default="leader",
    show_default=True,
    help="leader, follower, near (on this host, from its files where they may be read) or a broker's id",
)
@click.option("--follow", "-f", is_flag=True, help="show what comes, as it comes, until Ctrl-C: as JSON, a line a row")
@click.option(
    "--max-rows",
    type=click.IntRange(min=1),
    help=f"show no more ({ROWS_SHOWN} if not given, all that come with --follow)",
)
def consume(
    bootstrap: str,
    output: Format,
    security: Security,
    topic: str,
    *,
    partition: int | None,
    wanted: Wanted,
    chosen: tuple[str, ...],
    prefer: str,
    follow: bool,
    max_rows: int | None,
) -> None:
    """Rows of a topic, with their partitions and offsets."""
    broker = number_of(prefer)
    whom = cast(Preference, prefer if broker is None else broker)
    with closing(Reader(bootstrap, security=security, prefer=whom, reach_ms=reach_ms())) as reader:
        batches = reader.read(
            topic,
            partition=partition,
            start=wanted.start,
            stop=wanted.stop,
            start_time=wanted.start_time,
            follow=follow,
            columns=chosen or None,
        )
        if follow:
            with suppress(KeyboardInterrupt):
                _show_as_they_come(_rows(batches, max_rows, with_partition=partition is None), output)
            return
        rows = [
            row for found in _rows(batches, max_rows or ROWS_SHOWN, with_partition=partition is None) for row in found
        ]
    columns = list(rows[0]) if rows else ["_offset"]
    show(columns, [[row[name] for name in columns] for row in rows], output=output)


def _rows(batches: Iterable[LogBatch], max_rows: int | None, *, with_partition: bool) -> Iterator[list[dict[str, Any]]]:
    """The rows of each batch, by column."""
    left = max_rows
    for found in batches:
        shown = found.batch.slice(0, left).to_pylist()
        place = {"_partition": found.partition} if with_partition else {}
        yield [{**place, "_offset": offset, **row} for offset, row in enumerate(shown, found.base_offset)]
        if left is not None:
            left -= len(shown)
            if not left:
                return


def _show_as_they_come(batches: Iterable[list[dict[str, Any]]], output: Format) -> None:
    columns: tuple[str, ...] = ()
    lines = Lines(columns, output)
    for rows in batches:
        if tuple(rows[0]) != columns:  # at first, and once the topic has another column
            columns = tuple(rows[0])
            lines = Lines(columns, output)
        lines.show([list(row.values()) for row in rows])

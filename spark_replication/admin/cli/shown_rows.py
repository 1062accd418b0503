"""Rows of a topic on standard output: which columns and rows, as options say, and in which format."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal, get_args

import click
import msgspec
import pyarrow as pa

from spark_replication.admin.cli.listing import Lines, show
from spark_replication.client.reading.row_conditions import ConditionText, condition_text
from spark_replication.errors import InvalidRequest
from spark_replication.process.logs import harmless_json

if TYPE_CHECKING:
    from spark_replication.client.reading.bounds import Bounds
    from spark_replication.client.reading.selection import RowsAsked

RowFormat = Literal["table", "json", "arrow"]
ROWS_SHOWN = 10


class RowChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The columns and conditions that options name, not yet held against a topic, and the format."""

    columns: tuple[str, ...]
    where: tuple[ConditionText, ...]
    output: RowFormat

    def asked(self, topic: str, own: pa.Schema, place: Iterable[str], within: Bounds | None = None) -> RowsAsked:
        """What is asked of a topic that has these columns of its own. `place`: columns that stand before all others.
        Raises UsageError if the topic has no such column, or a value is none of its column's type."""
        from spark_replication.client.reading.bounds import EVERYTHING  # as is selection, what `topics` does without
        from spark_replication.client.reading.selection import RowsAsked, field_of, selection

        try:
            asked = RowsAsked(
                columns=tuple(dict.fromkeys([*place, *(self.columns or own.names)])),
                within=within or EVERYTHING,
                where=tuple(each.read_for(field_of(topic, own, each.column)) for each in self.where),
            )
            selection(topic, own, asked)
        except InvalidRequest as error:
            raise click.UsageError(error.message) from error
        return asked


def row_options(command: Callable[..., None]) -> Callable[..., None]:
    """Pass `choice` to the command, from --columns, --where and --format."""

    @click.option(
        "--columns",
        "--column",
        "-c",
        "columns",
        multiple=True,
        callback=_columns,
        metavar="NAME,…",
        help="these only, beside a row's place; _timestamp, _leader_epoch and _topic are columns, too",
    )
    @click.option(
        "--where",
        multiple=True,
        callback=_where,
        metavar="CONDITION",
        help="rows of which it holds, as 'amount > 5' or 'item in tea,salt', by = == != < <= > >= in; several all hold",
    )
    @click.option(
        "--format",
        "output",
        type=click.Choice(get_args(RowFormat)),
        default="table",
        show_default=True,
        callback=_format,
        help="arrow: an IPC stream, for a program",
    )
    @wraps(command)
    def with_choice(
        *, columns: tuple[str, ...], where: tuple[ConditionText, ...], output: RowFormat, **others: Any
    ) -> None:
        command(choice=RowChoice(columns=columns, where=where, output=output), **others)

    return with_choice


def _columns(_context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    names = tuple(name.strip() for each in given for name in each.split(","))
    if not all(names):
        raise click.BadParameter(f"{','.join(given)!r} has a comma without a name: give names as in id,amount")
    return names


def _where(_context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> tuple[ConditionText, ...]:
    try:
        return tuple(map(condition_text, given))
    except InvalidRequest as error:
        raise click.BadParameter(error.message) from error


def _format(_context: click.Context, _parameter: click.Parameter, output: RowFormat) -> RowFormat:
    if output == "arrow" and sys.stdout.isatty():
        raise click.BadParameter(
            "arrow is bytes for a program, and this is a terminal: add `> rows.arrows`, or a pipe to what reads them"
        )
    return output


def first(batches: Iterable[pa.RecordBatch], rows_max: int | None) -> Iterator[pa.RecordBatch]:
    """So many rows of these batches, or all; no batch is empty."""
    left = rows_max
    for batch in batches:
        shown = batch.slice(0, left)
        if shown.num_rows:
            yield shown
        if left is not None:
            left -= shown.num_rows
            if left <= 0:
                return


def show_rows(schema: pa.Schema, batches: Iterable[pa.RecordBatch], output: RowFormat, *, follow: bool = False) -> None:
    """Show batches as they come: as Arrow's stream, or as JSON, with `follow` a line a row and else a list. A table is
    shown once all are there, with `follow` in lines."""
    if output == "arrow":
        _as_stream(schema, batches)
    elif follow:
        lines = Lines(schema.names, output)
        for batch in batches:
            lines.show(_lists(batch))
    elif output == "json":
        _as_list(batches)
    else:
        show(schema.names, [row for batch in batches for row in _lists(batch)], output=output)


def _lists(batch: pa.RecordBatch) -> list[list[Any]]:
    return [list(row.values()) for row in batch.to_pylist()]


def _as_list(batches: Iterable[pa.RecordBatch]) -> None:
    before = "["
    for batch in batches:
        for row in batch.to_pylist():
            text = harmless_json(msgspec.json.encode(row, enc_hook=str).decode())
            click.echo(f"{before}\n  {text}", nl=False)
            before = ","
    click.echo("[]" if before == "[" else "\n]")


def _as_stream(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    stdout = sys.stdout.buffer
    writer = pa.ipc.new_stream(stdout, schema)
    for batch in batches:
        writer.write_batch(batch)
        stdout.flush()
    writer.close()  # not after an error: a stream that breaks off has no end
    stdout.flush()

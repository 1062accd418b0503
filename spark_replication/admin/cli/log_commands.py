"""`spark-replication log dump|verify`: the contents of a log's files, and whether they are sound. Both only read."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path
from typing import Any

import click

from spark_replication.admin.cli.groups import Group
from spark_replication.admin.cli.listing import Format, output, show
from spark_replication.admin.cli.log_files import (
    Verified,
    batches_in,
    entries_of,
    is_broker_directory,
    partition_folders,
    verify,
)
from spark_replication.errors import StorageFailed
from spark_replication.storage.directory.stored_log import bases_in
from spark_replication.storage.log.segment_files import DATA, INDEX

SHOWN_MAX = 1_000

_ENTRY_COLUMNS = (
    "segment",
    "base_offset",
    "last_offset",
    "position",
    "bytes",
    "leader_epoch",
    "timestamp_ms",
    "producer",
    "producer_epoch",
    "sequence",
    "crc",
)
_WHAT_TO_DO = (
    "Read what is missing from another in-sync replica. Then stop this broker, move the folder away and start the "
    "broker again: it fetches the partition from its leader"
)


@click.group(cls=Group)
def log() -> None:
    """Look into the files of a log. Reads only, also while a broker writes them."""


@log.command()
@output
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option("--rows", is_flag=True, help="the rows, with their offsets, instead of the entries of their batches")
@click.option("--from", "start", type=click.IntRange(min=0), default=0, show_default=True, help="offset to start at")
@click.option(
    "--max", "shown_max", type=click.IntRange(min=1), default=SHOWN_MAX, show_default=True, help="lines of the listing"
)
def dump(path: Path, output: Format, *, rows: bool, start: int, shown_max: int) -> None:
    """The batches in PATH: a partition's folder, or one segment's .arrow or .index file."""
    folder, places = _segments(path)
    try:
        if rows:
            found = _rows(folder, places, start, shown_max)
            columns = list(found[0]) if found else ["_offset"]
        else:
            found = _entries(folder, places, start, shown_max)
            columns = list(_ENTRY_COLUMNS)
    except OSError as error:
        raise StorageFailed(f"{folder} cannot be read: {error}. `log verify` says what of it holds") from error
    show(columns, [list(row.values()) for row in found], output=output)


@log.command("verify")
@output
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False, path_type=Path))
def verify_command(paths: tuple[Path, ...], output: Format) -> None:
    """Check every entry, checksum and batch below PATHS: broker directories or partition folders.

    Exit 1 if one does not hold. Repairs nothing.
    """
    verified: list[Verified] = []
    for path in paths:
        folders = partition_folders(path)
        if not folders and not is_broker_directory(path):
            raise click.UsageError(f"{path} is neither a broker's directory nor a partition's folder")
        verified += verify(folders)
    columns = ("folder", "segments", "batches", "start", "end", "bytes", "problems")
    rows = [[getattr(each, name) for name in columns[:-1]] + [len(each.problems)] for each in verified]
    show(columns, rows, output=output)
    for each in verified:
        for problem in each.problems:
            click.echo(f"error: {each.folder}: {problem}. It holds to offset {each.end}. {_WHAT_TO_DO}", err=True)
    sys.exit(1 if any(each.problems for each in verified) else 0)


def _segments(path: Path) -> tuple[Path, list[int]]:
    if path.is_dir():
        if is_broker_directory(path) or not partition_folders(path):
            raise click.UsageError(f"{path} is no partition's folder")
        return path, bases_in(path)
    if path.suffix not in (DATA, INDEX) or not path.stem.isdecimal():
        raise click.UsageError(f"{path} is no segment: its name would be 20 digits and {DATA} or {INDEX}")
    return path.parent, [int(path.stem)]


def _entries(folder: Path, places: list[int], start: int, shown_max: int) -> list[dict[str, Any]]:
    entries = ((base, entry) for base in places for entry in entries_of(folder, base) if entry.last_offset >= start)
    return [
        {"segment": f"{base:020}", **{name: getattr(entry, name) for name in _ENTRY_COLUMNS[1:]}}
        for base, entry in islice(entries, shown_max)
    ]


def _rows(folder: Path, places: list[int], start: int, shown_max: int) -> list[dict[str, Any]]:
    shown: list[dict[str, Any]] = []
    for base in places:
        for entry, batch in batches_in(folder, base):
            first = max(start, entry.base_offset)
            wanted = batch.slice(min(first - entry.base_offset, batch.num_rows), shown_max - len(shown))
            shown += [{"_offset": offset, **row} for offset, row in enumerate(wanted.to_pylist(), first)]
            if len(shown) == shown_max:
                return shown
    return shown

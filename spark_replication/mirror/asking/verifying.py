"""Compares a table with what is stored in ZooKeeper, row by row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from spark_replication.mirror.tables.columns import Key, Table

Live = TypeVar("Live")


class Difference(msgspec.Struct, frozen=True):
    table: str
    key: Key
    #: Empty if ZooKeeper or the table lacks the row.
    column: str
    #: In ZooKeeper.
    stored: Any
    #: In the table.
    shown: Any


def differences(table: Table[Live], stored: Sequence[Live], shown: Iterable[dict[str, Any]]) -> list[Difference]:
    """How the table differs from these rows. shown: the table's rows of what exists, each by column."""
    wanted = {table.key_of(row): row for row in stored}
    found = {tuple(row[name] for name in table.key): row for row in shown}
    missing = [Difference(table.name, key, "", "it is there", "no row") for key in wanted.keys() - found.keys()]
    left = [Difference(table.name, key, "", "there is none", "a row") for key in found.keys() - wanted.keys()]
    both = wanted.keys() & found.keys()
    unlike = [each for key in both for each in _unlike(table, key, wanted[key], found[key])]
    return sorted([*missing, *left, *unlike], key=lambda each: (each.key, each.column))


def _unlike(table: Table[Live], key: Key, stored: Live, shown: dict[str, Any]) -> Iterable[Difference]:
    for column in table.columns:
        value = column.live(stored) if column.agreed is None else column.agreed(stored)
        whatever = column.is_mirrors or (column.agreed is not None and value is None)
        if not whatever and shown.get(column.name) != value:
            yield Difference(table.name, key, column.name, value, shown.get(column.name))

"""Compares a complete set with a table (M2): which rows the table does not show yet, and which of its rows are gone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from spark_replication.mirror.tables.columns import Key, Table, Tombstone
from spark_replication.mirror.telling.latest import Row, TableBatch

Live = TypeVar("Live", bound=Row)


class Shown(NamedTuple):
    #: The values of the table's order columns, of which zxid is the first.
    order: tuple[int, ...]
    deleted: bool


def compared(
    table: Table[Live],
    batch: TableBatch[Live],
    shown: Mapping[Key, Shown],
    *,
    knows: Callable[[Key], bool],
    cluster_id: str,
    now_ms: int,
) -> TableBatch[Live]:
    """What to write of a batch. If it is a complete set, only rows that are not shown yet, and tombstones of rows that
    are gone. knows: whether the controller knows that a row exists, or that it is gone."""
    whole = batch.whole
    if whole is None:
        return batch
    live = [row for row in batch.live if not _is_shown(table.order_of(row), shown.get(table.key_of(row)))]
    vanished = [
        Tombstone(cluster_id=cluster_id, key=key, zxid=whole.zxid, told_ms=now_ms)
        for key, row in shown.items()
        if row.order[0] < whole.zxid and not row.deleted and not knows(key) and not table.hides(whole.unreadable, key)
    ]
    return TableBatch(live, [*batch.gone, *vanished], whole)


def _is_shown(order: tuple[int, ...], shown: Shown | None) -> bool:
    return shown is not None and shown.order >= order

"""The present rows of a table, and which of them are to be written. Pure.

Rules:
- A row waits at most once, however often it changes meanwhile.
- A row that is gone is written once, as a tombstone, and then forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

import msgspec

from spark_replication.core.controller.origin import Origin
from spark_replication.core.law.unreadable import Unreadable
from spark_replication.mirror.tables.columns import Key, Table, Tombstone
from spark_replication.mirror.tables.facts import Facts


class Row(Protocol):
    @property
    def zxid(self) -> int: ...


Live = TypeVar("Live", bound=Row)


class Whole(msgspec.Struct, frozen=True):
    """The rows told are a complete set: everything that was stored by `zxid`, except what is unreadable."""

    zxid: int
    unreadable: Unreadable
    origin: Origin | None = None

    @property
    def is_all(self) -> bool:
        """Whether any row that is told later is from after `zxid`. Not so if something is unreadable: it may be
        older."""
        return not (self.unreadable.topics or self.unreadable.partitions or self.unreadable.brokers)


class TableBatch(msgspec.Struct, Generic[Live], frozen=True):
    """The rows of one write of a table."""

    live: list[Live]
    gone: list[Tombstone]
    #: Set if the rows are a complete set: any other row of the table is gone, unless it is unreadable (M2).
    whole: Whole | None = None

    def __len__(self) -> int:
        return len(self.live) + len(self.gone)


class Latest(Generic[Live]):
    """The rows of one table. Not thread-safe. Bounded by the cluster's size: only rows wait, or are being written."""

    def __init__(self, table: Table[Live], cluster_id: str, facts: Facts) -> None:
        self.table = table
        self._cluster_id = cluster_id
        self._facts = facts
        self._rows: dict[Key, Live | Tombstone] = {}
        #: Rows to be written next, each with the time since when, oldest first.
        self._waiting: dict[Key, int] = {}
        #: Rows that are being written, likewise.
        self._writing: dict[Key, int] = {}
        #: Rows that wait, and of whose change events tell nothing.
        self._quiet: dict[Key, int] = {}
        self._whole: Whole | None = None
        self._writing_whole: Whole | None = None
        self._leaves_some = False  # rows were found to be gone, whose tombstones go with the next write

    @property
    def waiting(self) -> bool:
        return bool(self._waiting) or self._whole is not None

    @property
    def pending(self) -> int:
        return len(self._waiting.keys() | self._writing.keys())

    @property
    def quiet(self) -> int:
        """How many of the waiting rows may be written before all others."""
        return len(self._quiet) if self._whole is None else 0

    def pending_since_ms(self) -> int | None:
        """When the oldest change that is not in the table yet was told; None if there is none."""
        return next(iter((self._writing or self._waiting).values()), None)

    def knows(self, key: Key) -> bool:
        """Whether the row exists, or a tombstone of it is still to be written."""
        return key in self._rows

    def existing(self) -> list[Key]:
        return [key for key, row in self._rows.items() if not isinstance(row, Tombstone)]

    def is_news(self, key: Key, zxid: int) -> bool:
        known = self._rows.get(key)
        return known is None or zxid > known.zxid

    def changed(self, row: Live, now_ms: int, *, again: bool) -> None:
        """Take a row, unless it or a newer one is known. again: a row that is known is compared with the table
        anew."""
        key = self.table.key_of(row)
        if self.is_news(key, row.zxid):
            self.put(key, row, now_ms)
        elif again:
            self.put_again(key, row.zxid, now_ms)

    def put_again(self, key: Key, zxid: int, now_ms: int) -> None:
        known = self._rows[key]
        if known.zxid == zxid:
            self.put(key, known, now_ms)

    def gone(self, key: Key, zxid: int, now_ms: int) -> None:
        known = self._rows.get(key)
        if known is not None and not isinstance(known, Tombstone) and known.zxid < zxid:
            self.put(key, Tombstone(cluster_id=self._cluster_id, key=key, zxid=zxid, told_ms=now_ms), now_ms)

    def all_told(self, whole: Whole) -> None:
        self._whole = whole

    def vanished(self, gone: Iterable[Tombstone], now_ms: int) -> None:
        """Take tombstones of rows that were found to be gone while a complete set is being written."""
        self._leaves_some = True
        for each in gone:
            if not self.knows(each.key):
                self.put(each.key, each, now_ms)

    def forgets(self) -> int | None:
        """Up to which zxid tombstones may be removed after the present write, since any row told later is from after
        that; None for no zxid. Not while tombstones of vanished rows are still to be written: if this controller ended
        now, a late row of an earlier one might be all that the next one knows of them."""
        whole = self._writing_whole
        if whole is None or not whole.is_all or self._leaves_some or self.table.keeps_gone:
            return None
        return whole.zxid

    def put(self, key: Key, row: Live | Tombstone, now_ms: int) -> None:
        known = self._rows.get(key)
        if known is None or known.zxid != row.zxid:
            self._facts.changed(self.table, key, known, row, now_ms)
            self._quiet.pop(key, None)
        elif key not in self._waiting:
            self._quiet[key] = now_ms
        self._rows[key] = row
        self._waiting.setdefault(key, now_ms)

    def take(self) -> TableBatch[Live]:
        """Take all rows that wait: they are being written until `written` or `failed`."""
        self._begin(self._waiting)
        self._writing_whole, self._whole = self._whole, None
        return self._batch()

    def take_quiet(self) -> TableBatch[Live]:
        """As `take`, but only rows of whose change events tell nothing."""
        self._begin(self._quiet)
        return self._batch()

    def goes_too(self, key: Key) -> None:
        """The row as it is by now goes into the write that is under way."""
        assert key in self._writing
        self._waiting.pop(key, None)
        self._quiet.pop(key, None)

    def _begin(self, keys: Iterable[Key]) -> None:
        assert not self._writing, "one write at a time (M2)"
        self._writing = {key: self._waiting.pop(key) for key in list(keys)}
        self._quiet = {}
        self._leaves_some = False

    def _batch(self) -> TableBatch[Live]:
        rows = [self._rows[key] for key in self._writing]
        gone = [row for row in rows if isinstance(row, Tombstone)]
        return TableBatch([row for row in rows if not isinstance(row, Tombstone)], gone, self._writing_whole)

    def written(self) -> None:
        for key in self._writing:
            if isinstance(self._rows[key], Tombstone) and key not in self._waiting:
                del self._rows[key]
        self._writing, self._writing_whole = {}, None

    def failed(self) -> None:
        """The rows wait again, since the same time as before."""
        self._waiting = self._writing | {key: since for key, since in self._waiting.items() if key not in self._writing}
        self._whole = self._whole or self._writing_whole
        self._writing, self._writing_whole = {}, None

"""What each row of a table is now, and which of them are to be written. Pure.

Rules: a row waits at most once, however often it changes meanwhile; of what is gone a tombstone is told once, and then
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

import msgspec

from spark_replication.core.controller.origin import Origin
from spark_replication.core.law.unreadable import Unreadable
from spark_replication.mirror.columns import Gone, Key, Table
from spark_replication.mirror.facts import Facts


class Row(Protocol):
    @property
    def zxid(self) -> int: ...


Live = TypeVar("Live", bound=Row)


class Whole(msgspec.Struct, frozen=True):
    """What was told is all that was stored by `zxid`, but what is unreadable."""

    zxid: int
    unreadable: Unreadable
    origin: Origin | None = None

    @property
    def is_all(self) -> bool:
        """Whatever row is told later is from after `zxid`. Not while something cannot be read: it may be older."""
        return not (self.unreadable.topics or self.unreadable.partitions or self.unreadable.brokers)


class TableBatch(msgspec.Struct, Generic[Live], frozen=True):
    """What goes into one write of a table. whole: whatever else it has is gone, as far as this says (M2)."""

    live: list[Live]
    gone: list[Gone]
    whole: Whole | None = None

    def __len__(self) -> int:
        return len(self.live) + len(self.gone)


class Latest(Generic[Live]):
    """Of one table. Not thread-safe. Bounded by what the cluster has: whatever waits, or is being written, is a row."""

    def __init__(self, table: Table[Live], cluster_id: str, facts: Facts) -> None:
        self.table = table
        self._cluster_id = cluster_id
        self._facts = facts
        self._rows: dict[Key, Live | Gone] = {}
        # Since when, oldest first: what is to be written next, and what is being written.
        self._waiting: dict[Key, int] = {}
        self._writing: dict[Key, int] = {}
        # Of those that wait, in whose change nothing is that events tell of.
        self._quiet: dict[Key, int] = {}
        self._whole: Whole | None = None
        self._writing_whole: Whole | None = None
        self._leaves_some = False  # something has vanished, which the write after this one tells

    @property
    def waiting(self) -> bool:
        return bool(self._waiting) or self._whole is not None

    @property
    def pending(self) -> int:
        return len(self._waiting.keys() | self._writing.keys())

    @property
    def quiet(self) -> int:
        """Of what waits, how much may go before all else does."""
        return len(self._quiet) if self._whole is None else 0

    def pending_since_ms(self) -> int | None:
        """When the oldest change that is not in the table yet was told."""
        return next(iter((self._writing or self._waiting).values()), None)

    def knows(self, key: Key) -> bool:
        """It exists, or it is being written that it does not."""
        return key in self._rows

    def existing(self) -> list[Key]:
        return [key for key, row in self._rows.items() if not isinstance(row, Gone)]

    def is_news(self, key: Key, zxid: int) -> bool:
        known = self._rows.get(key)
        return known is None or zxid > known.zxid

    def changed(self, row: Live, now_ms: int, *, again: bool) -> None:
        """To this, unless it is known, or something newer. again: it is compared with the table once more."""
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
        if known is not None and not isinstance(known, Gone) and known.zxid < zxid:
            self.put(key, Gone(cluster_id=self._cluster_id, key=key, zxid=zxid, told_ms=now_ms), now_ms)

    def all_told(self, whole: Whole) -> None:
        self._whole = whole

    def vanished(self, gone: Iterable[Gone], now_ms: int) -> None:
        """As it was found while what is told whole is being written."""
        self._leaves_some = True
        for each in gone:
            if not self.knows(each.key):
                self.put(each.key, each, now_ms)

    def forgets(self) -> int | None:
        """Up to where tombstones may go, with what is being written: whatever row is told later is from after that.
        None: nowhere. What has vanished is not told yet: if this controller ends now, the late row of one before it
        may be all that the next one knows it by."""
        whole = self._writing_whole
        if whole is None or not whole.is_all or self._leaves_some or self.table.keeps_gone:
            return None
        return whole.zxid

    def put(self, key: Key, row: Live | Gone, now_ms: int) -> None:
        known = self._rows.get(key)
        if known is None or known.zxid != row.zxid:
            self._facts.changed(self.table, key, known, row, now_ms)
            self._quiet.pop(key, None)
        elif key not in self._waiting:
            self._quiet[key] = now_ms
        self._rows[key] = row
        self._waiting.setdefault(key, now_ms)

    def take(self) -> TableBatch[Live]:
        """What waits is being written from now on, until `written` or `failed`."""
        self._begin(self._waiting)
        self._writing_whole, self._whole = self._whole, None
        return self._batch()

    def take_quiet(self) -> TableBatch[Live]:
        """As `take`, of those alone in whose change nothing is that events tell of."""
        self._begin(self._quiet)
        return self._batch()

    def goes_too(self, key: Key) -> None:
        """What the row is by now goes into the write that is under way."""
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
        gone = [row for row in rows if isinstance(row, Gone)]
        return TableBatch([row for row in rows if not isinstance(row, Gone)], gone, self._writing_whole)

    def written(self) -> None:
        for key in self._writing:
            if isinstance(self._rows[key], Gone) and key not in self._waiting:
                del self._rows[key]
        self._writing, self._writing_whole = {}, None

    def failed(self) -> None:
        """They wait again, as long as they have."""
        self._waiting = self._writing | {key: since for key, since in self._waiting.items() if key not in self._writing}
        self._whole = self._whole or self._writing_whole
        self._writing, self._writing_whole = {}, None

"""The table `events` as one controller writes it: each fact once, after the facts of all earlier controllers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from spark_replication.mirror.delta.delta_file import DeltaFile
from spark_replication.mirror.delta.reading import is_one_of, named, rows_of
from spark_replication.mirror.tables.columns import Key, Table
from spark_replication.mirror.tables.events import EVENTS, face_of, subject_of
from spark_replication.mirror.tables.facts import Fact
from spark_replication.mirror.telling.chain import Chain, Look, RowSeen, TablePart, Vanished
from spark_replication.process.threads import now_ms

_OTHERS = ("topic", "partition", "broker", "became", "zxid", "number")


class EventsFile:
    def __init__(self, file: DeltaFile[Any], cluster_id: str, controller_epoch: int, status: DeltaFile[Any]) -> None:
        """status: the table in which the last writer says which events' rows are in their tables."""
        self.file = file
        self._status = status
        self._chain = Chain(cluster_id, controller_epoch)
        self._read_of: DeltaTable | None = None

    def write(self, facts: Sequence[Fact], parts: Sequence[TablePart], look: Look) -> list[Vanished]:
        """Write events of these facts and parts. Returns rows that a complete set has found to be gone. look: reads
        the tables as they are now."""
        vanished: list[Vanished] = []
        if not facts and all(part.batch.whole is None for part in parts):
            return vanished

        def events(opened: DeltaTable, last: int) -> tuple[pa.Table, int]:
            if opened is not self._read_of:
                self._read_others(opened)
                self._read_of = opened
            told = self._chain.next(facts, parts, look, last=last, now_ms=now_ms())
            vanished[:] = told.vanished
            return EVENTS.rows(told.events, []), max((event.number for event in told.events), default=last)

        self.file.append(events)
        self._chain.written()
        return vanished

    @property
    def is_behind(self) -> bool:
        return self._chain.is_behind

    def expire(self, keep_ms: int) -> None:
        oldest = datetime.now(UTC) - timedelta(milliseconds=keep_ms)
        self.file.remove(f"at < arrow_cast('{oldest.isoformat()}', 'Timestamp(Microsecond, Some(\"UTC\"))')")

    def _read_others(self, opened: DeltaTable) -> None:
        """Read the events whose rows may not be in their tables yet."""
        shown = self._status.read(["event"])["event"].to_pylist()
        after = max((number for number in shown if number is not None), default=-1)
        found = rows_of(opened, _OTHERS, f"{named('number')} > {after}")
        told = sorted(found.to_pylist(), key=lambda row: row["number"])
        self._chain.read(
            (*subject, RowSeen(row["zxid"], face_of(row["became"])))
            for row in told
            if (subject := subject_of(row)) is not None
        )


def look_in(file: DeltaFile[Any], table: Table[Any], keys: Collection[Key] | None) -> dict[Key, RowSeen]:
    assert table.tells is not None
    if keys is not None and not keys:
        return {}
    where = None if keys is None else is_one_of(table.key[0], sorted({key[0] for key in keys}))
    rows = file.read([*table.key, "zxid", "deleted", *table.tells.columns], where).to_pylist()
    return {
        tuple(row[name] for name in table.key): RowSeen(
            row["zxid"], None if row["deleted"] else {name: row[name] for name in table.tells.columns}
        )
        for row in rows
    }

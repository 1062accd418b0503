"""What rows were and became, one event after the other, over all controllers. Pure.

Rules:
- The events of a row are a chain, whoever wrote them: each says what the row was, as the event before says that it
  became, and what it became then.
- Events are written before the rows that they are about: whatever a table shows has its event. What a row was is known
  from this controller's last news of it, or is read. An event of an earlier controller that had no time to write the
  row counts as much as a row.
- A write of events is stored whole, and the table keeps the highest number of a written fact. So no event is there
  twice, and a deposed controller writes no more events, nor rows that have one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from spark_replication.errors import StorageFailed
from spark_replication.mirror.tables.columns import Face, Key, Table, Tombstone
from spark_replication.mirror.tables.events import EventRow, text_of
from spark_replication.mirror.tables.facts import Began, Change, Fact, Lost, term_of
from spark_replication.mirror.telling.comparing import Shown, compared
from spark_replication.mirror.telling.latest import Latest, TableBatch
from spark_replication.process.memory import uncollected


class RowSeen(NamedTuple):
    """What the tables say of a row."""

    zxid: int
    #: None if the row is gone.
    face: Face | None


class TablePart(NamedTuple):
    """What is written to one table together with facts."""

    rows: Latest[Any]
    batch: TableBatch[Any]
    #: See `compared`.
    knows: Callable[[Key], bool]

    @property
    def table(self) -> Table[Any]:
        return self.rows.table


# Returns what a table has now of these keys; of all if None.
Look = Callable[[Table[Any], Collection[Key] | None], Mapping[Key, RowSeen]]


class Vanished(NamedTuple):
    """Rows that an earlier controller wrote, or wrote an event of, and that are not in a complete set: they are
    gone."""

    part: TablePart
    gone: list[Tombstone]


class ChainedEvents(NamedTuple):
    events: list[EventRow]
    vanished: list[Vanished]


class Chain:
    """What each row was: by the tables, by the events of earlier controllers, and by this controller."""

    def __init__(self, cluster_id: str, controller_epoch: int) -> None:
        self._cluster_id = cluster_id
        self._epoch = controller_epoch
        #: Rows about which an event of another controller is newer than this controller's state, or than the table.
        self._ahead: dict[tuple[str, Key], RowSeen] = {}
        #: Those of them that were not among the events read last: their tables show them by now, or have shown them.
        self._were_shown: set[tuple[str, Key]] = set()
        #: Those of them that this controller knows once the present write is stored.
        self._heard: list[tuple[str, Key]] = []

    @property
    def is_behind(self) -> bool:
        """Whether events of other controllers say something that tables do not show, and this controller does not
        know."""
        return bool(self._ahead)

    def written(self) -> None:
        """The events that `next` returned last are in their table."""
        for row in self._heard:
            self._ahead.pop(row, None)

    def read(self, told: Iterable[tuple[str, Key, RowSeen]]) -> None:
        """Take in all events of other controllers that tables need not show yet, in their order."""
        self._were_shown = set(self._ahead)
        for table, key, seen in told:
            self._others_told(table, key, seen)
            self._were_shown.discard((table, key))

    def _others_told(self, table: str, key: Key, seen: RowSeen) -> None:
        known = self._ahead.get((table, key))
        if known is None or known.zxid <= seen.zxid:
            self._ahead[table, key] = seen

    def next(
        self, facts: Sequence[Fact], parts: Iterable[TablePart], look: Look, *, last: int, now_ms: int
    ) -> ChainedEvents:
        """The events that follow from these facts and from complete sets. last: the last number in the table, so that
        events of a write whose answer was lost are not written again. StorageFailed: another controller writes the
        events."""
        if term_of(last) > self._epoch:
            raise StorageFailed(
                f"the mirror's tables are written by the controller of epoch {term_of(last)}, and this is the one of "
                f"epoch {self._epoch}. If ZooKeeper was brought back to an earlier state, the tables are from after "
                "that: remove them, or name another place (mirror.path)"
            )
        self._heard = []
        parts = list(parts)
        self._look_again(parts, look)
        shown: dict[str, Mapping[Key, RowSeen]] = {}
        unknown: dict[str, set[Key]] = {}
        tables = {fact.table.name: fact.table for fact in facts if isinstance(fact, Change)}
        for fact in facts:
            if isinstance(fact, Change) and fact.before is None:
                unknown.setdefault(fact.table.name, set()).add(fact.key)
        wholes = [part for part in parts if part.batch.whole is not None]
        for part in wholes:
            shown[part.table.name] = look(part.table, None)
        for name, keys in unknown.items():
            if name not in shown:
                shown[name] = look(tables[name], keys)
        for name, rows in shown.items():
            self._shown(name, rows)
        with uncollected():
            found = (self._event(fact, shown) for fact in facts)
            events = [event for event in found if event is not None and event.number > last]
        return ChainedEvents(
            events,
            [Vanished(part, gone) for part in wholes if (gone := self._gone(part, shown[part.table.name], now_ms))],
        )

    def _look_again(self, parts: Iterable[TablePart], look: Look) -> None:
        """Take rows as gone that a table has shown, and has no longer: it has forgotten their tombstones."""
        for table in {part.table.name: part.table for part in parts}.values():
            keys = {key for name, key in self._were_shown if name == table.name}
            for key in keys - look(table, keys).keys() if keys else ():
                self._ahead[table.name, key] = RowSeen(self._ahead[table.name, key].zxid, None)
        self._were_shown.clear()

    def _event(self, fact: Fact, shown: Mapping[str, Mapping[Key, RowSeen]]) -> EventRow | None:
        match fact:
            case Change():
                return self._change(fact, shown.get(fact.table.name, {}))
            case Began(origin=origin, zxid=zxid, why=why):
                return self._row(fact, origin.kind, {}, why=why, origin=origin, zxid=zxid, at_ms=fact.told_ms)
            case Lost(count=count):
                return self._row(fact, "lost", {}, why=f"{count} events waited for too long", at_ms=fact.told_ms)

    def _change(self, fact: Change, shown: Mapping[Key, RowSeen]) -> EventRow | None:
        table, after = fact.table, fact.after
        assert table.tells is not None
        known = self._known(fact, shown.get(fact.key))
        if known is not None and known.zxid >= after.zxid:
            if known.zxid > after.zxid:
                self._others_told(table.name, fact.key, known)
            else:
                self._heard.append((table.name, fact.key))
            return None
        self._heard.append((table.name, fact.key))
        was, became = None if known is None else known.face, table.face(after)
        if was == became:
            return None
        kind = table.tells.kind(was, became)
        return self._row(
            fact,
            kind,
            dict(zip(table.key, fact.key, strict=True)),
            was=text_of(was),
            became=text_of(became),
            leader=None if became is None else became.get("leader"),
            leader_epoch=None if became is None else became.get("leader_epoch"),
            why=None if isinstance(after, Tombstone) else table.tells.why(after, kind),
            origin=fact.origin,
            zxid=after.zxid,
            at_ms=after.told_ms if isinstance(after, Tombstone) else table.tells.at_ms(after) or after.told_ms,
        )

    def _known(self, fact: Change, shown: RowSeen | None) -> RowSeen | None:
        """The newest that anybody knows: others may have told, and have shown, what is newer than this controller's
        last news of the row."""
        before, table = fact.before, fact.table
        heard = None if before is None else RowSeen(before.zxid, table.face(before))
        return max((heard, shown, self._ahead.get((table.name, fact.key))), key=_zxid)

    def _shown(self, table: str, rows: Mapping[Key, RowSeen]) -> None:
        for key, seen in rows.items():
            if _zxid(self._ahead.get((table, key))) <= seen.zxid:
                self._ahead.pop((table, key), None)

    def _gone(self, part: TablePart, shown: Mapping[Key, RowSeen], now_ms: int) -> list[Tombstone]:
        """Rows that are not in a complete set. A row of which others wrote an event only counts as if it were in the
        table."""
        told = {key: seen for (name, key), seen in self._ahead.items() if name == part.table.name}
        newer = {key: seen for key, seen in told.items() if seen.zxid > _zxid(shown.get(key))}
        return compared(
            part.table,
            TableBatch([], [], part.batch.whole),
            {key: Shown((seen.zxid,), seen.face is None) for key, seen in {**shown, **newer}.items()},
            knows=part.knows,
            cluster_id=self._cluster_id,
            now_ms=now_ms,
        ).gone

    def _row(self, fact: Fact, kind: str, subject: Mapping[str, Any], *, at_ms: int, **told: Any) -> EventRow:
        return EventRow(
            cluster_id=self._cluster_id,
            number=fact.number,
            kind=kind,
            subject=subject,
            at_ms=at_ms,
            told_ms=fact.told_ms,
            **told,
        )


def _zxid(seen: RowSeen | None) -> int:
    return -1 if seen is None else seen.zxid

"""The events of a row are one chain, whoever wrote them: nothing is told twice, and nothing is left out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pytest

from spark_replication.core.controller.news import News
from spark_replication.core.controller.origin import Origin
from spark_replication.errors import StorageFailed
from spark_replication.mirror.tables.columns import Key, Table
from spark_replication.mirror.tables.events import EventRow, face_of
from spark_replication.mirror.tables.facts import Facts
from spark_replication.mirror.tables.partitions import PARTITIONS
from spark_replication.mirror.telling.chain import Chain, ChainedEvents, RowSeen, TablePart
from spark_replication.mirror.telling.latest_rows import Batch, LatestRows
from tests.live.mirror.mirror_stories import CLUSTER, changed, command, everything, row

ORDERS_3 = ("orders", 3)
PAID_3 = ("payments", 3)


class Controller:
    """The mirror of one term, over what tables show."""

    def __init__(self, epoch: int = 7, shown: Mapping[Key, RowSeen] | None = None) -> None:
        self.rows = LatestRows(CLUSTER, epoch)
        self.chain = Chain(CLUSTER, epoch)
        self.shown = dict(shown or {})
        self.looked: list[Collection[Key] | None] = []

    def next(self, *, last: int = -1) -> ChainedEvents:
        return self.told(self.rows.take(), last=last)

    def told(self, batch: Batch, *, last: int = -1) -> ChainedEvents:
        parts = [TablePart(rows, batch.tables[rows.table.name], rows.knows) for rows in self.rows.tables]
        return self.chain.next(batch.facts, parts, self._look, last=last, now_ms=500)

    def written(self) -> None:
        self.chain.written()
        self.rows.facts.written()
        self.rows.written(is_behind=False)

    def _look(self, table: Table[Any], keys: Collection[Key] | None) -> dict[Key, RowSeen]:
        if table is not PARTITIONS:
            return {}
        self.looked.append(keys)
        return {key: seen for key, seen in self.shown.items() if keys is None or key in keys}


def seen(zxid: int, leader_epoch: int, topic: str = "orders") -> RowSeen:
    return RowSeen(zxid, PARTITIONS.face(row(command(topic, leader_epoch=leader_epoch), zxid)))


def gist(events: list[EventRow]) -> list[tuple[str, int | None, int | None, int]]:
    """kind, the leader_epoch before and after, zxid."""
    return [(each.kind, _epoch(each.was), _epoch(each.became), each.zxid) for each in events]


def _epoch(face: str | None) -> int | None:
    found = face_of(face)
    return None if found is None else found["leader_epoch"]


def test_each_says_what_the_row_was_and_became() -> None:
    now = Controller()
    now.rows.tell(changed((command(leader_epoch=0), 10)), 100)
    now.rows.tell(changed((command(leader=2, leader_epoch=1), 11)), 200)
    events = now.next().events
    assert gist(events) == [("created", None, 0, 10), ("elected", 0, 1, 11)]
    assert events[0].became == events[1].was
    assert (events[1].leader, events[1].leader_epoch) == (2, 1)
    assert [(event.at_ms, event.subject) for event in events] == [
        (100, {"topic": "orders", "partition": 3}),
        (200, {"topic": "orders", "partition": 3}),
    ]


def test_only_of_rows_that_nobody_told_of_here_is_it_read_what_they_were() -> None:
    now = Controller(shown={ORDERS_3: seen(8, 4), PAID_3: seen(8, 4, "payments")})
    now.rows.tell(changed((command(leader_epoch=5), 10)), 100)
    assert gist(now.next().events) == [("elected", 4, 5, 10)]
    now.written()
    now.rows.tell(changed((command(leader_epoch=6), 11)), 100)
    assert gist(now.next().events) == [("elected", 5, 6, 11)]
    assert now.looked == [{ORDERS_3}]


def test_what_is_shown_already_is_no_event() -> None:
    now = Controller(shown={ORDERS_3: seen(10, 4), PAID_3: seen(9, 2, "payments")})
    now.rows.tell(everything(20, (command(leader_epoch=4), 10), (command("payments", leader_epoch=3), 12)), 100)
    told = now.next()
    assert gist(told.events) == [("elected", 2, 3, 12)]
    assert told.vanished == []


def test_a_write_that_changed_nothing_that_is_told_is_no_event() -> None:
    now = Controller()
    now.rows.tell(changed((command(leader_epoch=4), 10)), 100)
    now.next()
    now.written()
    now.rows.tell(changed((command(leader_epoch=4, partition_epoch=9), 11)), 100)
    assert now.next().events == []


def test_what_another_told_and_did_not_show_is_not_told_again() -> None:
    """It died between its events and its rows."""
    now = Controller(shown={ORDERS_3: seen(8, 4)})
    now.chain.read([("partitions", ORDERS_3, seen(10, 5))])
    now.rows.tell(everything(20, (command(leader_epoch=6), 12)), 100)
    assert gist(now.next().events) == [("elected", 5, 6, 12)]


def test_what_another_told_of_later_than_this_one_has_heard_is_told_once() -> None:
    now = Controller(shown={ORDERS_3: seen(8, 4)})
    now.chain.read([("partitions", ORDERS_3, seen(10, 6))])
    now.rows.tell(everything(9, (command(leader_epoch=5), 9)), 100)
    assert now.next().events == []
    now.written()
    behind = [now.chain.is_behind]
    now.rows.tell(changed((command(leader_epoch=6), 10)), 100)
    assert now.next().events == []
    now.written()
    assert [*behind, now.chain.is_behind] == [True, False]
    now.rows.tell(changed((command(leader_epoch=7), 11)), 100)
    assert gist(now.next().events) == [("elected", 6, 7, 11)]


def test_what_is_shown_later_than_this_one_has_heard_is_told_once() -> None:
    now = Controller(shown={ORDERS_3: seen(10, 6)})
    now.rows.tell(everything(9, (command(leader_epoch=5), 9)), 100)
    assert now.next().events == []
    now.written()
    now.rows.tell(changed((command(leader_epoch=6), 10), (command(leader_epoch=7), 11)), 100)
    assert gist(now.next().events) == [("elected", 6, 7, 11)]


def test_what_another_told_and_shows_by_now_is_not_told_again() -> None:
    """It was deposed, and its write of rows came late."""
    now = Controller()
    now.rows.tell(changed((command(leader_epoch=4), 10)), 100)
    now.next()
    now.written()
    now.chain.read([("partitions", ORDERS_3, seen(12, 5))])
    now.shown[ORDERS_3] = seen(12, 5)
    now.rows.tell(everything(20, (command(leader_epoch=5), 12)), 200)
    assert now.next().events == []
    now.written()
    now.rows.tell(changed((command(leader_epoch=6), 21)), 300)
    assert gist(now.next().events) == [("elected", 5, 6, 21)]


def test_until_it_is_written_what_others_told_counts() -> None:
    """The write fails, and is made again."""
    now = Controller(shown={ORDERS_3: seen(8, 4)})
    now.chain.read([("partitions", ORDERS_3, seen(10, 5))])
    now.rows.tell(everything(20, (command(leader_epoch=6), 12)), 100)
    batch = now.rows.take()
    assert gist(now.told(batch).events) == gist(now.told(batch).events) == [("elected", 5, 6, 12)]


def test_of_what_was_stored_though_no_answer_came_nothing_is_told_again() -> None:
    now = Controller()
    now.rows.tell(changed((command(leader_epoch=4), 10)), 100)
    stored = now.next().events
    now.rows.failed()
    now.rows.tell(changed((command(leader_epoch=5), 11)), 100)
    assert gist(now.next(last=stored[-1].number).events) == [("elected", 4, 5, 11)]


def test_what_somebody_told_of_and_is_not_there_has_vanished() -> None:
    now = Controller(shown={ORDERS_3: seen(8, 4), PAID_3: RowSeen(9, None)})
    now.chain.read([("partitions", ("clicks", 0), seen(10, 1, "clicks")), ("partitions", ("orders", 4), seen(30, 1))])
    now.rows.tell(everything(20), 100)
    ((part, gone),) = now.next().vanished
    assert part.table is PARTITIONS
    assert [(each.key, each.zxid) for each in gone] == [(ORDERS_3, 20), (("clicks", 0), 20)]
    now.rows.vanished(part.rows, gone, Origin("7.1", "take_over", "a controller took over"), 500)
    now.written()
    events = now.next().events
    assert gist(events) == [("removed", 4, None, 20), ("removed", 1, None, 20)]
    assert {event.origin and event.origin.id for event in events} == {"7.1"}


def test_what_came_meanwhile_has_not_vanished() -> None:
    now = Controller(shown={ORDERS_3: seen(8, 4)})
    now.rows.tell(everything(20), 100)
    ((part, gone),) = now.next().vanished
    now.rows.tell(changed((command(topic_id="second"), 21)), 100)
    now.rows.vanished(part.rows, gone, None, 500)
    now.written()
    assert gist(now.next().events) == [("created", 4, 0, 21)]


def test_until_what_vanished_is_written_the_tables_are_not_complete() -> None:
    now = Controller(shown={ORDERS_3: seen(8, 4)})
    now.rows.tell(everything(20), 100)
    ((part, gone),) = now.next().vanished
    now.rows.vanished(part.rows, gone, None, 500)
    now.written()
    assert now.rows.written_zxid == -1
    now.next()
    now.written()
    assert now.rows.written_zxid == 20


def test_a_deposed_controller_tells_nothing_more() -> None:
    now = Controller(epoch=6)
    now.rows.tell(changed((command(leader_epoch=4), 10)), 100)
    with pytest.raises(StorageFailed, match="controller of epoch 7"):
        now.next(last=Facts(7).last_number)


def test_what_others_told_and_showed_and_removed_since_is_not_told_to_vanish_once_more() -> None:
    """A controller that was deposed told on for a while: that a row which this one has read is gone. By now the row's
    table has forgotten that."""
    now = Controller()
    now.chain.read([("partitions", ORDERS_3, seen(8, 0))])
    now.chain.read([])
    now.rows.tell(everything(45, (command("payments", leader_epoch=3), 12)), 100)
    told = now.next()
    assert gist(told.events) == [("created", None, 3, 12)]
    assert told.vanished == []
    now.written()
    now.rows.tell(changed((command(leader_epoch=0), 60)), 100)
    assert gist(now.next().events) == [("created", None, 0, 60)], "it is added again, and was nothing"


def test_what_others_told_and_showed_and_is_there_still_vanishes_with_what_is_told_whole() -> None:
    now = Controller(shown={ORDERS_3: seen(8, 0)})
    now.chain.read([("partitions", ORDERS_3, seen(8, 0))])
    now.chain.read([])
    now.rows.tell(everything(45, (command("payments", leader_epoch=3), 12)), 100)
    ((part, gone),) = now.next().vanished
    assert (part.table, [each.key for each in gone]) == (PARTITIONS, [ORDERS_3])


def test_what_others_tell_of_still_and_did_not_show_yet_is_not_taken_for_gone() -> None:
    """The events are read anew whenever somebody else has written them. An event that is still among them may be of a
    row that its table does not have yet."""
    now = Controller()
    now.chain.read([("partitions", ORDERS_3, seen(8, 4)), ("partitions", PAID_3, seen(9, 2, "payments"))])
    now.chain.read([("partitions", ORDERS_3, seen(8, 4)), ("partitions", PAID_3, seen(9, 2, "payments"))])
    now.rows.tell(everything(20, (command(leader_epoch=5), 12)), 100)
    told = now.next()
    assert gist(told.events) == [("elected", 4, 5, 12)]
    assert [each.key for _, gone in told.vanished for each in gone] == [PAID_3]


def test_what_others_showed_is_looked_for_once() -> None:
    """Its table forgets it later. By then this controller has told itself that it is gone."""
    now = Controller(shown={ORDERS_3: seen(8, 4)})
    now.chain.read([("partitions", ORDERS_3, seen(8, 4))])
    now.chain.read([])
    now.rows.tell(everything(20, (command(leader_epoch=5), 12)), 100)
    assert gist(now.next().events) == [("elected", 4, 5, 12)]
    now.written()
    now.rows.tell(News(deleted=(("orders", 30),)), 200)
    assert gist(now.next().events) == [("removed", 5, None, 30)]
    now.written()
    now.shown.clear()
    now.looked.clear()
    now.rows.tell(changed((command(leader_epoch=0), 40)), 300)
    assert gist(now.next().events) == [("created", None, 0, 40)]
    assert now.looked == [{ORDERS_3}], "to know what it was"


def test_what_was_heard_of_a_row_in_an_earlier_write_says_nothing_of_what_others_told_since() -> None:
    """A deposed controller tells on of a row while this one writes others."""
    now = Controller()
    now.rows.tell(changed((command(leader_epoch=4), 10)), 100)
    assert gist(now.next().events) == [("created", None, 4, 10)]
    now.written()
    now.chain.read([("partitions", ORDERS_3, seen(12, 5))])
    now.rows.tell(changed((command("payments"), 11)), 200)
    assert gist(now.next().events) == [("created", None, 0, 11)]
    now.written()
    assert now.chain.is_behind
    now.rows.tell(changed((command(leader_epoch=6), 13)), 300)
    assert gist(now.next().events) == [("elected", 5, 6, 13)]

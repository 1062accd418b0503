"""What waits to be written of what happened: all of it, in order, once."""

from __future__ import annotations

import pytest

from spark_replication.core.controller.news import News
from spark_replication.core.controller.origin import Origin
from spark_replication.mirror.tables import facts as facts_module
from spark_replication.mirror.tables.facts import Began, Change, Fact, Facts, Lost, term_of
from spark_replication.mirror.telling.latest_rows import LatestRows
from tests.live.mirror.mirror_stories import CLUSTER, changed, command

DIED = Origin("7.3", "brokers", "broker 1 gone")
ASKED = Origin("7.4", "request", "create topic orders: asked by 127.0.0.1", is_fact=True)


def rows_of_epoch_7() -> LatestRows:
    return LatestRows(CLUSTER, 7)


def told(rows: LatestRows, leader_epoch: int, zxid: int, origin: Origin | None = None) -> None:
    news = changed((command(leader_epoch=leader_epoch), zxid))
    rows.tell(News(partitions=news.partitions, origin=origin), 100 + zxid)


def epochs(facts: list[Fact]) -> list[tuple[int | None, int]]:
    found = [fact for fact in facts if isinstance(fact, Change)]
    return [(each.before and each.before.command.state.leader_epoch, _epoch(each)) for each in found]


def _epoch(change: Change) -> int:
    epoch: int = change.after.command.state.leader_epoch
    return epoch


def test_rows_are_coalesced_and_facts_are_not() -> None:
    rows = rows_of_epoch_7()
    for number in (1, 2, 3):
        told(rows, number, 10 + number)
    batch = rows.take()
    assert len(batch.tables["partitions"]) == 1
    assert epochs(batch.facts) == [(None, 1), (1, 2), (2, 3)]


def test_what_is_told_again_or_only_confirmed_is_no_fact() -> None:
    rows = rows_of_epoch_7()
    told(rows, 1, 11)
    rows.take()
    rows.facts.written()
    rows.written(is_behind=False)
    told(rows, 1, 11)
    partition = command(leader_epoch=1)
    rows.confirmed(partition.topic_partition, partition.topic_id, 1, 200)
    assert rows.waiting
    assert rows.take().facts == []


def test_each_follows_from_what_it_was_told_with() -> None:
    rows = rows_of_epoch_7()
    told(rows, 1, 11, DIED)
    told(rows, 2, 12, ASKED)
    told(rows, 3, 13)
    assert [fact.origin for fact in rows.take().facts if isinstance(fact, Change)] == [DIED, ASKED, None]


def test_what_no_row_tells_of_is_told_once_as_it_begins() -> None:
    rows = rows_of_epoch_7()
    rows.tell(News(origin=ASKED, begins=True, zxid=9), 100)
    assert rows.waiting
    assert (rows.pending, rows.pending_since_ms()) == (0, 100)
    told(rows, 1, 11, ASKED)
    began, change = rows.take().facts
    assert isinstance(began, Began)
    assert (began.origin, began.zxid) == (ASKED, 9)
    assert isinstance(change, Change)


def test_numbers_rise_in_the_order_of_telling_above_those_of_earlier_controllers() -> None:
    rows = rows_of_epoch_7()
    told(rows, 1, 11)
    told(rows, 2, 12)
    numbers = [fact.number for fact in rows.take().facts]
    assert numbers == sorted(set(numbers))
    assert {term_of(number) for number in numbers} == {7}
    earlier = LatestRows(CLUSTER, 6)
    told(earlier, 9, 13)
    assert earlier.take().facts[0].number < numbers[0]


def test_what_could_not_be_written_is_written_next_under_its_numbers() -> None:
    rows = rows_of_epoch_7()
    told(rows, 1, 11)
    first = rows.take().facts
    told(rows, 2, 12)
    rows.failed()
    assert rows.pending_since_ms() == 111
    again = rows.take().facts
    assert epochs(again) == [(None, 1), (1, 2)]
    assert again[0].number == first[0].number < again[1].number
    rows.facts.written()
    rows.failed()
    assert rows.take().facts == [], "they are in their table, whatever became of the rows"


def test_too_many_are_dropped_from_the_oldest_and_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts_module, "FACTS_MAX", 3)
    facts = Facts(7)
    for zxid in range(5):
        facts.began(ASKED, zxid, 100 + zxid)
    lost, *kept = facts.take()
    assert isinstance(lost, Lost)
    assert lost.count == 2
    assert [fact.zxid for fact in kept if isinstance(fact, Began)] == [2, 3, 4]
    facts.failed()
    facts.began(ASKED, 5, 105)
    lost, *kept = facts.take()
    assert isinstance(lost, Lost)
    assert lost.count == 2 + 1
    assert [fact.zxid for fact in kept if isinstance(fact, Began)] == [3, 4, 5]
    facts.written()
    facts.began(ASKED, 6, 106)
    assert [type(fact) for fact in facts.take()] == [Began]

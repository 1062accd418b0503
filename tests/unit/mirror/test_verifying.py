"""What is said of a table that is not as ZooKeeper is."""

from __future__ import annotations

from typing import Any

from spark_replication.mirror.asking.verifying import Difference, differences
from spark_replication.mirror.tables.partitions import PARTITIONS
from tests.live.mirror.mirror_stories import command, row

LED = row(command("orders", 0, leader=1, leader_epoch=4), 10, active_epoch=4)
UNLED = row(command("orders", 1, leader=None, leader_epoch=7), 11, active_epoch=6)


def shown(*rows: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = PARTITIONS.rows(list(rows), []).to_pylist()
    return found


def test_a_table_that_shows_what_is_stored_has_no_difference() -> None:
    assert differences(PARTITIONS, [LED, UNLED], shown(UNLED, LED)) == []


def test_rows_that_one_of_them_lacks_are_named() -> None:
    assert differences(PARTITIONS, [LED], shown(UNLED)) == [
        Difference("partitions", ("orders", 0), "", "it is there", "no row"),
        Difference("partitions", ("orders", 1), "", "there is none", "a row"),
    ]


def test_each_column_that_is_not_as_stored_is_named_and_an_older_table_lacks_some() -> None:
    older = row(command("orders", 0, leader=3, leader_epoch=3), 9, active_epoch=3)
    (without,) = shown(older)
    del without["elected_how"]
    assert [(each.column, each.stored, each.shown) for each in differences(PARTITIONS, [LED], [without])] == [
        ("active_epoch", 4, 3),
        ("isr", [1, 2], [2, 3]),
        ("leader", 1, 3),
        ("leader_epoch", 4, 3),
        ("zxid", 10, 9),
    ]


def test_a_leader_that_has_not_confirmed_is_no_route_yet() -> None:
    waiting = row(LED.command, 10, active_epoch=3)
    assert [each.column for each in differences(PARTITIONS, [LED], shown(waiting))] == ["active_epoch"]

"""What is to be written, as the controller tells one thing after the other."""

from __future__ import annotations

from msgspec.structs import replace

from spark_replication.mirror.rows import LatestRows, MirrorRow, to_arrow
from spark_replication.model import TopicPartition
from tests.live.mirror.mirror_stories import CLUSTER, command

ORDERS_3 = TopicPartition("orders", 3)
TOPIC_ID = command().topic_id


def rows_with(leader_epoch: int, zxid: int) -> LatestRows:
    rows = LatestRows(CLUSTER)
    rows.changed([(command(leader_epoch=leader_epoch), zxid)], 100)
    return rows


def only(rows: LatestRows) -> MirrorRow:
    (row,) = rows.take()
    return row


def test_the_newest_of_several_changes_is_written() -> None:
    rows = rows_with(1, 10)
    rows.changed([(command(leader_epoch=3), 12), (command(leader_epoch=2), 11)], 200)
    assert (rows.pending, rows.pending_since_ms()) == (1, 100)
    row = only(rows)
    assert (row.command.state.leader_epoch, row.zxid, row.updated_at_ms) == (3, 12, 200)


def test_what_is_told_again_is_not_written_again() -> None:
    rows = rows_with(1, 10)
    rows.take()
    rows.written()
    rows.changed([(command(leader_epoch=1), 10)], 200)
    assert (rows.pending, rows.pending_since_ms()) == (0, None)


def test_a_confirmation_goes_with_the_row_and_stays_with_the_next() -> None:
    rows = rows_with(5, 10)
    rows.confirmed(ORDERS_3, TOPIC_ID, 5, 150)
    rows.confirmed(ORDERS_3, TOPIC_ID, 4, 160)
    rows.changed([(command(leader_epoch=6), 11)], 200)
    row = only(rows)
    assert (row.command.state.leader_epoch, row.active_epoch) == (6, 5)


def test_a_confirmation_of_what_nobody_decided_is_another_topics() -> None:
    rows = rows_with(5, 10)
    rows.confirmed(ORDERS_3, TOPIC_ID, 6, 150)
    rows.confirmed(TopicPartition("unknown", 0), TOPIC_ID, 0, 150)
    rows.confirmed(ORDERS_3, "an earlier one", 5, 150)
    assert only(rows).active_epoch == -1


def test_a_topic_made_again_starts_unconfirmed() -> None:
    rows = rows_with(0, 10)
    rows.confirmed(ORDERS_3, TOPIC_ID, 0, 150)
    rows.deleted("orders", 11, 160)
    rows.changed([(command(topic_id="second"), 12)], 200)
    row = only(rows)
    assert (row.command.topic_id, row.active_epoch, row.deleted) == ("second", -1, False)


def test_a_deleted_topic_is_written_as_gone_and_then_forgotten() -> None:
    rows = rows_with(4, 10)
    rows.changed([(command("payments"), 10)], 100)
    rows.deleted("orders", 11, 200)
    rows.confirmed(ORDERS_3, TOPIC_ID, 4, 210)
    told = {row.command.topic: row for row in rows.take()}
    assert [(topic, row.deleted, row.state) for topic, row in sorted(told.items())] == [
        ("orders", True, "nonexistent"),
        ("payments", False, "online"),
    ]
    assert (told["orders"].zxid, told["orders"].active_epoch) == (11, -1)
    rows.written()
    rows.confirmed(ORDERS_3, TOPIC_ID, 4, 220)
    assert rows.pending == 0


def test_a_removed_partition_is_written_as_gone_and_may_come_again() -> None:
    rows = rows_with(4, 10)
    rows.removed(ORDERS_3, 10, 110)  # older than what is known
    assert not only(rows).deleted
    rows.written()
    rows.removed(ORDERS_3, 11, 120)
    rows.removed(TopicPartition("orders", 9), 11, 120)
    row = only(rows)
    assert (row.deleted, row.zxid, row.state) == (True, 11, "nonexistent")
    rows.written()
    rows.changed([(command(leader_epoch=5), 12)], 200)
    assert not only(rows).deleted


def test_a_row_tells_of_a_reassignment_and_of_how_its_leader_was_elected() -> None:
    rows = LatestRows(CLUSTER)
    told = command(leader_epoch=4)
    moving = replace(told, adding=(4,), removing=(2,), state=replace(told.state, elected="unclean_recovery"))
    rows.changed([(moving, 10)], 100)
    (row,) = to_arrow(rows.take()).to_pylist()
    assert (row["adding"], row["removing"], row["elected_how"]) == ([4], [2], "unclean_recovery")
    assert to_arrow([MirrorRow(cluster_id=CLUSTER, command=told, zxid=1, updated_at_ms=1)])["adding"].to_pylist() == [
        []
    ]


def test_what_changes_during_a_write_is_written_next() -> None:
    rows = rows_with(1, 10)
    rows.take()
    rows.changed([(command(leader_epoch=2), 11)], 200)
    assert (rows.waiting, rows.pending, rows.pending_since_ms()) == (1, 1, 100)
    rows.written()
    assert (rows.pending, rows.pending_since_ms()) == (1, 200)
    assert only(rows).zxid == 11


def test_a_failed_write_waits_again_as_long_as_it_has_with_what_came_meanwhile() -> None:
    rows = rows_with(1, 10)
    rows.take()
    rows.changed([(command(leader_epoch=2), 11), (command("payments"), 11)], 200)
    rows.failed()
    assert (rows.pending, rows.pending_since_ms()) == (2, 100)
    assert [(row.command.topic, row.zxid) for row in rows.take()] == [("orders", 11), ("payments", 11)]

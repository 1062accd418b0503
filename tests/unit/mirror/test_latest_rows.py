"""What is to be written, as the controller tells one thing after the other."""

from __future__ import annotations

from msgspec.structs import replace

from spark_replication.core.controller.news import News
from spark_replication.mirror.latest_rows import LatestRows
from spark_replication.mirror.partitions import PARTITIONS, PartitionRow
from spark_replication.model import TopicPartition
from tests.live.mirror.mirror_stories import CLUSTER, changed, command, everything, gone, row

ORDERS_3 = TopicPartition("orders", 3)
TOPIC_ID = command().topic_id


def rows_with(leader_epoch: int, zxid: int) -> LatestRows:
    rows = LatestRows(CLUSTER)
    rows.tell(changed((command(leader_epoch=leader_epoch), zxid)), 100)
    return rows


def only(rows: LatestRows) -> PartitionRow:
    batch = rows.take()
    (row,) = batch.live
    assert not batch.gone
    return row


def test_the_newest_of_several_changes_is_written() -> None:
    rows = rows_with(1, 10)
    rows.tell(changed((command(leader_epoch=3), 12), (command(leader_epoch=2), 11)), 200)
    assert (rows.pending, rows.pending_since_ms()) == (1, 100)
    row = only(rows)
    assert (row.command.state.leader_epoch, row.zxid, row.told_ms) == (3, 12, 200)


def test_what_is_told_again_is_not_written_again() -> None:
    rows = rows_with(1, 10)
    rows.take()
    rows.written()
    rows.tell(changed((command(leader_epoch=1), 10)), 200)
    assert (rows.waiting, rows.pending, rows.pending_since_ms()) == (False, 0, None)


def test_with_everything_what_was_written_is_compared_again_and_nothing_older() -> None:
    rows = rows_with(2, 10)
    rows.confirmed(ORDERS_3, TOPIC_ID, 2, 150)
    rows.take()
    rows.written()
    rows.tell(everything(20, (command(leader_epoch=2), 10), (command("payments"), 7)), 200)
    batch = rows.take()
    assert [(row.command.topic, row.active_epoch) for row in batch.live] == [("orders", 2), ("payments", -1)]
    assert batch.complete is not None
    assert batch.complete.zxid == 20
    rows.written()
    rows.tell(everything(21, (command(leader_epoch=1), 9)), 300)
    assert rows.take().live == []
    assert rows.take().complete is None


def test_a_complete_set_is_written_even_if_it_is_empty() -> None:
    rows = LatestRows(CLUSTER)
    rows.tell(everything(20), 100)
    assert (rows.waiting, rows.pending) == (True, 0)


def test_a_confirmation_goes_with_the_row_and_stays_with_the_next() -> None:
    rows = rows_with(5, 10)
    rows.confirmed(ORDERS_3, TOPIC_ID, 5, 150)
    rows.confirmed(ORDERS_3, TOPIC_ID, 4, 160)
    rows.tell(changed((command(leader_epoch=6), 11)), 200)
    row = only(rows)
    assert (row.command.state.leader_epoch, row.active_epoch) == (6, 5)


def test_a_confirmation_may_come_before_the_decision_is_told() -> None:
    """Brokers are told first (M4)."""
    rows = LatestRows(CLUSTER)
    rows.confirmed(ORDERS_3, TOPIC_ID, 0, 150)
    assert (rows.waiting, rows.pending) == (False, 0)
    rows.tell(changed((command(leader_epoch=0), 10)), 200)
    rows.confirmed(ORDERS_3, TOPIC_ID, 2, 250)
    rows.confirmed(ORDERS_3, TOPIC_ID, 1, 260)  # by the leader before: it is late
    assert only(rows).active_epoch == 0
    rows.written()
    rows.tell(changed((command(leader_epoch=2), 11)), 300)
    assert only(rows).active_epoch == 2


def test_a_word_of_the_next_topic_of_that_name_is_kept_until_that_is_told() -> None:
    rows = rows_with(0, 10)
    rows.confirmed(ORDERS_3, "second", 0, 260)
    assert only(rows).active_epoch == -1
    rows.written()
    rows.tell(changed((command(leader_epoch=1), 11)), 300)
    assert only(rows).active_epoch == -1
    rows.written()
    rows.tell(changed((command(topic_id="second", leader_epoch=0), 12)), 400)
    assert only(rows).active_epoch == 0


def test_a_confirmation_of_another_topic_or_an_older_epoch_says_nothing() -> None:
    rows = rows_with(5, 10)
    rows.confirmed(ORDERS_3, "an earlier one", 5, 150)
    assert only(rows).active_epoch == -1
    rows.written()
    rows.confirmed(ORDERS_3, TOPIC_ID, 6, 160)
    rows.tell(News(removed=((ORDERS_3, 11),)), 170)
    rows.tell(changed((command(topic_id="second", leader_epoch=9), 12)), 200)
    assert only(rows).active_epoch == -1


def test_a_topic_made_again_starts_unconfirmed() -> None:
    rows = rows_with(0, 10)
    rows.confirmed(ORDERS_3, TOPIC_ID, 0, 150)
    rows.tell(News(deleted=(("orders", 11),)), 160)
    rows.tell(changed((command(topic_id="second"), 12)), 200)
    row = only(rows)
    assert (row.command.topic_id, row.active_epoch) == ("second", -1)


def test_a_deleted_topic_is_written_as_gone_and_then_forgotten() -> None:
    rows = rows_with(4, 10)
    rows.tell(changed((command("payments"), 10)), 100)
    rows.tell(News(deleted=(("orders", 11),)), 200)
    rows.confirmed(ORDERS_3, TOPIC_ID, 4, 210)
    batch = rows.take()
    assert [row.command.topic for row in batch.live] == ["payments"]
    assert [replace(each, told_ms=0) for each in batch.gone] == [gone("orders", 3, 11)]
    assert rows.knows(ORDERS_3)
    rows.written()
    rows.confirmed(ORDERS_3, TOPIC_ID, 4, 220)
    assert (rows.pending, rows.knows(ORDERS_3)) == (0, False)


def test_a_removed_partition_is_written_as_gone_and_may_come_again() -> None:
    rows = rows_with(4, 10)
    rows.tell(News(removed=((ORDERS_3, 10),)), 110)  # older than what is known
    assert only(rows).zxid == 10
    rows.written()
    rows.tell(News(removed=((ORDERS_3, 11), (TopicPartition("orders", 9), 11))), 120)
    batch = rows.take()
    assert (batch.live, [replace(each, told_ms=0) for each in batch.gone]) == ([], [gone("orders", 3, 11)])
    rows.written()
    rows.tell(changed((command(leader_epoch=5), 12)), 200)
    assert only(rows).zxid == 12


def test_what_is_gone_and_comes_again_during_a_write_stays_known() -> None:
    rows = rows_with(4, 10)
    rows.tell(News(removed=((ORDERS_3, 11),)), 110)
    rows.take()
    rows.tell(changed((command(leader_epoch=5), 12)), 200)
    rows.written()
    assert (rows.knows(ORDERS_3), only(rows).zxid) == (True, 12)


def test_a_row_tells_of_a_reassignment_and_of_how_its_leader_was_elected() -> None:
    told = command(leader_epoch=4)
    moving = replace(told, adding=(4,), removing=(2,), state=replace(told.state, elected="unclean_recovery"))
    (found, quiet) = PARTITIONS.rows([row(moving, 10), row(told, 1)], []).to_pylist()
    assert (found["adding"], found["removing"], found["elected_how"]) == ([4], [2], "unclean_recovery")
    assert (quiet["adding"], quiet["elected_how"], quiet["deleted"]) == ([], None, False)


def test_a_tombstone_says_what_is_gone_and_since_when() -> None:
    (found,) = PARTITIONS.rows([], [gone("orders", 3, 11)]).to_pylist()
    said = {name: value for name, value in found.items() if value is not None and name != "updated_at"}
    assert said == {
        "topic": "orders",
        "partition": 3,
        "active_epoch": -1,
        "state": "nonexistent",
        "zxid": 11,
        "cluster_id": CLUSTER,
        "deleted": True,
    }


def test_what_changes_during_a_write_is_written_next() -> None:
    rows = rows_with(1, 10)
    rows.take()
    rows.tell(changed((command(leader_epoch=2), 11)), 200)
    assert (rows.waiting, rows.pending, rows.pending_since_ms()) == (True, 1, 100)
    rows.written()
    assert (rows.pending, rows.pending_since_ms()) == (1, 200)
    assert only(rows).zxid == 11


def test_a_failed_write_waits_again_as_long_as_it_has_with_what_came_meanwhile() -> None:
    rows = rows_with(1, 10)
    rows.take()
    rows.tell(changed((command(leader_epoch=2), 11), (command("payments"), 11)), 200)
    rows.failed()
    assert (rows.pending, rows.pending_since_ms()) == (2, 100)
    assert [(row.command.topic, row.zxid) for row in rows.take().live] == [("orders", 11), ("payments", 11)]

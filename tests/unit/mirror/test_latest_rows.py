"""What is to be written, as the controller tells one thing after the other."""

from __future__ import annotations

from msgspec.structs import replace

from spark_replication.core.controller.cluster import StoredTopic
from spark_replication.core.controller.events import BrokersRead
from spark_replication.core.controller.news import News, PartitionNews
from spark_replication.core.controller.origin import Origin
from spark_replication.core.law.unreadable import ALL_READ, Unreadable
from spark_replication.core.law.writes import Made
from spark_replication.mirror.tables.brokers import BROKERS
from spark_replication.mirror.tables.columns import Tombstone
from spark_replication.mirror.tables.facts import Change
from spark_replication.mirror.tables.partitions import PARTITIONS, PartitionRow
from spark_replication.mirror.tables.topics import TOPICS
from spark_replication.mirror.telling.latest import TableBatch
from spark_replication.mirror.telling.latest_rows import LatestRows
from spark_replication.model import Registration, TopicConfig, TopicPartition, TopicState
from tests.live.mirror.mirror_stories import CLUSTER, changed, command, everything, gone, row

ORDERS_3 = TopicPartition("orders", 3)
TOPIC_ID = command().topic_id


def rows_with(leader_epoch: int, zxid: int) -> LatestRows:
    rows = LatestRows(CLUSTER, 1)
    rows.tell(changed((command(leader_epoch=leader_epoch), zxid)), 100)
    return rows


def taken(rows: LatestRows) -> TableBatch[PartitionRow]:
    batch = rows.take()
    assert not batch.tables[BROKERS.name]
    return batch.tables[PARTITIONS.name]


def knows(rows: LatestRows, partition: TopicPartition) -> bool:
    return any(table.knows(partition) for table in rows.tables)


def only(rows: LatestRows) -> PartitionRow:
    batch = taken(rows)
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
    rows.written(is_behind=False)
    rows.tell(changed((command(leader_epoch=1), 10)), 200)
    assert (rows.waiting, rows.pending, rows.pending_since_ms()) == (False, 0, None)


def test_with_everything_what_was_written_is_compared_again_and_nothing_older() -> None:
    rows = rows_with(2, 10)
    rows.confirmed(ORDERS_3, TOPIC_ID, 2, 150)
    rows.take()
    rows.written(is_behind=False)
    rows.tell(everything(20, (command(leader_epoch=2), 10), (command("payments"), 7)), 200)
    batch = taken(rows)
    assert [(row.command.topic, row.active_epoch) for row in batch.live] == [("orders", 2), ("payments", -1)]
    assert batch.whole is not None
    assert batch.whole.zxid == 20
    rows.written(is_behind=False)
    rows.tell(everything(21, (command(leader_epoch=1), 9)), 300)
    assert taken(rows).live == []
    assert taken(rows).whole is None


def test_a_complete_set_is_written_even_if_it_is_empty() -> None:
    rows = LatestRows(CLUSTER, 1)
    rows.tell(everything(20), 100)
    assert (rows.waiting, rows.pending) == (True, 0)


def test_tombstones_are_forgotten_once_all_is_told_and_not_while_what_vanished_waits() -> None:
    """The row of a controller before this one may come late, and be all that tells the next of what has vanished: a
    table that had forgotten up to there would not take it."""
    rows = LatestRows(CLUSTER, 1)
    partitions = rows.tables[-1]
    rows.tell(everything(20, (command(), 10)), 100)
    assert partitions.forgets() is None, "it is not being written yet"
    rows.take()
    assert partitions.forgets() == 20
    vanished = Tombstone(cluster_id=CLUSTER, key=("payments", 0), zxid=20, told_ms=100)
    rows.vanished(partitions, [vanished], None, 100)
    assert partitions.forgets() is None
    rows.written(is_behind=False)
    assert taken(rows).gone == [vanished]
    assert partitions.forgets() is None, "this is not all that there is"
    rows.written(is_behind=False)
    rows.tell(everything(21, (command(), 10)), 200)
    rows.take()
    assert partitions.forgets() == 21


def test_tombstones_of_brokers_stay_and_so_do_all_while_something_cannot_be_read() -> None:
    rows = LatestRows(CLUSTER, 1)
    rows.tell(everything(20, unreadable=Unreadable(partitions=frozenset({ORDERS_3}))), 100)
    rows.tell(brokers(20), 100)
    rows.take()
    assert [table.forgets() for table in rows.tables] == [None, None, None]


def test_a_confirmation_goes_with_the_row_and_stays_with_the_next() -> None:
    rows = rows_with(5, 10)
    rows.confirmed(ORDERS_3, TOPIC_ID, 5, 150)
    rows.confirmed(ORDERS_3, TOPIC_ID, 4, 160)
    rows.tell(changed((command(leader_epoch=6), 11)), 200)
    row = only(rows)
    assert (row.command.state.leader_epoch, row.active_epoch) == (6, 5)


def test_a_confirmation_may_come_before_the_decision_is_told() -> None:
    """Brokers are told first (M4)."""
    rows = LatestRows(CLUSTER, 1)
    rows.confirmed(ORDERS_3, TOPIC_ID, 0, 150)
    assert (rows.waiting, rows.pending) == (False, 0)
    rows.tell(changed((command(leader_epoch=0), 10)), 200)
    rows.confirmed(ORDERS_3, TOPIC_ID, 2, 250)
    rows.confirmed(ORDERS_3, TOPIC_ID, 1, 260)  # by the leader before: it is late
    assert only(rows).active_epoch == 0
    rows.written(is_behind=False)
    rows.tell(changed((command(leader_epoch=2), 11)), 300)
    assert only(rows).active_epoch == 2


def test_a_word_of_the_next_topic_of_that_name_is_kept_until_that_is_told() -> None:
    rows = rows_with(0, 10)
    rows.confirmed(ORDERS_3, "second", 0, 260)
    assert only(rows).active_epoch == -1
    rows.written(is_behind=False)
    rows.tell(changed((command(leader_epoch=1), 11)), 300)
    assert only(rows).active_epoch == -1
    rows.written(is_behind=False)
    rows.tell(changed((command(topic_id="second", leader_epoch=0), 12)), 400)
    assert only(rows).active_epoch == 0


def test_a_confirmation_of_another_topic_or_an_older_epoch_says_nothing() -> None:
    rows = rows_with(5, 10)
    rows.confirmed(ORDERS_3, "an earlier one", 5, 150)
    assert only(rows).active_epoch == -1
    rows.written(is_behind=False)
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
    batch = taken(rows)
    assert [row.command.topic for row in batch.live] == ["payments"]
    assert [replace(each, told_ms=0) for each in batch.gone] == [gone("orders", 3, 11)]
    assert knows(rows, ORDERS_3)
    rows.written(is_behind=False)
    rows.confirmed(ORDERS_3, TOPIC_ID, 4, 220)
    assert (rows.pending, knows(rows, ORDERS_3)) == (0, False)


def test_a_removed_partition_is_written_as_gone_and_may_come_again() -> None:
    rows = rows_with(4, 10)
    rows.tell(News(removed=((ORDERS_3, 10),)), 110)  # older than what is known
    assert only(rows).zxid == 10
    rows.written(is_behind=False)
    rows.tell(News(removed=((ORDERS_3, 11), (TopicPartition("orders", 9), 11))), 120)
    batch = taken(rows)
    assert (batch.live, [replace(each, told_ms=0) for each in batch.gone]) == ([], [gone("orders", 3, 11)])
    rows.written(is_behind=False)
    rows.tell(changed((command(leader_epoch=5), 12)), 200)
    assert only(rows).zxid == 12


def test_what_is_gone_and_comes_again_during_a_write_stays_known() -> None:
    rows = rows_with(4, 10)
    rows.tell(News(removed=((ORDERS_3, 11),)), 110)
    rows.take()
    rows.tell(changed((command(leader_epoch=5), 12)), 200)
    rows.written(is_behind=False)
    assert (knows(rows, ORDERS_3), only(rows).zxid) == (True, 12)


def test_a_row_tells_of_a_reassignment_and_of_how_its_leader_was_elected() -> None:
    told = command(leader_epoch=4)
    led = replace(told.state, elected="unclean_recovery", start_at=40)
    moving = replace(told, adding=(4,), removing=(2,), state=led)
    (found, quiet) = PARTITIONS.rows([row(moving, 10), row(told, 1)], []).to_pylist()
    assert (found["adding"], found["removing"], found["elected_how"]) == ([4], [2], "unclean_recovery")
    assert (quiet["adding"], quiet["elected_how"], quiet["deleted"]) == ([], None, False)
    assert (found["start_at"], quiet["start_at"]) == (40, None)


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
    rows.written(is_behind=False)
    assert (rows.pending, rows.pending_since_ms()) == (1, 200)
    assert only(rows).zxid == 11


def test_a_failed_write_waits_again_as_long_as_it_has_with_what_came_meanwhile() -> None:
    rows = rows_with(1, 10)
    rows.take()
    rows.tell(changed((command(leader_epoch=2), 11), (command("payments"), 11)), 200)
    rows.failed()
    assert (rows.pending, rows.pending_since_ms()) == (2, 100)
    assert [(row.command.topic, row.zxid) for row in taken(rows).live] == [("orders", 11), ("payments", 11)]


def test_a_failed_whole_set_is_a_whole_set_when_it_is_tried_again() -> None:
    rows = LatestRows(CLUSTER, 1)
    rows.tell(everything(20, (command(), 10)), 100)
    first = taken(rows)
    rows.failed()
    assert (rows.waiting, taken(rows)) == (True, first)
    rows.written(is_behind=False)
    assert not rows.waiting


def test_since_when_it_leads_stays_while_the_leader_epoch_does() -> None:
    rows = LatestRows(CLUSTER, 1)
    for zxid, (leader_epoch, at_ms) in enumerate([(5, 1_000), (5, 2_000), (6, 3_000)], start=10):
        rows.tell(News(partitions=(PartitionNews(command(leader_epoch=leader_epoch), zxid, at_ms),)), 9_000)
        row = only(rows)
        assert (row.at_ms, row.leader_since_ms) == (at_ms, {5: 1_000, 6: 3_000}[leader_epoch])
        rows.written(is_behind=False)


def test_why_there_is_no_leader_goes_with_the_row() -> None:
    rows = LatestRows(CLUSTER, 1)
    rows.tell(News(partitions=(PartitionNews(command(leader=None), 10, 1_000, "fenced_elr"),)), 2_000)
    (found,) = PARTITIONS.rows([only(rows)], []).to_pylist()
    assert (found["leader"], found["leader_since"], found["waiting_for"]) == (None, None, "fenced_elr")


def registered(port: int, *, shutting_down: bool = False) -> Registration:
    return Registration(
        host="h", port=port, replication_port=1, epoch=port, incarnation=f"at {port}", shutting_down=shutting_down
    )


def brokers(zxid: int, *found: tuple[int, Registration, int], hidden: int | None = None) -> News:
    """As all were read once somebody had come or gone at `zxid`: each with its own."""
    unreadable = ALL_READ if hidden is None else Unreadable(brokers=frozenset({hidden}))
    read = BrokersRead(
        brokers={broker: registration for broker, registration, _ in found},
        broker_epochs={},
        registered={broker: Made(0, own, own * 10) for broker, _, own in found},
        zxid=zxid,
        unreadable=unreadable,
    )
    return News(brokers=read)


def written_brokers(rows: LatestRows) -> list[tuple[int, int | None, str, int]]:
    batch = rows.take().tables[BROKERS.name]
    rows.written(is_behind=False)
    told = BROKERS.rows(batch.live, batch.gone).to_pylist()
    return [(row["broker"], row["port"], row["state"], row["zxid"]) for row in told]


def test_brokers_are_told_as_they_are_registered_and_once_they_are_gone() -> None:
    rows = LatestRows(CLUSTER, 1)
    rows.tell(brokers(12, (1, registered(9_001), 11), (2, registered(9_002), 12)), 100)
    assert written_brokers(rows) == [(1, 9_001, "live", 11), (2, 9_002, "live", 12)]
    rows.tell(brokers(14, (1, registered(9_001, shutting_down=True), 13)), 200)
    assert written_brokers(rows) == [(1, 9_001, "shutting_down", 13), (2, None, "gone", 14)]
    rows.tell(brokers(14, (1, registered(9_001, shutting_down=True), 13)), 300)
    assert written_brokers(rows) == []
    rows.tell(brokers(15, (1, registered(9_001, shutting_down=True), 13), (2, registered(9_003), 15)), 400)
    assert written_brokers(rows) == [(2, 9_003, "live", 15)]


def test_a_registration_that_cannot_be_read_is_not_taken_for_gone() -> None:
    rows = LatestRows(CLUSTER, 1)
    rows.tell(brokers(11, (1, registered(9_001), 11)), 100)
    written_brokers(rows)
    rows.tell(brokers(11, hidden=1), 200)
    batch = rows.take().tables[BROKERS.name]
    assert (batch.live, batch.gone) == ([], [])
    assert batch.whole is not None
    assert not batch.whole.is_all
    assert BROKERS.hides(batch.whole.unreadable, (1,))


def test_a_topic_whose_time_nobody_knows_changed_when_that_was_told() -> None:
    stored = StoredTopic(TopicState(topic_id="id", partitions={0: (1,)}), 0, TopicConfig(), zxid=12)
    rows = LatestRows(CLUSTER, 1)
    rows.tell(News(topics=(("orders", stored),)), 5_000)
    (found,) = TOPICS.rows(rows.take().tables[TOPICS.name].live, []).to_pylist()
    assert found["changed_at"] == found["updated_at"]


def test_a_topic_is_told_as_its_later_node_says_and_goes_with_its_partitions() -> None:
    def topic(zxid: int, count: int) -> StoredTopic:
        state = TopicState(topic_id="id", partitions=dict.fromkeys(range(count), (1,)))
        return StoredTopic(state, 0, TopicConfig(settings={"retention.ms": zxid}), zxid, zxid * 10)

    rows = LatestRows(CLUSTER, 1)
    rows.tell(News(topics=(("orders", topic(12, 2)), ("orders", topic(11, 1)))), 100)
    rows.tell(changed((command("orders", 0), 12)), 100)
    batch = rows.take()
    (found,) = TOPICS.rows(batch.tables[TOPICS.name].live, []).to_pylist()
    assert (found["topic"], found["partitions"], found["settings"]) == ("orders", 2, '{"retention.ms":12}')
    rows.written(is_behind=False)
    rows.tell(News(deleted=(("orders", 13),)), 200)
    gone_now = rows.take()
    assert [
        (each.key, each.zxid) for name in (TOPICS.name, PARTITIONS.name) for each in gone_now.tables[name].gone
    ] == [
        (("orders",), 13),
        (("orders", 0), 13),
    ]


def of_two_confirmed(*, much: int) -> LatestRows:
    """Partition 0 is written and confirmed since; 1 and 2 have changed."""
    rows = LatestRows(CLUSTER, 1, much=much)
    rows.tell(changed((command(partition=0, leader_epoch=6), 10), (command(partition=1), 11)), 100)
    rows.take()
    rows.written(is_behind=False)
    rows.confirmed(TopicPartition("orders", 0), TOPIC_ID, 4, 150)
    rows.tell(changed((command(partition=1, leader_epoch=5), 12), (command(partition=2), 13)), 200)
    return rows


def partitions(batch: TableBatch[PartitionRow]) -> list[int]:
    return [row.command.partition for row in batch.live]


def test_of_much_that_waits_what_leaders_confirmed_goes_first_and_then_everything() -> None:
    rows = of_two_confirmed(much=1)
    first = rows.take()
    assert (first.facts, first.is_all, partitions(first.tables[PARTITIONS.name])) == ([], False, [0])
    written, event = rows.written_zxid, rows.written_event
    rows.confirmed(TopicPartition("orders", 0), TOPIC_ID, 5, 250)
    rows.written(is_behind=False)
    assert (rows.written_zxid, rows.written_event) == (written, event), "the others are not there yet"
    rows.confirmed(TopicPartition("orders", 0), TOPIC_ID, 6, 260)
    then = rows.take()
    assert (len(then.facts), then.is_all, partitions(then.tables[PARTITIONS.name])) == (2, True, [1, 2, 0])
    rows.written(is_behind=False)
    assert (rows.written_zxid, rows.written_event, rows.waiting) == (13, rows.facts.last_number, False)


def test_of_a_little_that_waits_all_goes_at_one_time() -> None:
    batch = of_two_confirmed(much=2).take()
    assert (batch.is_all, sorted(partitions(batch.tables[PARTITIONS.name]))) == (True, [0, 1, 2])


def test_what_an_event_tells_of_does_not_go_before_it() -> None:
    rows = of_two_confirmed(much=0)
    rows.tell(changed((command(partition=0, leader_epoch=7), 14)), 300)
    rows.confirmed(TopicPartition("orders", 0), TOPIC_ID, 7, 350)
    batch = rows.take()
    assert (len(batch.facts), batch.is_all) == (3, True)


def test_what_is_to_be_compared_goes_at_one_time() -> None:
    rows = of_two_confirmed(much=0)
    rows.tell(everything(20, (command(partition=0, leader_epoch=6), 10)), 300)
    assert rows.take().is_all


def test_where_a_leader_is_goes_before_what_it_has_confirmed() -> None:
    rows = of_two_confirmed(much=0)
    rows.tell(brokers(15, (1, registered(9001), 15)), 300)
    batch = rows.take()
    assert (batch.is_all, len(batch.tables[BROKERS.name])) == (True, 1)


def test_after_a_write_that_failed_all_goes_at_one_time() -> None:
    rows = of_two_confirmed(much=0)
    assert not rows.take().is_all
    rows.failed()
    batch = rows.take()
    assert (batch.is_all, sorted(partitions(batch.tables[PARTITIONS.name]))) == (True, [0, 1, 2])
    rows.failed()
    rows.confirmed(TopicPartition("orders", 1), TOPIC_ID, 5, 350)
    assert rows.take().is_all, "its event may not be there"
    rows.written(is_behind=True)
    assert (rows.written_zxid, rows.written_event) == (13, 4_294_967_298), "what was written before this one's facts"


def about_to_be_written(rows: LatestRows, batch: TableBatch[PartitionRow]) -> list[tuple[int, int, int]]:
    """Of each row: the partition, its zxid, and what its leader has confirmed."""
    (table,) = [table for table in rows.tables if table.table is PARTITIONS]
    told = rows.with_confirmed(table, batch)
    assert (told.gone, told.whole) == (batch.gone, batch.whole)
    assert rows.with_confirmed(table, told) == told
    return [(row.command.partition, row.zxid, row.active_epoch) for row in told.live]


def test_what_is_about_to_be_written_says_what_its_leader_has_confirmed_since_and_that_waits_no_more() -> None:
    rows = rows_with(4, 10)
    batch = taken(rows)
    rows.confirmed(ORDERS_3, TOPIC_ID, 4, 150)
    assert about_to_be_written(rows, batch) == [(3, 10, 4)]
    assert rows.pending_since_ms() == 100
    rows.written(is_behind=False)
    assert not rows.waiting
    rows.confirmed(ORDERS_3, TOPIC_ID, 4, 160)
    assert not rows.waiting


def test_if_that_write_fails_what_was_confirmed_waits_again() -> None:
    rows = rows_with(4, 10)
    batch = taken(rows)
    rows.confirmed(ORDERS_3, TOPIC_ID, 4, 150)
    about_to_be_written(rows, batch)
    rows.failed()
    assert only(rows).active_epoch == 4


def test_what_has_changed_besides_waits_for_its_event() -> None:
    rows = rows_with(4, 10)
    batch = taken(rows)
    rows.tell(changed((command(leader_epoch=4), 11)), 120)
    rows.confirmed(ORDERS_3, TOPIC_ID, 4, 150)
    assert about_to_be_written(rows, batch) == [(3, 10, 4)]
    rows.written(is_behind=False)
    row = only(rows)
    assert (row.zxid, row.active_epoch) == (11, 4)


def test_a_row_does_not_say_that_a_later_leader_has_confirmed() -> None:
    rows = rows_with(4, 10)
    batch = taken(rows)
    rows.tell(changed((command(leader_epoch=5), 11)), 120)
    rows.confirmed(ORDERS_3, TOPIC_ID, 5, 150)
    assert about_to_be_written(rows, batch) == [(3, 10, -1)]


def test_a_row_of_an_earlier_topic_says_nothing_of_what_was_confirmed_in_the_next() -> None:
    rows = rows_with(4, 10)
    batch = taken(rows)
    rows.tell(changed((command(topic_id="second", leader_epoch=4), 11)), 120)
    rows.confirmed(ORDERS_3, "second", 4, 150)
    assert about_to_be_written(rows, batch) == [(3, 10, -1)]
    rows.tell(News(deleted=(("orders", 12),)), 160)
    assert about_to_be_written(rows, batch) == [(3, 10, -1)]


def test_while_a_brokers_row_waits_what_is_about_to_be_written_says_no_more_than_it_did() -> None:
    rows = rows_with(4, 10)
    batch = taken(rows)
    rows.tell(brokers(11, (1, registered(9001), 11)), 120)
    rows.confirmed(ORDERS_3, TOPIC_ID, 4, 150)
    assert about_to_be_written(rows, batch) == [(3, 10, -1)]


def test_brokers_that_were_taken_are_in_their_table_before() -> None:
    rows = rows_with(4, 10)
    rows.tell(brokers(11, (1, registered(9001), 11)), 120)
    batch = rows.take()
    rows.confirmed(ORDERS_3, TOPIC_ID, 4, 150)
    (table, *_) = rows.tables
    assert table.table is BROKERS
    assert rows.with_confirmed(table, batch.tables[BROKERS.name]) is batch.tables[BROKERS.name]
    assert about_to_be_written(rows, batch.tables[PARTITIONS.name]) == [(3, 10, 4)]


def test_a_partition_may_follow_from_something_else_than_the_rest() -> None:
    died, asked = Origin("1.1", "brokers", "broker 2 gone"), Origin("1.2", "request", "elect leaders")
    told = changed((command("orders", 0), 10), (command("orders", 1), 11), (command("orders", 2), 12))
    first, second, third = told.partitions
    rows = LatestRows(CLUSTER, 1)
    rows.tell(replace(told, origin=died, partitions=(first, replace(second, origin=asked), third)), 100)
    facts = rows.take().facts
    assert [fact.origin for fact in facts if isinstance(fact, Change)] == [died, asked, died]

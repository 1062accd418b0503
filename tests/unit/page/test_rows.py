"""What a description comes to in rows."""

from __future__ import annotations

from msgspec.structs import replace

from spark_replication.messages.descriptions import Awaited
from spark_replication.page.answers import BrokerRow, PartitionRow, TopicRow
from spark_replication.page.asking import Sizes
from spark_replication.page.history import Totals
from spark_replication.page.rows import broker_rows, partition_row, topic_row, with_sizes, with_totals
from tests.unit.core.stories import command, state
from tests.unit.page.page_cluster import WELL, WITHOUT_3, metadata_of


def test_a_row_says_who_is_in_sync_in_the_order_of_preference_and_why_nobody_leads() -> None:
    row = partition_row(command(state(None, [], elr=[3, 1]), 7), Awaited(reason="fenced_elr"))
    assert row == PartitionRow(
        partition=0,
        conditions=("leaderless", "under_min_isr", "under_replicated"),
        leader=None,
        leader_epoch=4,
        partition_epoch=7,
        min_isr=2,
        replicas=(1, 2, 3),
        isr=(),
        elr=(1, 3),
        elected=None,
        waits="fenced_elr",
    )
    assert partition_row(command(state(2, [3, 2]), 7), None).isr == (2, 3)


def test_a_topic_counts_what_ails_its_partitions() -> None:
    rows = [
        partition_row(command(known, 7), None)
        for known in (state(1, [1, 2, 3]), state(1, [1, 2]), state(1, [1]), state(None, []))
    ]
    assert topic_row("foo", rows) == TopicRow(
        name="foo", partitions=4, replicas=3, leaderless=1, under_min_isr=2, under_replicated=3, moving=0
    )
    assert topic_row("none", []).replicas == 0
    totals = Totals(bytes=70, bytes_per_s=1.5, records_per_s=None, lag=3)
    row = with_totals(topic_row("foo", rows), totals)
    assert (row.bytes, row.bytes_per_s, row.records_per_s, row.lag) == (70, 1.5, None, 3)
    assert with_totals(row, None) == row


def test_brokers_are_those_that_live_and_those_that_are_missed() -> None:
    first, _, third = broker_rows(WITHOUT_3)
    assert first == BrokerRow(
        id=1, condition="live", address="127.0.0.1:1", rack=None, epoch=0, leads=1, hosts=3, lacking=0
    )
    assert third == BrokerRow(id=3, condition="gone", address=None, rack=None, epoch=None, leads=0, hosts=2, lacking=2)
    stopping = replace(WELL, brokers={**WELL.brokers, 1: replace(WELL.brokers[1], shutting_down=True)})
    assert [row.condition for row in broker_rows(stopping)] == ["stopping", "live", "live"]
    assert [row.id for row in broker_rows(replace(metadata_of(1, 2, 3), topics=()))] == [1, 2, 3]


def test_of_a_broker_that_does_not_answer_the_size_is_unknown_and_it_is_said_why() -> None:
    rows = broker_rows(WELL)
    sizes = Sizes(1, {1: {}}, {}, {2: "it hangs"})
    found = [with_sizes(row, sizes, {1: 40}) for row in rows]
    assert [(row.bytes, row.error) for row in found] == [(40, ""), (None, "it hangs"), (None, "")]

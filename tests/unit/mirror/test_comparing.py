"""What of a complete set is written, beside what a table shows already (M2)."""

from __future__ import annotations

from msgspec.structs import replace

from spark_replication.core.law.unreadable import ALL_READ, Unreadable
from spark_replication.mirror.tables.columns import Key
from spark_replication.mirror.tables.partitions import PARTITIONS, PartitionRow
from spark_replication.mirror.telling.comparing import Shown, compared
from spark_replication.mirror.telling.latest import TableBatch, Whole
from spark_replication.model import TopicPartition
from tests.live.mirror.mirror_stories import CLUSTER, command, gone, row

ORDERS = [TopicPartition("orders", number) for number in range(4)]


def what_is_written(
    batch: TableBatch[PartitionRow], shown: dict[Key, Shown], *known: TopicPartition
) -> TableBatch[PartitionRow]:
    told = compared(PARTITIONS, batch, shown, knows=lambda key: key in known, cluster_id=CLUSTER, now_ms=7)
    return replace(told, gone=[replace(each, told_ms=0) for each in told.gone])


def test_news_are_written_as_they_are() -> None:
    batch = TableBatch([row(command("orders", 0), 5)], [gone("orders", 1, 6)])
    assert what_is_written(batch, {ORDERS[0]: Shown((9, 9), deleted=False)}) == batch


def test_of_a_complete_set_what_is_shown_already_is_not_written_again() -> None:
    rows = [row(command("orders", number), 10, active_epoch=3) for number in range(4)]
    shown: dict[Key, Shown] = {
        ORDERS[0]: Shown((10, 3), deleted=False),
        ORDERS[1]: Shown((11, -1), deleted=False),  # newer than what this controller has loaded
        ORDERS[2]: Shown((10, 2), deleted=False),
        ORDERS[3]: Shown((9, 5), deleted=True),
    }
    told = what_is_written(TableBatch(rows, [], Whole(20, ALL_READ)), shown, *ORDERS)
    assert (told.live, told.gone) == (rows[2:], [])


def test_what_is_shown_from_before_and_unknown_is_gone_unless_nobody_can_read_it() -> None:
    shown: dict[Key, Shown] = {
        TopicPartition("known", 0): Shown((5, 0), deleted=False),
        TopicPartition("gone", 0): Shown((19, 0), deleted=False),
        TopicPartition("buried", 0): Shown((5, -1), deleted=True),
        TopicPartition("newer", 0): Shown((20, 0), deleted=False),
        TopicPartition("hidden", 0): Shown((5, 0), deleted=False),
    }
    unreadable = Unreadable(topics=frozenset({"hidden"}))
    told = what_is_written(TableBatch([], [], Whole(20, unreadable)), shown, TopicPartition("known", 0))
    assert (told.live, told.gone) == ([], [gone("gone", 0, 20)])

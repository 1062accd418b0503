"""The layout is part of the interface: people and other tools read it."""

from __future__ import annotations

import pytest

from spark_replication.model import TopicPartition, encode
from spark_replication.zk import paths
from spark_replication.zk.isr_change import IsrChange


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (paths.broker_id(3), "/brokers/ids/3"),
        (paths.broker_epoch(3), "/brokers/epochs/3"),
        (paths.topic("orders"), "/brokers/topics/orders"),
        (paths.topic_id("x"), "/brokers/topic_ids/x"),
        (paths.topic_config("orders"), "/config/topics/orders"),
        (paths.partition(TopicPartition("orders", 7)), "/brokers/topics/orders/7"),
        (paths.leader_and_isr(TopicPartition("orders", 7)), "/brokers/topics/orders/7/leaderAndISR"),
        (paths.isr_change("change_0000000001"), "/isr_change_notification/change_0000000001"),
    ],
)
def test_layout(path: str, expected: str) -> None:
    assert path == expected


def test_parents_come_before_children() -> None:
    made: set[str] = set()
    for path in paths.BASE:
        parent = path.rpartition("/")[0]
        assert parent in made | {""}
        made.add(path)


def test_a_notification_is_readable() -> None:
    change = IsrChange(partitions=("orders-3",))
    assert encode(change) == b'{"v":1,"partitions":["orders-3"]}'
    assert change.topic_partitions == (TopicPartition("orders", 3),)
    with pytest.raises(ValueError, match="TOPIC-PARTITION"):
        IsrChange(partitions=("orders",))

"""The live status: it fits a terminal of 100 columns, and says first what is wrong."""

from __future__ import annotations

from msgspec.structs import replace
from rich.console import Console

from spark_replication.admin.jobs.status_view import PARTITIONS_SHOWN, status_line, status_view
from spark_replication.messages.commands import PartitionCommand
from spark_replication.messages.descriptions import Metadata, TopicMetadata
from spark_replication.messages.guarding import Guarding, Serving
from spark_replication.model import PartitionState, Registration, TopicConfig
from spark_replication.spark.cluster import Status

WIDTH = 100
BROKERS = range(1, 6)


def registration(broker: int) -> Registration:
    return Registration(host="192.168.100.200", port=60_000 + broker, replication_port=1, epoch=12, incarnation="one")


def guarding(broker: int) -> Guarding:
    return Guarding(
        guardian=broker - 1,
        controller_epoch=3,
        submission=1,
        broker_id=broker,
        serving=Serving(broker_epoch=12, host="192.168.100.200", port=60_000 + broker, pid=4_000_000 + broker),
        log_dir="/var/lib/spark_replication/logs",
        adopted=True,
        restarts=12,
        trouble="",
    )


def partition(number: int, leader: int | None) -> PartitionCommand:
    replicas = (1, 2, 3)
    return PartitionCommand(
        topic="orders-of-a-long-name",
        partition=number,
        topic_id="id",
        replicas=replicas,
        state=PartitionState(
            leader=leader, leader_epoch=17, isr=frozenset(replicas), min_isr=2, epochs=dict.fromkeys(replicas, 0)
        ),
        partition_epoch=17,
    )


def status(partitions: int = 3, leader: int | None = 1) -> Status:
    found = tuple(partition(number, leader) for number in range(partitions))
    topics = (TopicMetadata(name="orders-of-a-long-name", topic_id="id", config=TopicConfig(), partitions=found),)
    return Status(
        controller_epoch=3,
        problems=(),
        guardians={broker: guarding(broker) for broker in BROKERS},
        silent_guardians=(),
        submissions=1,
        last_failure="",
        metadata=Metadata(cluster_id="c", brokers={broker: registration(broker) for broker in BROKERS}, topics=topics),
        mirror_pending=0,
        mirror_lag_ms=0,
    )


def drawn(of: Status) -> list[str]:
    """As on a terminal much wider than ours: what would not fit is seen, and not wrapped."""
    console = Console(width=300, color_system=None)
    with console.capture() as captured:
        console.print(status_view(of))
    return [line.rstrip() for line in captured.get().splitlines()]


def test_a_healthy_cluster_fits_a_hundred_columns() -> None:
    lines = drawn(status())
    assert lines[0] == "healthy  controller epoch 3, mirror up to date"
    assert max(map(len, lines)) <= WIDTH
    assert any(
        "192.168.100.200:60005" in line and "4000005" in line and "12 restarts, adopted" in line for line in lines
    )
    assert sum("orders-of-a-long-name-" in line for line in lines) == 3


def test_of_many_partitions_the_first_are_shown() -> None:
    lines = drawn(status(partitions=PARTITIONS_SHOWN + 1))
    assert sum("orders-of-a-long-name-" in line for line in lines) == PARTITIONS_SHOWN
    assert any(f"{PARTITIONS_SHOWN} of {PARTITIONS_SHOWN + 1} shown" in line for line in lines)


def test_what_is_wrong_comes_first() -> None:
    reasons = tuple(f"orders-{number} has no leader" for number in range(7))
    broken = replace(
        status(leader=None), problems=reasons, silent_guardians=(2,), mirror_pending=4, mirror_lag_ms=2_500
    )
    lines = drawn(broken)
    assert lines[:2] == ["not healthy", "  orders-0 has no leader"]
    assert "  … and 2 more" in lines
    assert "  mirror 4 partitions behind, 2.5 s" in lines
    assert any(" 2 " in line and "silent" in line for line in lines)
    assert any("none" in line for line in lines)
    assert status_line(broken) == (
        "NOT HEALTHY: orders-0 has no leader; orders-1 has no leader; orders-2 has no leader | controller epoch 3 | "
        "5 brokers | mirror 4 partitions behind, 2.5 s"
    )


def test_a_broker_that_is_guarded_and_not_registered_is_shown() -> None:
    metadata = status().metadata
    assert metadata is not None
    gone = replace(status(), metadata=replace(metadata, brokers={}), guardians={1: guarding(1)})
    assert any("not registered" in line and "4000001" in line for line in drawn(gone))


def test_without_a_controller_there_are_no_tables() -> None:
    waiting = replace(status(), metadata=None, controller_epoch=None, problems=("another driver commands",))
    assert drawn(waiting) == ["not healthy", "  another driver commands", "  mirror up to date"]

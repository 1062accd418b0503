"""The live status: it fits a terminal, says first what is wrong, and whatever a name says is only shown."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from rich.console import Console

from spark_replication.admin.jobs.happenings import happenings
from spark_replication.admin.jobs.status_view import (
    HAPPENINGS_LOGGED,
    HAPPENINGS_SHOWN,
    PARTITIONS_SHOWN,
    event_lines,
    says_up_to_date,
    shown_partitions,
    status_line,
    status_view,
)
from spark_replication.admin.jobs.traffic import Traffic
from spark_replication.messages.commands import PartitionCommand
from spark_replication.messages.descriptions import Metadata, TopicMetadata
from spark_replication.messages.guarding import Guarding, Serving
from spark_replication.messages.mirroring import ToldEvent
from spark_replication.model import PartitionState, Registration, TopicConfig, TopicPartition
from spark_replication.page.answers import Age, Events, PartitionSize, TopicRow
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


def topic_row(name: str, **known: float | int | None) -> TopicRow:
    counts = dict.fromkeys(("leaderless", "under_min_isr", "under_replicated", "moving"), 0)
    return TopicRow(name=name, partitions=3, replicas=3, **counts, **known)  # type: ignore[arg-type]  # each is what it is


def happened(*events: ToldEvent, error: str = "") -> Events:
    return Events(events=events, age=Age(as_of_ms=1, error=error))


DIED = {"because": "broker 3 gone", "cause": "3.9"}
FAILOVER = (
    ToldEvent(number=1, at_ms=1_000, kind="request", because="create topic orders: asked by admin", cause="3.1"),
    ToldEvent(number=2, at_ms=61_000, kind="gone", broker=3, **DIED),  # type: ignore[arg-type]  # each is what it is
    *(
        ToldEvent(number=3 + at, at_ms=62_000, kind="elected", topic="orders", partition=at, leader=1, **DIED)  # type: ignore[arg-type]
        for at in range(3)
    ),
)
BUSY = Traffic(
    topics=(
        topic_row("orders", bytes_per_s=20_000.0, records_per_s=900.0, lag=12),
        topic_row("quiet"),
        topic_row("payments", bytes_per_s=4_576.0, records_per_s=334.0, lag=1_500),
    ),
    sizes={
        TopicPartition("orders-of-a-long-name", 1): PartitionSize(partition=1, bytes=7, bytes_per_s=1_536.0, lag=1_500)
    },
    events=happened(*FAILOVER),
)


def drawn(of: Status, traffic: Traffic = BUSY, width: int = 300) -> list[str]:
    """As on a terminal much wider than ours: what would not fit is seen, and not wrapped."""
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(status_view(of, traffic))
    return [line.rstrip() for line in captured.get().splitlines()]


def test_a_healthy_cluster_fits_a_hundred_columns() -> None:
    lines = drawn(status(), Traffic())  # of events the texts are folded
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
    assert any(line.startswith("2 ") and line.endswith("silent") for line in lines)
    assert any("none" in line for line in lines)
    assert status_line(broken, BUSY) == (
        "NOT HEALTHY: orders-0 has no leader; orders-1 has no leader; orders-2 has no leader | controller epoch 3 | "
        "5 brokers | mirror 4 partitions behind, 2.5 s | in: 1,234 rows/s, 24 KiB/s; slowest follower 1,500 rows behind"
    )


@pytest.mark.parametrize(("pending", "is_so"), [(0, True), (4, False)])
def test_a_log_says_whether_the_mirror_is_up_to_date_whatever_stands_beside_it(pending: int, is_so: bool) -> None:
    other = status_line(replace(status(), mirror_pending=4 - pending), BUSY)
    lines = [other, status_line(replace(status(), mirror_pending=pending), BUSY), *event_lines(BUSY, -1)[0]]
    assert says_up_to_date("\n".join(lines)) is is_so


def test_an_empty_log_does_not_say_that_the_mirror_is_up_to_date() -> None:
    assert not says_up_to_date("")


def test_a_broker_that_is_guarded_and_not_registered_is_shown() -> None:
    metadata = status().metadata
    assert metadata is not None
    gone = replace(status(), metadata=replace(metadata, brokers={}), guardians={1: guarding(1)})
    assert any("not registered" in line and "4000001" in line for line in drawn(gone))


def test_without_a_controller_there_are_no_tables() -> None:
    waiting = replace(status(), metadata=None, controller_epoch=None, problems=("another driver commands",))
    assert drawn(waiting, Traffic()) == [
        "not healthy",
        "  another driver commands",
        "  mirror up to date",
        "in: not known yet",
        "",
        "no events yet",
    ]


def test_what_comes_in_is_told_by_partition_too_as_far_as_it_is_known() -> None:
    lines = drawn(status())
    assert lines[1] == "in: 1,234 rows/s, 24 KiB/s; slowest follower 1,500 rows behind"
    by_partition = {line.split()[0]: line.split("1, 2, 3")[-1].split() for line in lines if line.startswith("orders-")}
    assert by_partition == {
        "orders-of-a-long-name-0": ["–", "–"],
        "orders-of-a-long-name-1": ["1.5", "KiB/s", "1,500"],
        "orders-of-a-long-name-2": ["–", "–"],
    }
    assert shown_partitions(status())[1] == TopicPartition("orders-of-a-long-name", 1)
    assert shown_partitions(replace(status(), metadata=None)) == []


def test_what_one_thing_set_off_is_one_line() -> None:
    assert [str(each) for each in happenings(FAILOVER)] == [
        "00:00:01 request, because create topic orders: asked by admin (cause 3.1)",
        "00:01:01 gone broker 3; elected orders-0 led by 1 and 2 more, because broker 3 gone (cause 3.9)",
    ]
    unknown = (ToldEvent(number=1, at_ms=0, kind="isr", topic="a", partition=0), ToldEvent(number=2, at_ms=0, kind="x"))
    assert [str(each) for each in happenings(unknown)] == ["00:00:00 isr a-0", "00:00:00 x"]


def test_the_newest_of_what_happened_comes_first() -> None:
    lines = drawn(status())
    at = next(number for number, line in enumerate(lines) if line.startswith("at (UTC)"))
    assert [line.split()[0] for line in lines[at : at + 3]] == ["at", "00:01:01", "00:00:01"]
    assert lines[at + 1].endswith("broker 3 gone                        3.9")
    many = happened(*(ToldEvent(number=each, at_ms=0, kind=f"kind{each}") for each in range(HAPPENINGS_SHOWN + 1)))
    lines = drawn(status(), Traffic(events=many))
    assert not any("kind0" in line for line in lines)
    assert sum("kind" in line for line in lines) == HAPPENINGS_SHOWN
    failed = drawn(status(), Traffic(events=happened(error="the table cannot be read")))
    assert "no events: the table cannot be read" in failed


def test_a_log_has_each_event_once() -> None:
    lines, told = event_lines(BUSY, -1)
    assert [line.partition(" | ")[0] for line in lines] == ["event", "event"]
    assert "broker 3 gone" in lines[1]
    assert (event_lines(BUSY, told), told) == (([], 5), 5)
    later = ToldEvent(number=9, at_ms=63_000, kind="isr", topic="orders", partition=0, cause="3.9")
    assert event_lines(Traffic(events=happened(*FAILOVER, later)), told) == (
        ["event | 00:01:03 isr orders-0 (cause 3.9)"],
        9,
    )
    many = happened(*(ToldEvent(number=each, at_ms=0, kind="isr") for each in range(HAPPENINGS_LOGGED + 3)))
    lines, told = event_lines(Traffic(events=many), -1)
    assert (len(lines), told) == (HAPPENINGS_LOGGED + 1, HAPPENINGS_LOGGED + 2)
    assert lines[0] == "event | 3 before these: spark-replication mirror events lists all"


@pytest.mark.parametrize("width", [80, 120])
def test_on_a_terminal_every_line_fits_and_all_of_it_a_screen(width: int) -> None:
    found = status()
    assert found.metadata is not None
    small = replace(
        found,
        metadata=replace(found.metadata, brokers={each: registration(each) for each in (1, 2, 3)}),
        guardians={each: replace(guarding(each), adopted=False) for each in (1, 2, 3)},
    )
    lines = drawn(small, BUSY, width)
    assert max(map(len, lines)) <= width
    assert len(lines) <= 24
    assert not any("…" in line for line in lines), "nothing is cut"


def test_whatever_data_says_is_shown_and_steers_nothing() -> None:
    evil = "[bold]a[/]\x1b]0;owned\x07"
    found = status()
    assert found.metadata is not None
    registered = {1: replace(registration(1), host=evil)}
    topics = tuple(
        replace(topic, partitions=tuple(replace(each, topic=evil) for each in topic.partitions))
        for topic in found.metadata.topics
    )
    hostile = replace(
        found,
        problems=(f"{evil} has no leader",),
        metadata=replace(found.metadata, brokers=registered, topics=topics),
    )
    told = happened(ToldEvent(number=1, at_ms=0, kind=evil, topic=evil, partition=0, because=evil, cause=evil))
    traffic = Traffic(events=told)
    shown = "\n".join(drawn(hostile, traffic))
    line = "\n".join([status_line(hostile, traffic), *event_lines(traffic, -1)[0]])
    for text in (shown, line):
        assert "\x1b" not in text
        assert "\x07" not in text
        assert "[bold]a[/]\\x1b]0;owned\\x07" in text

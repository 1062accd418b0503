"""Events are asked for by what they are about, and told as values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spark_replication.core.controller.origin import Origin
from spark_replication.messages.mirroring import DescribeEvents, ToldEvent
from spark_replication.mirror.asking.told_events import read_told
from spark_replication.mirror.delta.delta_file import DeltaFile
from spark_replication.mirror.tables.events import EVENTS, EventRow
from spark_replication.model import TopicPartition


def row(number: int, cause: str = "1.1", **subject: Any) -> EventRow:
    origin = Origin(cause, "brokers", f"because of {cause}")
    return EventRow(
        cluster_id="c",
        number=number,
        kind="elected",
        subject=subject,
        was='{"leader": 1}' if "partition" in subject else None,
        became='{"leader": 2}',
        origin=origin,
        zxid=number,
        at_ms=1_700_000_000_123 + number,
        told_ms=0,
    )


@pytest.fixture
def path(tmp_path: Path) -> str:
    rows = [
        row(1, topic="orders", partition=0),
        row(2, topic="orders", partition=1),
        row(3, "1.2", broker=2),
        row(4, topic="o'hara"),
        row(5, "1.2", topic="orders", partition=0),
    ]
    file = DeltaFile(EVENTS, EVENTS.path(str(tmp_path)), "c")
    file.append(lambda _opened, last: (EVENTS.rows(rows, []), last + len(rows)))
    return str(tmp_path)


@pytest.mark.parametrize(
    ("asked", "numbers"),
    [
        (DescribeEvents(), [1, 2, 3, 4, 5]),
        (DescribeEvents(last=2), [4, 5]),
        (DescribeEvents(topics=("orders",)), [1, 2, 5]),
        (DescribeEvents(topics=("orders",), last=1), [5]),
        (DescribeEvents(topics=("o'hara",)), [4]),
        (DescribeEvents(partitions=(TopicPartition("orders", 0),)), [1, 5]),
        (DescribeEvents(partitions=(TopicPartition("orders", 1),), brokers=(2,)), [2, 3]),
        (DescribeEvents(cause="1.2"), [3, 5]),
        (DescribeEvents(cause="1.2", brokers=(2,)), [3]),
        (DescribeEvents(topics=("none",)), []),
    ],
)
def test_those_that_are_about_it_the_oldest_first(path: str, asked: DescribeEvents, numbers: list[int]) -> None:
    assert [event.number for event in read_told(path, asked)] == numbers


def test_an_event_is_told_whole(path: str) -> None:
    (told,) = read_told(path, DescribeEvents(topics=("orders",), cause="1.2"))
    assert told == ToldEvent(
        number=5,
        at_ms=1_700_000_000_128,
        kind="elected",
        topic="orders",
        partition=0,
        was={"leader": 1},
        became={"leader": 2},
        because="because of 1.2",
        cause="1.2",
    )
    assert (told.subject, told.changes) == ("orders-0", ["leader 1 → 2"])


def test_by_what_name_an_event_is_known() -> None:
    event = ToldEvent(number=1, at_ms=1, kind="x", became={"leader": 2, "isr": [], "gone": None})
    assert (event.subject, event.changes) == (None, ["leader 2"])
    assert ToldEvent(number=1, at_ms=1, kind="x", topic="orders").subject == "orders"
    assert ToldEvent(number=1, at_ms=1, kind="x", broker=3).subject == "broker 3"

"""What a verdict is made of: the description of a cluster, and events as far as they tell of what it describes."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from spark_replication.client.asking.health import Health, health_of
from spark_replication.messages.descriptions import Metadata
from spark_replication.messages.mirroring import DescribeEvents, ToldEvent, partition_face
from tests.unit.page.page_cluster import WITHOUT_3


def told(metadata: Metadata, number: int, at_ms: int) -> ToldEvent:
    """Of foo-0 or foo-1, that it became what it is there."""
    foo = next(topic for topic in metadata.topics if topic.name == "foo")
    became = partition_face(foo.partitions[number])
    because = f"at {at_ms}"
    return ToldEvent(
        number=at_ms, at_ms=at_ms, kind="isr", topic="foo", partition=number, became=became, because=because
    )


def because(found: Health) -> dict[str, str]:
    return {reason.subjects[0]: reason.because for reason in found.reasons}


def test_what_the_newest_event_tells_of_the_present_state_is_why() -> None:
    asked: list[DescribeEvents] = []

    def events(wanted: DescribeEvents) -> Sequence[ToldEvent]:
        asked.append(wanted)
        return [told(WITHOUT_3, 0, 1)]

    assert because(health_of(WITHOUT_3, events)) == {"broker 3": "", "foo-0": "at 1"}
    assert [(wanted.brokers, [*map(str, wanted.partitions)]) for wanted in asked] == [((3,), ["foo-0"])]


def test_while_the_mirror_cannot_be_written_nothing_is_why() -> None:
    """A broker that died twice left the same state behind, and the mirror knows of the first time alone."""
    behind = replace(WITHOUT_3, mirror_error="the disk is full")
    found = health_of(behind, lambda _wanted: [told(WITHOUT_3, 0, 1)])
    assert because(found) == {"broker 3": "", "foo-0": "", "the mirror's tables": ""}

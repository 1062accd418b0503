"""What a Spark query says of its positions, and when it says it again."""

from __future__ import annotations

import pytest

from spark_replication.engine.client.reporting import AGAIN_S, RETRY_S, PositionReporting
from spark_replication.errors import (
    GroupAuthorizationFailed,
    GroupNotEmpty,
    InvalidRequest,
    NotCoordinator,
    ReplicationError,
)
from spark_replication.messages.groups import Holding, ResetGroup, ResetPlace
from spark_replication.model import TopicPartition

START_S = 100.0


def place(partition: int, offset: int) -> ResetPlace:
    return ResetPlace(topic="a", partition=partition, topic_id="id", offset=offset, last_epoch=3)


def noted(reporting: PositionReporting, *offsets: int, dropped: tuple[int, ...] = ()) -> PositionReporting:
    """The offset of each partition, from 0 on."""
    places = {TopicPartition("a", number): place(number, offset) for number, offset in enumerate(offsets)}
    reporting.note(places, [TopicPartition("a", number) for number in dropped])
    return reporting


def report(*places: tuple[int, int], dropped: tuple[int, ...] = ()) -> ResetGroup:
    return ResetGroup(
        group="spark:q",
        places=tuple(place(*each) for each in places),
        dropped=tuple(Holding("a", number) for number in dropped),
    )


def begun() -> PositionReporting:
    """It has reported 5 and 7."""
    reporting = noted(PositionReporting("spark:q"), 5, 7, dropped=(4,))
    assert reporting.next_report(START_S) == report((0, 5), (1, 7), dropped=(4,))
    reporting.taken(report((0, 5), (1, 7)), START_S)
    return reporting


def test_without_positions_there_is_nothing_to_say() -> None:
    reporting = PositionReporting("spark:q")
    assert (reporting.next_report(START_S), reporting.wait_s(START_S), reporting.owes) == (None, None, False)


def test_what_has_changed_is_reported_also_backwards() -> None:
    reporting = begun()
    assert (reporting.next_report(START_S), reporting.owes) == (None, False)
    noted(reporting, 5, 2)
    assert (reporting.next_report(START_S), reporting.owes) == (report((1, 2)), True)


def test_while_a_report_is_under_way_the_newest_positions_wait() -> None:
    reporting = begun()
    sent = noted(reporting, 6, 7).next_report(START_S)
    noted(reporting, 7, 7)
    noted(reporting, 8, 7)
    assert sent is not None
    reporting.taken(sent, START_S)
    assert reporting.next_report(START_S) == report((0, 8))


def test_all_is_said_again_after_a_while() -> None:
    reporting = begun()
    assert reporting.wait_s(START_S + 1) == AGAIN_S - 1
    assert reporting.next_report(START_S + AGAIN_S - 0.1) is None
    again_s = START_S + AGAIN_S
    assert (reporting.wait_s(again_s), reporting.owes) == (0.0, False)
    assert reporting.next_report(again_s) == report((0, 5), (1, 7), dropped=(4,))
    reporting.taken(report((0, 5), (1, 7)), again_s)
    assert reporting.next_report(again_s) is None


def test_a_report_of_changes_is_none_of_all_however_long_it_takes() -> None:
    reporting = noted(begun(), 6, 7)
    sent = reporting.next_report(START_S + AGAIN_S - 0.1)
    assert sent == report((0, 6))
    reporting.taken(sent, START_S + AGAIN_S)
    assert reporting.next_report(START_S + AGAIN_S) == report((0, 6), (1, 7))


@pytest.mark.parametrize(
    ("error", "again_s", "owes"),
    [
        (NotCoordinator("moved"), RETRY_S, True),
        (GroupAuthorizationFailed("no"), AGAIN_S, False),
        (GroupNotEmpty("members"), AGAIN_S, False),
        (InvalidRequest("wrong"), None, False),
    ],
)
def test_a_refusal_is_told_once_and_tried_again_where_that_can_help(
    error: ReplicationError, again_s: float | None, owes: bool
) -> None:
    reporting = noted(begun(), 6, 7)
    assert reporting.next_report(START_S) == report((0, 6))
    assert reporting.refused(error, START_S)
    assert not reporting.refused(error, START_S)
    assert (reporting.owes, reporting.wait_s(START_S)) == (owes, again_s and max(again_s, AGAIN_S))
    if again_s is None:
        assert reporting.next_report(START_S + 10 * AGAIN_S) is None
        return
    assert reporting.next_report(START_S + again_s - 0.1) is None
    sent = reporting.next_report(START_S + again_s)
    assert sent is not None
    reporting.taken(sent, START_S + again_s)
    noted(reporting, 9, 7)
    assert reporting.owes
    assert reporting.refused(error, START_S), "it was well in between"

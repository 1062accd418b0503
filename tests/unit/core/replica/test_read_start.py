"""Where a read begins: what may be asked for, and which offset it is."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from spark_replication.core.replica.epochs import NO_EPOCH, EpochHistory
from spark_replication.core.replica.read_start import ReadPlace, asked_start, cut_below, start_of, time_in_ms
from spark_replication.core.replica.replica import LogView
from spark_replication.errors import InvalidRequest, UnknownLeaderEpoch
from spark_replication.model import TIME_MS_MAX, AtTime, Start

TEN = datetime(2026, 11, 21, 10, tzinfo=UTC)
TEN_MS = 1_795_255_200_000


@pytest.mark.parametrize(
    ("moment", "time_ms"),
    [
        (TEN, TEN_MS),
        (datetime(2026, 11, 21, 12, tzinfo=timezone(timedelta(hours=2))), TEN_MS),
        (TEN + timedelta(microseconds=1), TEN_MS + 1),  # nothing older than asked for
        (TEN + timedelta(microseconds=1_000), TEN_MS + 1),
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (0, 0),
        (TIME_MS_MAX, TIME_MS_MAX),
    ],
)
def test_a_time_is_milliseconds_since_1970(moment: datetime | int, time_ms: int) -> None:
    assert time_in_ms(moment) == time_ms


@pytest.mark.parametrize(
    ("moment", "why"),
    [
        (datetime(2026, 11, 21, 10), "2026-11-21T10:00:00 has no time zone"),
        (datetime(1969, 12, 31, tzinfo=UTC), "is no time between 1970"),
        (-1, "is no time between 1970"),
        (TIME_MS_MAX + 1, "is no time between 1970"),
    ],
)
def test_what_is_no_time_is_refused(moment: datetime | int, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        time_in_ms(moment)


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ((0, None, None), 0),
        ((3, None, 3), 3),
        (("earliest", None, None), "earliest"),
        (("latest", None, 7), "latest"),
        ((0, TEN, 7), AtTime(TEN_MS)),
        ((0, 0, None), AtTime(0)),
    ],
)
def test_what_may_be_asked_for(given: tuple[Any, Any, Any], asked: Start) -> None:
    assert asked_start(*given) == asked


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ((-1, None, None), "no range"),
        ((3, None, 2), "no range"),
        (("newest", None, None), 'start=\'newest\': it is an offset, "earliest" or "latest"'),
        ((1, TEN, None), "two places"),
        (("earliest", 0, None), "two places"),
    ],
)
def test_what_names_no_place_is_refused(given: tuple[Any, Any, Any], why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        asked_start(*given)


@pytest.mark.parametrize(
    ("start", "offset"),
    [("earliest", 4), ("latest", 9), (AtTime(5), 4), (AtTime(6), 7), (AtTime(7), 9), (AtTime(8), 9), (2, 2), (12, 12)],
)
def test_which_offset_it_is_in_a_log_that_may_be_seen_from_4_to_9(start: Start, offset: int) -> None:
    of_time = {5: 4, 6: 7, 7: 9, 8: 11}
    assert start_of(start, log_start=4, end=9, offset_of_time=of_time.__getitem__) == offset


#: Retention has left 10 to 40: of epoch 3 up to 20, of 5 up to 30, of 8 from there on. Epoch 9 has no records yet.
KEPT = LogView(10, 40, EpochHistory.of([(3, 10), (5, 20), (8, 30), (9, 40)]))


@pytest.mark.parametrize(
    ("offset", "last_epoch", "cut"),
    [
        (0, 7, None),  # there is no record before it
        (25, NO_EPOCH, None),
        (25, 5, None),
        (30, 5, None),
        (31, 8, None),
        (40, 8, None),
        (31, 5, 30),
        (99, 5, 30),
        (41, 8, 40),  # more than there is
        (40, 9, 40),  # the epoch has no record here
        (25, 4, 20),
        (25, 8, 25),  # of an earlier epoch here: they part below
        (10, 3, None),  # gone, and what follows is not older
        (10, 1, None),
        (5, 2, None),
        (10, 4, 10),  # what follows is older than what was read
        (11, 2, 10),
    ],
)
def test_a_place_is_on_a_log_or_above_where_the_two_part(offset: int, last_epoch: int, cut: int | None) -> None:
    assert cut_below(ReadPlace(offset, last_epoch), KEPT) == cut


def test_a_partition_that_was_added_again_has_nothing_of_the_one_before() -> None:
    for log_end in (0, 50):
        assert cut_below(ReadPlace(30, 5), LogView(0, log_end, EpochHistory.of([(7, 0)]))) == 0


def test_of_an_epoch_that_is_not_known_here_another_replica_knows_more() -> None:
    with pytest.raises(UnknownLeaderEpoch):
        cut_below(ReadPlace(25, 10), KEPT)

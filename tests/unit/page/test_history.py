"""What charts are drawn from: of the last minutes, bounded, and honest where nothing was noted."""

from __future__ import annotations

from collections import deque

import pytest

from spark_replication.model import TopicPartition
from spark_replication.page import history
from spark_replication.page.history import GAP_MS, ROUND_MS, ROUNDS_MAX, History, Measure, Totals, rates

FOO, FOO_1, BAR = TopicPartition("foo", 0), TopicPartition("foo", 1), TopicPartition("bar", 0)


@pytest.mark.parametrize(
    ("at_ms", "values", "expected"),
    [
        ([], [], []),
        ([0], [5], [None]),
        ([0, 2_000], [5, 25], [None, 10.0]),
        ([0, 2_000], [25, 5], [None, None]),
        ([0, 2_000, 4_000], [5, None, 9], [None, None, None]),
        ([0, GAP_MS], [0, GAP_MS], [None, 1_000.0]),
        ([0, GAP_MS + 1], [0, 5], [None, None]),
        ([2_000, 1_000], [0, 5], [None, None]),
    ],
)
def test_a_rate_is_what_grew_between_two_rounds_that_are_not_far_apart(
    at_ms: list[int], values: list[int | None], expected: list[float | None]
) -> None:
    assert rates(at_ms, values) == expected


def test_a_round_is_due_after_its_time_or_once_the_clock_was_set_back() -> None:
    found = History()
    assert found.is_due(7)
    found.note(10_000, {}, {})
    assert [found.is_due(at_ms) for at_ms in (10_000, 9_999 + ROUND_MS, 10_000 + ROUND_MS, 9_000)] == [
        False,
        False,
        True,
        True,
    ]


def test_topics_sum_their_partitions_and_a_partition_that_is_new_has_no_rate() -> None:
    found = History()
    assert (found.totals, found.newest_ms) == ({}, None)
    found.note(0, {FOO: Measure(100, end=10), BAR: Measure(1)}, {1: 101})
    assert found.totals == {"foo": Totals(100, None, None, None), "bar": Totals(1, None, None, None)}
    found.note(5_000, {FOO: Measure(200, end=20, lag=3), FOO_1: Measure(50, end=7, lag=9)}, {1: 250})
    assert found.totals == {"foo": Totals(250, 20.0, 2.0, 9)}
    series = found.of_topic("foo")
    assert (series.at_ms, series.bytes, series.bytes_per_s) == ([0, 5_000], [100, 250], [None, 20.0])
    assert (series.records_per_s, series.lag) == ([None, 2.0], [None, 9])
    one = found.of_partition(FOO)
    assert (one.bytes, one.bytes_per_s, one.records_per_s, one.lag) == (
        [100, 200],
        [None, 20.0],
        [None, 2.0],
        [None, 3],
    )
    assert (found.of_partition(BAR).at_ms, found.bytes_per_s(FOO), found.bytes_per_s(FOO_1)) == ([0], 20.0, None)
    assert found.bytes_per_s(TopicPartition("none", 0)) is None
    broker = found.of_broker(1)
    assert (broker.bytes, broker.bytes_per_s, broker.lag) == ([101, 250], [None, 29.8], [None, None])
    assert found.of_broker(2).at_ms == []


def test_who_was_away_has_a_gap_and_no_rate_over_it() -> None:
    found = History()
    for round_, measures in enumerate(({FOO: Measure(5)}, {}, {FOO: Measure(9)}, {FOO: Measure(14)})):
        found.note(round_ * ROUND_MS, measures, {1: 5} if measures else {})
    for series in (found.of_partition(FOO), found.of_topic("foo")):
        assert (series.at_ms, series.bytes) == ([0, 2 * ROUND_MS, 3 * ROUND_MS], [5, 9, 14])
    assert found.of_topic("foo").bytes_per_s == [None, None, 1.0]
    assert found.of_broker(1).at_ms == [0, 2 * ROUND_MS, 3 * ROUND_MS]


def test_it_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "PARTITIONS_MAX", 1)
    found = History()
    for round_ in range(ROUNDS_MAX + 5):
        found.note(round_ * ROUND_MS, {FOO: Measure(round_), BAR: Measure(7)}, {})
    assert len(found.of_partition(BAR).at_ms) == ROUNDS_MAX
    assert found.of_partition(FOO).at_ms == []
    assert found.of_topic("foo").at_ms == []
    assert found.totals == {"bar": Totals(7, 0.0, None, None)}


def test_it_is_bounded_by_brokers_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "BROKERS_MAX", 2)
    found = History()
    found.note(0, {}, {3: 30, 1: 10, 2: 20})
    assert [found.of_broker(broker).bytes for broker in (1, 2, 3)] == [[10], [20], []]


def test_topics_that_come_and_go_take_no_more_memory_than_those_of_the_kept_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each round has another partition: a place is free once no kept round knows who had it."""
    monkeypatch.setattr(history, "ROUNDS_MAX", 3)
    found = History()
    found._rounds = deque(maxlen=3)
    for round_ in range(20):
        name = TopicPartition(f"topic-{round_}", 0)
        found.note(round_ * ROUND_MS, {name: Measure(round_, end=round_, lag=round_)}, {round_: round_})
        known = {each: found.of_topic(f"topic-{each}").bytes for each in range(20)}
        assert {each: told for each, told in known.items() if told} == {
            each: [each] for each in range(max(0, round_ - 2), round_ + 1)
        }
        assert max(len(numbers) for each in found._rounds for numbers in (each.bytes, each.lags, each.brokers)) <= 3
    assert (len(found._partitions.of), len(found._brokers.of)) == (3, 3)


def test_who_finds_no_place_is_noted_once_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "PARTITIONS_MAX", 1)
    monkeypatch.setattr(history, "ROUNDS_MAX", 2)
    found = History()
    found._rounds = deque(maxlen=2)
    for round_, partition in enumerate((BAR, FOO, FOO, FOO)):
        found.note(round_ * ROUND_MS, {partition: Measure(round_)}, {})
    assert (found.of_partition(BAR).bytes, found.of_partition(FOO).bytes) == ([], [2, 3])

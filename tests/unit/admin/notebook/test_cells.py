"""Where partitions have their cells."""

from __future__ import annotations

import pytest

from spark_replication.admin.notebook import cells
from spark_replication.admin.notebook.cells import NAMED_TOPICS_MAX, READABLE_PX, grid_of
from spark_replication.client.asking.descriptions import TopicDescription
from spark_replication.view.conditions import WORDS
from tests.unit.admin.notebook.described import least_cpu_s, partition, topic

WELL_UNDER_A_SECOND_S = 0.5


def of(count: int, name: str = "orders") -> TopicDescription:
    return topic(*map(partition, range(count)), name=name)


def test_each_topic_begins_a_row() -> None:
    found = grid_of([of(26, "a"), of(2, "b")])
    assert (found.columns, found.rows, found.topics) == (25, 3, {0: "a", 2: "b"})
    places = [(each.row, each.column) for each in found.cells]
    assert places == [*((0, column) for column in range(25)), (1, 0), (2, 0), (2, 1)]
    assert (found.partitions, found.counts) == (28, {**dict.fromkeys(WORDS, 0), "in_sync": 28})


def test_a_row_that_is_full_as_a_topic_begins_is_left_once() -> None:
    found = grid_of([of(25, "a"), of(1, "b")])
    assert (found.rows, found.topics) == (2, {0: "a", 1: "b"})


def test_too_many_topics_follow_each_other_without_a_name() -> None:
    found = grid_of([of(1, f"t{number}") for number in range(NAMED_TOPICS_MAX + 1)])
    assert (found.rows, found.topics) == (2, {})
    assert len(grid_of([of(1, f"t{number}") for number in range(NAMED_TOPICS_MAX)]).topics) == NAMED_TOPICS_MAX


@pytest.mark.parametrize(("count", "columns", "readable"), [(0, 25, True), (250, 25, True), (251, 50, False)])
def test_cells_shrink_with_their_number(count: int, columns: int, readable: bool) -> None:
    found = grid_of([of(count)])
    assert (found.columns, found.cell_px >= READABLE_PX) == (columns, readable)


def test_the_worst_are_shown_of_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "CELLS_MAX", 2)
    found = grid_of([topic(partition(0), partition(1, leader=None, isr=()), partition(2), partition(3, isr=(1,)))])
    assert [(each.partition.partition, each.condition) for each in found.cells] == [
        (1, "leaderless"),
        (3, "under_replicated"),
    ]
    conditions = {"leaderless": 1, "under_min_isr": 1, "under_replicated": 2, "moving": 0, "in_sync": 2}
    assert (found.partitions, found.counts) == (4, conditions)


@pytest.mark.slow
def test_ten_thousand_take_well_under_a_second() -> None:
    told = [of(5_000, "a"), of(5_000, "b")]
    found = grid_of(told)
    assert least_cpu_s(lambda: grid_of(told)) < WELL_UNDER_A_SECOND_S
    assert (len(found.cells), found.columns, found.rows) == (10_000, 100, 100)

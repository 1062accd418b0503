"""F1: where leader epochs begin and end, and so where two logs part."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_replication.core.replica.epochs import NO_EPOCH, EpochEnd, EpochHistory

HISTORY = EpochHistory.of([(2, 10), (5, 20), (6, 30)])
EMPTY = EpochHistory()


@pytest.mark.parametrize("pairs", [[(3, 0), (2, 5)], [(3, 0), (3, 5)], [(3, 5), (4, 5)], [(3, 5), (4, 4)]])
def test_epochs_and_starts_rise_together_or_the_file_is_wrong(pairs: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="epoch"):
        EpochHistory.of(pairs)


@pytest.mark.parametrize(
    ("before", "epoch", "start", "after"),
    [
        (EMPTY, 0, 0, [(0, 0)]),
        (HISTORY, 7, 40, [(2, 10), (5, 20), (6, 30), (7, 40)]),
        (HISTORY, 6, 40, [(2, 10), (5, 20), (6, 30)]),  # it goes on
        (HISTORY, 7, 30, [(2, 10), (5, 20), (7, 30)]),  # 6 had no record
        (EpochHistory.of([(1, 0)]), 4, 0, [(4, 0)]),
    ],
)
def test_an_epoch_begins(before: EpochHistory, epoch: int, start: int, after: list[tuple[int, int]]) -> None:
    assert before.begun(epoch, start) == EpochHistory.of(after)


def test_an_epoch_that_is_over_does_not_begin_again() -> None:
    with pytest.raises(ValueError, match="epoch 5 cannot follow epoch 6"):
        HISTORY.begun(5, 40)


@pytest.mark.parametrize(
    ("end", "after"), [(31, [(2, 10), (5, 20), (6, 30)]), (30, [(2, 10), (5, 20)]), (11, [(2, 10)]), (10, []), (0, [])]
)
def test_an_epoch_that_starts_where_the_log_is_cut_never_was(end: int, after: list[tuple[int, int]]) -> None:
    assert HISTORY.truncated(end) == EpochHistory.of(after)


@pytest.mark.parametrize(
    ("log_start", "after"),
    [
        (5, [(2, 10), (5, 20), (6, 30)]),
        (10, [(2, 10), (5, 20), (6, 30)]),
        (15, [(2, 15), (5, 20), (6, 30)]),
        (20, [(5, 20), (6, 30)]),
        (99, [(6, 99)]),
    ],
)
def test_the_epoch_of_the_first_record_left_starts_there(log_start: int, after: list[tuple[int, int]]) -> None:
    assert HISTORY.trimmed(log_start) == EpochHistory.of(after)


@pytest.mark.parametrize(("offset", "epoch"), [(9, NO_EPOCH), (10, 2), (19, 2), (20, 5), (30, 6), (99, 6)])
def test_a_record_is_of_the_last_epoch_that_starts_at_or_before_it(offset: int, epoch: int) -> None:
    assert HISTORY.epoch_at(offset) == epoch


@pytest.mark.parametrize(
    ("epoch", "end"),
    [
        (NO_EPOCH, EpochEnd(NO_EPOCH, 8)),  # below the first known: the log's start
        (1, EpochEnd(1, 8)),
        (2, EpochEnd(2, 20)),
        (3, EpochEnd(2, 20)),  # not known here: the largest that is not above it
        (5, EpochEnd(5, 30)),
        (6, EpochEnd(6, 44)),
        (7, None),
    ],
)
def test_an_epoch_ends_where_the_next_begins(epoch: int, end: EpochEnd | None) -> None:
    assert HISTORY.end_of(epoch, log_start=8, log_end=44) == end


def test_of_an_empty_log_every_epoch_is_unknown_but_none_at_all() -> None:
    assert EMPTY.last_epoch == NO_EPOCH
    assert EMPTY.end_of(0, log_start=0, log_end=0) is None
    assert EMPTY.end_of(NO_EPOCH, log_start=0, log_end=0) == EpochEnd(NO_EPOCH, 0)


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3)), max_size=8),
    st.integers(0, 12),
    st.integers(0, 12),
)
@example([(1, 0), (1, 0), (1, 2)], 0, 1)
def test_begun_truncated_and_trimmed_keep_the_history_whole(steps: list[tuple[int, int]], start: int, end: int) -> None:
    epoch, log_end, history = 0, 0, EpochHistory()
    for raised, records in steps:
        epoch, history = epoch + raised, history.begun(epoch + raised, log_end)
        log_end += records
    for each in (history, history.truncated(end), history.trimmed(start)):
        assert each == EpochHistory.of([(entry.epoch, entry.start) for entry in each])  # its own check holds
    for offset in range(min(end, log_end)):
        assert history.truncated(end).epoch_at(offset) == history.epoch_at(offset)
    for offset in range(start, log_end):
        assert history.trimmed(start).epoch_at(offset) == history.epoch_at(offset)

"""TB5: what becomes of a log whose partition is to start at an offset."""

from __future__ import annotations

import pytest

from spark_replication.core.replica.epochs import EpochHistory
from spark_replication.core.replica.replica import LogView
from spark_replication.core.replica.start_at import LogChange, change_to_start_at

BATCHES = (10, 13, 18)  # where they begin: the log is [10, 20)


def batch_start(offset: int) -> int:
    assert 10 <= offset < 20, f"{offset} is not in the log"
    return max(base for base in BATCHES if base <= offset)


@pytest.mark.parametrize(
    ("start_at", "change"),
    [
        (0, "none"),
        (9, "none"),
        (10, "none"),
        (11, "begin anew"),
        (12, "begin anew"),
        (13, "drop below"),
        (14, "begin anew"),
        (18, "drop below"),
        (19, "begin anew"),
        (20, "drop below"),
        (21, "begin anew"),
    ],
)
def test_a_log_keeps_what_begins_with_a_batch_at_its_new_start(start_at: int, change: LogChange) -> None:
    assert change_to_start_at(start_at, LogView(10, 20, EpochHistory.of([(3, 10)])), batch_start) == change


@pytest.mark.parametrize(
    ("log_start", "start_at", "change"),
    [(0, 0, "none"), (0, 1, "begin anew"), (7, 6, "none"), (7, 7, "none"), (7, 8, "begin anew")],
)
def test_an_empty_log_begins_anew_above_its_end(log_start: int, start_at: int, change: LogChange) -> None:
    assert change_to_start_at(start_at, LogView(log_start, log_start, EpochHistory()), batch_start) == change

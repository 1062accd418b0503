"""What may be committed on a version of a table, and what versions it makes: tables."""

from __future__ import annotations

import pytest

from spark_replication.core.tables.table import (
    RowRange,
    TableVersion,
    continues,
    extended,
    is_table,
    is_unchanged,
    require_continued,
    require_sealed,
    sealed,
)
from spark_replication.model import Scalar

BEFORE = TableVersion(number=4, ends={0: 10, 1: 3}, epochs={0: 5, 1: 2, 2: 7}, starts={0: 6})


@pytest.mark.parametrize(
    ("topic", "own", "by_default", "expected"),
    [
        ("orders", {}, False, False),
        ("orders", {}, True, True),
        ("orders", {"table": True}, False, True),
        ("orders", {"table": False}, True, False),
        ("__groups", {}, True, False),
        ("__groups", {"table": True}, True, False),
    ],
)
def test_which_topics_are_tables(topic: str, own: dict[str, Scalar], *, by_default: bool, expected: bool) -> None:
    assert is_table(topic, own, by_default=by_default) is expected


def rows(partition: int = 0, start: int = 10, end: int = 12, epoch: int = 5, confirmed: int = 5) -> RowRange:
    return RowRange(partition=partition, start=start, end=end, last_epoch=epoch, confirmed_epoch=confirmed)


@pytest.mark.parametrize(
    ("added", "may"),
    [
        pytest.param(rows(), True, id="from the end on, at the same epoch"),
        pytest.param(rows(confirmed=6), True, id="a later leader has confirmed it"),
        pytest.param(rows(epoch=4, confirmed=4), False, id="a later epoch was named"),
        pytest.param(rows(start=9), False, id="below the end"),
        pytest.param(rows(start=11), False, id="behind the end"),
        pytest.param(rows(3, 77, 78, 0, 0), True, id="a partition without rows may begin anywhere"),
        pytest.param(rows(2, 77, 78, 6, 6), False, id="sealed before it had rows"),
        pytest.param(rows(2, 77, 78, 6, 7), True, id="rows of before the seal, confirmed by its leader"),
    ],
)
def test_which_rows_continue_a_version(added: RowRange, *, may: bool) -> None:
    assert continues(BEFORE, added) is may
    if may:
        require_continued(BEFORE, [added])
    else:
        with pytest.raises(ValueError, match="is no continuation"):
            require_continued(BEFORE, [added])


@pytest.mark.parametrize(
    ("start", "end", "epoch", "confirmed"), [(3, 3, 0, 0), (3, 2, 0, 0), (3, 4, 1, 0)], ids=["none", "back", "epoch"]
)
def test_what_is_no_range(start: int, end: int, epoch: int, confirmed: int) -> None:
    with pytest.raises(ValueError, match=r"has no rows|cannot confirm"):
        rows(0, start, end, epoch, confirmed)


@pytest.mark.parametrize(
    ("epochs", "may"), [({0: 6}, True), ({9: 0}, True), ({0: 5}, False), ({0: 6, 2: 7}, False), ({}, False)]
)
def test_which_epochs_seal(epochs: dict[int, int], *, may: bool) -> None:
    if may:
        require_sealed(BEFORE, epochs)
    else:
        with pytest.raises(ValueError, match=r"is not above|a seal names"):
            require_sealed(BEFORE, epochs)


@pytest.mark.parametrize(
    ("now", "of_0", "of_2"),
    [
        pytest.param(BEFORE, True, True, id="the same"),
        pytest.param(extended(BEFORE, 5, [rows(1, 3, 4)]), True, True, id="a commit of another"),
        pytest.param(extended(BEFORE, 5, [rows()]), False, True, id="a commit"),
        pytest.param(sealed(BEFORE, 5, {2: 8}), True, False, id="a seal"),
        pytest.param(TableVersion(), False, False, id="the table is gone"),
    ],
)
def test_which_partitions_are_unchanged(now: TableVersion, *, of_0: bool, of_2: bool) -> None:
    assert is_unchanged(BEFORE, now, [0]) is of_0
    assert is_unchanged(BEFORE, now, [2]) is of_2
    assert is_unchanged(BEFORE, now, [0, 2]) is (of_0 and of_2)
    assert is_unchanged(BEFORE, now, [])


def test_a_commit_moves_its_partitions_alone() -> None:
    after = extended(BEFORE, 5, [rows(end=12, confirmed=6), rows(3, 0, 1, 0, 0)])
    assert after == TableVersion(
        number=5, ends={0: 12, 1: 3, 3: 1}, epochs={0: 6, 1: 2, 2: 7, 3: 0}, starts={0: 6, 3: 0}
    )


def test_a_seal_moves_no_end() -> None:
    after = sealed(BEFORE, 5, {0: 6, 3: 0})
    epochs = {0: 6, 1: 2, 2: 7, 3: 0}
    assert after == TableVersion(number=5, ends=BEFORE.ends, epochs=epochs, starts=BEFORE.starts)

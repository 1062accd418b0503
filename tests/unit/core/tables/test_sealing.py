"""When an election waits for a table, and where the log goes on after it (TB5)."""

from __future__ import annotations

import pytest

from spark_replication.core.tables.sealing import (
    NO_TABLE,
    Seal,
    Sealing,
    TableEnd,
    ends_told,
    is_due,
    named_anew,
)
from spark_replication.core.tables.table import TableVersion

EPOCH = 7
ASKED = Seal(epoch=EPOCH, asked_ms=100)
SEALED = Seal(epoch=EPOCH, asked_ms=100, told=TableEnd(epoch=EPOCH, end=12))
AHEAD = Seal(epoch=EPOCH, asked_ms=100, told=TableEnd(epoch=9, end=12))
VERSION = TableVersion(number=3, ends={0: 12, 2: 5}, epochs={0: 6, 1: 7, 2: 9})


def with_table(known: Seal | None) -> Sealing:
    return Sealing(has_table=True, known=known)


@pytest.mark.parametrize(
    ("sealing", "epoch", "is_needed"),
    [
        (NO_TABLE, EPOCH, False),
        (Sealing(has_table=False, known=ASKED), EPOCH, False),
        (with_table(None), EPOCH, True),
        (with_table(ASKED), EPOCH, True),
        (with_table(SEALED), EPOCH, False),
        (with_table(SEALED), EPOCH + 1, True),  # it was sealed for another election
        (with_table(SEALED), EPOCH - 1, True),
        (with_table(AHEAD), EPOCH, True),
    ],
)
def test_a_table_must_be_sealed_at_the_very_epoch(sealing: Sealing, epoch: int, is_needed: bool) -> None:
    assert sealing.is_needed(epoch) == is_needed


@pytest.mark.parametrize(("sealing", "start_at"), [(NO_TABLE, 0), (with_table(SEALED), 12)])
def test_the_log_goes_on_where_the_table_ends(sealing: Sealing, start_at: int) -> None:
    assert sealing.start_at(EPOCH) == start_at


def test_nobody_leads_before_the_table_is_sealed() -> None:
    with pytest.raises(AssertionError, match="nobody has sealed"):
        with_table(ASKED).start_at(EPOCH)


@pytest.mark.parametrize(
    ("known", "is_restored", "epoch"),
    [(None, True, 0), (ASKED, True, 7), (SEALED, True, 7), (AHEAD, True, 10), (AHEAD, False, 0), (None, False, 0)],
)
def test_a_partition_that_goes_on_with_a_table_begins_above_its_epochs(
    known: Seal | None, is_restored: bool, epoch: int
) -> None:
    assert Sealing(has_table=True, known=known, is_restored=is_restored).first_epoch == epoch


@pytest.mark.parametrize(("known", "ahead"), [(None, None), (ASKED, None), (SEALED, None), (AHEAD, 9)])
def test_a_later_epoch_in_the_table_is_told(known: Seal | None, ahead: int | None) -> None:
    assert with_table(known).ahead == ahead


@pytest.mark.parametrize(
    ("seal", "now_ms", "due"),
    [
        (None, 100, True),
        (Seal(epoch=EPOCH - 1, asked_ms=100), 100, True),
        (ASKED, 149, False),
        (ASKED, 150, True),
        (SEALED, 1_000, False),
    ],
)
def test_it_is_asked_again_while_nobody_has_answered(seal: Seal | None, now_ms: int, due: bool) -> None:
    assert is_due(seal, EPOCH, now_ms, 50) == due


def test_only_epochs_above_those_of_the_table_are_named() -> None:
    assert named_anew(VERSION, {0: 7, 1: 7, 2: 7, 3: 7}) == {0: 7, 3: 7}


def test_what_it_says_of_each_is_told_back() -> None:
    assert ends_told(VERSION, {0: 7, 1: 7, 3: 7}) == {
        0: TableEnd(epoch=6, end=12),
        1: TableEnd(epoch=7, end=0),
        3: TableEnd(epoch=0, end=0),
    }

"""Idempotent producers: a batch sent again is known by its sequence."""

from __future__ import annotations

import pytest

from spark_replication.core.producers import REMEMBERED, Place, Producers
from spark_replication.errors import InvalidProducerEpoch, OutOfOrderSequence, ReplicationError


def place(sequence: int) -> Place:
    """Batches of 10 records, one after the other."""
    return Place(sequence * 10, sequence * 10 + 9)


def wrote(count: int, *, epoch: int = 0) -> Producers:
    producers = Producers()
    for sequence in range(count):
        producers.wrote(7, epoch, sequence, place(sequence))
    return producers


@pytest.mark.parametrize(
    ("producer", "epoch", "sequence", "found"),
    [
        (8, 0, 0, None),  # nobody knows it: it starts at 0
        (7, 2, 0, None),  # so does a new epoch
        (7, 1, 3, None),
        (7, 1, 2, place(2)),
        (7, 1, 0, place(0)),
    ],
)
def test_a_batch_is_the_next_or_has_its_place(producer: int, epoch: int, sequence: int, found: Place | None) -> None:
    assert wrote(3, epoch=1).check(producer, epoch, sequence) == found


@pytest.mark.parametrize(
    ("producer", "epoch", "sequence", "error", "text"),
    [
        (8, 0, 1, OutOfOrderSequence, "starts at 0, not 1"),
        (7, 2, 3, OutOfOrderSequence, "new at epoch 2"),
        (7, 0, 3, InvalidProducerEpoch, "epoch 0 is fenced by 1"),
        (7, 1, 4, OutOfOrderSequence, "sent batch 4 after 2"),
        (7, 1, -1, OutOfOrderSequence, "sent batch -1 after 2"),
    ],
)
def test_any_other_batch_is_refused(
    producer: int, epoch: int, sequence: int, error: type[ReplicationError], text: str
) -> None:
    with pytest.raises(error, match=text):
        wrote(3, epoch=1).check(producer, epoch, sequence)


def test_a_new_epoch_forgets_the_places_of_the_old_one() -> None:
    producers = wrote(3)
    producers.wrote(7, 1, 0, place(3))
    assert producers.check(7, 1, 0) == place(3)
    with pytest.raises(InvalidProducerEpoch):
        producers.check(7, 0, 2)


def test_only_so_many_batches_are_remembered_and_older_ones_are_refused_as_lost() -> None:
    producers = wrote(REMEMBERED)
    assert producers.check(7, 0, 0) == place(0)
    producers.wrote(7, 0, REMEMBERED, place(REMEMBERED))
    assert producers.check(7, 0, 1) == place(1)
    with pytest.raises(OutOfOrderSequence, match="is forgotten"):
        producers.check(7, 0, 0)


def test_what_was_cut_off_never_happened() -> None:
    producers = wrote(3)
    producers.truncated(25)  # within batch 2
    assert producers.check(7, 0, 1) == place(1)
    assert producers.check(7, 0, 2) is None
    producers.truncated(0)
    assert producers.check(7, 0, 0) is None


def test_who_wrote_only_what_retention_deleted_goes_on_where_it_says_it_is() -> None:
    producers = wrote(3)
    producers.trimmed(20)
    assert producers.check(7, 0, 1) == place(1), "it may be sent again, since its answer was lost"
    producers.trimmed(20)
    assert (producers.check(7, 0, 2), producers.check(7, 0, 3)) == (place(2), None)
    with pytest.raises(OutOfOrderSequence):
        producers.check(7, 0, 1)  # where it lay, nobody knows any longer
    for _ in range(2):
        producers.trimmed(30)
    assert producers.check(7, 0, 3) is None
    # As after a restart, which finds nothing of it either.
    assert Producers(30).check(7, 0, 3) is None
    producers.wrote(7, 0, 3, place(3))
    with pytest.raises(OutOfOrderSequence):
        producers.check(7, 0, 5)

"""Idempotent producers: a batch sent again is known by its sequence, and by what is in it."""

from __future__ import annotations

import msgspec
import pytest

from spark_replication.core.replica.producers import (
    BELOW_BYTES_MAX,
    EPOCHS_REMEMBERED,
    REMEMBERED,
    OffsetSpan,
    Producers,
)
from spark_replication.errors import InvalidProducerEpoch, OutOfOrderSequence, ReplicationError, UnknownProducerId
from spark_replication.messages.records import KEPT_PRODUCER

CRC = (1 << 32) - 1


def place(sequence: int) -> OffsetSpan:
    """Batches of 10 records, one after the other."""
    return OffsetSpan(sequence * 10, sequence * 10 + 9)


def wrote(count: int, *, epoch: int = 0, log_start: int = 0) -> Producers:
    producers = Producers(log_start)
    for sequence in range(count):
        producers.wrote(7, epoch, sequence, place(sequence), crc=CRC)
    return producers


def check(producers: Producers, producer: int, epoch: int, sequence: int, *, rows: int = 10) -> OffsetSpan | None:
    return producers.check(producer, epoch, sequence, rows=rows, crc=CRC)


def reopened(producers: Producers, log_start: int) -> Producers:
    """As a log knows them that starts there and is otherwise empty."""
    known = producers.below(log_start)
    return Producers.of(known, log_start, expire_ms=producers.expire_ms, count_max=producers.count_max)


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
def test_a_batch_is_the_next_or_has_its_place(
    producer: int, epoch: int, sequence: int, found: OffsetSpan | None
) -> None:
    assert check(wrote(3, epoch=1), producer, epoch, sequence) == found


@pytest.mark.parametrize(
    ("producer", "epoch", "sequence", "error", "text"),
    [
        (8, 0, 1, OutOfOrderSequence, "starts at 0, not 1"),
        (7, 2, 3, OutOfOrderSequence, "new at epoch 2"),
        (7, 0, 3, InvalidProducerEpoch, "epoch 0 is fenced by 1"),
        (7, 1, 4, OutOfOrderSequence, "sent batch 4 after 2"),
    ],
)
def test_any_other_batch_is_refused_and_surely_not_written(
    producer: int, epoch: int, sequence: int, error: type[ReplicationError], text: str
) -> None:
    with pytest.raises(error, match=text) as refused:
        check(wrote(3, epoch=1), producer, epoch, sequence)
    assert not refused.value.maybe_written


@pytest.mark.parametrize(("rows", "crc"), [(9, CRC), (11, CRC), (10, CRC - 1), (10, 0)])
def test_a_place_is_believed_to_be_that_of_the_same_batch_only_if_rows_and_crc_agree(rows: int, crc: int) -> None:
    with pytest.raises(InvalidProducerEpoch, match="another batch 1") as refused:
        wrote(3).check(7, 0, 1, rows=rows, crc=crc)
    assert refused.value.maybe_written


def test_a_new_epoch_forgets_the_places_of_the_old_one() -> None:
    producers = wrote(3)
    producers.wrote(7, 1, 0, place(3), crc=CRC)
    assert check(producers, 7, 1, 0) == place(3)
    with pytest.raises(InvalidProducerEpoch):
        check(producers, 7, 0, 2)


def test_only_so_many_batches_are_remembered_and_nobody_can_say_where_older_ones_are() -> None:
    producers = wrote(REMEMBERED)
    assert check(producers, 7, 0, 0) == place(0)
    producers.wrote(7, 0, REMEMBERED, place(REMEMBERED), crc=CRC)
    assert check(producers, 7, 0, 1) == place(1)
    with pytest.raises(InvalidProducerEpoch, match="is forgotten") as refused:
        check(producers, 7, 0, 0)
    assert refused.value.maybe_written


def test_what_was_cut_off_never_happened() -> None:
    producers = wrote(3)
    producers.truncated(25)  # within batch 2
    assert check(producers, 7, 0, 1) == place(1)
    assert check(producers, 7, 0, 2) is None
    producers.truncated(0)
    assert check(producers, 7, 0, 0) is None
    with pytest.raises(OutOfOrderSequence):
        check(producers, 7, 0, 1)


def test_a_cut_finds_the_epoch_of_before_and_so_much_of_them_is_remembered() -> None:
    producers = Producers()
    for epoch in range(EPOCHS_REMEMBERED + 1):
        producers.wrote(7, epoch, 0, place(epoch), crc=CRC)
    producers.truncated(20)
    assert check(producers, 7, 1, 0) == place(1), "a copy of it that comes late is not stored again"
    with pytest.raises(InvalidProducerEpoch, match="fenced by 1"):
        check(producers, 7, 0, 0)
    producers.truncated(10)
    assert len(producers) == 0, "that epoch was one too many"


def test_retention_forgets_nobody() -> None:
    producers = wrote(3)
    producers.trimmed()
    again = reopened(producers, 30)
    for known in (producers, again):
        assert [check(known, 7, 0, sequence) for sequence in range(4)] == [place(0), place(1), place(2), None]
        assert check(known, 8, 0, 0) is None, "an unknown producer starts at 0, always"
        with pytest.raises(UnknownProducerId):
            check(known, 8, 0, 1)


def test_what_was_known_of_batches_from_a_logs_start_on_is_for_its_index_to_say() -> None:
    """They may have been cut, or written anew, since it was saved."""
    known = wrote(3).below(30)
    producers = Producers.of(known, 20, expire_ms=1_000, count_max=10)
    assert [check(producers, 7, 0, sequence) for sequence in range(3)] == [place(0), place(1), None]
    assert len(Producers.of(known, 5, expire_ms=1_000, count_max=10)) == 0


def test_who_was_silent_for_too_long_by_the_clock_of_the_log_is_forgotten() -> None:
    producers = Producers(expire_ms=1_000)
    producers.wrote(7, 0, 0, place(0), crc=CRC, timestamp_ms=5_000)
    producers.wrote(8, 0, 0, place(1), crc=CRC, timestamp_ms=6_000)
    producers.wrote(8, 0, 1, place(2), crc=CRC, timestamp_ms=10)  # a leader whose clock is late
    assert check(producers, 7, 0, 1) is None
    producers.wrote(8, 0, 2, place(3), crc=CRC, timestamp_ms=6_001)
    with pytest.raises(UnknownProducerId, match="or was forgotten"):
        check(producers, 7, 0, 1)
    assert check(producers, 8, 0, 0) == place(1)


def test_of_too_many_producers_who_was_silent_longest_is_forgotten() -> None:
    producers = Producers(count_max=2)
    for number, producer in enumerate((7, 8, 7, 9)):
        producers.wrote(producer, 0, number // 2, place(number), crc=CRC)
    assert len(producers) == 2
    assert check(producers, 7, 0, 1) == place(2)
    with pytest.raises(UnknownProducerId):
        check(producers, 8, 0, 1)


def many(count: int, batches: int) -> Producers:
    producers = Producers(count_max=count)
    for producer in range(count):
        for sequence in range(batches):
            producers.wrote(producer + (1 << 62), 0, sequence, place(0), crc=CRC, timestamp_ms=1 << 40)
    return producers


@pytest.mark.parametrize(("count", "kept"), [(10, REMEMBERED), (1_000, 30), (10_000, 1)])
def test_of_many_producers_fewer_batches_are_known_below_an_offset(count: int, kept: int) -> None:
    found = many(count, min(REMEMBERED, 2 * kept)).below(100)
    assert {len(each.batches) // 16 for each in found} == {kept}
    assert len(found) == count
    assert len(msgspec.msgpack.encode(found)) <= BELOW_BYTES_MAX


def test_of_too_many_producers_those_that_wrote_last_are_known_below_an_offset() -> None:
    found = many(20_000, 1).below(100)
    assert 9_000 < len(found) < 20_000
    assert found[-1].producer == 19_999 + (1 << 62)
    assert len(msgspec.msgpack.encode(found)) <= BELOW_BYTES_MAX


def test_a_log_of_a_release_that_took_any_sequence_is_known_from_there_on() -> None:
    producers = Producers()
    for sequence in (0, 5, 6):
        producers.wrote(7, 0, sequence, place(sequence), crc=CRC)
    assert check(producers, 7, 0, 5) == place(5)
    with pytest.raises(InvalidProducerEpoch):
        check(producers, 7, 0, 4)


KEPT = KEPT_PRODUCER | 7
DIGEST = (1 << 31) - 1


def wrote_in_any_order(count: int, producer: int = 7) -> Producers:
    producers = Producers()
    for sequence in range(count):
        producers.wrote(producer, 0, sequence, place(sequence), crc=CRC, digest=DIGEST - sequence)
    return producers


def test_a_batch_whose_rows_may_be_in_any_order_is_known_by_their_digest_whatever_its_crc() -> None:
    producers = wrote_in_any_order(3)
    for known in (producers, reopened(producers, 30)):
        assert known.check(7, 0, 1, rows=10, crc=1, digest=DIGEST - 1) == place(1)
        assert known.check(7, 0, 3, rows=10, crc=1, digest=DIGEST) is None
    producers.truncated(20)
    assert producers.check(7, 0, 1, rows=10, crc=1, digest=DIGEST - 1) == place(1)


@pytest.mark.parametrize("producer", [7, KEPT])
@pytest.mark.parametrize(("rows", "digest"), [(9, DIGEST - 1), (11, DIGEST - 1), (10, DIGEST), (10, 0)])
def test_other_rows_are_another_batch_though_they_are_as_many(producer: int, rows: int, digest: int) -> None:
    with pytest.raises(InvalidProducerEpoch, match="another batch 1") as refused:
        wrote_in_any_order(3, producer).check(producer, 0, 1, rows=rows, crc=CRC, digest=digest)
    assert refused.value.maybe_written


@pytest.mark.parametrize(("producer", "rows", "is_known"), [(KEPT, 10, True), (KEPT, 9, False), (7, 10, False)])
def test_what_an_older_release_stored_of_a_stream_is_known_by_its_count(
    producer: int, rows: int, *, is_known: bool
) -> None:
    producers = Producers()
    producers.wrote(producer, 0, 0, place(0), crc=CRC)
    if is_known:
        assert producers.check(producer, 0, 0, rows=rows, crc=1, digest=DIGEST) == place(0)
    else:
        with pytest.raises(InvalidProducerEpoch, match="another batch 0"):
            producers.check(producer, 0, 0, rows=rows, crc=1, digest=DIGEST)


def kept_and_ordinary(count_max: int = 10) -> Producers:
    """Both were silent for longer than producers are remembered."""
    producers = Producers(expire_ms=100, count_max=count_max)
    for number, producer in enumerate((KEPT, 7)):
        producers.wrote(producer, 5, 0, place(number), crc=CRC, timestamp_ms=1)
    producers.wrote(8, 0, 0, place(2), crc=CRC, timestamp_ms=1_000)
    return producers


def test_who_may_come_back_after_any_time_is_not_forgotten_for_silence() -> None:
    producers = kept_and_ordinary()
    assert check(producers, KEPT, 5, 0) == place(0)
    assert check(producers, 7, 5, 0) is None, "forgotten: it would be stored a second time"


def test_retention_and_a_cut_leave_who_may_come_back_as_they_leave_others() -> None:
    producers = kept_and_ordinary()
    assert check(reopened(producers, 30), KEPT, 5, 0) == place(0)
    producers.truncated(0)
    assert check(producers, KEPT, 5, 0) is None
    assert len(producers) == 0


def test_there_is_a_bound_for_those_who_may_come_back_and_it_is_theirs_alone() -> None:
    producers = kept_and_ordinary(count_max=2)
    for other in (1, 2):
        producers.wrote(KEPT_PRODUCER | other, 0, 0, place(2 + other), crc=CRC, timestamp_ms=1_001)
    assert [check(producers, KEPT_PRODUCER | each, 0, 0) for each in (1, 2)] == [place(3), place(4)]
    assert check(producers, KEPT, 5, 0) is None, "silent longest"
    assert check(producers, 8, 0, 0) == place(2)


def test_of_a_producer_its_newest_epoch_is_told_and_the_rows_of_the_batches_that_are_remembered() -> None:
    producers = wrote(REMEMBERED + 2)
    found = producers.newest(7)
    assert found is not None
    assert (found.epoch, found.last_sequence, found.rows) == (0, REMEMBERED + 1, (10,) * REMEMBERED)
    assert producers.newest(8) is None
    producers.wrote(7, 1, 0, OffsetSpan(0, 2))
    assert producers.newest(7) == (1, 0, (3,))

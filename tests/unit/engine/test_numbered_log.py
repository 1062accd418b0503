"""What is known of producers' batches goes with the log, also where a change of the log fails half-way."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_replication.config import Settings
from spark_replication.core.replica.epochs import EpochHistory
from spark_replication.core.replica.producers import OffsetSpan
from spark_replication.engine.replica.numbered_log import NumberedLog
from spark_replication.errors import CorruptLog, StorageFailed, UnknownProducerId
from spark_replication.model import Offset
from spark_replication.ports import PreparedBatch
from spark_replication.sim.scenarios.memory_log import MemoryLog


class HalfWay(MemoryLog):
    """Each change of it is made, and then the disk refuses."""

    failing = False

    def _fail(self) -> None:
        if self.failing:
            raise StorageFailed("half-way")

    def truncate(self, end: Offset) -> None:
        super().truncate(end)
        self._fail()

    def begin_anew(self, log_start: Offset) -> None:
        super().begin_anew(log_start)
        self._fail()

    def drop_below(self, offset: Offset) -> None:
        super().drop_below(offset)
        self._fail()

    def forget(self, before: Offset) -> None:
        super().forget(before)
        self._fail()


def batch(sequence: int) -> PreparedBatch:
    return PreparedBatch(1, b"x", 0, b"", 9, 0, sequence)


@pytest.fixture
def log() -> HalfWay:
    runs = MemoryLog.of_runs([], 0)
    log = HalfWay(runs.log_start, runs.records, runs.epochs, 0)
    log.begin_epoch(0)
    log.rows_per_segment = 1
    return log


@pytest.fixture
def numbered(log: HalfWay) -> NumberedLog:
    numbered = NumberedLog(log, Settings())
    for sequence in range(4):
        numbered.append(batch(sequence), leader_epoch=0, timestamp_ms=0)
    log.failing = True
    return numbered


def test_a_batch_that_was_cut_is_not_known_any_longer(numbered: NumberedLog) -> None:
    with pytest.raises(StorageFailed):
        numbered.truncate(2)
    assert (numbered.known(batch(1)), numbered.known(batch(2))) == (OffsetSpan(1, 1), None)


@pytest.mark.parametrize("log_start", [0, 9])
def test_of_a_log_that_begins_anew_nothing_is_known(numbered: NumberedLog, log_start: int) -> None:
    with pytest.raises(StorageFailed):
        numbered.begin_anew(log_start, b"")
    assert numbered.known(batch(0)) is None


def test_what_is_known_already_is_not_written_again() -> None:
    class Written(MemoryLog):
        writes = 0

        def save_producers(self, known: bytes) -> None:
            super().save_producers(known)
            self.writes += 1

    log = Written(7, [], EpochHistory(), 7)
    told = NumberedLog(MemoryLog.of_runs([], 0), Settings())
    told.append(batch(0), leader_epoch=0, timestamp_ms=0)
    numbered = NumberedLog(log, Settings())
    for _ in range(2):
        numbered.learn(told.known_below(7))
    assert (log.writes, numbered.known(batch(0))) == (1, OffsetSpan(0, 0))
    with pytest.raises(CorruptLog, match="cannot be read"):
        numbered.learn(b"torn")
    assert (log.writes, numbered.known(batch(0))) == (1, OffsetSpan(0, 0))


@pytest.mark.parametrize("lose", [NumberedLog.forget, NumberedLog.drop_below])
def test_what_has_lost_its_head_knows_its_producers_all_the_same(
    log: HalfWay, numbered: NumberedLog, lose: Callable[[NumberedLog, Offset], None]
) -> None:
    for before in (2, 3):
        with pytest.raises(StorageFailed):
            lose(numbered, before)
    assert log.log_start == 3
    restarted = NumberedLog(log, Settings())
    for found in (numbered, restarted):
        assert [found.known(batch(sequence)) for sequence in (1, 3)] == [OffsetSpan(1, 1), OffsetSpan(3, 3)]
        with pytest.raises(UnknownProducerId):
            found.known(PreparedBatch(1, b"x", 0, b"", 8, 0, 1))

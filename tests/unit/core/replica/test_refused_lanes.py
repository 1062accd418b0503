"""What comes after a refused batch on its stream is refused, too, until that one comes again."""

from __future__ import annotations

import pytest

from spark_replication.core.replica import refused_lanes
from spark_replication.core.replica.refused_lanes import RefusedLanes
from spark_replication.errors import OutOfOrderSequence
from spark_replication.messages.records import BatchMetadata


def numbered(sequence: int, *, producer: int = 7, epoch: int = 0, partition: int = 0) -> BatchMetadata:
    return BatchMetadata(producer=producer, epoch=epoch, sequence=sequence, partition=partition)


def test_what_comes_after_a_refused_batch_is_refused_until_that_one_comes_again() -> None:
    lanes = RefusedLanes()
    lanes.check(numbered(4))
    lanes.refused(numbered(4))
    for sequence in (5, 6):
        with pytest.raises(OutOfOrderSequence, match="comes after 4"):
            lanes.check(numbered(sequence))
        lanes.refused(numbered(sequence))
    with pytest.raises(OutOfOrderSequence, match="comes after 4"):
        lanes.check(numbered(5))
    lanes.check(numbered(4))
    lanes.check(numbered(5))


@pytest.mark.parametrize("sequence", [3, 4])
def test_one_from_before_it_lets_the_lane_go_on(sequence: int) -> None:
    lanes = RefusedLanes()
    lanes.refused(numbered(4))
    lanes.check(numbered(sequence))
    lanes.check(numbered(sequence + 1))


@pytest.mark.parametrize(
    "another",
    [numbered(5, producer=8), numbered(5, epoch=1), numbered(5, partition=1), BatchMetadata(partition=0)],
    ids=["producer", "epoch", "partition", "without a producer"],
)
def test_other_lanes_are_not_concerned(another: BatchMetadata) -> None:
    lanes = RefusedLanes()
    lanes.refused(numbered(4))
    lanes.check(another)


def test_a_batch_without_a_producer_stands_before_no_other() -> None:
    lanes = RefusedLanes()
    lanes.refused(BatchMetadata())
    lanes.check(BatchMetadata())


def test_a_stream_remembers_so_many_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refused_lanes, "REFUSED_LANES_MAX", 2)
    lanes = RefusedLanes()
    for producer in (1, 2, 3):
        lanes.refused(numbered(0, producer=producer))
    lanes.check(numbered(1, producer=1))
    for producer in (2, 3):
        with pytest.raises(OutOfOrderSequence):
            lanes.check(numbered(1, producer=producer))

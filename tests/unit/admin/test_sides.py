"""How two clusters are compared: their turns, and the ratios of their rounds."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

from spark_replication.admin.bench.rounds import exactly
from spark_replication.admin.bench.side import Paced, Rows, Side
from spark_replication.admin.bench.sides import in_turns, ratios
from spark_replication.model import Scalar


class Idle(Side):
    """A cluster of which this process stands for the one broker. It has no topics."""

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def bootstrap(self) -> str:
        raise NotImplementedError

    @property
    def pids(self) -> tuple[int, ...]:
        return (os.getpid(),)

    def create(self, topic: str, partitions: int, config: Mapping[str, Scalar], replicas: int = 3) -> None:
        raise NotImplementedError

    def delete(self, topic: str) -> None:
        raise NotImplementedError

    def producer(self, topic: str, of: Rows) -> list[str]:
        raise NotImplementedError

    def consumer(self, topic: str, of: Rows, rows: int) -> list[str]:
        raise NotImplementedError

    def paced(self, topic: str, of: Paced) -> list[str]:
        raise NotImplementedError

    def rereading(self, topic: str, of: Rows, mb_per_s: int) -> list[str]:
        raise NotImplementedError

    def moving(self, topic: str, partition_bytes: int) -> list[str]:
        raise NotImplementedError

    def victim(self, topic: str) -> tuple[int, list[int]]:
        raise NotImplementedError

    def resuming(self, topic: str, partitions: int) -> list[str]:
        raise NotImplementedError

    def kill(self, broker: int) -> None:
        raise NotImplementedError

    def elected_s(self, topic: str, partitions: Collection[int], killed_s: float) -> float:
        raise NotImplementedError

    def restore(self, topic: str, broker: int) -> None:
        raise NotImplementedError


def test_who_came_first_comes_last_in_the_next_round() -> None:
    two = [Idle("a"), Idle("b")]
    assert [side.name for _, side in in_turns(two, exactly(3))] == ["a", "b", "b", "a", "a", "b"]
    assert [place for place, _ in in_turns(two, exactly(2))] == [0, 1, 1, 0]


def test_a_ratio_is_that_of_one_round() -> None:
    # The machine was half as fast in the second round: that is no difference between the two.
    assert ratios([100.0, 50.0, 90.0], [50.0, 25.0, 30.0]) == {"ratio": 2.0, "least_ratio": 2.0, "most_ratio": 3.0}

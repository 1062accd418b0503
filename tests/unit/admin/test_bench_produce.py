"""How much a comparison of producers sends."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import pytest

from spark_replication.admin.bench.produce import BATCHES_MAX, WARM_UP_BATCHES_MAX, Case, produce
from spark_replication.admin.bench.rounds import exactly
from spark_replication.admin.bench.side import Rows
from spark_replication.model import Scalar
from tests.unit.admin.test_sides import Idle

KIB = 1 << 10


class Asked(Idle):
    """Keeps what its producers were asked to send."""

    def __init__(self) -> None:
        super().__init__("asked")
        self.warm_up = self.batches = 0

    def create(self, topic: str, partitions: int, config: Mapping[str, Scalar], replicas: int = 3) -> None:
        """Topics make no difference here."""

    def delete(self, topic: str) -> None:
        """Nor does their end."""

    def producer(self, topic: str, of: Rows, *, warm_up: int, batches: int) -> list[str]:
        self.warm_up, self.batches = warm_up, batches
        return [sys.executable, "-c", "print(1)"]

    def produced_mb_per_s(self, printed: str, of: Rows) -> float:
        return float(printed)


@pytest.mark.parametrize(
    ("batch_bytes", "producers", "warm_up", "batches"),
    [
        (64 * KIB, 1, 1_024, 3_072),
        (64 * KIB, 2, 1_024, 1_536),
        (64 * KIB, 8, 256, 384),
        (4 * KIB, 1, WARM_UP_BATCHES_MAX, BATCHES_MAX),
        (4 * KIB, 2, WARM_UP_BATCHES_MAX, BATCHES_MAX // 2),
    ],
)
def test_as_many_bytes_as_wanted_are_sent_or_as_many_small_batches_as_tell_enough(
    batch_bytes: int, producers: int, warm_up: int, batches: int
) -> None:
    asked = Asked()
    case = Case(row_bytes=KIB, batch_bytes=batch_bytes, partitions=1, producers=producers)
    (found,) = produce([asked], [case], mib=192, rounds=exactly(1), progress=lambda _: None)
    assert (asked.warm_up, asked.batches) == (warm_up, batches)
    assert found.mb_per_s == producers

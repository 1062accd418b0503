"""How much a comparison of producers sends."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from spark_replication.admin.bench.produce import BATCHES_MAX, Case, produce
from spark_replication.admin.bench.rounds import exactly
from spark_replication.admin.bench.side import Rows
from spark_replication.model import Scalar
from tests.unit.admin.test_sides import Idle

KIB = 1 << 10


class Asked(Idle):
    """Its producers take a millisecond for what they are asked to send, and keep what that was."""

    def __init__(self, told: Path) -> None:
        super().__init__("asked")
        self.told = told

    def create(self, topic: str, partitions: int, config: Mapping[str, Scalar], replicas: int = 3) -> None:
        """Topics make no difference here."""

    def delete(self, topic: str) -> None:
        """Nor does their end."""

    def producer(self, topic: str, of: Rows) -> list[str]:
        return ["/bin/sh", "-c", f"echo ready; while read asked; do echo $asked >>{self.told}; echo 1000000; done"]


@pytest.mark.parametrize(
    ("batch_bytes", "producers", "batches"),
    [
        (64 * KIB, 1, 3_072),
        (64 * KIB, 2, 1_536),
        (64 * KIB, 8, 384),
        (4 * KIB, 1, BATCHES_MAX),
        (4 * KIB, 2, BATCHES_MAX // 2),
    ],
)
def test_as_many_bytes_as_wanted_are_sent_or_as_many_small_batches_as_tell_enough(
    tmp_path: Path, batch_bytes: int, producers: int, batches: int
) -> None:
    asked = Asked(tmp_path / "told")
    case = Case(row_bytes=KIB, batch_bytes=batch_bytes, partitions=1, producers=producers)
    (found,) = produce([asked], [case], mib=192, rounds=exactly(2, warm_up_s=0), progress=lambda _: None)
    assert asked.told.read_text().split() == [str(batches)] * 2 * producers
    assert found.mb_per_s == round(producers * batches * batch_bytes / 1e3, 1)

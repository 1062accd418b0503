"""What clients are asked to send and read, and what goes on beside it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from spark_replication.admin.bench import consuming
from spark_replication.admin.bench.harness import Harness, Measure, Rounds
from spark_replication.admin.bench.programs import kept
from spark_replication.admin.bench.side import RECENT, WHOLE, Door, Rows
from spark_replication.admin.bench.traffic import (
    BATCHES_MAX,
    BROKER_CPU,
    CLIENT_CPU,
    MEANWHILE,
    OTHER_MIB,
    PACE_MB_PER_S,
    Acknowledge,
    Consume,
    Produce,
    going_on,
)
from spark_replication.errors import ReplicationError
from spark_replication.model import Scalar

KIB, MIB = 1 << 10, 1 << 20
HARNESS = Harness(Rounds(2, 2), 0.0, lambda _: None)


class Asked:
    """A side of which this process stands for the one broker. Its programs take a millisecond for whatever they are
    asked, and keep what that was."""

    name = "asked"

    def __init__(self, told: Path) -> None:
        self.told = told
        self.topics: dict[str, Mapping[str, Scalar]] = {}
        self.deleted: list[str] = []

    @property
    def pids(self) -> tuple[int, ...]:
        return (os.getpid(),)

    @property
    def lines(self) -> list[str]:
        return self.told.read_text().splitlines()

    def create(self, topic: str, partitions: int, config: Mapping[str, Scalar], replicas: int = 3) -> None:
        self.topics[topic] = config

    def delete(self, topic: str) -> None:
        self.deleted.append(topic)

    def _program(self, what: str, answer: str = "[1000000]") -> list[str]:
        loop = f"while read asked; do echo {what} $asked >>{self.told}; echo '{answer}'; done"
        return ["/bin/sh", "-c", f"echo ready; {loop}"]

    def sender(self, topic: str, of: Rows, *, joins: bool = False) -> list[str]:
        paced = [50_000_000] * 20 + [1_000_000] * 10
        return self._program("send", str(paced) if joins else "[1000000]")

    def consumer(self, topic: str, of: Rows, rows: int, door: Door, *, looks: bool) -> list[str]:
        return self._program(f"{door} {rows} {looks}")

    def mover(self, topic: str) -> list[str]:
        return self._program("move", "[100000000]")


@pytest.fixture
def asked(tmp_path: Path) -> Asked:
    return Asked(tmp_path / "told")


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
    asked: Asked, batch_bytes: int, producers: int, batches: int
) -> None:
    case = Produce(row_bytes=KIB, batch_bytes=batch_bytes, partitions=1, producers=producers, mib=192)
    rate, brokers, clients = HARNESS.measure(case, [asked])
    assert asked.lines == [f"send fast {batches}"] * 2 * producers
    assert rate.figure == float(f"{producers * batches * batch_bytes / 1e3:.4g}")
    assert (brokers.measure, clients.measure) == (BROKER_CPU.name, CLIENT_CPU.name)
    (topic,) = asked.topics
    assert asked.topics[topic] == RECENT
    assert asked.deleted == [topic]


def test_what_is_read_was_written_before_and_is_kept(asked: Asked) -> None:
    case = Consume(row_bytes=KIB, batch_bytes=64 * KIB, partitions=2, mib=1, door="flight", looks=True)
    rate, *_ = HARNESS.measure(case, [asked])
    assert asked.lines == ["send fast 16", *["flight 1024 True 0"] * 2]
    assert rate.figure == float(f"{MIB / 1e3:.4g}")
    assert [*asked.topics.values()] == [WHOLE]


def test_rows_are_due_and_those_of_the_first_second_do_not_count(asked: Asked) -> None:
    case = Acknowledge(row_bytes=KIB, rows_per_s=20, partitions=1, seconds=0.5)
    median, *_, worst = HARNESS.measure(case, [asked])
    assert asked.lines == ["send paced 20 30"] * 2
    assert (median.measure, median.figure, worst.measure, worst.figure) == ("median", 1.0, "worst", 1.0)


@pytest.mark.parametrize(
    ("meanwhile", "line", "mb_per_s"),
    [
        ("catch-up", f"reader {OTHER_MIB << 10} False 0", OTHER_MIB * MIB / 1e3),
        ("paced-catch-up", f"reader {OTHER_MIB << 10} False {PACE_MB_PER_S}", OTHER_MIB * MIB / 1e3),
        ("reassignment", "move 0", OTHER_MIB * MIB / 1e5),
    ],
)
def test_something_goes_on_in_another_topic_meanwhile(asked: Asked, meanwhile: str, line: str, mb_per_s: float) -> None:
    case = Acknowledge(row_bytes=KIB, rows_per_s=20, partitions=1, seconds=0.5, meanwhile=meanwhile)  # type: ignore[arg-type]  # a parameter of the test
    found = {row.measure: row.figure for row in HARNESS.measure(case, [asked])}
    assert line in asked.lines
    assert found[MEANWHILE.name] == float(f"{mb_per_s:.4g}")
    assert len(asked.deleted) == 2


def test_what_goes_on_meanwhile_and_fails_is_told(asked: Asked) -> None:
    command = ["/bin/sh", "-c", "echo ready; read asked; echo no leader >&2; exit 1"]
    found: dict[Measure, float] = {}
    with (
        kept(asked, command) as failing,
        pytest.raises(ReplicationError, match="no leader"),
        going_on(failing, "catch-up", found),
    ):
        pass
    assert found == {}


ROWS, ROW_BYTES = 1_000_000, 1_000


@pytest.mark.parametrize(("mb_per_s", "waits_s"), [(50, [20.0, 40.0, 60.0]), (0, [])])
def test_a_reader_waits_for_its_rate(monkeypatch: pytest.MonkeyPatch, mb_per_s: int, waits_s: list[float]) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    work = consuming.Work(
        bootstrap="",
        security={},
        topic="orders",
        partitions=1,
        rows=3 * ROWS,
        row_bytes=ROW_BYTES,
        door="reader",
        looks=False,
        folders=(),
    )
    batch = pa.record_batch({"value": pa.nulls(ROWS)})
    with ThreadPoolExecutor(1) as threads:
        reading = consuming.Reading(work, lambda _: [batch] * 3, threads)
        assert reading.asked([str(mb_per_s)])[0] > 0
        assert slept == pytest.approx(waits_s, rel=0.25)
        fewer = consuming.Reading(work, lambda _: [batch], threads)
        with pytest.raises(ReplicationError, match="1000000 rows were read, not 3000000"):
            fewer.read(0)

"""How far the Delta tables are behind, from the controller's news to a committed table, by the production thread; and
what they grow to.

Beside it, the same rows are appended to a table that nobody reads, with no condition and no change feed, which is the
least that a table can cost.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import msgspec
from deltalake import write_deltalake

from spark_replication.admin.bench.harness import MEDIAN, Harness, Measure, Progress, Round, Row, rows, waits
from spark_replication.config import settings_from
from spark_replication.core.controller.news import EverythingTold, News, PartitionNews
from spark_replication.core.law.unreadable import ALL_READ
from spark_replication.errors import RequestTimedOut
from spark_replication.messages.commands import PartitionCommand
from spark_replication.mirror.tables.partitions import PARTITIONS, PartitionRow
from spark_replication.mirror.telling.feed import MirrorThread, Teller
from spark_replication.model import PartitionState

REPLICAS = (1, 2, 3)
WRITE_TIMEOUT_S = 60.0
SAID_EVERY_S = 10.0
SAMPLE = 100
SIZE, FILES = Measure("size", "MB", None), Measure("files", "", None)


class Tables(Protocol):
    @property
    def name(self) -> str: ...

    def change(self, numbers: Sequence[int]) -> float:
        """Change these partitions. Returns the milliseconds until a table shows it."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    changed: int
    partitions: int
    #: In a round.
    writes: int

    @property
    def what(self) -> str:
        return f"{self.changed:,} of {self.partitions:,} partitions change"

    @contextmanager
    def begun(self, side: Tables, harness: Harness) -> Iterator[Round]:
        yield lambda: waits([side.change(range(self.changed)) for _ in range(self.writes)])


def lag(partitions: int, changed: Sequence[int], writes: int, harness: Harness) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="bench-") as directory, OurTables(directory, partitions) as ours:
        for count in sorted({min(each, partitions) for each in changed}):
            case = Change(changed=count, partitions=partitions, writes=writes)
            sides: list[Tables] = [ours, PlainAppend(Path(directory) / f"append-{count}")]
            yield from harness.measure(case, sides)


def growth(partitions: int, commits: int, progress: Progress) -> Iterator[Row]:
    """Commits that each change one partition."""
    with tempfile.TemporaryDirectory(prefix="bench-") as directory, OurTables(directory, partitions) as ours:
        took_ms, said_s = [], time.monotonic()
        for number in range(commits):
            took_ms.append(ours.change([number % partitions]))
            if time.monotonic() - said_s > SAID_EVERY_S:
                said_s = time.monotonic()
                progress(f"{number + 1} commits, the last took {took_ms[-1]:.0f} ms")
        sizes = [file.stat().st_size for file in Path(ours.path).rglob("*") if file.is_file()]
    what = f"{commits:,} commits of {partitions:,} partitions"
    yield from rows(what, {ours.name: [{SIZE: sum(sizes) / 1e6, FILES: len(sizes)}]})
    last, first = ({MEDIAN: statistics.median(part)} for part in (took_ms[-SAMPLE:], took_ms[:SAMPLE]))
    yield from rows(what, {f"the last {SAMPLE}": [last], f"the first {SAMPLE}": [first]})


class OurTables:
    """The tables of a cluster of so many partitions, written as a controller's process writes them."""

    name = "ours"

    def __init__(self, directory: str, partitions: int) -> None:
        self.path = str(Path(directory) / "mirror")
        self._zxid = 1
        self._mirror = MirrorThread(
            self.path,
            Teller("bench", controller_epoch=1, address="127.0.0.1:1"),
            settings_from({"mirror.interval.ms": 1}),
        )
        everything = tuple(PartitionNews(_command(number, 0), 1, 1) for number in range(partitions))
        self._write(lambda: self._mirror.tell(News(partitions=everything, complete=EverythingTold(1, ALL_READ))))

    def __enter__(self) -> OurTables:
        return self

    def __exit__(self, *_: object) -> None:
        self._mirror.close()

    def change(self, numbers: Sequence[int]) -> float:
        """Each gets another leader."""
        self._zxid += 1
        now_ms = int(time.time() * 1_000)
        news = News(partitions=tuple(PartitionNews(_command(each, self._zxid), self._zxid, now_ms) for each in numbers))
        return self._write(lambda: self._mirror.tell(news))

    def _write(self, tell: Callable[[], None]) -> float:
        began = time.perf_counter()
        tell()
        self._mirror.flush(WRITE_TIMEOUT_S)
        if self._mirror.error is not None:
            raise RequestTimedOut(f"the tables at {self.path} were not written: {self._mirror.error}")
        return (time.perf_counter() - began) * 1_000


class PlainAppend:
    name = "a plain append"

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._number = 0

    def change(self, numbers: Sequence[int]) -> float:
        self._number += 1
        changed = [
            PartitionRow(
                cluster_id="bench", command=_command(each, self._number), zxid=self._number, told_ms=self._number
            )
            for each in numbers
        ]
        table = PARTITIONS.rows(changed, [])
        began = time.perf_counter()
        write_deltalake(self._path, table, mode="append")
        return (time.perf_counter() - began) * 1_000


def _command(number: int, leader_epoch: int) -> PartitionCommand:
    state = PartitionState(
        leader=REPLICAS[(number + leader_epoch) % len(REPLICAS)],
        leader_epoch=leader_epoch,
        isr=frozenset(REPLICAS),
        min_isr=2,
        epochs=dict.fromkeys(REPLICAS, 0),
    )
    return PartitionCommand(
        topic="bench", partition=number, topic_id="id", replicas=REPLICAS, state=state, partition_epoch=leader_epoch
    )

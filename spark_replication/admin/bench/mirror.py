"""How far the Delta tables are behind: from the controller's news to a committed table, by the production thread.

Beside it, the same run appends the same rows to a table that nobody reads, with no condition and no change feed, which
is the least that a table can cost.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
from deltalake import write_deltalake

from spark_replication.admin.bench.replicate import Progress
from spark_replication.config import settings_from
from spark_replication.core.controller.news import EverythingTold, News, PartitionNews
from spark_replication.core.law.unreadable import ALL_READ
from spark_replication.errors import RequestTimedOut
from spark_replication.messages.commands import PartitionCommand
from spark_replication.mirror.tables.partitions import PARTITIONS, PartitionRow
from spark_replication.mirror.telling.feed import MirrorThread, Teller
from spark_replication.model import PartitionState

TOPIC = "bench"
REPLICAS = (1, 2, 3)
WRITE_TIMEOUT_S = 60.0
SAID_EVERY_S = 10.0
SAMPLE = 100


class Lag(msgspec.Struct, frozen=True, kw_only=True):
    partitions: int
    #: How many partitions change at one time.
    changed: int
    writes: int
    p50_ms: float
    p99_ms: float
    append_ms: float
    #: append_ms divided by p50_ms.
    ratio: float


class Commits(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of many commits, each of which changes one partition."""

    partitions: int
    commits: int
    mb: float
    files: int
    #: The median of the first hundred.
    first_ms: float
    #: The median of the last hundred.
    last_ms: float
    ratio: float


LAG_COLUMNS = Lag.__struct_fields__
COMMITS_COLUMNS = Commits.__struct_fields__


def lag(partitions: int, changed: Sequence[int], writes: int, progress: Progress) -> Iterator[Lag]:
    with tempfile.TemporaryDirectory(prefix="spark-replication-") as directory, _Told(directory, partitions) as told:
        for count in changed:
            progress(f"{count} of {partitions} partitions change, {writes} times")
            took_ms = sorted(told.change(range(min(count, partitions))) for _ in range(writes))
            append_ms = statistics.median(_append_ms(Path(directory), count, number) for number in range(writes))
            p50_ms = statistics.median(took_ms)
            yield Lag(
                partitions=partitions,
                changed=count,
                writes=writes,
                p50_ms=round(p50_ms, 1),
                p99_ms=round(took_ms[min(len(took_ms) - 1, int(0.99 * len(took_ms)))], 1),
                append_ms=round(append_ms, 1),
                ratio=round(append_ms / p50_ms, 2),
            )


def commits(partitions: int, count: int, progress: Progress) -> Commits:
    with tempfile.TemporaryDirectory(prefix="spark-replication-") as directory, _Told(directory, partitions) as told:
        took_ms, said_s = [], time.monotonic()
        for number in range(count):
            took_ms.append(told.change([number % partitions]))
            if time.monotonic() - said_s > SAID_EVERY_S:
                said_s = time.monotonic()
                mb, files = _size(told.path)
                progress(f"{number + 1} commits: {mb} MB in {files} files, the last took {took_ms[-1]:.0f} ms")
        mb, files = _size(told.path)
        first_ms, last_ms = statistics.median(took_ms[:SAMPLE]), statistics.median(took_ms[-SAMPLE:])
        return Commits(
            partitions=partitions,
            commits=count,
            mb=mb,
            files=files,
            first_ms=round(first_ms, 1),
            last_ms=round(last_ms, 1),
            ratio=round(last_ms / first_ms, 2),
        )


class _Told:
    """The tables of a cluster of so many partitions, written as a controller's process writes them."""

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

    def __enter__(self) -> _Told:
        return self

    def __exit__(self, *_: object) -> None:
        self._mirror.close()

    def change(self, numbers: Sequence[int]) -> float:
        """Change the leader of each partition. Return the milliseconds until the table shows it."""
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


def _command(number: int, leader_epoch: int) -> PartitionCommand:
    state = PartitionState(
        leader=REPLICAS[(number + leader_epoch) % len(REPLICAS)],
        leader_epoch=leader_epoch,
        isr=frozenset(REPLICAS),
        min_isr=2,
        epochs=dict.fromkeys(REPLICAS, 0),
    )
    return PartitionCommand(
        topic=TOPIC, partition=number, topic_id="id", replicas=REPLICAS, state=state, partition_epoch=leader_epoch
    )


def _append_ms(directory: Path, count: int, number: int) -> float:
    rows = [
        PartitionRow(cluster_id="bench", command=_command(each, number), zxid=number, told_ms=number)
        for each in range(count)
    ]
    table = PARTITIONS.rows(rows, [])
    began = time.perf_counter()
    write_deltalake(str(directory / f"append-{count}"), table, mode="append")
    return (time.perf_counter() - began) * 1_000


def _size(path: str) -> tuple[float, int]:
    """The megabytes of all tables, and how many files they have."""
    sizes = [file.stat().st_size for file in Path(path).rglob("*") if file.is_file()]
    return round(sum(sizes) / 1e6, 1), len(sizes)

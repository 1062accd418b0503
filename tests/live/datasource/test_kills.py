"""A driver, its JVM or a worker of its tasks is killed again and again: each row arrives once, and in order."""

from __future__ import annotations

import logging
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.live.cluster.waiting import eventually
from tests.live.datasource.processes import descendants, kill_if_there
from tests.live.datasource.stories import Topic

pytestmark = [pytest.mark.trust, pytest.mark.live, pytest.mark.spark, pytest.mark.timeout(1_800)]

log = logging.getLogger(__name__)

ROOT = Path(__file__).parents[3]
# KILLS=20 is what a person runs.
KILLS = int(os.environ.get("KILLS", "3"))
ROWS = 40  # of a batch that is produced
END_S = 300


class Pipeline:
    def __init__(self, source: Topic, target: Topic, folder: Path) -> None:
        names = ("--bootstrap", source.cluster.bootstrap, "--source", source.name, "--target", target.name)
        self._command = [sys.executable, "-m", "tests.live.datasource.pipeline", *names, "--folder", str(folder)]
        self._log = folder / "pipeline.log"

    @contextmanager
    def running(self, *more: str) -> Iterator[subprocess.Popen[bytes]]:
        """With all that it started it is gone at the end."""
        with self._log.open("ab") as log:
            driver = subprocess.Popen([*self._command, *more], cwd=ROOT, stdout=log, stderr=log, start_new_session=True)
        try:
            yield driver
        finally:
            others = descendants(driver.pid)
            for pid in (driver.pid, *others):
                kill_if_there(pid)
            driver.wait(60)
            eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in others), "its processes are gone")

    def goes_on(self, driver: subprocess.Popen[bytes], batches: int) -> None:
        eventually(lambda: self.batches >= batches or driver.poll() is not None, "micro-batches end")

    @property
    def batches(self) -> int:
        return self._log.read_text().count("\nbatch ") if self._log.exists() else 0


@contextmanager
def produced(topic: Topic) -> Iterator[list[int]]:
    """Batches of ROWS come as long as the block lasts. Given: how many rows there are, as its last."""
    counts, stopping = [0], threading.Event()

    def produce() -> None:
        while not stopping.wait(0.3):
            firsts = range(counts[-1], counts[-1] + 3 * ROWS, ROWS)
            topic.fill(*firsts, rows=ROWS)
            counts.append(firsts[-1] + ROWS)

    producing = threading.Thread(target=produce)
    producing.start()
    try:
        yield counts
    finally:
        stopping.set()
        producing.join()


def test_whatever_is_killed_each_row_arrives_once_and_in_order(
    topic: Topic, spark: SparkSession, tmp_path: Path
) -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    log.warning("seed %d", seed)  # shown if it fails
    target = topic.another("copy")
    pipeline = Pipeline(topic, target, tmp_path)
    with produced(topic) as counts:
        for _ in range(KILLS):
            before = pipeline.batches
            with pipeline.running() as driver:
                pipeline.goes_on(driver, before + chance.randrange(1, 6))
                assert driver.poll() is None, "it goes on until it is killed"
                time.sleep(chance.random() * 0.5)  # anywhere within a micro-batch
                others = descendants(driver.pid)
                jvm = [pid for pid, command in others.items() if "org.apache.spark" in command]
                workers = [pid for pid, command in others.items() if "pyspark" in command and pid not in jvm]
                victim = chance.choice([driver.pid, *jvm[:1], *workers[:1]])
                kill_if_there(victim)
                if victim in workers:  # the query goes on: what it does next is to be seen
                    pipeline.goes_on(driver, pipeline.batches + 1)
    rows = counts[-1]
    with pipeline.running("--to-the-end", "--rows-per-trigger", "20000") as driver:
        assert driver.wait(END_S) == 0
    table = spark.read.format("delta").load(str(tmp_path / "table")).collect()
    assert_once((row["id"] for row in table), rows)
    for row in table:
        first, number = divmod(row["id"], ROWS)
        assert row["_offset"] == first // 3 * ROWS + number
    copied = target.rows(includeMetadata=True).orderBy("_partition", "_offset").collect()
    assert_once((row["id"] for row in copied), rows)
    of_key: dict[str, list[int]] = {}
    for row in copied:
        of_key.setdefault(row["text"], []).append(row["id"])
    assert all(ids == sorted(ids) for ids in of_key.values()), "a key's rows keep their order"


def assert_once(ids: Iterator[int], rows: int) -> None:
    counts = Counter(ids)
    lost = [each for each in range(rows) if each not in counts]
    doubled = [each for each, count in counts.items() if count > 1]
    assert (lost[:5], doubled[:5], len(counts)) == ([], [], rows)

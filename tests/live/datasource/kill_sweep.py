"""Kills at every point of a micro-batch, of whatever takes part in it: each row arrives once, or an error says why not.

python -m tests.live.datasource.kill_sweep [--runs 200] [--seed N] [--first N]

Run n of a seed is always the same story (--first N --runs 1 tells one again): which of POINTS is reached, and how
often; whose process is killed there, the driver's, the Python of that point, the broker that leads a partition, or the
controller; with how many of three replicas the query goes on; and whether the target has more partitions then. The
query may fail, if it says so; once all brokers are back, it is to end, and each row is to be there once.

Exit code 0: so it was in all runs; else 1, with a line for each run that was otherwise.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue
from typing import NamedTuple

import spark_replication as sr
from tests.live.cluster.faults import kill
from tests.live.datasource.held import OF_TASKS, POINTS
from tests.live.datasource.processes import descendants, kill_if_there
from tests.live.datasource.stories import SCHEMA, orders
from tests.waiting import eventually

ROOT = Path(__file__).parents[3]
BROKERS = PARTITIONS = 3
ROWS = 900
ROWS_PER_TRIGGER = 300  # in three micro-batches
DEADLINE_MS = 5_000  # of a task
POINT_S = 120.0
FEW_S = 40.0  # which a query has while replicas are away
END_S = 240.0
TIMES = 3  # which a query is begun again, once all brokers are back


class Story(NamedTuple):
    point: str
    #: How often the point is reached before.
    times: int
    victim: str
    #: Whose leader is killed, if a broker is.
    partition: int
    alive: int
    by: str
    more_partitions: bool


def story(seed: int, run: int) -> Story:
    """Points and victims come in turn, so that few runs have many of them."""
    chance = random.Random(f"{seed} {run}")
    point = POINTS[run % len(POINTS)]
    victim = ("driver", "python", "broker", "controller")[(run // len(POINTS) + run) % 4]
    return Story(
        point=point,
        times=chance.randint(1, 5 if point in OF_TASKS else 2),
        victim=victim,
        partition=chance.randrange(PARTITIONS),
        alive=chance.randint(1, BROKERS),
        by=chance.choice(["", "id", "text"]),
        more_partitions=chance.random() < 0.4,
    )


class Driver:
    """A process that carries out queries, one after the other."""

    def __init__(self, bootstrap: str, log: Path) -> None:
        command = [sys.executable, "-m", "tests.live.datasource.held", "--bootstrap", bootstrap]
        self._log = log.open("ab")
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
        )
        self._answers: Queue[str] = Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("= "):
                self._answers.put(line[2:].strip())
        self._answers.put("failed the driver has ended")

    def begin(self, query: dict[str, str]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(query) + "\n")
        self.process.stdin.flush()

    def answer(self, timeout_s: float) -> str | None:
        """None if the query goes on."""
        try:
            return self._answers.get(timeout=timeout_s)
        except Empty:
            return None

    @property
    def has_answer(self) -> bool:
        return not self._answers.empty()

    def kill(self, *, with_tasks: bool) -> None:
        others = descendants(self.process.pid)
        jvm = [pid for pid, command in others.items() if "org.apache.spark" in command]
        for pid in (self.process.pid, *(others if with_tasks else jvm)):
            kill_if_there(pid)
        self.process.wait(60)
        self._log.close()


class Sweep:
    def __init__(self, cluster: sr.LocalCluster, folder: Path) -> None:
        self._cluster = cluster
        self._folder = folder
        self._driver: Driver | None = None

    @property
    def driver(self) -> Driver:
        if self._driver is None:
            self._driver = Driver(self._cluster.bootstrap, self._folder / "drivers.log")
        return self._driver

    def run(self, told: Story, name: str) -> str:
        """What the query has said on the way. Raises AssertionError if rows are lost or doubled, or if it never
        ends."""
        folder, cluster = self._folder / name, self._cluster
        holds = folder / "holds"
        holds.mkdir(parents=True)
        (holds / "point").write_text(f"{told.point}\n{told.times}")
        self._fill(name)
        query = {"source": f"{name}-source", "target": f"{name}-target", "folder": str(folder), "by": told.by}
        query |= {"rows": str(ROWS_PER_TRIGGER), "deadline_ms": str(DEADLINE_MS)}
        self.driver.begin(query)
        at = holds / "at"
        eventually(lambda: at.exists() or self.driver.has_answer, f"the query comes to its point: {told}", POINT_S)
        said = [] if at.exists() else ["the point was not reached"]
        away = self._kill(told, f"{name}-target", int(at.read_text())) if at.exists() else []
        away = self._without(BROKERS - told.alive, away)
        (holds / "go").touch()
        said.append(self._goes_on(query, FEW_S) or "goes on")
        for broker in away:
            cluster.restart_broker(broker)
        cluster.wait_healthy(120)
        for _ in range(TIMES):
            if said[-1] == "ended":
                break
            said.append(self._goes_on(query, END_S, begun=said[-1] == "goes on") or "does not end")
        assert said[-1] == "ended", said
        assert_once(self._ids(query["target"]), said)
        for topic in (query["source"], query["target"]):
            cluster.admin.delete_topic(topic)
        return "; ".join(said)

    def close(self) -> None:
        if self._driver is not None:
            self._driver.kill(with_tasks=True)

    def _goes_on(self, query: dict[str, str], timeout_s: float, *, begun: bool = True) -> str | None:
        if self._driver is None or not begun:
            self.driver.begin(query)
        return self.driver.answer(timeout_s)

    def _fill(self, name: str) -> None:
        admin = self._cluster.admin
        for kind in ("source", "target"):
            admin.create_topic(f"{name}-{kind}", SCHEMA, partitions=PARTITIONS)
        with sr.Producer(self._cluster.bootstrap, batch_bytes=0) as producer:
            firsts = range(0, ROWS, 100)
            sent = [
                producer.send(f"{name}-source", orders(first, 100), partition=number % PARTITIONS)
                for number, first in enumerate(firsts)
            ]
            for each in sent:
                each.result()

    def _kill(self, told: Story, target: str, at: int) -> list[int]:
        """Returned: the brokers that are dead."""
        cluster = self._cluster
        if told.more_partitions:
            cluster.admin.add_partitions(target, PARTITIONS + 2)
        if told.victim == "driver":
            # Rows that a task of the first try sends later would not be found where partitions were added meanwhile.
            self.driver.kill(with_tasks=told.more_partitions)
            self._driver = None
        elif told.victim == "python":
            kill_if_there(at)
        elif told.victim == "broker":
            (described,) = cluster.admin.describe_topics([target])
            leader = described.partitions[told.partition].leader
            assert leader is not None
            cluster.kill_broker(leader)
            return [leader]
        else:
            kill(cluster.controller_pid)
        return []

    def _without(self, count: int, dead: list[int]) -> list[int]:
        """Kill brokers until `count` are dead. Returned: all that are."""
        for broker in sorted(set(self._cluster.brokers) - set(dead))[: max(0, count - len(dead))]:
            self._cluster.kill_broker(broker)
            dead = [*dead, broker]
        return dead

    def _ids(self, topic: str) -> Iterator[int]:
        with sr.Reader(self._cluster.bootstrap) as reader:
            for each in reader.topic(topic).partitions:
                for batch in reader.read(topic, each.partition, "earliest"):
                    yield from batch.batch.column("id").to_pylist()


def assert_once(ids: Iterable[int], said: object) -> None:
    counts = Counter(ids)
    lost = [each for each in range(ROWS) if each not in counts]
    doubled = [each for each, count in counts.items() if count > 1]
    assert not lost, f"{len(lost)} rows are lost, as {lost[:3]}, and {len(doubled)} doubled: {said}"
    assert not doubled, f"{len(doubled)} rows are doubled, as {doubled[:3]}: {said}"


@contextmanager
def swept(folder: Path) -> Iterator[Sweep]:
    with sr.LocalCluster.start(brokers=BROKERS) as cluster:
        sweep = Sweep(cluster, folder)
        try:
            yield sweep
        finally:
            sweep.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31))
    parser.add_argument("--first", type=int, default=0)
    asked = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as folder, swept(Path(folder)) as sweep:
        for run in range(asked.first, asked.first + asked.runs):
            told, began = story(asked.seed, run), time.monotonic()
            try:
                outcome = sweep.run(told, f"run-{run}")
            except AssertionError as error:
                failed += 1
                outcome = f"BROKEN {error}"
            sys.stdout.write(f"seed {asked.seed} run {run} {time.monotonic() - began:.0f} s {told}: {outcome}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{asked.runs} runs, {failed} broken\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

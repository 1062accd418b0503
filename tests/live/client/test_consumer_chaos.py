"""A group under chaos: members, coordinators and other brokers are killed, stopped and woken, and each row that was
acknowledged is given out. CHAOS_S says for how long (60 s)."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

import spark_replication as sr
from tests.live.client.test_consumers import (
    CONFIG,
    PARTITIONS,
    SCHEMA,
    Worker,
    assert_all_given,
    coordinator_pid,
    load,
)
from tests.waiting import eventually

CHAOS_S = float(os.environ.get("CHAOS_S", "60"))
WORKERS = 3
STOPPED_S = (0.5, 9.0)  # some of them for longer than a session
BETWEEN_S = (0.5, 4.0)

pytestmark = [pytest.mark.live, pytest.mark.timeout(CHAOS_S + 240)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[sr.LocalCluster]:
    with sr.LocalCluster.start(brokers=3, config=CONFIG) as cluster:
        yield cluster


class Chaos:
    def __init__(self, cluster: sr.LocalCluster, topic: str, stack: ExitStack, seed: int) -> None:
        self._cluster, self._topic, self._stack = cluster, topic, stack
        self._rng = random.Random(seed)
        self.workers = [self._worker() for _ in range(WORKERS)]
        self.given: list[int] = []
        self.done: dict[str, int] = {}

    def _worker(self) -> Worker:
        return self._stack.enter_context(closing(Worker(self._cluster, self._topic, self._topic)))

    def go_on(self, until_s: float) -> None:
        while time.monotonic() < until_s:
            kind = self._rng.choice(["kill_member", "stop_member", "end_member", "kill_coordinator", "stop_broker"])
            getattr(self, f"_{kind}")()
            self.done[kind] = self.done.get(kind, 0) + 1
            time.sleep(self._rng.uniform(*BETWEEN_S))

    def _replace(self, signal_number: int) -> None:
        place = self._rng.randrange(WORKERS)
        worker = self.workers[place]
        worker.end(signal_number)
        worker.process.wait(30)
        worker.close()
        self.given += worker.given
        self.workers[place] = self._worker()

    def _kill_member(self) -> None:
        self._replace(signal.SIGKILL)

    def _end_member(self) -> None:
        self._replace(signal.SIGINT)

    def _stop_member(self) -> None:
        worker = self._rng.choice(self.workers)
        self._stopped(worker.process.pid)

    def _kill_coordinator(self) -> None:
        self._cluster.wait_healthy()
        os.kill(coordinator_pid(self._cluster, self._topic), signal.SIGKILL)

    def _stop_broker(self) -> None:
        self._cluster.wait_healthy()
        self._stopped(self._rng.choice([broker.pid for broker in self._cluster.brokers.values()]))

    def _stopped(self, pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(self._rng.uniform(*STOPPED_S))
        os.kill(pid, signal.SIGCONT)


def test_each_acknowledged_row_is_given_out(cluster: sr.LocalCluster) -> None:
    topic = "chaos"
    cluster.wait_healthy()
    cluster.admin.create_topic(topic, SCHEMA, partitions=PARTITIONS)
    seed = random.randrange(1 << 32)
    print(f"seed {seed}, for {CHAOS_S} s")  # noqa: T201 (told with -s)
    with ExitStack() as stack:
        acknowledged = stack.enter_context(load(cluster, topic))
        chaos = Chaos(cluster, topic, stack, seed)
        eventually(lambda: all(len(worker.given) > 20 for worker in chaos.workers), "all read")
        chaos.go_on(time.monotonic() + CHAOS_S)
        cluster.wait_healthy()
        before = len(acknowledged)

        def are_read() -> bool:
            return all(any(number >= before for number in worker.given) for worker in chaos.workers)

        eventually(are_read, "all read on", 60)
    given = [*chaos.given, *(number for worker in chaos.workers for number in worker.given)]
    count = len(acknowledged)
    print(f"{count} rows, {len(given)} given out, {chaos.done}")  # noqa: T201 (told with -s)
    assert_all_given(cluster, topic, count, given)

"""Consumers of a group share a topic: each row is given out, whatever is killed, and nothing else is committed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

import pyarrow as pa
import pytest

import spark_replication as sr
from spark_replication.client.consuming.consumer import LEAVE_MS
from spark_replication.client.reading.log_batch import LogBatch
from spark_replication.core.routing import partition_of
from spark_replication.errors import ClientClosed, FencedMemberEpoch, InvalidRequest
from spark_replication.model import TopicPartition
from tests.waiting import eventually

pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]

SCHEMA = pa.schema([("number", pa.int64())])
PARTITIONS = 4
WAIT_S = 20.0
CONFIG = {"replica.lag.time.ms": 2_000}
# A worker: prints each number that it was given, once it is done with the one before.
WORKER = """
import json, signal, sys
import spark_replication as sr
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background ignores it
    bootstrap, topic, group = sys.argv[1:]
    with sr.Consumer(bootstrap, [topic], group, commit_interval_ms=50) as consumer:
        for found in consumer:
            print(json.dumps([found.partition, found.batch.column(0).to_pylist()]), flush=True)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[sr.LocalCluster]:
    with sr.LocalCluster.start(brokers=3, config=CONFIG) as cluster:
        yield cluster


@pytest.fixture
def topic(cluster: sr.LocalCluster, request: pytest.FixtureRequest) -> str:
    cluster.wait_healthy()
    name = str(request.node.name)[:100]
    cluster.admin.create_topic(name, SCHEMA, partitions=PARTITIONS)
    return name


def fill(cluster: sr.LocalCluster, topic: str, numbers: range) -> None:
    with sr.Producer(cluster.bootstrap) as producer:
        for number in numbers:
            producer.send(topic, {"number": [number]}, partition=number % PARTITIONS)


def taken(consumer: sr.Consumer, count: int) -> list[int]:
    """So many rows at least, as they come."""
    found: list[int] = []
    until_s = time.monotonic() + WAIT_S
    while len(found) < count:
        assert time.monotonic() < until_s, f"{len(found)} of {count}"
        batch = consumer.poll(0.5)
        if batch is not None:
            found += batch.batch.column(0).to_pylist()
    return found


def everything(topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(PARTITIONS)]


def test_who_is_alone_reads_all_and_whoever_comes_back_goes_on(cluster: sr.LocalCluster, topic: str) -> None:
    fill(cluster, topic, range(100))
    with sr.Consumer(cluster.bootstrap, [topic], topic) as consumer:
        assert sorted(taken(consumer, 100)) == list(range(100))
        assert consumer.assignment == everything(topic)
        assert consumer.poll(0) is None  # the last batch is done with
    fill(cluster, topic, range(100, 120))
    with sr.Consumer(cluster.bootstrap, [topic], topic) as consumer:
        assert sorted(taken(consumer, 20)) == list(range(100, 120))
    with sr.Consumer(cluster.bootstrap, [topic], "others") as consumer:
        assert sorted(taken(consumer, 120)) == list(range(120))


def test_what_was_not_done_with_is_read_again(cluster: sr.LocalCluster, topic: str) -> None:
    fill(cluster, topic, range(PARTITIONS))
    with sr.Consumer(cluster.bootstrap, [topic], topic) as consumer:
        first = consumer.poll(WAIT_S)
        assert first is not None
    with sr.Consumer(cluster.bootstrap, [topic], topic) as consumer:
        assert sorted(taken(consumer, PARTITIONS)) == list(range(PARTITIONS))


def test_by_hand_only_what_is_committed_is_done_with(cluster: sr.LocalCluster, topic: str) -> None:
    fill(cluster, topic, range(8))
    with sr.Consumer(cluster.bootstrap, [topic], topic, auto_commit=False) as consumer:
        batches: list[LogBatch] = []
        while sum(each.batch.num_rows for each in batches) < 8:
            found = consumer.poll(WAIT_S)
            assert found is not None
            batches.append(found)
        chosen = next(each for each in batches if each.partition == 1)
        consumer.commit(chosen)
    with sr.Consumer(cluster.bootstrap, [topic], topic, auto_commit=False) as consumer:
        left = sorted({*range(8)} - {*range(1, 4 * (chosen.last_offset + 1), PARTITIONS)})
        assert sorted(taken(consumer, len(left))) == left
        consumer.commit()
    with sr.Consumer(cluster.bootstrap, [topic], topic) as consumer:
        eventually(lambda: consumer.poll(0.1) is None and consumer.assignment == everything(topic), "all is read")


def test_two_share_and_nobody_reads_what_another_does(cluster: sr.LocalCluster, topic: str) -> None:
    fill(cluster, topic, range(40))
    with ExitStack() as stack:
        one, two = (stack.enter_context(sr.Consumer(cluster.bootstrap, [topic], topic)) for _ in range(2))
        found: Counter[int] = Counter()

        def shared() -> bool:
            for consumer in (one, two):
                batch = consumer.poll(0.05)
                if batch is not None:
                    found.update(batch.batch.column(0).to_pylist())
            return len(one.assignment) == len(two.assignment) == 2 and len(found) == 40

        eventually(shared, "both have two partitions, and all is read")
        assert sorted([*one.assignment, *two.assignment]) == everything(topic)
        began_s = time.monotonic()
        two.close()
        eventually(lambda: one.poll(0.01) is None and one.assignment == everything(topic), "what the other left")
        assert time.monotonic() - began_s < 2.0


def test_a_commit_of_a_partition_that_went_to_another_is_refused(cluster: sr.LocalCluster, topic: str) -> None:
    fill(cluster, topic, range(8))
    with sr.Consumer(cluster.bootstrap, [topic], topic, auto_commit=False) as one:
        given: dict[TopicPartition, LogBatch] = {}
        while len(given) < PARTITIONS:
            found = one.poll(WAIT_S)
            assert found is not None
            given[TopicPartition(topic, found.partition)] = found
        with ExitStack() as stack:
            others = [stack.enter_context(sr.Consumer(cluster.bootstrap, [topic], topic)) for _ in range(PARTITIONS)]

            def gone() -> list[TopicPartition]:
                for other in others:
                    other.poll(0.01)
                one.poll(0.01)
                return sorted(given.keys() - {*one.assignment})

            eventually(gone, "another has one of them")
            with pytest.raises(FencedMemberEpoch, match="another reads again what was not committed"):
                one.commit(given[gone()[0]])


def test_latest_leaves_nothing_out_that_came_after_it(cluster: sr.LocalCluster, topic: str) -> None:
    fill(cluster, topic, range(20))
    with sr.Consumer(cluster.bootstrap, [topic], topic, start="latest") as consumer:
        stands = "it stands at the end of all partitions"
        eventually(lambda: consumer.poll(0.05) is None and committed(cluster, topic) == PARTITIONS, stands)
    fill(cluster, topic, range(20, 40))
    with sr.Consumer(cluster.bootstrap, [topic], topic, start="latest") as consumer:
        assert sorted(taken(consumer, 20)) == list(range(20, 40))


def committed(cluster: sr.LocalCluster, group: str) -> int:
    return sum(each.offset is not None for found in cluster.admin.groups([group]) for each in found.partitions)


def test_each_thread_that_closes_it_waits_for_its_last_commit(cluster: sr.LocalCluster, topic: str) -> None:
    """A thread that heard of a signal closes it; the program's own is at its end, and would end the process."""
    fill(cluster, topic, range(20))
    consumer = sr.Consumer(cluster.bootstrap, [topic], topic, commit_interval_ms=60_000)
    taken(consumer, 20)
    assert consumer.poll(0) is None  # the last batch is done with
    pid, woken = coordinator_pid(cluster, topic), threading.Event()

    def wake() -> None:
        woken.set()
        os.kill(pid, signal.SIGCONT)

    os.kill(pid, signal.SIGSTOP)
    waking = threading.Timer(1.5, wake)
    waking.start()
    closing_it = threading.Thread(target=consumer.close)
    closing_it.start()
    try:
        assert list(consumer) == [], "it is closed"
        consumer.close()
        assert woken.is_set()
        assert committed(cluster, topic) == PARTITIONS
    finally:
        waking.join()
        closing_it.join()


def test_who_closes_it_again_does_not_wait_again(cluster: sr.LocalCluster, topic: str) -> None:
    consumer = sr.Consumer(cluster.bootstrap, [topic], topic)
    eventually(lambda: consumer.poll(0.05) is None and consumer.assignment == everything(topic), "it is a member")
    pid = coordinator_pid(cluster, topic)
    os.kill(pid, signal.SIGSTOP)
    try:
        consumer.close()
        began_s = time.monotonic()
        consumer.close()
        assert time.monotonic() - began_s < LEAVE_MS / 2_000
    finally:
        os.kill(pid, signal.SIGCONT)


def test_without_a_group_all_is_read_and_nothing_kept(cluster: sr.LocalCluster, topic: str) -> None:
    fill(cluster, topic, range(20))
    for _ in range(2):
        with sr.Consumer(cluster.bootstrap, [topic]) as consumer:
            assert sorted(taken(consumer, 20)) == list(range(20))
            cluster_wide = consumer.assignment
            with pytest.raises(InvalidRequest, match="nothing to commit to"):
                consumer.commit()
        assert cluster_wide == everything(topic)


def test_partitions_that_come_are_read_from_their_beginning(cluster: sr.LocalCluster, topic: str) -> None:
    with sr.Consumer(cluster.bootstrap, [topic], topic, start="earliest") as consumer:
        eventually(lambda: consumer.poll(0.05) is None and len(consumer.assignment) == PARTITIONS, "it reads")
        cluster.admin.add_partitions(topic, PARTITIONS + 1)
        with sr.Producer(cluster.bootstrap) as producer:
            producer.send(topic, {"number": [7]}, partition=PARTITIONS).result()
        assert taken(consumer, 1) == [7]


def test_a_topic_that_comes_later_is_read(cluster: sr.LocalCluster) -> None:
    name = "comes-later"
    with sr.Consumer(cluster.bootstrap, [name], "waits") as consumer:
        assert consumer.poll(0.5) is None
        cluster.admin.create_topic(name, SCHEMA, partitions=PARTITIONS)
        fill(cluster, name, range(4))
        assert sorted(taken(consumer, 4)) == list(range(4))


def test_closing_ends_a_wait(cluster: sr.LocalCluster, topic: str) -> None:
    consumer = sr.Consumer(cluster.bootstrap, [topic], topic)
    given: list[object] = []
    waiting = threading.Thread(target=lambda: given.extend(consumer))
    waiting.start()
    eventually(lambda: consumer.assignment == everything(topic), "it reads")
    consumer.close()
    waiting.join(WAIT_S)
    assert not waiting.is_alive()
    with pytest.raises(ClientClosed):
        consumer.poll()
    assert not [each.name for each in threading.enumerate() if each.name.startswith("consumer-")]


# Processes that are killed


class Worker:
    def __init__(self, cluster: sr.LocalCluster, topic: str, group: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, cluster.bootstrap, topic, group], stdout=subprocess.PIPE, text=True
        )
        self.given: list[int] = []
        self.last_s = 0.0
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith("]\n"):
                _, numbers = json.loads(line)
                self.given += numbers
                self.last_s = time.monotonic()

    def end(self, signal_number: int) -> None:
        self.process.send_signal(signal_number)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._thread.join(WAIT_S)


@contextmanager
def load(cluster: sr.LocalCluster, topic: str) -> Iterator[list[int]]:
    """Numbers that are acknowledged, one after the other, to all partitions in turn."""
    acknowledged: list[int] = []
    stopped = threading.Event()

    def produce() -> None:
        with sr.Producer(cluster.bootstrap) as producer:
            number = 0
            while not stopped.is_set():
                producer.send(topic, {"number": [number]}, partition=number % PARTITIONS).result(60)
                acknowledged.append(number)
                number += 1
                stopped.wait(0.002)

    thread = threading.Thread(target=produce, daemon=True)
    thread.start()
    try:
        yield acknowledged
    finally:
        stopped.set()
        thread.join(WAIT_S)


def test_a_killed_consumers_partitions_are_read_on_within_two_seconds(cluster: sr.LocalCluster, topic: str) -> None:
    with ExitStack() as stack:
        acknowledged = stack.enter_context(load(cluster, topic))
        workers = [stack.enter_context(closing(Worker(cluster, topic, topic))) for _ in range(2)]
        eventually(lambda: all(len(worker.given) > 50 for worker in workers), "both read")
        workers[0].close()
        killed_s, before = time.monotonic(), len(acknowledged)
        read_on(workers[1:], before)
        took_s = time.monotonic() - killed_s
        assert took_s < 2.0
        stack.enter_context(closing(Worker(cluster, topic, topic)))
    count = len(acknowledged)
    assert_all_given(cluster, topic, count, [number for worker in workers for number in worker.given])


def assert_all_given(cluster: sr.LocalCluster, topic: str, count: int, given: list[int]) -> None:
    """What was not given yet is given to whoever comes now: together each row, and none is skipped."""
    found = {*given}
    with sr.Consumer(cluster.bootstrap, [topic], topic) as consumer:
        until_s = time.monotonic() + WAIT_S
        while not found >= {*range(count)}:
            assert time.monotonic() < until_s, sorted({*range(count)} - found)[:20]
            batch = consumer.poll(0.5)
            if batch is not None:
                found.update(batch.batch.column(0).to_pylist())


def test_a_stopped_consumer_that_wakes_up_commits_nothing(cluster: sr.LocalCluster, topic: str) -> None:
    with ExitStack() as stack:
        acknowledged = stack.enter_context(load(cluster, topic))
        workers = [stack.enter_context(closing(Worker(cluster, topic, topic))) for _ in range(2)]
        eventually(lambda: all(len(worker.given) > 50 for worker in workers), "both read")
        workers[0].end(signal.SIGSTOP)
        before = len(acknowledged)
        read_on(workers[1:], before)
        workers[0].end(signal.SIGCONT)
        after = len(acknowledged)
        eventually(lambda: any(number >= after for number in workers[0].given), "it is a member again", timeout_s=30)
    count = len(acknowledged)
    assert_all_given(cluster, topic, count, [number for worker in workers for number in worker.given])


def read_on(workers: list[Worker], before: int) -> None:
    """Wait until what came later is read, of every partition."""

    def is_read() -> bool:
        return len({number % PARTITIONS for each in workers for number in each.given if number >= before}) == PARTITIONS

    eventually(is_read, "all is read on")


def coordinator_pid(cluster: sr.LocalCluster, group: str) -> int:
    (found,) = cluster.admin.metadata(["__groups"]).topics
    number = partition_of(found, group.encode())
    leader = next(each.state.leader for each in found.partitions if each.partition == number)
    assert leader is not None
    return cluster.brokers[leader].pid


def test_a_group_survives_its_coordinator(cluster: sr.LocalCluster, topic: str) -> None:
    with ExitStack() as stack:
        acknowledged = stack.enter_context(load(cluster, topic))
        workers = [stack.enter_context(closing(Worker(cluster, topic, topic))) for _ in range(2)]
        eventually(lambda: all(len(worker.given) > 50 for worker in workers), "both read")
        for _ in range(2):
            os.kill(coordinator_pid(cluster, topic), signal.SIGKILL)
            read_on(workers, len(acknowledged))
            cluster.wait_healthy()
    count = len(acknowledged)
    assert_all_given(cluster, topic, count, [number for worker in workers for number in worker.given])


def test_a_group_goes_on_without_a_coordinator_that_answers_nothing(cluster: sr.LocalCluster, topic: str) -> None:
    """It is stopped: its connections stay. Nobody leaves the group for that, or reads anything again."""
    with ExitStack() as stack:
        acknowledged = stack.enter_context(load(cluster, topic))
        workers = [stack.enter_context(closing(Worker(cluster, topic, topic))) for _ in range(2)]
        eventually(lambda: all(len(worker.given) > 50 for worker in workers), "both read")
        pid = coordinator_pid(cluster, topic)
        os.kill(pid, signal.SIGSTOP)
        try:
            eventually(lambda: coordinator_pid(cluster, topic) != pid, "another coordinates")
            read_on(workers, len(acknowledged))
            before = len(acknowledged)
            eventually(lambda: done_with(cluster, topic) >= before, "what was read since is committed")
        finally:
            os.kill(pid, signal.SIGCONT)
        cluster.wait_healthy()
        given = [number for worker in workers for number in worker.given]
        assert len(given) == len({*given}), "some was read again"
    count = len(acknowledged)
    assert_all_given(cluster, topic, count, [number for worker in workers for number in worker.given])


def done_with(cluster: sr.LocalCluster, group: str) -> int:
    """So many records are committed."""
    return sum(each.offset or 0 for found in cluster.admin.groups([group]) for each in found.partitions)

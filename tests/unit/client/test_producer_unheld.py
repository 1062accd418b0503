"""A producer that nobody holds and nobody has closed: it writes what it was given, and leaves nothing behind."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from spark_replication.client.producing.producer import Producer
from tests.unit.client.fake_cluster import PASSES_MS, FakeCluster
from tests.unit.client.test_producer import WAIT_S, numbers, offsets, send
from tests.waiting import eventually

PROGRAM = """
import sys
import pyarrow as pa
import spark_replication as sr

def write():
    producer = sr.Producer(sys.argv[1])
    for number in range(50):
        producer.send("orders", pa.record_batch({"number": pa.array([number])}), 0)

write()
"""


#: The threads that were there before a test, of whatever other tests have left.
Before = set[threading.Thread]


@pytest.fixture
def before() -> Before:
    return set(threading.enumerate())


def since(before: Before) -> list[str]:
    """The names of the threads of producers that have come since, and are there."""
    there = set(threading.enumerate()) - before
    return sorted(thread.name for thread in there if thread.name.startswith("producer"))


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.mark.slow
def test_what_a_function_sent_and_dropped_is_written_though_the_program_ends_at_once(cluster: FakeCluster) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, cluster.bootstrap], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert cluster.log().numbers == list(range(50))


def test_what_was_given_to_a_producer_is_written_though_nobody_holds_it(cluster: FakeCluster, before: Before) -> None:
    with cluster.silent():
        futures = send(Producer(cluster.bootstrap, deadline_ms=15_000), 50)
        assert not any(future.done() for future in futures)
    assert offsets(futures) == list(range(50))
    eventually(lambda: not since(before), "its threads end")


def test_producers_that_nobody_holds_leave_no_thread_and_no_descriptor(cluster: FakeCluster, before: Before) -> None:
    with Producer(cluster.bootstrap) as first:  # what is opened once in a process
        first.send("orders", numbers(0), 0).result(WAIT_S)
    eventually(lambda: not since(before), "its threads end")
    open_before = descriptors()
    for _ in range(10):
        Producer(cluster.bootstrap).send("orders", numbers(1), 0).result(WAIT_S)
    eventually(lambda: not since(before), "their threads end")
    eventually(lambda: descriptors() <= open_before, "their descriptors are closed")


def test_what_nobody_waits_for_and_cannot_be_written_is_told_in_the_log(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR), cluster.silent():
        send(Producer(cluster.bootstrap, deadline_ms=PASSES_MS), 3)
        eventually(lambda: caplog.messages, "it is told")
    assert "nobody holds it any more" in caplog.messages[0]
    assert "3 of its last 3 sends are not acknowledged" in caplog.messages[0]


def test_a_producer_that_was_closed_is_not_ended_again(cluster: FakeCluster) -> None:
    producer = Producer(cluster.bootstrap)
    producer.send("orders", numbers(1), 0).result(WAIT_S)
    producer.close()
    assert not producer._closing.alive

"""What a producer makes of many small sends: few stored batches, an answer for each send, and nothing left behind."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import Future

import pyarrow as pa
import pytest

from spark_replication.client.producing.producer import Producer
from spark_replication.client.producing.sender import SEND_BYTES
from spark_replication.engine.client.sending import Ack
from spark_replication.errors import BatchTooLarge, ReplicationError, RequestTimedOut
from spark_replication.messages.records import BatchMetadata
from tests.unit.client.fake_cluster import SCHEMA, FakeCluster

WAIT_S = 20.0
LONG_MS = 600_000  # a test that waits for this fails


def numbers(*values: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.int64())], schema=SCHEMA)


def sizes(cluster: FakeCluster) -> list[int]:
    return [stored.batch.num_rows for stored in cluster.log().batches]


def lingering(cluster: FakeCluster, linger_ms: int = LONG_MS, batch_bytes: int = 256 << 10) -> Producer:
    return Producer(cluster.bootstrap, deadline_ms=LONG_MS + 1, linger_ms=linger_ms, batch_bytes=batch_bytes)


def test_sends_that_linger_are_one_stored_batch_and_each_has_its_own_answer(cluster: FakeCluster) -> None:
    with lingering(cluster) as producer:
        futures = [producer.send("orders", batch, 0) for batch in (numbers(1), numbers(2, 3, 4), numbers(5, 6))]
        producer.flush()
    assert [future.result(WAIT_S) for future in futures] == [
        Ack(topic="orders", partition=0, base_offset=base, last_offset=last) for base, last in ((0, 0), (1, 3), (4, 5))
    ]
    assert sizes(cluster) == [6]
    assert cluster.log().numbers == [1, 2, 3, 4, 5, 6]


def test_a_full_batch_lingers_no_more(cluster: FakeCluster) -> None:
    size = pa.ipc.get_record_batch_size(numbers(0)) + SEND_BYTES
    with lingering(cluster, batch_bytes=3 * size) as producer:
        futures = [producer.send("orders", numbers(number), 0) for number in range(7)]
        assert [future.result(WAIT_S).base_offset for future in futures[:6]] == [0, 1, 2, 3, 4, 5]
        assert not futures[6].done()
    assert sizes(cluster) == [3, 3, 1]


def test_a_batch_lingers_for_linger_ms_and_no_longer(cluster: FakeCluster) -> None:
    with lingering(cluster, linger_ms=20) as producer:
        assert producer.send("orders", numbers(1), 0).result(WAIT_S).base_offset == 0


def test_a_batch_larger_than_batch_bytes_goes_at_once_and_by_itself(cluster: FakeCluster) -> None:
    with lingering(cluster, batch_bytes=SEND_BYTES) as producer:
        assert producer.send("orders", numbers(*range(100)), 0).result(WAIT_S).last_offset == 99


def test_what_fills_the_window_does_not_linger(cluster: FakeCluster) -> None:
    with Producer(
        cluster.bootstrap, deadline_ms=LONG_MS + 1, linger_ms=LONG_MS, in_flight_bytes_max=3 * SEND_BYTES
    ) as producer:
        futures = [producer.send("orders", numbers(number), 0) for number in range(9)]
    assert [future.result(WAIT_S).base_offset for future in futures] == list(range(9))


def test_without_lingering_the_first_goes_alone_and_the_rest_is_joined_behind_it(cluster: FakeCluster) -> None:
    with Producer(cluster.bootstrap) as producer:
        with cluster.silent():
            futures = [producer.send("orders", numbers(number), 0) for number in range(500)]
        assert [future.result(WAIT_S).base_offset for future in futures] == list(range(500))
    assert len(sizes(cluster)) < 50


def test_a_bad_send_fails_alone_wherever_it_is_in_its_batch(cluster: FakeCluster) -> None:
    def refuse(batch: pa.RecordBatch, _metadata: BatchMetadata) -> ReplicationError | None:
        return BatchTooLarge("split it") if {7, 13} & set(batch.column(0).to_pylist()) else None

    cluster.refuse = refuse
    with lingering(cluster) as producer:
        futures = [producer.send("orders", numbers(number), 0) for number in range(20)]
    failed = {number: future.exception(WAIT_S) for number, future in enumerate(futures) if future.exception(WAIT_S)}
    assert list(failed) == [7, 13]
    assert not any(isinstance(error, ReplicationError) and error.maybe_written for error in failed.values())
    good = [number for number in range(20) if number not in failed]
    assert cluster.log().numbers == good
    assert [futures[number].result().base_offset for number in good] == list(range(18))


def test_a_joined_batch_that_is_too_large_is_split_at_its_sends(cluster: FakeCluster) -> None:
    cluster.refuse = lambda batch, _metadata: BatchTooLarge("over 3 rows") if batch.num_rows > 3 else None
    with lingering(cluster) as producer:
        futures = [producer.send("orders", numbers(number), 0) for number in range(16)]
    assert [future.result(WAIT_S).base_offset for future in futures] == list(range(16))
    assert sizes(cluster) == [2] * 8


def test_batches_that_differ_in_metadata_alone_are_joined(cluster: FakeCluster) -> None:
    with lingering(cluster) as producer:
        for number in range(4):
            producer.send("orders", numbers(number).replace_schema_metadata({"number": str(number)}), 0)
    assert sizes(cluster) == [4]


def test_many_threads_share_a_producer(cluster: FakeCluster) -> None:
    """Each thread's rows are in its order, and each answer says where its rows are."""
    threads, each = 16, 200
    sent: dict[int, list[Future[Ack]]] = {}
    with Producer(cluster.bootstrap, linger_ms=2, batch_bytes=20 * SEND_BYTES, in_flight_batches_max=4) as producer:

        def send(thread: int) -> None:
            sent[thread] = [producer.send("orders", numbers(thread * each + number), 0) for number in range(each)]

        running = [threading.Thread(target=send, args=(thread,)) for thread in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    there = cluster.log().numbers
    assert sorted(there) == list(range(threads * each))
    for number, futures in sent.items():
        places = [future.result(WAIT_S).base_offset for future in futures]
        assert [there[place] for place in places] == list(range(number * each, (number + 1) * each))
        assert places == sorted(places)


FORGETFUL = """
import sys
import pyarrow as pa
import spark_replication as sr
producer = sr.Producer(sys.argv[1], deadline_ms=int(sys.argv[2]), linger_ms=int(sys.argv[2]) - 1)
for number in range(100):
    producer.send("orders", pa.record_batch({"number": pa.array([number])}), 0)
"""


FORKED = """
import os
child = os.fork()
if child:
    assert os.waitpid(child, 0)[1] == 0
"""


FORKED_CLIENTS = """
import os, sys
import pyarrow as pa
import spark_replication as sr
batch = pa.record_batch({"number": pa.array([1])})
with sr.Producer(sys.argv[1]) as producer, sr.Reader(sys.argv[1]) as reader:
    producer.send("orders", batch, 0).result(20)
    child = os.fork()
    for client, ask in (
        ("Producer", lambda: producer.send("orders", batch, 0)),
        ("Producer", producer.flush),
        ("Reader", lambda: reader.read("orders")),
    ):
        try:
            ask()
        except sr.errors.InvalidRequest as error:
            assert not child
            assert f"by spawn or forkserver, and make a {client} in it" in error.message
        else:
            assert child
if child:
    assert os.waitpid(child, 0)[1] == 0
"""


FORKED_ANEW = """
import os, signal, sys
import pyarrow as pa
import spark_replication as sr
if sys.argv[2] == "asked":
    sr.Admin(sys.argv[1]).describe_cluster()
child = os.fork()
if child:
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    sys.exit()
signal.alarm(20)
for kind in (sr.Producer, sr.Reader, sr.Admin):
    try:
        client = kind(sys.argv[1])
    except sr.errors.InvalidRequest as error:
        print(error.message)
        continue
    if kind is sr.Producer:
        client.send("orders", pa.record_batch({"number": pa.array([1])})).result(15)
        client.close()
    elif kind is sr.Reader:
        print([found.base_offset for number in range(3) for found in client.read("orders", number)])
"""


def run_forgetful(cluster: FakeCluster, deadline_ms: int, then: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", FORGETFUL + then, cluster.bootstrap, str(deadline_ms)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)


@pytest.mark.slow
def test_a_program_that_ends_without_close_has_written_what_it_sent(cluster: FakeCluster) -> None:
    assert run_forgetful(cluster, LONG_MS).stderr == ""
    assert cluster.log().numbers == list(range(100))


@pytest.mark.slow
def test_a_program_that_ends_without_close_says_what_was_not_acknowledged(cluster: FakeCluster) -> None:
    with cluster.silent():
        said = run_forgetful(cluster, 1_000).stderr
    assert "100 of its last 100 sends are not acknowledged" in said
    assert RequestTimedOut.code in said


@pytest.mark.slow
def test_a_fork_leaves_the_producer_to_the_process_that_has_its_threads(cluster: FakeCluster) -> None:
    assert run_forgetful(cluster, LONG_MS, FORKED).stderr == ""
    assert cluster.log().numbers == list(range(100))


@pytest.mark.slow
def test_a_fork_is_told_at_once_to_make_clients_of_its_own(cluster: FakeCluster) -> None:
    command = [sys.executable, "-c", FORKED_CLIENTS, cluster.bootstrap]
    said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    assert (said.returncode, said.stderr) == (0, "")
    assert cluster.log().numbers == [1, 1]


def run_forked(cluster: FakeCluster, parent: str) -> list[str]:
    command = [sys.executable, "-c", FORKED_ANEW, cluster.bootstrap, parent]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout.splitlines()


@pytest.mark.slow
def test_a_fork_of_a_process_that_has_spoken_to_a_cluster_is_refused_at_once(cluster: FakeCluster) -> None:
    """gRPC would wait there for ever."""
    *refused, status = run_forked(cluster, "asked")
    assert status == "0"
    assert len(refused) == 3, "Producer, Reader and Admin"
    assert all("start it by spawn or forkserver" in each for each in refused)


@pytest.mark.slow
def test_a_fork_of_any_other_process_has_clients_of_its_own(cluster: FakeCluster) -> None:
    assert run_forked(cluster, "silent") == ["[0]", "0"], "it has read what it wrote"


@pytest.mark.parametrize("batch_bytes", [0, 256 << 10])
def test_close_sends_what_lingers(cluster: FakeCluster, batch_bytes: int) -> None:
    producer = lingering(cluster, batch_bytes=batch_bytes)
    futures = [producer.send("orders", numbers(number), 0) for number in range(5)]
    producer.close()
    producer.close()
    assert [future.result(0).base_offset for future in futures] == list(range(5))

"""Everything at once, from a seed: connections cut, leaders moved, batches refused, brokers silent, deadlines short."""

from __future__ import annotations

import random
import threading
from concurrent.futures import Future

import pyarrow as pa
import pytest

from spark_replication.client.producing.producer import Producer
from spark_replication.client.producing.sender import SEND_BYTES
from spark_replication.engine.client.sending import Ack
from spark_replication.errors import BatchTooLarge, NotEnoughReplicas, NotLeader, Overloaded, ReplicationError
from spark_replication.messages.records import BatchMetadata
from tests.unit.client.fake_cluster import SCHEMA, FakeBroker, FakeCluster

BATCHES = 150
WAIT_S = 30.0


class Chaos:
    def __init__(self, cluster: FakeCluster, seed: int) -> None:
        self._cluster = cluster
        self._rng = random.Random(seed)  # used under the cluster's lock, or before an answer
        self._lock = threading.Lock()

    def refuse(self, batch: pa.RecordBatch, metadata: BatchMetadata) -> ReplicationError | None:
        log = self._cluster.log()
        match self._roll():
            case 0 | 1:
                return NotEnoughReplicas("wait for followers")
            case 2:
                log.leader = 3 - (log.leader or 1)
                log.leader_epoch += 1
            case 3 if log.leader is not None:
                try:
                    log.append(batch, metadata)
                except ReplicationError as error:
                    return error
                return NotLeader("stepped aside after the append", maybe_written=True)
        if any(number % 17 == 3 for number in batch.column(0).to_pylist()):
            return BatchTooLarge("split it")
        return None

    def before_answer(self, broker: FakeBroker) -> None:
        if self._roll() == 4:
            broker.proxy.cut()

    def _roll(self) -> int:
        with self._lock:
            return self._rng.randrange(60)


QUICK = [(0, 0), (2, 5 * SEND_BYTES)]
OTHERS = [(1, 0), *((seed, 5 * SEND_BYTES) for seed in range(3, 8))]


@pytest.mark.slow
@pytest.mark.parametrize("deadline_ms", [400, 20_000])
@pytest.mark.parametrize(
    ("seed", "batch_bytes"), [*QUICK, *(pytest.param(*each, marks=pytest.mark.slow) for each in OTHERS)]
)
def test_what_is_acknowledged_is_there_once_and_what_is_surely_not_written_is_not(
    cluster: FakeCluster, seed: int, batch_bytes: int, deadline_ms: int
) -> None:
    chaos = Chaos(cluster, seed)
    cluster.refuse, cluster.before_answer = chaos.refuse, chaos.before_answer
    sent: dict[int, Future[Ack]] = {}
    with Producer(
        cluster.bootstrap, deadline_ms=deadline_ms, in_flight_batches_max=50, batch_bytes=batch_bytes
    ) as producer:
        for number in range(BATCHES):
            try:
                sent[number] = producer.send("orders", pa.record_batch([pa.array([number])], schema=SCHEMA), 0)
            except Overloaded:
                continue
    there = cluster.log().numbers
    where = f"seed={seed} batch_bytes={batch_bytes} deadline_ms={deadline_ms}"
    assert sorted(set(there)) == there, f"{where}: doubled, or out of order"
    for number, future in sent.items():
        error = future.exception(WAIT_S)
        if error is None:
            assert there[future.result().base_offset] == number, f"{where}: batch {number} is not where its answer says"
        else:
            assert isinstance(error, ReplicationError)
            assert error.maybe_written or number not in there, f"{where}: {number} is there, in spite of {error}"
    if deadline_ms > 10_000:
        # A neighbour of a bad send may fail only if nobody can say whether the batch that both were in is there.
        doubtful = {number for number, future in sent.items() if batch_bytes and _in_doubt(future)}
        lost = [n for n in range(BATCHES) if n % 17 != 3 and n not in there and n not in doubtful]
        assert not lost, f"{where}: {lost} failed, and nothing stood in their way for good"


def _in_doubt(future: Future[Ack]) -> bool:
    error = future.exception(WAIT_S)
    return isinstance(error, BatchTooLarge) and error.maybe_written

"""A follower that stands still while production goes on: the leader holds nothing for it, and it catches up."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tests.live.broker.brokers import Cluster, Put
from tests.live.broker.conftest import StartCluster
from tests.live.cluster.faults import stopped
from tests.waiting import eventually

pytestmark = pytest.mark.live

SCHEMA = pa.schema([pa.field("number", pa.int64())])
BATCH = pa.record_batch([pa.array(range(32_768), pa.int64())], schema=SCHEMA)  # 256 KiB
IN_FLIGHT = 16
STANDING_STILL_BATCHES = 800  # 200 MiB
CATCHING_UP_BATCHES = 100
GROWTH_BYTES_MAX = 64 << 20


def produce(cluster: Cluster, batches: int, metadata: bytes) -> None:
    """Never more than so many without an answer, so that what is in flight explains no memory."""
    put = Put(cluster.client(1), "orders", SCHEMA)
    for number in range(batches):
        put.send(BATCH, metadata)
        if number >= IN_FLIGHT:
            assert "error" not in put.answer()
    for _ in range(min(batches, IN_FLIGHT)):
        assert "error" not in put.answer()
    put.close()


def resident_bytes(pid: int) -> int:
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024


def same_on_all(cluster: Cluster) -> bool:
    first, *others = (cluster.data_files(broker, "orders") for broker in (1, 2, 3))
    return all(other == first for other in others)


@pytest.mark.parametrize("acks", ["1", '"all"'])
def test_a_follower_that_stands_still_costs_the_leader_no_memory_and_catches_up(
    start_cluster: StartCluster, acks: str
) -> None:
    cluster = start_cluster(brokers=3, settings={"replica.lag.time.ms": 400})
    cluster.create_topic("orders", (1, 2, 3), schema=SCHEMA)
    metadata = b'{"acks":%s}' % acks.encode()
    produce(cluster, 4 * IN_FLIGHT, metadata)
    leader, follower = cluster.processes[1].pid, cluster.processes[3].pid
    before = resident_bytes(leader)
    with stopped(follower):
        produce(cluster, 1, metadata)  # acks=all is answered once it has left the ISR
        eventually(lambda: cluster.stored("orders").state.isr == {1, 2}, "broker 3 leaves the ISR")
        produce(cluster, STANDING_STILL_BATCHES, metadata)
        grown = resident_bytes(leader) - before
        assert grown < GROWTH_BYTES_MAX, f"{grown >> 20} MiB more"
    produce(cluster, CATCHING_UP_BATCHES, metadata)
    eventually(lambda: cluster.stored("orders").state.isr == {1, 2, 3}, "broker 3 is in sync again")
    eventually(lambda: same_on_all(cluster), "the same bytes everywhere")
    assert sum(map(len, cluster.data_files(3, "orders").values())) > STANDING_STILL_BATCHES * BATCH.nbytes

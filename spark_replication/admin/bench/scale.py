"""What a partition costs the controller and those whom it tells, and what that makes of a larger cluster.

All of it is measured in this process, on the code that ships: no ZooKeeper, no network. What a cost becomes in a larger
cluster is a product, as long as the cost of a partition does not grow with their number: the measured clusters show
whether it does.
"""

from __future__ import annotations

import math
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import msgspec

from spark_replication.admin.bench.decide import EACH, REPLICAS, cluster_of, failed
from spark_replication.admin.bench.harness import Progress
from spark_replication.core.controller.announcing import announce
from spark_replication.core.controller.cluster import ClusterState
from spark_replication.core.controller.events import TookOver
from spark_replication.messages.commands import Command, UpdateMetadata
from spark_replication.messages.envelope import from_json, to_json
from spark_replication.model import encode
from spark_replication.process.memory import Collecting

ROUNDS = 3

Result = TypeVar("Result")


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    brokers: int
    partitions: int


class Costs(Cluster, frozen=True, kw_only=True):
    """What one partition costs. Times are those of one core."""

    #: Memory of the controller.
    controller_bytes: float
    #: Of its node in ZooKeeper.
    znode_bytes: float
    #: To decide and announce what follows for it from the failure of a broker that has it.
    failure_us: float
    #: In a command that names it.
    command_bytes: float
    #: To encode it in a command, and to decode that.
    encode_us: float
    decode_us: float


class Need(msgspec.Struct, frozen=True, kw_only=True):
    what: str
    amount: float
    unit: str


def measure(clusters: Sequence[Cluster], progress: Progress) -> Iterator[Costs]:
    collecting = Collecting()  # as in every broker and controller: else Python's collector would be most of it
    collecting.start()
    try:
        for cluster in clusters:
            progress(f"{cluster.partitions:,} partitions on {cluster.brokers} brokers")
            yield _costs(cluster)
    finally:
        collecting.stop()


def _costs(cluster: Cluster) -> Costs:
    tracemalloc.start()
    state = _made(cluster)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    everything = _everything(state)
    encode_s, told = _timed(lambda: to_json(everything))
    decode_s, _ = _timed(lambda: from_json(told, UpdateMetadata))
    znodes = sum(len(encode(stored.state)) for stored in state.partitions.values())
    count = cluster.partitions
    return Costs(
        brokers=cluster.brokers,
        partitions=count,
        controller_bytes=round(taken / count),
        znode_bytes=round(znodes / count),
        failure_us=round(min(failed(_made(cluster))[0][EACH] for _ in range(ROUNDS)), 2),
        command_bytes=round(len(told) / count),
        encode_us=round(encode_s / count * 1e6, 2),
        decode_us=round(decode_s / count * 1e6, 2),
    )


def _made(cluster: Cluster) -> ClusterState:
    return cluster_of(cluster.partitions, range(1, cluster.brokers + 1))


def _everything(state: ClusterState) -> Command:
    """What a broker is told of all partitions, as it begins or the controller does."""
    *_, (_, command) = announce(state, TookOver(), ())
    assert isinstance(command, UpdateMetadata), "it comes last"
    return command


def _timed(work: Callable[[], Result]) -> tuple[float, Result]:
    """The shortest of some times: other work of the machine can only add to it."""
    took_s, result = math.inf, None
    for _ in range(ROUNDS):
        start_s = time.perf_counter()
        result = work()
        took_s = min(took_s, time.perf_counter() - start_s)
    assert result is not None, "it has run"
    return took_s, result


def needs(costs: Costs, of: Cluster) -> list[Need]:
    """What a cluster of that size needs, if a partition costs there what it has cost here."""
    hosted = of.partitions * REPLICAS / of.brokers
    led = of.partitions / of.brokers
    told_of_failure = led * (of.brokers - 1) + led * (REPLICAS - 1)
    told_at_takeover = of.partitions * (of.brokers + REPLICAS)
    return [
        _gb("the controller's memory", of.partitions * costs.controller_bytes),
        _gb("what ZooKeeper holds of partitions", of.partitions * costs.znode_bytes),
        Need(what="a broker fails: nodes that the controller writes", amount=round(led), unit="nodes"),
        Need(what="a broker fails: nodes that leaders write later", amount=round(hosted - led), unit="nodes"),
        _s("a broker fails: decided and announced", hosted * costs.failure_us),
        _gb("a broker fails: told to the others", told_of_failure * costs.command_bytes),
        _s("a broker fails: that is encoded", told_of_failure * costs.encode_us),
        _s("a broker fails: each takes it in", led * costs.decode_us),
        _gb("a controller takes over: told to all", told_at_takeover * costs.command_bytes),
        _s("a controller takes over: that is encoded", told_at_takeover * costs.encode_us),
        _s("a controller takes over: each takes it in", of.partitions * costs.decode_us),
    ]


def _gb(what: str, count_bytes: float) -> Need:
    return Need(what=what, amount=round(count_bytes / 1e9, 2), unit="GB")


def _s(what: str, us: float) -> Need:
    return Need(what=what, amount=round(us / 1e6, 2), unit="s")

"""The coordinators of a simulated broker, over its own logs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from spark_replication.core.groups.idle import FOR_EVER_MS
from spark_replication.engine.groups.coordinators import Coordinators, KnownPartitions
from spark_replication.engine.groups.group_log import ReadRows, Soon
from spark_replication.engine.replica.partition import Partition
from spark_replication.engine.replica.replica_loop import ReplicaLoop
from spark_replication.errors import ReplicationError
from spark_replication.model import Offset
from spark_replication.sim.world.group_rows import StoredOneByOne

if TYPE_CHECKING:
    from spark_replication.sim.cast.broker import BrokerProcess

SNAPSHOT_ROWS = 10

Appended = Callable[["BrokerProcess", ReplicaLoop, Offset], None]


def coordinators_of(process: BrokerProcess, appended: Appended) -> Coordinators:
    """appended: told of each row that they append."""

    def soon_at(partition: Partition) -> Soon:
        def watched(call: Callable[[ReplicaLoop], None], replica: ReplicaLoop) -> None:
            before = replica.log.log_end
            call(replica)
            for offset in range(before, replica.log.log_end):
                appended(process, replica, offset)

        def soon(call: Callable[[ReplicaLoop], None], in_ms: float) -> None:
            if in_ms:
                later = partial(partition.do, partial(watched, call))
                process.world.after(round(in_ms), "append what nobody waits for", later, on=process)
            else:
                partition.post(partial(watched, call))

        return soon

    return Coordinators(
        lambda: process.loop.replicas,
        KnownPartitions(
            lambda: process.loop.known_topics,
            lambda: process.loop.brokers,
            clock_ms=lambda: process.world.now_ms,
            now_ms=process.clock_ms,
        ),
        StoredOneByOne(),
        _load_at_once,
        soon_at=soon_at,
        retention_ms=FOR_EVER_MS,
        snapshot_rows_min=SNAPSHOT_ROWS,
    )


def _load_at_once(load: Callable[[], ReadRows], then: Callable[[ReadRows | ReplicationError], None]) -> None:
    try:
        found = load()
    except ReplicationError as error:
        then(error)
    else:
        then(found)

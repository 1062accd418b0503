"""How long a look at many partitions waits for them: another thread may have one for as long as a disk takes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from spark_replication.engine.replica.partition import Partition
from spark_replication.engine.replica.replica_loop import ReplicaLoop

ROUND_S = 0.2


class RoundPatience:
    """One round over partitions. A partition that is not free in time is left for the next round."""

    def __init__(self, round_s: float = ROUND_S) -> None:
        """round_s: how long the round waits for partitions, all of them together."""
        self._left_s = round_s

    @contextmanager
    def holds(self, partition: Partition) -> Iterator[ReplicaLoop | None]:
        """engine.replica.partition.Holds."""
        replica = partition.take(0)
        if replica is None and self._left_s > 0:
            began_s = time.monotonic()
            replica = partition.take(self._left_s)
            self._left_s -= time.monotonic() - began_s
        try:
            yield replica
        finally:
            if replica is not None:
                partition.give_back()

"""What keeps the cluster from health, in few words, for the mirror's `status`: its other tables have the rest."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from spark_replication.core.controller.cluster import ClusterState
from spark_replication.core.controller.describing import described
from spark_replication.core.controller.health import metrics
from spark_replication.messages.descriptions import Metadata

LOOK_S = 5.0  # a look at every partition, 12 ms of 10,000


class Concerns:
    """others: what is wrong besides partitions, of a description that has none; tell: who wants to know. For the
    controller's thread: neither of them may wait for anything."""

    def __init__(self, others: Callable[[Metadata], Sequence[str]], tell: Callable[[Sequence[str]], None]) -> None:
        self._others = others
        self._tell = tell
        self._due_s = 0.0

    def look(self, cluster: ClusterState) -> None:
        """At times, however often it is called."""
        now_s = time.monotonic()
        if now_s >= self._due_s:
            self._due_s = now_s + LOOK_S
            self._tell((*self._others(described(cluster, (), None)), *counted(cluster)))


def counted(cluster: ClusterState) -> list[str]:
    """The worst first."""
    found = metrics(cluster)
    counts = {
        "partitions without a leader": found.offline_partitions,
        "partitions with fewer replicas in sync than acks=all needs": found.under_min_isr_partitions,
        "partitions that wait for an election by hand": found.manual_leader_election_required_partitions,
    }
    return [f"{what}: {count}" for what, count in counts.items() if count]

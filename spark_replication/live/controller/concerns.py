"""What keeps the cluster from health, in few words, for the mirror's table `status`: the other tables have the rest."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from spark_replication.core.controller.cluster import ClusterState
from spark_replication.core.controller.describing import described
from spark_replication.messages.descriptions import Metadata
from spark_replication.process.threads import Worker, name_of_dead
from spark_replication.view.cluster_metrics import metrics

LOOK_S = 5.0


class Concerns:
    """Looks at a copy of the cluster on a thread of its own: if nobody leads any of 10,000 partitions, a look takes
    tens of milliseconds."""

    def __init__(self, others: Callable[[Metadata], Sequence[str]], tell: Callable[[Sequence[str]], None]) -> None:
        """others: what is wrong besides partitions, given a description without partitions. tell: takes the result. The
        thread calls both."""
        self._others = others
        self._tell = tell
        self._due_s = 0.0  # only the controller's thread uses it
        self._changed = threading.Condition()  # guards what follows
        self._copy: ClusterState | None = None  # the copy to look at, until that has been done
        self._is_over = False
        self._worker = Worker(self._run, "concerns")

    def start(self) -> None:
        self._worker.start()

    def close(self) -> None:
        """Begin no more looks. One that is under way ends by itself, and only its own controller's mirror hears of
        it."""
        with self._changed:
            self._worker.stop()
            self._is_over = True
            self._changed.notify_all()

    def dead_thread(self) -> str:
        """The name of its thread if that has died, else empty."""
        return name_of_dead([self._worker])

    def look(self, cluster: ClusterState) -> None:
        """Begin a look if one is due, and none is under way. Called on the controller's thread, which makes the copy:
        1.5 ms for 10,000 partitions."""
        now_s = time.monotonic()
        if now_s < self._due_s:
            return
        self._due_s = now_s + LOOK_S
        with self._changed:
            if self._copy is None:
                self._copy = cluster.snapshot()
                self._changed.notify_all()

    def _run(self) -> None:
        while (copy := self._next()) is not None:
            self._tell((*self._others(described(copy, (), None)), *counted(copy)))
            with self._changed:
                self._copy = None

    def _next(self) -> ClusterState | None:
        """Wait for a copy. None: it is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or self._copy is not None)
            return None if self._is_over else self._copy


def counted(cluster: ClusterState) -> list[str]:
    """How many partitions have which trouble, the worst first."""
    found = metrics(cluster)
    counts = {
        "partitions without a leader": found.offline_partitions,
        "partitions with fewer replicas in sync than acks=all needs": found.under_min_isr_partitions,
        "partitions that wait for an election by hand": found.manual_leader_election_required_partitions,
    }
    return [f"{what}: {count}" for what, count in counts.items() if count]

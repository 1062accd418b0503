"""The controller's last description of all topics, kept for whoever asks again and again: most often nothing is new."""

from __future__ import annotations

import threading
import uuid

from msgspec.structs import replace

from spark_replication.core.controller.cluster import ClusterState
from spark_replication.core.controller.describing import described, is_described_alike
from spark_replication.messages.descriptions import Metadata


class LastDescribed:
    """Thread-safe. Two askers wait for each other: the second one finds what the first has made."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: tuple[ClusterState, Metadata] | None = None

    def of(self, cluster: ClusterState, controller: str, unless: str) -> Metadata:
        """The description of all topics of this snapshot, without them if `unless` is its mark."""
        with self._lock:
            last = self._last
            if last is None or last[1].controller != controller or not is_described_alike(last[0], cluster):
                told = replace(described(cluster, None, controller), mark=uuid.uuid4().hex)
                last = self._last = (cluster, told)
        told = last[1]
        return replace(told, topics=(), is_unchanged=True) if unless == told.mark else told

"""How far the replicas that are being added to a partition have come, as its leader sees it.

Whoever calls has the partition.
"""

from __future__ import annotations

from contextlib import suppress

from spark_replication.core.replica.copying import Pace, observed
from spark_replication.core.replica.replica import Leading
from spark_replication.errors import StorageFailed
from spark_replication.messages.descriptions import CopySize
from spark_replication.model import BrokerId
from spark_replication.ports import ReplicaLog


class CopyProgress:
    def __init__(self, log: ReplicaLog) -> None:
        self._log = log
        self._paces: dict[BrokerId, Pace] = {}

    def observe(self, leading: Leading, now_ms: int) -> None:
        paces, self._paces = self._paces, {}
        for by in leading.copying:
            # A failing disk is reported by whatever needs it, not here.
            with suppress(StorageFailed):
                self._paces[by] = observed(paces.get(by), self._bytes_left(leading, by), now_ms)

    def sizes(self, leading: Leading) -> dict[BrokerId, CopySize]:
        return {by: self._size(leading, by) for by in sorted(leading.copying)}

    def _size(self, leading: Leading, by: BrokerId) -> CopySize:
        pace = self._paces.get(by)
        return CopySize(
            bytes_left=self._bytes_left(leading, by), bytes_per_second=None if pace is None else pace.bytes_per_second
        )

    def _bytes_left(self, leading: Leading, by: BrokerId) -> int:
        return self._log.bytes_from(max(leading.followers[by].end, self._log.log_start))

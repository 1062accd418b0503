"""When one replica's log is flushed, and how far the replica may vouch for it.

Rules:
- One flush of a log runs at a time, and other threads may have its partition meanwhile. What is appended while it runs
  goes with the next flush, all of it together (group commit).
- flush=always: only what is on the disk counts, for the high watermark, for what a follower reports, for acks=1.
- A flush that failed is not repeated: nobody knows what is on the disk. The log is offline.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from spark_replication.config import TopicSettings
from spark_replication.errors import StorageFailed
from spark_replication.model import Offset
from spark_replication.ports import Flusher, ReplicaLog


class Flushing:
    def __init__(
        self,
        log: ReplicaLog,
        flusher: Flusher,
        settings: TopicSettings,
        ended: Callable[[StorageFailed | None], None],
    ) -> None:
        """ended: called on any thread, with the failure if any. Whoever has the partition then calls `end`."""
        self.configure(settings)
        self._log = log
        self._flusher = flusher
        self._ended = ended
        self._running = False
        self._begun_ms = 0

    def configure(self, settings: TopicSettings) -> None:
        self._settings = settings
        self.always = settings.flush == "always"  # an attribute: each row asks again and again

    @property
    def by_interval(self) -> bool:
        return self._settings.flush == "interval"

    @property
    def vouched_end(self) -> Offset:
        """How far this replica vouches for its log: below here it counts as having every record."""
        return self._log.flushed_end if self.always else self._log.log_end

    def written(self) -> None:
        """Something was written. With flush=always it is flushed at once, or after the flush that runs."""
        if self.always:
            self.begin()

    def tick(self, now_ms: int) -> None:
        if self.by_interval and now_ms - self._begun_ms >= self._settings.flush_interval_ms:
            self._begun_ms = now_ms
            self.begin()

    def end(self, failed: StorageFailed | None) -> None:
        self._running = False
        self._log.end_flush(failed)

    def begin(self) -> None:
        """Begin to flush all that is not on the disk, unless a flush is running."""
        if self._running:
            return
        with suppress(StorageFailed):  # the log is offline, and refuses whoever writes
            flush = self._log.begin_flush()
            if flush is not None:
                self._running = True
                self._flusher.flush(flush, self._ended)

"""A broker's process, as its guardian sees it.

| where it runs                    | its end is told by                   | who stops it                           |
| -------------------------------- | ------------------------------------ | -------------------------------------- |
| in this process's PID namespace  | the kernel, at once                  | itself when it is asked, else a signal |
| in another one, as a container's | its directory's lock, within PROBE_S | itself when it is asked; no signal     |
| not where broker.json says: that | likewise                             | likewise                               |
| is of a life before this one     |                                      |                                        |
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from types import TracebackType

from spark_replication.live.guarding.broker_file import BrokerFile
from spark_replication.process.files import readable
from spark_replication.process.processes import Unfound, find_process
from spark_replication.storage.directory.broker_directory import probe

PROBE_S = 1.0


class BrokerWatch:
    """A context manager."""

    def __init__(self, directory: Path, info: BrokerFile) -> None:
        self._directory = directory
        found = find_process(info.mark)
        self._pidfd = None if isinstance(found, Unfound) else found

    def __enter__(self) -> BrokerWatch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._pidfd is not None:
            os.close(self._pidfd)

    @property
    def is_seen(self) -> bool:
        return self._pidfd is not None

    def ended_within(self, timeout_s: float, *wakes: int) -> bool:
        """False sooner when one of these descriptors can be read."""
        if self._pidfd is not None:
            return self._pidfd in readable((self._pidfd, *wakes), timeout_s)
        deadline = time.monotonic() + timeout_s
        while probe(self._directory):
            left_s = deadline - time.monotonic()
            if left_s <= 0 or readable(wakes, min(PROBE_S, left_s)):
                return False
        return True

    def signal(self, number: signal.Signals) -> None:
        """Nothing happens to one that has ended, or is not seen."""
        if self._pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

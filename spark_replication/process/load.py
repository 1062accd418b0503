"""How busy this process is. A busy process sends less often, and more at a time: a busy broker is limited by threads
that wake each other, here and at its peers."""

from __future__ import annotations

import time

BUSY_CORES = 0.6  # CPU use from which on the process counts as busy; the GIL limits it to little more than 1
LOOK_S = 0.05


class Load:
    """The load of this process. Threads that share one may measure once more than they must."""

    def __init__(self) -> None:
        self._looked_s, self._used_s = time.monotonic(), time.process_time()
        self._busy = False

    @property
    def is_busy(self) -> bool:
        """Whether the process is busy, as last measured."""
        now_s = time.monotonic()
        took_s = now_s - self._looked_s
        if took_s >= LOOK_S:
            used_s = time.process_time()
            self._busy = used_s - self._used_s >= BUSY_CORES * took_s
            self._looked_s, self._used_s = now_s, used_s
        return self._busy

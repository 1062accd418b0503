"""How busy this process is. Who is busy says what it has to say less often, and more at a time: what limits a busy
broker is its threads' waking each other, here and at its peers."""

from __future__ import annotations

import time

BUSY_CORES = 0.6  # how much of a core it has used then, of which the GIL gives it not much more than one
LOOK_S = 0.05


class Load:
    """One that several threads share may look once more than it must."""

    def __init__(self) -> None:
        self._looked_s, self._used_s = time.monotonic(), time.process_time()
        self._busy = False

    @property
    def is_busy(self) -> bool:
        """As it was looked at last."""
        now_s = time.monotonic()
        took_s = now_s - self._looked_s
        if took_s >= LOOK_S:
            used_s = time.process_time()
            self._busy = used_s - self._used_s >= BUSY_CORES * took_s
            self._looked_s, self._used_s = now_s, used_s
        return self._busy

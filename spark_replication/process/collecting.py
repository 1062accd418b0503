"""Python's collector of cycles, for a process that holds much and keeps it.

Python looks through everything that a process holds whenever that has grown by a quarter, and all threads stand still
meanwhile: 0.2 to 0.5 s in a broker or a controller of 10,000 partitions, mostly in the middle of an election, which
makes so many values. Here a value that such a look has passed is not looked at again until an hour has gone by.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping

#: How long garbage that is part of a cycle may stay, once it has lived through a look.
EVERYTHING_S = 3_600.0

_OLDEST = 2  # Python's oldest generation: a collection of it is a look through everything that is not frozen


class Collecting:
    """The collector of this process looks at what is new, and once an hour at everything, from `start` to `stop`."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._everything_s = clock_s()  # the time of the last look at everything

    def start(self) -> None:
        """Look at everything now, before anything is served: what imports have left takes 20 ms."""
        gc.collect()
        gc.freeze()
        gc.callbacks.append(self._looks)

    def stop(self) -> None:
        gc.callbacks.remove(self._looks)
        gc.unfreeze()

    def _looks(self, phase: str, about: Mapping[str, int]) -> None:
        if about["generation"] < _OLDEST:
            return
        if phase == "stop":
            gc.freeze()
        elif self._clock_s() >= self._everything_s + EVERYTHING_S:
            self._everything_s = self._clock_s()
            gc.unfreeze()

"""Of a process whose host's clock is wrong: Python loads this first. Namespaces shift no time of day, so it is what the
process reads that is shifted."""

from __future__ import annotations

import os
import time

_SHIFT_S = int(os.environ["CLOCK_SHIFT_S"])
_time, _time_ns = time.time, time.time_ns

time.time = lambda: _time() + _SHIFT_S
time.time_ns = lambda: _time_ns() + _SHIFT_S * 1_000_000_000

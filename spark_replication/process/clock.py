"""The clock of a process: the time of day at its start, moved on by a clock that never jumps.

Records get their timestamps from it, and lag is measured by it. Otherwise, if somebody set the time of day, followers
would leave the ISR, or never would.
"""

from __future__ import annotations

import time

_OFFSET_NS = time.time_ns() - time.monotonic_ns()


def now_ms() -> int:
    return (time.monotonic_ns() + _OFFSET_NS) // 1_000_000

"""The time that a process goes by: that of day when it started, moved on by a clock that never jumps.

Records get it as their timestamp, and lag is measured by it: were the time of day set back or forward, followers would
leave the ISR, or never would.
"""

from __future__ import annotations

import time

_OFFSET_NS = time.time_ns() - time.monotonic_ns()


def now_ms() -> int:
    return (time.monotonic_ns() + _OFFSET_NS) // 1_000_000

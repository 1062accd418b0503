"""How a replica that is being added gets on: how much it lacks, and how fast that becomes less (A3)."""

from __future__ import annotations

import msgspec

WINDOW_MS = 5_000  # of an observation: shorter ones follow every pause of a throttle


class Pace(msgspec.Struct, frozen=True):
    """bytes_left: at since_ms, when the present observation began. bytes_per_second: by how much they became fewer in
    the one before, copied less appended; None: there was none yet."""

    bytes_left: int
    since_ms: int
    bytes_per_second: int | None = None


def observed(pace: Pace | None, bytes_left: int, now_ms: int) -> Pace:
    if pace is None:
        return Pace(bytes_left, now_ms)
    elapsed_ms = now_ms - pace.since_ms
    if 0 <= elapsed_ms < WINDOW_MS:
        return pace
    if elapsed_ms < 0:
        return Pace(bytes_left, now_ms, pace.bytes_per_second)  # the clock was set back
    return Pace(bytes_left, now_ms, (pace.bytes_left - bytes_left) * 1000 // elapsed_ms)


def time_left_ms(bytes_left: int, bytes_per_second: int | None) -> int | None:
    """None: nobody can say, since no pace is known, or at this one it never ends."""
    if bytes_left == 0:
        return 0
    if bytes_per_second is None or bytes_per_second <= 0:
        return None
    return bytes_left * 1000 // bytes_per_second

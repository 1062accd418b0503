"""How long a client waits after failures in a row."""

from __future__ import annotations

BACK_OFF_FIRST_S = 0.01
BACK_OFF_MAX_S = 0.5


def back_off_s(failures: int) -> float:
    """How long to wait after this many failures in a row (at least one). The wait doubles each time, up to a limit."""
    return float(min(BACK_OFF_MAX_S, BACK_OFF_FIRST_S * 2 ** min(failures - 1, 16)))


def look_again_s(failures: int) -> float:
    """How long to wait after this many failures in a row (at least one), before a leader is looked for again. The waits
    add up to a fifth more each time: who waits for an election learns of it so much later at most, and not after twice
    as long as it took."""
    return float(min(BACK_OFF_MAX_S, BACK_OFF_FIRST_S * 1.2 ** min(failures - 1, 64)))

"""Until something holds. Who waits leaves the processors to whom is waited for: it looks a hundred times a second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

TIMEOUT_S = 30.0
POLL_S = 0.01


def eventually(holds: Callable[[], object], what: str, timeout_s: float = TIMEOUT_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"not within {timeout_s:.1f} s: {what}"
        time.sleep(POLL_S)


async def eventually_here(holds: Callable[[], object], what: str, timeout_s: float = TIMEOUT_S) -> None:
    """The same in an event loop, which goes on meanwhile."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"not within {timeout_s:.1f} s: {what}"
        await asyncio.sleep(POLL_S)

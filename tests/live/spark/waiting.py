"""Until something is there."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

TIMEOUT_S = 90.0
POLL_S = 0.1

T = TypeVar("T")


def wait_for(what: str, found: Callable[[], T | None], timeout_s: float = TIMEOUT_S) -> T:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        value = found()
        if value:
            return value
        time.sleep(POLL_S)
    raise AssertionError(f"{what}: not within {timeout_s} s")

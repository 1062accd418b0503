"""What a process has started, and the end of it."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

from tests.live.spark.waiting import children


def descendants(pid: int) -> dict[int, str]:
    """With their command lines. What starts or ends meanwhile may be left out."""
    found: dict[int, str] = {}
    for child, command in children(pid):
        found[child] = command.replace(b"\0", b" ").decode(errors="replace")
        found |= descendants(child)
    return found


def kill_if_there(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)

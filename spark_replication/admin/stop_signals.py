"""Ctrl-C and SIGTERM, for jobs. It loads nothing, so that a job can ask for it before it loads what takes a second."""

from __future__ import annotations

import signal
import threading

INTERRUPTED = 130  # as shells have it: 128 and SIGINT


def stop_on_signals() -> threading.Event:
    """Set by either. No exception strikes in the middle of anything: whoever waits looks at it."""
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: stopping.set())
    return stopping

"""SIGTERM and Ctrl-C, heard whatever the process is doing. It loads little: a job asks for it before all that is large.

Python runs a signal's handler in the main thread, once that gets to run. Where the kernel gives the signal to another
thread, as it may when the process has just been continued after a SIGSTOP, a main thread that waits for something goes
on waiting. So the byte that every signal leaves in a pipe is what counts, and a thread of its own reads it.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
INTERRUPTED = 130  # what ends before its time because of one of them returns, as shells have it: 128 and SIGINT


def on_stop_signals(stop: Callable[[], None]) -> None:
    """`stop` is called with each of them, on another thread. Call this in the main thread, once."""
    reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    os.set_blocking(reading, True)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in STOP_SIGNALS:
        signal.signal(number, lambda _number, _frame: None)
    threading.Thread(target=_listen, args=(reading, stop), name="stop-signals", daemon=True).start()


def _listen(reading: int, stop: Callable[[], None]) -> None:
    while True:
        if os.read(reading, 1)[0] in STOP_SIGNALS:
            stop()

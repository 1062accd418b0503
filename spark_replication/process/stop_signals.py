"""Reacts to SIGTERM and Ctrl-C, and to a closed pipe, whatever the process is doing. This module imports little: a job
calls it before it imports all that is large.

Python runs a signal's handler in the main thread, once that gets to run. The kernel may give the signal to another
thread, for one when the process has just been continued after a SIGSTOP: then a main thread that waits for something
goes on waiting. So what counts is the byte that every signal leaves in a pipe, and a thread of its own reads that.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Callable

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
INTERRUPTED = 130  # exit code of a process that such a signal ends early; as in shells, 128 and SIGINT


def on_stop_signals(stop: Callable[[], None]) -> None:
    """Call `stop` with each of these signals, on another thread. For the main thread, once."""
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


def on_closed_output(give_up: Callable[[], None]) -> None:
    """Call `give_up`, on another thread, once standard output is a pipe that nobody reads any more. Whoever writes
    rarely would hear of that with its next write, which may never come."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)  # errors alone
    threading.Thread(target=_wait, args=(poll, give_up), name="output-closed", daemon=True).start()


def _wait(poll: select.poll, give_up: Callable[[], None]) -> None:
    poll.poll()
    give_up()

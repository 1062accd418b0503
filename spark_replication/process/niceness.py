"""Lets all other processes of a machine come first.

Niceness alone does not: Linux gives each session its share of the processors, whatever the niceness of its processes
(sched(7), autogroup). A session has a niceness of its own.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

SESSION_NICENESS = Path("/proc/self/autogroup")


def come_last(niceness: int) -> None:
    """Make this process and, if it leads one, its session nicer than they were by default.

    A session that it does not lead is left as it is: that of a terminal is its user's.
    """
    os.nice(niceness)
    if os.getsid(0) == os.getpid():
        with suppress(OSError):  # a kernel without such groups, or a container that may not write there
            SESSION_NICENESS.write_text(str(niceness))

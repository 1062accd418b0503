"""Runs a command on what everybody else leaves of the processors: what it has to wait for are no deadlines, and others
have some."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

# How nice a process is counts within its session alone; how nice a session is, where Linux was built for that, here.
LAST = 'echo 19 2>/dev/null >/proc/self/autogroup; exec nice -n 19 "$@"'


def run_last(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """What it said, and its exit code."""
    return subprocess.run(
        ["sh", "-c", LAST, "sh", *command], capture_output=True, text=True, check=False, start_new_session=True
    )

"""How long processes wait for a processor that others have: time that says nothing of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


class ProcessorWaits:
    """Counts from now on, for the processes of these sessions, and this one."""

    def __init__(self, *sessions: int) -> None:
        self._sessions = sessions
        self._before = dict(self._waits())

    def so_far_s(self) -> float:
        """Sums up what the worst thread of each process has waited: what several wait for goes from one to the next."""
        worst: dict[str, int] = {}
        for (process, thread), waited_ns in self._waits():
            more_ns = waited_ns - self._before.get((process, thread), 0)
            worst[process] = max(more_ns, worst.get(process, 0))
        return sum(worst.values()) / 1e9

    def _waits(self) -> Iterator[tuple[tuple[str, str], int]]:
        for process in Path("/proc").glob("[0-9]*"):
            try:
                session = int((process / "stat").read_text().rpartition(")")[2].split()[3])
                if session in self._sessions or int(process.name) == os.getpid():
                    for thread in (process / "task").iterdir():
                        waited = int((thread / "schedstat").read_text().split()[1])
                        yield (process.name, thread.name), waited
            except (OSError, IndexError):  # it has ended
                continue

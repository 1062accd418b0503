"""How long processes wait for a processor that others have: time that says nothing of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


class ProcessorWaits:
    """Counts from now on."""

    def __init__(self, *processes: int) -> None:
        self._processes = processes
        self._before = dict(self._waits())

    def so_far_s(self) -> float:
        """Sums up what the worst thread of each process has waited: what several wait for goes from one to the next."""
        worst: dict[int, int] = {}
        for (process, thread), waited_ns in self._waits():
            more_ns = waited_ns - self._before.get((process, thread), 0)
            worst[process] = max(more_ns, worst.get(process, 0))
        return sum(worst.values()) / 1e9

    def _waits(self) -> Iterator[tuple[tuple[int, str], int]]:
        for process in self._processes:
            for thread in Path(f"/proc/{process}/task").iterdir():
                yield (process, thread.name), int((thread / "schedstat").read_text().split()[1])

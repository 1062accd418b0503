"""Which broker each guardian takes: a live orphan, else a directory without a process, else a new id.

Every guardian computes this from what all of them found, and reads only its own line: so two on one host, who see the
same directories, never take one twice. Where their sights differ all the same, the directory's lock decides.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from spark_replication.model import BrokerId


class FoundDirectory(msgspec.Struct, frozen=True):
    broker_id: BrokerId
    alive: bool


class Sight(msgspec.Struct, frozen=True):
    """What one guardian found on its host."""

    host: str
    directories: tuple[FoundDirectory, ...]


def assign(sights: Mapping[int, Sight]) -> dict[int, BrokerId | None]:
    """By guardian, the broker it adopts or restarts; None: a new one.

    Live ones first: one that nobody guards would stop with its lease. Lower ids first, so that all agree.
    """
    taken: set[tuple[str, BrokerId]] = set()
    assigned: dict[int, BrokerId | None] = {}
    for guardian, sight in sorted(sights.items()):
        free = [found for found in sight.directories if (sight.host, found.broker_id) not in taken]
        best = min(free, key=lambda found: (not found.alive, found.broker_id), default=None)
        assigned[guardian] = None if best is None else best.broker_id
        if best is not None:
            taken.add((sight.host, best.broker_id))
    return assigned

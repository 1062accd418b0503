"""A plan of moves that a notebook shows and carries out. Nothing moves before `apply`."""

from __future__ import annotations

import sys
from collections.abc import Callable

from spark_replication.client.asking.admin import Admin
from spark_replication.client.asking.markup import Markup, joined, paragraph, table
from spark_replication.client.asking.waves import PlanProgress, wait_in_waves
from spark_replication.core.moves.moves import BYTES_PER_SECOND, Plan, size_text, time_text
from spark_replication.errors import ReplicationError

SHOWN_MOVES_MAX = 100
WAIT_S = 3_600.0

_COLUMNS = ("partition", "from", "to", "adds", "drops", "bytes", "time")


def _tell(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class PlannedMoves:
    def __init__(self, admin: Admin, plan: Plan, bytes_per_second: int = BYTES_PER_SECOND) -> None:
        #: What `Admin.apply` takes, and a file keeps (`plan.to_json()`).
        self.plan = plan
        self._admin = admin
        self._bytes_per_second = bytes_per_second

    @property
    def estimate_s(self) -> float | None:
        """How long the moves take; None if unknown."""
        return self.plan.estimate_s(self._bytes_per_second)

    def __repr__(self) -> str:
        return f"{self.plan}\n{self._time}" if self.plan.moves else str(self.plan)

    def _repr_html_(self) -> str:
        moves = self.plan.moves
        if not moves:
            return paragraph(str(self.plan))
        rows = [
            (
                *(each.partition, each.present, each.target, each.adding, each.removing),
                size_text(each.bytes_to_copy),
                time_text(Plan(moves=(each,)).estimate_s(self._bytes_per_second)),
            )
            for each in moves[:SHOWN_MOVES_MAX]
        ]
        left = len(moves) - len(rows)
        more = paragraph(f"and {left} more, which copy less") if left else Markup()
        total = f"{len(moves)} partitions change, {size_text(self.plan.bytes_to_copy)} are copied. {self._time}"
        return joined(table(_COLUMNS, rows), more, paragraph(total))

    @property
    def _time(self) -> str:
        if self.estimate_s is None:
            return "How long it takes is unknown, as some size or leader is"
        return f"About {time_text(self.estimate_s)}, if each broker sends {size_text(self._bytes_per_second)} a second"

    def apply(
        self, *, wait_s: float | None = WAIT_S, tell: Callable[[str], None] = _tell
    ) -> dict[str, ReplicationError]:
        """Begin every move, and tell the progress until all have ended. The moves go on without this process, too.

        Return which moves were refused, and why. Raises RequestTimedOut after `wait_s`. None waits for nothing."""
        refused = self._admin.apply(self.plan)
        count = len(self.plan.moves)
        tell(f"{count - len(refused)} of {count} partitions have begun to move")
        if wait_s is not None:
            refused = wait_in_waves(self._admin, self.plan, refused, wait_s, _changes(tell))
            tell(f"{count - len(refused)} of {count} partitions have moved")
        return refused


def _changes(tell: Callable[[str], None]) -> Callable[[PlanProgress], None]:
    """A function that tells a progress only if it differs from the last one."""
    told = ""

    def tell_change(progress: PlanProgress) -> None:
        nonlocal told
        if str(progress) != told:
            told = str(progress)
            tell(told)

    return tell_change

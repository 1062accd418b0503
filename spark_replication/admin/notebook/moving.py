"""A plan of moves as a notebook shows it, and carries it out: nothing moves before `apply`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

from spark_replication.client.admin import Admin
from spark_replication.client.deadline import Deadline
from spark_replication.client.markup import Markup, joined, paragraph, table
from spark_replication.client.replica_sizes import ReassignmentDescription
from spark_replication.core.moves.moves import BYTES_PER_SECOND, Plan, size_text
from spark_replication.errors import ReplicationError, RequestTimedOut

SHOWN_MOVES_MAX = 100
WAIT_S = 3_600.0
POLL_S = 0.5

_COLUMNS = ("partition", "from", "to", "adds", "drops", "bytes", "time")


def _tell(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class PlannedMoves:
    """plan: what `Admin.apply` takes, and a file keeps (`plan.to_json()`)."""

    def __init__(self, admin: Admin, plan: Plan, bytes_per_second: int = BYTES_PER_SECOND) -> None:
        self.plan = plan
        self._admin = admin
        self._bytes_per_second = bytes_per_second

    @property
    def estimate_s(self) -> float | None:
        """None: nobody knows."""
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
                _seconds(Plan(moves=(each,)).estimate_s(self._bytes_per_second)),
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
        return f"About {_seconds(self.estimate_s)}, if each broker sends {size_text(self._bytes_per_second)} a second"

    def apply(
        self, *, wait_s: float | None = WAIT_S, tell: Callable[[str], None] = _tell
    ) -> dict[str, ReplicationError]:
        """Begin every move, and tell how far they are until all have ended; they go on without this process, too.

        Returns which were refused, and why. wait_s: RequestTimedOut after so long; None: nothing is waited for."""
        refused = self._admin.apply(self.plan)
        count = len(self.plan.moves)
        tell(f"{count - len(refused)} of {count} partitions have begun to move")
        if wait_s is None:
            return refused
        deadline = Deadline(wait_s * 1_000)
        while True:
            self._wait_ended({move.partition for move in self.plan.moves} - refused.keys(), deadline, tell)
            # What there was no room for begins once others have ended.
            waiting = {name for name, error in refused.items() if error.retriable}
            if not waiting:
                tell(f"{count - len(refused)} of {count} partitions have moved")
                return refused
            rest = Plan(moves=tuple(move for move in self.plan.moves if move.partition in waiting))
            refused = {name: refused[name] for name in refused.keys() - waiting} | self._admin.apply(rest)

    def _wait_ended(self, begun: set[str], deadline: Deadline, tell: Callable[[str], None]) -> None:
        told = ""
        while left := [each for each in self._admin.reassignments() if each.partition in begun]:
            text = _progress(left)
            if text != told:
                tell(text)
                told = text
            if deadline.passed:
                raise RequestTimedOut(
                    f"{len(left)} partitions are moving, and go on: `spark-replication reassign status` says how far "
                    f"they are, and apply with a longer wait_s waits for them"
                )
            time.sleep(POLL_S)


def _progress(left: Sequence[ReassignmentDescription]) -> str:
    known = [each.bytes_left for each in left if each.bytes_left is not None]
    bytes_left = size_text(sum(known) if len(known) == len(left) else None)
    times = [each.time_left_ms for each in left]
    known_ms = [each for each in times if each is not None]
    time_left = _seconds(max(known_ms) / 1_000) if len(known_ms) == len(times) else "unknown"
    return f"{len(left)} partitions are moving; bytes left: {bytes_left}; time left: {time_left}"


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return "unknown"
    for unit, size in (("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"

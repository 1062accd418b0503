"""Waits for an applied plan, in waves: moves that had no room are applied again once no other move is under way.

The controller completes the moves that have begun, with or without this process. Only the moves that had no room need a
process that waits.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping

import msgspec

from spark_replication.client.asking.admin import Admin
from spark_replication.client.asking.replica_sizes import ReassignmentDescription
from spark_replication.client.finding.deadline import Deadline, persistently
from spark_replication.core.moves.moves import Move, Plan, size_text, time_text
from spark_replication.errors import ReplicationError, RequestTimedOut

POLL_S = 0.5
PACE_LOOKS_MAX = 20  # the pace is measured between the first and the last of this many looks

Refused = dict[str, ReplicationError]


class PlanProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a plan. A move that was refused for good is not counted in any field."""

    #: Partitions that are to move.
    partitions: int
    #: Partitions whose move has ended.
    ended: int
    #: What all moves copy together. A move of unknown size adds nothing.
    bytes_to_copy: int
    #: The part of `bytes_to_copy` that is done. A partition whose leader does not answer adds nothing until its move
    #: has ended.
    bytes_copied: int
    #: None if nothing was copied between the looks that are remembered, or there was only one look.
    bytes_per_second: float | None
    #: At that pace. None if there is no pace, or a size is unknown.
    time_left_s: float | None

    def __str__(self) -> str:
        parts = [f"{self.ended} of {self.partitions} partitions have moved"]
        if self.bytes_to_copy:
            parts.append(f"{size_text(self.bytes_copied)} of {size_text(self.bytes_to_copy)} are copied")
        if self.bytes_per_second is not None:
            parts.append(f"{size_text(round(self.bytes_per_second))}/s")
        if self.time_left_s is not None:
            parts.append(f"{time_text(self.time_left_s)} left")
        return ", ".join(parts)


class MovePace:
    def __init__(self) -> None:
        self._looks: deque[tuple[float, int]] = deque(maxlen=PACE_LOOKS_MAX)

    def seen(self, at_s: float, bytes_copied: int) -> float | None:
        """Add a look, and return the pace in bytes a second. None if nothing was copied since the first look that is
        remembered, or there is no earlier look."""
        self._looks.append((at_s, bytes_copied))
        first_s, first = self._looks[0]
        if at_s <= first_s or bytes_copied <= first:
            return None
        return (bytes_copied - first) / (at_s - first_s)


def wait_in_waves(
    admin: Admin,
    plan: Plan,
    refused: Mapping[str, ReplicationError],
    wait_s: float,
    tell: Callable[[PlanProgress], None],
) -> Refused:
    """Wait until all moves of an applied plan have ended, and return those that were refused for good. `refused` is
    what `Admin.apply(plan)` returned. `tell` is called at each look. RequestTimedOut if some moves have not ended after
    wait_s."""
    deadline, pace, answer = Deadline(wait_s * 1_000), MovePace(), dict(refused)
    while True:
        waiting = {name for name, error in answer.items() if error.retriable}
        begun = {move.partition for move in plan.moves} - answer.keys()
        under_way = persistently(admin.reassignments, deadline)
        moving = {each.partition: each for each in under_way if each.partition in begun}
        if not moving and not waiting:
            return answer
        wanted = [move for move in plan.moves if move.partition in begun | waiting]
        tell(progress_of(wanted, waiting, moving, pace, time.monotonic()))
        if deadline.passed:
            raise _timed_out(sorted(moving), sorted(waiting))
        time.sleep(min(POLL_S, deadline.remaining_s))
        if not moving:
            rest = Plan(moves=tuple(move for move in plan.moves if move.partition in waiting))
            for_good = {name: error for name, error in answer.items() if name not in waiting}
            answer = for_good | admin.apply(rest)


def progress_of(
    moves: list[Move],
    waiting: set[str],
    moving: Mapping[str, ReassignmentDescription],
    pace: MovePace,
    now_s: float,
) -> PlanProgress:
    """The progress of these moves: those in `waiting` have not begun, those in `moving` are under way, and all others
    have ended."""
    copied = 0
    left: list[int | None] = []
    for move in moves:
        planned = move.bytes_to_copy or 0
        if move.partition in waiting:
            left.append(move.bytes_to_copy)
        elif move.partition in moving:
            told = moving[move.partition].bytes_left
            left.append(move.bytes_to_copy if told is None else told)
            copied += 0 if told is None else max(0, planned - told)
        else:
            copied += planned
    bytes_per_second = pace.seen(now_s, copied)
    known = [each for each in left if each is not None]
    is_known = bytes_per_second is not None and len(known) == len(left)
    return PlanProgress(
        partitions=len(moves),
        ended=len(moves) - len(left),
        bytes_to_copy=sum(move.bytes_to_copy or 0 for move in moves),
        bytes_copied=copied,
        bytes_per_second=bytes_per_second,
        time_left_s=sum(known) / bytes_per_second if is_known and bytes_per_second else None,
    )


def _timed_out(moving: list[str], waiting: list[str]) -> RequestTimedOut:
    if not moving:
        return RequestTimedOut(
            f"{len(waiting)} partitions had no room and have not begun to move, {waiting[0]} is the first: apply the "
            "plan again"
        )
    rest = f", and {len(waiting)} have not begun: apply the plan again" if waiting else ""
    return RequestTimedOut(
        f"{len(moving)} partitions are moving, and go on, {moving[0]} is the first: wait longer, or ask "
        f"`spark-replication reassign status`{rest}"
    )

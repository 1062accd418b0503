"""The progress of a replica that is being added: how much it lacks, and how fast that becomes less (A3)."""

from __future__ import annotations

import msgspec

from spark_replication.messages.commands import PartitionCommand
from spark_replication.messages.descriptions import ReplicaSize

WINDOW_MS = 5_000  # of an observation: shorter ones follow every pause of a throttle


class Pace(msgspec.Struct, frozen=True):
    #: How much was left when the present window began.
    bytes_left: int
    #: When the present window began.
    since_ms: int
    #: The net catch-up rate (copied minus appended) of the previous window; None in the first window.
    bytes_per_second: int | None = None


def observed(pace: Pace | None, bytes_left: int, now_ms: int) -> Pace:
    if pace is None:
        return Pace(bytes_left, now_ms)
    elapsed_ms = now_ms - pace.since_ms
    if 0 <= elapsed_ms < WINDOW_MS:
        return pace
    if elapsed_ms < 0:
        return Pace(bytes_left, now_ms, pace.bytes_per_second)  # the clock was set back
    return Pace(bytes_left, now_ms, (pace.bytes_left - bytes_left) * 1000 // elapsed_ms)


def time_left_ms(bytes_left: int, bytes_per_second: int | None) -> int | None:
    """The time that the rest takes at this pace. None if no pace is known, or if the copy never ends at this pace."""
    if bytes_left == 0:
        return 0
    if bytes_per_second is None or bytes_per_second <= 0:
        return None
    return bytes_left * 1000 // bytes_per_second


def left_of(command: PartitionCommand, leaders: ReplicaSize | None) -> tuple[int | None, int | None]:
    """The bytes and the time until every added replica is in sync, by what the leader says; None if unknown."""
    absent = [replica for replica in command.adding if replica not in command.state.isr]
    if not absent:
        return 0, 0
    if leaders is None or not leaders.copies.keys() >= set(absent):
        return None, None
    copies = [leaders.copies[replica] for replica in absent]
    times = [time_left_ms(copy.bytes_left, copy.bytes_per_second) for copy in copies]
    known = [time for time in times if time is not None]
    return sum(copy.bytes_left for copy in copies), max(known) if len(known) == len(times) else None

"""Where a read begins: at an offset, at a named place of the log, or at a time. Nothing else decides it.

- A time means the earliest offset whose batch was appended at that time or later. Clocks of leaders differ, so that
  timestamps within a log may step back: all batches before this offset are older than the time, and some behind it may
  be older, too.
- No read begins beyond what may be seen. If nothing that may be seen is that late, the read begins at the end of it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import get_args

from spark_replication.errors import InvalidRequest
from spark_replication.model import TIME_MS_MAX, AtTime, NamedOffset, Offset, Start

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def asked_start(start: Offset | NamedOffset, start_time: datetime | int | None, stop: Offset | None) -> Start:
    """The start that a caller asks for. Raises InvalidRequest if it is no place in any log."""
    if start_time is not None:
        if start != 0:
            raise InvalidRequest(f"start={start!r} and start_time={start_time!r} are two places to begin at: name one")
        return AtTime(time_in_ms(start_time))
    if isinstance(start, str):
        if start not in get_args(NamedOffset):
            raise InvalidRequest(f'start={start!r}: it is an offset, "earliest" or "latest"')
    elif start < 0 or (stop is not None and stop < start):
        raise InvalidRequest(f"from {start} to {stop} is no range of offsets: start at 0 or later, stop after that")
    return start


def time_in_ms(moment: datetime | int) -> int:
    """Milliseconds since 1970. A datetime must have a time zone: brokers and readers may be in different ones."""
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise InvalidRequest(f"{moment.isoformat()} has no time zone: add one, as in {moment.isoformat()}Z for UTC")
        time_ms = -((_EPOCH - moment) // timedelta(milliseconds=1))  # upwards: nothing older is to be found
    else:
        time_ms = moment
    if not 0 <= time_ms <= TIME_MS_MAX:
        raise InvalidRequest(f"{moment} is no time between 1970 and the year 9999: give milliseconds since 1970")
    return time_ms


def start_of(start: Start, *, log_start: Offset, end: Offset, offset_of_time: Callable[[int], Offset]) -> Offset:
    """The offset of `start` in a log of which records may be seen from `log_start`, which retention moves, to `end`."""
    match start:
        case "earliest":
            return log_start
        case "latest":
            return end
        case AtTime(time_ms):
            return min(offset_of_time(time_ms), end)
        case offset:
            return offset

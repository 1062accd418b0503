"""Where a read begins: at an offset, at a named place of the log, or at a time; and whether the log in which it goes on
is the one in which it began. Nothing else decides either.

- A time means the earliest offset whose batch was appended at that time or later. Clocks of leaders differ, so that
  timestamps within a log may step back: all batches before this offset are older than the time, and some behind it may
  be older, too.
- An offset alone does not say which record comes next: an unclean election, or a partition that was removed and added
  again, may have put others there. With the leader epoch of the record before it, a leader can tell (KIP-320).
- No read begins beyond what may be seen. If nothing that may be seen is that late, the read begins at the end of it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, get_args

from spark_replication.core.replica.epochs import NO_EPOCH
from spark_replication.core.replica.replica import LogView
from spark_replication.errors import InvalidRequest, UnknownLeaderEpoch
from spark_replication.model import TIME_MS_MAX, AtTime, NamedOffset, Offset, Start

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class ReadPlace(NamedTuple):
    """Where a read goes on."""

    offset: Offset
    #: The leader epoch of the record before `offset`; NO_EPOCH if it is not known.
    last_epoch: int = NO_EPOCH


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


def cut_below(place: ReadPlace, log: LogView) -> Offset | None:
    """Where this log parts from the one in which this place was reached; None if it does not, as far as it can tell.

    | the record before the place is                         | answer                                             |
    | ------------------------------------------------------ | -------------------------------------------------- |
    | of an unknown epoch, or there is none                  | None                                               |
    | in this log, and of that epoch                         | None                                               |
    | of an epoch that this log does not know yet            | UnknownLeaderEpoch: another replica knows more     |
    | no longer in this log, whose records are not older     | None: retention has removed it                     |
    | none of these                                          | where that epoch ends here, at most the place      |
    """
    offset, last_epoch = place
    if offset == 0 or last_epoch == NO_EPOCH:
        return None
    if log.log_start < offset <= log.log_end and log.epoch_before(offset) == last_epoch:
        return None
    if last_epoch > log.epochs.last_epoch:
        raise UnknownLeaderEpoch(f"leader epoch {last_epoch} is not known here yet, {log.epochs.last_epoch} is: retry")
    if offset <= log.log_start and log.epochs.epoch_at(log.log_start) >= last_epoch:
        return None
    end = log.epochs.end_of(last_epoch, log_start=log.log_start, log_end=log.log_end)
    assert end is not None, "the epoch is not above the last one"
    return min(end.end, offset)

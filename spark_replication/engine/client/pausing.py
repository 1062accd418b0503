"""How long a client waits after failures in a row, and which of them it tells of once its time is over."""

from __future__ import annotations

from spark_replication.errors import ReplicationError, RequestTimedOut

BACK_OFF_FIRST_S = 0.01
BACK_OFF_MAX_S = 0.5


def back_off_s(failures: int) -> float:
    """How long to wait after this many failures in a row (at least one). The wait doubles each time, up to a limit."""
    return float(min(BACK_OFF_MAX_S, BACK_OFF_FIRST_S * 2 ** min(failures - 1, 16)))


def look_again_s(failures: int) -> float:
    """How long to wait after this many failures in a row (at least one), before a leader is looked for again. The waits
    add up to a fifth more each time: who waits for an election learns of it so much later at most, and not after twice
    as long as it took."""
    return float(min(BACK_OFF_MAX_S, BACK_OFF_FIRST_S * 1.2 ** min(failures - 1, 64)))


class FailedTries:
    """The failed tries in a row, within a time that whoever tries keeps."""

    def __init__(self) -> None:
        self.count = 0
        self._last: ReplicationError | None = None

    def add(self, error: ReplicationError, left_s: float) -> ReplicationError:
        """Count a failed try, with so much of the time left, and return the error to report. That is the error of the
        try before if the end of the time cut this one short: it tells more."""
        self.count += 1
        if self._last is None or not self._was_cut_short(error, left_s) or not error.retriable or error.maybe_written:
            self._last = error
        return self._last

    def _was_cut_short(self, error: ReplicationError, left_s: float) -> bool:
        if isinstance(error, RequestTimedOut):  # a call that was given the rest of the time may end a little before
            return left_s <= self.back_off_s
        return left_s < 0.001

    @property
    def back_off_s(self) -> float:
        return back_off_s(self.count)

"""When a server that lives counts as hung, how soon a server that ends repeatedly is restarted, and when one that
nobody needs is to end."""

from __future__ import annotations

UNANSWERED_MAX = 5  # questions in a row: the process that asks may have been stopped between two of them
HANG_S = 15.0  # with a full disk queue, or on a slow machine, an answer may take seconds
RESTART_S, RESTART_S_MAX = 0.5, 30.0
STEADY_S = 30.0  # a server that answers this long after a restart is restarted without back-off next time


class Hang:
    """Tells whether one server hangs: it has left UNANSWERED_MAX questions in a row, over HANG_S or more, without an
    answer."""

    def __init__(self) -> None:
        self._pid: int | None = None
        self._unanswered = 0
        self._since_s = 0.0

    def asked(self, pid: int | None, *, answered: bool, now_s: float) -> bool:
        """Count a question to the process `pid`, and return whether the server hangs. For another process the count
        begins anew."""
        if answered or pid != self._pid or not self._unanswered:
            self._pid, self._unanswered, self._since_s = pid, 0, now_s
        self._unanswered += not answered
        return self._unanswered >= UNANSWERED_MAX and now_s - self._since_s >= HANG_S


class Backoff:
    """The pause between restarts: none before the first, then twice as long each time, until the server answers
    STEADY_S after a restart."""

    def __init__(self) -> None:
        self._pause_s = RESTART_S
        self._not_before_s = self._restarted_s = float("-inf")

    def may_restart(self, now_s: float) -> bool:
        return now_s >= self._not_before_s

    def restarted(self, now_s: float) -> None:
        """Note a restart, or an attempt at one."""
        self._restarted_s, self._not_before_s = now_s, now_s + self._pause_s
        self._pause_s = min(2 * self._pause_s, RESTART_S_MAX)

    def answered(self, now_s: float) -> None:
        if now_s - self._restarted_s >= STEADY_S:
            self._pause_s = RESTART_S


class Unused:
    """Tells when servers that nobody needs are to end."""

    def __init__(self, now_s: float) -> None:
        self._needed_s = now_s

    def looked(self, unused_s: float, *, is_needed: bool, now_s: float) -> bool:
        """Whether nobody has needed the servers for `unused_s`, so that they are to end. False if `unused_s` is 0."""
        if is_needed:
            self._needed_s = now_s
        return bool(unused_s) and now_s - self._needed_s >= unused_s

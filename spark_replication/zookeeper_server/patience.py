"""When a server that lives is taken to hang, and how soon one that ends again and again is started again."""

from __future__ import annotations

UNANSWERED_MAX = 5  # questions in a row, since who asks may itself have been stopped between two of them
HANG_S = 15.0  # a full disk queue or a slow machine may take seconds
RESTART_S, RESTART_S_MAX = 0.5, 30.0
STEADY_S = 30.0  # of answers: its next end is its first


class Hang:
    """Of one server. It hangs once it has left UNANSWERED_MAX questions in a row, over HANG_S, without an answer."""

    def __init__(self) -> None:
        self._pid: int | None = None
        self._unanswered = 0
        self._since_s = 0.0

    def asked(self, pid: int | None, *, answered: bool, now_s: float) -> bool:
        """True: it hangs. pid: of the process that was asked; another is a new one."""
        if answered or pid != self._pid or not self._unanswered:
            self._pid, self._unanswered, self._since_s = pid, 0, now_s
        self._unanswered += not answered
        return self._unanswered >= UNANSWERED_MAX and now_s - self._since_s >= HANG_S


class Backoff:
    """Between restarts: none before the first, then twice as long each time, until it has answered for STEADY_S."""

    def __init__(self) -> None:
        self._pause_s = RESTART_S
        self._not_before_s = self._restarted_s = float("-inf")

    def may_restart(self, now_s: float) -> bool:
        return now_s >= self._not_before_s

    def restarted(self, now_s: float) -> None:
        """Or tried to."""
        self._restarted_s, self._not_before_s = now_s, now_s + self._pause_s
        self._pause_s = min(2 * self._pause_s, RESTART_S_MAX)

    def answered(self, now_s: float) -> None:
        if now_s - self._restarted_s >= STEADY_S:
            self._pause_s = RESTART_S


class Unused:
    """Of what ends by itself once nobody has needed it for unused_s; 0: never."""

    def __init__(self, now_s: float) -> None:
        self._needed_s = now_s

    def looked(self, unused_s: float, *, is_needed: bool, now_s: float) -> bool:
        """True: it is to end."""
        if is_needed:
            self._needed_s = now_s
        return bool(unused_s) and now_s - self._needed_s >= unused_s

"""A client works only in the process that made it: a fork has a copy of the client, but not its threads and
connections. process.processes says why a fork may not even make a client of its own."""

from __future__ import annotations

import os

from spark_replication.errors import InvalidRequest


class OwnProcess:
    """The process that made a client. `what` is the name of the client in messages."""

    __slots__ = ("_pid", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        self._pid = os.getpid()

    @property
    def is_this(self) -> bool:
        return os.getpid() == self._pid

    def require(self) -> None:
        """Raise InvalidRequest in any other process. Costs 0.1 µs."""
        if os.getpid() != self._pid:
            raise InvalidRequest(
                f"this {self._what} was made in process {self._pid}, and works nowhere else: start process "
                f"{os.getpid()} by spawn or forkserver, and make a {self._what} in it"
            )

"""A client belongs to the process that made it: a fork has a copy of it, and none of its threads and connections."""

from __future__ import annotations

import os

from spark_replication.errors import InvalidRequest


class OwnProcess:
    """what: a client's name, as its users know it."""

    __slots__ = ("_pid", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        self._pid = os.getpid()

    @property
    def is_this(self) -> bool:
        return os.getpid() == self._pid

    def require(self) -> None:
        """Costs 0.1 µs."""
        if os.getpid() != self._pid:
            raise InvalidRequest(
                f"this {self._what} was made in process {self._pid}, and works nowhere else: make a {self._what} in "
                f"this process ({os.getpid()})"
            )

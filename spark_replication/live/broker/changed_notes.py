"""Tells the controller what people are to know of this broker, as soon as that has changed.

A new controller, and a new registration, hear it with all that is noted of the broker (commands.BrokerNotes).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from spark_replication.errors import ReplicationError

log = logging.getLogger(__name__)


class ChangedNotes:
    def __init__(self, about: str, trouble: Callable[[], str], tell: Callable[[], None]) -> None:
        """about: as a log line has it. trouble: empty if there is none. tell: tells all notes; raises if they did not
        arrive."""
        self._about = about
        self._trouble = trouble
        self._tell = tell
        self._told = ""
        self._failed = ""

    def look(self) -> None:
        """Tell of a change. One that did not arrive is told again at the next look."""
        found = self._trouble()
        if found == self._told:
            return
        try:
            self._tell()
        except ReplicationError as error:
            if self._failed != found:
                log.warning("the controller does not know how %s, and is told again: %s", self._about, error)
            self._failed = found
            return
        self._told, self._failed = found, ""

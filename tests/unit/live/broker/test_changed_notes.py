"""The controller hears of each change once, and again until it has."""

from __future__ import annotations

from spark_replication.errors import NotController
from spark_replication.live.broker.changed_notes import ChangedNotes


class Told:
    def __init__(self) -> None:
        self.trouble = ""
        self.heard: list[str] = []
        self.is_there = True
        self.notes = ChangedNotes("its files are", lambda: self.trouble, self._tell)

    def _tell(self) -> None:
        if not self.is_there:
            raise NotController("there is none")
        self.heard.append(self.trouble)


def test_each_change_is_told_once() -> None:
    told = Told()
    for trouble in ("", "open", "open", "open, and refused", "", ""):
        told.trouble = trouble
        told.notes.look()
    assert told.heard == ["open", "open, and refused", ""]


def test_what_did_not_arrive_is_told_again() -> None:
    told = Told()
    told.trouble, told.is_there = "open", False
    for _ in range(2):
        told.notes.look()
    assert told.heard == []
    told.is_there = True
    told.notes.look()
    told.notes.look()
    assert told.heard == ["open"]

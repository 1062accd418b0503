"""A driver's way to command and back. Each candidacy has a session with ZooKeeper of its own (C1).

| phase       | event      | instruction | why                                                                      |
| ----------- | ---------- | ----------- | ------------------------------------------------------------------------ |
| resting     | RESTED     | CAMPAIGN    | on a new session                                                         |
| campaigning | WON        | COMMAND     |                                                                          |
| campaigning | OUTVOTED   | STAND_BY    | another commands                                                         |
| standing by | VACANT     | RESIGN      | it campaigns at once; so it does if its session is in doubt              |
| commanding  | DEPOSED    | RESIGN      | it campaigns at once: what is stored is right, whatever it believed      |
| commanding  | SENT_ASIDE | RESIGN      | it rests for `ASIDE_MS`, so that one that stands by goes first           |
| these three | FAILED     | RESIGN      | it rests for `RETRY_MS`                                                  |
| these three | CLOSED     | RESIGN      | and leaves                                                               |
| resigning   | RESIGNED   | REST, LEAVE | the session has ended, and the claim to command with it; FAILED likewise |
| resting     | CLOSED     | LEAVE       |                                                                          |

An event that no row has comes too late, and is ignored.
"""

from __future__ import annotations

from enum import Enum

RETRY_MS = 500
ASIDE_MS = 2_000


class Event(Enum):
    RESTED = "rested"
    WON = "won"
    OUTVOTED = "outvoted"
    VACANT = "vacant"
    DEPOSED = "deposed"
    SENT_ASIDE = "sent aside"
    FAILED = "failed"
    CLOSED = "closed"
    RESIGNED = "resigned"


class Instruction(Enum):
    #: Wait for `rest_ms`.
    REST = "rest"
    CAMPAIGN = "campaign"
    STAND_BY = "stand by"
    COMMAND = "command"
    #: End the session first, so that the next controller need not wait; then everything that commanding had begun.
    RESIGN = "resign"
    LEAVE = "leave"


# The phases that have a session.
CANDIDATES = (Instruction.CAMPAIGN, Instruction.STAND_BY, Instruction.COMMAND)
# A phase is named by the last instruction.
_NEXT = {
    (Instruction.REST, Event.RESTED): Instruction.CAMPAIGN,
    (Instruction.REST, Event.CLOSED): Instruction.LEAVE,
    (Instruction.CAMPAIGN, Event.WON): Instruction.COMMAND,
    (Instruction.CAMPAIGN, Event.OUTVOTED): Instruction.STAND_BY,
}
# After each of these it resigns, and rests for so many ms before it campaigns again.
_RETRIES = {
    (Instruction.STAND_BY, Event.VACANT): 0,
    (Instruction.COMMAND, Event.DEPOSED): 0,
    (Instruction.COMMAND, Event.SENT_ASIDE): ASIDE_MS,
    **{(phase, Event.FAILED): RETRY_MS for phase in CANDIDATES},
}


class Candidacy:
    """It begins with a rest of 0 ms."""

    def __init__(self) -> None:
        self.instruction = Instruction.REST
        self.rest_ms = 0
        self._leaves = False

    def after(self, event: Event) -> Instruction | None:
        """The next instruction; None if the present one goes on."""
        phase = self.instruction
        self._leaves = self._leaves or event is Event.CLOSED
        if (phase, event) in _NEXT:
            self.instruction = _NEXT[phase, event]
        elif (phase, event) in _RETRIES:
            self.rest_ms = _RETRIES[phase, event]
            self.instruction = Instruction.RESIGN
        elif phase in CANDIDATES and event is Event.CLOSED:
            self.instruction = Instruction.RESIGN
        elif phase is Instruction.RESIGN and event in (Event.RESIGNED, Event.FAILED):
            self.instruction = Instruction.LEAVE if self._leaves else Instruction.REST
        else:
            return None
        return self.instruction

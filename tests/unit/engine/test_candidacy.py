"""Each row of candidacy's table; what no row has changes nothing."""

from __future__ import annotations

import itertools

import pytest

from spark_replication.engine.controller.candidacy import ASIDE_MS, RETRY_MS, Candidacy, Event, Instruction

PATHS = {
    Instruction.REST: (),
    Instruction.CAMPAIGN: (Event.RESTED,),
    Instruction.STAND_BY: (Event.RESTED, Event.OUTVOTED),
    Instruction.COMMAND: (Event.RESTED, Event.WON),
    Instruction.RESIGN: (Event.RESTED, Event.WON, Event.DEPOSED),
    Instruction.LEAVE: (Event.CLOSED,),
}
AT_ONCE = 0
#: By phase and event, what is to be done; of an end of a candidacy, how long it rests before the next one.
TABLE: dict[tuple[Instruction, Event], Instruction | int] = {
    (Instruction.REST, Event.RESTED): Instruction.CAMPAIGN,
    (Instruction.REST, Event.CLOSED): Instruction.LEAVE,
    (Instruction.CAMPAIGN, Event.WON): Instruction.COMMAND,
    (Instruction.CAMPAIGN, Event.OUTVOTED): Instruction.STAND_BY,
    (Instruction.CAMPAIGN, Event.FAILED): RETRY_MS,
    (Instruction.CAMPAIGN, Event.CLOSED): Instruction.LEAVE,
    (Instruction.STAND_BY, Event.VACANT): AT_ONCE,
    (Instruction.STAND_BY, Event.FAILED): RETRY_MS,
    (Instruction.STAND_BY, Event.CLOSED): Instruction.LEAVE,
    (Instruction.COMMAND, Event.DEPOSED): AT_ONCE,
    (Instruction.COMMAND, Event.SENT_ASIDE): ASIDE_MS,
    (Instruction.COMMAND, Event.FAILED): RETRY_MS,
    (Instruction.COMMAND, Event.CLOSED): Instruction.LEAVE,
    (Instruction.RESIGN, Event.RESIGNED): Instruction.REST,
    (Instruction.RESIGN, Event.FAILED): Instruction.REST,
}


def candidacy_in(phase: Instruction) -> Candidacy:
    candidacy = Candidacy()
    for event in PATHS[phase]:
        candidacy.after(event)
    assert candidacy.instruction is phase
    return candidacy


@pytest.mark.parametrize(("phase", "event"), list(itertools.product(Instruction, Event)))
def test_what_follows_from_an_event(phase: Instruction, event: Event) -> None:
    candidacy, expected = candidacy_in(phase), TABLE.get((phase, event))
    told = candidacy.after(event)
    if expected is None:
        assert (told, candidacy.instruction) == (None, phase)
    elif phase in (Instruction.CAMPAIGN, Instruction.STAND_BY, Instruction.COMMAND) and (
        isinstance(expected, int) or expected is Instruction.LEAVE
    ):
        assert told is Instruction.RESIGN
        assert candidacy.after(Event.RESIGNED) is (Instruction.REST if isinstance(expected, int) else expected)
        assert expected in (candidacy.rest_ms, Instruction.LEAVE)
    else:
        assert told is expected


@pytest.mark.parametrize("ended", [Event.RESIGNED, Event.FAILED])
def test_who_is_closed_while_it_resigns_leaves_after_it(ended: Event) -> None:
    candidacy = candidacy_in(Instruction.RESIGN)
    assert candidacy.after(Event.CLOSED) is None
    assert candidacy.after(ended) is Instruction.LEAVE


def test_each_candidacy_rests_as_long_as_its_own_end_says() -> None:
    candidacy = candidacy_in(Instruction.COMMAND)
    candidacy.after(Event.SENT_ASIDE)
    candidacy.after(Event.RESIGNED)
    assert candidacy.rest_ms == ASIDE_MS
    for event in (Event.RESTED, Event.OUTVOTED, Event.VACANT, Event.RESIGNED):
        candidacy.after(event)
    assert (candidacy.instruction, candidacy.rest_ms) == (Instruction.REST, AT_ONCE)

"""Events for a terminal: those of one cause stand together, since a broker's death may set off thousands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from spark_replication.messages.mirroring import ToldEvent


class Happening(NamedTuple):
    """Events that followed each other, and have one cause."""

    #: When the first event was, UTC.
    at: str
    #: The first event of each kind, and how many more there are.
    what: str
    #: What set them off; empty if unknown.
    because: str
    #: The id of the cause, for `mirror events --cause`; empty if there is none.
    cause: str
    #: The number of the last event.
    number: int

    def __str__(self) -> str:
        because = f", because {self.because}" if self.because else ""
        cause = f" (cause {self.cause})" if self.cause else ""
        return f"{self.at} {self.what}{because}{cause}"


def happenings(events: Iterable[ToldEvent]) -> list[Happening]:
    """The happenings that these events make up, in the order of the events."""
    groups: list[list[ToldEvent]] = []
    for event in events:
        if groups and event.cause is not None and groups[-1][0].cause == event.cause:
            groups[-1].append(event)
        else:
            groups.append([event])
    return [_happening(group) for group in groups]


def _happening(group: Sequence[ToldEvent]) -> Happening:
    first = group[0]
    kinds: dict[str, list[ToldEvent]] = {}
    for event in group:
        kinds.setdefault(event.kind, []).append(event)
    return Happening(
        at=f"{datetime.fromtimestamp(first.at_ms / 1_000, UTC):%H:%M:%S}",
        what="; ".join(_of_kind(same) for same in kinds.values()),
        because=first.because or "",
        cause=first.cause or "",
        number=group[-1].number,
    )


def _of_kind(same: Sequence[ToldEvent]) -> str:
    first = same[0]
    words = [first.kind.replace("_", " ")]
    words += [] if first.subject is None else [first.subject]
    words += [f"led by {first.leader}"] if first.kind == "elected" and first.leader is not None else []
    return f"{' '.join(words)}{f' and {len(same) - 1} more' if len(same) > 1 else ''}"

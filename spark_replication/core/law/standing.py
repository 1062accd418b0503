"""What became of a group of writes whose multi() was refused, or whose answer was lost, by what is there since.

A multi() is stored whole or not at all. A write that names a version proves that: nobody else makes that version of
that node with that content, since a leader writes only what it changes, and neither leader epoch nor min_isr. What
another write makes or removes may have been so before.

| its answer | what is there                                      | Standing | why                                    |
| ---------- | -------------------------------------------------- | -------- | -------------------------------------- |
| lost       | one write that proves shows                        | STORED   | whatever became of the others since    |
| lost       | every write shows                                  | STORED   | it comes to the same                   |
| lost, no   | else, and every condition holds                    | OPEN     | it can be sent, again                  |
| lost, no   | else                                               | LOST     | a condition fails, and will for ever   |

"Shows": what is there is what the write makes. Sending again is safe at any time: the conditions are in the multi().
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from spark_replication.core.law.writes import PartitionWrite, TopicWrite, Write


class Standing(enum.Enum):
    STORED = "what is there is what the group wrote"
    OPEN = "every condition holds: it can be sent"
    LOST = "a condition fails, and will for ever"


class Look(NamedTuple):
    """What is there, of one write."""

    write: Write
    #: Of the node that the write is about; ABSENT: there is none.
    version: int
    #: What is there is what it makes.
    shows: bool
    #: Its conditions do.
    holds: bool


def standing(looks: Sequence[Look], *, is_lost: bool) -> Standing:
    """is_lost: an answer to this group was: it may be stored."""
    if is_lost and (proof(looks) is not None or all(look.shows for look in looks)):
        return Standing.STORED
    return Standing.OPEN if all(look.holds for look in looks) else Standing.LOST


def proof(looks: Sequence[Look]) -> PartitionWrite | TopicWrite | None:
    """Whose node is as the group made it, and as nobody else would have."""
    return next(
        (look.write for look in looks if look.shows and isinstance(look.write, (PartitionWrite, TopicWrite))), None
    )


def moved_on(looks: Sequence[Look]) -> Iterator[PartitionWrite]:
    """Of a group that is stored: the writes of partitions that their leaders have written since."""
    for look in looks:
        if isinstance(look.write, PartitionWrite) and look.version > look.write.version + 1:
            yield look.write

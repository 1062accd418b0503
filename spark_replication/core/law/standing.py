"""What became of a group of writes whose multi() was refused, or whose answer was lost, judged by the nodes.

A multi() is stored whole or not at all. A write shows if its nodes are as the write makes them. A write that names a
version also proves, by showing, that its multi() was stored: nobody else makes that version of that node with that
content, since a leader writes only what it changes, and neither leader epoch nor min_isr. The nodes of any other write
may have been so before.

| answer lost? | the nodes                                        | Standing | why                                    |
| ------------ | ------------------------------------------------ | -------- | -------------------------------------- |
| yes          | one write that proves shows                      | STORED   | whatever became of the others since    |
| yes          | every write shows                                | STORED   | the result is the same                 |
| yes or no    | otherwise, if every condition holds              | OPEN     | it can be sent, or sent again          |
| yes or no    | otherwise                                        | LOST     | a condition fails, and will for ever   |

Sending again is safe at any time: the conditions are in the multi().
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


class SeenWrite(NamedTuple):
    """What the nodes say of one write."""

    write: Write
    #: The version of the node that the write is about; ABSENT if there is none.
    version: int
    #: The nodes are as the write makes them.
    shows: bool
    #: The conditions of the write hold.
    holds: bool


def standing(looks: Sequence[SeenWrite], *, is_lost: bool) -> Standing:
    """is_lost: an answer to this group was lost, so it may be stored."""
    if is_lost and (proof(looks) is not None or all(look.shows for look in looks)):
        return Standing.STORED
    return Standing.OPEN if all(look.holds for look in looks) else Standing.LOST


def proof(looks: Sequence[SeenWrite]) -> PartitionWrite | TopicWrite | None:
    """The write that proves the group stored, if one shows: its node is as nobody else would have made it."""
    return next(
        (look.write for look in looks if look.shows and isinstance(look.write, (PartitionWrite, TopicWrite))), None
    )


def moved_on(looks: Sequence[SeenWrite]) -> Iterator[PartitionWrite]:
    """The writes of a stored group whose partitions their leaders have written since."""
    for look in looks:
        if isinstance(look.write, PartitionWrite) and look.version > look.write.version + 1:
            yield look.write

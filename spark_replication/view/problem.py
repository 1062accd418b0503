"""A problem of a cluster, what it follows from, and what mends it: words, and commands that can be run as they are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import msgspec

from spark_replication.messages.commands import PartitionCommand
from spark_replication.model import BrokerId

Severity = Literal["critical", "warning"]

#: Where the guide tells more: a page, and a section of it.
GuidePlace = Literal[
    "operate#a-broker-is-gone-for-good",
    "operate#a-clock-is-wrong",
    "operate#a-disk-refuses-or-has-damaged-records",
    "operate#a-follower-is-behind",
    "operate#a-partition-has-no-leader",
    "operate#a-partition-may-have-lost-records",
    "operate#acksall-is-refused",
    "operate#logs-were-put-aside",
    "operate#the-mirror-is-behind-or-somebody-changed-its-tables",
    "operate#who-answers-when-brokers-do-not",
    "topic-tables#look-at-it",
    "topic-tables#when-the-spark-application-goes",
]

# Troubles that others follow from.
DEAD_BROKERS = "dead brokers"
NO_ELECTIONS = "no elections"
DISK = "disk of broker {}"


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """What keeps a cluster from being healthy. As text it is a sentence that says what happened, and what ends it."""

    #: `critical` if something cannot be written, read or changed at present.
    severity: Severity
    #: What it is about: a partition or broker by its name, or a part of the cluster.
    subject: str
    #: The rest of the sentence after `subject`: the same for all subjects that suffer from the same.
    what: str
    #: The partition (in its present state) or broker (which is gone) whose events explain the problem. None if no
    #: events do.
    about: PartitionCommand | BrokerId | None = None
    #: What to do, in words, with commands, or both: "words: spark-replication …; spark-replication …", which are run in
    #: this order. With `mends_by_name` the last command takes partitions: their names follow it.
    mend: str = ""
    mends_by_name: bool = False
    #: The trouble that this is, by a name: the problems that `follow` it end with it.
    roots: str = ""
    #: The trouble that this is a consequence of, if a problem with these `roots` is there, too.
    follows: str = ""
    #: What its subjects are, after their number: "12 partitions without a leader".
    counted: str = ""
    #: All subjects of such a cause in one sentence. Empty: the reason is that sentence.
    headline: str = ""
    #: What to do, in the form of `mend`, where that does not help.
    otherwise: str = ""
    #: Empty: the mend says it all.
    guide: GuidePlace | Literal[""] = ""

    def mend_of(self, subjects: Sequence[str]) -> str:
        """What to do for these subjects, which suffer from the same."""
        return " ".join([self.mend, *subjects]) if self.mends_by_name else self.mend

    def __str__(self) -> str:
        return f"{self.subject} {self.what}"


class Mend(msgspec.Struct, frozen=True, kw_only=True):
    #: What to do. Empty if the commands say it.
    words: str
    #: To be run in this order.
    commands: tuple[str, ...]

    def __str__(self) -> str:
        return ": ".join(part for part in (self.words, "; ".join(self.commands)) if part)


def guide_command(place: str) -> str:
    """The command that prints this place in the guide."""
    return f"spark-replication guide {place}"


_COMMANDS = re.compile(r"(?:^|: )(?=spark-replication )")


def mend_from(text: str) -> Mend:
    """The words and the commands of a `mend`."""
    words, *commands = _COMMANDS.split(text, maxsplit=1)
    return Mend(words=words, commands=tuple(commands[0].split("; ")) if commands else ())

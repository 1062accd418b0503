"""The health of a cluster, to be read in ten seconds: a verdict, and its reasons. Thousands of partitions may share a
reason, and several reasons one cause: that is an incident, with the cause first, and what follows from it counted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from spark_replication.messages.commands import PartitionCommand
from spark_replication.messages.mirroring import EVENTS_MAX, DescribeEvents, ToldEvent, partition_face
from spark_replication.model import BrokerId, TopicPartition
from spark_replication.view.problem import Mend, Problem, Severity, mend_from

SUBJECTS_MAX = 5  # of a reason, by name
EXPLAINED_MAX = 20  # reasons whose cause is looked for
ORDER: tuple[Severity, ...] = ("critical", "warning")

Verdict = Literal["healthy", "degraded", "critical"]


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    severity: Severity
    #: What is wrong with each of `subjects`.
    what: str
    #: How many suffer from it.
    count: int
    #: The names of the first of these.
    subjects: tuple[str, ...]
    #: A command, or what to do.
    mend: str
    #: What happened last to the first of these, and what set that off. Empty if no event tells it.
    because: str = ""
    #: The id of that cause, for `mirror events --cause`.
    cause: str | None = None
    #: When that was, in ms since 1970.
    since_ms: int | None = None

    def __str__(self) -> str:
        first, *others = self.subjects
        text = f"{first} {self.what}"
        if not others:
            return text
        more = ", …" if self.count > len(self.subjects) else ""
        return f"{text} (and {self.count - 1} more: {', '.join(others)}{more})"


class Consequence(msgspec.Struct, frozen=True, kw_only=True):
    #: The worst of its reasons'.
    severity: Severity
    #: What they are, after their number: "without a leader".
    what: str
    count: int
    #: The names of the first of them.
    subjects: tuple[str, ...]

    def __str__(self) -> str:
        more = ", …" if self.count > len(self.subjects) else ""
        whose = "partition" if self.count == 1 else "partitions"
        return f"{self.count:,} {whose} {self.what} ({', '.join(self.subjects)}{more})"


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """A cause with all that follows from it. A reason from which nothing follows is one, too."""

    #: The worst of its reasons'.
    severity: Severity
    #: The cause: a sentence.
    what: str
    consequences: tuple[Consequence, ...]
    #: What ends it, and then what to do if that does not help.
    mends: tuple[Mend, ...]
    #: Where the guide tells more, as `operate#a-clock-is-wrong`; empty if nowhere.
    guide: str = ""
    #: As of a Reason: of the cause, or else of the first consequence of which an event tells.
    because: str = ""
    cause: str | None = None
    since_ms: int | None = None

    def __str__(self) -> str:
        return f"{self.what}: {', '.join(map(str, self.consequences))}" if self.consequences else self.what


class Group(NamedTuple):
    #: The first of the problems that have this reason.
    first: Problem
    reason: Reason


def verdict_of(reasons: Iterable[Reason]) -> Verdict:
    severities = {reason.severity for reason in reasons}
    return "critical" if "critical" in severities else "degraded" if severities else "healthy"


def grouped(problems: Iterable[Problem]) -> list[Group]:
    """The problems by reason, the worst first; those of the same severity keep their order."""
    together: dict[tuple[str, ...], list[Problem]] = {}
    for each in problems:
        together.setdefault((each.severity, each.what, each.mend, each.follows), []).append(each)
    groups = [Group(same[0], _reason(same)) for same in together.values()]
    return sorted(groups, key=lambda group: ORDER.index(group.first.severity))


def _reason(same: Sequence[Problem]) -> Reason:
    first, subjects = same[0], tuple(each.subject for each in same[:SUBJECTS_MAX])
    return Reason(
        severity=first.severity, what=first.what, count=len(same), subjects=subjects, mend=first.mend_of(subjects)
    )


def incidents(groups: Iterable[Group]) -> tuple[Incident, ...]:
    """The groups by cause, the worst first. Of the same severity, those come first from which others follow."""
    known = list(groups)
    heads: dict[str, int] = {}
    for place, group in enumerate(known):
        if group.first.roots:
            heads.setdefault(group.first.roots, place)
    following: dict[int, list[Group]] = {place: [] for place in range(len(known))}
    for place, group in enumerate(known):
        head = heads.get(group.first.roots or group.first.follows, place)
        if head != place:
            following[head].append(group)
            del following[place]
    found = [_incident(known[place], others) for place, others in following.items()]
    return tuple(sorted(found, key=lambda each: (ORDER.index(each.severity), not each.consequences)))


def _incident(cause: Group, others: Sequence[Group]) -> Incident:
    reasons = [cause.reason, *(each.reason for each in others)]
    told = next((each for each in reasons if each.because), cause.reason)
    counted: dict[str, list[Reason]] = {}
    for each in others:
        counted.setdefault(each.first.counted, []).append(each.reason)
    return Incident(
        severity=_worst(reasons),
        what=cause.first.headline or str(cause.reason),
        consequences=tuple(_counted(what, same) for what, same in counted.items()),
        mends=tuple(mend_from(each) for each in (cause.reason.mend, cause.first.otherwise) if each),
        guide=cause.first.guide,
        because=told.because,
        cause=told.cause,
        since_ms=told.since_ms,
    )


def _counted(what: str, same: Sequence[Reason]) -> Consequence:
    return Consequence(
        severity=_worst(same),
        what=what,
        count=sum(each.count for each in same),
        subjects=tuple(subject for each in same for subject in each.subjects)[:SUBJECTS_MAX],
    )


def _worst(reasons: Iterable[Reason]) -> Severity:
    return min((each.severity for each in reasons), key=ORDER.index)


def events_about(groups: Iterable[Group]) -> DescribeEvents | None:
    """The request for the events that may explain these groups; None if there are no such events."""
    about = [group.first.about for group in groups][:EXPLAINED_MAX]
    partitions = tuple(each.topic_partition for each in about if isinstance(each, PartitionCommand))
    brokers = tuple(each for each in about if isinstance(each, int))
    return DescribeEvents(partitions=partitions, brokers=brokers, last=EVENTS_MAX) if partitions or brokers else None


def explained(group: Group, events: Iterable[ToldEvent]) -> Reason:
    """The reason, with the newest of these events (the oldest comes first) that is about the first problem. The event
    counts only if it led to the present state: the mirror may lag, and its newest event be of an earlier state."""
    about = group.first.about
    newest = None
    for event in events:
        if _subject(event) == (about.topic_partition if isinstance(about, PartitionCommand) else about):
            newest = event
    if about is None or newest is None or newest.became != _face(about):
        return group.reason
    return msgspec.structs.replace(
        group.reason, because=newest.because or "", cause=newest.cause, since_ms=newest.at_ms
    )


def _subject(event: ToldEvent) -> TopicPartition | BrokerId | None:
    """The partition or broker that the event is about; None if it is about neither."""
    if event.topic is not None and event.partition is not None:
        return TopicPartition(event.topic, event.partition)
    return event.broker


def _face(about: PartitionCommand | BrokerId) -> dict[str, Any] | None:
    """The state that the event must have led to. It is None for a broker, whose problem is that it is gone."""
    return partition_face(about) if isinstance(about, PartitionCommand) else None

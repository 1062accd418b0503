"""Consumer groups on the page: who reads what, and how far each is behind.

All viewers share one question to the coordinators, which a thread of its own repeats while somebody looks at groups.
While it has no answer, what was told last is shown, with its age and the error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from typing import NamedTuple

from spark_replication.client.asking.groups import GroupDescription, GroupMemberDescription, GroupPartitionDescription
from spark_replication.page import looking
from spark_replication.page.answers import Age, GroupDetail, GroupMemberRow, GroupPartitionRow, GroupsShown
from spark_replication.page.asking import Cluster
from spark_replication.page.looking import Poller
from spark_replication.process.threads import now_ms
from spark_replication.view.groups import GroupSummary, most_behind_first, place_by_lag, summary_of

GROUPS_S = 3.0
# Of one answer.
GROUPS_MAX = 1_000
MEMBERS_MAX = 1_000
PARTITIONS_MAX = 10_000


class ToldGroups(NamedTuple):
    at_ms: int
    groups: Mapping[str, GroupDescription]
    #: Of all groups, those most behind first.
    summaries: list[GroupSummary]
    #: The same of the partitions of each topic.
    of_topics: Mapping[str, list[GroupSummary]]


NOTHING_TOLD = ToldGroups(0, {}, [], {})


class GroupsWatch:
    """Thread-safe."""

    def __init__(self, cluster: Cluster, changed: Callable[[], None]) -> None:
        self._cluster = cluster
        self._changed = changed
        self._told = NOTHING_TOLD
        self._tried_ms = 0
        #: When somebody looked last, and since when somebody has looked without a break.
        self._wanted_ms = self._since_ms = 0
        self._look = Poller("page-groups", self._ask, self._note, GROUPS_S)
        self.start = self._look.start
        self.stop = self._look.stop

    def want(self) -> None:
        """Note that somebody looks. One thread at a time may call it."""
        at_ms = now_ms()
        if at_ms - self._wanted_ms > looking.WANTED_S * 1_000:
            self._since_ms = at_ms
        self._wanted_ms = at_ms
        self._look.want()

    def _ask(self) -> None:
        self._told = told_groups(self._cluster.groups(), now_ms())

    def _note(self) -> None:
        self._tried_ms = now_ms()
        self._changed()

    @property
    def age(self) -> Age:
        return self._look.age

    @property
    def is_current(self) -> bool:
        """Whether coordinators were asked, with or without an answer, since somebody has looked."""
        return self._tried_ms >= self._since_ms > 0

    def shown(self, topic: str | None) -> GroupsShown:
        told = self._told
        found = told.summaries if topic is None else told.of_topics.get(topic, [])
        return GroupsShown(groups=tuple(found[:GROUPS_MAX]), count=len(found), age=self.age)

    def detail(self, name: str) -> GroupDetail | None:
        told = self._told
        found = told.groups.get(name)
        return None if found is None else group_detail(found, told.at_ms, self.age)


def told_groups(groups: Iterable[GroupDescription], at_ms: int) -> ToldGroups:
    known = {each.group: each for each in groups}
    of_topics: dict[str, list[GroupSummary]] = {}
    for group in known.values():
        for topic, partitions in groupby(group.partitions, key=lambda each: each.topic):
            of_topics.setdefault(topic, []).append(summary_of(group, list(partitions)))
    return ToldGroups(
        at_ms=at_ms,
        groups=known,
        summaries=most_behind_first(map(summary_of, known.values())),
        of_topics={topic: most_behind_first(found) for topic, found in of_topics.items()},
    )


def group_detail(group: GroupDescription, at_ms: int, age: Age) -> GroupDetail:
    """at_ms: when the group was told to be so."""
    names = {each.member: each.name for each in group.members}
    members = sorted(group.members, key=lambda each: (each.name, each.member))
    partitions = sorted(group.partitions, key=lambda each: place_by_lag(each.lag))
    return GroupDetail(
        summary=summary_of(group),
        members=[_member(each, at_ms) for each in members[:MEMBERS_MAX]],
        partitions=[_partition(each, names) for each in partitions[:PARTITIONS_MAX]],
        age=age,
    )


def _member(member: GroupMemberDescription, at_ms: int) -> GroupMemberRow:
    return GroupMemberRow(
        name=member.name,
        host=member.host,
        partitions=len(member.partitions),
        hands_over=len(member.hands_over),
        heard_ms=at_ms - member.silent_ms,
        is_connected=member.is_connected,
    )


def _partition(partition: GroupPartitionDescription, names: Mapping[str, str]) -> GroupPartitionRow:
    return GroupPartitionRow(
        topic=partition.topic,
        partition=partition.partition,
        offset=partition.offset,
        end=partition.end,
        behind=partition.lag,
        committed_ms=partition.committed_ms,
        member=None if partition.member is None else names.get(partition.member),
    )

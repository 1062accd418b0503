"""The health of a cluster, from its controller's metadata, or a broker's while there is no controller."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import chain

import msgspec

from spark_replication.client.asking.markup import Markup, joined, paragraph, styled, table
from spark_replication.messages.descriptions import Metadata
from spark_replication.messages.mirroring import DescribeEvents, ToldEvent
from spark_replication.view.conditions import conditions_of_command
from spark_replication.view.health import problems
from spark_replication.view.problem import NO_ELECTIONS, Problem, guide_command
from spark_replication.view.verdict import (
    Incident,
    Reason,
    Verdict,
    events_about,
    explained,
    grouped,
    incidents,
    verdict_of,
)


class Health(msgspec.Struct, frozen=True, kw_only=True):
    verdict: Verdict
    #: The worst first.
    reasons: tuple[Reason, ...]
    #: The same by cause, the worst first: what a person reads.
    incidents: tuple[Incident, ...]
    cluster_id: str
    #: The controller's host:port; None while there is none.
    controller: str | None
    #: How many brokers are registered.
    brokers: int
    topics: int
    partitions: int
    #: Of how many partitions this holds (`view.conditions`): of one several may.
    leaderless: int
    under_min_isr: int
    under_replicated: int
    moving: int

    def __repr__(self) -> str:
        worst = f"; {self.incidents[0]}" if self.incidents else ""
        more = f", and {len(self.incidents) - 1} more reasons" if len(self.incidents) > 1 else ""
        return f"Health({self.verdict}: {self._size}{worst}{more})"

    def _repr_html_(self) -> str:
        told = [
            (styled(each.severity), str(each), each.because, _utc(each.since_ms), _mended(each))
            for each in self.incidents
        ]
        shown = table(("severity", "reason", "because", "since", "what_mends_it"), told) if told else Markup()
        return joined(paragraph(styled(self.verdict), f": {self._size}"), shown)

    @property
    def _size(self) -> str:
        counts = f"{self.brokers} brokers, {self.topics} topics, {self.partitions} partitions"
        return f"{counts}, controller {self.controller or 'none'}"


def _mended(incident: Incident) -> str:
    mends = "; or ".join(map(str, incident.mends))
    return f"{mends}; more: {guide_command(incident.guide)}" if incident.guide else mends


def _utc(time_ms: int | None) -> str:
    return "" if time_ms is None else f"{datetime.fromtimestamp(time_ms / 1_000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def health_of(metadata: Metadata, events: Callable[[DescribeEvents], Sequence[ToldEvent]]) -> Health:
    """Judge a cluster by its metadata. `events` reads the events that may have caused its problems. Every broker that
    has a replica should be registered."""
    commands = [each for topic in metadata.topics for each in topic.partitions]
    expected = frozenset(broker for each in commands for broker in each.replicas)
    counts = Counter(chain.from_iterable(map(conditions_of_command, commands)))
    groups = grouped([*_without_controller(metadata), *problems(metadata, expected)])
    asked = events_about(groups)
    # While the mirror is not written, it may lack the very cause, and name an earlier one.
    told = () if asked is None or metadata.mirror_error else events(asked)
    groups = [group._replace(reason=explained(group, told)) for group in groups]
    reasons = tuple(group.reason for group in groups)
    return Health(
        verdict=verdict_of(reasons),
        reasons=reasons,
        incidents=incidents(groups),
        cluster_id=metadata.cluster_id,
        controller=metadata.controller,
        brokers=len(metadata.brokers),
        topics=len(metadata.topics),
        partitions=len(commands),
        leaderless=counts["leaderless"],
        under_min_isr=counts["under_min_isr"],
        under_replicated=counts["under_replicated"],
        moving=counts["moving"],
    )


def _without_controller(metadata: Metadata) -> Iterator[Problem]:
    if metadata.controller is None:
        yield Problem(
            severity="critical",
            subject="no controller",
            what="commands: brokers serve, and until one takes over no leader is elected and no topic changed",
            guide="operate#who-answers-when-brokers-do-not",
            mend="start a driver (jobs/start_cluster.py), or wait for one that stands by: spark-replication health "
            "--watch 1",
            roots=NO_ELECTIONS,
        )

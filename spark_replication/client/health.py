"""The health of a cluster, from its controller's metadata, or a broker's while there is no controller."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

import msgspec

from spark_replication.client.markup import Markup, joined, paragraph, styled, table
from spark_replication.core.controller.health import Problem, problems
from spark_replication.core.controller.verdict import Reason, Verdict, events_about, explained, grouped, verdict_of
from spark_replication.messages.descriptions import Metadata
from spark_replication.messages.mirroring import DescribeEvents, ToldEvent


class Health(msgspec.Struct, frozen=True, kw_only=True):
    verdict: Verdict
    #: The worst first.
    reasons: tuple[Reason, ...]
    cluster_id: str
    #: The controller's host:port; None while there is none.
    controller: str | None
    #: How many brokers are registered.
    brokers: int
    topics: int
    partitions: int
    leaderless: int
    under_min_isr: int
    under_replicated: int

    def __repr__(self) -> str:
        worst = f"; {self.reasons[0]}" if self.reasons else ""
        more = f", and {len(self.reasons) - 1} more reasons" if len(self.reasons) > 1 else ""
        return f"Health({self.verdict}: {self._size}{worst}{more})"

    def _repr_html_(self) -> str:
        reasons = [
            (styled(each.severity), str(each), each.because, _utc(each.since_ms), each.mend) for each in self.reasons
        ]
        shown = table(("severity", "reason", "because", "since", "what_mends_it"), reasons) if reasons else Markup()
        return joined(paragraph(styled(self.verdict), f": {self._size}"), shown)

    @property
    def _size(self) -> str:
        counts = f"{self.brokers} brokers, {self.topics} topics, {self.partitions} partitions"
        return f"{counts}, controller {self.controller or 'none'}"


def _utc(time_ms: int | None) -> str:
    return "" if time_ms is None else f"{datetime.fromtimestamp(time_ms / 1_000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def health_of(metadata: Metadata, events: Callable[[DescribeEvents], Sequence[ToldEvent]]) -> Health:
    """Judge a cluster by its metadata. `events` reads the events that may have caused its problems. Every broker that
    has a replica should be registered."""
    commands = [each for topic in metadata.topics for each in topic.partitions]
    expected = frozenset(broker for each in commands for broker in each.replicas)
    groups = grouped([*_without_controller(metadata), *problems(metadata, expected)])
    asked = events_about(groups)
    # While the mirror is not written, it may lack the very cause, and name an earlier one.
    told = () if asked is None or metadata.mirror_error else events(asked)
    reasons = tuple(explained(group, told) for group in groups)
    return Health(
        verdict=verdict_of(reasons),
        reasons=reasons,
        cluster_id=metadata.cluster_id,
        controller=metadata.controller,
        brokers=len(metadata.brokers),
        topics=len(metadata.topics),
        partitions=len(commands),
        leaderless=sum(each.state.leader is None for each in commands),
        under_min_isr=sum(len(each.state.isr) < each.state.min_isr for each in commands),
        under_replicated=sum(len(each.state.isr) < len(each.replicas) for each in commands),
    )


def _without_controller(metadata: Metadata) -> Iterator[Problem]:
    if metadata.controller is None:
        yield Problem(
            severity="critical",
            subject="no controller",
            what="commands: brokers serve, and until one takes over no leader is elected and no topic changed",
            mend="start a driver (jobs/start_cluster.py), or wait for one that stands by",
        )

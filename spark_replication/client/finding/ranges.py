"""Asks the leaders of partitions which offsets there are, and where ranges are best cut: one call to each leader."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from spark_replication.client.finding.deadline import Deadline, persistently
from spark_replication.client.finding.routes import ASK_MS, Routes
from spark_replication.core.routing import Route
from spark_replication.decoding import error_of
from spark_replication.errors import InvalidRequest, ReplicationError
from spark_replication.messages.actions import DESCRIBE_RANGES
from spark_replication.messages.envelope import NONE
from spark_replication.messages.ranges import DescribeRanges, FoundRange, WantedRange
from spark_replication.model import TopicPartition

Found = dict[TopicPartition, FoundRange]
_Asked = dict[Route, WantedRange]


def found_ranges(routes: Routes, wanted: Sequence[WantedRange], deadline: Deadline) -> Found:
    """Describe at most one range of each partition. A range that a leader cannot describe yet is asked for again, until
    the deadline."""
    found: Found = {}

    def ask() -> Found:
        missing = [each for each in wanted if each.topic_partition not in found]
        errors: list[ReplicationError] = []
        for address, asked in _by_leader(routes, missing, deadline).items():
            for route, outcome in _told(routes, address, asked, deadline):
                if isinstance(outcome, FoundRange):
                    found[outcome.topic_partition] = outcome
                else:
                    errors.append(outcome)
                    if outcome.stale_routes:
                        routes.stale(route)
        if errors:
            raise min(errors, key=lambda error: error.retriable)
        return found

    return persistently(ask, deadline)


def answered_ranges(routes: Routes, wanted: Sequence[WantedRange], deadline: Deadline) -> Found:
    """As `found_ranges`, but each leader is asked once: a range that is not described is left out."""
    found: Found = {}
    for address, asked in _by_leader(routes, list(_routed(routes, wanted, deadline)), deadline).items():
        for route, outcome in _told(routes, address, asked, deadline):
            if isinstance(outcome, FoundRange):
                found[outcome.topic_partition] = outcome
            elif outcome.stale_routes:
                routes.stale(route)
    return found


def _routed(routes: Routes, wanted: Sequence[WantedRange], deadline: Deadline) -> Iterator[WantedRange]:
    """The ranges of partitions that have a leader."""
    for each in wanted:
        try:
            routes.route(each.topic, each.partition, deadline)
        except ReplicationError as error:
            if not error.retriable:
                raise
        else:
            yield each


def range_at(routes: Routes, address: str, wanted: WantedRange, deadline: Deadline) -> FoundRange:
    """The range as the replica at this address describes it. Raises the error if it cannot."""
    (found,) = ranges_at(routes, address, [wanted], deadline)
    if found.error != NONE:
        raise error_of(found.error, found.message)
    return found


def ranges_at(
    routes: Routes, address: str, wanted: Sequence[WantedRange], deadline: Deadline
) -> tuple[FoundRange, ...]:
    """The ranges as the replicas at this address describe them, in this order, some with errors."""
    request = DescribeRanges(ranges=tuple(wanted))
    ranges = routes.call(address, DESCRIBE_RANGES, request, deadline.within_ms(ASK_MS)).ranges
    if [each.topic_partition for each in ranges] != [each.topic_partition for each in wanted]:
        raise InvalidRequest(f"{address} was asked for {len(wanted)} ranges of offsets and answered others: upgrade it")
    return ranges


def _by_leader(routes: Routes, wanted: Sequence[WantedRange], deadline: Deadline) -> dict[str, _Asked]:
    asked: dict[str, _Asked] = defaultdict(dict)
    for each in wanted:
        route = routes.route(each.topic, each.partition, deadline)
        asked[route.address][route] = each
    return asked


def _told(
    routes: Routes, address: str, asked: _Asked, deadline: Deadline
) -> Iterator[tuple[Route, FoundRange | ReplicationError]]:
    try:
        ranges = ranges_at(routes, address, list(asked.values()), deadline)
    except ReplicationError as error:
        yield from ((route, error) for route in asked)
        return
    for route, each in zip(asked, ranges, strict=True):
        yield route, each if each.error == NONE else error_of(each.error, each.message)

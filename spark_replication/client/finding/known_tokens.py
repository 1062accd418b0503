"""Asks the controller and all brokers which tokens let somebody in there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from spark_replication.client.finding.deadline import Deadline
from spark_replication.client.finding.routes import ASK_MS, Routes
from spark_replication.errors import ReplicationError
from spark_replication.messages.actions import DESCRIBE_TOKENS
from spark_replication.messages.descriptions import Metadata
from spark_replication.messages.observing import DescribeTokens


class TokensThere(NamedTuple):
    """What one process told of the tokens that it was asked about."""

    #: The marks of those that let somebody in. None: it did not answer.
    marks: frozenset[str] | None
    #: How many each principal has that was asked about, and has any.
    counts: Mapping[str, int]
    #: Why it did not answer, or cannot use its files as they are. Empty if it can.
    trouble: str


def known_tokens(
    routes: Routes, metadata: Metadata, asked: DescribeTokens, deadline: Deadline
) -> Mapping[str, TokensThere]:
    """What each told, by `controller` and `broker 1`. Without a controller, brokers alone."""
    places = {} if metadata.controller is None else {"controller": metadata.controller}
    places |= {f"broker {broker}": each.address for broker, each in sorted(metadata.brokers.items())}
    return {place: _told(routes, address, asked, deadline) for place, address in places.items()}


def _told(routes: Routes, address: str, asked: DescribeTokens, deadline: Deadline) -> TokensThere:
    try:
        answer = routes.call(address, DESCRIBE_TOKENS, asked, deadline.within_ms(ASK_MS))
    except ReplicationError as error:
        return TokensThere(None, {}, str(error))
    return TokensThere(frozenset(answer.marks), answer.counts, answer.trouble)

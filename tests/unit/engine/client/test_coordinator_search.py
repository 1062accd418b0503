"""A member's attempts to find whoever coordinates its group."""

from __future__ import annotations

import math

import pytest

from spark_replication.engine.client.coordinator_search import CoordinatorSearch
from spark_replication.engine.client.pausing import BACK_OFF_FIRST_S, BACK_OFF_MAX_S
from spark_replication.errors import BrokerNotAvailable, GroupAuthorizationFailed

GONE = BrokerNotAvailable("nobody is there")


@pytest.fixture
def search() -> CoordinatorSearch:
    return CoordinatorSearch()


def test_there_is_one_attempt_at_a_time(search: CoordinatorSearch) -> None:
    assert search.begins(5.0)
    assert not search.begins(6.0)
    assert search.due_s == math.inf
    search.connected()
    assert not search.begins(7.0), "it has somebody"


@pytest.mark.parametrize("error", [GONE, ConnectionRefusedError()])
def test_after_a_failure_it_waits_and_asks_for_another_route(
    search: CoordinatorSearch, error: OSError | BrokerNotAvailable
) -> None:
    assert (search.begins(5.0), search.doubts_route) == (True, False)
    search.failed(error, 6.0)
    assert search.doubts_route
    assert search.due_s == 6.0 + BACK_OFF_FIRST_S
    assert not search.begins(6.0)
    assert search.begins(search.due_s)


def test_each_failure_in_a_row_has_it_wait_longer(search: CoordinatorSearch) -> None:
    waits = []
    for at_s in range(5, 20):
        assert search.begins(at_s)
        search.failed(GONE, at_s)
        waits.append(search.due_s - at_s)
    assert waits == sorted(waits)
    assert waits[0] < waits[1]
    assert waits[-1] == BACK_OFF_MAX_S


def test_who_was_let_in_uses_the_route_until_the_connection_ends(search: CoordinatorSearch) -> None:
    for at_s in (5.0, 6.0):
        assert search.begins(at_s)
        search.failed(GONE, at_s)
    assert search.begins(7.0)
    search.connected()
    assert not search.doubts_route
    search.failed(GONE, 8.0)
    assert (search.doubts_route, search.due_s) == (True, 8.0 + BACK_OFF_FIRST_S)


def test_a_refusal_for_good_ends_it(search: CoordinatorSearch) -> None:
    assert search.begins(5.0)
    refused = GroupAuthorizationFailed("no")
    search.failed(refused, 5.0)
    assert (search.error, search.due_s, search.begins(100.0)) == (refused, math.inf, False)

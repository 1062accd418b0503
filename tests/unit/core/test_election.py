"""L1: who leads. L4: what a partition waits for that nobody may lead."""

from __future__ import annotations

import pytest

from spark_replication.config import RecoveryStrategy
from spark_replication.core.election import Elected, Reason, Waiting, elect
from spark_replication.model import PartitionState
from tests.unit.core.stories import state

REPLICAS = (3, 1, 2)


@pytest.mark.parametrize(
    ("before", "electable", "elected"),
    [
        (state(None, [1, 2, 3]), {1, 2, 3}, Elected(3, "isr")),  # assignment order, not the number
        (state(None, [1, 2, 3]), {1, 2}, Elected(1, "isr")),
        (state(None, [2], elr=[3]), {2, 3}, Elected(2, "isr")),  # the ISR goes before the ELR
        (state(None, [2], elr=[3, 1]), {1, 3}, Elected(3, "elr")),
        (state(None, [], elr=[2, 1]), {1, 2, 3}, Elected(1, "elr")),
    ],
)
def test_the_first_that_may_lead_does(before: PartitionState, electable: set[int], elected: Elected) -> None:
    assert elect(REPLICAS, before, frozenset(electable), "balanced") == elected


@pytest.mark.parametrize(
    ("before", "electable", "strategy", "reason"),
    [
        # Whoever is in ISR or ELR holds everything: the others may live, they are waited for all the same.
        (state(None, [], elr=[1]), {2, 3}, "balanced", "fenced_elr"),
        (state(None, [], elr=[1], last_known_leader=2), {2, 3}, "balanced", "fenced_elr"),
        (state(None, [], elr=[1], last_known_elr=[2]), {2, 3}, "manual", "fenced_elr"),
        (state(None, [1]), {2, 3}, "balanced", "fenced_elr"),  # in sync, and shutting down
        (state(None, [], elr=[1]), {2, 3}, "proactive", "log_info"),
        (state(None, []), set(), "proactive", "log_info"),
        (state(None, [], last_known_elr=[1]), {1, 2, 3}, "manual", "manual"),
        (state(None, [], last_known_elr=[1, 2]), {1, 3}, "balanced", "last_known_elr"),
        (state(None, [], last_known_elr=[1, 2]), {1, 2}, "balanced", "log_info"),
        # The last known ELR goes before the last known leader.
        (state(None, [], last_known_elr=[1], last_known_leader=2), {2, 3}, "balanced", "last_known_elr"),
        (state(None, [], last_known_leader=2), {1, 3}, "balanced", "last_known_leader"),
        (state(None, [], last_known_leader=2), {2}, "balanced", "log_info"),
        (state(None, []), {1, 2}, "balanced", "last_known_elr"),
        (state(None, []), {1, 2, 3}, "balanced", "log_info"),
    ],
)
def test_where_nobody_may_lead_it_says_what_is_waited_for(
    before: PartitionState, electable: set[int], strategy: RecoveryStrategy, reason: Reason
) -> None:
    assert elect(REPLICAS, before, frozenset(electable), strategy) == Waiting(reason)

"""L1: who leads. L4: what a partition waits for that nobody may lead."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from spark_replication.config import TopicSettings
from spark_replication.core.law.brokers import Brokers
from spark_replication.core.law.election import Elected, Policy, Waiting, any_live, elect, outside, within
from spark_replication.core.law.partition_change import restored
from spark_replication.model import PartitionState
from tests.unit.core.stories import (
    BALANCED,
    CAUTIOUS,
    MANUAL,
    POLICIES,
    PROACTIVE,
    UNCLEAN,
    any_brokers,
    any_state,
    state,
)
from tests.unit.core.stories import REPLICAS as FOUR

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
@pytest.mark.parametrize("policy", [BALANCED, MANUAL, PROACTIVE, UNCLEAN, CAUTIOUS])
def test_the_first_that_may_lead_does_whatever_the_policy(
    before: PartitionState, electable: set[int], elected: Elected, policy: Policy
) -> None:
    assert elect(REPLICAS, before, frozenset(electable), policy) == elected
    assert within(REPLICAS, before, frozenset(electable)) == elected


RESTORED = restored(REPLICAS, leader_epoch=8_192, min_isr=2, controller_epoch=1)


def log_info(*required: int) -> Waiting:
    return Waiting("log_info", frozenset(required))


@pytest.mark.parametrize(
    ("before", "electable", "policy", "outcome"),
    [
        # Whoever is in ISR or ELR holds everything: the others may live, they are waited for all the same.
        (state(None, [], elr=[1]), {2, 3}, BALANCED, Waiting("fenced_elr")),
        (state(None, [], elr=[1], last_known_leader=2), {2, 3}, BALANCED, Waiting("fenced_elr")),
        (state(None, [], elr=[1], last_known_elr=[2]), {2, 3}, MANUAL, Waiting("fenced_elr")),
        (state(None, [], elr=[1], last_known_leader=2), {2, 3}, CAUTIOUS, Waiting("fenced_elr")),
        (state(None, [1]), {2, 3}, BALANCED, Waiting("fenced_elr")),  # in sync, and shutting down
        # Proactive: whoever answers.
        (state(None, [], elr=[1]), {2, 3}, PROACTIVE, log_info()),
        (state(None, []), set(), PROACTIVE, log_info()),
        (state(None, [], last_known_elr=[1]), {1, 2, 3}, MANUAL, Waiting("manual")),
        (state(None, [], last_known_elr=[1]), {1}, Policy(strategy="manual", unclean_enabled=True), Waiting("manual")),
        # Balanced: once all live that may hold the most.
        (state(None, [], last_known_elr=[1, 2]), {1, 3}, BALANCED, Waiting("last_known_elr")),
        (state(None, [], last_known_elr=[1, 2]), {1, 2}, BALANCED, log_info(1, 2)),
        # The last known ELR goes before the last known leader.
        (state(None, [], last_known_elr=[1], last_known_leader=2), {2, 3}, BALANCED, Waiting("last_known_elr")),
        (state(None, [], last_known_leader=2), {1, 3}, BALANCED, Waiting("last_known_leader")),
        (state(None, [], last_known_leader=2), {2}, BALANCED, log_info(2)),
        (state(None, []), {1, 2}, BALANCED, Waiting("last_known_elr")),
        (state(None, []), {1, 2, 3}, BALANCED, log_info(1, 2, 3)),
        # Without recovery, unclean: any live one, the last known leader first.
        (state(None, [], elr=[1]), {1, 2, 3}, UNCLEAN, Elected(3, "unclean")),
        (state(None, [], last_known_leader=2), {2, 3}, UNCLEAN, Elected(2, "unclean")),
        (state(None, [], last_known_leader=2), {1, 3}, UNCLEAN, Elected(3, "unclean")),
        (state(None, [], last_known_leader=9), {9, 1}, UNCLEAN, Elected(1, "unclean")),  # it is no replica any longer
        (state(None, [], elr=[1]), set(), UNCLEAN, Waiting("fenced_elr")),
        (state(None, []), set(), UNCLEAN, Waiting("last_known_leader")),
        # Without recovery, and without unclean elections: the last known leader alone.
        (state(None, [], last_known_leader=2), {2, 3}, CAUTIOUS, Elected(2, "last_known_leader")),
        (state(None, [], last_known_leader=2), {1, 3}, CAUTIOUS, Waiting("last_known_leader")),
        (state(None, []), {1, 2, 3}, CAUTIOUS, Waiting("last_known_leader")),
        # What was made again once somebody had removed it: there is no last leader to wait for, so logs decide.
        (RESTORED, {1, 2}, CAUTIOUS, Waiting("last_known_elr")),
        (RESTORED, {1, 2, 3}, CAUTIOUS, log_info(1, 2, 3)),
        (RESTORED, {1}, UNCLEAN, log_info()),
        (replace(RESTORED, last_known_leader=2), {1, 2, 3}, CAUTIOUS, Elected(2, "last_known_leader")),
        (replace(RESTORED, last_known_elr=frozenset({1, 2})), {1, 2, 3}, CAUTIOUS, Waiting("last_known_leader")),
        (RESTORED, {1, 2, 3}, MANUAL, Waiting("manual")),
    ],
)
def test_where_isr_and_elr_lead_nobody_the_policy_says_who_or_what_is_waited_for(
    before: PartitionState, electable: set[int], policy: Policy, outcome: Elected | Waiting
) -> None:
    assert outside(REPLICAS, before, frozenset(electable), policy) == outcome
    if within(REPLICAS, before, frozenset(electable)) is None:
        assert elect(REPLICAS, before, frozenset(electable), policy) == outcome


def test_any_live_one_needs_a_live_one() -> None:
    assert any_live(REPLICAS, state(None, [], last_known_leader=1), frozenset({9})) is None


@pytest.mark.parametrize("recovery_enabled", [True, False])
def test_a_policy_is_what_the_settings_say(recovery_enabled: bool) -> None:
    found = TopicSettings(unclean_recovery_strategy="proactive", unclean_leader_election_enable=True)
    assert Policy.of(found, recovery_enabled=recovery_enabled) == Policy(
        recovery_enabled=recovery_enabled, strategy="proactive", unclean_enabled=True
    )


@given(data=st.data(), known=any_brokers(), policy=POLICIES)
def test_only_live_replicas_are_elected_and_a_fenced_elr_is_passed_over_by_who_was_told_to(
    data: st.DataObject, known: Brokers, policy: Policy
) -> None:
    before = data.draw(any_state(known))
    outcome = elect(FOUR, before, known.electable, policy)
    if isinstance(outcome, Elected):
        assert outcome.leader in known.electable.intersection(FOUR)
        assert (outcome.leader in before.members) or policy in (UNCLEAN, CAUTIOUS)
        assert (outcome.leader in before.members) or not before.members or policy == UNCLEAN
        assert (outcome.how in ("isr", "elr")) == (outcome.leader in before.members)
    else:
        assert not before.members & known.electable
        assert outcome.required <= known.electable
        assert outcome.reason == "log_info" or not outcome.required

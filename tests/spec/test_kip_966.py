"""KIP-966, sentence by sentence: what must happen to ISR, ELR, high watermark and leaderless partitions.

Each docstring gives the idea of one sentence. Where design.md decides otherwise (its section 12), the design holds.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from spark_replication.core.law.brokers import Brokers
from spark_replication.core.law.election import Elected, Policy, Waiting, elect
from spark_replication.core.law.partition_change import (
    Settled,
    effective_min_isr,
    elected,
    settled,
    with_isr,
    with_min_isr,
)
from spark_replication.core.law.unclean_recovery import LogEnd, UncleanRecovery, answered, asking, to_ask, winner
from spark_replication.core.replica.epochs import EpochHistory
from spark_replication.core.replica.isr import changed
from spark_replication.core.replica.replica import (
    Fetch,
    Follower,
    Leading,
    LogView,
    PendingIsr,
    advanced,
    appended,
    check_append,
    fetched_by,
)
from spark_replication.core.tables.sealing import NO_TABLE
from spark_replication.errors import NotEnoughReplicas
from spark_replication.messages.commands import ReplicaLogInfo
from spark_replication.model import BrokerId, PartitionState
from spark_replication.sim.scenarios.scenario import run_file
from tests.unit.core.stories import FOO, brokers, loss, state

BALANCED = Policy(strategy="balanced")
PROACTIVE = Policy(strategy="proactive")
MANUAL = Policy(strategy="manual")
LAST_LEADER = Policy(recovery_enabled=False, unclean_enabled=False)
UNCLEAN = Policy(recovery_enabled=False, unclean_enabled=True)
EVERY_POLICY = (BALANCED, PROACTIVE, MANUAL, LAST_LEADER, UNCLEAN)
REPLICAS = (1, 2, 3)
TIMEOUT_MS = 5_000
EPOCH = 4


def holds(directory: Path, story: str) -> None:
    path = directory / "story.yaml"
    path.write_text(textwrap.dedent(story))
    assert [str(result) for result in run_file(path) if result.failure is not None] == []


# The high watermark


def leading(
    stored: PartitionState, ends: dict[BrokerId, int], *, high_watermark: int = 0, pending: PartitionState | None = None
) -> Leading:
    """Broker 1 leads; the others have reported these ends."""
    joining = {} if pending is None else dict.fromkeys(sorted(pending.isr - stored.isr), 0)
    return Leading(
        me=1,
        broker_epoch=0,
        replicas=REPLICAS,
        state=stored,
        partition_epoch=0,
        epoch_start=0,
        end_at_start=0,
        high_watermark=high_watermark,
        followers={broker: Follower(end, 0, caught_up_ms=0) for broker, end in ends.items()},
        pending=None if pending is None else PendingIsr(pending, 0, joining),
    )


def fetch(leader: Leading, by: BrokerId, offset: int, *, log_end: int) -> Leading:
    log = LogView(0, log_end, EpochHistory.of([(EPOCH, 0)]))
    asked = Fetch(by=by, broker_epoch=0, leader_epoch=EPOCH, offset=offset, last_epoch=EPOCH, clean_since=0)
    return fetched_by(leader, asked, log, now_ms=0)


@pytest.mark.parametrize(
    ("isr", "min_isr", "high_watermark"),
    [([1], 1, 9), ([1], 2, 3), ([1, 2], 2, 7), ([1, 2], 3, 3), ([1, 2, 3], 3, 5), ([1, 2, 3], 2, 5)],
)
def test_the_high_watermark_advances_only_with_min_isr_members(
    isr: list[BrokerId], min_isr: int, high_watermark: int
) -> None:
    """It may advance only while the ISR has at least min.insync.replicas members."""
    before = leading(state(1, isr, min_isr=min_isr), {2: 7, 3: 5}, high_watermark=3)
    assert advanced(before, own_end=9).high_watermark == high_watermark


def test_the_rule_holds_for_records_of_any_acks() -> None:
    """It holds for the replication of acks=0 and acks=1 records as well."""
    before = leading(state(1, [1], min_isr=2), {2: 0, 3: 0})
    check_append(before, acks_all=False, topic=FOO)
    assert appended(before, end_before=0, end=4, now_ms=0).high_watermark == 0


def test_the_leader_acknowledges_acks_1_from_its_own_log(tmp_path: Path) -> None:
    """The leader still answers acks=1 once the record is in its own log, though no consumer sees it."""
    holds(
        tmp_path,
        """
        name: acks=1 below min ISR
        log: {leader: 1, leader_epoch: 1, replicas: [1, 2], isr: [1], config: {min.insync.replicas: 2}}
        steps:
          - append: {records: 2, acks: 1, as: one}
            expect: {acked: [one], high_watermark: 0}
          - read: {from: 0}
            expect: {answer: empty}
        """,
    )


def test_an_acks_all_append_below_min_isr_is_rejected() -> None:
    """During a time with fewer members than min ISR, acks=all requests are rejected."""
    with pytest.raises(NotEnoughReplicas):
        check_append(leading(state(1, [1], min_isr=2), {2: 0, 3: 0}), acks_all=True, topic=FOO)
    check_append(leading(state(1, [1, 2], min_isr=2), {2: 0, 3: 0}), acks_all=True, topic=FOO)


def test_the_isr_that_is_counted_is_the_committed_one() -> None:
    """The ISR whose size is compared is the persisted one, not the maximal ISR of the leader."""
    joining = leading(state(1, [1]), {2: 9, 3: 0}, pending=state(1, [1, 2]))
    assert advanced(joining, own_end=9).high_watermark == 0
    with pytest.raises(NotEnoughReplicas):
        check_append(joining, acks_all=True, topic=FOO)


def test_a_record_must_be_on_the_maximal_isr() -> None:
    """Where the maximal ISR is larger than the ISR, a record must be on all of it before it is covered."""
    joining = leading(state(1, [1, 2]), {2: 9, 3: 6}, pending=state(1, [1, 2, 3]))
    assert advanced(joining, own_end=9).high_watermark == 6
    assert fetch(joining, 3, 9, log_end=9).high_watermark == 9


@pytest.mark.parametrize(
    ("asked", "factor", "effective"), [(1, 3, 1), (2, 3, 2), (3, 3, 3), (4, 3, 3), (2, 1, 1), (3, 2, 2)]
)
def test_the_effective_min_isr_is_at_most_the_replication_factor(asked: int, factor: int, effective: int) -> None:
    """For compatibility, the effective min ISR is the lesser of the setting and the replication factor."""
    assert effective_min_isr(asked, factor) == effective


# ELR


@pytest.mark.parametrize(
    ("before", "isr", "after"),
    [
        (state(1, [1, 2]), [1], state(1, [1], elr=[2])),
        (state(1, [1, 2, 3]), [1], state(1, [1], elr=[2, 3])),
        (state(1, [1, 2, 3], min_isr=3), [1, 2], state(1, [1, 2], elr=[3], min_isr=3)),
        (state(1, [1], elr=[2]), [], state(None, [], elr=[1, 2])),
    ],
)
def test_who_leaves_below_min_isr_is_eligible(
    before: PartitionState, isr: list[BrokerId], after: PartitionState
) -> None:
    """A replica that leaves an ISR which is then below min ISR holds all that was committed: it joins the ELR."""
    assert with_isr(before, frozenset(isr), joined={}) == after


def test_who_leaves_at_min_isr_is_not_eligible() -> None:
    """While the ISR stays at min ISR it goes on committing, so who left it is not eligible."""
    assert with_isr(state(1, [1, 2, 3]), frozenset({1, 2}), joined={}) == state(1, [1, 2])


def test_the_isr_may_be_empty() -> None:
    """The last member leaves the ISR too, so it may be empty."""
    before, known = state(1, [1], min_isr=1), brokers()
    after = Settled(state(None, [], elr=[1], min_isr=1, leader_epoch=5, last_known_leader=1), Waiting("fenced_elr"))
    assert settled(REPLICAS, before, known, BALANCED, min_isr=1, now_ms=0, sealing=NO_TABLE) == after


def test_reaching_min_isr_clears_elr_and_last_known_elr() -> None:
    """Both are cleaned when the ISR reaches min ISR."""
    before = state(1, [1], elr=[2], last_known_elr=[3])
    assert with_isr(before, frozenset({1, 2}), joined={2: 0}) == state(1, [1, 2])


def test_a_change_of_the_elr_needs_no_leader_epoch() -> None:
    """An ELR that changes alone, as a member registers uncleanly, does not raise the leader epoch."""
    known = brokers(1, 2, epochs={2: 1}, clean_since={2: 1})
    after = settled(REPLICAS, state(1, [1], elr=[2]), known, BALANCED, min_isr=2, now_ms=0, sealing=NO_TABLE)
    assert after == Settled(state(1, [1], last_known_elr=[2]), None)


def test_an_unclean_member_of_the_elr_is_last_known() -> None:
    """An ELR member with an unclean shutdown goes out of the ELR and into the last known ELR."""
    known = brokers(2, epochs={2: 1}, clean_since={2: 1})
    after = settled(REPLICAS, state(None, [], elr=[2, 3]), known, BALANCED, min_isr=2, now_ms=0, sealing=NO_TABLE)
    assert after == Settled(state(None, [], elr=[3], last_known_elr=[2]), Waiting("fenced_elr"))


def test_a_clean_member_of_the_elr_stays() -> None:
    """A member whose registration names the epoch before its clean shutdown has lost nothing."""
    known = brokers(1, 2, epochs={2: 1})
    before = state(1, [1], elr=[2])
    assert settled(REPLICAS, before, known, BALANCED, min_isr=2, now_ms=0, sealing=NO_TABLE) == Settled(before, None)


def test_a_lowered_min_isr_removes_the_elr() -> None:
    """When min.insync.replicas changes and the new one is at most the ISR, the ELR is removed."""
    before = state(1, [1], elr=[2], last_known_elr=[3])
    assert with_min_isr(before, 1) == state(1, [1], min_isr=1)


def test_a_lowered_min_isr_above_the_isr_leaves_the_elr() -> None:
    """... and only then."""
    before = state(1, [1], elr=[2], last_known_elr=[3], min_isr=3)
    assert with_min_isr(before, 2) == state(1, [1], elr=[2], last_known_elr=[3])


def test_electable_leaders_are_isr_and_elr(tmp_path: Path) -> None:
    """A metric counts ISR plus ELR."""
    holds(
        tmp_path,
        """
        name: electable leaders
        brokers: [1, 2, 3]
        topics: {foo: {partitions: {0: {replicas: [1, 2, 3], isr: [1], elr: [2], last_known_elr: [3], leader: 1}}}}
        steps:
          - wait: 1s
            expect: {metrics: {electable_leaders: 2}}
        """,
    )


def test_the_last_known_leader_is_recorded_when_the_last_member_is_fenced() -> None:
    """The last ISR member, the leader, is recorded as it is fenced."""
    after = settled(REPLICAS, state(2, [2], elr=[1]), brokers(3), MANUAL, min_isr=2, now_ms=0, sealing=NO_TABLE)
    gone = state(None, [], elr=[1, 2], leader_epoch=5, last_known_leader=2)
    assert after == Settled(gone, Waiting("fenced_elr"))


def test_a_new_leader_cleans_the_last_known_leader() -> None:
    """It is cleaned when a new leader is elected."""
    before = state(None, [], elr=[1, 2], last_known_leader=2)
    after = state(1, [1], elr=[2], leader_epoch=5, elected="elr")
    assert settled(REPLICAS, before, brokers(1), BALANCED, min_isr=2, now_ms=0, sealing=NO_TABLE) == Settled(
        after, Elected(1, "elr")
    )


# Reassignment


def test_a_completed_reassignment_leaves_an_elr_within_the_final_replicas(tmp_path: Path) -> None:
    """On completion the ELR holds none but final replicas."""
    holds(
        tmp_path,
        """
        name: the ELR of a completed reassignment
        brokers: [1, 2, 3]
        config: {min.insync.replicas: 3}
        topics: {foo: {partitions: {0: {replicas: [1, 2, 3], isr: [1, 2], elr: [3], leader: 1}}}}
        steps:
          - reassign: {foo-0: [1, 2]}
            expect: {foo-0: {replicas: [1, 2], isr: [1, 2], elr: [], last_known_elr: []}}
        """,
    )


def test_a_reassignment_completes_with_all_added_replicas_and_min_isr(tmp_path: Path) -> None:
    """It completes only if all that were added are in the ISR, and the ISR is at least min ISR."""
    holds(
        tmp_path,
        """
        name: completing a reassignment
        brokers: [1, 2, 3, 4]
        topics: {foo: {partitions: {0: {replicas: [1, 2], isr: [1, 2], leader: 1}}}}
        steps:
          - reassign: {foo-0: [3, 4]}
          - isr: {foo-0: [1, 2, 3]}
            expect: {foo-0: {adding: [3, 4], removing: [1, 2]}}
          - isr: {foo-0: [1, 2, 3, 4]}
            expect: {foo-0: {replicas: [3, 4], isr: [3, 4], adding: [], removing: []}}
        """,
    )


def test_min_isr_is_asked_of_a_cancel_too(tmp_path: Path) -> None:
    """Cancelling asks for min ISR as well."""
    holds(
        tmp_path,
        """
        name: cancelling a reassignment
        brokers: [1, 2, 3, 4]
        topics: {foo: {partitions: {0: {replicas: [1, 2], isr: [1, 2], leader: 1}}}}
        steps:
          - reassign: {foo-0: [3, 4]}
          - isr: {foo-0: [1, 3]}
          - cancel_reassignment: [foo-0]
            expect: {error: NOT_ENOUGH_REPLICAS, foo-0: {adding: [3, 4], isr: [1, 3]}}
        """,
    )


# Who is elected


@pytest.mark.parametrize("policy", EVERY_POLICY)
def test_another_member_of_the_isr_is_chosen_first(policy: Policy) -> None:
    """If there are other ISR members, one of them leads."""
    before = state(None, [2], elr=[1], last_known_leader=3)
    assert elect(REPLICAS, before, frozenset(REPLICAS), policy) == Elected(2, "isr")


@pytest.mark.parametrize("policy", EVERY_POLICY)
def test_an_unfenced_member_of_the_elr_is_chosen_next(policy: Policy) -> None:
    """If there are unfenced ELR members, one of them leads."""
    before = state(None, [], elr=[1, 3], last_known_elr=[2], last_known_leader=2)
    assert elect(REPLICAS, before, frozenset({2, 3}), policy) == Elected(3, "elr")


@pytest.mark.parametrize(
    ("policy", "outcome"),
    [
        (PROACTIVE, Waiting("log_info")),
        (BALANCED, Waiting("fenced_elr")),
        (MANUAL, Waiting("fenced_elr")),
        (LAST_LEADER, Waiting("fenced_elr")),
        (UNCLEAN, Elected(2, "unclean")),
    ],
)
def test_a_fenced_elr_is_waited_for_unless_proactive(policy: Policy, outcome: Elected | Waiting) -> None:
    """If all ELR members are fenced: proactive recovers, an unclean election is held if enabled, others wait."""
    before = state(None, [], elr=[1], last_known_elr=[3], last_known_leader=1)
    assert elect(REPLICAS, before, frozenset({2, 3}), policy) == outcome


@pytest.mark.parametrize(
    ("policy", "outcome"),
    [
        (PROACTIVE, Waiting("log_info")),
        (BALANCED, Waiting("last_known_elr")),
        (MANUAL, Waiting("manual")),
        (LAST_LEADER, Waiting("last_known_leader")),
        (UNCLEAN, Elected(2, "unclean")),
    ],
)
def test_without_an_elr_the_strategy_decides(policy: Policy, outcome: Elected | Waiting) -> None:
    """If there are no ELR members: proactive recovers, balanced once the last known ELR is unfenced, manual never."""
    before = state(None, [], last_known_elr=[1, 2], last_known_leader=1)
    assert elect(REPLICAS, before, frozenset({2, 3}), policy) == outcome


def test_balanced_starts_when_the_last_known_elr_is_unfenced() -> None:
    """Balanced recovers when all of the last known ELR are unfenced."""
    before = state(None, [], last_known_elr=[1, 2])
    assert elect(REPLICAS, before, frozenset({1, 2}), BALANCED) == Waiting("log_info", frozenset({1, 2}))


@pytest.mark.parametrize(
    ("policy", "live", "outcome"),
    [
        (LAST_LEADER, {3}, Elected(3, "last_known_leader")),
        (LAST_LEADER, {1, 2}, Waiting("last_known_leader")),
        (UNCLEAN, {1, 2, 3}, Elected(3, "unclean")),
        (UNCLEAN, {1, 2}, Elected(1, "unclean")),
    ],
)
def test_while_recovery_is_disabled_the_last_known_leader_counts(
    policy: Policy, live: set[BrokerId], outcome: Elected | Waiting
) -> None:
    """Without unclean election the last known leader is elected once it is unfenced; with it, any live replica."""
    assert elect(REPLICAS, state(None, [], last_known_leader=3), frozenset(live), policy) == outcome


# Unclean recovery


ALL_LIVE = brokers(*REPLICAS)


def recovery(*required: BrokerId, asked: tuple[BrokerId, ...] = REPLICAS) -> UncleanRecovery:
    started = UncleanRecovery(leader_epoch=EPOCH, required=frozenset(required), started_ms=0, asked_ms=0)
    return asking(started, asked, ALL_LIVE, now_ms=0)


def to_be_asked(under_way: UncleanRecovery, known: Brokers) -> tuple[BrokerId, ...]:
    return to_ask(under_way, REPLICAS, known, now_ms=0, timeout_ms=TIMEOUT_MS)


def says(
    asked: UncleanRecovery,
    broker: BrokerId,
    last_epoch: int,
    end: int,
    *,
    broker_epoch: int = 0,
    current_epoch: int = EPOCH,
) -> UncleanRecovery:
    info = ReplicaLogInfo(
        topic="foo", partition=0, topic_id="id-foo", last_epoch=last_epoch, current_epoch=current_epoch, end=end
    )
    return answered(asked, broker, broker_epoch, info, ALL_LIVE)


def test_all_unfenced_replicas_are_asked() -> None:
    """The last written epoch and log end are asked of each unfenced replica, and of no other."""
    nobody_asked = recovery(asked=())
    assert to_be_asked(nobody_asked, brokers(1, 3)) == (1, 3)
    assert to_be_asked(recovery(asked=(1,)), ALL_LIVE) == (2, 3)


def test_a_replica_that_is_unfenced_later_is_asked_too() -> None:
    """When a replica gets unfenced, it is looked at as well."""
    assert to_be_asked(recovery(asked=(1, 2)), brokers(1, 2)) == ()
    assert to_be_asked(recovery(asked=(1, 2)), ALL_LIVE) == (3,)


def test_an_answer_of_another_broker_epoch_is_rejected_and_asked_again() -> None:
    """A wrong broker epoch: the broker has rebooted since it answered. Asked again."""
    rejected = says(recovery(), 2, 3, 9, broker_epoch=7)
    assert rejected.answers == {}
    assert to_be_asked(rejected, ALL_LIVE) == (2,)


@pytest.mark.parametrize("current_epoch", [EPOCH - 1, EPOCH + 1])
def test_an_answer_of_another_leader_epoch_is_rejected_and_asked_again(current_epoch: int) -> None:
    """A wrong current leader epoch fences stale answers. Asked again."""
    rejected = says(recovery(), 2, 3, 9, current_epoch=current_epoch)
    assert rejected.answers == {}
    assert to_be_asked(rejected, ALL_LIVE) == (2,)


def test_what_a_replica_answered_before_it_registered_again_is_rejected() -> None:
    """A replica that fails after its answer, and registers again, is not elected by that answer."""
    answers = says(says(recovery(), 1, 3, 5), 2, 3, 9)
    reborn = brokers(*REPLICAS, epochs={2: 1}, clean_since={2: 1})
    assert winner(answers, REPLICAS, reborn, now_ms=TIMEOUT_MS, timeout_ms=TIMEOUT_MS) == 1
    assert to_be_asked(answers, reborn) == (2,)


@pytest.mark.parametrize(
    ("answering", "now_ms", "leader"),
    [
        ((1, 2), 0, None),
        ((1, 2), TIMEOUT_MS - 1, None),
        ((1, 2), TIMEOUT_MS, 2),
        ((1, 2, 3), 0, 3),
        ((2, 3), TIMEOUT_MS, None),
        ((2, 3), 100 * TIMEOUT_MS, None),
    ],
)
def test_balanced_elects_when_the_last_known_elr_has_answered(
    answering: tuple[BrokerId, ...], now_ms: int, leader: BrokerId | None
) -> None:
    """Balanced: all of the last known ELR have replied, plus those that replied within the timeout."""
    answers = recovery(1, 2)
    for broker in answering:
        answers = says(answers, broker, 3, broker)
    assert winner(answers, REPLICAS, ALL_LIVE, now_ms=now_ms, timeout_ms=TIMEOUT_MS) == leader


@pytest.mark.parametrize(
    ("answering", "now_ms", "leader"),
    [
        ((), TIMEOUT_MS, None),
        ((1,), 0, None),
        ((1, 2), TIMEOUT_MS - 1, None),
        ((1, 2), TIMEOUT_MS, 2),
        ((1,), 3 * TIMEOUT_MS, 1),
        ((1, 2, 3), 0, 3),
    ],
)
def test_proactive_elects_among_those_in_time_or_the_first_after(
    answering: tuple[BrokerId, ...], now_ms: int, leader: BrokerId | None
) -> None:
    """Proactive: any that replied within a fixed time, or the first response after it."""
    answers = recovery()
    for broker in answering:
        answers = says(answers, broker, 3, broker)
    assert winner(answers, REPLICAS, ALL_LIVE, now_ms=now_ms, timeout_ms=TIMEOUT_MS) == leader


@pytest.mark.parametrize(
    ("logs", "leader"),
    [
        ({1: (3, 100), 2: (4, 5), 3: (4, 6)}, 3),
        ({1: (3, 100), 2: (4, 5), 3: (3, 600)}, 2),
        ({1: (4, 5), 2: (4, 5), 3: (4, 5)}, 1),
        ({1: (-1, 0), 2: (0, 1), 3: (-1, 0)}, 2),
    ],
)
def test_the_highest_epoch_wins_and_then_the_longest_log(
    logs: dict[BrokerId, tuple[int, int]], leader: BrokerId
) -> None:
    """First those with the highest last epoch are kept, then the one with the longest log is elected."""
    answers = recovery(*REPLICAS)
    for broker, (last_epoch, end) in logs.items():
        answers = says(answers, broker, last_epoch, end)
    assert answers.answers == {broker: LogEnd(*log) for broker, log in logs.items()}
    assert winner(answers, REPLICAS, ALL_LIVE, now_ms=0, timeout_ms=TIMEOUT_MS) == leader


def test_a_recovered_leader_is_alone_and_recovering() -> None:
    """Elected from outside, it is the whole ISR, and the partition recovers until the ISR is written."""
    before = state(None, [], elr=[1], last_known_elr=[3], last_known_leader=1)
    after = elected(before, EPOCH, Elected(2, "unclean_recovery"), ALL_LIVE, NO_TABLE, now_ms=0)
    assert after == state(2, [2], leader_epoch=5, recovering=True, loss=loss(), elected="unclean_recovery")
    written = changed(after, frozenset({2, 3}), {3: 0})
    assert written == state(2, [2, 3], leader_epoch=5, loss=loss(), elected="unclean_recovery")


def test_a_new_controller_recovers_anew(tmp_path: Path) -> None:
    """Nothing of a recovery is stored: a failover results in a new one."""
    holds(
        tmp_path,
        """
        name: recovery and failover
        brokers: [1, 2]
        topics: {foo: {partitions: {0: {replicas: [1, 2], isr: [], leader: -1, last_known_elr: [1, 2]}}}}
        steps:
          - controller_failover: {}
          - log_info: {broker: 1, partitions: {foo-0: {last_epoch: 3, end: 5}}}
          - controller_failover: {}
            expect: {sent: [{to: 1, kind: get_replica_log_info}, {to: 2, kind: get_replica_log_info}]}
          - log_info: {broker: 2, partitions: {foo-0: {last_epoch: 3, end: 5}}}
            expect: {foo-0: {leader: -1, waiting_for: log_info}}
        """,
    )


# Settings and tools


@pytest.mark.parametrize(("strategy", "enable"), [("proactive", "true"), ("balanced", "false"), ("manual", "false")])
def test_turned_off_the_strategy_is_converted(tmp_path: Path, strategy: str, enable: str) -> None:
    """unclean.recovery.enabled from true to false: proactive becomes true, balanced and manual become false."""
    holds(
        tmp_path,
        f"""
        name: turned off
        brokers: [1]
        config: {{unclean.recovery.strategy: {strategy}}}
        steps:
          - configure: {{unclean.recovery.enabled: false}}
            expect: {{config: {{unclean.leader.election.enable: {enable}}}}}
        """,
    )


@pytest.mark.parametrize(("enable", "strategy"), [("true", "proactive"), ("false", "balanced")])
def test_turned_on_unclean_election_is_converted(tmp_path: Path, enable: str, strategy: str) -> None:
    """unclean.recovery.enabled from false to true: true becomes proactive, false becomes balanced."""
    holds(
        tmp_path,
        f"""
        name: turned on
        brokers: [1]
        config: {{unclean.recovery.enabled: false, unclean.leader.election.enable: {enable}}}
        steps:
          - configure: {{unclean.recovery.enabled: true}}
            expect: {{config: {{unclean.recovery.strategy: {strategy}}}}}
        """,
    )


@pytest.mark.parametrize("kind", ["longest_log_proactive", "longest_log_balanced", "designation"])
def test_these_elections_are_only_held_where_nobody_leads(tmp_path: Path, kind: str) -> None:
    """longest_log_proactive, longest_log_balanced and designation need a partition without leader."""
    desired = ", desired: {foo-0: 2}" if kind == "designation" else ""
    holds(
        tmp_path,
        f"""
        name: a partition with a leader
        brokers: [1, 2]
        topics: {{foo: {{partitions: {{0: {{replicas: [1, 2], isr: [1, 2], leader: 1, leader_epoch: 4}}}}}}}}
        steps:
          - elect: {{type: {kind}, partitions: [foo-0]{desired}}}
            expect: {{error: ELECTION_NOT_NEEDED, foo-0: {{leader: 1, leader_epoch: 4}}}}
        """,
    )


def test_a_preferred_election_is_only_held_if_another_leads(tmp_path: Path) -> None:
    """preferred is performed only if the leader is not the preferred one."""
    holds(
        tmp_path,
        """
        name: preferred
        brokers: [1, 2]
        topics:
          foo:
            partitions:
              0: {replicas: [1, 2], isr: [1, 2], leader: 2}
              1: {replicas: [1, 2], isr: [1, 2], leader: 1}
        steps:
          - elect: {type: preferred, partitions: [foo-0, foo-1]}
            expect:
              error: {foo-0: none, foo-1: ELECTION_NOT_NEEDED}
              foo-0: {leader: 1, leader_epoch: 1}
              foo-1: {leader: 1, leader_epoch: 0}
        """,
    )

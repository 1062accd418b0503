"""I5, I6, E3, F1 and F4, as one replica decides them; I8: who may lead."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from spark_replication.core.replica.epochs import NO_EPOCH, EpochEnd, EpochHistory
from spark_replication.core.replica.replica import (
    UNKNOWN_END,
    Fetch,
    Follower,
    Leading,
    LogView,
    Me,
    PendingIsr,
    advanced,
    appended,
    check_append,
    check_fetch,
    diverging,
    end_of_epoch,
    fetched_by,
    lead,
    may_lead,
    readable_end,
    truncation,
)
from spark_replication.errors import (
    FencedLeaderEpoch,
    NotEnoughReplicas,
    NotLeader,
    OffsetOutOfRange,
    ReplicationError,
    StaleBrokerEpoch,
    UnknownLeaderEpoch,
)
from spark_replication.messages.replication import Diverging
from spark_replication.model import BrokerId, PartitionState
from tests.unit.core.stories import FOO, command, state

ME = Me(1, 0, 0)


def log(*epochs: tuple[int, int], end: int, start: int = 0) -> LogView:
    return LogView(start, end, EpochHistory.of(list(epochs)))


def leading(stored: PartitionState, *, ends: dict[BrokerId, int], high_watermark: int = 0) -> Leading:
    """Broker 1 leads a log that was empty when it began."""
    return Leading(
        me=1,
        broker_epoch=0,
        replicas=(1, 2, 3),
        state=stored,
        partition_epoch=7,
        epoch_start=0,
        end_at_start=0,
        high_watermark=high_watermark,
        followers={other: Follower(ends.get(other, UNKNOWN_END), 0, caught_up_ms=0) for other in (2, 3)},
    )


def fetch(
    offset: int,
    last_epoch: int,
    *,
    by: BrokerId = 2,
    leader_epoch: int = 4,
    broker_epoch: int = 0,
    clean_since: int = 0,
) -> Fetch:
    return Fetch(
        by=by,
        broker_epoch=broker_epoch,
        leader_epoch=leader_epoch,
        offset=offset,
        last_epoch=last_epoch,
        clean_since=clean_since,
    )


@pytest.mark.parametrize(
    ("stored", "me", "may"),
    [
        (state(1, [1, 2]), ME, True),
        (state(1, [1, 2]), Me(1, 6, 0), True),  # it registered again, cleanly
        (state(1, [1, 2], epochs={1: 5}), Me(1, 6, 5), True),
        (state(1, [1, 2], epochs={1: 5}), Me(1, 6, 6), False),  # void
        (state(2, [1, 2]), ME, False),
        (state(None, [1]), ME, False),
    ],
)
def test_a_broker_leads_only_where_it_is_named_and_lost_nothing_since_it_joined(
    stored: PartitionState, me: Me, may: bool
) -> None:
    assert may_lead(stored, me) is may


@pytest.mark.parametrize(
    ("view", "epoch_start", "stored_watermark", "high_watermark"),
    [
        (log((2, 0), (4, 6), end=9), 6, 5, 5),  # again, in the same epoch
        (log((2, 0), end=9), 9, 5, 5),
        (log((2, 0), end=3), 3, 5, 3),  # a checkpoint above a log that was cut
    ],
)
def test_a_leadership_begins_with_no_follower_known(
    view: LogView, epoch_start: int, stored_watermark: int, high_watermark: int
) -> None:
    begun = lead(command(state(1, [1, 2]), 7), Me(1, 3, 0), view, stored_watermark, 50)
    assert begun == Leading(
        me=1,
        broker_epoch=3,
        replicas=(1, 2, 3),
        state=state(1, [1, 2]),
        partition_epoch=7,
        epoch_start=epoch_start,
        end_at_start=view.log_end,
        high_watermark=high_watermark,
        followers={other: Follower(UNKNOWN_END, NO_EPOCH, caught_up_ms=50) for other in (2, 3)},
    )


def test_a_leader_alone_in_the_isr_has_committed_all_it_has() -> None:
    begun = lead(command(state(1, [1], min_isr=1)), ME, log((4, 0), end=9), 5, 0)
    assert begun.high_watermark == 9


@pytest.mark.parametrize(
    ("stored", "ends", "before", "after"),
    [
        (state(1, [1, 2, 3]), {2: 8, 3: 6}, 5, 6),
        (state(1, [1, 2]), {2: 8, 3: 6}, 5, 8),  # who is out of the ISR is not waited for
        (state(1, [1, 2]), {2: 12}, 5, 10),  # at most the leader's own end
        (state(1, [1, 2]), {2: 4}, 5, 5),  # it never falls
        (state(1, [1, 2]), {}, 5, 5),  # an end that nobody reported counts for nothing
        (state(1, [1, 2], min_isr=3), {2: 8}, 5, 5),  # the committed ISR is too small
    ],
)
def test_the_high_watermark_is_the_least_end_in_the_isr(
    stored: PartitionState, ends: dict[BrokerId, int], before: int, after: int
) -> None:
    part = leading(stored, ends=ends, high_watermark=before)
    assert advanced(part, 10) == replace(part, high_watermark=after)


def test_a_member_that_lost_its_log_makes_the_isr_no_larger() -> None:
    part = leading(state(1, [1, 2], epochs={2: 3}), ends={2: 30}, high_watermark=10)
    void = replace(part, followers={**part.followers, 2: Follower(30, 4, caught_up_ms=0, clean_since=4)})

    assert advanced(part, 40).high_watermark == 30
    assert (void.void, void.in_sync) == (frozenset({2}), frozenset({1}))
    assert advanced(void, 40) == void
    with pytest.raises(NotEnoughReplicas, match="has 1 in-sync"):
        check_append(void, acks_all=True, topic=FOO)


def test_who_is_joining_is_waited_for_and_does_not_make_the_isr_large_enough() -> None:
    part = leading(state(1, [1, 2]), ends={2: 8, 3: 6}, high_watermark=5)
    joining = replace(part, pending=PendingIsr(state(1, [1, 2, 3]), 7, {3: 0}))
    assert joining.maximal_isr == {1, 2, 3}
    assert advanced(joining, 10).high_watermark == 6
    alone = leading(state(1, [1]), ends={2: 8}, high_watermark=5)
    assert advanced(replace(alone, pending=PendingIsr(state(1, [1, 2]), 7, {2: 0})), 10).high_watermark == 5


@pytest.mark.parametrize(("acks_all", "isr"), [(True, [1, 2]), (False, [1])])
def test_an_append_is_taken(acks_all: bool, isr: list[int]) -> None:
    check_append(leading(state(1, isr), ends={}), acks_all=acks_all, topic=FOO)


def test_acks_all_below_min_isr_is_refused_and_says_what_to_do() -> None:
    with pytest.raises(NotEnoughReplicas, match="foo-0 has 1 in-sync replicas and needs 2 for acks=all: retry"):
        check_append(leading(state(1, [1]), ends={}), acks_all=True, topic=FOO)


def test_followers_that_had_everything_before_an_append_were_caught_up_until_then() -> None:
    part = leading(state(1, [1, 2, 3]), ends={2: 5, 3: 4}, high_watermark=4)
    assert appended(part, end_before=5, end=8, now_ms=70) == replace(
        part, followers={2: Follower(5, 0, caught_up_ms=70), 3: Follower(4, 0, caught_up_ms=0)}
    )
    assert appended(part, end_before=6, end=8, now_ms=70) == part


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        (fetch(0, -1, leader_epoch=3), FencedLeaderEpoch),
        (fetch(0, -1, leader_epoch=5), UnknownLeaderEpoch),
        (fetch(0, -1, by=9), NotLeader),
        (fetch(0, -1, broker_epoch=1), StaleBrokerEpoch),
    ],
)
def test_a_fetch_of_another_epoch_life_or_broker_is_refused(asked: Fetch, error: type[ReplicationError]) -> None:
    part = leading(state(1, [1, 2]), ends={})
    known = replace(part, followers={**part.followers, 2: Follower(3, 2, caught_up_ms=0)})
    with pytest.raises(error):
        check_fetch(known, asked)


@pytest.mark.parametrize("broker_epoch", [2, 3])
def test_a_fetch_of_the_present_life_or_a_later_one_is_taken(broker_epoch: int) -> None:
    part = leading(state(1, [1, 2]), ends={})
    known = replace(part, followers={**part.followers, 2: Follower(3, 2, caught_up_ms=0)})
    check_fetch(known, fetch(0, -1, broker_epoch=broker_epoch))


LOG = log((2, 10), (4, 20), (6, 30), end=40, start=10)


@pytest.mark.parametrize(
    ("view", "asked", "answer"),
    [
        (LOG, fetch(25, 4), None),
        (LOG, fetch(30, 4), None),
        (LOG, fetch(40, 6), None),
        (log(end=0), fetch(0, NO_EPOCH), None),
        (LOG, fetch(41, 6), Diverging(epoch=6, end=40)),  # past this log's end
        (LOG, fetch(25, 3), Diverging(epoch=2, end=20)),
        (LOG, fetch(25, 2), Diverging(epoch=2, end=20)),
        (LOG, fetch(25, 1), Diverging(epoch=1, end=10)),  # below all that is known: the log's start
        (LOG, fetch(25, 9), Diverging(epoch=6, end=40)),  # above all that is known
        (log(end=0), fetch(3, 1), Diverging(epoch=NO_EPOCH, end=0)),
        (LOG, fetch(9, 1), None),  # below the log's start there is nothing to compare: the reading says what is wrong
        (LOG, fetch(10, 1), Diverging(epoch=1, end=10)),  # whether its last record was committed, nobody can say
        (LOG, fetch(10, 2), None),
        (LOG, fetch(10, 3), Diverging(epoch=2, end=20)),
    ],
)
def test_where_logs_part_is_told_by_epoch(view: LogView, asked: Fetch, answer: Diverging | None) -> None:
    assert diverging(leading(state(1, [1]), ends={}), asked, view) == answer


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (fetch(25, NO_EPOCH), None),
        (fetch(40, NO_EPOCH), None),
        (fetch(41, NO_EPOCH), Diverging(epoch=NO_EPOCH, end=10)),  # there is nothing here that could follow it
        (fetch(25, NO_EPOCH, by=3), Diverging(epoch=NO_EPOCH, end=10)),  # no member
        (fetch(25, NO_EPOCH, clean_since=1), Diverging(epoch=NO_EPOCH, end=10)),  # it lost its log since it joined
    ],
)
def test_a_member_of_the_isr_without_records_goes_on_where_it_ends(asked: Fetch, answer: Diverging | None) -> None:
    assert diverging(leading(state(1, [1, 2]), ends={}), asked, LOG) == answer


@pytest.mark.parametrize(
    ("answer", "end"),
    [
        (Diverging(epoch=4, end=25), 25),  # the leader has less of that epoch
        (Diverging(epoch=4, end=35), 30),  # this log has
        (Diverging(epoch=3, end=35), 20),  # this log has 2 in place of it
        (Diverging(epoch=1, end=5), 5),
        (Diverging(epoch=9, end=35), 35),  # an epoch that is not known here
        (Diverging(epoch=9, end=99), 40),
    ],
)
def test_a_follower_cuts_at_the_lesser_of_both_ends(answer: Diverging, end: int) -> None:
    assert truncation(LOG, answer) == end


def test_the_end_of_an_epoch_is_that_of_the_log_view() -> None:
    assert [end_of_epoch(LOG, epoch) for epoch in (1, 2, 6, 7)] == [
        EpochEnd(1, 10),
        EpochEnd(2, 20),
        EpochEnd(6, 40),
        None,
    ]


@pytest.mark.parametrize(
    ("known", "asked", "caught_up_ms"),
    [
        (Follower(5, 0, 100, leader_end=8, fetched_ms=200), fetch(10, 4), 300),  # it has everything
        (Follower(5, 0, 100, leader_end=8, fetched_ms=200), fetch(9, 4), 200),  # all that there was at its last fetch
        (Follower(5, 0, 250, leader_end=8, fetched_ms=200), fetch(8, 4), 250),  # which is not the last that is known
        (Follower(5, 0, 100, leader_end=8, fetched_ms=200), fetch(7, 4), 100),
        (Follower(5, 0, 100, leader_end=8, fetched_ms=200), fetch(9, 4, broker_epoch=1), 100),  # in another life
    ],
)
def test_a_fetch_reports_its_end_and_whether_it_is_caught_up(known: Follower, asked: Fetch, caught_up_ms: int) -> None:
    part = leading(state(1, [1, 2]), ends={}, high_watermark=3)
    part = replace(part, followers={**part.followers, 2: known})
    told = Follower(asked.offset, asked.broker_epoch, caught_up_ms, leader_end=10, fetched_ms=300)
    assert fetched_by(part, asked, log((4, 0), end=10), 300) == replace(
        part, high_watermark=asked.offset, followers={**part.followers, 2: told}
    )


@pytest.mark.parametrize("offset", [10, 30, 35, 40])
def test_a_consumer_reads_up_to_the_high_watermark(offset: int) -> None:
    assert readable_end(30, offset, LOG) == 30


@pytest.mark.parametrize("offset", [9, 41])
def test_a_consumer_outside_the_log_is_told_its_ends(offset: int) -> None:
    with pytest.raises(OffsetOutOfRange, match=f"offset {offset} is outside 10 to 40"):
        readable_end(30, offset, LOG)


@given(st.lists(st.tuples(st.integers(1, 2), st.integers(1, 3)), max_size=5), st.data())
def test_two_logs_that_share_a_prefix_agree_after_a_few_fetches(
    shared: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Records stand for themselves by their epoch: what a leader of an epoch wrote is the same everywhere."""
    prefix: list[int] = []
    for raised, records in shared:
        prefix += [(prefix[-1] if prefix else 0) + raised] * records
    follower_epochs = data.draw(st.lists(st.sampled_from([20, 22, 24]), max_size=4).map(sorted))
    leader_epochs = data.draw(st.lists(st.sampled_from([21, 23, 25]), max_size=4).map(sorted))
    cut = data.draw(st.integers(0, len(prefix)))  # the leader's log may start later
    follower, leader = prefix + follower_epochs, prefix + leader_epochs
    start = min(cut, len(leader))
    led, rounds, own_start = leading(state(1, [1]), ends={}), 0, 0
    while True:
        rounds += 1
        assert rounds <= len(follower_epochs) + 3
        own = _view(follower, own_start)
        asked = fetch(len(follower), own.epoch_before(len(follower)))
        answer = diverging(led, asked, _view(leader, start))
        if answer is None:
            break
        if answer.end <= start:
            follower, own_start = leader[:start], start  # it begins anew there
        else:
            follower = follower[: truncation(own, answer)]
    assert follower == leader[: len(follower)]
    assert len(follower) >= len(prefix)


def _view(epochs: list[int], start: int = 0) -> LogView:
    history = EpochHistory()
    for offset, epoch in enumerate(epochs):
        history = history.begun(epoch, offset)
    return LogView(start, len(epochs), history.trimmed(start) if start else history)

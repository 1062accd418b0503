"""Both ends of a connection between brokers: each row of their tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
from msgspec.structs import replace

from spark_replication.engine.ends import fetch_session
from spark_replication.engine.ends.fetch_session import (
    ALIVE_MS,
    BACKOFF_MS,
    BACKOFF_MS_MAX,
    SILENCE_MS_MIN,
    Cut,
    FetchAnswer,
    FollowedLeaders,
    FollowerConnections,
    FollowerEnd,
    LeaderEnd,
    Outcome,
    Taken,
    ask,
    loaded,
    take,
    take_and_wait,
)
from spark_replication.engine.ends.slow_disks import FAST_AGAIN, SLOW_FOR_MS, SLOW_MS
from spark_replication.engine.replica.partition import FindPartition
from spark_replication.errors import (
    InvalidRequest,
    NotLeader,
    NotReady,
    ReplicationError,
    StaleBrokerEpoch,
    StorageFailed,
    UnknownTopicOrPartition,
)
from spark_replication.messages.replication import ALIVE, Diverging, FetchedPartition, FetchFrame, FetchPartition
from spark_replication.model import TopicPartition
from spark_replication.ports import LogSlice, Records

A, B, C = (TopicPartition("orders", number) for number in range(3))
LATER = StorageFailed("its disk refuses")
MOVED = NotLeader("another leads")


def fetch_of(partition: TopicPartition, offset: int = 0) -> FetchPartition:
    return FetchPartition(
        topic=partition.topic,
        partition=partition.partition,
        topic_id="id",
        leader_epoch=1,
        offset=offset,
        last_epoch=0,
        clean_since=0,
        high_watermark=0,
    )


def answer_of(partition: TopicPartition, topic_id: str = "id", error: str = "NONE") -> FetchedPartition:
    return FetchedPartition(
        topic=partition.topic, partition=partition.partition, topic_id=topic_id, leader_epoch=1, error=error
    )


class Log:
    log_end = 10


class Replica:
    """What its ends call of a ReplicaLoop. cut_to: what the next answer makes of its log."""

    topic_id = "id"
    high_watermark = 8

    def __init__(self, partition: TopicPartition = A) -> None:
        self.partition = partition
        self.log = Log()
        self.asks: FetchPartition | None = fetch_of(partition)
        self.taken: list[FetchedPartition] = []
        self.records: list[object] = []
        self.fetches: list[tuple[FetchPartition, int, int]] = []
        self.cut_to: int | None = None
        self.refuses: ReplicationError | None = None
        self.answers: tuple[FetchedPartition, Records | None] | None = (answer_of(partition), None)

    def next_fetch(self) -> FetchPartition | None:
        return self.asks

    def fetch_answered(self, _fetch: FetchPartition, answer: FetchedPartition, records: object) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.taken.append(answer)
        self.records.append(records)
        self.log.log_end = self.log.log_end if self.cut_to is None else self.cut_to

    def fetch(self, fetch: FetchPartition, *, by: int, broker_epoch: int, now_ms: int) -> None:
        assert now_ms == 5
        self.fetches.append((fetch, by, broker_epoch))
        if self.refuses is not None:
            raise self.refuses

    def take_answer(self, _by: int, _broker_epoch: int) -> tuple[FetchedPartition, Records | None] | None:
        if self.refuses is not None:
            raise self.refuses
        return self.answers


class Held:
    """An engine.replica.partition.Partition. waiting: what comes once it is free; None: it is free."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.waiting: list[Callable[[Any], None]] | None = None

    def try_do(self, event: Callable[[Any], None]) -> bool:
        if self.waiting is None:
            event(self.replica)
        return self.waiting is None

    def do(self, event: Callable[[Any], None]) -> None:
        if self.waiting is None:
            event(self.replica)
        else:
            self.waiting.append(event)

    def becomes_free(self) -> None:
        assert self.waiting is not None
        waiting, self.waiting = self.waiting, None
        for event in waiting:
            event(self.replica)

    def __enter__(self) -> Replica:
        assert self.waiting is None
        return self.replica

    def __exit__(self, *error: object) -> None: ...


def finding(*replicas: tuple[TopicPartition, Replica | Held]) -> FindPartition:
    known = {name: each if isinstance(each, Held) else Held(each) for name, each in replicas}

    def find(name: TopicPartition) -> Any:
        if name not in known:
            raise UnknownTopicOrPartition(f"{name} is not here")
        return known[name]

    return find


def asked(end: FollowerEnd, *partitions: TopicPartition) -> FetchFrame | None:
    for partition in partitions:
        end.ask(fetch_of(partition))
    return end.frame()


class Clock:
    """Each look at it is a millisecond after the one before."""

    def __init__(self) -> None:
        self.now_ms = 0.0

    def __call__(self) -> float:
        self.now_ms += 1
        return self.now_ms


def taken(end: FollowerEnd, answer: FetchedPartition, find: FindPartition) -> list[Outcome]:
    """What comes of it, at once."""
    found: list[Taken] = []
    take(end, fetch_of(A), answer, None, find, found.append, clock_ms=Clock())
    return [each.outcome for each in found]


def fetched(
    followers: FollowerConnections[Carried], carried: Carried, number: int, fetch: FetchPartition
) -> list[ReplicationError]:
    """Why it is refused at once."""
    refused: list[ReplicationError] = []
    followers.fetched(carried, number, fetch, 5, lambda _name, error: refused.append(error))
    return refused


def answered(followers: FollowerConnections[Carried], carried: Carried, partition: TopicPartition) -> list[FetchAnswer]:
    answers: list[FetchAnswer] = []
    followers.answer(carried, partition, answers.append)
    return answers


# The follower's end


@pytest.fixture
def end() -> FollowerEnd:
    """Connected, and following A and B, of which both have been asked for."""
    end = FollowerEnd(silence_ms=0)
    end.follow(A)
    end.follow(B)
    end.connected(0)
    end.take_due(0)
    frame = asked(end, A, B)
    assert frame is not None
    assert frame.number == 1
    return end


def test_what_is_followed_is_due_in_that_order_and_once() -> None:
    end = FollowerEnd(silence_ms=0)
    assert (end.follows, end.wait_ms(0)) == (False, None)
    for partition in (B, A, B):
        end.follow(partition)
    assert (end.follows, end.wait_ms(0)) == (True, 0)
    assert (end.take_due(0), end.take_due(0), end.wait_ms(0)) == ([B, A], [], None)


def test_what_is_followed_no_longer_is_not_due_and_its_answer_does_not_make_it_so(end: FollowerEnd) -> None:
    end.follow(A)
    end.unfollow(A)
    assert end.take_due(0) == []
    end.answered(A)
    end.failed(A, LATER, 0)
    assert end.take_due(BACKOFF_MS_MAX) == []


def test_a_frame_has_as_many_as_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_session, "FETCHES_PER_FRAME_MAX", 2)
    end = FollowerEnd(silence_ms=0)
    for partition in (A, B, C):
        end.follow(partition)
    assert (end.take_due(0), end.wait_ms(0), end.take_due(0)) == ([A, B], 0, [C])


def test_nothing_to_ask_is_no_frame_and_numbers_grow_from_one(end: FollowerEnd) -> None:
    assert asked(end) is None
    frame = asked(end, A)
    assert frame is not None
    assert frame.number == 2


def test_an_answer_counts_once_and_with_the_number_of_the_last_fetch_alone(end: FollowerEnd) -> None:
    end.ask(fetch_of(A, offset=7))
    assert end.frame() is not None
    assert end.received(1, A) is None, "it answers what was asked before"
    assert end.received(3, A) is None, "nobody has asked that"
    assert end.received(2, C) is None
    found = end.received(2, A)
    assert found is not None
    assert found.offset == 7
    assert end.received(2, A) is None


def test_nothing_that_was_asked_over_another_connection_counts(end: FollowerEnd) -> None:
    end.failed(B, LATER, 0)
    end.connected(0)
    assert end.received(1, A) is None
    assert end.take_due(BACKOFF_MS_MAX) == [A, B], "all that is followed, and B once"


def test_nothing_counts_once_it_is_closed(end: FollowerEnd) -> None:
    end.close()
    assert end.closed
    assert end.received(1, A) is None


def test_what_was_taken_is_due_again(end: FollowerEnd) -> None:
    end.received(1, A)
    end.answered(A)
    assert end.take_due(0) == [A]


def test_what_fails_is_due_later_each_time_in_a_row_twice_as_long_and_delays_no_other(end: FollowerEnd) -> None:
    waits = []
    for _ in range(8):
        end.failed(A, LATER, 1_000)
        end.answered(B)
        assert end.take_due(1_000) == [B]
        wait_ms = end.wait_ms(1_000)
        assert wait_ms is not None
        waits.append(wait_ms)
        assert end.take_due(1_000 + wait_ms - 1) == []
        assert end.take_due(1_000 + wait_ms) == [A]
    assert waits == [BACKOFF_MS, 40, 80, 160, 320, 640, BACKOFF_MS_MAX, BACKOFF_MS_MAX]
    end.answered(A)
    end.take_due(1_000)
    end.failed(A, LATER, 1_000)
    assert end.wait_ms(1_000) == BACKOFF_MS


def test_a_leader_that_refuses_as_one_that_has_moved_is_looked_up_once_in_a_while(end: FollowerEnd) -> None:
    assert not end.failed(A, InvalidRequest("what is that"), 5_000)
    looks = [end.failed(A, MOVED, 5_000), end.failed(B, MOVED, 5_999), end.failed(A, MOVED, 6_000)]
    assert looks == [True, False, True]


def test_connections_that_end_are_made_again_ever_later_until_something_comes(end: FollowerEnd) -> None:
    assert [end.ended() for _ in range(8)] == [BACKOFF_MS, 40, 80, 160, 320, 640, BACKOFF_MS_MAX, BACKOFF_MS_MAX]
    end.received(ALIVE, A)
    assert end.ended() == BACKOFF_MS


def test_silence_counts_once_the_leader_has_said_that_it_lives(end: FollowerEnd) -> None:
    end.heard(100)
    assert (end.is_silent(1e9), end.wait_ms(100)) == (False, None)
    assert end.received(ALIVE, A) is None
    assert end.received(1, A) is not None, "a sign of life answers no fetch"
    assert end.wait_ms(100) == SILENCE_MS_MIN
    assert (end.is_silent(99 + SILENCE_MS_MIN), end.is_silent(100 + SILENCE_MS_MIN)) == (False, True)
    end.looked_up(has_moved=False)
    assert end.is_silent(100 + SILENCE_MS_MIN)
    end.looked_up(has_moved=True)
    assert not end.is_silent(1e9), "another one may be of an earlier release"


def test_a_silence_that_is_longer_than_the_least_is_waited_for() -> None:
    assert FollowerEnd(silence_ms=3 * SILENCE_MS_MIN).silence_ms == 3 * SILENCE_MS_MIN


class Followed:
    def __init__(self, leader: int) -> None:
        self.leader = leader
        self.told: list[tuple[str, TopicPartition]] = []

    def follow(self, partition: TopicPartition) -> None:
        self.told.append(("follow", partition))

    def unfollow(self, partition: TopicPartition) -> None:
        self.told.append(("unfollow", partition))


def test_a_partition_is_asked_of_one_leader_at_a_time() -> None:
    links = FollowedLeaders(Followed)
    links.unfollow(A)  # nobody's
    for leader in (1, 1, 2):
        links.follow(A, leader)
    first, second = links.to(1), links.to(2)
    assert (first.leader, first.told) == (1, [("follow", A), ("follow", A), ("unfollow", A)])
    assert (second.leader, second.told) == (2, [("follow", A)])
    links.unfollow(A)
    links.unfollow(A)
    assert second.told == [("follow", A), ("unfollow", A)]


def test_links_of_a_life_that_is_over_are_followed_no_more() -> None:
    links = FollowedLeaders(Followed)
    links.follow(A, 1)
    (old,) = links.take_all()
    links.unfollow(A)
    links.follow(A, 1)
    assert (links.to(1) is old, old.told, links.to(1).told) == (False, [("follow", A)], [("follow", A)])


def no_wake() -> None:
    pytest.fail("nobody waits for it")


def test_those_that_have_nothing_to_ask_or_are_gone_ask_nothing() -> None:
    end, silent = FollowerEnd(silence_ms=0), Replica()
    silent.asks = None
    ask(end, (A, B, C), finding((A, Replica(A)), (B, silent)), no_wake)
    frame = end.frame()
    assert frame is not None
    assert [fetch.topic_partition for fetch in frame.partitions] == [A]
    assert end.frame() is None


def test_one_that_is_not_free_is_asked_later_and_delays_no_other() -> None:
    end, held, woken = FollowerEnd(silence_ms=0), Held(Replica(A)), list[str]()
    held.waiting = []
    ask(end, (A, B), finding((A, held), (B, Replica(B))), lambda: woken.append("woken"))
    frame = end.frame()
    assert frame is not None
    assert ([fetch.topic_partition for fetch in frame.partitions], woken) == ([B], [])
    held.becomes_free()
    frame = end.frame()
    assert frame is not None
    assert ([fetch.topic_partition for fetch in frame.partitions], woken) == ([A], ["woken"])


def test_what_was_to_be_asked_over_a_connection_that_ended_is_asked_anew(end: FollowerEnd) -> None:
    end.ask(fetch_of(A))
    end.connected(5)
    assert end.frame() is None
    assert end.take_due(5) == [A, B]


def test_an_answer_is_taken_by_its_replica(end: FollowerEnd) -> None:
    replica = Replica()
    assert taken(end, answer_of(A), finding((A, replica))) == [None]
    assert replica.taken == [answer_of(A)]


def test_an_answer_for_a_partition_that_is_not_free_is_taken_later_from_a_copy(end: FollowerEnd) -> None:
    held, outcomes, clock = Held(Replica()), list[Taken](), Clock()
    held.waiting = []
    buffer = bytearray(b"abc")
    records = LogSlice(0, 1, 0, memoryview(buffer)[:1], memoryview(buffer)[1:])
    take(end, fetch_of(A), answer_of(A), records, finding((A, held)), outcomes.append, clock_ms=clock)
    buffer[:] = b"xyz"  # the next bytes of the connection
    assert (outcomes, held.replica.taken) == ([], [])
    clock.now_ms += SLOW_MS
    held.becomes_free()
    assert (outcomes, held.replica.taken) == ([Taken(None, took_ms=1)], [answer_of(A)]), "to wait is not to be slow"
    assert held.replica.records == [LogSlice(0, 1, 0, b"a", b"bc")]


@pytest.mark.parametrize(("to", "committed"), [(9, 0), (8, 0), (5, 3)])
def test_what_is_cut_is_told_with_how_much_of_it_was_committed(end: FollowerEnd, to: int, committed: int) -> None:
    for once in (taken, lambda *given: [take_and_wait(end, fetch_of(A), given[1], None, given[2], Clock()).outcome]):
        replica = Replica()
        replica.cut_to = to
        assert once(end, answer_of(A), finding((A, replica))) == [Cut(10, to, committed)]


def test_an_answer_about_another_topic_of_that_name_or_after_the_end_is_not_taken(end: FollowerEnd) -> None:
    replica = Replica()
    assert taken(end, answer_of(A, topic_id="another"), finding((A, replica))) == [None]
    end.close()
    assert taken(end, answer_of(A), finding((A, replica))) == [None]
    assert replica.taken == []


def test_a_refusal_is_told_whoever_refuses(end: FollowerEnd) -> None:
    (refused,) = taken(end, answer_of(A, error=NotLeader.code), finding((A, Replica())))
    assert isinstance(refused, NotLeader)
    (unknown,) = taken(end, answer_of(A), finding())
    assert isinstance(unknown, UnknownTopicOrPartition)
    waited = take_and_wait(end, fetch_of(A), answer_of(A), None, finding(), Clock())
    assert isinstance(waited.outcome, UnknownTopicOrPartition)
    replica = Replica()
    replica.refuses = LATER
    assert taken(end, answer_of(A), finding((A, replica))) == [LATER]


# The leader's end


class Carried:
    def __init__(self, follower: int = 2, broker_epoch: int = 4) -> None:
        self.end = LeaderEnd(follower, broker_epoch)


def test_what_becomes_ready_first_wakes_and_is_taken_in_that_order_and_once() -> None:
    end = LeaderEnd(2, 4)
    assert [end.ready(partition) for partition in (B, A, B)] == [True, False, False]
    assert (end.has_ready, end.take_ready(), end.has_ready, end.take_ready()) == (True, [B, A], False, [])


def test_an_answer_has_as_many_as_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_session, "ANSWERS_PER_SEND_MAX", 2)
    end = LeaderEnd(2, 4)
    for partition in (A, B, C):
        end.ready(partition)
    assert (end.take_ready(), end.has_ready, end.take_ready()) == ([A, B], True, [C])


def test_one_that_is_behind_waits_for_several_batches_and_one_at_the_end_does_not() -> None:
    end = LeaderEnd(2, 4)
    end.sent(0)
    assert end.wait_ms(0) == ALIVE_MS
    end.frame_came()
    end.gather(0, 10)
    end.ready(A)
    assert end.wait_ms(0) == 0
    end.frame_came()
    assert (end.wait_ms(0), end.wait_ms(4), end.wait_ms(10), end.wait_ms(11)) == (10, 6, 0, 0)


def test_after_quiet_it_owes_a_sign_of_life() -> None:
    end = LeaderEnd(2, 4)
    assert end.owes_a_sign_of_life(0)
    end.sent(100)
    assert (end.owes_a_sign_of_life(99 + ALIVE_MS), end.owes_a_sign_of_life(100 + ALIVE_MS)) == (False, True)
    assert (end.wait_ms(100 + ALIVE_MS), end.take_ready()) == (0, [])


def test_the_newest_connection_of_a_life_counts_and_an_earlier_life_is_refused() -> None:
    followers: FollowerConnections[Carried] = FollowerConnections(finding())
    first, second, next_life = Carried(), Carried(), Carried(broker_epoch=5)
    assert (followers.joined(first), followers.joined(second), followers.joined(next_life)) == (None, first, second)
    with pytest.raises(StaleBrokerEpoch):
        followers.joined(Carried())
    assert followers.of(2) is next_life
    followers.left(first)
    assert followers.of(2) is next_life, "it had been replaced"
    followers.left(next_life)
    assert followers.of(2) is None


def test_a_fetch_is_answered_with_its_number_and_once() -> None:
    replica, carried = Replica(), Carried()
    followers: FollowerConnections[Carried] = FollowerConnections(finding((A, replica)))
    followers.joined(carried)
    assert fetched(followers, carried, 3, fetch_of(A)) == []
    assert replica.fetches == [(fetch_of(A), 2, 4)]
    assert fetched(followers, carried, 4, fetch_of(A, offset=9)) == []
    assert answered(followers, carried, A) == [FetchAnswer(4, answer_of(A), None)]
    assert answered(followers, carried, A) == []


def test_a_fetch_of_a_partition_that_is_not_free_comes_to_it_later() -> None:
    held, carried = Held(Replica()), Carried()
    followers: FollowerConnections[Carried] = FollowerConnections(finding((A, held)))
    followers.joined(carried)
    held.waiting = []
    fetched(followers, carried, 3, fetch_of(A))
    assert answered(followers, carried, A) == []
    held.becomes_free()
    assert held.replica.fetches == [(fetch_of(A), 2, 4)]
    assert answered(followers, carried, A) == [], "it was answered when it became free"


def test_what_comes_over_a_connection_that_was_replaced_is_nothing() -> None:
    replica, old, new = Replica(), Carried(), Carried()
    followers: FollowerConnections[Carried] = FollowerConnections(finding((A, replica)))
    followers.joined(old)
    fetched(followers, old, 3, fetch_of(A))
    followers.joined(new)
    assert fetched(followers, old, 4, fetch_of(A)) == []
    assert len(replica.fetches) == 1
    assert answered(followers, old, A) == []
    assert answered(followers, new, A) == [], "it has not asked"


def test_every_fetch_is_answered_also_one_that_is_refused_or_came_too_soon() -> None:
    replica, carried = Replica(), Carried()
    followers: FollowerConnections[Carried] = FollowerConnections(finding((A, replica)))
    followers.joined(carried)

    def answers(partition: TopicPartition) -> list[tuple[int, str]]:
        return [(answer.number, answer.told.error) for answer in answered(followers, carried, partition)]

    (unknown,) = fetched(followers, carried, 1, fetch_of(B))
    assert isinstance(unknown, UnknownTopicOrPartition)
    assert (answers(B), answers(B)) == ([(1, UnknownTopicOrPartition.code)], [])
    replica.refuses = MOVED
    assert fetched(followers, carried, 2, fetch_of(A)) == [MOVED]
    assert answers(A) == [(2, NotLeader.code)]
    replica.refuses, replica.answers = None, None
    fetched(followers, carried, 3, fetch_of(A))
    assert answers(A) == [(3, NotReady.code)]


def test_records_are_loaded_as_they_are_sent_and_a_disk_that_refuses_that_is_told() -> None:
    records, as_sent = cast("Records", object()), cast("Records", object())

    def refused(_records: Records) -> Records:
        raise LATER

    found = FetchAnswer(2, answer_of(A), records)
    assert loaded(found, lambda given: as_sent if given is records else given) == FetchAnswer(2, answer_of(A), as_sent)
    told = loaded(found, refused)
    assert (told.number, told.told.error, told.records) == (2, StorageFailed.code, None)
    nothing = FetchAnswer(3, answer_of(A), None)
    assert loaded(nothing, refused) is nothing


def test_what_may_wait_for_the_followers_disk_is_told_before(end: FollowerEnd) -> None:
    fetch = fetch_of(A, offset=5)
    assert not end.may_wait(fetch, answer_of(A), 0)
    assert not end.may_wait(fetch, replace(answer_of(A), log_start=5), 0)
    assert end.may_wait(fetch, replace(answer_of(A), log_start=6), 0)
    assert end.may_wait(fetch, replace(answer_of(A), diverging=Diverging(epoch=0, end=3)), 0)


def test_a_disk_that_was_slow_may_be_slow_again_for_a_while(end: FollowerEnd) -> None:
    end.took(A, SLOW_MS - 1, 100, wrote=True)
    assert not end.may_wait(fetch_of(A), answer_of(A), 100)
    end.took(A, SLOW_MS, 100, wrote=True)
    assert end.may_wait(fetch_of(A), answer_of(A), 99 + SLOW_FOR_MS)
    assert not end.may_wait(fetch_of(B), answer_of(B), 100), "others are not"
    assert not end.may_wait(fetch_of(A), answer_of(A), 100 + SLOW_FOR_MS)


def test_a_disk_that_is_fast_again_and_again_is_slow_no_longer(end: FollowerEnd) -> None:
    def is_slow() -> bool:
        return end.may_wait(fetch_of(A), answer_of(A), 100)

    end.took(A, SLOW_MS, 100, wrote=True)
    for _ in range(FAST_AGAIN - 1):
        end.took(A, SLOW_MS - 1, 100, wrote=True)
    end.took(A, SLOW_MS, 100, wrote=True)
    for _ in range(FAST_AGAIN - 1):
        end.took(A, SLOW_MS - 1, 100, wrote=True)
        assert is_slow(), "in a row"
        end.took(A, 0, 100, wrote=False)
        assert is_slow(), "nothing was written"
    end.took(A, SLOW_MS - 1, 100, wrote=True)
    assert not is_slow()
    end.took(A, SLOW_MS - 1, 100, wrote=True)
    end.took(A, SLOW_MS, 100, wrote=True)
    assert is_slow()

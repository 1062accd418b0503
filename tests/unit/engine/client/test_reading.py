"""What each event of a read makes its reader do next: whom it asks for what, and what it tells of errors."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from spark_replication.core.replica.epochs import NO_EPOCH
from spark_replication.core.replica.read_start import ReadPlace
from spark_replication.core.routing import Route
from spark_replication.engine.client.pausing import BACK_OFF_FIRST_S
from spark_replication.engine.client.reading import (
    AskFiles,
    AskRecords,
    EndRead,
    FindLeader,
    FindReplicas,
    FindStart,
    Instruction,
    LearnTopic,
    PartitionRead,
    Pause,
    Preference,
    RaiseError,
    ReadFiles,
    Replica,
    ReportRoute,
    ReportTopic,
)
from spark_replication.errors import (
    AuthenticationFailed,
    BrokerNotAvailable,
    ClientClosed,
    CorruptLog,
    InvalidRequest,
    LogTruncated,
    NotLeader,
    OffsetOutOfRange,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from spark_replication.messages.ranges import FoundRange, WantedRange
from spark_replication.messages.records import ReadTicket

PATIENCE_S = 10.0
ROUTE = Route(
    topic="orders", partition=1, topic_id="id", leader=1, leader_epoch=4, address="one:9", replication_port=90
)
LEADER = Replica(1, "one:9", "one", 90, None)
SECOND = Replica(2, "two:9", "two", 90, 7)
THIRD = Replica(3, "three:9", "three", 90, None)
FOUND = FoundRange(topic="orders", partition=1, topic_id="id", start=3, end=6)


def asked(**other: Any) -> ReadTicket:
    given: dict[str, Any] = {"from_offset": 3, "topic_id": "id"} | other
    return ReadTicket(topic="orders", partition=1, **given)


def begun(prefer: Preference = "leader", **other: Any) -> PartitionRead:
    return PartitionRead(asked(**other), prefer, patience_s=PATIENCE_S, now_s=0.0)


def does(read: PartitionRead, count: int = 1) -> list[Instruction]:
    return [read.next() for _ in range(count)]


def at_leader(read: PartitionRead) -> AskRecords:
    assert read.next() == FindLeader()
    read.leader_known(ROUTE)
    question = read.next()
    assert isinstance(question, AskRecords)
    return question


def at_replica(read: PartitionRead, *replicas: Replica) -> Instruction:
    assert read.next() == FindReplicas()
    read.replicas_known(replicas)
    return read.next()


def gives(read: PartitionRead, base_offset: int, last_offset: int, *, epoch: int = 4, now_s: float = 0.0) -> None:
    """An answer with one batch."""
    read.answered(ReadPlace(last_offset + 1, epoch))
    found = read.wanted(base_offset, last_offset)
    assert found is not None
    read.given(found[1], epoch, now_s)


# Where it begins


def test_it_is_of_one_topic_and_of_that_alone() -> None:
    read = begun(topic_id=None)
    assert read.next() == LearnTopic()
    read.topic_known("id")
    assert at_leader(read) == AskRecords(LEADER, asked(), checked=False)
    named = begun(topic_id="another")
    assert at_leader(named).ticket.topic_id == "another"


def test_a_topic_that_nobody_knows_is_an_error_at_once() -> None:
    """Whoever looks for it has tried again."""
    read, error = begun(topic_id=None), UnknownTopicOrPartition("none")
    assert read.next() == LearnTopic()
    read.failed(error, 1.0)
    assert read.next() == RaiseError(error)


def test_whoever_reads_by_a_closed_reader_is_told() -> None:
    read, error = begun(topic_id=None), ClientClosed("closed")
    assert read.next() == LearnTopic()
    read.closed()
    read.failed(error, 0.0)
    assert read.next() == RaiseError(error)


@pytest.mark.parametrize("start", [{"from_offset": "earliest"}, {"from_offset": None, "from_time": 5}])
@pytest.mark.parametrize("prefer", ["leader", "follower"])
def test_a_start_that_is_no_offset_is_the_leaders_to_say(prefer: Preference, start: dict[str, Any]) -> None:
    read = begun(prefer, max_wait_ms=50, **start)
    assert read.next() == FindLeader()
    read.leader_known(ROUTE)
    assert read.next() == FindStart(LEADER, asked(to=0, **start))
    read.starts_at(ReadPlace(8, 2))
    question = at_leader(read) if prefer == "leader" else at_replica(read, SECOND)
    assert isinstance(question, AskRecords)
    assert question.ticket == asked(from_offset=8, last_epoch=2, max_wait_ms=50, any_replica=prefer == "follower")


def test_a_start_is_asked_for_until_time_is_over() -> None:
    read, error = begun(from_offset="latest"), BrokerNotAvailable("gone")
    assert read.next() == FindLeader()
    read.failed(error, 0.0)
    assert does(read, 2) == [Pause(BACK_OFF_FIRST_S), FindLeader()]
    read.leader_known(ROUTE)
    assert isinstance(read.next(), FindStart)
    read.failed(error, 1.0)
    assert does(read, 3) == [ReportRoute(ROUTE), Pause(2 * BACK_OFF_FIRST_S), FindLeader()]
    read.failed(error, PATIENCE_S)
    assert read.next() == RaiseError(error)


@pytest.mark.parametrize(("to", "begins"), [(3, False), (4, True), (None, True)])
def test_nothing_is_asked_for_beyond_the_end(to: int | None, begins: bool) -> None:
    assert begun(to=to).next() == (FindLeader() if begins else EndRead())


def test_retention_that_was_faster_than_the_start_moves_it() -> None:
    read, error = begun(from_offset="earliest"), OffsetOutOfRange("gone")
    assert read.next() == FindLeader()
    read.leader_known(ROUTE)
    assert isinstance(read.next(), FindStart)
    read.starts_at(ReadPlace(3))
    at_leader(read)
    read.failed(error, 1.0)
    assert read.next() == FindLeader(), "at once"
    read.leader_known(ROUTE)
    assert isinstance(read.next(), FindStart)
    read.starts_at(ReadPlace(5))
    at_leader(read)
    read.failed(error, PATIENCE_S)
    assert read.next() == RaiseError(error), "time is over"


@pytest.mark.parametrize(
    ("start", "given", "error"),
    [
        (3, False, OffsetOutOfRange("an offset that was named is not another")),
        ("earliest", True, OffsetOutOfRange("what was read is followed by nothing else")),
        ("earliest", False, LogTruncated("nor is what was cut")),
    ],
)
def test_no_other_offset_is_out_of_range_without_a_word(start: Any, given: bool, error: OffsetOutOfRange) -> None:
    read = begun(from_offset=start)
    if start == "earliest":
        assert read.next() == FindLeader()
        read.leader_known(ROUTE)
        assert isinstance(read.next(), FindStart)
        read.starts_at(ReadPlace(3))
    at_leader(read)
    if given:
        gives(read, 3, 5)
    read.failed(error, 1.0)
    assert read.next() == RaiseError(error)


@pytest.mark.parametrize("start", [3, "earliest"])
def test_another_topic_of_the_name_will_do_until_something_was_given(start: Any) -> None:
    read = begun(from_offset=start, topic_id=None)
    assert read.next() == LearnTopic()
    read.topic_known("id")
    if start == "earliest":
        assert read.next() == FindLeader()
        read.leader_known(ROUTE)
        assert isinstance(read.next(), FindStart)
        read.starts_at(ReadPlace(3))
    at_leader(read)
    read.failed(UnknownTopicOrPartition("made again"), 0.0)
    assert does(read, 3) == [ReportRoute(ROUTE), Pause(BACK_OFF_FIRST_S), LearnTopic()]
    read.topic_known("made again")
    assert read.next() == FindLeader()
    read.leader_known(ROUTE)
    begins = read.next()
    assert isinstance(begins, FindStart if start == "earliest" else AskRecords)
    assert begins.ticket.topic_id == "made again"


def test_the_same_topic_is_begun_once() -> None:
    read = begun(from_offset="latest", topic_id=None)
    assert read.next() == LearnTopic()
    read.topic_known("id")
    assert read.next() == FindLeader()
    read.leader_known(ROUTE)
    assert isinstance(read.next(), FindStart)
    read.starts_at(ReadPlace(3))
    at_leader(read)
    read.failed(NotLeader("no longer"), 0.0)
    assert does(read, 3) == [ReportRoute(ROUTE), Pause(BACK_OFF_FIRST_S), LearnTopic()]
    read.topic_known("id")
    assert at_leader(read).ticket.from_offset == 3


def test_a_read_that_has_begun_stays_in_its_topic() -> None:
    read = begun(topic_id=None)
    assert read.next() == LearnTopic()
    read.topic_known("id")
    at_leader(read)
    gives(read, 3, 5)
    read.failed(UnknownTopicOrPartition("made again"), 0.0)
    assert does(read, 2) == [ReportRoute(ROUTE), Pause(BACK_OFF_FIRST_S)]
    assert at_leader(read).ticket == asked(from_offset=6, last_epoch=4)


# Records


@pytest.mark.parametrize(
    ("to", "after", "following"),
    [
        (None, 6, 6),
        (9, 6, 6),
        (6, 6, None),
        (None, 3, None),
    ],
)
def test_the_next_question_goes_unless_the_end_is_reached(to: int | None, after: int, following: int | None) -> None:
    read = begun(to=to)
    at_leader(read)
    question = read.answered(ReadPlace(after, 4))
    assert question == (None if following is None else asked(from_offset=following, last_epoch=4, to=to))


def test_questions_follow_each_other_before_their_records_have_come() -> None:
    read = begun(last_epoch=1)
    assert at_leader(read).ticket.last_epoch == 1
    first, second = read.answered(ReadPlace(6, 4)), read.answered(ReadPlace(9, NO_EPOCH))
    assert (first, second) == (asked(from_offset=6, last_epoch=4), asked(from_offset=9))
    assert read.answered(ReadPlace(9, 4)) is None
    assert read.place == ReadPlace(3, 1)


@pytest.mark.parametrize(
    ("base_offset", "last_offset", "to", "found"),
    [
        (3, 5, None, (3, 6)),
        (1, 5, None, (3, 6)),
        (3, 5, 5, (3, 5)),
        (3, 5, 9, (3, 6)),
        (0, 2, None, None),
    ],
)
def test_only_what_comes_next_is_given(
    base_offset: int, last_offset: int, to: int | None, found: tuple[int, int] | None
) -> None:
    read = begun(to=to)
    at_leader(read)
    assert read.wanted(base_offset, last_offset) == found


def test_a_gap_is_an_error_once_it_was_looked_at_twice() -> None:
    read = begun()
    at_leader(read)
    gives(read, 3, 5)
    with pytest.raises(CorruptLog, match="offset 6 was next, but the broker sent 7: read from there") as gap:
        read.wanted(7, 9)
    read.failed(gap.value, 0.0)
    again = AskRecords(LEADER, asked(from_offset=6, last_epoch=4), checked=True)
    assert read.next() == again
    read.failed(gap.value, 0.0)
    assert read.next() == RaiseError(gap.value)


def test_an_answer_that_ends_further_on_than_its_records_is_no_end() -> None:
    read = begun()
    at_leader(read)
    read.answered(ReadPlace(6, 4))
    read.answered(ReadPlace(6, 4))
    read.served(0.0)
    assert read.next() == AskRecords(LEADER, asked(), checked=True)


# The leader


@pytest.mark.parametrize(("max_wait_ms", "follows"), [(0, EndRead()), (50, FindLeader())])
def test_a_read_ends_where_its_leader_has_no_more_unless_it_waits(max_wait_ms: int, follows: Instruction) -> None:
    read = begun(max_wait_ms=max_wait_ms)
    at_leader(read)
    read.served(8.0)
    assert read.next() == follows
    assert read.left_s(8.0) == PATIENCE_S


def test_a_read_of_what_was_committed_ends_only_with_all_of_it() -> None:
    """A leader that has less may have been deposed: another is asked, until records must be gone."""
    ticket = asked(to=9)
    read = PartitionRead(ticket, "leader", patience_s=PATIENCE_S, now_s=0.0, whole=True)
    at_leader(read)
    gives(read, 3, 5, now_s=1.0)
    read.served(1.0)
    assert does(read, 2) == [ReportRoute(ROUTE), Pause(BACK_OFF_FIRST_S)]
    assert at_leader(read).ticket == asked(from_offset=6, last_epoch=4, to=9)
    read.served(1.0 + PATIENCE_S)
    assert read.next() == ReportRoute(ROUTE)
    (failed,) = does(read)
    assert isinstance(failed, RaiseError)
    assert isinstance(failed.error, LogTruncated)
    assert "orders-1: all below offset 9 was committed, and its leader has it up to 6 only" in failed.error.message


def test_a_read_of_what_was_committed_ends_once_it_has_all_of_it() -> None:
    read = PartitionRead(asked(to=6), "leader", patience_s=PATIENCE_S, now_s=0.0, whole=True)
    at_leader(read)
    gives(read, 3, 5)
    read.served(0.0)
    assert read.next() == EndRead()


def test_what_the_leader_gives_begins_the_time_anew() -> None:
    read, error = begun(), BrokerNotAvailable("gone")
    at_leader(read)
    read.failed(error, 1.0)
    assert does(read, 2) == [ReportRoute(ROUTE), Pause(BACK_OFF_FIRST_S)]
    at_leader(read)
    gives(read, 3, 5, now_s=9.0)
    read.failed(error, 12.0)
    assert does(read, 2) == [ReportRoute(ROUTE), Pause(BACK_OFF_FIRST_S)], "the first failure in a row"
    assert at_leader(read).ticket == asked(from_offset=6, last_epoch=4)
    assert read.left_s(12.0) == 7.0
    assert read.left_s(20.0) == 0.0


def test_a_pause_is_no_longer_than_the_time_that_is_left() -> None:
    read, late = begun(), PATIENCE_S - BACK_OFF_FIRST_S / 2
    at_leader(read)
    read.failed(BrokerNotAvailable("gone"), late)
    assert does(read, 2) == [ReportRoute(ROUTE), Pause(PATIENCE_S - late)]


def test_what_is_told_is_why_it_failed_and_not_that_time_was_over() -> None:
    read, why = begun(), NotLeader("why")
    at_leader(read)
    read.failed(why, 0.0)
    assert does(read, 3) == [ReportRoute(ROUTE), Pause(BACK_OFF_FIRST_S), FindLeader()]
    read.failed(RequestTimedOut("late"), PATIENCE_S)
    assert read.next() == RaiseError(why)


@pytest.mark.parametrize("error", [InvalidRequest("wrong in itself"), AuthenticationFailed("nobody lets it in")])
def test_what_no_retry_mends_is_told(error: InvalidRequest | AuthenticationFailed) -> None:
    read = begun()
    assert read.next() == FindLeader()
    read.failed(error, 0.0)
    assert read.next() == RaiseError(error)


def test_whoever_has_a_dead_leaders_port_keeps_nobody_from_the_next_leader() -> None:
    read, error = begun(), AuthenticationFailed("not a broker")
    at_leader(read)
    read.failed(error, 0.0)
    assert does(read, 3) == [ReportRoute(ROUTE), Pause(BACK_OFF_FIRST_S), FindLeader()]


# Other replicas


@pytest.mark.parametrize(
    ("prefer", "known", "chosen"),
    [
        ("follower", [SECOND, THIRD], THIRD),  # of partition 1
        ("follower", [SECOND], SECOND),
        ("follower", [], None),
        (3, [SECOND, THIRD], THIRD),
        (4, [SECOND, THIRD], None),
        (4, [], None),
    ],
)
def test_who_is_preferred_is_asked_if_it_is_in_sync(
    prefer: Preference, known: list[Replica], chosen: Replica | None
) -> None:
    follows = at_replica(begun(prefer), *known)
    expected = FindLeader() if chosen is None else AskRecords(chosen, asked(any_replica=True), checked=False)
    assert follows == expected


def test_while_nobody_knows_the_replicas_the_leader_is_asked() -> None:
    read = begun("follower")
    assert read.next() == FindReplicas()
    read.failed(BrokerNotAvailable("nobody answers"), 0.0)
    assert at_leader(read).ticket == asked()


@pytest.mark.parametrize("max_wait_ms", [0, 50])
@pytest.mark.parametrize("given", [False, True])
def test_after_a_replica_it_is_the_leaders_turn_unless_more_may_come(max_wait_ms: int, given: bool) -> None:
    read = begun("follower", max_wait_ms=max_wait_ms)
    at_replica(read, SECOND)
    if given:
        gives(read, 3, 5)
    read.served(8.0)
    assert read.left_s(8.0) == (PATIENCE_S if given else 2.0)
    if given and max_wait_ms:
        assert read.next() == FindReplicas()
        return
    ticket = at_leader(read).ticket
    assert (ticket.from_offset, ticket.any_replica) == (6 if given else 3, False)
    read.served(8.0)
    assert read.next() == (FindReplicas() if max_wait_ms else EndRead())


@pytest.mark.parametrize(("given", "follows"), [(False, FindLeader()), (True, FindReplicas())])
def test_an_error_of_a_replica_is_no_error_of_the_read(given: bool, follows: Instruction) -> None:
    read = begun("follower")
    at_replica(read, SECOND)
    if given:
        gives(read, 3, 5)
    read.failed(LogTruncated("the leader says so, too, or serves what the replica did not"), 8.0)
    assert does(read, 2) == [ReportTopic(), follows]
    assert read.left_s(8.0) == (PATIENCE_S if given else 2.0)


def test_after_an_error_of_the_leader_the_preferred_one_is_asked_again() -> None:
    read = begun("follower")
    assert at_replica(read) == FindLeader()
    read.leader_known(ROUTE)
    assert isinstance(read.next(), AskRecords)
    read.failed(NotLeader("no longer"), 0.0)
    assert does(read, 3) == [ReportRoute(ROUTE), Pause(BACK_OFF_FIRST_S), FindReplicas()]


# Files


def at_files(**other: Any) -> PartitionRead:
    read = begun("near", last_epoch=2, **other)
    wanted = WantedRange(topic="orders", partition=1, start=3, last_epoch=2, files=True, **other)
    assert at_replica(read, SECOND, THIRD) == AskFiles(SECOND, wanted)
    return read


def test_the_nearest_is_asked_for_its_files_if_there_is_one() -> None:
    at_files()
    assert at_replica(begun("near")) == FindLeader()


@pytest.mark.parametrize(
    ("found", "are_here", "are_read"),
    [
        (FOUND, True, True),
        (FOUND, False, False),
        (replace(FOUND, topic_id="another"), True, False),
        (replace(FOUND, cut=2), True, False),
    ],
)
def test_files_are_read_if_they_are_those_of_this_log(found: FoundRange, are_here: bool, are_read: bool) -> None:
    read = at_files()
    read.files_told(found, are_here=are_here)
    records = AskRecords(SECOND, asked(last_epoch=2, any_replica=True), checked=False)
    assert read.next() == (ReadFiles(found) if are_read else records)


def test_who_does_not_tell_of_its_files_is_not_asked_for_records_either() -> None:
    read = at_files()
    read.failed(RequestTimedOut("it may hang"), 0.0)
    assert does(read, 2) == [ReportTopic(), FindLeader()]


@pytest.mark.parametrize("error", [None, CorruptLog("damaged")])
def test_the_same_replica_gives_what_its_files_do_not(error: CorruptLog | None) -> None:
    read = at_files()
    read.files_told(FOUND, are_here=True)
    assert read.next() == ReadFiles(FOUND)
    read.given(5, 4, 0.0)
    if error is None:
        read.served(0.0)
    else:
        read.failed(error, 0.0)
    assert read.next() == AskRecords(SECOND, asked(from_offset=5, last_epoch=4, any_replica=True), checked=False)


def test_files_that_hold_all_of_it_end_the_read() -> None:
    read = at_files(to=5)
    read.files_told(FOUND, are_here=True)
    assert read.next() == ReadFiles(FOUND)
    read.given(5, 4, 0.0)
    read.served(0.0)
    assert read.next() == EndRead()


# The end


def test_nothing_follows_once_it_is_closed() -> None:
    read = begun(max_wait_ms=50)
    at_leader(read)
    read.closed()
    read.failed(BrokerNotAvailable("since it was closed"), 0.0)
    assert read.next() == EndRead()
    pausing = begun()
    at_leader(pausing)
    pausing.failed(BrokerNotAvailable("gone"), 0.0)
    pausing.closed()
    assert pausing.next() == EndRead()

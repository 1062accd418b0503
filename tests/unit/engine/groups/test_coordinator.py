"""A coordinator of groups: nobody hears of what is not committed, and whoever takes over knows what was."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_replication.core.groups.deciding import HANDOVER_MS
from spark_replication.engine.groups.coordinator import HUNG_UP_PARTS, LATE_MS, GroupGauges
from spark_replication.engine.groups.group_log import UNAWAITED_MS
from spark_replication.engine.replica.waiters import Acknowledge
from spark_replication.errors import (
    CorruptLog,
    FencedMemberEpoch,
    GroupNotEmpty,
    NotCoordinator,
    NotEnoughReplicas,
    ReplicationError,
    UnknownMember,
)
from spark_replication.messages.groups import (
    Beat,
    Beaten,
    CommitTaken,
    DeleteGroup,
    DescribedGroup,
    DescribedPosition,
    Holding,
    Introduction,
    Joined,
    JoinGroup,
    Left,
    ResetGroup,
    ResetPlace,
)
from spark_replication.storage.format.group_rows import StoredGroupRows
from spark_replication.storage.format.index import ENTRY_BYTES
from tests.unit.core.stories import command, state
from tests.unit.engine.groups.coordinated import (
    A0,
    A1,
    A2,
    ME,
    SESSION_MS,
    CoordinatorStory,
    MemberLinkStory,
)
from tests.unit.storage.storage_stories import prepared


@pytest.fixture
def story(tmp_path: Path) -> CoordinatorStory:
    return CoordinatorStory(tmp_path).serves()


# Answers


def test_a_member_hears_of_nothing_before_it_is_committed(story: CoordinatorStory) -> None:
    x = story.joins()
    link = MemberLinkStory()
    number = story.ask(x.commit(10), link)
    assert not link.answers
    story.posts()
    assert not link.answers, "it is in the log of one broker"
    story.commits()
    assert link.answers == {number: CommitTaken()}


def test_who_joins_is_told_its_epoch_and_then_what_it_may_hold(story: CoordinatorStory) -> None:
    x = story.joins()
    assert (x.epoch, x.link.held) == (1, {A0: 2, A1: 2})
    assert x.link.place(A0).topic_id is None


def test_requests_that_come_together_cost_one_append(story: CoordinatorStory) -> None:
    x = story.joins()
    end = story.log.log_end
    first, second = story.ask(x.commit(10), x.link), story.ask(x.commit(20, A1), x.link)
    assert story.log.log_end == end
    story.posts().commits()
    assert x.link.answers[first] == x.link.answers[second] == CommitTaken()
    found = story.log.find(end, bytes_max=1 << 20, end=story.log.log_end)
    assert found is not None
    assert (len(found.entries), found.next_offset - found.first_offset) == (ENTRY_BYTES, 2)


def test_commits_that_nobody_waits_for_wait_a_little_for_others(story: CoordinatorStory) -> None:
    x = story.joins()
    end = story.log.log_end
    first = story.ask(x.commit(10, is_awaited=False), x.link)
    story.posts()
    story.time_ms += UNAWAITED_MS - 1
    second = story.ask(x.commit(20, A1, is_awaited=False), x.link)
    beat = story.ask(Beat(group="etl", member="x", epoch=x.epoch, heard=2), x.link)
    story.posts().timers_ring().commits()
    assert story.log.log_end == end
    assert not x.link.answers.keys() & {first, second, beat}
    story.time_ms += 1
    story.timers_ring()
    assert story.log.log_end == end + 2
    story.commits()
    assert x.link.answers[first] == x.link.answers[second] == CommitTaken()
    assert x.link.answers[beat] == Beaten()


def test_what_somebody_waits_for_takes_along_what_nobody_does(story: CoordinatorStory) -> None:
    x = story.joins()
    end = story.log.log_end
    first = story.ask(x.commit(10, is_awaited=False), x.link)
    second = story.ask(x.commit(20, A1), x.link)
    story.posts().commits()
    assert story.log.log_end == end + 2
    assert x.link.answers[first] == x.link.answers[second] == CommitTaken()
    third = story.ask(x.commit(30, is_awaited=False), x.link)
    story.timers_ring()
    story.time_ms += UNAWAITED_MS - 1
    story.timers_ring().posts()
    assert story.log.log_end == end + 2, "the first one's timer is over"
    story.time_ms += 1
    story.timers_ring().commits()
    assert x.link.answers[third] == CommitTaken()


@pytest.mark.parametrize("which", ["joins", "leaves", "says what it holds"])
def test_who_comes_goes_or_hands_over_waits_for_nobody(story: CoordinatorStory, which: str) -> None:
    x = story.joins()
    end = story.log.log_end
    story.ask(x.commit(10, is_awaited=False), x.link)
    match which:
        case "joins":
            introduction = Introduction(topics=("b",), host="h", name="y", session_ms=6_000)
            story.ask(JoinGroup(group="etl", member="y", introduction=introduction), MemberLinkStory())
        case "leaves":
            story.ask(x.leave(), x.link)
        case _:
            story.ask(Beat(group="etl", member="x", epoch=x.epoch, heard=2, held=(Holding(*A0),)), x.link)
    story.posts()
    assert story.log.log_end > end


def test_what_waited_for_others_is_lost_with_the_leadership(story: CoordinatorStory) -> None:
    x = story.joins()
    number = story.ask(x.commit(10, is_awaited=False), x.link)
    story.replica.resign("the session was lost")
    story.leads(leader_epoch=5, partition_epoch=8).commits()
    end = story.log.log_end
    story.time_ms += UNAWAITED_MS
    story.timers_ring()
    assert story.log.log_end == end
    assert isinstance(x.link.answers[number], NotCoordinator)


def test_rows_of_several_batches_are_answered_once_all_are_committed(tmp_path: Path) -> None:
    story = CoordinatorStory(tmp_path, batch_bytes_max=700).serves()
    x = story.joins()
    end = story.log.log_end
    numbers = [story.ask(x.commit(offset), x.link) for offset in range(5)]
    story.posts()
    assert story.log.log_end == end + 5
    found = story.log.find(end, bytes_max=1 << 20, end=story.log.log_end)
    assert found is not None
    assert len(found.entries) > ENTRY_BYTES
    story.commits(end + 1)
    assert not x.link.answers.keys() & set(numbers), "the last is committed as little as the first"
    story.commits()
    assert {type(x.link.answers[number]) for number in numbers} == {CommitTaken}


def test_after_a_refusal_the_batches_behind_it_are_not_appended(tmp_path: Path) -> None:
    story = CoordinatorStory(tmp_path, batch_bytes_max=700).serves()
    x = story.joins()
    for offset in range(5):
        story.ask(x.commit(offset), x.link)
    end, told = story.log.log_end, []

    def refused_later(_batch: object, *, acknowledge: Acknowledge, **_: object) -> None:
        told.append(acknowledge)
        acknowledge(NotEnoughReplicas("no replica is in sync: retry"))

    story.replica.produce = refused_later  # type: ignore[method-assign, assignment]
    story.posts()
    assert (len(told), story.log.log_end) == (1, end)


def test_a_beat_without_news_writes_nothing(story: CoordinatorStory) -> None:
    x = story.joins()
    end, told = story.log.log_end, len(x.link.told)
    assert x.beat(says=False) == Beaten()
    assert x.beat(A0, A1) == Beaten()
    assert (story.log.log_end, len(x.link.told)) == (end, told)


def test_where_the_group_goes_on_is_told_with_what_a_member_may_hold(story: CoordinatorStory) -> None:
    x = story.joins()
    story.asks(x.commit(10), x.link)
    story.asks(x.leave(), x.link)
    y = story.joins("y")
    place = y.link.place(A0)
    assert (place.topic_id, place.offset, place.last_epoch) == ("id-a", 10, 3)
    assert y.link.place(A1).topic_id is None


def test_news_that_is_lost_with_the_leadership_is_told_to_nobody(story: CoordinatorStory) -> None:
    link = MemberLinkStory()
    introduction = Introduction(topics=("a",), host="h", name="x", session_ms=SESSION_MS)
    story.ask(JoinGroup(group="etl", member="x", introduction=introduction), link)
    story.posts().replica.resign("the session was lost")
    story.coordinator.tick(story.replica)
    assert [type(each) for each in link.answers.values()] == [NotCoordinator]
    assert not link.told


# Members


def test_two_members_share_and_the_second_waits_for_what_the_first_hands_over(story: CoordinatorStory) -> None:
    x = story.joins()
    y = story.joins("y")
    (kept,) = x.link.held
    moves = A1 if kept == A0 else A0
    assert y.link.held == {}, "x may still work on it"
    assert x.beat(kept) == Beaten()
    assert list(y.link.held) == [moves]
    assert y.link.held[moves] > x.link.told[-1].heard


def test_over_another_connection_a_member_is_told_all_again(story: CoordinatorStory) -> None:
    x, link = story.joins(), MemberLinkStory()
    assert x.beat(A0, A1, link=link) == Beaten()
    assert link.held == x.link.held


def test_who_leaves_hands_over_at_once(story: CoordinatorStory) -> None:
    x, y = story.joins(), story.joins("y")
    assert story.asks(x.leave(), x.link) == Left()
    assert sorted(y.link.held) == [A0, A1]


def test_a_member_that_is_silent_for_its_session_is_out(story: CoordinatorStory) -> None:
    x, y = story.joins(), story.joins("y")
    story.after(SESSION_MS - 100)
    assert y.beat(says=False) == Beaten()
    story.after(200)
    assert sorted(y.link.held) == [A0, A1]
    assert isinstance(x.beat(A0), UnknownMember)
    assert isinstance(story.asks(x.commit(10), x.link), UnknownMember)


def test_who_commits_is_not_silent(story: CoordinatorStory) -> None:
    x = story.joins()
    story.after(SESSION_MS - 100)
    assert story.asks(x.commit(10), x.link) == CommitTaken()
    story.after(SESSION_MS - 100)
    assert x.beat(says=False) == Beaten()


def test_a_member_whose_connection_has_ended_is_out_soon_unless_it_comes_back(story: CoordinatorStory) -> None:
    x, y, z = story.joins(), story.joins("y"), story.joins("z")
    for member in (x, z):
        story.coordinator.hung_up(member.link)
    story.coordinator.hung_up(MemberLinkStory())  # of nobody
    assert z.beat(says=False, link=MemberLinkStory()) == Beaten()
    story.after(SESSION_MS / HUNG_UP_PARTS - 100)
    assert x.beat(says=False) == Beaten()
    story.coordinator.hung_up(x.link)
    story.after(SESSION_MS / HUNG_UP_PARTS)
    assert isinstance(x.beat(says=False), UnknownMember)
    assert (y.beat(says=False), z.beat(says=False)) == (Beaten(), Beaten())


def test_others_need_not_wait_for_a_tick_until_they_read_what_was_read_over_a_connection_that_ended(
    story: CoordinatorStory,
) -> None:
    x, y = story.joins(), story.joins("y")
    story.coordinator.hung_up(x.link)
    story.after(SESSION_MS / HUNG_UP_PARTS - 100)
    assert y.link.held == {}
    story.time_ms += 100
    story.timers_ring().posts().commits()
    assert sorted(y.link.held) == [A0, A1]


def test_who_does_not_hand_over_is_out_after_a_while(story: CoordinatorStory) -> None:
    x, y = story.joins(), story.joins("y")
    for _ in range(HANDOVER_MS // 5_000):
        assert (x.beat(says=False), y.beat(says=False)) == (Beaten(), Beaten())
        assert y.link.held == {}
        story.version = object()  # who is to have what is looked at anew, and stays
        story.after(5_000)
    assert sorted(y.link.held) == [A0, A1]
    assert isinstance(x.beat(says=False), UnknownMember)


def test_nobody_is_out_because_the_broker_stood_still(story: CoordinatorStory) -> None:
    x = story.joins()
    story.after(SESSION_MS - 500)
    story.time_ms += 10 * LATE_MS  # without a tick
    story.tick()
    assert x.beat(says=False) == Beaten()


def test_another_partition_is_granted_once_it_is_there(story: CoordinatorStory) -> None:
    x = story.joins()
    story.there = {**story.there, A2: frozenset()}
    story.tick()
    assert A2 not in x.link.held, "nothing says so"
    story.version = object()
    story.tick()
    assert sorted(x.link.held) == [A0, A1, A2]


def test_a_member_of_an_earlier_epoch_is_fenced(story: CoordinatorStory) -> None:
    x, again = story.joins(), story.joins()
    assert isinstance(x.beat(A0), FencedMemberEpoch)
    assert isinstance(story.asks(x.commit(10, owner_epoch=2), x.link), FencedMemberEpoch)
    assert sorted(again.link.held) == [A0, A1]


def test_a_commit_under_an_earlier_grant_changes_nothing(story: CoordinatorStory) -> None:
    x = story.joins()
    assert story.asks(x.commit(10, owner_epoch=1), x.link) == CommitTaken(refused=(Holding("a", 0),))
    assert positions(story) == []


def test_a_clock_from_before_1970_leaves_rows_that_can_be_read(story: CoordinatorStory) -> None:
    story.wall_ms = -700
    x = story.joins()
    story.asks(x.commit(10), x.link)
    story.another()
    story.serves()
    assert [(each.offset, each.committed_ms) for each in positions(story)] == [(10, 0)]


# Leadership


def positions(story: CoordinatorStory) -> list[DescribedPosition]:
    return [position for group in described(story) for position in group.positions]


def described(story: CoordinatorStory) -> list[DescribedGroup]:
    told: list[DescribedGroup] = []
    story.coordinator.describe(story.replica, None, told.extend)
    story.posts().commits()
    return told


def test_another_coordinator_knows_what_was_committed(story: CoordinatorStory) -> None:
    x = story.joins()
    story.asks(x.commit(10), x.link)
    before = described(story)
    story.another()
    story.serves()
    assert [(each.group, each.positions) for each in described(story)] == [
        (each.group, each.positions) for each in before
    ]
    assert x.beat(A0, A1, link=MemberLinkStory()) == Beaten(), "each member has a session from here on"


def test_nothing_is_answered_before_it_is_known_what_is_committed(story: CoordinatorStory) -> None:
    x = story.joins()
    story.ask(x.commit(10), x.link)
    story.posts()  # it is in this log, and nobody knows yet whether in another
    story.replica.resign("the session was lost")
    story.another()
    story.leads(leader_epoch=5, partition_epoch=8)
    story.coordinator.tick(story.replica)
    link = MemberLinkStory()
    asked = x.commit(20)
    number = story.ask(asked, link)
    assert isinstance(link.answers[number], NotCoordinator)
    story.commits()
    story.tick().tick()
    assert [each.offset for each in positions(story)] == [10]


def test_what_was_decided_is_lost_with_the_leadership(story: CoordinatorStory) -> None:
    x = story.joins()
    number = story.ask(x.commit(10), x.link)
    story.replica.resign("the session was lost")
    story.coordinator.tick(story.replica)
    error = x.link.answers[number]
    assert isinstance(error, NotCoordinator)
    assert error.maybe_written
    story.posts()
    assert not story.posted


def test_a_leadership_that_begins_anew_is_begun_by_reading(story: CoordinatorStory) -> None:
    """Another broker may have led in between, however quickly that was."""
    x = story.joins()
    story.ask(x.commit(10), x.link)  # decided, and not appended
    loads = story.loads
    story.replica.resign("the session was lost")
    story.leads(leader_epoch=5, partition_epoch=8)
    story.commits().posts()
    assert story.loads == loads
    story.tick().tick()
    assert story.loads > loads
    assert positions(story) == []


def test_what_another_has_written_in_between_is_known(story: CoordinatorStory) -> None:
    x = story.joins()
    story.asks(x.commit(10), x.link)
    story.replica.resign("the session was lost")
    story.log.begin_epoch(5)
    (batch,) = StoredGroupRows(1 << 20).encode([("etl", b'{"change":"deleted","group":"etl"}')])
    story.log.append(batch, leader_epoch=5, timestamp_ms=0)
    story.leads(leader_epoch=6, partition_epoch=8).commits().tick()
    assert described(story) == []


def test_a_later_leader_epoch_of_the_same_leadership_changes_nothing(story: CoordinatorStory) -> None:
    x, loads = story.joins(), story.loads
    story.leads(leader_epoch=5, partition_epoch=8)
    assert story.asks(x.commit(10), x.link) == CommitTaken()
    assert story.loads == loads


def test_a_broker_that_does_not_lead_coordinates_nothing(story: CoordinatorStory) -> None:
    x = story.joins()
    story.replica.command(command(state(2, [1, 2], leader_epoch=5), 8), ME, 0)
    link = MemberLinkStory()
    number = story.ask(x.commit(10), link)
    assert isinstance(link.answers[number], NotCoordinator)


def test_with_too_few_in_sync_nothing_is_decided(story: CoordinatorStory) -> None:
    x, link = story.joins(), MemberLinkStory()
    story.replica.command(command(state(1, [1], leader_epoch=4), 8), ME, 0)
    number = story.ask(x.commit(10), link)
    assert isinstance(link.answers[number], NotEnoughReplicas)
    story.after(2 * SESSION_MS)
    story.replica.command(command(state(1, [1, 2], leader_epoch=4), 9), ME, 0)
    story.tick()
    assert x.beat(says=False) == Beaten(), "nobody could be heard meanwhile"


def test_after_a_refused_append_the_log_is_read_anew(story: CoordinatorStory, monkeypatch: pytest.MonkeyPatch) -> None:
    x = story.joins()
    story.asks(x.commit(10), x.link)
    number = story.ask(x.commit(20), x.link)
    with monkeypatch.context() as full:
        full.setattr(type(story.replica), "produce", refuse)
        story.posts()
    assert isinstance(x.link.answers[number], NotCoordinator)
    story.tick().tick()
    assert [each.offset for each in positions(story)] == [10]


def refuse(*_: object, **__: object) -> None:
    raise NotEnoughReplicas("no replica is in sync: retry")


def test_an_acknowledgement_from_before_a_reading_counts_no_longer(
    story: CoordinatorStory, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = story.joins()
    story.ask(x.commit(10), x.link)
    story.posts()  # appended, and not committed
    number = story.ask(x.commit(20), x.link)
    with monkeypatch.context() as full:
        full.setattr(type(story.replica), "produce", refuse)
        story.posts()
    assert isinstance(x.link.answers[number], NotCoordinator)
    story.coordinator.tick(story.replica)
    assert not described_now(story), "what it had appended is not committed yet"
    story.commits()
    story.tick().tick()
    assert [each.offset for each in positions(story)] == [10]


def described_now(story: CoordinatorStory) -> list[DescribedGroup]:
    told: list[DescribedGroup] = []
    try:
        story.coordinator.describe(story.replica, None, told.extend)
    except NotCoordinator:
        return []
    return told


# Damage


def test_a_row_that_is_no_change_is_an_error_of_whoever_asks(tmp_path: Path) -> None:
    story = CoordinatorStory(tmp_path).leads()
    (batch,) = story.coordinator._log._rows.encode([("etl", b'{"change":"exploded"}')])
    story.replica.produce(batch, acks="all", now_ms=0, acknowledge=lambda _: None)
    story.commits()
    story.tick().tick()
    with pytest.raises(AssertionError, match=r"row 0 of the groups' log is no change of a group"):
        story.joins()
    assert refused(story) == CorruptLog.code


def test_a_log_of_other_columns_is_an_error_of_whoever_asks(tmp_path: Path) -> None:
    story = CoordinatorStory(tmp_path).leads()
    story.replica.produce(prepared(0), acks="all", now_ms=0, acknowledge=lambda _: None)
    story.commits().tick().tick()
    assert refused(story) == CorruptLog.code


def test_what_a_disk_has_lost_is_read_once_it_was_mended(tmp_path: Path) -> None:
    story = CoordinatorStory(tmp_path).serves()
    x = story.joins()
    story.asks(x.commit(10), x.link)
    (file,) = tmp_path.glob("*.arrow")
    whole = file.read_bytes()
    file.write_bytes(whole[:-30] + b"x" * 30)
    story.another()
    story.tick().tick()
    assert refused(story) == NotCoordinator.code
    (damaged,) = story.replica.damage.batches
    file.write_bytes(whole)
    assert not story.replica.damage.look_again(), damaged
    story.tick().tick()
    assert [each.offset for each in positions(story)] == [10]


def refused(story: CoordinatorStory) -> str:
    told: list[ReplicationError | None] = []
    story.coordinator.change(story.replica, DeleteGroup(group="etl"), told.append)
    (error,) = told
    assert error is not None
    return error.code


# Snapshots


def test_a_log_has_a_bound(tmp_path: Path) -> None:
    story = CoordinatorStory(tmp_path, snapshot_rows_min=20, segment_bytes=2_000).serves()
    x = story.joins()
    for offset in range(200):
        story.asks(x.commit(offset), x.link)
        story.tick()
    assert story.log.log_start > 50
    before = described(story)
    assert [each.offset for each in before[0].positions] == [199]
    story.another()
    story.serves()
    (after,) = described(story)
    assert (after.group, after.epoch, after.positions) == (before[0].group, before[0].epoch, before[0].positions)
    assert x.beat(A0, A1, link=MemberLinkStory()) == Beaten()


def test_what_is_before_a_snapshot_stays_until_that_is_committed(tmp_path: Path) -> None:
    story = CoordinatorStory(tmp_path, snapshot_rows_min=20, segment_bytes=500).serves()
    x = story.joins()
    for offset in range(25):
        story.asks(x.commit(offset), x.link)
    story.coordinator.tick(story.replica)
    story.posts()
    story.coordinator.tick(story.replica)
    assert story.log.log_start == 0
    story.commits()
    story.coordinator.tick(story.replica)
    assert story.log.log_start > 0


def test_a_snapshot_that_was_not_committed_forgets_nothing(tmp_path: Path) -> None:
    story = CoordinatorStory(tmp_path, snapshot_rows_min=20, segment_bytes=500).serves()
    x = story.joins()
    for offset in range(25):
        story.asks(x.commit(offset), x.link)
    story.coordinator.tick(story.replica)
    story.posts()
    story.replica.resign("the session was lost")
    story.coordinator.tick(story.replica)
    story.leads(leader_epoch=5, partition_epoch=8)
    story.coordinator._log.keep(story.replica)
    assert story.log.log_start == 0


def test_a_log_that_somebody_has_cut_before_a_snapshot_tells_of_no_group(tmp_path: Path) -> None:
    story = CoordinatorStory(tmp_path, segment_bytes=500).serves()
    x = story.joins()
    for offset in range(10):
        story.asks(x.commit(offset), x.link)
    story.replica.forget(8)
    assert story.log.log_start > 0
    story.another()
    story.tick()
    assert refused(story) == CorruptLog.code


def test_a_group_that_nobody_uses_is_forgotten(tmp_path: Path) -> None:
    story = CoordinatorStory(tmp_path, retention_ms=4_000).serves()
    x = story.joins()
    story.asks(x.commit(10), x.link)
    story.time_ms, story.wall_ms = story.time_ms + 3_999, story.wall_ms + 3_999
    x.beat(says=False)
    assert story.asks(x.leave(), x.link) == Left()
    for _ in range(3_999, 7_998, 1_333):
        assert [each.offset for each in positions(story.tick())] == [10]
        story.time_ms, story.wall_ms = story.time_ms + 1_333, story.wall_ms + 1_333
    assert [each.offset for each in positions(story.tick())] == [10]
    story.time_ms, story.wall_ms = story.time_ms + 1_000, story.wall_ms + 1_000
    assert described(story.tick()) == []
    story.another()
    assert described(story.serves()) == []


# People


def test_positions_are_reset_and_a_group_deleted_once_it_is_empty(story: CoordinatorStory) -> None:
    x = story.joins()
    reset = ResetGroup(
        group="etl", places=(ResetPlace(topic="a", partition=0, topic_id="id-a", offset=4, last_epoch=1),)
    )
    told: list[ReplicationError | None] = []
    for asked in (reset, DeleteGroup(group="etl")):
        story.coordinator.change(story.replica, asked, told.append)
    assert [type(each) for each in told] == [GroupNotEmpty, GroupNotEmpty]
    story.asks(x.leave(), x.link)
    told.clear()
    story.coordinator.change(story.replica, reset, told.append)
    assert not told
    story.posts().commits()
    assert told == [None]
    assert [(each.offset, each.last_epoch) for each in positions(story)] == [(4, 1)]
    assert story.joins("y").link.place(A0).offset == 4


def test_a_group_that_nobody_knows_is_deleted_already(story: CoordinatorStory) -> None:
    told: list[ReplicationError | None] = []
    end = story.log.log_end
    story.coordinator.change(story.replica, DeleteGroup(group="none"), told.append)
    assert (told, story.log.log_end) == ([None], end)


def test_what_is_told_of_members(story: CoordinatorStory) -> None:
    x, y = story.joins(), story.joins("y")
    story.after(300)
    story.coordinator.hung_up(y.link)
    (group,) = described(story)
    one, other = group.members
    assert (one.member, one.is_connected, one.silent_ms, len(one.partitions)) == ("x", True, 300, 2)
    assert len(one.hands_over) == 1
    assert (other.member, other.is_connected, other.partitions) == ("y", False, ())
    assert isinstance(x.epoch, int)
    assert Joined(epoch=x.epoch) in x.link.answers.values()


def test_metrics_are_told_of_each_group_and_of_so_many_positions(story: CoordinatorStory) -> None:
    x = story.joins()
    for number, partition in enumerate((A0, A1)):
        story.asks(x.commit(number + 5, partition), x.link)
    for positions_max, expected in ((0, {}), (1, {A0: 5}), (9, {A0: 5, A1: 6})):
        assert story.coordinator.gauges(story.replica, positions_max) == [GroupGauges("etl", 1, expected)]
    reset = ResetGroup(group="audit", places=(ResetPlace(topic="a", partition=0, topic_id="id-a", offset=4),))
    story.coordinator.change(story.replica, reset, lambda _error: None)
    told = story.coordinator.gauges(story.replica, 2)
    assert told == [GroupGauges("audit", 0, {A0: 4}), GroupGauges("etl", 1, {A0: 5})], "two of all groups"
    story.replica.resign("the session was lost")
    with pytest.raises(NotCoordinator):
        story.coordinator.gauges(story.replica, 0)

"""A member of a group: when it joins, beats, commits, hands over and leaves, and what it gives out."""

from __future__ import annotations

from typing import TypeVar

import pytest

from spark_replication.engine.client.membership import (
    ANSWERS_PER_SESSION,
    BEATS_PER_SESSION,
    BeginReading,
    EndReading,
    Membership,
)
from spark_replication.errors import (
    FencedMemberEpoch,
    GroupAuthorizationFailed,
    NotCoordinator,
    NotEnoughReplicas,
    ReplicationError,
    UnknownMember,
)
from spark_replication.messages.groups import (
    Beat,
    Beaten,
    CommitPositions,
    CommitTaken,
    GroupAnswer,
    GroupFrame,
    GroupNews,
    GroupRefusal,
    GroupRequest,
    HeldPartition,
    Holding,
    Introduction,
    Joined,
    JoinGroup,
    LeaveGroup,
    Left,
)
from spark_replication.model import TopicPartition

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
X = Introduction(topics=("a",), host="h", name="x", session_ms=6_000)
BEAT_S = 6.0 / BEATS_PER_SESSION
ANSWER_S = 6.0 / ANSWERS_PER_SESSION
COMMIT_S = 0.5

Asked = TypeVar("Asked", bound=GroupRequest)


class MembershipStory:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.member = Membership("etl", "x", X, commit_interval_s=COMMIT_S, now_s=self.now_s)

    def says(self) -> list[GroupRequest]:
        self.frames = self.member.frames(self.now_s)
        return [frame.asked for frame in self.frames]

    def says_one(self, kind: type[Asked]) -> tuple[GroupFrame, Asked]:
        (asked,) = self.says()
        assert isinstance(asked, kind), asked
        return self.frames[0], asked

    def keeps_coordinator(self) -> bool:
        """Whether it does, having looked at what there is to say."""
        self.says()
        return not self.member.has_lost_coordinator

    def hears(self, frame: GroupFrame, told: GroupAnswer | type[ReplicationError]) -> None:
        if isinstance(told, type):
            told = GroupRefusal(error=told.code, message="no")
        self.member.answered(frame.number, told, self.now_s)

    def joined(self, *held: TopicPartition, epoch: int = 1) -> MembershipStory:
        """A member that holds these, and has said so."""
        self.member.connected(self.now_s)
        frame, _ = self.says_one(JoinGroup)
        self.hears(frame, Joined(epoch=epoch))
        self.news(*held, epoch=epoch)
        frame, _ = self.says_one(Beat)
        self.hears(frame, Beaten())
        self.member.reads()
        return self

    def news(self, *held: TopicPartition, epoch: int = 1, heard: int = 5, owner_epoch: int = 2) -> None:
        partitions = tuple(
            HeldPartition(topic=each.topic, partition=each.partition, owner_epoch=owner_epoch) for each in held
        )
        self.member.news(GroupNews(group="etl", member="x", epoch=epoch, heard=heard, partitions=partitions))

    def processed(self, offset: int, partition: TopicPartition = A0, *, owner_epoch: int = 2) -> bool:
        return self.member.processed(partition, owner_epoch, "id-a", offset, 3, self.now_s)

    def later(self, seconds: float) -> MembershipStory:
        self.now_s += seconds
        return self


@pytest.fixture
def story() -> MembershipStory:
    return MembershipStory()


# Joining


def test_it_joins_once_it_is_connected_and_asks_once(story: MembershipStory) -> None:
    assert story.says() == []
    story.member.connected(story.now_s)
    assert story.says() == [JoinGroup(group="etl", member="x", introduction=X)]
    assert story.says() == []


def test_it_says_what_it_holds_as_it_hears_of_it(story: MembershipStory) -> None:
    story.member.connected(story.now_s)
    frame, _ = story.says_one(JoinGroup)
    story.hears(frame, Joined(epoch=4))
    story.news(A0, epoch=4, heard=5)
    assert story.says() == [Beat(group="etl", member="x", epoch=4, heard=5, held=(Holding("a", 0),))]
    (begun,) = story.member.reads()
    assert begun == BeginReading(HeldPartition(topic="a", partition=0, owner_epoch=2))
    assert story.member.reads() == []


def test_news_of_an_earlier_membership_or_of_earlier_than_it_knows_are_ignored(story: MembershipStory) -> None:
    story.joined(A0)
    story.news(A0, A1, epoch=9)
    story.news(A1, heard=4)
    assert (story.member.held, story.member.reads()) == ({A0: 2}, [])


def test_a_lost_answer_to_its_joining_is_followed_by_another_joining(story: MembershipStory) -> None:
    story.member.connected(story.now_s)
    story.says_one(JoinGroup)
    story.member.disconnected(story.now_s)
    assert story.says() == []
    story.later(1).member.connected(story.now_s)
    story.says_one(JoinGroup)


# Beats


def test_it_beats_as_often_as_its_session_asks_for(story: MembershipStory) -> None:
    story.joined(A0)
    assert story.member.due_s(story.now_s) == story.now_s + BEAT_S
    story.later(BEAT_S - 0.01)
    assert story.says() == []
    story.later(0.01)
    frame, beat = story.says_one(Beat)
    assert (beat.held, beat.heard) == (None, 5)
    story.later(BEAT_S)
    assert story.says() == [], "the one before is not answered"
    assert story.member.due_s(story.now_s) > story.now_s, "so there is nothing to do at present"
    story.hears(frame, Beaten())
    story.says_one(Beat)


def test_a_commit_is_a_sign_of_life_too(story: MembershipStory) -> None:
    story.joined(A0)
    story.later(BEAT_S - 0.01)
    story.processed(10)
    story.member.commit_now()
    frame, _ = story.says_one(CommitPositions)
    story.hears(frame, CommitTaken())
    story.later(BEAT_S - 0.01)
    assert story.says() == []
    story.later(0.01)
    story.says_one(Beat)


# Who does not answer


def test_who_does_not_answer_for_half_a_session_is_coordinator_no_longer(story: MembershipStory) -> None:
    story.member.connected(story.now_s)
    story.says_one(JoinGroup)
    assert story.member.due_s(story.now_s) == story.now_s + ANSWER_S
    story.later(ANSWER_S - 0.01)
    assert story.keeps_coordinator()
    story.later(0.01)
    assert not story.keeps_coordinator()
    story.member.disconnected(story.now_s)
    story.later(1).member.connected(story.now_s)
    story.says_one(JoinGroup)
    assert story.keeps_coordinator()


def test_each_answer_gives_the_others_as_long_again(story: MembershipStory) -> None:
    story.joined(A0)
    frame, _ = story.later(BEAT_S).says_one(Beat)
    story.processed(10)
    story.member.commit_now()
    story.says_one(CommitPositions)
    story.later(ANSWER_S - 0.01)
    story.hears(frame, Beaten())
    story.later(ANSWER_S - 0.01)
    assert story.keeps_coordinator()
    story.later(0.01)
    assert not story.keeps_coordinator(), "the commit is not answered"


def test_who_was_asked_nothing_need_not_answer(story: MembershipStory) -> None:
    story.joined(A0)
    frame, _ = story.later(10 * ANSWER_S).says_one(Beat)
    assert story.keeps_coordinator()
    assert story.member.due_s(story.now_s) == story.now_s + ANSWER_S
    story.hears(frame, Beaten())


def test_what_a_quota_holds_back_may_take_so_much_longer(story: MembershipStory) -> None:
    story.joined(A0)
    story.later(BEAT_S).says_one(Beat)
    story.member.held_back(story.now_s + 60)
    story.later(60 + ANSWER_S - 0.01)
    assert story.keeps_coordinator()
    story.later(0.01)
    assert not story.keeps_coordinator()


def test_over_another_connection_it_says_what_it_holds(story: MembershipStory) -> None:
    story.joined(A0).member.disconnected(story.now_s)
    story.later(1).member.connected(story.now_s)
    _, beat = story.says_one(Beat)
    assert beat.held == (Holding("a", 0),)


@pytest.mark.parametrize("error", [UnknownMember, FencedMemberEpoch])
def test_who_is_no_member_holds_nothing_and_joins_again(story: MembershipStory, error: type[ReplicationError]) -> None:
    story.joined(A0)
    frame, _ = story.later(BEAT_S).says_one(Beat)
    story.processed(10)
    story.hears(frame, error)
    assert (story.member.held, story.member.reads()) == ({}, [EndReading(A0, 2)])
    assert not story.member.owes(A0), "others read it again"
    story.says_one(JoinGroup)


def test_another_coordinator_is_looked_for(story: MembershipStory) -> None:
    story.joined(A0).later(BEAT_S)
    frame, _ = story.says_one(Beat)
    story.hears(frame, NotCoordinator)
    assert story.member.has_lost_coordinator
    assert story.says() == []
    assert story.member.held == {A0: 2}


def test_what_may_be_retried_is_after_a_while(story: MembershipStory) -> None:
    story.joined(A0)
    story.news(A0, A1, heard=6)
    frame, _ = story.says_one(Beat)
    story.hears(frame, NotEnoughReplicas)
    assert story.says() == []
    story.later(story.member.due_s(story.now_s) - story.now_s)
    _, beat = story.says_one(Beat)
    assert beat.held == (Holding("a", 0), Holding("a", 1))


def test_what_is_refused_for_good_ends_it(story: MembershipStory) -> None:
    story.member.connected(story.now_s)
    frame, _ = story.says_one(JoinGroup)
    story.hears(frame, GroupAuthorizationFailed)
    assert isinstance(story.member.error, GroupAuthorizationFailed)
    assert (story.member.is_over, story.says()) == (True, [])


def test_an_answer_that_nobody_waits_for_is_ignored(story: MembershipStory) -> None:
    story.joined(A0)
    story.member.answered(999, Left(), story.now_s)
    assert not story.member.is_over


# Commits


def test_commits_wait_for_each_other_and_go_together(story: MembershipStory) -> None:
    story.joined(A0, A1)
    assert (story.processed(10), story.processed(5, A1), story.processed(20)) == (True, True, True)
    assert story.says() == []
    assert story.member.due_s(story.now_s) == story.now_s + COMMIT_S
    story.later(COMMIT_S)
    frame, commit = story.says_one(CommitPositions)
    assert (commit.sequence, {(each.partition, each.offset) for each in commit.positions}) == (1, {(0, 20), (1, 5)})
    assert not commit.is_awaited
    story.processed(30)
    story.later(COMMIT_S)
    assert story.says() == [], "one at a time"
    story.hears(frame, CommitTaken())
    _, commit = story.says_one(CommitPositions)
    assert (commit.sequence, [each.offset for each in commit.positions]) == (2, [30])


def test_a_commit_that_somebody_waits_for_goes_at_once(story: MembershipStory) -> None:
    story.joined(A0)
    story.processed(10)
    story.member.commit_now()
    assert story.member.due_s(story.now_s) == 0
    frame, commit = story.says_one(CommitPositions)
    assert commit.is_awaited
    assert story.member.owes(A0)
    story.hears(frame, CommitTaken())
    assert (story.member.owes(A0), story.member.has_committed(A0, 2, 10)) == (False, True)
    assert not story.member.has_committed(A0, 2, 11)
    story.processed(11)
    assert story.says() == [], "nobody waits for this one"
    story.later(COMMIT_S)
    _, commit = story.says_one(CommitPositions)
    assert not commit.is_awaited


def test_a_commit_without_an_answer_is_sent_again(story: MembershipStory) -> None:
    story.joined(A0)
    story.processed(10)
    story.later(COMMIT_S)
    story.says_one(CommitPositions)
    story.member.disconnected(story.now_s)
    story.later(1).member.connected(story.now_s)
    again, beat = story.says()
    assert isinstance(again, CommitPositions)
    assert (again.sequence, isinstance(beat, Beat)) == (2, True)


def test_a_refused_commit_is_sent_again_if_that_may_help(story: MembershipStory) -> None:
    story.joined(A0)
    story.processed(10)
    story.later(COMMIT_S)
    frame, _ = story.says_one(CommitPositions)
    story.hears(frame, NotEnoughReplicas)
    story.later(1)
    story.says_one(CommitPositions)


def test_a_partition_that_went_to_another_is_not_held_any_longer(story: MembershipStory) -> None:
    story.joined(A0, A1)
    story.processed(10)
    story.later(COMMIT_S)
    frame, _ = story.says_one(CommitPositions)
    story.hears(frame, CommitTaken(refused=(Holding("a", 0),)))
    assert (story.member.held, story.member.reads()) == ({A1: 2}, [EndReading(A0, 2)])
    assert not story.member.has_committed(A0, 2, 10)
    assert not story.processed(20)


@pytest.mark.parametrize(("partition", "owner_epoch"), [(A1, 2), (A0, 1)])
def test_what_is_not_held_is_not_committed(story: MembershipStory, partition: TopicPartition, owner_epoch: int) -> None:
    story.joined(A0)
    assert not story.processed(10, partition, owner_epoch=owner_epoch)
    assert not story.member.owes(partition)


# Giving out, and handing over


@pytest.mark.parametrize(("partition", "owner_epoch"), [(A1, 2), (A0, 1)])
def test_only_what_is_held_is_given_out(story: MembershipStory, partition: TopicPartition, owner_epoch: int) -> None:
    story.joined(A0)
    assert not story.member.gives_out(partition, owner_epoch)
    assert story.member.gives_out(A0, 2)


def test_what_it_hands_over_it_holds_until_it_is_done_with_and_committed(story: MembershipStory) -> None:
    story.joined(A0, A1)
    assert story.member.gives_out(A0, 2)
    story.news(A1, heard=6)
    assert story.member.reads() == [EndReading(A0, 2)]
    assert not story.member.gives_out(A0, 2), "nothing more of it"
    frame, beat = story.says_one(Beat)
    assert beat.held == (Holding("a", 0), Holding("a", 1))
    story.hears(frame, Beaten())
    story.processed(10)
    story.member.done()
    frame, commit = story.says_one(CommitPositions)
    assert commit.is_awaited, "by who is to have the partition"
    assert story.member.held == {A0: 2, A1: 2}
    story.hears(frame, CommitTaken())
    assert story.member.held == {A1: 2}
    _, beat = story.says_one(Beat)
    assert (beat.held, beat.heard) == ((Holding("a", 1),), 6)


def test_what_it_hands_over_and_has_nothing_of_it_says_so_at_once(story: MembershipStory) -> None:
    story.joined(A0, A1)
    story.news(A0, heard=6)
    _, beat = story.says_one(Beat)
    assert beat.held == (Holding("a", 0),)


def test_what_was_granted_anew_is_read_anew_once_the_old_is_handed_over(story: MembershipStory) -> None:
    story.joined(A0)
    assert story.member.gives_out(A0, 2)
    story.news(A0, heard=8, owner_epoch=7)
    assert story.member.reads() == [EndReading(A0, 2)]
    story.member.done()
    assert story.member.held == {}
    story.news(A0, heard=8, owner_epoch=7)
    assert story.member.held == {A0: 7}


# Leaving


def test_it_leaves_once_what_is_done_with_is_committed(story: MembershipStory) -> None:
    story.joined(A0)
    story.processed(10)
    story.member.leave()
    assert not story.member.gives_out(A0, 2)
    frame, commit = story.says_one(CommitPositions)
    assert commit.is_awaited, "by who is to have its partitions"
    story.hears(frame, CommitTaken())
    frame, leave = story.says_one(LeaveGroup)
    assert leave == LeaveGroup(group="etl", member="x", epoch=1)
    assert story.says() == []
    story.hears(frame, Left())
    assert (story.member.is_over, story.member.held) == (True, {})


def test_who_is_no_member_has_left(story: MembershipStory) -> None:
    story.member.leave()
    story.member.connected(story.now_s)
    assert (story.says(), story.member.is_over) == ([], True)


def test_who_was_put_out_has_left(story: MembershipStory) -> None:
    story.joined(A0).member.leave()
    frame, _ = story.says_one(LeaveGroup)
    story.hears(frame, UnknownMember)
    assert story.member.is_over


def test_who_leaves_holds_nothing_new(story: MembershipStory) -> None:
    story.joined(A0).member.leave()
    story.news(A0, A1, heard=6)
    assert story.member.held == {A0: 2}

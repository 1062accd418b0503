"""How groups are stored, whatever ZooKeeper answers, and in whatever order its answers come."""

from __future__ import annotations

import pytest

from spark_replication.core.law.unreadable import Unreadable
from spark_replication.core.law.writes import (
    BrokerRemoval,
    Deposed,
    Group,
    GroupAnswer,
    Made,
    PartitionRemoval,
    PartitionWrite,
    Refused,
    RequestRemoval,
    Stored,
    StoredPartition,
    TopicRemoval,
    TopicWrite,
)
from spark_replication.errors import Overloaded, ReplicationError
from spark_replication.model import ABSENT, PartitionState, TopicPartition, TopicState, encode
from spark_replication.zk import paths
from spark_replication.zk.controller import batches, committing
from spark_replication.zk.controller.committing import Committing
from spark_replication.zk.operations import (
    EXISTS,
    Check,
    Create,
    Delete,
    Rejected,
    RejectionReason,
    SetData,
)
from spark_replication.zk.session import ConnectionLost, NotPermitted, SessionLost
from tests.unit.zk.held_zookeeper import ZooKeeper

TOPIC = TopicState(topic_id="id", partitions={0: (1,), 1: (1,)})
ORDERS = TopicPartition("orders", 0)
EPOCH_VERSION = 0
LOST = ConnectionLost("the connection went")
ENDED = SessionLost("the session has ended")


def state(leader_epoch: int = 0) -> PartitionState:
    return PartitionState(leader=1, leader_epoch=leader_epoch, isr=frozenset({1}), min_isr=1, epochs={1: 0})


def write(number: int, version: int = ABSENT, leader_epoch: int = 0, topic: str = "orders") -> PartitionWrite:
    return PartitionWrite(
        partition=TopicPartition(topic, number), state=state(leader_epoch), version=version, relies_on={}
    )


class Story:
    def __init__(self, operations_max: int = batches.MULTI_OPERATIONS_MAX) -> None:
        self.zookeeper = ZooKeeper()
        self.deposed: list[str] = []
        self.unreadable: list[Unreadable] = []
        self.committing = Committing(
            self.zookeeper, EPOCH_VERSION, self.deposed.append, self.unreadable.append, operations_max
        )

    def commit(self, *groups: Group) -> list[GroupAnswer]:
        """The answers, once they are there."""
        answers: list[GroupAnswer] = []
        self.committing.commit(groups, answers.extend)
        return answers

    def made(self, *groups: Group) -> list[GroupAnswer]:
        answers = self.commit(*groups)
        self.zookeeper.answer_all()
        return answers

    def zxid(self, path: str) -> int:
        node = self.zookeeper.tree.read(path)
        assert node is not None
        return node.zxid

    def is_there(self, path: str) -> bool:
        return self.zookeeper.tree.read(path) is not None


@pytest.fixture
def story() -> Story:
    """Topic `orders` is there, with two partitions."""
    story = Story()
    answers = story.made((TopicWrite(topic="orders", state=TOPIC),), (write(0),), (write(1),))
    assert all(isinstance(answer, Stored) for answer in answers)
    return story


def test_what_is_stored_is_told_with_versions_and_zxids(story: Story) -> None:
    made = story.made((write(0, 0, 1), write(1, 0, 1)), (TopicWrite(topic="bar", state=TOPIC),))
    first, other = paths.leader_and_isr(ORDERS), paths.topic("bar")
    assert made[0] == Stored((Made(1, story.zxid(first)), Made(1, story.zxid(first))))
    assert made[1] == Refused({}, {"bar": None}), "its id is another topic's: no condition of ours says so"
    assert not story.is_there(other)


def test_what_is_made_alone_is_told_with_its_zxid() -> None:
    story = Story()
    assert story.made((TopicWrite(topic="orders", state=TOPIC),)) == [
        Stored((Made(0, story.zxid("/brokers/topics/orders")),))
    ]


def test_a_removed_topic_has_the_zxid_of_its_removal(story: Story) -> None:
    gone = [(PartitionRemoval(partition=TopicPartition("orders", number)),) for number in range(2)]
    story.zookeeper.write(Create(paths.deletion_mark("orders")))
    answers = story.made(*gone, (TopicRemoval(topic="orders", topic_id="id"),))
    folder = story.zookeeper.tree.read(paths.TOPICS)
    assert folder is not None
    assert answers[2] == Stored((Made(zxid=folder.children_zxid),))
    assert not story.is_there(paths.topic("orders"))


def test_a_created_node_that_is_gone_again_is_told_without_a_zxid() -> None:
    story = Story()
    answers = story.commit((TopicWrite(topic="orders", state=TOPIC),))
    story.zookeeper.answer()
    (what, _, _), *_ = story.zookeeper.sent
    assert what == "stat"
    story.zookeeper.fail(None)
    assert answers == [Stored((Made(0, 0),))]


def test_a_raised_epoch_ends_all_that_waits_and_is_told_once(story: Story) -> None:
    story.zookeeper.write(SetData(paths.CONTROLLER_EPOCH, b"", EXISTS))
    first, second = story.commit((write(0, 0, 1),), (write(1, 0, 1),)), story.commit((write(0, 0, 1),))
    story.zookeeper.answer_all()
    assert (first, second) == ([Deposed(), Deposed()], [Deposed()])
    assert story.deposed == ["another controller raised /controller_epoch"]
    assert story.commit((write(0, 0, 1),)) == [Deposed()]
    assert not story.zookeeper.sent


def test_what_a_deposed_controller_had_in_flight_comes_too_late() -> None:
    story = Story(operations_max=1)
    story.made((TopicWrite(topic="orders", state=TOPIC),), (write(0),), (write(1),))
    told: list[list[GroupAnswer]] = []
    new = TopicWrite(topic="new", state=TopicState(topic_id="new", partitions={}))
    story.committing.commit([(write(0, 0, 1),), (new,)], told.append)
    story.zookeeper.fail(Rejected(0, RejectionReason.BAD_VERSION))
    assert told == [[Deposed(), Deposed()]]
    story.zookeeper.answer()
    assert not story.zookeeper.sent, "nobody asks when the topic was made"
    assert len(told) == 1


@pytest.mark.parametrize("what", ["commit", "stat", "read", "children", "strays"])
def test_a_session_that_ends_during_any_request_deposes(story: Story, what: str) -> None:
    zookeeper = story.zookeeper
    if what == "stat":
        answers = story.commit((TopicWrite(topic="new", state=TopicState(topic_id="new", partitions={})),))
        zookeeper.answer()
    elif what == "read":
        answers = story.commit((write(0, 7),))
        zookeeper.answer()
    elif what in ("children", "strays"):
        zookeeper.write(Create(f"{paths.partition(ORDERS)}/stray"))
        answers = story.commit((PartitionRemoval(partition=ORDERS),))
        zookeeper.answer()
        while what == "strays" and zookeeper.sent[0][0] == "children":
            zookeeper.answer()
    else:
        answers = story.commit((write(0, 0, 1),))
    assert zookeeper.sent[0][0] == what.replace("strays", "commit")
    zookeeper.fail(ENDED)
    assert answers == [Deposed()]
    assert story.deposed == ["the ZooKeeper session has ended"]


@pytest.mark.parametrize("after", [0, 1])
def test_an_error_of_zookeeper_deposes_with_its_words(story: Story, after: int) -> None:
    answers = story.commit((write(0, 7),))
    for _ in range(after):
        story.zookeeper.answer()
    story.zookeeper.fail(NotPermitted("it is forbidden"))
    assert answers == [Deposed()]
    (reason,) = story.deposed
    assert "it is forbidden" in reason


@pytest.mark.parametrize("stored", [True, False])
def test_a_lost_answer_is_found_out(story: Story, stored: bool) -> None:
    answers = story.commit((write(0, 0, 1),), (write(1, 0, 1),))
    story.zookeeper.fail(LOST, stored=stored)
    story.zookeeper.answer_all()
    found = story.zxid(paths.leader_and_isr(ORDERS))
    assert answers == [Stored((Made(1, found),)), Stored((Made(1, found),))]
    assert not story.deposed


def test_of_a_multi_that_is_rejected_what_can_be_stored_is(story: Story) -> None:
    story.zookeeper.write(SetData(paths.leader_and_isr(ORDERS), encode(state(4)), 0))
    refused, stored = story.made((write(0, 0, 1),), (write(1, 0, 1),))
    assert refused == Refused({ORDERS: StoredPartition(state(4), 1, story.zxid(paths.leader_and_isr(ORDERS)), 0)})
    assert isinstance(stored, Stored)


def test_nodes_below_one_that_is_to_go_go_first_children_before_parents(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committing, "STRAYS_MAX", 2)
    folder = paths.partition(ORDERS)
    for stray in ("a", "a/b", "a/b/c", "d", "e"):
        story.zookeeper.write(Create(f"{folder}/{stray}"))
    (answer,) = story.made((PartitionRemoval(partition=ORDERS),))
    assert isinstance(answer, Stored)
    assert not story.is_there(folder)


def test_strays_that_somebody_else_removes_meanwhile_are_no_trouble(story: Story) -> None:
    stray = f"{paths.partition(ORDERS)}/stray"
    story.zookeeper.write(Create(stray))
    answers = story.commit((PartitionRemoval(partition=ORDERS),))
    while story.zookeeper.sent[0][0] != "commit" or not story.is_there(stray):
        story.zookeeper.answer()
        if story.zookeeper.sent[0][0] == "commit":
            story.zookeeper.write(Delete(stray, EXISTS))
    story.zookeeper.answer_all()
    (answer,) = answers
    assert isinstance(answer, Stored)


def test_another_controller_may_come_while_strays_are_removed(story: Story) -> None:
    stray = f"{paths.partition(ORDERS)}/stray"
    story.zookeeper.write(Create(stray))
    answers = story.commit((PartitionRemoval(partition=ORDERS),))
    story.zookeeper.answer()
    story.zookeeper.write(SetData(paths.CONTROLLER_EPOCH, b"", EXISTS))
    story.zookeeper.answer_all()
    assert answers == [Deposed()]
    assert story.is_there(stray)


def test_an_answer_that_is_lost_while_strays_are_removed_is_no_trouble(story: Story) -> None:
    story.zookeeper.write(Create(f"{paths.partition(ORDERS)}/stray"))
    answers = story.commit((PartitionRemoval(partition=ORDERS),))
    story.zookeeper.answer()
    while story.zookeeper.sent[0][0] == "children":
        story.zookeeper.answer()
    story.zookeeper.fail(LOST)
    story.zookeeper.answer_all()
    (answer,) = answers
    assert isinstance(answer, Stored)


def test_what_is_rejected_for_a_reason_of_zookeepers_own_is_refused_alone(story: Story) -> None:
    removal = (RequestRemoval(path="/nowhere/at/all"),)
    answers = story.commit((write(0, 0, 1),), removal)
    operations = 3
    story.zookeeper.fail(Rejected(operations - 1, RejectionReason.OTHER))
    story.zookeeper.answer_all()
    assert isinstance(answers[0], Stored)
    assert isinstance(answers[1], (Stored, Refused))


def test_who_is_rejected_again_and_again_is_refused(story: Story) -> None:
    answers = story.commit((write(0, 0, 1),), (write(1, 0, 1),))
    for _ in range(2 * committing.ATTEMPTS_MAX + 2):
        if not story.zookeeper.sent:
            break
        what, _, _ = story.zookeeper.sent[0]
        if what == "commit":
            story.zookeeper.fail(LOST)
        else:
            story.zookeeper.answer()
    assert all(isinstance(answer, Refused) for answer in answers)
    assert len(answers) == 2


def test_what_may_not_be_read_is_refused(story: Story) -> None:
    story.zookeeper.unread.add(paths.leader_and_isr(ORDERS))
    answers = story.commit((write(0, 7),))
    story.zookeeper.answer_all()
    assert isinstance(answers[0], Refused)


def test_garbage_that_a_write_meets_is_told(story: Story) -> None:
    story.zookeeper.write(SetData(paths.leader_and_isr(ORDERS), b"garbage", EXISTS))
    story.zookeeper.write(SetData(paths.topic("orders"), b"garbage", EXISTS))
    answers = story.made((write(0, 0),), (TopicWrite(topic="orders", state=TOPIC, version=0),))
    assert all(isinstance(answer, Refused) for answer in answers)
    (met,) = story.unreadable
    assert (set(met.partitions), set(met.topics)) == ({ORDERS}, {"orders"})


def test_a_commit_begins_when_the_one_before_is_answered(story: Story) -> None:
    first, second = story.commit((write(0, 0, 1),)), story.commit((write(0, 1, 2),))
    assert len(story.zookeeper.sent) == 1
    story.zookeeper.answer_all()
    assert isinstance(first[0], Stored)
    assert isinstance(second[0], Stored)
    assert story.zookeeper.tree.read(paths.leader_and_isr(ORDERS)).version == 2  # type: ignore[union-attr]


def test_groups_that_write_the_same_node_go_one_after_the_other(story: Story) -> None:
    answers = story.commit(*((write(0, version, version + 1),) for version in range(3)))
    assert len(story.zookeeper.sent) == 1
    story.zookeeper.answer_all()
    assert [answer.made[0].version for answer in answers if isinstance(answer, Stored)] == [1, 2, 3]


@pytest.mark.parametrize("place", [0, -1])
def test_many_groups_go_several_at_once_whichever_is_answered_first(place: int) -> None:
    story = Story(operations_max=1)
    many = TopicState(topic_id="id", partitions=dict.fromkeys(range(30), (1,)))
    story.made((TopicWrite(topic="orders", state=many),))
    answers = story.commit(*((write(number),) for number in range(30)))
    story.zookeeper.answer_all(place)
    assert all(isinstance(answer, Stored) for answer in answers)
    assert len(answers) == 30
    assert story.zookeeper.most_in_flight == committing.MULTIS_IN_FLIGHT_MAX


def test_too_many_commits_are_refused_and_may_be_tried_again(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committing, "COMMITS_WAITING_MAX", 1)
    story.commit((write(0, 0, 1),))
    waits, refused = story.commit((write(0, 1, 2),)), story.commit((write(0, 2, 3),))
    assert not waits
    (answer,) = refused
    assert isinstance(answer, Refused)
    assert isinstance(answer.unstorable, Overloaded)
    story.zookeeper.answer_all()
    assert isinstance(waits[0], Stored)
    assert isinstance(story.made((write(0, 2, 3),))[0], Stored)


def test_a_group_that_no_multi_can_hold_is_refused_alone(story: Story) -> None:
    huge = tuple(write(number, topic="t" * 200) for number in range(4_000))
    refused, stored = story.made(huge, (write(0, 0, 1),))
    assert isinstance(refused, Refused)
    assert isinstance(refused.unstorable, ReplicationError)
    assert isinstance(stored, Stored)


def test_a_commit_of_nothing_is_answered(story: Story) -> None:
    told: list[list[GroupAnswer]] = []
    story.committing.commit([], told.append)
    assert told == [[]]


def test_who_is_answered_may_commit_more(story: Story) -> None:
    answers: list[GroupAnswer] = []

    def more(first: list[GroupAnswer]) -> None:
        answers.extend(first)
        story.committing.commit([(write(0, 1, 2),)], answers.extend)

    story.committing.commit([(write(0, 0, 1),)], more)
    story.zookeeper.answer_all()
    assert [answer.made[0].version for answer in answers if isinstance(answer, Stored)] == [1, 2]


def test_who_resigns_is_answered_as_zookeeper_decides_and_stores_nothing_more(story: Story) -> None:
    first, second = story.commit((write(0, 0, 1),)), story.commit((write(1, 0, 1),))
    story.committing.depose()
    story.zookeeper.answer_all()
    assert isinstance(first[0], Stored)
    assert second == [Deposed()]
    assert story.zookeeper.tree.read(paths.leader_and_isr(TopicPartition("orders", 1))).version == 0  # type: ignore[union-attr]
    assert not story.deposed, "who resigned knows it"


def test_a_broker_is_removed_at_its_epoch_only(story: Story) -> None:
    story.zookeeper.write(Create(paths.broker_id(1)), Create(paths.broker_epoch(1)))
    assert isinstance(story.made((BrokerRemoval(broker=1, epoch=3),))[0], Refused)
    assert isinstance(story.made((BrokerRemoval(broker=1, epoch=0),))[0], Stored)


def test_every_multi_checks_the_controllers_epoch(story: Story) -> None:
    story.zookeeper.write(Create(f"{paths.partition(ORDERS)}/stray"))
    story.made((write(1, 0, 1),), (PartitionRemoval(partition=ORDERS),))
    assert len(story.zookeeper.multis) > 3
    assert {operations[0] for operations in story.zookeeper.multis} == {Check(paths.CONTROLLER_EPOCH, EPOCH_VERSION)}

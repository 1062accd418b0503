"""A broker: nothing before it has read its state, nothing from a deposed controller, nothing without a session."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import Any

import pytest
from msgspec.structs import replace

from spark_replication.config import TopicSettings
from spark_replication.core.law.unreadable import ALL_READ, Unreadable
from spark_replication.core.replica.producers import OffsetSpan
from spark_replication.core.replica.replica import Following, Leading, Me
from spark_replication.engine.broker.broker_loop import READINGS_MAX, Assigned, BrokerLoop
from spark_replication.engine.broker.registered_brokers import Registered
from spark_replication.engine.replica.partition import Holds, Lock, Partition
from spark_replication.engine.replica.replica_loop import ReplicaLoop
from spark_replication.errors import (
    EpochBehindLog,
    NotReady,
    ReplicationError,
    StaleBrokerEpoch,
    StaleControllerEpoch,
    StorageFailed,
    UnknownTopicOrPartition,
)
from spark_replication.messages.commands import (
    CommandAnswer,
    GetReplicaLogInfo,
    LeaderAndIsr,
    LogInfoWanted,
    PartitionCommand,
    ReplicaLogInfo,
    ReplicaLogInfos,
    StopPartition,
    StopReplica,
    UpdateMetadata,
)
from spark_replication.messages.descriptions import (
    DescribeReplicas,
    DescribeTopics,
    FollowerLag,
    Metadata,
    ReplicaSize,
    ReplicaSizes,
    TopicMetadata,
)
from spark_replication.messages.envelope import NONE
from spark_replication.messages.replication import FetchedPartition, FetchPartition
from spark_replication.model import Scalar, TopicConfig, TopicPartition
from spark_replication.ports import PreparedBatch
from spark_replication.sim.world.one_at_a_time import OneAtATime, at_once
from tests.unit.core.stories import FOO, FOO_ID, command, registration, settings, state
from tests.unit.engine.ports_in_memory import FailingLog, Failures, HeldFlushes, IsrWrites, Links, Logs

ME = Me(1, 0, 0)
FOO_1, BAR = TopicPartition("foo", 1), TopicPartition("bar", 0)
LED = command(state(1, [1, 2]), 7)
FOLLOWED = command(state(2, [1, 2]), 7, partition=FOO_1)
ELSEWHERE = command(state(2, [2]), 7, replicas=(2, 3), partition=BAR, topic_id="id-bar")
CONFIGS = {"foo": TopicConfig(schema="foo's"), "bar": TopicConfig(schema="bar's")}
LATER_ID = "id-foo-later"
LIVE = {1: registration(1), 2: registration(2)}


class Story:
    def __init__(self, locks: Callable[[], Lock] = OneAtATime) -> None:
        self.logs, self.links, self.isr_store, self.failures = Logs(), Links(), IsrWrites(), Failures()
        self.now_ms = 0
        self.loop = BrokerLoop(
            "cluster",
            logs=self.logs,
            isr_store=self.isr_store,
            links=self.links,
            flusher=HeldFlushes(),
            failures=self.failures,
            settings=settings(),
            locks=locks,
            post=at_once,
            now_ms=lambda: self.now_ms,
        )

    def registered(
        self,
        *known: PartitionCommand,
        me: Me = ME,
        configs: dict[str, TopicConfig] = CONFIGS,
        settings_of_cluster: Mapping[str, Scalar] | None = MappingProxyType({}),
        controller_epoch: int = -1,
        unreadable: Unreadable = ALL_READ,
        unmade: tuple[TopicPartition, ...] = (),
        clock_ahead_ms: int = 0,
    ) -> dict[str, str]:
        return self.loop.registered(
            me,
            known,
            configs,
            LIVE,
            settings=settings_of_cluster,
            controller_epoch=controller_epoch,
            unreadable=unreadable,
            unmade=unmade,
            clock_ahead_ms=clock_ahead_ms,
        )

    def parts(self) -> dict[TopicPartition, str]:
        return {partition: type(found.part).__name__ for partition, found in self.loop.replicas.items()}

    def log(self, partition: TopicPartition = FOO, topic_id: str = FOO_ID) -> FailingLog:
        return self.logs.logs[partition, topic_id]


def leader_and_isr(*partitions: PartitionCommand, controller_epoch: int = 1) -> LeaderAndIsr:
    return LeaderAndIsr(controller_epoch=controller_epoch, partitions=partitions, topics=CONFIGS, brokers=LIVE)


def update(*partitions: PartitionCommand, controller_epoch: int = 1, number: int = 1, **others: Any) -> UpdateMetadata:
    told: dict[str, Any] = {"brokers": LIVE, "topics": CONFIGS} | others
    return UpdateMetadata(controller_epoch=controller_epoch, number=number, partitions=partitions, **told)


def stop(topic_id: str = FOO_ID, *, delete: bool = True, controller_epoch: int = 1, **others: Any) -> StopReplica:
    known = {"leader_epoch": 4} | others
    stopped = StopPartition(topic="foo", partition=0, topic_id=topic_id, delete=delete, **known)
    return StopReplica(controller_epoch=controller_epoch, partitions=(stopped,))


def ask(*wanted: TopicPartition, topic_id: str = FOO_ID, controller_epoch: int = 1) -> GetReplicaLogInfo:
    partitions = tuple(
        LogInfoWanted(topic=name, partition=number, topic_id=topic_id, leader_epoch=4) for name, number in wanted
    )
    return GetReplicaLogInfo(controller_epoch=controller_epoch, partitions=partitions)


def test_who_registers_again_leads_under_that_registration_alone() -> None:
    """Though nobody said that the earlier one was over, or that came before what had been read under it."""
    story = Story()
    story.registered(LED)
    story.registered(LED, me=replace(ME, epoch=ME.epoch + 1))
    part = story.loop.partition(FOO).unguarded.part
    assert isinstance(part, Leading)
    assert part.broker_epoch == ME.epoch + 1


def test_who_asks_for_metadata_waits_for_no_command_and_sees_it_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that opens a log may wait for a disk."""
    story = Story()
    story.registered(LED)
    seen: list[Metadata] = []
    opened = story.logs.open

    def opening(*of: Any) -> FailingLog:
        seen.append(story.loop.metadata(None, None))
        assert story.loop.topics(DescribeTopics(topics=None), lambda _topic: True).topics
        return opened(*of)

    monkeypatch.setattr(story.logs, "open", opening)
    story.loop.leader_and_isr(leader_and_isr(FOLLOWED, ELSEWHERE))
    led = replace(LED, partition_epoch=LED.partition_epoch + 1)
    story.loop.leader_and_isr(leader_and_isr(led))
    after = story.loop.metadata(None, None)
    assert [found.partitions for found in (*seen[0].topics, *after.topics)] == [(LED,), (led,)]


def test_clients_are_told_of_no_partition_before_they_can_be_told_of_all() -> None:
    """Whoever counts fewer places keys elsewhere, and reads fewer."""
    story = Story()
    story.registered()
    story.loop.leader_and_isr(leader_and_isr(FOLLOWED))
    assert story.parts() == {FOO_1: "Following"}
    assert story.loop.metadata(None, None).topics == ()
    story.loop.update_metadata(update(LED, FOLLOWED))
    assert story.loop.metadata(["foo"], None).topics == (topic("foo", LED, FOLLOWED, topic_id=FOO_ID),)
    again = replace(FOLLOWED, topic_id=LATER_ID)
    story.loop.leader_and_isr(leader_and_isr(again))
    assert story.loop.metadata(["foo"], None).topics == (topic("foo", LED, FOLLOWED, topic_id=FOO_ID),), "as one topic"
    story.loop.update_metadata(update(replace(LED, topic_id=LATER_ID), again, number=2))
    (found,) = story.loop.metadata(["foo"], None).topics
    assert (found.topic_id, found.numbers) == (LATER_ID, (0, 1))


def test_a_command_for_another_life_of_the_broker_is_refused() -> None:
    story = Story()
    story.registered(LED)
    for life in (ME.epoch - 1, ME.epoch + 1):
        with pytest.raises(StaleBrokerEpoch):
            story.loop.leader_and_isr(replace(leader_and_isr(FOLLOWED), broker_epoch=life))
    story.loop.leader_and_isr(replace(leader_and_isr(FOLLOWED), broker_epoch=ME.epoch))
    assert story.parts() == {FOO: "Leading", FOO_1: "Following"}


def test_what_is_to_be_led_is_led_before_anything_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story()
    story.registered()
    before: list[dict[TopicPartition, str]] = []
    monkeypatch.setattr(story.links, "follow", lambda _partition, _leader: before.append(story.parts()))
    answer = story.loop.leader_and_isr(leader_and_isr(FOLLOWED, LED))
    assert answer.errors == {"foo-0": NONE, "foo-1": NONE}
    assert [parts[FOO] for parts in before] == ["Leading"]


def test_what_follows_from_a_command_for_many_partitions_is_said_together() -> None:
    """Otherwise the loop of the connections is woken for each of them: see SocketLoop.together."""
    story = Story()
    said: list[list[bool]] = []

    def done() -> None:
        said.append(list(story.links.said))
        story.links.said.clear()

    story.registered(LED, FOLLOWED)
    done()
    leads = replace(LED, state=replace(LED.state, leader=2, leader_epoch=5))
    story.loop.leader_and_isr(leader_and_isr(leads))
    done()
    story.loop.replica_log_info(ask(FOO_1))
    done()
    story.loop.stop_replica(stop(delete=False, leader_epoch=5))
    done()
    story.loop.initialized((), lambda: ([], ALL_READ))
    done()
    story.registered(LED)
    done()
    story.loop.session_lost()
    done()
    assert all(each and all(each) for each in said), said


def test_what_a_tick_tells_the_followers_of_many_partitions_is_said_together() -> None:
    story = Story()
    story.registered(LED)
    with story.loop.partition(FOO) as replica:
        replica.produce(PreparedBatch(3, b"x", 0, b""), acks=1, now_ms=0, acknowledge=lambda _answer: None)
        asked = FetchPartition(
            topic="foo", partition=0, topic_id=FOO_ID, leader_epoch=4, offset=3, last_epoch=4, clean_since=0
        )
        replica.fetch(asked, by=2, broker_epoch=0, now_ms=0)  # the high watermark rises, and it waits for records
    story.links.said.clear()
    story.loop.tick(1, looks=False)
    assert story.links.said == [True]


AHEAD_MS = 25 * 3_600_000
YOUNG = {**CONFIGS, "foo": TopicConfig(schema="foo's", settings={"retention.ms": 5})}


def written(story: Story, producer: int, sequence: int, *, now_ms: int) -> list[OffsetSpan | ReplicationError]:
    answers: list[OffsetSpan | ReplicationError] = []
    batch = PreparedBatch(1, b"x", 0, b"", producer, 0, sequence)
    with story.loop.partition(FOO) as replica:
        replica.produce(batch, acks=1, now_ms=now_ms, acknowledge=answers.append)
    return answers


@pytest.mark.parametrize("known_before", [False, True])
@pytest.mark.parametrize("hidden", [False, True])
def test_a_broker_whose_clock_is_not_zookeepers_removes_nothing_because_of_its_age(
    *, known_before: bool, hidden: bool
) -> None:
    story = Story()
    alone = command(state(1, [1], min_isr=1), 7)
    if known_before or hidden:  # by an earlier registration, when the clock was right
        story.registered(alone, configs=YOUNG)
    if hidden:  # and it is read later
        foo = Unreadable(topics=frozenset({"foo"}))
        story.registered(configs={}, unreadable=foo, clock_ahead_ms=AHEAD_MS)
        story.loop.read_hidden(ME, ([alone], ALL_READ))
    else:
        story.registered(alone, configs=YOUNG, clock_ahead_ms=AHEAD_MS)
    story.log().rows_per_segment = 1
    assert written(story, 8, 0, now_ms=0) == [OffsetSpan(0, 0)]
    assert written(story, 9, 0, now_ms=AHEAD_MS) == [OffsetSpan(1, 1)]
    story.loop.tick(AHEAD_MS, looks=True)
    assert story.log().log_start == 0
    assert written(story, 8, 0, now_ms=AHEAD_MS) == [OffsetSpan(0, 0)], "sent again, and stored once"
    story.registered(alone, configs=YOUNG, me=replace(ME, epoch=ME.epoch + 1))
    story.loop.tick(2 * AHEAD_MS, looks=True)
    assert story.log().log_start == 1, "the clock was set right"


def noting(held: list[TopicPartition]) -> Holds:
    """Waits, and notes which partitions were held."""

    @contextmanager
    def holds(partition: Partition) -> Iterator[ReplicaLoop | None]:
        held.append(partition.topic_partition)
        with partition as replica:
            yield replica

    return holds


def test_a_tick_holds_no_partition_that_is_idle_but_to_look_who_lags() -> None:
    story = Story()
    story.registered(LED, FOLLOWED)
    held: list[TopicPartition] = []

    def ticked(*, looks: bool = False) -> list[TopicPartition]:
        held.clear()
        story.loop.tick(1, looks=looks, holds=noting(held))
        return list(held)

    assert ticked() == []
    assert ticked(looks=True) == [FOO]
    asked = FetchPartition(
        topic="foo", partition=0, topic_id=FOO_ID, leader_epoch=4, offset=0, last_epoch=4, clean_since=0
    )
    with story.loop.partition(FOO) as replica:
        replica.fetch(asked, by=2, broker_epoch=0, now_ms=0)
    assert ticked() == [FOO], "its high watermark may be older"
    assert ticked() == []
    with story.loop.partition(FOO) as replica:
        replica.produce(PreparedBatch(3, b"x", 0, b""), acks=1, now_ms=0, acknowledge=lambda _answer: None)
        replica.take_answer(2, 0)
    assert ticked() == [], "the high watermark has not moved"
    with story.loop.partition(FOO) as replica:
        replica.fetch(replace(asked, offset=3), by=2, broker_epoch=0, now_ms=0)
    assert ticked() == [FOO]


def test_a_checkpoint_holds_no_partition_whose_high_watermark_was_saved() -> None:
    story = Story()
    story.registered(LED, FOLLOWED)
    held: list[TopicPartition] = []

    def checkpointed() -> list[TopicPartition]:
        held.clear()
        story.loop.checkpoint(noting(held))
        return list(held)

    assert checkpointed() == []
    asked = FetchPartition(
        topic="foo", partition=0, topic_id=FOO_ID, leader_epoch=4, offset=3, last_epoch=4, clean_since=0
    )
    with story.loop.partition(FOO) as replica:
        replica.produce(PreparedBatch(3, b"x", 0, b""), acks=1, now_ms=0, acknowledge=lambda _answer: None)
    assert checkpointed() == [], "nothing is committed"
    with story.loop.partition(FOO) as replica:
        replica.fetch(asked, by=2, broker_epoch=0, now_ms=0)
    assert checkpointed() == [FOO]
    assert story.log().high_watermark == 3
    assert checkpointed() == []
    assert len(story.logs.saved) == 4, "lines that the disk refused before are tried each time"


def refused(story: Story, error: type[ReplicationError], *, controller_epoch: int = 1) -> None:
    with pytest.raises(error):
        story.loop.leader_and_isr(leader_and_isr(LED, controller_epoch=controller_epoch))
    with pytest.raises(error):
        story.loop.update_metadata(update(LED, controller_epoch=controller_epoch))
    with pytest.raises(error):
        story.loop.stop_replica(stop(controller_epoch=controller_epoch))
    with pytest.raises(error):
        story.loop.replica_log_info(ask(FOO, controller_epoch=controller_epoch))


def test_before_it_has_read_its_state_it_is_not_ready() -> None:
    story = Story()
    refused(story, NotReady)
    assert story.parts() == {}


def test_once_registered_it_leads_and_follows_as_zookeeper_says() -> None:
    story = Story()
    assert story.registered(LED, FOLLOWED, ELSEWHERE) == {"foo-0": NONE, "foo-1": NONE}
    assert story.parts() == {FOO: "Leading", FOO_1: "Following"}
    assert story.links.following == {FOO_1: 2}
    answer = story.loop.leader_and_isr(leader_and_isr(LED))
    assert answer == CommandAnswer(broker_epoch=0, errors={"foo-0": NONE})


def test_a_leader_that_lost_its_log_since_it_joined_does_not_lead_whoever_asks() -> None:
    story, me = Story(), Me(1, 5, 5)
    story.registered(LED, me=me)
    assert story.parts() == {FOO: "NoneType"}
    story.loop.leader_and_isr(leader_and_isr(command(LED.state, 8)))
    assert story.parts() == {FOO: "NoneType"}


def test_where_zookeeper_is_as_of_an_earlier_time_its_controller_is_obeyed_and_later_logs_are_told_of() -> None:
    story = Story()
    story.registered(command(state(1, [1, 2], leader_epoch=7), 7), controller_epoch=9)
    refused(story, StaleControllerEpoch, controller_epoch=8)
    story.loop.session_lost()
    earlier = command(state(1, [1, 2], leader_epoch=5), 3)
    assert story.registered(earlier, controller_epoch=2) == {"foo-0": EpochBehindLog.code}
    answer = story.loop.leader_and_isr(leader_and_isr(earlier, controller_epoch=3))
    assert answer == CommandAnswer(broker_epoch=0, errors={"foo-0": EpochBehindLog.code}, last_epochs={"foo-0": 7})
    assert story.parts() == {FOO: "NoneType"}
    above = command(state(1, [1], leader_epoch=8), 4)
    assert story.loop.leader_and_isr(leader_and_isr(above, controller_epoch=3)).errors == {"foo-0": NONE}
    assert story.parts() == {FOO: "Leading"}


def test_commands_of_a_deposed_controller_are_refused() -> None:
    story = Story()
    story.registered(LED)
    story.loop.update_metadata(update(controller_epoch=3))
    refused(story, StaleControllerEpoch, controller_epoch=2)
    assert story.parts() == {FOO: "Leading"}
    assert story.loop.update_metadata(update(controller_epoch=3)) == CommandAnswer(broker_epoch=0)


def test_a_lost_session_ends_every_leadership_and_every_following() -> None:
    story = Story()
    story.registered(LED, FOLLOWED)
    answers: list[OffsetSpan | ReplicationError] = []
    story.loop.partition(FOO).unguarded.produce(
        PreparedBatch(1, b"x", 0, b""), acks="all", now_ms=0, acknowledge=answers.append
    )
    story.loop.session_lost()
    assert (story.parts(), story.links.following) == ({FOO: "NoneType", FOO_1: "NoneType"}, {})
    (error,) = answers
    assert isinstance(error, ReplicationError)
    assert (error.code, error.maybe_written) == ("NOT_LEADER_OR_FOLLOWER", True)
    refused(story, NotReady)
    # It leads on, in the same epoch, only where ZooKeeper says so again.
    story.registered(command(state(2, [1, 2], leader_epoch=5), 8), FOLLOWED, me=Me(1, 1, 0))
    assert story.parts() == {FOO: "Following", FOO_1: "Following"}


def test_a_disk_that_keeps_no_high_watermark_keeps_no_broker_from_stopping() -> None:
    story = Story()
    story.registered(LED)
    story.logs.takes_high_watermarks = False
    with pytest.raises(StorageFailed):
        story.loop.checkpoint()
    story.logs.takes_high_watermarks = True
    story.loop.checkpoint()
    assert story.logs.saved == [False]
    story.logs.takes_high_watermarks = False
    assert story.loop.close() == {}


def test_what_is_gone_after_the_next_registration_is_put_aside_and_not_known_any_longer() -> None:
    story = Story()
    story.registered(LED, ELSEWHERE)
    log = story.log()
    story.loop.session_lost()
    assert story.registered(configs={}) == {}
    assert (story.parts(), story.logs.quarantined, log.closed) == ({}, [(FOO, FOO_ID)], True)
    assert story.logs.asked == [], "nobody asked to delete it"
    assert story.loop.metadata(None, None).topics == ()
    with pytest.raises(UnknownTopicOrPartition, match="knows no topic foo"):
        story.loop.config("foo")


def test_a_directory_that_is_not_assigned_is_put_aside_and_the_present_one_served() -> None:
    story = Story()
    story.logs.open(FOO, "old", settings())
    story.registered(LED)
    assert (story.logs.quarantined, story.parts()) == ([(FOO, "old")], {FOO: "Leading"})


def test_one_sick_partition_keeps_no_other_from_starting() -> None:
    story = Story()
    story.logs.sick = frozenset({FOO})
    assert story.registered(LED, FOLLOWED) == {"foo-0": "KAFKA_STORAGE_ERROR", "foo-1": NONE}
    assert (story.parts(), story.failures.told) == ({FOO_1: "Following"}, [FOO]), "the controller hears of it (B4)"
    story.logs.sick = frozenset()
    assert story.loop.leader_and_isr(leader_and_isr(LED)).errors == {"foo-0": NONE}
    assert story.parts() == {FOO_1: "Following", FOO: "Leading"}


def test_a_partition_of_a_topic_without_config_is_asked_for_again() -> None:
    story = Story()
    story.registered()
    baz = command(state(1, [1]), partition=TopicPartition("baz", 0))
    assert story.loop.leader_and_isr(leader_and_isr(baz)).errors == {"baz-0": "UNKNOWN_TOPIC_OR_PARTITION"}


def test_a_topic_made_again_starts_with_another_log_and_the_old_one_does_not_come_back() -> None:
    story = Story()
    story.registered(LED)
    old = story.log()
    again = command(state(2, [1, 2], leader_epoch=0), 0, topic_id=LATER_ID)
    assert story.loop.leader_and_isr(leader_and_isr(again)).errors == {"foo-0": NONE}
    assert (story.logs.quarantined, old.closed) == ([(FOO, FOO_ID)], True)
    assert isinstance(story.loop.partition(FOO).unguarded.part, Following)
    late = command(state(1, [1, 2], leader_epoch=9), 9)
    assert story.loop.leader_and_isr(leader_and_isr(late)).errors == {"foo-0": NONE}
    assert (story.loop.partition(FOO).unguarded.topic_id, story.logs.quarantined) == (LATER_ID, [(FOO, FOO_ID)])


def test_of_a_deleted_topic_the_id_is_remembered() -> None:
    story = Story()
    story.registered(command(LED.state, 7, topic_id=LATER_ID))
    story.loop.stop_replica(stop(LATER_ID))
    story.loop.update_metadata(update(deleted=("foo",)))
    late = leader_and_isr(command(state(1, [1, 2], leader_epoch=9), 9))
    assert story.loop.leader_and_isr(late).errors == {"foo-0": NONE}
    assert story.parts() == {}


def test_what_it_is_known_to_have_left_does_not_come_back_by_an_older_command() -> None:
    story = Story()
    story.registered(LED)
    moved = command(state(2, [2, 3], leader_epoch=5), 9, replicas=(2, 3))
    story.loop.update_metadata(update(moved))
    story.loop.stop_replica(stop(leader_epoch=5, partition_epoch=8))
    assert story.loop.leader_and_isr(leader_and_isr(command(LED.state, 8))).errors == {"foo-0": NONE}
    assert story.parts() == {}
    # It is assigned again, which is newer.
    assert story.loop.leader_and_isr(leader_and_isr(command(state(2, [2], leader_epoch=5), 10))).errors
    assert story.parts() == {FOO: "Following"}


def test_what_is_older_and_names_it_still_is_for_its_replica_to_judge() -> None:
    story = Story()
    story.registered(LED)
    story.loop.update_metadata(update(command(state(2, [1, 2], leader_epoch=5), 9)))
    story.loop.leader_and_isr(leader_and_isr(command(state(1, [1], elr=[2]), 8)))
    assert story.loop.partition(FOO).unguarded.order == (4, 8)


@pytest.mark.parametrize(
    ("created", "quarantined"),
    [(4, []), (5, [(FOO, FOO_ID)])],
)
def test_a_log_from_before_the_partition_was_made_again_is_put_aside(
    created: int, quarantined: list[tuple[TopicPartition, str]]
) -> None:
    story = Story()
    story.registered(LED)
    old = story.log()
    again = command(state(2, [1, 2], leader_epoch=6, created=created), 9)
    assert story.loop.leader_and_isr(leader_and_isr(again)).errors == {"foo-0": NONE}
    assert (story.logs.quarantined, old.closed, story.log() is old) == (quarantined, bool(quarantined), not quarantined)
    assert story.parts() == {FOO: "Following"}


@pytest.mark.parametrize("leader", [1, 2, None])
def test_of_a_partition_that_was_made_again_above_a_table_nothing_of_before_is_kept(leader: int | None) -> None:
    """Not even what begins with a batch at its start (TB5)."""
    story = Story()
    story.registered(LED)
    written(story, -1, -1, now_ms=0)
    isr = [] if leader is None else [leader]
    made_again = state(leader, isr, min_isr=1, leader_epoch=6, created=6, start_at=1)
    for partition_epoch in (9, 10):
        story.loop.leader_and_isr(leader_and_isr(command(made_again, partition_epoch)))
        log = story.log()
        assert (log.log_start, log.log_end, log.epochs.first_epoch) == (1, 1, 6)
        assert story.logs.quarantined == [(FOO, FOO_ID)]


@pytest.mark.parametrize(("created", "quarantined"), [(4, []), (5, [(FOO, FOO_ID)])])
def test_a_log_without_records_says_which_life_of_the_partition_it_is_of(
    created: int, quarantined: list[tuple[TopicPartition, str]]
) -> None:
    """It begins anew at its leader's start, as a log of the partition that was made at leader epoch 4."""
    story = Story()
    story.registered(command(state(2, [2], created=4), 7))
    replica = story.loop.partition(FOO).unguarded
    fetch = replica.next_fetch()
    assert fetch is not None
    answer = FetchedPartition(topic="foo", partition=0, topic_id=FOO_ID, leader_epoch=4, log_start=20)
    replica.fetch_answered(fetch, answer, None)
    assert (replica.log.log_start, replica.log.log_end, replica.log.epochs.first_epoch) == (20, 20, 4)
    story.loop.leader_and_isr(leader_and_isr(command(state(2, [2], leader_epoch=6, created=created), 9)))
    assert story.logs.quarantined == quarantined


@pytest.mark.parametrize(("created", "quarantined"), [(0, []), (1, [(FOO, FOO_ID)])])
def test_a_log_without_records_of_which_nothing_says_that_goes_if_the_partition_was_made_again(
    created: int, quarantined: list[tuple[TopicPartition, str]]
) -> None:
    story = Story()
    story.registered(command(state(2, [2]), 7))
    story.log().begin_anew(20)
    assert story.log().epochs == ()
    story.loop.leader_and_isr(leader_and_isr(command(state(2, [2], leader_epoch=6, created=created), 9)))
    assert story.logs.quarantined == quarantined


def test_a_log_that_begins_with_the_partition_made_again_or_is_empty_stays() -> None:
    story = Story()
    story.registered(command(state(2, [1, 2], created=4), 7))
    log = story.log()
    story.loop.leader_and_isr(leader_and_isr(command(state(1, [1, 2], leader_epoch=5, created=4), 8)))
    story.loop.leader_and_isr(leader_and_isr(command(state(1, [1], elr=[2], leader_epoch=5, created=4), 9)))
    assert (story.logs.quarantined, story.log() is log) == ([], True)


@pytest.mark.parametrize(("delete", "quarantined"), [(True, [(FOO, FOO_ID)]), (False, [])])
def test_a_replica_is_stopped_and_put_aside_where_it_is_deleted(
    delete: bool, quarantined: list[tuple[TopicPartition, str]]
) -> None:
    story = Story()
    story.registered(LED)
    log = story.log()
    assert story.loop.stop_replica(stop(delete=delete)).errors == {"foo-0": NONE}
    assert (story.parts(), story.logs.quarantined, log.closed) == ({}, quarantined, True)
    assert story.logs.asked == quarantined
    with pytest.raises(UnknownTopicOrPartition, match="foo-0 is not on this broker"):
        story.loop.partition(FOO)
    assert story.loop.stop_replica(stop(delete=delete)).errors == {"foo-0": NONE}  # again: it is done


def test_who_stops_an_earlier_topic_of_that_name_stops_nothing() -> None:
    story = Story()
    story.registered(LED)
    assert story.loop.stop_replica(stop("old")).errors == {"foo-0": NONE}
    assert story.parts() == {FOO: "Leading"}


@pytest.mark.parametrize(
    ("stopped", "stops"),
    [
        ({"leader_epoch": 3}, False),
        ({"leader_epoch": 4}, True),  # whatever the partition epoch
        ({"leader_epoch": 5, "partition_epoch": 2}, True),
        ({"leader_epoch": 4, "partition_epoch": 6}, False),
        ({"leader_epoch": 4, "partition_epoch": 7}, True),
    ],
)
def test_who_was_told_something_later_than_the_stop_does_not_stop(stopped: dict[str, Any], stops: bool) -> None:
    story = Story()
    story.registered(LED)
    assert story.loop.stop_replica(stop(**stopped)).errors == {"foo-0": NONE}
    assert story.parts() == ({} if stops else {FOO: "Leading"})


def test_it_tells_of_its_logs_and_of_what_it_has_none() -> None:
    story = Story()
    story.registered(LED, FOLLOWED)
    known: dict[str, Any] = {"topic": "foo", "topic_id": FOO_ID}
    assert story.loop.replica_log_info(ask(FOO_1, FOO, TopicPartition("foo", 2))) == ReplicaLogInfos(
        broker_epoch=0,
        partitions=(
            ReplicaLogInfo(partition=1, current_epoch=4, **known),
            ReplicaLogInfo(partition=0, current_epoch=4, **known),
            ReplicaLogInfo(partition=2, error="UNKNOWN_TOPIC_OR_PARTITION", **known),
        ),
    )
    assert story.links.following == {}, "what it told must not go stale"
    (other,) = story.loop.replica_log_info(ask(FOO, topic_id="another")).partitions
    assert (other.error, other.topic_id) == ("UNKNOWN_TOPIC_OR_PARTITION", "another")


def test_a_controlled_stop_flushes_every_log_and_says_which_it_could_not() -> None:
    story = Story()
    story.registered(LED, FOLLOWED)
    logs = [story.log(), story.log(FOO_1)]
    logs[0].failing = frozenset({"flush"})
    assert {partition: error.code for partition, error in story.loop.close().items()} == {FOO: "KAFKA_STORAGE_ERROR"}
    assert [log.closed for log in logs] == [True, True]
    assert (story.parts(), story.loop.me) == ({}, None)


@pytest.mark.parametrize("has_read", [False, True], ids=["has read nothing yet", "could not read who has it"])
def test_a_controlled_stop_vouches_for_a_log_of_an_earlier_process_too(has_read: bool) -> None:
    """Nobody else flushes it."""
    story = Story()
    left = story.logs.open(FOO_1, FOO_ID, settings())
    left.begin_epoch(0)
    left.append(PreparedBatch(3, b"x", 0, b""), leader_epoch=0, timestamp_ms=0)
    if has_read:
        story.registered(LED, unreadable=Unreadable(partitions=frozenset({FOO_1})))
    assert story.loop.close() == {}
    assert (left.flushed_end, left.closed) == (left.log_end, True)


def test_a_controlled_stop_vouches_for_what_is_left_of_another_topic_by_that_name() -> None:
    story = Story()
    story.registered(LED)
    left = story.logs.open(FOO, LATER_ID, settings())
    assert story.loop.close() == {}
    assert (left.closed, story.log().closed) == (True, True)


def test_a_stop_is_not_clean_while_a_log_cannot_be_opened() -> None:
    story = Story()
    story.logs.open(FOO, FOO_ID, settings())
    story.logs.sick = frozenset({FOO})
    story.registered(LED)
    assert {partition: error.code for partition, error in story.loop.close().items()} == {FOO: "KAFKA_STORAGE_ERROR"}


def topic(name: str, *partitions: PartitionCommand, topic_id: str) -> TopicMetadata:
    return TopicMetadata(name=name, topic_id=topic_id, config=CONFIGS[name], partitions=partitions)


def test_it_tells_of_topics_what_it_knows() -> None:
    story = Story()
    story.registered(FOLLOWED, LED, ELSEWHERE)
    foo, bar = topic("foo", LED, FOLLOWED, topic_id=FOO_ID), topic("bar", ELSEWHERE, topic_id="id-bar")
    everything = Metadata(cluster_id="cluster", brokers=LIVE, controller="host:1", topics=(bar, foo))
    assert story.loop.metadata(None, "host:1") == everything
    assert story.loop.metadata(["foo", "baz"], None).topics == (foo,)
    of_foo_1 = topic("foo", FOLLOWED, topic_id=FOO_ID)
    assert story.loop.metadata(["foo", "bar"], None, {"foo": (1, 7)}).topics == (bar, of_foo_1)
    assert story.loop.metadata(["bar"], None, {"foo": (1,)}).topics == (bar,), "of what is asked for"
    assert story.loop.config("bar").schema == "bar's"
    story.loop.read_brokers(lambda: ({2: registration(2)}, ALL_READ))
    assert story.loop.metadata([], None).brokers == {2: registration(2)}


def test_a_topic_whose_partitions_are_not_made_yet_is_not_told_of() -> None:
    """Whoever reads all of its partitions would be done at once."""
    story = Story()
    story.registered()
    assert story.loop.config("foo") == CONFIGS["foo"]
    assert story.loop.metadata(["foo"], None).topics == ()


def test_what_is_older_never_replaces_what_is_newer_and_a_deleted_topic_is_forgotten() -> None:
    story = Story()
    story.registered(ELSEWHERE)
    older = command(state(2, [2, 3]), 6, replicas=(2, 3), partition=BAR, topic_id="id-bar")
    newer = command(state(2, [2, 3]), 8, replicas=(2, 3), partition=BAR, topic_id="id-bar")
    story.loop.update_metadata(update(older, number=1))
    assert story.loop.metadata(["bar"], None).topics == (topic("bar", ELSEWHERE, topic_id="id-bar"),)
    story.loop.update_metadata(update(newer, number=2))
    assert story.loop.metadata(["bar"], None).topics == (topic("bar", newer, topic_id="id-bar"),)
    story.loop.update_metadata(update(number=3, removed=(BAR, FOO)))
    assert story.loop.metadata(["bar"], None).topics == ()
    story.loop.update_metadata(update(LED, number=4, deleted=("bar",)))
    assert [known.name for known in story.loop.metadata(None, None).topics] == ["foo"]


@pytest.mark.parametrize(("controller_epoch", "number"), [(1, 8), (1, 9), (0, 10)])
def test_metadata_that_comes_late_changes_nothing(controller_epoch: int, number: int) -> None:
    story = Story()
    story.registered(ELSEWHERE)
    story.loop.update_metadata(update(number=9))
    known = story.loop.metadata(None, None)
    late = update(controller_epoch=controller_epoch, number=number, brokers={}, topics={}, deleted=("bar",))
    with suppress(StaleControllerEpoch):
        story.loop.update_metadata(late)
    assert story.loop.metadata(None, None) == known


def test_the_numbers_of_another_controller_begin_anew() -> None:
    story = Story()
    story.registered(LED, ELSEWHERE)
    story.loop.update_metadata(update(number=9))
    story.loop.update_metadata(update(controller_epoch=2, number=1, deleted=("bar",)))
    assert [known.name for known in story.loop.metadata(None, None).topics] == ["foo"]


def test_settings_are_taken_from_a_command_to_lead_only_if_its_topic_is_new() -> None:
    story = Story()
    changed = {"foo": TopicConfig(schema="changed")}
    story.registered(LED)
    story.loop.leader_and_isr(replace(leader_and_isr(LED), topics=changed))
    assert story.loop.metadata(["foo"], None).topics[0].config == CONFIGS["foo"], "it may be late"
    again = replace(LED, topic_id=LATER_ID)
    story.loop.leader_and_isr(replace(leader_and_isr(again), topics=changed))
    assert story.loop.metadata(["foo"], None).topics[0].config == changed["foo"]


def test_a_late_command_of_a_topic_that_is_no_more_brings_back_nothing() -> None:
    story = Story()
    story.registered(LED)
    story.loop.update_metadata(update(topics={}, deleted=("foo",)))
    story.loop.leader_and_isr(leader_and_isr(LED))
    assert "foo" not in [known.name for known in story.loop.metadata(None, None).topics]


def test_what_a_new_controller_does_not_know_is_gone_and_what_it_knows_of_later_stays() -> None:
    story = Story()
    newer = command(state(2, [2], leader_epoch=5), 9, replicas=(2, 3), partition=BAR, topic_id="id-bar")
    story.registered(LED, newer)
    whole = update(ELSEWHERE, FOLLOWED, complete=True)
    story.loop.update_metadata(replace(whole, topics={"bar": CONFIGS["bar"]}))
    assert story.loop.metadata(None, None).topics == (topic("bar", newer, topic_id="id-bar"),)
    assert story.parts() == {FOO: "Leading"}, "what is here is for the assignment in ZooKeeper to say"


def test_what_is_here_and_not_assigned_any_longer_goes_once_that_was_read() -> None:
    story = Story()
    story.loop.initialized((), lambda: ([], ALL_READ))  # before it has registered: that reads the same
    story.registered(LED, FOLLOWED)
    story.loop.initialized([LED], lambda: ([LED, FOLLOWED, ELSEWHERE], ALL_READ))
    assert story.logs.quarantined == []
    elsewhere = command(FOLLOWED.state, 8, replicas=(2, 3), partition=FOO_1)
    story.loop.initialized([LED, FOLLOWED], lambda: ([LED, elsewhere], ALL_READ))
    assert story.logs.quarantined == [], "all that is here was told of: nothing was read"
    story.loop.initialized([LED, elsewhere], lambda: ([LED, elsewhere], ALL_READ))
    assert (story.parts(), story.logs.quarantined) == ({FOO: "Leading"}, [(FOO_1, FOO_ID)])


def test_what_may_be_assigned_for_all_that_can_be_read_stays_where_it_is() -> None:
    story = Story()
    story.registered(LED, FOLLOWED)
    hidden = Unreadable(partitions=frozenset({FOO_1}))
    story.loop.initialized([LED], lambda: ([LED], hidden))
    assert story.logs.quarantined == []
    story.loop.session_lost()
    assert story.registered(LED, me=Me(1, 1, 0), unreadable=hidden) == {"foo-0": NONE}
    assert story.logs.quarantined == []
    assert story.parts() == {FOO: "Leading", FOO_1: "NoneType"}, "it follows nobody until it is told to"
    assert {each.topic_partition for each in story.loop.metadata(["foo"], None).topics[0].partitions} == {FOO, FOO_1}
    story.registered(me=Me(1, 2, 0), configs={}, unreadable=Unreadable(topics=frozenset({"foo"})))
    assert story.logs.quarantined == []
    assert story.loop.config("foo") == CONFIGS["foo"], "its leaders go on, with what was last known"
    story.registered(me=Me(1, 3, 0))
    assert sorted(story.logs.quarantined) == [(FOO, FOO_ID), (FOO_1, FOO_ID)]


def test_no_command_is_carried_out_about_what_could_not_be_read_until_it_was() -> None:
    """What an earlier life of this broker wrote there may be newer than what the controller knows."""
    story = Story()
    again = Me(1, 1, 0)
    hidden = Unreadable(topics=frozenset({"bar"}), partitions=frozenset({FOO}))
    story.registered(FOLLOWED, me=again, unreadable=hidden)
    assert story.loop.hidden.topics == {"foo", "bar"}
    answer = story.loop.leader_and_isr(leader_and_isr(LED, FOLLOWED))
    assert (answer.errors, story.parts()) == ({"foo-0": NotReady.code, "foo-1": NONE}, {FOO_1: "Following"})
    newer = command(state(1, [1, 2, 3]), 9, replicas=(1, 2, 3))
    story.loop.read_hidden(ME, ([newer], ALL_READ))  # by an earlier registration
    story.loop.read_hidden(again, ([], hidden))
    assert story.parts() == {FOO_1: "Following"}
    story.loop.read_hidden(again, ([newer, FOLLOWED], replace(hidden, partitions=frozenset())))
    part = story.loop.partition(FOO).unguarded.part
    assert isinstance(part, Leading)
    assert (sorted(part.state.isr), part.partition_epoch) == ([1, 2, 3], 9)
    assert story.loop.hidden.topics == {"bar"}
    assert story.loop.leader_and_isr(leader_and_isr(LED)).errors == {"foo-0": NONE}
    assert story.loop.partition(FOO).unguarded.part is part, "it comes too late"
    story.registered(newer, me=Me(1, 2, 0))
    assert story.loop.hidden.topics == frozenset()


def hidden_of(story: Story, *only: int) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    """By topic: its partitions, and those that are hidden."""
    topics = story.loop.metadata(["foo"], None, {"foo": only} if only else {}).topics
    return {found.name: (found.numbers, found.hidden) for found in topics}


def test_clients_are_told_that_a_partition_is_there_whose_state_cannot_be_read() -> None:
    """Else they place keys on fewer partitions, and read fewer."""
    story = Story()
    story.registered(LED, unreadable=Unreadable(partitions=frozenset({FOO_1})))
    assert hidden_of(story) == {"foo": ((0, 1), (1,))}
    assert hidden_of(story, 0) == {"foo": ((0,), ())}
    assert hidden_of(story, 1, 2) == {"foo": ((1,), (1,))}
    assert story.loop.metadata(["foo"], None, {"foo": (1, 2)}).topics[0].topic_id == FOO_ID
    story.loop.update_metadata(update(FOLLOWED))
    assert hidden_of(story) == {"foo": ((0, 1), ())}, "its controller knows it"


def test_what_is_hidden_is_hidden_until_it_is_known_or_gone() -> None:
    story = Story()
    story.registered(LED)
    whole = update(LED, complete=True, topics={"foo": CONFIGS["foo"]})
    hidden = replace(whole, unreadable_partitions=(FOO_1,))
    gone = update(removed=(FOO_1,))
    for number, (told, numbers) in enumerate([(hidden, (0, 1)), (gone, (0,)), (hidden, (0, 1)), (whole, (0,))], 1):
        story.loop.update_metadata(replace(told, number=number))
        assert hidden_of(story) == {"foo": (numbers, numbers[1:])}
    story.loop.update_metadata(replace(hidden, number=7))
    story.loop.update_metadata(replace(whole, unreadable_topics=("foo",), topics={}, number=8))
    assert hidden_of(story) == {"foo": ((0, 1), (1,))}, "its controller knows less"
    story.loop.update_metadata(update(deleted=("foo",), number=9))
    story.loop.update_metadata(update(LED, number=10))
    assert hidden_of(story) == {"foo": ((0,), ())}


def test_clients_are_told_of_a_partition_that_is_assigned_and_not_made_yet() -> None:
    """A controller that ends as it makes a topic leaves some so. Keys would go elsewhere until its successor has made
    them."""
    story = Story()
    story.registered(LED, unmade=(FOO_1,))
    assert hidden_of(story) == {"foo": ((0, 1), (1,))}
    story.loop.update_metadata(update(FOLLOWED))
    assert hidden_of(story) == {"foo": ((0, 1), ())}
    whole = update(LED, complete=True, topics={"foo": CONFIGS["foo"]})
    story.loop.update_metadata(replace(whole, unmade=(FOO_1,), number=2))
    assert hidden_of(story) == {"foo": ((0, 1), (1,))}, "somebody has removed its state"
    story.loop.update_metadata(update(LED, removed=(FOO_1,), number=3))
    assert hidden_of(story) == {"foo": ((0,), ())}
    story.loop.update_metadata(replace(update(LED), unmade=(FOO_1,), number=4))
    assert hidden_of(story) == {"foo": ((0, 1), (1,))}


@pytest.mark.parametrize(("unmade", "is_opened"), [((FOO,), True), ((), False)])
def test_what_was_made_after_all_was_told_is_not_over(unmade: tuple[TopicPartition, ...], *, is_opened: bool) -> None:
    """A controller tells of all, then makes again what somebody has removed. The broker has read that before it hears
    of all, and its disk has refused it. Of what is assigned no longer a late command brings nothing back."""
    story = Story()
    story.logs.sick = frozenset({FOO})
    story.registered(LED)
    story.logs.sick = frozenset()
    story.loop.update_metadata(replace(update(complete=True), unmade=unmade))
    assert story.loop.leader_and_isr(leader_and_isr(LED)).errors == {"foo-0": "NONE"}
    assert (FOO in story.loop.replicas) == is_opened


def test_a_topic_of_which_no_partition_can_be_read_is_not_told_of() -> None:
    """Nobody could say which topic of that name it is."""
    story = Story()
    story.registered(configs={"foo": CONFIGS["foo"]}, unreadable=Unreadable(partitions=frozenset({FOO, FOO_1})))
    assert hidden_of(story) == {}


def test_what_a_new_controller_cannot_read_is_not_forgotten() -> None:
    story = Story()
    story.registered(LED, FOLLOWED, ELSEWHERE)
    whole = update(LED, complete=True, topics={"foo": CONFIGS["foo"]})
    hidden = replace(whole, unreadable_topics=("bar",), unreadable_partitions=(FOO_1,))
    story.loop.update_metadata(hidden)
    known = {each.topic_partition for found in story.loop.metadata(None, None).topics for each in found.partitions}
    assert known == {FOO, FOO_1, BAR}
    story.loop.update_metadata(replace(whole, number=2))
    assert {each.name for each in story.loop.metadata(None, None).topics} == {"foo"}


def test_settings_that_cannot_be_read_are_what_they_were_or_lose_nothing() -> None:
    story = Story()
    story.registered(LED, settings_of_cluster=None)
    (partition,) = story.loop.replicas.values()
    replica = partition.unguarded
    assert (replica._own.settings.retention_ms, replica._own.settings.retention_bytes) == (-1, -1)
    story.registered(LED, me=Me(1, 1, 0), settings_of_cluster={"retention.ms": 7_000})
    story.registered(LED, me=Me(1, 2, 0), settings_of_cluster=None)
    assert replica._own.settings.retention_ms == 7_000


def test_a_registration_that_cannot_be_read_is_where_it_was() -> None:
    story = Story()
    story.registered(LED)
    story.loop.read_brokers(lambda: ({1: registration(1)}, Unreadable(brokers=frozenset({2, 3}))))
    assert story.loop.brokers == LIVE
    story.loop.read_brokers(lambda: ({1: registration(1)}, ALL_READ))
    assert story.loop.brokers == {1: registration(1)}


@pytest.mark.parametrize("meanwhile", ["told", "late", "registered", "read"])
def test_a_reading_of_brokers_gives_way_to_what_was_told_while_it_was_under_way(meanwhile: str) -> None:
    story = Story()
    story.registered(LED)
    story.loop.update_metadata(update(number=2))
    older, newer = {1: registration(1)}, {3: registration(3)}

    def read() -> Registered:
        match meanwhile:
            case "told":
                story.loop.update_metadata(update(number=3, brokers=newer))
            case "late":
                story.loop.update_metadata(update(number=1, brokers=newer))
            case "registered":
                story.registered(LED, me=Me(1, 1, 0))
            case "read":
                story.loop.read_brokers(lambda: (newer, ALL_READ))
        return older, ALL_READ

    story.loop.read_brokers(read)
    assert story.loop.brokers == {"told": newer, "late": older, "registered": LIVE, "read": newer}[meanwhile]
    story.loop.read_brokers(lambda: (older, ALL_READ))
    assert story.loop.brokers == older, "it began after all that"


def test_a_reading_counts_only_if_no_command_was_carried_out_meanwhile() -> None:
    """Foo-1 is assigned while ZooKeeper answers: what was read before knows nothing of it."""
    story = Story()
    story.registered(LED)
    story.logs.open(BAR, "id-bar", settings())  # left here by a topic that is gone
    readings: list[None] = []

    def read() -> Assigned:
        readings.append(None)
        if len(readings) == 1:
            story.loop.leader_and_isr(leader_and_isr(LED, FOLLOWED))
            return [LED], ALL_READ
        return [LED, FOLLOWED], ALL_READ

    story.loop.initialized([LED], read)
    assert len(readings) == 2
    assert story.logs.quarantined == [(BAR, "id-bar")]
    assert set(story.parts()) == {FOO, FOO_1}


def test_readings_that_are_always_old_are_given_up() -> None:
    story = Story()
    story.registered(LED)
    readings: list[None] = []

    def read() -> Assigned:
        readings.append(None)
        story.loop.leader_and_isr(leader_and_isr(LED))
        return [], ALL_READ

    story.loop.initialized([], read)
    assert len(readings) == READINGS_MAX
    assert story.logs.quarantined == []


def test_nobody_waits_for_zookeeper_behind_an_init() -> None:
    """A reading that takes long holds up no metadata, no command, no end of the session."""
    story = Story(locks=threading.Lock)
    story.registered(LED)
    reads, goes_on = threading.Event(), threading.Event()

    def read() -> Assigned:
        reads.set()
        assert goes_on.wait(20)
        return [LED], ALL_READ

    init = threading.Thread(target=lambda: story.loop.initialized([], read), daemon=True)
    init.start()
    assert reads.wait(20)

    def asks() -> None:
        story.loop.metadata(None, None)
        story.loop.session_lost()

    others = threading.Thread(target=asks, daemon=True)
    others.start()
    others.join(20)
    answered = not others.is_alive()
    goes_on.set()
    init.join(20)
    assert answered
    assert story.logs.quarantined == []


def test_a_follower_has_its_time_from_when_its_leader_began_however_long_the_command_takes() -> None:
    """The first of thousands of logs was opened many seconds before the last."""
    story, lag_ms = Story(), settings().replica_lag_time_ms
    story.registered()
    opened = story.logs.open

    def opens_slowly(partition: TopicPartition, topic_id: str, settings: TopicSettings) -> FailingLog:
        story.now_ms += lag_ms
        return opened(partition, topic_id, settings)

    story.logs.open = opens_slowly  # type: ignore[method-assign]
    story.loop.leader_and_isr(leader_and_isr(LED, command(LED.state, 7, partition=FOO_1)))
    story.loop.tick(story.now_ms, looks=True)
    assert [write.partition for write, _ in story.isr_store.asked] == [FOO], "the later one has just begun to lead"


def test_a_leader_asks_zookeeper_with_its_own_epoch() -> None:
    story = Story()
    story.registered(command(LED.state, 7), me=Me(1, 3, 0))
    replica = story.loop.partition(FOO).unguarded
    replica.tick(settings().replica_lag_time_ms)
    ((write, _),) = story.isr_store.asked
    assert (write.broker, write.broker_epoch, write.state) == (1, 3, state(1, [1], elr=[2]))
    assert isinstance(replica.part, Leading)


def test_what_lives_takes_its_topics_settings_as_they_change() -> None:
    story = Story()
    story.registered(LED)
    assert story.log().settings is None
    story.loop.update_metadata(update(topics=CONFIGS | {"bar": TopicConfig(schema="other")}))
    assert story.log().settings is None  # another topic's
    for number, segment_ms in enumerate((5, 6), start=2):
        topics = CONFIGS | {"foo": TopicConfig(schema="foo's", settings={"segment.ms": segment_ms})}
        story.loop.update_metadata(update(LED, topics=topics, number=number, complete=number == 3))
        assert story.log().settings == settings(segment_ms=segment_ms)


@pytest.mark.parametrize("delete", [True, False])
def test_what_was_told_before_a_stop_and_comes_after_it_opens_nothing_again(delete: bool) -> None:
    story = Story()
    story.registered(LED)
    story.loop.stop_replica(stop(delete=delete, leader_epoch=5, partition_epoch=9))
    story.loop.stop_replica(stop(delete=delete, leader_epoch=5, partition_epoch=8))  # an earlier one, late itself
    story.loop.leader_and_isr(leader_and_isr(LED))
    story.loop.leader_and_isr(leader_and_isr(command(state(1, [1, 2], leader_epoch=5), 9)))
    assert story.parts() == {}
    # A command that came later, of another topic of this name, or of another life of the broker, is another matter.
    story.loop.leader_and_isr(leader_and_isr(command(state(1, [1, 2], leader_epoch=5), 10)))
    assert story.parts() == {FOO: "Leading"}
    story.loop.stop_replica(stop(delete=delete, leader_epoch=6))
    again = replace(LED, topic_id=LATER_ID)
    story.loop.leader_and_isr(leader_and_isr(again))
    assert story.parts() == {FOO: "Leading"}
    story.loop.stop_replica(stop(LATER_ID, delete=delete, leader_epoch=6))
    story.registered(again)
    assert story.parts() == {FOO: "Leading"}


def test_it_tells_how_large_its_replicas_are_of_those_that_are_asked_for() -> None:
    story = Story()
    story.registered(LED, FOLLOWED)
    story.loop.partition(FOO).unguarded.produce(
        PreparedBatch(3, b"x", 0, b""), acks=0, now_ms=0, acknowledge=lambda _answer: None
    )

    def size(partition: TopicPartition, count: int, **told: Any) -> ReplicaSize:
        return ReplicaSize(topic="foo", partition=partition.partition, topic_id=FOO_ID, bytes=count, **told)

    unheard = dict.fromkeys((2, 3), FollowerLag(records=None, ms=0))
    led, followed = size(FOO, 3, leads=True, log_end=3, last_epoch=4, lags=unheard), size(FOO_1, 0, leads=False)
    assert story.loop.replica_sizes(DescribeReplicas(), 0) == ReplicaSizes(replicas=(led, followed))
    assert story.loop.replica_sizes(DescribeReplicas(partitions=(FOO, BAR)), 0) == ReplicaSizes(replicas=(led,))
    story.log().failing = frozenset({"read"})
    assert story.loop.replica_sizes(DescribeReplicas(), 0) == ReplicaSizes(replicas=(led, followed)), "no file is read"
    story.loop.leader_and_isr(leader_and_isr(command(LED.state, 8, adding=(3,))))
    assert story.loop.replica_sizes(DescribeReplicas(), 0) == ReplicaSizes(replicas=(followed,)), "nor guessed at"


def test_the_settings_of_the_cluster_hold_from_its_registration_and_as_they_change() -> None:
    story = Story()

    def compression() -> str:
        return story.loop.partition(FOO).unguarded.compression

    story.registered(LED, settings_of_cluster={"compression": "lz4"})
    assert compression() == "lz4"
    story.loop.update_metadata(update(number=2, settings={"compression": "zstd"}))
    assert compression() == "zstd"
    story.loop.update_metadata(update(number=3))  # it says nothing of them
    story.loop.update_metadata(update(number=1, settings={"compression": "lz4"}))  # late
    assert compression() == "zstd"
    own = {"foo": TopicConfig(settings={"compression": "none"})}
    story.loop.update_metadata(update(number=4, topics=own, settings={"compression": "lz4"}))
    assert compression() == "none", "the topic's own"
    story.loop.update_metadata(update(number=5, topics={"foo": TopicConfig()}))
    assert compression() == "lz4"
    story.loop.update_metadata(update(number=6, settings={}))
    assert compression() == "none", "what this process started with"


def test_what_a_process_is_built_with_does_not_change_while_it_lives() -> None:
    """The frames of replication are as large as the fetches that it started with."""
    story = Story()
    story.registered(LED, settings_of_cluster={"replica.fetch.bytes.max": 1, "compression": "lz4"})
    replica = story.loop.partition(FOO).unguarded
    assert replica.compression == "lz4"
    replica.produce(PreparedBatch(3, b"x", 0, b""), acks=1, now_ms=0, acknowledge=lambda _answer: None)
    asked = FetchPartition(
        topic="foo", partition=0, topic_id=FOO_ID, leader_epoch=4, offset=0, last_epoch=-1, clean_since=0
    )
    replica.fetch(asked, by=2, broker_epoch=0, now_ms=0)
    _, records = replica.take_answer(2, 0) or (None, None)
    assert records is not None
    assert records.next_offset == 3


def told(story: Story, topic: str | None = None) -> dict[str, tuple[Scalar, str]]:
    """What the broker tells of these settings, which its program has given in part."""
    names = ("retention.ms", "compression", "request.timeout.ms", "security.acls", "replica.lag.time.ms")
    found = story.loop.settings_in_force(topic, {"retention.ms": "--set", "request.timeout.ms": "file a"})
    return {each.name: (each.value, each.origin) for each in found if each.name in names}


def test_a_broker_tells_which_settings_it_has_in_force_and_where_they_come_from() -> None:
    story, own = Story(), settings()
    started = {
        "retention.ms": (own.retention_ms, "--set"),
        "compression": ("none", "default"),
        "request.timeout.ms": (own.request_timeout_ms, "file a"),
        "security.acls": ("", "default"),
        "replica.lag.time.ms": (own.replica_lag_time_ms, "program" if own.replica_lag_time_ms != 10_000 else "default"),
    }
    configs = {"foo": TopicConfig(settings={"compression": "lz4", "retention.ms": 9})}
    # The cluster's request.timeout.ms is nothing that a broker takes.
    cluster = {"retention.ms": 5, "request.timeout.ms": 1, "security.acls": "alice read topic foo"}
    story.registered(LED, configs=configs)
    assert told(story) == started
    story.loop.update_metadata(update(topics=configs, settings=cluster))
    laid_over = {"retention.ms": (5, "cluster"), "security.acls": ("alice read topic foo", "cluster")}
    assert told(story) == started | laid_over
    own_ones = {"retention.ms": (9, "topic"), "compression": ("lz4", "topic")}
    assert told(story, "foo") == started | laid_over | own_ones
    with pytest.raises(UnknownTopicOrPartition, match="no topic bar"):
        told(story, "bar")


def test_what_is_in_force_out_of_caution_is_said_to_be() -> None:
    story = Story()
    story.registered(LED, settings_of_cluster=None)
    assert story.loop.of_cluster is None
    assert told(story)["retention.ms"] == (-1, "caution")
    assert told(story)["security.acls"] == ("", "caution")
    story = Story()
    story.registered(LED, settings_of_cluster={"retention.ms": 5}, clock_ahead_ms=1 << 40)
    assert told(story)["retention.ms"] == (-1, "caution")
    story.registered(LED, settings_of_cluster={"retention.ms": 5})
    assert told(story)["retention.ms"] == (5, "cluster")

"""A broker: nothing before it has read its state, nothing from a deposed controller, nothing without a session."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from spark_replication.core.producers import Place
from spark_replication.core.replica import Following, Leading, Me
from spark_replication.engine.broker_loop import BrokerLoop
from spark_replication.errors import NotReady, ReplicationError, StaleControllerEpoch, UnknownTopicOrPartition
from spark_replication.messages import (
    NONE,
    CommandAnswer,
    LeaderAndIsr,
    Metadata,
    PartitionCommand,
    StopPartition,
    StopReplica,
    TopicMetadata,
    UpdateMetadata,
)
from spark_replication.model import TopicConfig, TopicPartition
from spark_replication.ports import PreparedBatch
from tests.unit.core.stories import FOO, FOO_ID, command, registration, settings, state
from tests.unit.engine.ports_in_memory import FailingLog, IsrWrites, Links, Logs

ME = Me(1, 0, 0)
FOO_1, BAR = TopicPartition("foo", 1), TopicPartition("bar", 0)
LED = command(state(1, [1, 2]), 7)
FOLLOWED = command(state(2, [1, 2]), 7, partition=FOO_1)
ELSEWHERE = command(state(2, [2]), 7, replicas=(2, 3), partition=BAR, topic_id="id-bar")
CONFIGS = {"foo": TopicConfig(schema="foo's"), "bar": TopicConfig(schema="bar's")}
LIVE = {1: registration(1), 2: registration(2)}


class Story:
    def __init__(self) -> None:
        self.logs, self.links, self.isr_store = Logs(), Links(), IsrWrites()
        self.loop = BrokerLoop(
            "cluster",
            logs=self.logs,
            isr_store=self.isr_store,
            links=self.links,
            settings=settings(),
            guards=nullcontext,
            schema_of=lambda config: config.schema.encode(),
        )

    def registered(
        self,
        *known: PartitionCommand,
        me: Me = ME,
        configs: dict[str, TopicConfig] = CONFIGS,
    ) -> dict[str, str]:
        return self.loop.registered(me, known, configs, LIVE, 0)

    def parts(self) -> dict[TopicPartition, str]:
        return {partition: type(replica.part).__name__ for partition, replica in self.loop.replicas.items()}

    def log(self, partition: TopicPartition = FOO, topic_id: str = FOO_ID) -> FailingLog:
        return self.logs.logs[partition, topic_id]


def leader_and_isr(*partitions: PartitionCommand, controller_epoch: int = 1) -> LeaderAndIsr:
    return LeaderAndIsr(controller_epoch=controller_epoch, partitions=partitions, topics=CONFIGS, brokers=LIVE)


def update(*partitions: PartitionCommand, controller_epoch: int = 1, deleted: tuple[str, ...] = ()) -> UpdateMetadata:
    return UpdateMetadata(
        controller_epoch=controller_epoch, partitions=partitions, brokers=LIVE, topics=CONFIGS, deleted=deleted
    )


def stop(topic_id: str = FOO_ID, *, delete: bool = True, controller_epoch: int = 1) -> StopReplica:
    stopped = StopPartition(topic="foo", partition=0, topic_id=topic_id, leader_epoch=4, delete=delete)
    return StopReplica(controller_epoch=controller_epoch, partitions=(stopped,))


def refused(story: Story, error: type[ReplicationError], *, controller_epoch: int = 1) -> None:
    with pytest.raises(error):
        story.loop.leader_and_isr(leader_and_isr(LED, controller_epoch=controller_epoch), 0)
    with pytest.raises(error):
        story.loop.update_metadata(update(LED, controller_epoch=controller_epoch))
    with pytest.raises(error):
        story.loop.stop_replica(stop(controller_epoch=controller_epoch))


def test_before_it_has_read_its_state_it_is_not_ready() -> None:
    story = Story()
    refused(story, NotReady)
    assert story.parts() == {}


def test_once_registered_it_leads_and_follows_as_zookeeper_says() -> None:
    story = Story()
    assert story.registered(LED, FOLLOWED, ELSEWHERE) == {"foo-0": NONE, "foo-1": NONE}
    assert story.parts() == {FOO: "Leading", FOO_1: "Following"}
    assert story.links.following == {FOO_1: 2}
    answer = story.loop.leader_and_isr(leader_and_isr(LED), 0)
    assert answer == CommandAnswer(broker_epoch=0, errors={"foo-0": NONE})


def test_a_leader_that_lost_its_log_since_it_joined_does_not_lead_whoever_asks() -> None:
    story, me = Story(), Me(1, 5, 5)
    story.registered(LED, me=me)
    assert story.parts() == {FOO: "NoneType"}
    story.loop.leader_and_isr(leader_and_isr(command(LED.state, 8)), 0)
    assert story.parts() == {FOO: "NoneType"}


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
    answers: list[Place | ReplicationError] = []
    story.loop.replica(FOO).produce(PreparedBatch(1, b"x", 0), acks="all", now_ms=0, acknowledge=answers.append)
    assert story.loop.session_lost() == {}
    assert (story.parts(), story.links.following) == ({FOO: "NoneType", FOO_1: "NoneType"}, {})
    (error,) = answers
    assert isinstance(error, ReplicationError)
    assert (error.code, error.maybe_written) == ("NOT_LEADER_OR_FOLLOWER", True)
    refused(story, NotReady)
    # It leads on, in the same epoch, only where ZooKeeper says so again.
    story.registered(command(state(2, [1, 2], leader_epoch=5), 8), FOLLOWED, me=Me(1, 1, 0))
    assert story.parts() == {FOO: "Following", FOO_1: "Following"}


def test_a_lost_session_ends_them_all_though_a_disk_fails() -> None:
    story = Story()
    story.registered(LED, command(state(1, [1, 2]), 7, partition=FOO_1))
    story.log().failing = frozenset({"checkpoint"})
    assert {partition: error.code for partition, error in story.loop.session_lost().items()} == {
        FOO: "KAFKA_STORAGE_ERROR"
    }
    assert story.parts() == {FOO: "NoneType", FOO_1: "NoneType"}


def test_what_is_gone_after_the_next_registration_is_put_aside_and_not_known_any_longer() -> None:
    story = Story()
    story.registered(LED, ELSEWHERE)
    log = story.log()
    story.loop.session_lost()
    assert story.registered(configs={}) == {}
    assert (story.parts(), story.logs.quarantined, log.closed) == ({}, [(FOO, FOO_ID)], True)
    assert story.loop.metadata(None, None).topics == ()
    with pytest.raises(UnknownTopicOrPartition, match="knows no topic foo"):
        story.loop.schema("foo")


def test_a_directory_that_is_not_assigned_is_put_aside_and_the_present_one_served() -> None:
    story = Story()
    story.logs.open(FOO, "old", b"", 1)
    story.registered(LED)
    assert (story.logs.quarantined, story.parts()) == ([(FOO, "old")], {FOO: "Leading"})


def test_one_sick_partition_keeps_no_other_from_starting() -> None:
    story = Story()
    story.logs.sick = frozenset({FOO})
    assert story.registered(LED, FOLLOWED) == {"foo-0": "KAFKA_STORAGE_ERROR", "foo-1": NONE}
    assert story.parts() == {FOO_1: "Following"}
    story.logs.sick = frozenset()
    assert story.loop.leader_and_isr(leader_and_isr(LED), 0).errors == {"foo-0": NONE}
    assert story.parts() == {FOO_1: "Following", FOO: "Leading"}


def test_a_partition_of_a_topic_without_config_is_asked_for_again() -> None:
    story = Story()
    story.registered()
    baz = command(state(1, [1]), partition=TopicPartition("baz", 0))
    assert story.loop.leader_and_isr(leader_and_isr(baz), 0).errors == {"baz-0": "UNKNOWN_TOPIC_OR_PARTITION"}


def test_a_topic_made_again_starts_with_another_log() -> None:
    story = Story()
    story.registered(LED)
    old = story.log()
    again = command(state(2, [1, 2], leader_epoch=0), 0, topic_id="again")
    assert story.loop.leader_and_isr(leader_and_isr(again), 0).errors == {"foo-0": NONE}
    assert (story.logs.quarantined, old.closed) == ([(FOO, FOO_ID)], True)
    assert isinstance(story.loop.replica(FOO).part, Following)


@pytest.mark.parametrize(("delete", "quarantined"), [(True, [(FOO, FOO_ID)]), (False, [])])
def test_a_replica_is_stopped_and_put_aside_where_it_is_deleted(
    delete: bool, quarantined: list[tuple[TopicPartition, str]]
) -> None:
    story = Story()
    story.registered(LED)
    log = story.log()
    assert story.loop.stop_replica(stop(delete=delete)).errors == {"foo-0": NONE}
    assert (story.parts(), story.logs.quarantined, log.closed) == ({}, quarantined, True)
    with pytest.raises(UnknownTopicOrPartition, match="foo-0 is not on this broker"):
        story.loop.replica(FOO)
    assert story.loop.stop_replica(stop(delete=delete)).errors == {"foo-0": NONE}  # again: it is done


def test_who_stops_an_earlier_topic_of_that_name_stops_nothing() -> None:
    story = Story()
    story.registered(LED)
    assert story.loop.stop_replica(stop("old")).errors == {"foo-0": NONE}
    assert story.parts() == {FOO: "Leading"}


def test_a_controlled_stop_flushes_every_log_and_says_which_it_could_not() -> None:
    story = Story()
    story.registered(LED, FOLLOWED)
    logs = [story.log(), story.log(FOO_1)]
    logs[0].failing = frozenset({"flush"})
    assert {partition: error.code for partition, error in story.loop.close().items()} == {FOO: "KAFKA_STORAGE_ERROR"}
    assert [log.closed for log in logs] == [True, True]
    assert (story.parts(), story.loop.me) == ({}, None)


def topic(name: str, *partitions: PartitionCommand, topic_id: str) -> TopicMetadata:
    return TopicMetadata(name=name, topic_id=topic_id, config=CONFIGS[name], partitions=partitions)


def test_it_tells_of_topics_what_it_knows() -> None:
    story = Story()
    story.registered(FOLLOWED, LED, ELSEWHERE)
    foo, bar = topic("foo", LED, FOLLOWED, topic_id=FOO_ID), topic("bar", ELSEWHERE, topic_id="id-bar")
    everything = Metadata(cluster_id="cluster", brokers=LIVE, controller="host:1", topics=(bar, foo))
    assert story.loop.metadata(None, "host:1") == everything
    assert story.loop.metadata(["foo", "baz"], None).topics == (foo,)
    assert story.loop.schema("bar") == b"bar's"
    story.loop.brokers_read({2: registration(2)})
    assert story.loop.metadata([], None).brokers == {2: registration(2)}


def test_a_topic_whose_partitions_are_not_made_yet_has_no_id() -> None:
    story = Story()
    story.registered()
    assert story.loop.metadata(["foo"], None).topics == (topic("foo", topic_id=""),)


def test_what_is_older_never_replaces_what_is_newer_and_a_deleted_topic_is_forgotten() -> None:
    story = Story()
    story.registered(ELSEWHERE)
    older = command(state(2, [2, 3]), 6, replicas=(2, 3), partition=BAR, topic_id="id-bar")
    newer = command(state(2, [2, 3]), 8, replicas=(2, 3), partition=BAR, topic_id="id-bar")
    story.loop.update_metadata(update(older))
    assert story.loop.metadata(["bar"], None).topics == (topic("bar", ELSEWHERE, topic_id="id-bar"),)
    story.loop.update_metadata(update(newer))
    assert story.loop.metadata(["bar"], None).topics == (topic("bar", newer, topic_id="id-bar"),)
    story.loop.update_metadata(update(deleted=("bar",)))
    assert [known.name for known in story.loop.metadata(None, None).topics] == ["foo"]


def test_a_leader_asks_zookeeper_with_its_own_epoch() -> None:
    story = Story()
    story.registered(command(LED.state, 7), me=Me(1, 3, 0))
    replica = story.loop.replica(FOO)
    replica.tick(settings().replica_lag_time_ms)
    ((write, _),) = story.isr_store.asked
    assert (write.broker, write.broker_epoch, write.state) == (1, 3, state(1, [1], elr=[2]))
    assert isinstance(replica.part, Leading)

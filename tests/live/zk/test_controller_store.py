"""The controller's store against a real ZooKeeper."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import pytest

from spark_replication.config import Settings
from spark_replication.core.controller.events import BrokersRead, PartitionsRead
from spark_replication.core.law.writes import (
    BrokerRemoval,
    Deposed,
    Group,
    IsrCommitted,
    IsrWrite,
    Made,
    Refused,
    Stored,
    StoredAssignment,
    StoredPartition,
    TopicWrite,
    Write,
)
from spark_replication.errors import InvalidRequest
from spark_replication.model import (
    ClusterSettings,
    ControllerInfo,
    HeldDirectory,
    TopicConfig,
    TopicPartition,
    TopicState,
    decode,
    encode,
)
from spark_replication.zk import paths
from spark_replication.zk.controller import batches
from spark_replication.zk.operations import EXISTS, Committed, Create, Delete, SetData
from tests.live.cluster.faults import stopped
from tests.waiting import eventually

from .helpers import Heard, Proxy, changed, commit, committed, expire, partition_write, register, state, topic_write

if TYPE_CHECKING:
    from spark_replication.zookeeper_server.embedded import EmbeddedZooKeeper

    from .conftest import Cluster

pytestmark = pytest.mark.live

FOO = TopicPartition("foo", 0)


def test_the_second_candidate_gets_nothing_and_wins_after_the_first_resigned(cluster: Cluster) -> None:
    first, second = cluster.controller(), cluster.controller()
    won = first.campaign("a", "127.0.0.1", 1)
    assert won is not None
    assert (won.controller_epoch, won.topics, won.partitions, won.brokers) == (1, {}, {}, {})
    vacant = Heard()
    second.watch_vacancy(vacant)
    assert second.campaign("b", "127.0.0.1", 2) is None
    assert vacant.count == 0
    first.resign()
    vacant.take()
    taken = second.campaign("b", "127.0.0.1", 2)
    assert taken is not None
    assert (taken.controller_epoch, taken.cluster_id) == (2, won.cluster_id)


HELD = HeldDirectory(boot_id="boot", directory_mark="mark")


def test_who_holds_the_directory_of_a_dead_controller_wins_at_once(cluster: Cluster) -> None:
    deposed = Heard()
    first, second = cluster.controller(deposed), cluster.controller()
    assert first.campaign("a", "127.0.0.1", 1, HELD)
    taken = second.campaign("b", "127.0.0.1", 2, HELD)
    assert taken is not None
    assert taken.controller_epoch == 2
    assert committed(first, [(topic_write("foo"),)]) == [Deposed()]
    deposed.take()
    node = cluster.session().read_now(paths.CONTROLLER)
    assert node is not None
    assert decode(node.data, ControllerInfo, paths.CONTROLLER).id == "b", "the end of the first one leaves it"


@pytest.mark.parametrize(
    ("holder", "candidate"),
    [
        (HELD, None),
        (None, HELD),
        (HELD, HeldDirectory(boot_id="boot", directory_mark="copy")),
        (HELD, HeldDirectory(boot_id="another", directory_mark="mark")),
    ],
)
def test_the_controller_of_another_directory_or_boot_stays(
    cluster: Cluster, holder: HeldDirectory | None, candidate: HeldDirectory | None
) -> None:
    first = cluster.controller()
    assert first.campaign("a", "127.0.0.1", 1, holder)
    assert cluster.controller().campaign("b", "127.0.0.1", 2, candidate) is None
    assert isinstance(committed(first, [(topic_write("foo"),)])[0], Stored)


def test_a_deposed_controller_stores_nothing_and_is_told_once(cluster: Cluster) -> None:
    deposed = Heard()
    first = cluster.controller(deposed)
    assert first.campaign("a", "127.0.0.1", 1)
    assert isinstance(committed(first, [(topic_write("foo"),)])[0], Stored)
    session = cluster.session()
    assert isinstance(session.commit_now((Delete(paths.CONTROLLER, -1),)), Committed)
    second = cluster.controller()
    assert second.campaign("b", "127.0.0.1", 2)
    assert committed(first, [(partition_write("foo", 0),), (topic_write("bar"),)]) == [Deposed(), Deposed()]
    assert session.read_many([paths.leader_and_isr(FOO), paths.topic("bar")]) == [None, None]
    deposed.take()
    assert committed(first, [(topic_write("bar"),)]) == [Deposed()]
    assert deposed.count == 0


def test_a_raised_epoch_alone_deposes_by_the_first_write(cluster: Cluster) -> None:
    deposed = Heard()
    store = cluster.controller(deposed)
    assert store.campaign("a", "127.0.0.1", 1)
    session = cluster.session()
    node = session.read_now(paths.CONTROLLER_EPOCH)
    assert node is not None
    session.commit_now((SetData(paths.CONTROLLER_EPOCH, node.data, node.version),))
    assert committed(store, [(topic_write("foo"),)]) == [Deposed()]
    assert "controller_epoch" in deposed.take()
    assert session.read_now(paths.topic("foo")) is None


def test_an_expired_session_deposes(cluster: Cluster) -> None:
    deposed = Heard()
    session = cluster.session()
    store = cluster.controller(deposed, session)
    assert store.campaign("a", "127.0.0.1", 1)
    expire(session)
    deposed.take()
    assert committed(store, [(topic_write("foo"),)]) == [Deposed()]
    assert cluster.session().read_now(paths.topic("foo")) is None


def test_versions_and_zxids_are_those_of_the_znodes(cluster: Cluster) -> None:
    store = cluster.controller()
    assert store.campaign("a", "127.0.0.1", 1)
    config = TopicConfig(settings={"min.insync.replicas": 1}, schema="c2NoZW1h")
    created = msgspec.structs.replace(topic_write("foo", 3), config=config)
    answers = committed(store, [(created,), *((partition_write("foo", number),) for number in range(3))])
    grown = TopicState(topic_id="id-foo", partitions=created.state.partitions, adding={0: (4,)})
    mixed = (
        TopicWrite(topic="foo", state=grown, version=0),
        partition_write("foo", 0, 0, state(leader_epoch=1)),
        topic_write("bar"),
    )
    answers += committed(store, [mixed])
    session = cluster.session()
    named = [
        paths.topic("foo"),
        *(paths.leader_and_isr(TopicPartition("foo", n)) for n in (0, 1, 2)),
        paths.topic("bar"),
    ]
    foo, zero, one, two, bar = session.read_many(named)
    assert foo
    assert zero
    assert one
    assert two
    assert bar
    stored = [answer.made for answer in answers if isinstance(answer, Stored)]
    assert [of_each[0].version for of_each in stored[:4]] == [0, 0, 0, 0]
    assert [of_each[0].zxid for of_each in stored[:4]] == [node.created_zxid for node in (foo, zero, one, two)]
    assert (stored[2], stored[3]) == ((one.made,), (two.made,))
    assert stored[4] == (foo.made, zero.made, bar.made)
    assert 0 < stored[0][0].at_ms <= one.modified_ms <= foo.modified_ms
    assert foo.zxid == zero.zxid == bar.zxid
    assert session.read_now(paths.topic_id("id-foo")) is not None
    store.resign()
    loaded = cluster.controller().campaign("b", "127.0.0.1", 2)
    assert loaded is not None
    assert loaded.topics["foo"].state == grown
    assert (loaded.topics["foo"].version, loaded.topics["foo"].config) == (1, config)
    assert loaded.topics["bar"].config == TopicConfig()
    assert {partition: (s.version, s.zxid) for partition, s in loaded.partitions.items()} == {
        TopicPartition("foo", 0): (1, zero.zxid),
        TopicPartition("foo", 1): (0, one.zxid),
        TopicPartition("foo", 2): (0, two.zxid),
    }
    assert loaded.partitions[FOO].state == state(leader_epoch=1)


def test_conflicting_groups_are_refused_with_what_is_there_and_the_others_stored(cluster: Cluster) -> None:
    store = cluster.controller()
    assert store.campaign("a", "127.0.0.1", 1)
    committed(store, [(topic_write("foo", 20),), *((partition_write("foo", n),) for n in range(20))])
    session = cluster.session()
    meanwhile = state(isr=(1, 2))
    conflicting = {5, 11, 12}
    for number in conflicting:
        session.commit_now((SetData(paths.leader_and_isr(TopicPartition("foo", number)), encode(meanwhile), 0),))
    new = state(leader_epoch=1)
    answers = committed(store, [(partition_write("foo", n, 0, new),) for n in range(20)])
    for number, answer in enumerate(answers):
        partition = TopicPartition("foo", number)
        node = session.read_now(paths.leader_and_isr(partition))
        assert node is not None
        if number in conflicting:
            assert isinstance(answer, Refused)
            current = answer.current[partition]
            assert current is not None
            assert (current.state, current.version, current.zxid) == (meanwhile, 1, node.zxid)
        else:
            assert answer == Stored((node.made,))
            assert node.data == encode(new)


def test_a_group_is_stored_whole_or_not_at_all(cluster: Cluster) -> None:
    store = cluster.controller()
    assert store.campaign("a", "127.0.0.1", 1)
    committed(store, [(topic_write("foo", 2),), (partition_write("foo", 0),)])
    (answer,) = committed(store, [(partition_write("foo", 0, 0, state(leader_epoch=1)), partition_write("foo", 1, 4))])
    assert isinstance(answer, Refused)
    assert answer.current[TopicPartition("foo", 1)] is None
    untouched = answer.current[FOO]
    assert untouched is not None
    assert (untouched.version, untouched.state) == (0, state())


@pytest.mark.parametrize(
    "write",
    [
        topic_write("foo"),
        topic_write("bar", topic_id="id-foo"),
        partition_write("foo", 0),
        partition_write("never", 0),
        partition_write("foo", 0, version=7),
        partition_write("foo", 1, version=0),
    ],
)
def test_what_cannot_be_stored_is_refused_beside_what_can(cluster: Cluster, write: Write) -> None:
    store = cluster.controller()
    assert store.campaign("a", "127.0.0.1", 1)
    committed(store, [(topic_write("foo", 2),), (partition_write("foo", 0),)])
    refused, stored = committed(store, [(write,), (topic_write("other"),)])
    assert isinstance(refused, Refused)
    assert isinstance(stored, Stored)


def test_a_state_removed_by_hand_is_made_again_below_its_parent(cluster: Cluster) -> None:
    store = cluster.controller()
    assert store.campaign("a", "127.0.0.1", 1)
    committed(store, [(topic_write("foo"),), (partition_write("foo", 0),)])
    cluster.session().commit_now((Delete(paths.leader_and_isr(FOO), -1),))
    assert isinstance(committed(store, [(partition_write("foo", 0),)])[0], Stored)


def test_a_write_that_relies_on_a_broker_is_refused_once_it_registered_again(cluster: Cluster) -> None:
    store = cluster.controller()
    assert store.campaign("a", "127.0.0.1", 1)
    committed(store, [(topic_write("foo", 2),), (partition_write("foo", 0),), (partition_write("foo", 1),)])
    broker = cluster.broker()
    register(broker, 1)
    new = state(leader_epoch=1)
    (stored,) = committed(store, [(partition_write("foo", 0, 0, new, {1: 0}),)])
    assert isinstance(stored, Stored)
    register(broker, 1, continues=0)
    stale, unknown, fine = committed(
        store,
        [
            (partition_write("foo", 0, 1, new, {1: 0}),),
            (partition_write("foo", 0, 1, new, {9: 0}),),
            (partition_write("foo", 1, 0, new, {1: 1}),),
        ],
    )
    assert isinstance(stale, Refused)
    assert isinstance(unknown, Refused)
    assert isinstance(fine, Stored)


def test_a_broker_is_removed_at_its_epoch_only(cluster: Cluster) -> None:
    store = cluster.controller()
    assert store.campaign("a", "127.0.0.1", 1)
    broker = cluster.broker()
    register(broker, 1)
    gone = Heard()
    broker.watch_own_registration(gone)
    assert committed(store, [(BrokerRemoval(broker=1, epoch=5),)]) == [Refused({})]
    assert gone.count == 0
    assert committed(store, [(BrokerRemoval(broker=1, epoch=0),)]) == [Stored((Made(),))]
    gone.take()
    assert committed(store, [(BrokerRemoval(broker=1, epoch=0),)]) == [Refused({})]


def test_a_group_that_no_multi_can_hold_is_refused_alone_before_it_is_sent(cluster: Cluster) -> None:
    store = cluster.controller()
    assert store.campaign("a", "127.0.0.1", 1)
    huge = tuple(partition_write("foo", number) for number in range(batches.GROUP_BYTES_MAX // 300))
    first, refused, last = committed(store, [(topic_write("foo"),), huge, (topic_write("bar"),)])
    assert isinstance(first, Stored)
    assert isinstance(last, Stored)
    assert isinstance(refused, Refused)
    assert isinstance(refused.unstorable, InvalidRequest)
    assert "fewer partitions" in refused.unstorable.message


def test_two_thousand_partitions_are_committed_and_loaded(
    cluster: Cluster, record_property: Callable[[str, object], None]
) -> None:
    store = cluster.controller()
    assert store.campaign("a", "127.0.0.1", 1)
    count = 2_000
    started = time.monotonic()
    answers = committed(
        store, [(topic_write("foo", count),), *((partition_write("foo", n),) for n in range(count))], 60
    )
    made = time.monotonic()
    answers += committed(store, [(partition_write("foo", n, 0, state(leader_epoch=1)),) for n in range(count)], 60)
    changed_at = time.monotonic()
    assert all(isinstance(answer, Stored) for answer in answers)
    store.resign()
    loading = time.monotonic()
    loaded = cluster.controller().campaign("b", "127.0.0.1", 2)
    record_property("seconds to make, set, load", (made - started, changed_at - made, time.monotonic() - loading))
    assert loaded is not None
    assert len(loaded.partitions) == count
    assert all(stored.version == 1 and stored.state.leader_epoch == 1 for stored in loaded.partitions.values())


def test_a_lost_answer_is_found_out_and_nothing_is_stored_twice(cluster: Cluster) -> None:
    proxy = Proxy(cluster.address)
    store = cluster.controller(session=cluster.session(proxy.address, session_timeout_ms=15_000))
    assert store.campaign("a", "127.0.0.1", 1)
    register(cluster.broker(), 3)
    committed(store, [(topic_write("foo", 2),), (partition_write("foo", 0),)])
    proxy.swallow()
    answers = Heard()
    groups: list[Group] = [
        (partition_write("foo", 0, 0, state(leader_epoch=1)),),
        (partition_write("foo", 1),),
        (topic_write("bar"),),
        (BrokerRemoval(broker=3, epoch=0),),
    ]
    commit(store, groups, answers)
    proxy.wait_swallowed()
    proxy.cut()
    session = cluster.session()
    stored = answers.take()
    named = [paths.leader_and_isr(FOO), paths.leader_and_isr(TopicPartition("foo", 1)), paths.topic("bar")]
    foo, one, bar = session.read_many(named)
    assert foo
    assert one
    assert bar
    assert stored == [Stored((foo.made,)), Stored((one.made,)), Stored((bar.made,)), Stored((Made(),))]
    proxy.close()


def test_a_group_whose_answer_was_lost_is_stored_though_a_leader_has_written_since(cluster: Cluster) -> None:
    proxy = Proxy(cluster.address)
    store = cluster.controller(session=cluster.session(proxy.address, session_timeout_ms=15_000))
    assert store.campaign("a", "127.0.0.1", 1)
    register(cluster.broker(), 1)
    committed(store, [(topic_write("foo", 2),), (partition_write("foo", 0),), (partition_write("foo", 1),)])
    assignment: dict[int, tuple[int, ...]] = {0: (1, 2, 3, 4), 1: (1, 2, 3)}
    grown = TopicState(topic_id="id-foo", partitions=assignment, adding={0: (4,)})
    growing = TopicWrite(topic="foo", state=grown, version=0)
    session, answers = cluster.session(), Heard()
    proxy.swallow()
    commit(store, [(growing, partition_write("foo", 0, 0), partition_write("foo", 1, 0))], answers)
    proxy.wait_swallowed()
    moved = session.commit_now((SetData(paths.leader_and_isr(FOO), encode(state(isr=(1, 2))), 1),))
    assert isinstance(moved, Committed), moved
    proxy.cut()
    (answer,) = answers.take()
    topic, foo = session.read_many([paths.topic("foo"), paths.leader_and_isr(FOO)])
    assert topic
    assert foo
    assert answer == Stored((topic.made._replace(version=1),) * 3, {FOO: StoredPartition(state(isr=(1, 2)), *foo.made)})
    (refused,) = committed(store, [(growing,)])
    assert refused == Refused({}, {"foo": StoredAssignment(grown, *topic.made)})
    proxy.close()


def test_commits_wait_over_a_short_outage(cluster: Cluster) -> None:
    proxy = Proxy(cluster.address)
    session = cluster.session(proxy.address, session_timeout_ms=15_000)
    store = cluster.controller(session=session)
    assert store.campaign("a", "127.0.0.1", 1)
    states = Heard()
    session.listen(states)
    proxy.cut()
    answers = [Heard() for _ in range(500)]
    for number, heard in enumerate(answers):
        commit(store, [(topic_write(f"foo{number}"),)], heard)
    assert all(isinstance(heard.take()[0], Stored) for heard in answers)
    assert [states.take().value, states.take().value] == ["suspended", "connected"]
    proxy.close()


def test_the_settings_of_the_process_and_those_stored_are_told_apart(cluster: Cluster) -> None:
    first = cluster.controller()
    assert first.campaign("a", "127.0.0.1", 1)
    settings = ClusterSettings(settings={"replica.lag.time.ms": 1234})
    cluster.session().commit_now((Create(paths.CLUSTER_CONFIG, encode(settings)),))
    first.resign()
    loaded = cluster.controller().campaign("b", "127.0.0.1", 2)
    assert loaded is not None
    assert (loaded.settings, loaded.stored_settings) == (Settings(), settings)


def test_a_topic_without_states_is_loaded_and_a_corrupt_state_is_named(cluster: Cluster) -> None:
    store = cluster.controller()
    assert store.campaign("a", "127.0.0.1", 1)
    committed(store, [(topic_write("foo", 2),), (partition_write("foo", 0),)])
    store.resign()
    second = cluster.controller()
    loaded = second.campaign("b", "127.0.0.1", 2)
    assert loaded is not None
    assert set(loaded.partitions) == {FOO}
    assert set(loaded.topics["foo"].state.partitions) == {0, 1}
    second.resign()
    session = cluster.session()
    session.commit_now((SetData(paths.leader_and_isr(FOO), b"{}", -1),))
    third = cluster.controller().campaign("c", "127.0.0.1", 3)
    assert third is not None
    assert third.partitions == {}
    assert third.unreadable.partitions == {FOO}
    assert "foo/0/leaderAndISR is not a PartitionState" in third.unreadable.reasons[paths.leader_and_isr(FOO)]


def test_brokers_that_come_shut_down_and_go_are_told_whole(cluster: Cluster) -> None:
    store = cluster.controller()
    assert store.campaign("a", "127.0.0.1", 1)
    one, two = cluster.broker(), cluster.broker()
    registered, epoch = register(one, 1)
    events = Heard()
    store.watch(events)
    first = events.take()
    node = cluster.session().read_now(paths.broker_id(1))
    assert node is not None
    assert first == BrokersRead(
        brokers={1: registered}, broker_epochs={1: epoch}, registered={1: node.made}, zxid=node.created_zxid
    )
    register(two, 2)
    both = events.take_until(lambda event: set(event.brokers) == {1, 2})
    assert (both.registered[1], both.registered[2].zxid) == (node.made, both.zxid)
    one.mark_shutting_down()
    read = events.take_until(lambda event: event.brokers[1].shutting_down)
    assert not read.brokers[2].shutting_down
    assert read.zxid == both.zxid < read.registered[1].zxid, "nobody has come or gone"
    two.close()
    read = events.take_until(lambda event: set(event.brokers) == {1})
    assert set(read.broker_epochs) == {1, 2}
    assert (set(read.registered), read.zxid > both.zxid) == ({1}, True)


def test_an_isr_change_reaches_the_controller_and_its_notification_goes(cluster: Cluster) -> None:
    store = cluster.controller()
    assert store.campaign("a", "127.0.0.1", 1)
    committed(store, [(topic_write("foo", 40),), *((partition_write("foo", n),) for n in range(40))])
    broker = cluster.broker()
    register(broker, 1)
    events = Heard()
    store.watch(events)
    wanted = {TopicPartition("foo", number) for number in range(40)}
    for partition in sorted(wanted):
        write = IsrWrite(
            partition=partition,
            topic_id="id-foo",
            broker=1,
            broker_epoch=0,
            state=state(isr=(1, 2)),
            version=0,
        )
        assert changed(broker, write) == IsrCommitted(1)
    seen: set[TopicPartition] = set()
    while seen != wanted:
        event = events.take()
        if isinstance(event, PartitionsRead):
            assert all(stored.state.isr == {1, 2} and stored.version == 1 for stored in event.partitions.values())
            seen |= set(event.partitions)
    session = cluster.session()
    eventually(lambda: not session.children_now(paths.ISR_CHANGES), "what was read is removed", 10)
    assert broker.controller() is not None


def test_a_folder_of_notifications_that_somebody_removed_is_made_again_and_everything_is_loaded_anew(
    cluster: Cluster,
) -> None:
    deposed, events = Heard(), Heard()
    store = cluster.controller(deposed)
    assert store.campaign("a", "127.0.0.1", 1)
    store.watch(events)
    events.take_until(lambda event: isinstance(event, BrokersRead))
    session = cluster.session()
    session.commit_now((Delete(paths.ISR_CHANGES, EXISTS),))
    assert "removed by somebody" in deposed.take()
    assert session.read_now(paths.ISR_CHANGES) is not None


def test_notifications_from_before_the_watch_are_read(cluster: Cluster) -> None:
    store = cluster.controller()
    assert store.campaign("a", "127.0.0.1", 1)
    committed(store, [(topic_write("foo"),), (partition_write("foo", 0),)])
    session = cluster.session()
    session.commit_now((Create(paths.ISR_CHANGE_PREFIX, b'{"v":1,"partitions":["foo-0"]}', sequence=True),))
    session.commit_now((Create(paths.ISR_CHANGE_PREFIX, b"nonsense", sequence=True),))
    events = Heard()
    store.watch(events)
    read = events.take_until(lambda event: isinstance(event, PartitionsRead))
    assert set(read.partitions) == {FOO}


def test_watches_survive_a_lost_connection(cluster: Cluster) -> None:
    proxy = Proxy(cluster.address)
    store = cluster.controller(session=cluster.session(proxy.address, session_timeout_ms=15_000))
    assert store.campaign("a", "127.0.0.1", 1)
    events = Heard()
    store.watch(events)
    events.take()
    for number in range(1, 4):
        proxy.cut()
        register(cluster.broker(), number)
        events.take_until(lambda event: number in event.brokers)  # noqa: B023 (called at once)
    proxy.close()


def test_many_conflicts_in_one_multi_cost_few_rounds(
    cluster: Cluster, record_property: Callable[[str, object], None]
) -> None:
    store = cluster.controller()
    assert store.campaign("a", "127.0.0.1", 1)
    count = 600
    committed(store, [(topic_write("foo", count),), *((partition_write("foo", n),) for n in range(count))])
    session = cluster.session()
    for number in range(0, count, 2):
        session.commit_now((SetData(paths.leader_and_isr(TopicPartition("foo", number)), encode(state()), 0),))
    started = time.monotonic()
    answers = committed(store, [(partition_write("foo", n, 0, state(leader_epoch=1)),) for n in range(count)])
    assert [isinstance(answer, Refused) for answer in answers] == [number % 2 == 0 for number in range(count)]
    record_property("seconds", time.monotonic() - started)


def test_a_controller_waits_for_a_hung_zookeeper(cluster: Cluster, zookeeper: EmbeddedZooKeeper) -> None:
    store = cluster.controller()
    assert store.campaign("a", "127.0.0.1", 1)
    (pid,) = zookeeper.pids
    with stopped(pid):
        heard = Heard()
        commit(store, [(topic_write("foo"),)], heard)
        assert heard.count == 0
    assert isinstance(heard.take()[0], Stored)

"""The broker's store against a real ZooKeeper."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from spark_replication.core.law.unreadable import ALL_READ
from spark_replication.core.law.writes import IsrCommitted, IsrRefused, IsrUnanswered, IsrWrite
from spark_replication.errors import DirectoryInUse, NotReady, StaleBrokerEpoch, StaleLease
from spark_replication.model import BrokerEpoch, TopicPartition, encode
from spark_replication.zk import paths
from spark_replication.zk.broker.isr_writes import IsrWrites
from spark_replication.zk.broker.store import BrokerStore
from spark_replication.zk.controller.store import ZooKeeperControllerStore
from spark_replication.zk.operations import Create, Delete
from tests.waiting import eventually

from .helpers import Heard, Proxy, changed, committed, expire, partition_write, register, state, topic_write

if TYPE_CHECKING:
    from .conftest import Cluster

pytestmark = pytest.mark.live

FOO = TopicPartition("foo", 0)


@pytest.fixture
def controller(cluster: Cluster) -> ZooKeeperControllerStore:
    store = cluster.controller()
    assert store.campaign("a", "127.0.0.1", 1)
    return store


@pytest.fixture
def leader(cluster: Cluster, controller: ZooKeeperControllerStore) -> BrokerStore:
    """Broker 1, at epoch 0, leads foo-0."""
    committed(controller, [(topic_write("foo"),), (partition_write("foo", 0),)])
    store = cluster.broker()
    register(store, 1)
    return store


def isr_write(**changes: object) -> IsrWrite:
    write = IsrWrite(
        partition=FOO,
        topic_id="id-foo",
        broker=1,
        broker_epoch=0,
        state=state(isr=(1, 2)),
        version=0,
    )
    return msgspec.structs.replace(write, **changes)


def test_epochs_rise_by_one_and_the_chain_is_clean_while_each_continues_the_last(
    cluster: Cluster, controller: ZooKeeperControllerStore
) -> None:
    epochs: list[tuple[int, int]] = []
    for continues in (None, 0, 1, None, 3, 3):  # the last names an earlier epoch
        broker = cluster.broker()
        registration, epoch = register(broker, 1, continues=continues, incarnation=f"life {len(epochs)}")
        assert registration.epoch == epoch.epoch
        node = cluster.session().read_now(paths.broker_epoch(1))
        assert node is not None
        assert node.version == epoch.epoch
        assert node.data == encode(epoch)
        epochs.append((epoch.epoch, epoch.clean_since))
        broker.close()
    assert epochs == [(0, 0), (1, 0), (2, 0), (3, 3), (4, 3), (5, 5)]


def test_a_registration_that_its_own_process_never_heard_of_breaks_no_chain(
    cluster: Cluster, controller: ZooKeeperControllerStore
) -> None:
    clean_since = []
    for incarnation, continues in (("first", None), ("second", 0), ("second", 0), ("second", None), ("third", 0)):
        broker = cluster.broker()
        _, epoch = register(broker, 1, incarnation=incarnation, continues=continues)
        clean_since.append(epoch.clean_since)
        broker.close()
    assert clean_since == [0, 0, 0, 3, 4]


def test_the_node_of_an_earlier_life_in_the_same_directory_is_replaced(
    cluster: Cluster, controller: ZooKeeperControllerStore
) -> None:
    earlier, later = cluster.broker(), cluster.broker()
    register(earlier, 1)
    gone = Heard()
    earlier.watch_own_registration(gone)
    registration, epoch = register(later, 1, continues=0, incarnation="second")
    assert (registration.epoch, epoch) == (1, BrokerEpoch(epoch=1, incarnation="second", clean_since=0))
    gone.take()
    earlier.close()
    assert later.read_brokers().brokers == {1: registration}
    assert gone.count == 0


@pytest.mark.parametrize("differs", [{"boot_id": "other"}, {"directory_mark": "other"}])
def test_a_copied_directory_does_not_start(
    cluster: Cluster, controller: ZooKeeperControllerStore, differs: dict[str, str]
) -> None:
    first = cluster.broker()
    registration, _ = register(first, 1)
    with pytest.raises(DirectoryInUse, match="copied log directory"):
        register(cluster.broker(), 1, **differs)  # type: ignore[arg-type]
    assert first.read_brokers().brokers == {1: registration}


def test_two_that_register_at_once_get_an_epoch_each(cluster: Cluster, controller: ZooKeeperControllerStore) -> None:
    stores = [cluster.broker() for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        epochs = sorted(epoch.epoch for _, epoch in pool.map(lambda store: register(store, 1), stores))
    assert epochs == [0, 1, 2, 3]


def test_a_registration_whose_answer_is_lost_counts_once(
    cluster: Cluster, controller: ZooKeeperControllerStore
) -> None:
    proxy = Proxy(cluster.address)
    broker = cluster.broker(proxy.address)
    with ThreadPoolExecutor(1) as pool:
        proxy.swallow()
        registering = pool.submit(register, broker, 1)
        proxy.wait_swallowed()  # of the reads before the write, or of the write: both must end the same
        proxy.cut()
        registration, epoch = registering.result(20)
    assert broker.read_brokers().brokers == {1: registration}
    assert (epoch.epoch, epoch.clean_since) == (0, 0)
    proxy.close()


def test_who_lost_its_session_hears_of_it_and_registers_again_in_a_new_one(
    cluster: Cluster, leader: BrokerStore
) -> None:
    gone = Heard()
    leader.watch_own_registration(gone)
    expire(leader._session)
    gone.take()
    assert leader.session_lost
    assert changed(leader, isr_write()) == IsrUnanswered()
    registration, epoch = register(leader, 1, continues=0)
    assert (epoch.epoch, epoch.clean_since) == (1, 0)
    assert leader.read_brokers().brokers == {1: registration}
    assert leader.controller() is not None
    assert changed(leader, isr_write(broker_epoch=1)) == IsrCommitted(1)
    assert gone.count == 0


def test_registering_again_in_one_session_leaves_nothing_behind(cluster: Cluster, leader: BrokerStore) -> None:
    listeners = len(leader._session._listeners)
    for _ in range(3):
        leader.watch_own_registration(lambda: None)
    assert len(leader._session._listeners) == listeners


def test_zookeeper_tells_when_it_stored_the_registration(
    cluster: Cluster, controller: ZooKeeperControllerStore, leader: BrokerStore
) -> None:
    stored_ms = leader.registered_ms()
    assert stored_ms is not None
    assert abs(time.time() * 1000 - stored_ms) < 60_000, "its clock is this host's"
    other = cluster.broker()
    register(other, 1)  # of the same directory: that life is over
    assert leader.registered_ms() is None
    assert (other.registered_ms() or 0) >= stored_ms


def test_an_isr_change_is_stored_at_its_version(cluster: Cluster, leader: BrokerStore) -> None:
    assert changed(leader, isr_write()) == IsrCommitted(1)
    node = cluster.session().read_now(paths.leader_and_isr(FOO))
    assert node is not None
    assert (node.version, node.data) == (1, encode(state(isr=(1, 2))))


def refused_as_it_was(answer: object) -> bool:
    return (
        isinstance(answer, IsrRefused)
        and answer.current is not None
        and (answer.current.version, answer.current.state) == (0, state())
    )


def test_a_change_against_an_older_version_or_by_an_earlier_life_is_refused(
    cluster: Cluster, leader: BrokerStore
) -> None:
    assert refused_as_it_was(changed(leader, isr_write(version=3)))
    assert refused_as_it_was(changed(leader, isr_write(broker_epoch=4)))
    register(leader, 1, continues=0)
    assert refused_as_it_was(changed(leader, isr_write(broker_epoch=0)))


def test_a_topic_made_again_is_not_this_one(
    cluster: Cluster, controller: ZooKeeperControllerStore, leader: BrokerStore
) -> None:
    session = cluster.session()
    session.commit_now((Delete(paths.topic_id("id-foo"), -1), Create(paths.topic_id("id-again"))))
    assert changed(leader, isr_write()) == IsrRefused(None)


def test_a_broker_joins_only_at_its_epoch_and_while_it_stays(cluster: Cluster, leader: BrokerStore) -> None:
    joining = cluster.broker()
    assert refused_as_it_was(changed(leader, isr_write(joining={2: 0})))  # never registered
    register(joining, 2)
    register(joining, 2, continues=0)
    assert refused_as_it_was(changed(leader, isr_write(joining={2: 0})))  # registered again
    joining.mark_shutting_down()
    joining.mark_shutting_down()
    assert refused_as_it_was(changed(leader, isr_write(joining={2: 1})))  # about to go
    register(joining, 2, continues=1)
    assert changed(leader, isr_write(joining={2: 2})) == IsrCommitted(1)


def test_an_isr_change_counts_more_than_its_notification(cluster: Cluster, leader: BrokerStore) -> None:
    session = cluster.session()
    session.commit_now((Delete(paths.ISR_CHANGES, -1),))
    assert changed(leader, isr_write()) == IsrCommitted(1)


def test_headless_changes_leave_no_notification(
    cluster: Cluster, controller: ZooKeeperControllerStore, leader: BrokerStore
) -> None:
    controller.resign()
    session = cluster.session()
    heard = Heard()
    cluster.controller().watch_vacancy(heard)
    heard.take()
    eventually(lambda: leader.controller() is None, "its broker sees that nobody commands")
    assert changed(leader, isr_write()) == IsrCommitted(1)
    assert session.children_now(paths.ISR_CHANGES) == []


def test_a_change_whose_answer_is_lost_is_unanswered_and_the_repeat_shows_it_was_stored(
    cluster: Cluster, controller: ZooKeeperControllerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed(controller, [(topic_write("foo"),), (partition_write("foo", 0),)])
    proxy = Proxy(cluster.address)
    leader = cluster.broker(proxy.address)
    register(leader, 1)
    sends = IsrWrites._send

    def swallowed(*given: Any, **named: Any) -> None:
        """Its read is answered by then."""
        monkeypatch.undo()
        proxy.swallow()
        sends(*given, **named)

    monkeypatch.setattr(IsrWrites, "_send", swallowed)
    heard = Heard()
    leader.change_isr(isr_write(), heard)
    proxy.wait_swallowed()
    proxy.cut()
    assert heard.take() == IsrUnanswered()
    again = changed(leader, isr_write())
    assert isinstance(again, IsrRefused)
    assert again.current is not None
    assert (again.current.version, again.current.state) == (1, isr_write().state)
    proxy.close()


def test_changes_of_many_partitions_are_pipelined_each_with_its_own_answer(
    cluster: Cluster, controller: ZooKeeperControllerStore
) -> None:
    count = 1_000
    committed(controller, [(topic_write("foo", count),), *((partition_write("foo", n),) for n in range(count))])
    leader = cluster.broker()
    register(leader, 1)
    heard = [Heard() for _ in range(count)]
    for number, answer in enumerate(heard):
        write = isr_write(partition=TopicPartition("foo", number), version=1 if number % 10 == 0 else 0)
        leader.change_isr(write, answer)
    for number, answer in enumerate(heard):
        told = answer.take()
        assert refused_as_it_was(told) if number % 10 == 0 else told == IsrCommitted(1)


def test_assignments_and_metadata_are_read_whole(
    cluster: Cluster, controller: ZooKeeperControllerStore, leader: BrokerStore
) -> None:
    committed(controller, [(topic_write("bar", 2),), (partition_write("bar", 1),)])
    commands, unreadable = leader.read_assigned(1)
    assert [(command.topic_partition, command.partition_epoch) for command in commands] == [
        (TopicPartition("bar", 1), 0),
        (FOO, 0),
    ]
    assert commands[1].topic_id == "id-foo"
    assert commands[1].replicas == (1, 2, 3)
    assert leader.read_assigned(7) == ([], unreadable) == ([], ALL_READ)
    everything = leader.read_all()
    assert everything.partitions == commands
    assert everything.unmade == {TopicPartition("bar", 0)}
    assert set(everything.topics) == {"foo", "bar"}
    assert everything.topic_ids == {"foo": "id-foo", "bar": "id-bar"}
    assert everything.brokers == leader.read_brokers()
    assert set(everything.brokers.brokers) == {1}


def test_no_id_is_given_for_a_driver_that_commands_no_more(
    cluster: Cluster, controller: ZooKeeperControllerStore
) -> None:
    store = cluster.broker()
    epoch = store.read_all().controller_epoch
    assert store.allocate_broker_id(epoch) == 1
    with pytest.raises(StaleLease, match=f"controller epoch {epoch} commands"):
        store.allocate_broker_id(epoch - 1)
    assert store.allocate_broker_id(epoch) == 2


def test_ids_are_given_once(cluster: Cluster, controller: ZooKeeperControllerStore) -> None:
    stores = [cluster.broker() for _ in range(4)]
    assert stores[0].allocate_broker_id() == 1
    with ThreadPoolExecutor(4) as pool:
        brokers = list(pool.map(lambda store: store.allocate_broker_id(), stores))
    assert sorted(brokers) == [2, 3, 4, 5]


def test_before_any_controller_there_is_no_cluster(cluster: Cluster) -> None:
    broker = cluster.broker()
    assert broker.cluster_info() is None
    assert broker.controller() is None
    for early in (lambda: broker.wait_for_cluster(0.2), broker.allocate_broker_id, lambda: register(broker, 1)):
        with pytest.raises(NotReady, match="start one"):
            early()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(broker.wait_for_cluster, 20)
        loaded = cluster.controller().campaign("a", "127.0.0.1", 1)
        assert loaded is not None
        assert waiting.result(20).cluster_id == loaded.cluster_id
    assert broker.cluster_info() == waiting.result()


def test_a_stopping_broker_marks_its_own_registration_only(
    cluster: Cluster, controller: ZooKeeperControllerStore
) -> None:
    earlier, later = cluster.broker(), cluster.broker()
    register(earlier, 1)
    register(later, 1)
    with pytest.raises(StaleBrokerEpoch):
        earlier.mark_shutting_down()
    later.mark_shutting_down()
    assert later.read_brokers().brokers[1].shutting_down

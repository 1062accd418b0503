"""Z1: of every node there is a value or a reason. Any ZooKeeper client may have written anything anywhere: a controller
wins and loads all else, its watches go on, brokers read all else, and what cannot be read is left as it is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient
from kazoo.security import ACL, ANYONE_ID_UNSAFE, Permissions

from spark_replication.core.controller.cluster import LoadedCluster
from spark_replication.core.controller.events import BrokersRead, NodesUnreadable, PartitionsRead
from spark_replication.core.law.writes import Refused
from spark_replication.errors import CorruptState
from spark_replication.model import TopicPartition, encode
from spark_replication.zk import paths
from spark_replication.zk.broker.store import BrokerStore
from spark_replication.zk.controller.store import ZooKeeperControllerStore
from spark_replication.zk.operations import SetData
from tests.waiting import eventually

from .conftest import Cluster
from .helpers import DEADLINE_S, Heard, committed, partition_write, register, state, topic_write

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

FOO, BAR = TopicPartition("foo", 0), TopicPartition("bar", 0)
DIGITS = "9" * 5_000
GARBAGE = {
    "not_json": b"not json",
    "empty": b"",
    "binary": b"\xff\xfe\x00",
    "another_type": b"7",
    "newer": b'{"v":2,"all":"else"}',
    "5000_digits": b'{"v":1%s}' % (b"0" * 5_000),
    "closed": None,  # nobody may read it
}
OPEN = [ACL(Permissions.ALL, ANYONE_ID_UNSAFE)]
HIDDEN = [ACL(Permissions.ALL & ~Permissions.READ, ANYONE_ID_UNSAFE)]

# What a controller loads: what it says of it.
LOADED = (
    f"{paths.BROKER_IDS}/7",
    f"{paths.BROKER_EPOCHS}/7",
    f"{paths.TOPICS}/x",
    paths.leader_and_isr(BAR),
    paths.leader_and_isr(TopicPartition("foo", 5)),
    paths.topic_config("bar"),
    paths.CLUSTER_CONFIG,
)
# What it reads as it watches.
WATCHED = (
    f"{paths.REASSIGNED}/foo/0",
    f"{paths.ADDED}/foo/1",
    f"{paths.PREFERRED_ELECTION}",
    f"{paths.ISR_CHANGE_PREFIX}0000000000",
)
# Names that say nothing, whatever is in the node.
NAMES = (
    f"{paths.BROKER_IDS}/note",
    f"{paths.BROKER_IDS}/-1",
    f"{paths.BROKER_IDS}/{DIGITS}",
    f"{paths.BROKER_EPOCHS}/note",
    f"{paths.ADDED}/orders/{DIGITS}",
    f"{paths.REMOVED}/foo/٠",
    f"{paths.REASSIGNED}/foo/2147483648",
    f"{paths.TOPICS}/foo/note",
    f"{paths.TOPICS}/foo/{DIGITS}",
)
# What nobody needs in order to go on.
OTHERS = (paths.BROKER_SEQUENCE,)


class Stranger:
    """Any ZooKeeper client."""

    def __init__(self, cluster: Cluster) -> None:
        self._client = KazooClient(f"{cluster.address}{cluster.chroot}")
        self._client.start()

    def put(self, path: str, data: bytes | None) -> None:
        if self._client.exists(path):
            self._client.set(path, data or b"")
        else:
            self._client.create(path, data or b"", makepath=True)
        if data is None:
            self._client.set_acls(path, HIDDEN)

    def hide(self, path: str) -> None:
        self._client.ensure_path(path)
        self._client.set_acls(path, HIDDEN)

    def left(self, path: str) -> bytes:
        """What is there still."""
        self._client.set_acls(path, OPEN)
        data, _ = self._client.get(path)
        return bytes(data)

    def remove(self, path: str) -> None:
        self._client.delete(path)

    def close(self) -> None:
        self._client.stop()
        self._client.close()


@pytest.fixture
def stranger(cluster: Cluster) -> Iterator[Stranger]:
    stored = cluster.controller()
    assert stored.campaign("before", "host", 1) is not None
    broker = cluster.broker()
    register(broker, 1)
    committed(stored, [(topic_write("foo"),), (topic_write("bar"),)])
    committed(stored, [(partition_write("foo", 0),), (partition_write("bar", 0),)])
    stored.resign()
    found = Stranger(cluster)
    yield found
    found.close()


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("path", LOADED)
def test_what_cannot_be_loaded_keeps_nobody_from_the_rest(
    cluster: Cluster, stranger: Stranger, path: str, garbage: str
) -> None:
    stranger.put(path, GARBAGE[garbage])
    loaded = _goes_on(cluster)
    assert path in loaded.unreadable.reasons
    assert loaded.unreadable.topics == {
        name for name in ("x", "bar") if path in (paths.topic(name), paths.topic_config(name))
    }
    assert loaded.unreadable.settings is (path == paths.CLUSTER_CONFIG)
    assert set(loaded.partitions) == {FOO, BAR} - loaded.unreadable.partitions - {
        each for each in (BAR,) if each.topic in loaded.unreadable.topics
    }
    assert stranger.left(path) == (GARBAGE[garbage] or b"")


@pytest.mark.parametrize(
    ("path", "garbage"),
    [  # without data it is a request: for all that can
        (path, garbage)
        for path in WATCHED
        for garbage in GARBAGE
        if (path, garbage) != (paths.PREFERRED_ELECTION, "empty")
    ],
)
def test_what_cannot_be_read_while_it_watches_is_said_and_left(
    cluster: Cluster, stranger: Stranger, path: str, garbage: str
) -> None:
    stranger.put(path, GARBAGE[garbage])
    controller, heard = _watching(cluster)
    told = heard.take_until(lambda event: isinstance(event, NodesUnreadable))
    assert list(told.reasons) == [path]
    assert stranger.left(path) == (GARBAGE[garbage] or b"")
    stranger.remove(path)
    # `left` made the node readable: the watch may look at it before it is removed, and tell another reason.
    told = heard.take_until(lambda event: isinstance(event, NodesUnreadable) and list(event.reasons) != [path])
    assert told.reasons == {}
    assert controller.dead_thread() == ""


@pytest.mark.parametrize("garbage", ["not_json", "closed"])
@pytest.mark.parametrize("path", NAMES, ids=lambda path: path[:40])
def test_a_name_that_is_no_number_is_nobody(cluster: Cluster, stranger: Stranger, path: str, garbage: str) -> None:
    stranger.put(path, GARBAGE[garbage])
    loaded = _goes_on(cluster)
    assert set(loaded.partitions) == {FOO, BAR}
    assert stranger.left(path) == (GARBAGE[garbage] or b"")


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("path", OTHERS)
def test_ids_that_cannot_be_given_are_the_trouble_of_who_asks(
    cluster: Cluster, stranger: Stranger, path: str, garbage: str
) -> None:
    stranger.put(path, GARBAGE[garbage])
    _goes_on(cluster)


def test_whoever_commands_may_be_unreadable(cluster: Cluster, stranger: Stranger) -> None:
    broker = cluster.broker()
    stranger.put(paths.CONTROLLER, b"not json")
    assert cluster.controller().campaign("late", "host", 1) is None
    assert cluster.broker().controller() is None
    assert broker.read_all().topics.keys() == {"foo", "bar"}


def test_whoever_commands_next_is_found_though_the_last_could_not_be_looked_at(
    cluster: Cluster, stranger: Stranger
) -> None:
    """ZooKeeper tells of nothing that happens to a node that one may not read: it is looked at again and again."""
    before = cluster.controller()
    assert before.campaign("before", "host", 1) is not None
    stranger.hide(paths.CONTROLLER)
    broker = cluster.broker()
    assert broker.controller() is None
    before.resign()
    assert cluster.controller().campaign("next", "host", 2) is not None
    eventually(lambda: broker.controller() is not None, "it is found", DEADLINE_S)


@pytest.mark.parametrize("folder", [paths.DELETE_TOPICS, f"{paths.ADDED}/foo", f"{paths.DELETE_TOPICS}/foo"])
def test_a_request_that_nobody_may_read_does_not_end_the_watch(
    cluster: Cluster, stranger: Stranger, folder: str
) -> None:
    controller, heard = _watching(cluster)
    stranger.hide(folder)
    stranger.put(f"{paths.REASSIGNED}/foo/0", b"not json")
    told = heard.take_until(lambda event: isinstance(event, NodesUnreadable) and len(event.reasons) == 2)
    assert set(told.reasons) == {folder, f"{paths.REASSIGNED}/foo/0"}
    assert controller.dead_thread() == ""


def test_one_bad_registration_hides_no_other_coming(cluster: Cluster, stranger: Stranger) -> None:
    controller, heard = _watching(cluster)
    for garbage in (b"not json", None):
        stranger.put(f"{paths.BROKER_IDS}/7", garbage)
        heard.take_until(lambda event: isinstance(event, BrokersRead) and event.unreadable.brokers == {7})
    late = cluster.broker()
    register(late, 2)
    heard.take_until(lambda event: isinstance(event, BrokersRead) and 2 in event.brokers)
    late.close()
    heard.take_until(lambda event: isinstance(event, BrokersRead) and 2 not in event.brokers)
    assert controller.dead_thread() == ""


def test_a_write_that_meets_what_cannot_be_read_is_refused_and_says_so(cluster: Cluster, stranger: Stranger) -> None:
    controller, heard = _watching(cluster)
    for number, garbage in enumerate((b'{"v":2}', None), start=1):
        stranger.put(paths.leader_and_isr(BAR), garbage)
        answers = committed(controller, [(partition_write("bar", 0, version=0, of=state(1, 1)),)])
        assert answers == [Refused({BAR: None})]
        told = heard.take_until(lambda event: isinstance(event, PartitionsRead) and bool(event.unreadable.reasons))
        assert told.unreadable.partitions == {BAR}, number


def test_once_it_can_be_read_again_everything_is_loaded_anew(cluster: Cluster, stranger: Stranger) -> None:
    deposed = Heard()
    stranger.put(paths.leader_and_isr(BAR), b'{"v":2}')
    controller = cluster.controller(deposed)
    assert controller.campaign("new", "host", 2) is not None
    controller.watch(Heard())
    cluster.session().commit_now((SetData(paths.leader_and_isr(BAR), encode(state()), 1),))
    assert "leaderAndISR' can be read again, or is gone" in deposed.take()


@pytest.mark.parametrize("path", [paths.CLUSTER, paths.CONTROLLER_EPOCH])
def test_only_these_two_end_a_candidacy(cluster: Cluster, stranger: Stranger, path: str) -> None:
    stranger.put(path, b"not json")
    with pytest.raises(CorruptState, match=path):
        cluster.controller().campaign("new", "host", 2)


def _watching(cluster: Cluster) -> tuple[ZooKeeperControllerStore, Heard]:
    controller, heard = cluster.controller(), Heard()
    assert controller.campaign("new", "host", 2) is not None
    controller.watch(heard)
    return controller, heard


def _goes_on(cluster: Cluster) -> LoadedCluster:
    """A controller takes over, and is told of who comes; brokers register and read: foo is there for all of them."""
    controller = cluster.controller()
    loaded = controller.campaign("new", "host", 2)
    assert loaded is not None
    assert "foo" in loaded.topics
    heard = Heard()
    controller.watch(heard)
    broker = cluster.broker()
    register(broker, 2)
    heard.take_until(lambda event: isinstance(event, BrokersRead) and {1, 2} <= event.brokers.keys())
    assert controller.dead_thread() == ""
    _reads(broker)
    return loaded


def _reads(broker: BrokerStore) -> None:
    everything = broker.read_all()
    assert FOO in {command.topic_partition for command in everything.partitions}
    assert {1, 2} <= everything.brokers.brokers.keys()
    assigned, unreadable = broker.read_assigned(1)
    assert FOO in {command.topic_partition for command in assigned}
    assert unreadable.hides(BAR) or BAR in {command.topic_partition for command in assigned}

"""Finding leaders: any broker is asked, once for all who wait, and within the deadline."""

from __future__ import annotations

import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec
import pytest

from spark_replication.client.finding.bootstrap import (
    MirroredBrokers,
    NamedBrokers,
    NamedCluster,
    ZooKeeperBrokers,
    parse_bootstrap,
)
from spark_replication.client.finding.deadline import Deadline, persistently
from spark_replication.client.finding.routes import Routes
from spark_replication.engine.client.pausing import BACK_OFF_FIRST_S, BACK_OFF_MAX_S, back_off_s, look_again_s
from spark_replication.errors import (
    AuthenticationFailed,
    BrokerNotAvailable,
    ClientClosed,
    ClusterNotFound,
    InvalidConfig,
    LeaderNotAvailable,
    NotController,
    UnknownTopicOrPartition,
)
from spark_replication.model import TopicPartition
from spark_replication.transport.proofs.token import Token
from spark_replication.transport.proofs.tokens import Tokens
from spark_replication.transport.security.security import Security
from tests.unit.client.fake_cluster import FakeCluster
from tests.waiting import eventually


def soon() -> Deadline:
    return Deadline(10_000)


def test_a_route_is_asked_for_once_until_it_is_stale(cluster: FakeCluster) -> None:
    routes = Routes(cluster.bootstrap)
    first = routes.route("orders", 0, soon())
    assert first.address == cluster.brokers[1].address
    cluster.lead(2)
    assert routes.route("orders", 0, soon()) is not None
    assert cluster.asked_metadata == 1
    routes.stale(first)
    second = routes.route("orders", 0, soon())
    assert (second.leader, second.leader_epoch, second.address) == (2, 1, cluster.brokers[2].address)
    assert cluster.asked_metadata == 2
    routes.stale(first)
    assert routes.route("orders", 0, soon()) == second
    assert cluster.asked_metadata == 2, "a report of what has been replaced says nothing"


class Named:
    """A bootstrap that knows a controller."""

    def __init__(self, *brokers: str, controller: str | None) -> None:
        self._found = NamedCluster(list(brokers), controller=controller)

    def cluster(self, timeout_ms: int) -> NamedCluster:
        return self._found


DEAD = "127.0.0.1:1"


def test_where_no_broker_answers_the_controller_does(cluster: FakeCluster) -> None:
    routes = Routes(DEAD)
    routes._bootstrap = Named(DEAD, controller=cluster.brokers[1].address)
    assert sorted(routes.metadata((), soon()).brokers) == sorted(cluster.brokers)
    routes._bootstrap = Named(DEAD, controller=None)
    routes._routing = msgspec.structs.replace(routes._routing, brokers={})
    assert sorted(routes.metadata((), soon()).brokers) == sorted(cluster.brokers), "one that is known from before does"
    unknown = Routes(DEAD)
    unknown._bootstrap = Named(DEAD, controller=DEAD)
    with pytest.raises(BrokerNotAvailable, match=rf"{DEAD}: "):
        unknown.metadata((), soon())


def test_an_address_that_serves_pages_is_told_from_a_broker_that_does_not_answer() -> None:
    """Of the addresses that a start prints, a page's comes first."""

    class Quiet(BaseHTTPRequestHandler):
        def log_message(self, *_args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as pages:
        threading.Thread(target=pages.serve_forever, daemon=True).start()
        with pytest.raises(BrokerNotAvailable, match="what listens there is no broker, a cluster's page perhaps"):
            Routes(f"127.0.0.1:{pages.server_port}").metadata((), soon())
        pages.shutdown()


def test_where_nobody_has_ever_answered_the_search_ends_in_time(cluster: FakeCluster) -> None:
    def asked(routes: Routes) -> object:
        deadline = soon()
        return persistently(lambda: routes.metadata((), deadline), deadline)

    began_s = time.monotonic()
    with pytest.raises(ClusterNotFound, match=rf"nobody has answered at '{DEAD}' for 0 s \({DEAD}: "):
        asked(Routes(DEAD, reach_ms=300))
    assert 0.2 < time.monotonic() - began_s < soon().timeout_ms / 2000
    routes = Routes(cluster.bootstrap, reach_ms=300)
    asked(routes)
    routes._bootstrap = Named(DEAD, controller=None)
    for broker in cluster.brokers.values():
        broker.close()
    time_left = Deadline(600)
    with pytest.raises(BrokerNotAvailable):
        persistently(lambda: routes.metadata((), time_left), time_left)
    assert time_left.remaining_ms < 300, "who was there once is looked for as long as each question may take"


def test_where_a_controller_alone_answers_the_search_for_a_leader_ends_in_time(cluster: FakeCluster) -> None:
    def leader(routes: Routes, deadline: Deadline) -> object:
        return persistently(lambda: routes.route("orders", 0, deadline), deadline)

    def alone() -> Routes:
        routes = Routes(DEAD, reach_ms=300)
        routes._bootstrap = Named(controller=cluster.brokers[1].address)
        return routes

    cluster.registered = set()
    with pytest.raises(ClusterNotFound, match=rf"orders-0 cannot be reached: no broker of '{DEAD}' is registered"):
        leader(alone(), soon())
    patient = Routes(DEAD)
    patient._bootstrap = Named(controller=cluster.brokers[1].address)
    with pytest.raises(LeaderNotAvailable):
        leader(patient, Deadline(600))
    cluster.registered = None
    routes = alone()
    leader(routes, soon())
    cluster.registered = set()
    routes.stale_topic("orders")
    left = Deadline(600)
    with pytest.raises(LeaderNotAvailable):
        leader(routes, left)
    assert left.remaining_ms < 300, "whose brokers were there once is waited for as long as each question may take"


def test_a_controller_that_the_bootstrap_names_hides_no_other(cluster: FakeCluster) -> None:
    """Tables may name the one before."""
    routes = Routes(DEAD)
    routes._routing = msgspec.structs.replace(routes._routing, controller=cluster.brokers[1].address)
    routes._bootstrap = Named(controller=DEAD)
    assert routes.metadata((), soon()).brokers


def test_who_hangs_hides_nobody_however_soon_the_search_would_end(cluster: FakeCluster) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hanging:  # it takes connections, and never answers
        address = f"127.0.0.1:{hanging.getsockname()[1]}"
        routes = Routes(f"{address},{cluster.brokers[1].address}", reach_ms=1)
        assert routes.metadata((), soon()).brokers


def test_who_did_not_answer_in_time_is_asked_again_for_no_longer_than_the_search_lasts() -> None:
    asked: list[int] = []

    class Silent:
        def cluster(self, timeout_ms: int) -> NamedCluster:
            asked.append(timeout_ms)
            raise BrokerNotAvailable("there is no such path" if timeout_ms > 1_000 else "nobody answers")

    routes = Routes(DEAD, reach_ms=500)
    routes._bootstrap = Silent()
    deadline = soon()
    with pytest.raises(ClusterNotFound, match="there is no such path"):
        persistently(lambda: routes.metadata((), deadline), deadline)
    assert asked[0] > 1_000, "the first time it has all the time that an answer may take"
    assert len(asked) > 1
    assert max(asked[1:]) <= 500


def test_of_a_topic_only_the_partitions_are_asked_for_whose_routes_are_stale(cluster: FakeCluster) -> None:
    cluster.create("wide", 5)
    routes = Routes(cluster.bootstrap)
    found = [routes.route("wide", number, soon()) for number in range(5)]
    orders = routes.route("orders", 0, soon())
    cluster.lead(2)
    for each in (found[3], found[1], orders):
        routes.stale(each)
    assert routes.topic("wide", soon()).name == "wide"
    asked = cluster.asked_metadata
    assert routes.known(TopicPartition("wide", 2)) == found[2], "nobody reported it"
    assert routes.known(TopicPartition("wide", 3)) is None
    assert routes.latest(TopicPartition("wide", 3)) == found[3]
    assert routes.route("wide", 1, soon()).leader_epoch == found[1].leader_epoch
    assert (cluster.asked_topics[-1], cluster.asked_only) == (("orders", "wide"), {"wide": (1, 3), "orders": (0,)})
    assert routes.known(TopicPartition("orders", 0)) is not None
    assert cluster.asked_metadata == asked + 1, "one question for all"


def test_a_topic_that_was_reported_is_asked_for_as_a_whole(cluster: FakeCluster) -> None:
    cluster.create("wide", 2)
    routes = Routes(cluster.bootstrap)
    routes.stale(routes.route("wide", 1, soon()))
    routes.stale_topic("wide")
    cluster.create("wide", 3)
    assert len(routes.topic("wide", soon()).partitions) == 3
    assert (cluster.asked_topics[-1], cluster.asked_only) == (("wide",), {})
    asked = cluster.asked_metadata
    assert routes.known(TopicPartition("wide", 1)) is not None
    assert cluster.asked_metadata == asked


def test_a_partition_that_nobody_knew_is_looked_for_in_the_whole_topic(cluster: FakeCluster) -> None:
    cluster.create("narrow", 2)
    routes = Routes(cluster.bootstrap)
    routes.route("narrow", 0, soon())
    with pytest.raises(UnknownTopicOrPartition, match=r"narrow has the partitions 0 to 1: choose one of them"):
        routes.route("narrow", 2, soon())
    cluster.create("narrow", 3)
    assert routes.route("narrow", 2, soon()).partition == 2
    assert cluster.asked_only == {}


def test_one_thread_asks_for_all_that_wait(cluster: FakeCluster) -> None:
    routes = Routes(cluster.bootstrap)
    route = routes.route("orders", 0, soon())
    routes.stale(route)
    found = []
    with cluster.changed:
        threads = [threading.Thread(target=lambda: found.append(routes.route("orders", 0, soon()))) for _ in range(10)]
        for thread in threads:
            thread.start()
    for thread in threads:
        thread.join(10)
    assert found == [route] * 10
    assert cluster.asked_metadata == 2


def test_whoever_does_not_prove_to_be_a_broker_says_nothing_of_the_others(cluster: FakeCluster) -> None:
    cluster.tokens = Tokens.of(Token("of-this-cluster"))

    def newcomer() -> Routes:
        return Routes(cluster.bootstrap, Security(mode="token", tokens=cluster.tokens))

    for impostor in cluster.brokers:
        cluster.impostors = {impostor}
        assert newcomer().route("orders", 0, soon()).leader == 1
    cluster.impostors = {*cluster.brokers}
    asked, deadline = cluster.asked_metadata, soon()
    with pytest.raises(AuthenticationFailed):
        newcomer().route("orders", 0, deadline)
    assert deadline.remaining_s > 5, "to ask each of them once is enough"
    assert cluster.asked_metadata == asked


def test_a_dead_broker_is_passed_over_and_found_again(cluster: FakeCluster) -> None:
    routes = Routes(cluster.bootstrap)
    cluster.brokers[1].proxy.down()
    for _ in range(4):
        assert routes.metadata(None, soon()).cluster_id == "fake"
    cluster.brokers[1].proxy.up()
    cluster.brokers[2].proxy.down()
    assert routes.metadata(None, soon()).cluster_id == "fake"


def test_when_none_answers_the_error_says_who_was_tried(cluster: FakeCluster) -> None:
    for broker in cluster.brokers.values():
        broker.proxy.down()
    with pytest.raises(BrokerNotAvailable, match="check the addresses") as raised:
        Routes(cluster.bootstrap).route("orders", 0, soon())
    assert all(broker.address in raised.value.message for broker in cluster.brokers.values())
    assert not raised.value.maybe_written


def test_no_leader_is_asked_for_again(cluster: FakeCluster) -> None:
    routes = Routes(cluster.bootstrap)
    cluster.lead(None)
    with pytest.raises(LeaderNotAvailable):
        routes.route("orders", 0, soon())
    cluster.lead(2)
    assert routes.route("orders", 0, soon()).leader == 2


def test_a_topic_that_a_broker_hears_of_late_is_waited_for(cluster: FakeCluster) -> None:
    routes = Routes(cluster.bootstrap)
    with pytest.raises(UnknownTopicOrPartition):
        routes.route("late", 0, soon())
    found = []
    waiting = threading.Thread(target=lambda: found.append(routes.await_topic("late", soon(), 1).name))
    waiting.start()
    with cluster.changed:
        asked = cluster.asked_metadata
        assert cluster.changed.wait_for(lambda: cluster.asked_metadata > asked, 10)
    cluster.create("late", 2)
    waiting.join(10)
    assert found == ["late"]


def test_a_topic_that_has_no_partitions_yet_is_asked_for_until_it_has(cluster: FakeCluster) -> None:
    cluster.create("young", 0)
    routes = Routes(cluster.bootstrap)
    with pytest.raises(UnknownTopicOrPartition, match="no partitions yet: retry"):
        routes.topic("young", soon())
    cluster.create("young", 2)
    assert routes.topic("young", soon()).numbers == (0, 1)


def test_a_topic_that_no_broker_has_heard_of_is_asked_of_the_controller(cluster: FakeCluster) -> None:
    late = cluster.brokers[2]
    late.frozen_metadata = msgspec.structs.replace(cluster.metadata(None), brokers={2: late.registration})
    routes = Routes(late.address)
    cluster.create("new")
    assert routes.route("new", 0, soon()).address == cluster.brokers[1].address
    cluster.brokers[1].proxy.down()  # the controller, which answers nobody now
    cluster.create("newer")
    with pytest.raises(UnknownTopicOrPartition, match="knows a topic 'newer'"):
        routes.route("newer", 0, soon())


def test_a_broker_that_does_not_answer_costs_no_more_than_the_deadline(cluster: FakeCluster) -> None:
    routes = Routes(cluster.bootstrap)
    begun_s = time.monotonic()
    with cluster.changed, pytest.raises(BrokerNotAvailable, match="REQUEST_TIMED_OUT"):
        routes.route("orders", 0, Deadline(300))
    assert time.monotonic() - begun_s < 5


def test_a_closed_client_says_so(cluster: FakeCluster) -> None:
    routes = Routes(cluster.bootstrap)
    routes.close()
    with pytest.raises(ClientClosed, match="open another"):
        routes.client(cluster.brokers[1].address)


@pytest.mark.parametrize("known", [False, True])
def test_nobody_waits_for_a_client_that_is_closed(cluster: FakeCluster, *, known: bool) -> None:
    routes = Routes(cluster.bootstrap)
    if known:
        routes.await_topic("orders", Deadline(15_000))
    routes.close()
    with pytest.raises(ClientClosed) as closed:
        routes.await_topic("orders", Deadline(60_000))
    assert not closed.value.retriable
    with pytest.raises(ClientClosed):
        routes.route("others", 0, Deadline(60_000))


def test_whoever_waits_for_a_topic_while_the_client_is_closed_is_told_at_once(cluster: FakeCluster) -> None:
    cluster.refuse_metadata = LeaderNotAvailable("wait")
    routes = Routes(cluster.bootstrap)
    told: list[BaseException | None] = []

    def wait() -> None:
        with pytest.raises(ClientClosed) as closed:
            routes.await_topic("orders", Deadline(60_000))
        told.append(closed.value)

    waiting = threading.Thread(target=wait)
    waiting.start()
    eventually(lambda: cluster.asked_metadata > 4, "it asks again and again")
    routes.close()
    waiting.join(10.0)
    assert len(told) == 1


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("a:1", NamedBrokers),
        ("a:1, b:2", NamedBrokers),
        ("zk://a:1,b:2/root/deep", ZooKeeperBrokers),
        ("delta:/tables", MirroredBrokers),
    ],
)
def test_bootstrap_forms(text: str, kind: type) -> None:
    assert isinstance(parse_bootstrap(text), kind)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no address"),
        ("a", r"holds \['a'\]"),
        ("a:1,b", r"holds \['b'\]"),
        ("grpc://a:1", "host:port"),
        ("zk://a:1", "names no chroot"),
        ("zk://a:1/", "names no chroot"),
        ("zk:///root", "no address"),
        ("delta:", "names no path"),
        ("delta: ", "names no path"),
    ],
)
def test_a_wrong_bootstrap_is_refused(text: str, says: str) -> None:
    with pytest.raises(InvalidConfig, match=says):
        parse_bootstrap(text)


def test_back_off_doubles_up_to_its_limit() -> None:
    assert [back_off_s(failures) for failures in (1, 2, 3)] == [0.01, 0.02, 0.04]
    assert back_off_s(1_000) == BACK_OFF_MAX_S


def test_a_leader_is_looked_for_again_within_a_fifth_of_how_long_it_has_been_away() -> None:
    waited_s = 0.0
    for failures in range(1, 30):
        wait_s = look_again_s(failures)
        assert wait_s <= BACK_OFF_FIRST_S + waited_s / 5 + 1e-9
        waited_s += wait_s
    assert look_again_s(1) == BACK_OFF_FIRST_S
    assert look_again_s(1_000) == BACK_OFF_MAX_S


def test_what_failed_before_is_told_when_the_last_try_had_no_time() -> None:
    deadline = Deadline(30)
    errors = iter([NotController("nobody commands"), BrokerNotAvailable("no time")])

    def attempt() -> None:
        error = next(errors)
        while isinstance(error, BrokerNotAvailable) and not deadline.passed:
            pass
        raise error

    with pytest.raises(NotController, match="nobody commands"):
        persistently(attempt, deadline)


def test_what_no_retry_mends_is_tried_once() -> None:
    tries = []

    def attempt() -> None:
        tries.append(1)
        raise InvalidConfig("wrong")

    with pytest.raises(InvalidConfig):
        persistently(attempt, soon())
    assert tries == [1]

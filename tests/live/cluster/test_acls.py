"""Who may do what, and how much of it, on live clusters in mode token and in mode tls."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace
from pyarrow import flight

import spark_replication as sr
from spark_replication.engine.client import reporting
from spark_replication.errors import (
    ClusterAuthorizationFailed,
    GroupAuthorizationFailed,
    Overloaded,
    RequestTimedOut,
    TopicAuthorizationFailed,
)
from spark_replication.messages.actions import DESCRIBE_TOPICS, METADATA
from spark_replication.messages.descriptions import DescribeTopics, GetMetadata
from spark_replication.messages.envelope import to_json
from spark_replication.messages.groups import GROUPS_TOPIC, ResetPlace
from spark_replication.messages.quotas import QuotaKind
from spark_replication.messages.records import ReadTicket
from spark_replication.mirror.asking.load import read_groups
from spark_replication.model import TopicPartition
from spark_replication.spark.datasource import position_reports
from spark_replication.spark.datasource.options import LogOptions
from spark_replication.spark.datasource.position_reports import PositionReports
from spark_replication.transport.flight.actions import call, error_of_flight
from tests.unit.transport.certificates import Authority, tls_settings
from tests.waiting import eventually

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

SCHEMA = pa.schema([("number", pa.int64())])
BATCH = pa.record_batch([pa.array([1])], schema=SCHEMA)
CONFIG = {"security.super.users": "root", "page.enabled": False}
PRINCIPALS = ("root", "alice", "bob", "carol")
DEADLINE_S = 30.0


class Known:
    """A cluster with topics orders and stock, and the settings of each principal."""

    def __init__(self, cluster: sr.LocalCluster, settings: dict[str, dict[str, Any]]) -> None:
        self.cluster = cluster
        self.settings = settings
        for topic in ("orders", "stock"):
            cluster.admin.create_topic(topic, SCHEMA, replication_factor=2)

    def admin(self, who: str) -> sr.Admin:
        return sr.Admin(self.cluster.bootstrap, security=self.settings[who], deadline_ms=5_000)

    def write(self, who: str, topic: str = "orders") -> None:
        with sr.Producer(self.cluster.bootstrap, security=self.settings[who], deadline_ms=5_000) as producer:
            producer.send(topic, BATCH, 0).result(DEADLINE_S)

    def read(self, who: str, topic: str = "orders") -> int:
        with sr.Reader(self.cluster.bootstrap, security=self.settings[who], deadline_ms=5_000) as reader:
            return sum(batch.batch.num_rows for batch in reader.read(topic))

    def committed(self, who: str, group: str) -> int:
        """How many records it read as a member of the group."""
        bootstrap, security, rows = self.cluster.bootstrap, self.settings[who], 0
        with sr.Consumer(bootstrap, ["orders"], group=group, security=security, deadline_ms=5_000) as consumer:
            while (found := consumer.poll(timeout_s=1.0 if rows else 5.0)) is not None:
                rows += found.batch.num_rows
            consumer.commit()
        return rows

    def partitions(self, topic: str) -> int:
        (found,) = self.cluster.admin.metadata([topic]).topics
        return len(found.numbers)


def ends(admin: sr.Admin) -> set[int | None]:
    return {each.end for group in admin.groups() for each in group.partitions}


def tokens(directory: Path, **of: str) -> dict[str, Any]:
    file = directory / "-".join(of)
    file.touch(mode=0o600)
    file.write_text("".join(f"{name} {secret}\n" for name, secret in of.items()))
    return {"security.mode": "token", "security.token.file": str(file)}


@pytest.fixture(scope="module", params=["token", "tls"])
def known(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Known]:
    directory = tmp_path_factory.mktemp(request.param)
    if request.param == "token":
        serving = tokens(directory, **{name: f"the-secret-of-{name}" for name in PRINCIPALS})
        settings = {name: tokens(directory, **{name: f"the-secret-of-{name}"}) for name in PRINCIPALS}
    else:
        ours = Authority(directory)
        serving = {**tls_settings(ours, ours.issue("server"), mutual=True)}
        settings = {name: {**tls_settings(ours, ours.issue(name, name), mutual=True)} for name in PRINCIPALS}
    with sr.LocalCluster.start(brokers=2, directory=directory / "cluster", config={**CONFIG, **serving}) as cluster:
        yield Known(cluster, settings)


@pytest.fixture
def granted(known: Known) -> Iterator[Known]:
    """alice writes orders, bob reads what begins so, carol may do nothing."""
    with known.admin("root") as root:
        root.add_acls("alice write topic orders", "bob read prefix ord")
        eventually(lambda: works(lambda: known.write("alice")), "brokers have heard of it", DEADLINE_S)
        eventually(lambda: works(lambda: known.read("bob")), "brokers have heard of it", DEADLINE_S)
        yield known
        root.remove_acls(*map(str, root.acls().acls))


def works(do: Any) -> bool:
    try:
        do()
    except TopicAuthorizationFailed:
        return False
    return True


def test_each_may_do_what_it_was_granted_and_a_third_nothing(granted: Known) -> None:
    granted.write("alice")
    assert granted.read("bob") >= 1
    granted.write("root")
    for who, do, right in (
        ("alice", granted.read, "read"),
        ("bob", granted.write, "write"),
        ("carol", granted.read, "describe"),
        ("carol", granted.write, "describe"),
    ):
        with pytest.raises(TopicAuthorizationFailed) as refused:
            do(who)
        assert not refused.value.maybe_written
        assert f"client {who} may not {right} topic orders" in refused.value.message
        assert f"`spark-replication acls add {who} {right} topic orders`" in refused.value.message
    for who in ("alice", "bob"):
        for do in (granted.read, granted.write):
            with pytest.raises(TopicAuthorizationFailed, match=f"client {who} may not describe topic stock"):
                do(who, "stock")


def test_a_group_is_read_with_a_right_on_it_and_one_on_its_topic(granted: Known) -> None:
    """Nobody needs a right on the log in which groups are kept."""
    with granted.admin("root") as root:
        root.add_acls("bob read group etl", "alice describe group etl", "alice read group other")
    assert granted.committed("bob", "etl") >= 1
    with pytest.raises(
        GroupAuthorizationFailed, match=r"bob may not read group other: .*acls add bob read group other"
    ):
        granted.committed("bob", "other")
    with pytest.raises(TopicAuthorizationFailed, match=r"alice may not read topic orders"):
        granted.committed("alice", "other")
    with granted.admin("bob") as bob:
        (group,) = bob.groups()
        assert (group.group, group.lag, len(group.partitions)) == ("etl", 0, granted.partitions("orders"))
        assert [topic.name for topic in bob.metadata([GROUPS_TOPIC]).topics] == [GROUPS_TOPIC]
        assert GROUPS_TOPIC not in [topic.name for topic in bob.metadata(None).topics], "he has not asked for it"
    with granted.admin("root") as root:
        root.remove_acls("alice write topic orders")
    with granted.admin("alice") as alice:
        eventually(lambda: ends(alice) == {None}, "of a topic that she may not see, she is told positions alone")
        assert [each.group for each in alice.groups()] == ["etl"]


def test_a_spark_query_is_seen_with_a_right_on_its_group_and_says_so_without(
    granted: Known, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reporting, "AGAIN_S", 0.5)
    (orders,) = granted.cluster.admin.metadata(["orders"]).topics
    options = LogOptions(topic="orders", bootstrap=granted.cluster.bootstrap, security=granted.settings["bob"])
    reports = PositionReports(options, "copy")
    place = ResetPlace(topic="orders", partition=0, topic_id=orders.topic_id, offset=0)
    reports.note({TopicPartition("orders", 0): place}, ())
    eventually(lambda: "acls add bob read group spark:copy" in caplog.text, "it is told", DEADLINE_S)
    with granted.admin("root") as root:
        root.add_acls("bob read group_prefix spark:")
    with granted.admin("bob") as bob:
        eventually(lambda: [each.group for each in bob.groups(["spark:copy"])] == ["spark:copy"], "it is taken later")
    reports.close()
    assert len([each for each in caplog.records if each.name == position_reports.__name__]) == 1
    path = granted.cluster.mirror_path
    eventually(lambda: "spark:copy" in read_groups(path)["group"].to_pylist(), "the controller may see all groups")


def test_what_is_denied_from_here_is_refused_whatever_is_granted(granted: Known) -> None:
    """By frames, as our clients write and read, and by Flight."""
    with granted.admin("root") as root:
        root.add_acls("* read topic orders", "deny * read prefix ord from 127.0.0.0/8", "deny alice write topic orders")
        eventually(lambda: not works(lambda: granted.read("bob")), "brokers have heard of it", DEADLINE_S)
        for who, do, right in (("bob", granted.read, "read"), ("alice", granted.write, "write")):
            with pytest.raises(
                TopicAuthorizationFailed, match=f"client {who} may not {right} topic orders: it is denied"
            ):
                do(who)
        with granted.admin("bob") as bob:
            assert bob.describe_topics(["orders"]), "as in Kafka: what is granted lets it be described"
        granted.write("root")
        root.remove_acls("deny * read prefix ord from 127.0.0.0/8")
        root.add_acls("deny * read prefix ord from 10.0.0.0/8")
        eventually(lambda: works(lambda: granted.read("bob")), "it is elsewhere now", DEADLINE_S)


Ask = Callable[[sr.Admin], object]
ALTER: tuple[Ask, ...] = (
    lambda admin: admin.delete_topic("orders"),
    lambda admin: admin.create_topic("ordered", SCHEMA),
    lambda admin: admin.add_partitions("orders", 2),
    lambda admin: admin.configure("orders", {"retention.ms": 1}),
)
RULE: tuple[Ask, ...] = (
    lambda admin: admin.configure(None, {"retention.ms": 1}),
    lambda admin: admin.elect_leaders("unclean", ["orders-0"]),
    lambda admin: admin.reassign({"orders-0": [1]}),
    lambda admin: admin.add_acls("alice alter cluster", "bob alter cluster", "carol alter cluster"),
    lambda admin: admin.acls(),
    lambda admin: admin.metrics(),
)


def test_each_sees_what_it_may_and_administers_nothing(granted: Known) -> None:
    groups = [topic.name for topic in granted.cluster.admin.metadata([GROUPS_TOPIC]).topics]  # if one has been here
    root_sees = [*groups, "orders", "stock"]
    for who, seen in (("root", root_sees), ("alice", ["orders"]), ("bob", ["orders"]), ("carol", [])):
        with granted.admin(who) as admin:
            assert [topic.name for topic in admin.describe_topics()] == seen
            assert sorted(topic.name for topic in admin.metadata(None).topics) == seen
            assert names_on_pages(granted, who) == {"broker": seen, "controller": seen}
    for who in ("alice", "bob", "carol"):
        with granted.admin(who) as admin:
            for alter in ALTER:
                with pytest.raises(TopicAuthorizationFailed, match=r"may not (alter|describe) topic"):
                    alter(admin)
            for rule in RULE:
                with pytest.raises(ClusterAuthorizationFailed, match=r"may not (alter|describe) the cluster"):
                    rule(admin)
    with granted.admin("root") as root:
        assert root.acls().super_users == ("root",)
        assert [str(acl) for acl in root.acls().acls] == ["alice write topic orders", "bob read prefix ord"]


def names_on_pages(known: Known, who: str) -> dict[str, list[str]]:
    """All that pages of one partition tell of topics, whoever is asked."""
    broker = known.cluster.brokers[min(known.cluster.brokers)]
    asked_of = {"broker": f"{broker.host}:{broker.port}", "controller": known.cluster.admin.metadata(()).controller}
    names: dict[str, list[str]] = {}
    for server, address in asked_of.items():
        found: set[str] = set()
        asked: DescribeTopics | None = DescribeTopics(partitions_max=1)
        with sr.Security.of(known.settings[who]).client(address or "") as client:
            while asked is not None:
                page = call(client, DESCRIBE_TOPICS, asked, 10_000)
                found |= {topic.name for topic in page.topics} | ({page.next.topic} if page.next else set())
                asked = None if page.next is None else replace(asked, start=page.next)
        names[server] = sorted(found)
    return names


def test_the_same_rights_hold_over_flight(granted: Known) -> None:
    leader = granted.cluster.brokers[min(granted.cluster.brokers)]
    ticket = flight.Ticket(to_json(ReadTicket(topic="orders", partition=0)))
    path = flight.FlightDescriptor.for_path("orders", "0")

    def put(client: flight.FlightClient) -> None:
        writer, _ = client.do_put(path, SCHEMA)
        writer.write_batch(BATCH)
        writer.close()

    calls: dict[str, Callable[[flight.FlightClient], object]] = {
        "read": lambda client: client.do_get(ticket).read_all(),
        "write": put,
        "describe": lambda client: client.get_flight_info(path),
    }
    for who, allowed in (("alice", {"write", "describe"}), ("bob", {"read", "describe"}), ("carol", set[str]())):
        security = sr.Security.of(granted.settings[who])
        with security.client(f"{leader.host}:{leader.port}") as client:
            listed = [info.descriptor.path[0] for info in client.list_flights()]
            assert listed == ([b"orders"] if allowed else [])
            for right, ask in calls.items():
                try:
                    ask(client)
                    code = ""
                except flight.FlightError as error:
                    code = error_of_flight(error).code
                assert (code == TopicAuthorizationFailed.code) is (right not in allowed), (who, right, code)


def test_who_was_refused_is_in_the_log_with_its_host_by_whatever_door_it_came(granted: Known) -> None:
    leader = granted.cluster.brokers[min(granted.cluster.brokers)]
    bob = sr.Security.of(granted.settings["bob"])
    with bob.client(f"{leader.host}:{leader.port}") as client, pytest.raises(flight.FlightError):
        client.do_put(flight.FlightDescriptor.for_path("orders", "0"), SCHEMA)[1].read()
    with pytest.raises(TopicAuthorizationFailed):
        granted.write("bob")
    logs = [*(granted.cluster.directory / "logs").glob("*/audit.log")]
    told = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
    of_bob = [line for line in told if line["action"] == "write" and line["who"] == "client bob"]
    assert of_bob, "once a minute"
    facts = ("127.0.0.1", "orders", TopicAuthorizationFailed.code)
    assert {(line["host"], line["asked"], line["outcome"]) for line in of_bob} == {facts}


def test_what_is_taken_back_is_refused_on_a_connection_that_is_open(granted: Known) -> None:
    with (
        granted.admin("root") as root,
        sr.Producer(granted.cluster.bootstrap, security=granted.settings["alice"]) as producer,
    ):
        producer.send("orders", BATCH, 0).result(DEADLINE_S)
        root.remove_acls("alice write topic orders")

        def is_refused() -> bool:
            error = producer.send("orders", BATCH, 0).exception(DEADLINE_S)
            return isinstance(error, TopicAuthorizationFailed)

        eventually(is_refused, "brokers have heard of it", DEADLINE_S)
        root.add_acls("alice write topic orders")
        eventually(lambda: not is_refused(), "the producer is usable", DEADLINE_S)


MEGABYTE = pa.record_batch([pa.array(range(125_000))], schema=SCHEMA)
RATE = 250_000


@pytest.fixture
def root(granted: Known) -> Iterator[sr.Admin]:
    with granted.admin("root") as found:
        yield found
        for quota in found.quotas().quotas:
            found.set_quota(quota.principal, quota.kind, None)


def held_to(root: sr.Admin, granted: Known, who: str, kind: QuotaKind, limit: int) -> None:
    """Brokers have heard of it once they have heard of what came after it."""
    root.set_quota(who, kind, limit)
    root.add_acls(f"{who} describe topic of-{kind}")
    security = sr.Security.of(granted.settings[who])
    for broker in granted.cluster.brokers.values():
        with security.client(f"{broker.host}:{broker.port}") as client:
            asked = GetMetadata(topics=(f"of-{kind}",))
            eventually(lambda: works(lambda: call(client, METADATA, asked, 5_000)), "it has heard of it", DEADLINE_S)  # noqa: B023 (called at once)


def test_a_producer_over_its_quota_is_slowed_down_and_says_why(granted: Known, root: sr.Admin) -> None:
    held_to(root, granted, "alice", "producer_byte_rate", RATE)
    with sr.Producer(granted.cluster.bootstrap, security=granted.settings["alice"], deadline_ms=3_000) as producer:
        began_s = time.monotonic()
        sent = [producer.send("orders", MEGABYTE, partition=0) for _ in range(8)]
        assert sent[0].exception(DEADLINE_S) is None, "a batch is never too large for its quota"
        error = sent[-1].exception(DEADLINE_S)
        assert isinstance(error, (RequestTimedOut, Overloaded))
        assert "takes more than its quota producer_byte_rate" in error.message
        stored = sum(each.exception(DEADLINE_S) is None for each in sent) * MEGABYTE.nbytes
        took_s = time.monotonic() - began_s
        assert stored <= RATE * (took_s + 1) + 2 * MEGABYTE.nbytes
        granted.write("root")
        root.set_quota("alice", "producer_byte_rate", None)

        def is_free() -> bool:
            return producer.send("orders", MEGABYTE, partition=0).exception(DEADLINE_S) is None

        eventually(is_free, "it waits no longer", DEADLINE_S)


def test_a_reader_over_its_quota_gets_everything_in_its_time(granted: Known, root: sr.Admin) -> None:
    for _ in range(3):
        granted.write("root")
    with sr.Producer(granted.cluster.bootstrap, security=granted.settings["root"]) as producer:
        ends = [producer.send("orders", MEGABYTE, partition=0).result(DEADLINE_S).last_offset for _ in range(3)]
    held_to(root, granted, "bob", "consumer_byte_rate", MEGABYTE.nbytes)
    with sr.Reader(granted.cluster.bootstrap, security=granted.settings["bob"], deadline_ms=5_000) as reader:
        began_s = time.monotonic()
        found = sum(
            each.batch.num_rows for each in reader.read("orders", partition=0, start=ends[0] - MEGABYTE.num_rows + 1)
        )
        took_s = time.monotonic() - began_s
    assert found >= 3 * MEGABYTE.num_rows
    assert took_s > 0.9, "the last megabyte came once the one before was made up for"


def test_so_many_streams_and_so_many_requests(granted: Known, root: sr.Admin) -> None:
    bootstrap = granted.cluster.bootstrap
    held_to(root, granted, "bob", "streams", 1)
    with sr.Reader(bootstrap, security=granted.settings["bob"], deadline_ms=1_000) as reader:
        following = reader.read("orders", partition=0, follow=True)
        next(following)
        with (
            sr.Reader(bootstrap, security=granted.settings["bob"], deadline_ms=1_000) as another,
            pytest.raises(Overloaded, match="client bob has 1 streams open here"),
        ):
            next(iter(another.read("orders", partition=0)))
    held_to(root, granted, "bob", "request_rate", 4)
    with granted.admin("bob") as admin:
        began_s = time.monotonic()
        for _ in range(12):
            admin.describe_topics()
        assert time.monotonic() - began_s > (12 - 2 * 4) / (4 * len(granted.cluster.brokers)), "and none failed"
    with granted.admin("root") as other:
        for _ in range(12):
            other.describe_topics()


def test_acls_outlive_controller_and_brokers(granted: Known) -> None:
    cluster = granted.cluster
    broker = min(cluster.brokers)
    for pid in (cluster.controller_pid, cluster.brokers[broker].pid):
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
    cluster.wait_healthy()
    granted.write("alice")
    assert granted.read("bob") >= 1
    with pytest.raises(TopicAuthorizationFailed):
        granted.write("carol")
    with granted.admin("root") as root:
        assert len(root.acls().acls) == 2

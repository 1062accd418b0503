"""What administrators ask for, carried out by a whole cluster of real processes."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pyarrow as pa
import pytest
from kazoo.client import KazooClient
from msgspec.structs import replace

import spark_replication as sr
from spark_replication.client.asking.admin import PartitionDescription
from spark_replication.client.finding.deadline import Deadline
from spark_replication.client.finding.routes import Routes
from spark_replication.client.finding.topic_pages import topics_by_pages
from spark_replication.errors import InvalidPartitions, InvalidRequest, ReplicationError, UnknownTopicOrPartition
from spark_replication.messages.actions import DESCRIBE_TOPICS, Action
from spark_replication.messages.descriptions import TOPICS_A_REQUEST_MAX, DescribeTopics, TopicPage
from spark_replication.messages.envelope import Message
from tests.live.cluster.faults import held_down
from tests.live.cluster.history import SCHEMA, Load
from tests.live.cluster.replica_folders import replica_folders
from tests.live.cluster.waiting import eventually

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

DEADLINE_S = 60.0
CONFIG = {
    "zookeeper.session.ms": 6_000,
    "replica.lag.time.ms": 5_000,
    "log.delete.delay.ms": 0,
    "log.unassigned.delay.ms": 0,
}


@pytest.fixture
def person(cluster: sr.LocalCluster) -> Iterator[KazooClient]:
    client = KazooClient(hosts=cluster.zookeeper.removeprefix("zk://"))
    client.start(timeout=20)
    yield client
    client.stop()
    client.close()


def partitions_of(cluster: sr.LocalCluster, topic: str) -> dict[int, PartitionDescription]:
    (found,) = cluster.admin.describe_topics([topic])
    return {partition.partition: partition for partition in found.partitions}


def led_by(cluster: sr.LocalCluster, topic: str, partition: int = 0) -> int | None:
    found = partitions_of(cluster, topic).get(partition)
    return None if found is None else found.leader


def produce(cluster: sr.LocalCluster, topic: str, partition: int, numbers: list[int]) -> None:
    with sr.Producer(cluster.bootstrap) as producer:
        batch = pa.record_batch([pa.array(numbers)], schema=SCHEMA)
        producer.send(topic, batch, partition=partition).result(DEADLINE_S)


def rows(cluster: sr.LocalCluster, topic: str, partition: int = 0) -> list[int]:
    found = sr.Reader(cluster.bootstrap).read(topic, partition=partition)
    return [number for batch in found for number in batch.batch.column(0).to_pylist()]


def folders(cluster: sr.LocalCluster, topic: str) -> list[str]:
    return sorted(path.name for path in replica_folders(cluster, f"{topic}-*"))


def test_a_topic_is_deleted_and_made_again_without_its_records(cluster: sr.LocalCluster, name: str) -> None:
    first = cluster.admin.create_topic(name, SCHEMA, partitions=2)
    produce(cluster, name, 0, [1, 2, 3])
    cluster.admin.delete_topic(name)
    with pytest.raises(UnknownTopicOrPartition):
        cluster.admin.describe_topics([name])
    with pytest.raises(UnknownTopicOrPartition):
        cluster.admin.delete_topic(name)
    second = cluster.admin.create_topic(name, SCHEMA, partitions=1)
    assert second.topic_id > first.topic_id
    assert rows(cluster, name) == []
    produce(cluster, name, 0, [4])
    assert rows(cluster, name) == [4]
    cluster.wait_healthy()
    eventually(
        lambda: folders(cluster, name) == [f"{name}-0.{second.topic_id}"] * 3, "the old topic's folders are removed"
    )


def test_who_asks_again_is_sent_topics_only_if_one_has_changed(cluster: sr.LocalCluster, name: str) -> None:
    admin = cluster.admin

    def settled() -> bool:
        before = admin.metadata_since(None)
        return admin.metadata_since(before).mark == before.mark

    eventually(settled, "nothing of an earlier story goes on")
    before = admin.metadata_since(None)
    again = admin.metadata_since(before)
    assert again.topics is before.topics
    admin.create_topic(name, SCHEMA, partitions=2)
    after = admin.metadata_since(again)
    assert after.mark != before.mark
    assert {topic.name for topic in after.topics} - {topic.name for topic in before.topics} == {name}


def test_a_topic_is_deleted_while_it_is_written(cluster: sr.LocalCluster, name: str) -> None:
    cluster.admin.create_topic(name, SCHEMA, partitions=2)
    with sr.Producer(cluster.bootstrap, deadline_ms=2_000) as producer:
        batch = pa.record_batch([pa.array([1])], schema=SCHEMA)
        sent = [producer.send(name, batch, partition=number % 2) for number in range(200)]
        sent[0].result(DEADLINE_S)
        cluster.admin.delete_topic(name)
        ends = [future.exception(DEADLINE_S) for future in sent]
    assert all(end is None or isinstance(end, ReplicationError) for end in ends)
    assert name not in [topic.name for topic in cluster.admin.describe_topics()]
    eventually(lambda: folders(cluster, name) == [], "its folders are removed")


def test_partitions_are_added_removed_and_added_again_empty(cluster: sr.LocalCluster, name: str) -> None:
    cluster.admin.create_topic(name, SCHEMA, partitions=1)
    assert len(cluster.admin.add_partitions(name, 3).partitions) == 3
    produce(cluster, name, 2, [1, 2])
    with pytest.raises(InvalidPartitions):
        cluster.admin.remove_partitions(name, [1])
    before = partitions_of(cluster, name)[2]
    cluster.admin.remove_partitions(name, [2])
    eventually(lambda: sorted(partitions_of(cluster, name)) == [0, 1], "the partition is told of no more")
    again = cluster.admin.add_partitions(name, assignment={2: [3, 1, 2]}).partitions[2]
    assert again.replicas == (3, 1, 2)
    assert again.leader_epoch > before.leader_epoch
    assert rows(cluster, name, 2) == []
    produce(cluster, name, 2, [3])
    assert rows(cluster, name, 2) == [3]
    cluster.wait_healthy()


def test_preferred_replicas_lead_again_when_a_person_says_so(cluster: sr.LocalCluster, name: str) -> None:
    cluster.admin.create_topic(name, SCHEMA, partitions=1)
    preferred = partitions_of(cluster, name)[0].replicas[0]
    os.kill(cluster.brokers[preferred].pid, signal.SIGKILL)
    eventually(lambda: partitions_of(cluster, name)[0].leader not in (None, preferred), "another leads")
    eventually(
        lambda: preferred in partitions_of(cluster, name)[0].isr and cluster.brokers.get(preferred) is not None,
        "it is back in the ISR",
    )
    cluster.wait_healthy()
    assert cluster.admin.elect_leaders(partitions=[f"{name}-0"]) == {}
    eventually(lambda: partitions_of(cluster, name)[0].leader == preferred, "the preferred replica leads")
    refused = cluster.admin.elect_leaders(partitions=[f"{name}-0", f"{name}-7"])
    assert {partition: error.code for partition, error in refused.items()} == {
        f"{name}-0": "ELECTION_NOT_NEEDED",
        f"{name}-7": "UNKNOWN_TOPIC_OR_PARTITION",
    }


def test_a_setting_of_a_topic_or_of_the_cluster_holds_from_now_on(cluster: sr.LocalCluster, name: str) -> None:
    cluster.admin.create_topic(name, SCHEMA, partitions=1)

    def min_isr() -> int:
        return partitions_of(cluster, name)[0].min_isr

    assert min_isr() == 2
    cluster.admin.configure(name, {"min.insync.replicas": 3})
    eventually(lambda: min_isr() == 3, "the topic's setting holds")
    assert cluster.admin.describe_topics([name])[0].config == {"min.insync.replicas": 3}
    cluster.admin.configure(name, {"min.insync.replicas": None})
    eventually(lambda: min_isr() == 2, "the cluster's setting holds again")
    cluster.admin.configure(None, {"min.insync.replicas": 1})
    eventually(lambda: min_isr() == 1, "the cluster's new setting holds")
    cluster.admin.configure(None, {"min.insync.replicas": None})
    eventually(lambda: min_isr() == 2, "the default holds again")
    with pytest.raises(ReplicationError, match=r"min\.insync\.replicas"):
        cluster.admin.configure(name, {"min.insync.replica": 3})
    produce(cluster, name, 0, [1])
    assert rows(cluster, name) == [1]


def test_a_replica_moves_under_load(cluster: sr.LocalCluster, name: str) -> None:
    cluster.admin.create_topic(name, SCHEMA, partitions=1, replication_factor=2)
    replicas = partitions_of(cluster, name)[0].replicas
    (newcomer,) = {1, 2, 3} - set(replicas)
    target = (newcomer, replicas[1])
    with Load(cluster.zookeeper, name, 1) as load:
        load.wait_for_more(50)
        assert cluster.admin.reassign({f"{name}-0": target}) == {}
        eventually(
            lambda: partitions_of(cluster, name)[0].replicas == target and not cluster.admin.reassignments(),
            "the partition is on its new replicas",
        )
        load.wait_for_more(50)
    load.check_history()
    assert set(cluster.admin.cancel_reassignment([f"{name}-0"])) == {f"{name}-0"}
    eventually(lambda: len(folders(cluster, name)) == 2, "the folder of the dropped replica is removed")


def test_the_controller_tells_of_everything_while_no_broker_lives(cluster: sr.LocalCluster, name: str) -> None:
    made = cluster.admin.create_topic(name, SCHEMA, partitions=2)
    with sr.Admin(cluster.zookeeper, deadline_ms=10_000) as admin, ExitStack() as down:
        assert len(admin.describe_cluster().brokers) == 3
        for broker in sorted(cluster.brokers):
            down.enter_context(held_down(cluster, broker))
        eventually(lambda: admin.describe_cluster().brokers == (), "no broker is registered")
        eventually(
            lambda: [each.leader for each in admin.describe_topics([name])[0].partitions] == [None] * 2, "nobody leads"
        )
        (told,) = admin.describe_topics([name])
        assert [each.replicas for each in told.partitions] == [each.replicas for each in made.partitions]
        assert (told.topic_id, told.schema) == (made.topic_id, made.schema)
        assert name in [topic.name for topic in admin.metadata().topics]
        assert admin.health().verdict == "critical"
        assert (admin.replicas([name]), admin.reassignments()) == ([], [])
    cluster.wait_healthy()


def test_what_a_person_writes_below_admin_is_done(cluster: sr.LocalCluster, name: str, person: KazooClient) -> None:
    cluster.admin.create_topic(name, SCHEMA, partitions=1, replication_factor=1)
    (old,) = partitions_of(cluster, name)[0].replicas
    new = old % 3 + 1
    produce(cluster, name, 0, [1, 2])
    person.create(f"/admin/partitions_reassigned/{name}/0", b"[%d]" % new, makepath=True)
    eventually(lambda: partitions_of(cluster, name)[0].leader == new, "the partition has moved")
    assert rows(cluster, name) == [1, 2]
    person.create(f"/admin/partitions_add/{name}/1", b'{"v":1,"replicas":[2]}', makepath=True)
    eventually(lambda: led_by(cluster, name, 1) == 2, "the partition is added")
    person.create(f"/admin/partitions_remove/{name}/1", makepath=True)
    eventually(lambda: 1 not in partitions_of(cluster, name), "the partition is removed")
    person.create("/admin/preferred_replica_election", b"")
    person.create(f"/admin/partitions_add/{name}/2", b"[1]")  # there is no partition 1
    eventually(lambda: not person.exists(f"/admin/partitions_add/{name}/2"), "what cannot be done is removed")
    person.create(f"/admin/delete_topics/{name}")
    eventually(lambda: name not in [topic.name for topic in cluster.admin.describe_topics()], "the topic is gone")

    def asked() -> list[str]:
        below = [
            f"{folder}/{topic}/{number}"
            for folder in ("partitions_reassigned", "partitions_add", "partitions_remove")
            for topic in person.get_children(f"/admin/{folder}")
            for number in person.get_children(f"/admin/{folder}/{topic}")
        ]
        marks = person.get_children("/admin/delete_topics")
        return [*below, *marks, *(found for found in person.get_children("/admin") if found.startswith("preferred"))]

    eventually(lambda: asked() == [], "every request is removed")
    said = (cluster.directory / "controller" / "log").read_text()
    assert f"/admin/partitions_add/{name}/2 is refused: INVALID_PARTITIONS" in said


CONTROLLED_STOP_S = 8.0  # far below controlled.shutdown.timeout.ms and the restart


def test_a_whole_cluster_stops_without_waiting_for_leaders_that_cannot_come() -> None:
    cluster = sr.LocalCluster.start(brokers=3, config=CONFIG)
    cluster.admin.create_topic("orders", SCHEMA, partitions=3)
    began = time.monotonic()
    cluster.stop()
    assert time.monotonic() - began < CONTROLLED_STOP_S


def test_what_no_topic_has_any_longer_goes_when_a_new_controller_takes_over(
    cluster: sr.LocalCluster, name: str
) -> None:
    cluster.admin.create_topic(name, SCHEMA, partitions=1)
    directory = Path(cluster.brokers[1].log_dir)
    eventually(lambda: bool(list(directory.glob(f"{name}-0.*"))), "broker 1 has its replica")
    (kept,) = directory.glob(f"{name}-0.*")
    orphan = kept.with_name("gone-0.of-an-earlier-topic")  # as a crash in mid-deletion leaves it
    shutil.copytree(kept, orphan, ignore=shutil.ignore_patterns("*.tmp"))  # the broker is renaming one

    controller = cluster.controller_pid
    assert controller is not None
    os.kill(controller, signal.SIGKILL)

    eventually(lambda: not orphan.exists(), "the replica of no topic is in quarantine")
    assert kept.exists()


def test_topics_are_described_by_pages_by_every_broker_and_by_the_controller(cluster: sr.LocalCluster) -> None:
    """And Admin, which asks so, finds them all."""
    names = [f"paged{number:02}" for number in range(TOPICS_A_REQUEST_MAX + 2)]
    for name in names:
        cluster.admin.create_topic(name, SCHEMA, partitions=2, replication_factor=1)
    named = cluster.admin.describe_topics(names)
    assert [(topic.name, len(topic.partitions)) for topic in named] == [(name, 2) for name in names]
    assert [each for each in cluster.admin.describe_topics() if each.name in names] == named
    metadata = cluster.admin.metadata(names)
    assert metadata.controller is not None
    routes = Routes(cluster.bootstrap)
    with closing(routes):
        for address in (metadata.controller, *(broker.address for broker in metadata.brokers.values())):

            def ask(asked: DescribeTopics, address: str = address) -> TopicPage:
                small = replace(asked, partitions_max=7)
                page = routes.call(address, DESCRIBE_TOPICS, small, Deadline(10_000))
                assert sum(len(topic.partitions) for topic in page.topics) <= 7
                return page

            told = topics_by_pages(names, ask)
            assert [(each.topic_id, each.partitions) for each in told] == [
                (each.topic_id, each.partitions) for each in metadata.topics
            ]
            beyond = Raw(topics=tuple(names))
            with pytest.raises(InvalidRequest, match="22 topics: at most 20 a request"):
                routes.call(
                    address, Action(DESCRIBE_TOPICS.name, Raw, TopicPage, lambda _asked: ()), beyond, Deadline(10_000)
                )


class Raw(Message, frozen=True):
    """A DescribeTopics of a client that knows no limit."""

    topics: tuple[str, ...]


RAW = Action(DESCRIBE_TOPICS.name, Raw, TopicPage, lambda _asked: ())

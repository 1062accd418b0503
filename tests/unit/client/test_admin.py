"""What administrators ask: of the controller wherever it is, and again after a failure that passes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from spark_replication.client.admin import Admin, BrokerDescription, ClusterDescription, PartitionDescription
from spark_replication.errors import (
    ElectionNotNeeded,
    InvalidPartitions,
    InvalidRequest,
    NotController,
    ReplicationError,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from spark_replication.messages import (
    CancelReassignment,
    Configure,
    ElectLeaders,
    Reassign,
    Refusal,
    RemovePartitions,
    Request,
    RequestAnswer,
    WidenTopic,
)
from spark_replication.model import TopicPartition
from tests.unit.client.fake_cluster import SCHEMA, FakeBroker, FakeCluster, FakeLog


@pytest.fixture
def admin(cluster: FakeCluster) -> Iterator[Admin]:
    with Admin(cluster.bootstrap, deadline_ms=10_000) as opened:
        yield opened


def die_once(cluster: FakeCluster) -> None:
    left = [True]

    def after_create(broker: FakeBroker) -> None:
        if left and left.pop():
            broker.proxy.cut()

    cluster.after_create = after_create


def test_a_topic_is_created_and_described(cluster: FakeCluster, admin: Admin) -> None:
    created = admin.create_topic("words", pa.schema([("word", pa.string())]), partitions=2)
    assert [partition.leader for partition in created.partitions] == [1, 1]
    (described,) = admin.describe_topics(["words"])
    assert described == created
    assert described.partitions[0] == PartitionDescription(
        partition=0,
        leader=1,
        leader_epoch=0,
        partition_epoch=0,
        replicas=(1, 2),
        isr=(1, 2),
        elr=(),
        last_known_elr=(),
        last_known_leader=None,
        min_isr=1,
        recovering=False,
    )
    assert [topic.name for topic in admin.describe_topics()] == ["orders", "words"]
    assert admin.describe_topics([]) == []


def test_a_dictionary_column_is_created_as_it_is_stored(cluster: FakeCluster, admin: Admin) -> None:
    admin.create_topic("words", pa.schema([("word", pa.dictionary(pa.int8(), pa.string()))]), partitions=1)
    with pytest.raises(InvalidRequest, match="holds a dictionary"):
        admin.create_topic(
            "nested", pa.schema([("x", pa.dense_union([pa.field("d", pa.dictionary(pa.int8(), pa.string()))]))])
        )


def test_the_cluster_is_described(cluster: FakeCluster, admin: Admin) -> None:
    assert admin.describe_cluster() == ClusterDescription(
        cluster_id="fake",
        controller=cluster.brokers[1].address,
        brokers=tuple(
            BrokerDescription(
                id=id_,
                host="127.0.0.1",
                port=broker.proxy.port,
                replication_port=1,
                rack=None,
                epoch=1,
                shutting_down=False,
            )
            for id_, broker in cluster.brokers.items()
        ),
    )


def test_a_topic_that_exists_is_not_created_again(admin: Admin) -> None:
    with pytest.raises(TopicAlreadyExists):
        admin.create_topic("orders", SCHEMA, partitions=3)


def test_a_try_that_took_effect_without_an_answer_counts(cluster: FakeCluster, admin: Admin) -> None:
    die_once(cluster)
    assert admin.create_topic("words", SCHEMA, partitions=2).name == "words"


@pytest.mark.parametrize(("partitions", "schema"), [(2, SCHEMA), (3, pa.schema([("word", pa.string())]))])
def test_what_another_created_meanwhile_does_not_count(
    cluster: FakeCluster, admin: Admin, partitions: int, schema: pa.Schema
) -> None:
    def after_create(broker: FakeBroker) -> None:
        cluster.create("words", 3, SCHEMA)
        broker.proxy.cut()

    cluster.after_create = after_create
    with pytest.raises(TopicAlreadyExists):
        admin.create_topic("words", schema, partitions=partitions)


def test_a_controller_that_has_moved_is_found(cluster: FakeCluster, admin: Admin) -> None:
    stale = cluster.metadata(None)
    cluster.brokers[1].frozen_metadata = stale
    cluster.controller = 2
    assert admin.create_topic("words", SCHEMA, partitions=1).name == "words"


def test_without_a_controller_the_deadline_passes(cluster: FakeCluster) -> None:
    cluster.controller = None
    with (
        Admin(cluster.bootstrap, deadline_ms=200) as admin,
        pytest.raises(NotController, match="no broker knows of a controller"),
    ):
        admin.create_topic("words", SCHEMA)


def test_a_deletion_that_took_effect_without_an_answer_counts(cluster: FakeCluster, admin: Admin) -> None:
    def delete(broker: FakeBroker, request: Request) -> RequestAnswer:
        if cluster.topics.pop("orders", None) is None:
            raise UnknownTopicOrPartition("there is no topic orders")
        broker.proxy.cut()
        return RequestAnswer()

    cluster.carry_out = delete
    admin.delete_topic("orders")
    with pytest.raises(UnknownTopicOrPartition):
        admin.delete_topic("orders")


def test_partitions_that_were_added_without_an_answer_count(cluster: FakeCluster, admin: Admin) -> None:
    def add(broker: FakeBroker, request: Request) -> RequestAnswer:
        refusal = Refusal(error="INVALID_PARTITIONS", message="orders has 4 already", retriable=False)
        if TopicPartition("orders", 3) in cluster.logs:
            return RequestAnswer(errors={"orders": refusal})
        cluster.logs[TopicPartition("orders", 3)] = FakeLog()
        broker.proxy.cut()
        return RequestAnswer()

    cluster.carry_out = add
    assert len(admin.add_partitions("orders", 4).partitions) == 4
    with pytest.raises(InvalidPartitions, match="4 already"):
        admin.add_partitions("orders", 4)


def test_what_was_refused_comes_back_as_errors_of_the_tree(cluster: FakeCluster, admin: Admin) -> None:
    asked: list[Request] = []

    def refuse_one(_broker: FakeBroker, request: Request) -> RequestAnswer:
        asked.append(request)
        return RequestAnswer(
            errors={"orders-1": Refusal(error="ELECTION_NOT_NEEDED", message="it leads", retriable=False)}
        )

    cluster.carry_out = refuse_one
    refusals = [
        admin.elect_leaders("designation", ["orders-0", "orders-1"], {"orders-0": 2}),
        admin.reassign({"orders-1": [2, 1]}),
        admin.cancel_reassignment(["orders-1"]),
    ]
    for refused in refusals:
        assert [(name, type(error), error.message) for name, error in refused.items()] == [
            ("orders-1", ElectionNotNeeded, "it leads")
        ]
    with pytest.raises(ElectionNotNeeded):
        admin.remove_partitions("orders", [2])
    admin.configure("orders", {"min.insync.replicas": None})
    assert asked == [
        ElectLeaders(kind="designation", partitions=("orders-0", "orders-1"), desired={"orders-0": 2}),
        Reassign(targets={"orders-1": (2, 1)}),
        CancelReassignment(partitions=("orders-1",)),
        RemovePartitions(partitions={"orders": (2,)}),
        Configure(topic="orders", settings={"min.insync.replicas": None}),
    ]
    assert admin.reassignments() == []


WIDER = SCHEMA.append(pa.field("name", pa.string()))


def widen(cluster: FakeCluster) -> None:
    def carry_out(_broker: FakeBroker, request: Request) -> RequestAnswer:
        assert isinstance(request, WidenTopic)
        if cluster.topics[request.topic].schema != request.schema:
            cluster.widen(request.topic, WIDER)
        return RequestAnswer()

    cluster.carry_out = carry_out


def test_a_topic_is_widened_once(cluster: FakeCluster, admin: Admin) -> None:
    widen(cluster)
    assert admin.describe_topics(["orders"])[0].schema_version == 0
    found = [admin.widen_topic("orders", WIDER) for _ in range(2)]
    assert [each.schema_version for each in found] == [1, 1]
    assert found[0].schema == cluster.topics["orders"].schema
    assert admin.describe_topics(["orders"]) == [found[0]]


def test_a_widening_is_done_when_every_broker_that_answers_has_heard_of_it(cluster: FakeCluster) -> None:
    widen(cluster)
    cluster.brokers[2].frozen_metadata = cluster.metadata(None)
    with (
        Admin(cluster.bootstrap, deadline_ms=700) as hasty,
        pytest.raises(ReplicationError, match=r"has not heard of its version 1|did not say in time") as refused,
    ):
        hasty.widen_topic("orders", WIDER)
    assert (refused.value.retriable, refused.value.maybe_written) == (True, True)
    with Admin(cluster.bootstrap, deadline_ms=10_000) as patient, ThreadPoolExecutor(1) as aside:
        found = aside.submit(patient.widen_topic, "orders", WIDER)
        cluster.brokers[2].frozen_metadata = None
        assert found.result(10).schema_version == 1
        cluster.brokers[2].proxy.down()
        assert patient.widen_topic("orders", WIDER).schema_version == 1, "who is down hears of it when it comes back"


def test_an_unknown_topic_is_named(admin: Admin) -> None:
    with pytest.raises(UnknownTopicOrPartition, match="wrds"):
        admin.describe_topics(["orders", "wrds"])


def test_what_comes_later_is_not_there(admin: Admin) -> None:
    assert not hasattr(admin, "drain_broker")

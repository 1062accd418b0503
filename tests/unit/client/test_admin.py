"""What administrators ask: of the controller wherever it is, and again after a failure that passes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from msgspec.structs import replace

from spark_replication.client.asking.admin import Admin, BrokerDescription, ClusterDescription, PartitionDescription
from spark_replication.client.asking.replica_sizes import ReassignmentDescription
from spark_replication.core.moves.moves import Move, Plan
from spark_replication.errors import (
    ElectionNotNeeded,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidRequest,
    NotController,
    NotReady,
    ReplicationError,
    RequestTimedOut,
    StalePlan,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from spark_replication.messages.descriptions import CopySize, ReplicaSize, ReplicaSizes
from spark_replication.messages.records import Refusal
from spark_replication.messages.requests import (
    AcknowledgeLoss,
    CancelReassignment,
    Configure,
    ElectLeaders,
    PlannedFrom,
    Reassign,
    RemovePartitions,
    Request,
    RequestAnswer,
    WidenTopic,
)
from spark_replication.model import TopicPartition
from tests.unit.client.fake_cluster import PASSES_MS, SCHEMA, FakeBroker, FakeCluster, FakeLog
from tests.unit.core.stories import loss


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


def test_a_topic_is_made_as_another_one_is(cluster: FakeCluster, admin: Admin) -> None:
    (orders,) = admin.describe_topics(["orders"])
    assert orders.arrow_schema == SCHEMA
    assert admin.create_topic("copy", orders.arrow_schema, partitions=1).schema == orders.schema


@pytest.mark.parametrize("schema", ["id:int64", None, {"id": "int64"}])
def test_what_is_no_arrow_schema_is_refused_with_where_to_get_one(
    cluster: FakeCluster, admin: Admin, schema: object
) -> None:
    for ask in (admin.create_topic, admin.widen_topic):
        with pytest.raises(InvalidRequest, match=r"a pyarrow\.Schema, and this is a .*arrow_schema.*to_arrow_schema"):
            ask("orders", schema)
    assert cluster.received == []


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
                port=broker.registration.port,
                replication_port=broker.registration.replication_port,
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


@pytest.mark.parametrize("stale", [{"order": 1}, {"topic_id": "id-of-before"}])
def test_a_broker_that_tells_of_what_was_before_is_not_believed(
    cluster: FakeCluster, admin: Admin, monkeypatch: pytest.MonkeyPatch, stale: dict[str, Any]
) -> None:
    """It may not have heard yet that the partition was removed, or the topic deleted, and made again."""
    (known,) = cluster.metadata(("orders",)).topics
    newest = [replace(each, partition_epoch=2) for each in known.partitions]
    older = [replace(each, partition_epoch=1) for each in known.partitions] if "order" in stale else newest
    before = replace(known, partitions=tuple(older), topic_id=stale.get("topic_id", known.topic_id))
    now = replace(known, partitions=tuple(newest))
    told = iter([before, before, now])
    cluster.carry_out = lambda _broker, _request: RequestAnswer()
    monkeypatch.setattr(Admin, "_known", lambda *_: (next(told),))
    monkeypatch.setattr(Admin, "_told", lambda *_: now)
    found = admin.add_partitions("orders", len(known.partitions))
    assert [each.partition_epoch for each in found.partitions] == [2] * len(known.partitions)
    assert next(told, None) is None


def test_without_a_controller_the_deadline_passes(cluster: FakeCluster) -> None:
    cluster.controller = None
    with (
        Admin(cluster.bootstrap, deadline_ms=PASSES_MS) as admin,
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
        admin.acknowledge_loss({"orders-1": 5}),
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
        AcknowledgeLoss(known={"orders-1": 5}),
        ElectLeaders(kind="designation", partitions=("orders-0", "orders-1"), desired={"orders-0": 2}),
        Reassign(targets={"orders-1": (2, 1)}),
        CancelReassignment(partitions=("orders-1",)),
        RemovePartitions(partitions={"orders": (2,)}),
        Configure(topic="orders", settings={"min.insync.replicas": None}),
    ]
    assert admin.reassignments() == []


def test_a_partition_is_described_with_the_offset_at_which_its_log_may_begin(
    cluster: FakeCluster, admin: Admin
) -> None:
    cluster.log("orders", 0).start_at = 40
    found = [each.start_at for each in admin.describe_topics(["orders"])[0].partitions]
    assert (found[0], {*found[1:]}) == (40, {None})


def test_all_possible_loss_is_acknowledged_with_a_request_for_each_topic(cluster: FakeCluster, admin: Admin) -> None:
    asked: list[Request] = []

    def carry_out(_broker: FakeBroker, request: Request) -> RequestAnswer:
        asked.append(request)
        return RequestAnswer()

    cluster.carry_out = carry_out
    cluster.create("payments")
    for topic, epoch in (("payments", 4), ("orders", 3)):
        cluster.log(topic, 0).loss = loss(epoch)
    assert admin.acknowledge_loss() == {}
    assert asked == [AcknowledgeLoss(known={"orders-0": 3}), AcknowledgeLoss(known={"payments-0": 4})]
    assert admin.describe_topics(["orders"])[0].partitions[0].possible_loss == loss(3)


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
        Admin(cluster.bootstrap, deadline_ms=PASSES_MS) as hasty,
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


def test_a_broker_that_hears_nothing_takes_nobody_back_to_what_was(cluster: FakeCluster, admin: Admin) -> None:
    """The controller is ahead of every broker: what was seen once is not undone by asking again."""
    cluster.brokers[2].frozen_metadata = cluster.metadata(None)
    cluster.create("words")
    cluster.lead(2)
    for _ in range(4):  # brokers are asked in turn
        assert [topic.name for topic in admin.describe_topics()] == ["orders", "words"]
        assert admin.describe_topics(["orders"])[0].partitions[0].leader == 2


def test_a_topic_is_not_created_before_a_broker_knows_of_it(cluster: FakeCluster) -> None:
    """What the controller knows is not enough: whoever uses the topic next asks brokers."""
    late = cluster.brokers[2]
    late.frozen_metadata = msgspec.structs.replace(cluster.metadata(None), brokers={2: late.registration})
    with (
        Admin(late.address, deadline_ms=PASSES_MS) as hasty,
        pytest.raises(UnknownTopicOrPartition, match="does not know"),
    ):
        hasty.create_topic("words", WIDER, partitions=1)
    assert "words" in cluster.topics
    with Admin(late.address) as patient:
        assert [topic.name for topic in patient.describe_topics(["words"])] == ["words"], "the controller knows it"


def test_while_there_is_no_controller_any_broker_tells_what_it_knows(cluster: FakeCluster, admin: Admin) -> None:
    cluster.controller = None
    assert [topic.name for topic in admin.describe_topics(["orders"])] == ["orders"]
    assert len(admin.describe_cluster().brokers) == 2


def test_everything_is_told_by_the_controller_that_is_known_whether_or_not_a_broker_answers(
    cluster: FakeCluster, admin: Admin
) -> None:
    first = admin.metadata()
    assert first == cluster.metadata(None)
    cluster.brokers[2].proxy.down()
    asked = cluster.asked_metadata
    assert admin.metadata() == first
    assert cluster.asked_metadata == asked + 1


def test_everything_is_told_by_a_broker_while_the_known_controller_is_silent_or_by_the_next_controller(
    cluster: FakeCluster, admin: Admin
) -> None:
    admin.metadata()
    cluster.brokers[1].proxy.down()
    told = admin.metadata()
    assert (told.controller, len(told.topics)) == (cluster.brokers[1].address, 1)
    cluster.controller = 2
    assert admin.metadata().controller == cluster.brokers[2].address
    asked = cluster.asked_metadata
    assert admin.metadata().controller == cluster.brokers[2].address
    assert cluster.asked_metadata == asked + 1, "it is known"


def test_a_refusal_for_good_is_no_reason_to_ask_others(cluster: FakeCluster, admin: Admin) -> None:
    admin.metadata()
    cluster.refuse_metadata = InvalidRequest("no")
    with pytest.raises(InvalidRequest, match="no"):
        admin.metadata()


def test_a_broker_says_how_large_its_logs_are_and_is_asked_once(cluster: FakeCluster, admin: Admin) -> None:
    cluster.sizes = {1: ReplicaSizes(replicas=(size(0, 70, leads=True),)), 2: NotReady("starting")}
    assert admin.sizes_on(cluster.brokers[1].address) == (size(0, 70, leads=True),)
    with pytest.raises(NotReady, match="starting"):
        admin.sizes_on(cluster.brokers[2].address)


def test_an_unknown_topic_is_named(admin: Admin) -> None:
    with pytest.raises(UnknownTopicOrPartition, match="wrds"):
        admin.describe_topics(["orders", "wrds"])


def size(partition: int, count: int, *, leads: bool) -> ReplicaSize:
    return ReplicaSize(topic="orders", partition=partition, topic_id="id-orders", leads=leads, bytes=count)


def move(partition: int, target: tuple[int, ...], count: int | None) -> Move:
    return Move(
        partition=f"orders-{partition}", topic_id="id-orders", present=(1, 2), target=target, bytes=count, leader=1
    )


def test_a_plan_knows_the_sizes_that_leaders_tell_and_moves_nothing(cluster: FakeCluster, admin: Admin) -> None:
    cluster.carry_out = lambda _broker, request: pytest.fail(f"nothing is to be asked for: {request}")
    cluster.sizes = {
        1: ReplicaSizes(replicas=(size(0, 70, leads=True), size(1, 60, leads=False))),
        2: ReplicaSizes(replicas=(size(0, 90, leads=False), size(1, 50, leads=False))),
    }
    targets = {f"orders-{number}": (1,) for number in range(3)}
    assert admin.plan_reassignment({**targets, "orders-1": (2, 1)}) == Plan(
        moves=(move(0, (1,), 70), move(1, (2, 1), 60), move(2, (1,), None))
    )
    cluster.sizes[1] = NotReady("starting")
    assert admin.plan_reassignment({"orders-0": (2,)}).moves == (move(0, (2,), 90),)
    assert admin.plan_reassignment(over=(1, 2), topics=["orders"]).moves == (move(0, (2, 1), 90),)
    assert admin.plan_reassignment(without=[]).moves == ()
    with pytest.raises(InvalidRequest, match="one goal"):
        admin.plan_reassignment()


def test_a_plan_is_applied_and_what_is_stale_is_told(cluster: FakeCluster, admin: Admin) -> None:
    asked: list[Request] = []

    def carry_out(_broker: FakeBroker, request: Request) -> RequestAnswer:
        asked.append(request)
        return RequestAnswer(errors={"orders-1": Refusal(error="STALE_PLAN", message="plan again", retriable=False)})

    cluster.carry_out = carry_out
    plan = Plan(moves=(move(0, (2, 1), 7), move(1, (2, 1), 7)))
    refused = admin.apply(Plan.from_json(plan.to_json()))
    assert {name: type(error) for name, error in refused.items()} == {"orders-1": StalePlan}
    was = PlannedFrom(topic_id="id-orders", replicas=(1, 2))
    assert asked == [
        Reassign(targets={"orders-0": (2, 1), "orders-1": (2, 1)}, planned_from={"orders-0": was, "orders-1": was})
    ]
    assert admin.apply(Plan(moves=())) == {}
    assert len(asked) == 1


def test_a_drain_that_cannot_be_moves_nothing(cluster: FakeCluster, admin: Admin) -> None:
    cluster.carry_out = lambda _broker, request: pytest.fail(f"nothing is to be asked for: {request}")
    with pytest.raises(InvalidReplicaAssignment, match="only 1 live"):
        admin.drain_broker(1)
    with pytest.raises(InvalidRequest, match="no broker 9"):
        admin.drain_broker(9)


def test_a_drain_is_a_plan_without_the_broker_that_is_applied() -> None:
    cluster = FakeCluster(brokers=3)
    try:
        asked: list[Request] = []
        refusals: dict[str, Refusal] = {}

        def carry_out(_broker: FakeBroker, request: Request) -> RequestAnswer:
            asked.append(request)
            return RequestAnswer(errors=refusals)

        cluster.carry_out = carry_out
        cluster.hosted = (1, 2)
        with Admin(cluster.bootstrap, deadline_ms=10_000) as larger:
            plan = larger.drain_broker(1)
            assert {move.partition: move.target for move in plan.moves} == {f"orders-{n}": (3, 2) for n in range(3)}
            assert asked == list(plan.requests())
            refusals["orders-1"] = Refusal(error="STALE_PLAN", message="plan again", retriable=False)
            with pytest.raises(StalePlan):
                larger.drain_broker(1)
    finally:
        cluster.close()


def reassigning(cluster: FakeCluster) -> ReassignmentDescription:
    """orders-1 is led by 1; 2 is being added, and lacks half of it."""
    cluster.in_sync = {1}
    cluster.adding[TopicPartition("orders", 1)] = (2,)
    copy = {2: CopySize(bytes_left=50, bytes_per_second=25)}
    cluster.sizes = {
        1: ReplicaSizes(replicas=(replace(size(1, 100, leads=True), copies=copy),)),
        2: ReplicaSizes(replicas=(size(1, 50, leads=False),)),
    }
    return ReassignmentDescription(
        partition="orders-1",
        replicas=(1, 2),
        adding=(2,),
        removing=(),
        isr=(1,),
        bytes_left=50,
        time_left_ms=2_000,
    )


def test_a_reassignment_tells_how_much_is_left(cluster: FakeCluster, admin: Admin) -> None:
    told = reassigning(cluster)
    assert admin.reassignments() == [told]
    # Of another topic of that name, from who leads no longer, from nobody.
    (leaders,) = cluster.sizes[1].replicas if isinstance(cluster.sizes[1], ReplicaSizes) else ()
    for answer in (
        ReplicaSizes(replicas=(replace(leaders, topic_id="id-earlier"),)),
        ReplicaSizes(replicas=(replace(leaders, leads=False),)),
        NotReady("starting"),
    ):
        cluster.sizes[1] = answer
        assert admin.reassignments() == [replace(told, bytes_left=None, time_left_ms=None)]


def test_without_a_controller_a_broker_tells_what_is_under_way(cluster: FakeCluster, admin: Admin) -> None:
    told = reassigning(cluster)
    cluster.controller = None
    assert admin.reassignments() == [told]


def test_who_waits_for_a_reassignment_is_told_when_it_has_ended_or_that_it_has_not(
    cluster: FakeCluster, admin: Admin
) -> None:
    reassigning(cluster)
    admin.wait_reassigned(["orders-0"], timeout_s=5)
    with pytest.raises(RequestTimedOut, match="1 reassignments are under way, orders-1 is the first"):
        admin.wait_reassigned(["orders-0", "orders-1"], timeout_s=0.2)
    with ThreadPoolExecutor(1) as aside:
        waiting = aside.submit(admin.wait_reassigned, ["orders-1"], 20)
        cluster.adding.clear()
        assert waiting.result(20) is None

"""A4: what a reassignment would move, before anything moves."""

from __future__ import annotations

import json

import msgspec
import pytest

from spark_replication.core.moves import moves
from spark_replication.core.moves.goals import drained
from spark_replication.core.moves.moves import Move, Plan, heading_for, planned, size_text
from spark_replication.errors import InvalidReplicaAssignment, InvalidRequest, UnknownTopicOrPartition
from spark_replication.messages.commands import PartitionCommand
from spark_replication.messages.requests import PlannedFrom, Reassign
from spark_replication.model import TopicPartition
from tests.unit.core.stories import command, registration, state

FOO, BAR = TopicPartition("foo", 0), TopicPartition("bar", 0)
SAME = TopicPartition("same", 0)


def on(partition: TopicPartition, *replicas: int, removing: tuple[int, ...] = ()) -> PartitionCommand:
    topic_id = f"id-{partition.topic}"
    return command(state(1, [1]), replicas=replicas, partition=partition, topic_id=topic_id, removing=removing)


def move(partition: str, present: tuple[int, ...], target: tuple[int, ...], size: int | None) -> Move:
    topic, _, _ = partition.rpartition("-")
    return Move(partition=partition, topic_id=f"id-{topic}", present=present, target=target, bytes=size, leader=1)


def test_a_plan_names_what_changes_and_the_most_bytes_first() -> None:
    present = {FOO: on(FOO, 1, 2), BAR: on(BAR, 1, 2), SAME: on(SAME, 2, 1)}
    targets = {FOO: (1, 3), BAR: (3, 4), SAME: (2, 1)}

    plan = planned(targets, present, {FOO: 100, BAR: 70})

    assert plan == Plan(moves=(move("bar-0", (1, 2), (3, 4), 70), move("foo-0", (1, 2), (1, 3), 100)))
    assert (plan.bytes_to_copy, plan.unknown) == (100 + 2 * 70, ())
    assert (plan.moves[1].adding, plan.moves[1].removing) == ((3,), (2,))


def test_what_nobody_knows_the_size_of_is_unknown_and_not_nothing() -> None:
    plan = planned({FOO: (2,), BAR: (3,)}, {FOO: on(FOO, 1), BAR: on(BAR, 1)}, {FOO: 7})
    assert plan.moves == (move("bar-0", (1,), (3,), None), move("foo-0", (1,), (2,), 7))
    assert (plan.bytes_to_copy, plan.unknown) == (7, ("bar-0",))
    assert plan.moves[0].bytes_to_copy is None


def test_dropping_a_replica_or_another_order_copies_nothing_however_large_it_is() -> None:
    dropped, ordered = move("foo-0", (1, 2), (1,), None), move("foo-0", (1, 2), (2, 1), 9)
    assert (dropped.bytes_to_copy, ordered.bytes_to_copy) == (0, 0)


def test_what_is_being_reassigned_is_planned_from_where_it_goes() -> None:
    moving = on(FOO, 3, 4, 1, removing=(1,))
    assert heading_for(moving) == (3, 4)
    assert planned({FOO: (3, 4)}, {FOO: moving}, {}).moves == ()
    assert planned({FOO: (3, 5)}, {FOO: moving}, {}).moves == (move("foo-0", (3, 4, 1), (3, 5), None),)


def test_a_plan_of_a_partition_that_is_not_there_is_refused() -> None:
    with pytest.raises(UnknownTopicOrPartition, match="no partition bar-0"):
        planned({BAR: (1,)}, {FOO: on(FOO, 1)}, {})


def test_a_plan_is_a_table_with_its_sum() -> None:
    plan = Plan(moves=(move("foo-0", (1, 2), (1, 3), 3 << 20), move("a<b-1", (1,), (2,), None)))
    assert str(plan) == "\n".join(
        [
            "partition  from  to    adds  drops  bytes",
            "foo-0      1, 2  1, 3  3     2      3.0 MiB",
            "a<b-1      1     2     2     1      unknown",
            "2 partitions change, 2 replicas are copied: 3.0 MiB, and what is in 1 of unknown size",
        ]
    )
    assert "a&lt;b-1" in plan._repr_html_()
    assert str(Plan(moves=plan.moves[:1])).splitlines()[-1] == "1 partitions change, 1 replicas are copied: 3.0 MiB"
    assert str(Plan(moves=())) == "nothing is to be moved"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "unknown"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (1 << 40, "1.0 TiB"),
        (1 << 51, "2048.0 TiB"),
    ],
)
def test_sizes_are_told_in_units(count: int | None, text: str) -> None:
    assert size_text(count) == text


def test_a_plan_is_read_as_it_was_written_and_by_a_person_too() -> None:
    plan = Plan(moves=(move("foo-0", (1, 2), (1, 3), 100), move("bar-0", (1,), (2,), None)))
    assert Plan.from_json(plan.to_json()) == plan
    assert json.loads(plan.to_json())["moves"][0] == {
        "partition": "foo-0",
        "topic_id": "id-foo",
        "present": [1, 2],
        "target": [1, 3],
        "bytes": 100,
        "leader": 1,
    }


MOVE = '{"partition":"foo-0","topic_id":"t","present":[1],"target":[2],"bytes":1}'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        '{"v":2,"moves":[]}',
        f'{{"moves":[{MOVE}],"more":1}}',
        f'{{"moves":[{MOVE.replace("foo-0", "foo")}]}}',
        f'{{"moves":[{MOVE.replace("[2]", "[]")}]}}',
        f'{{"moves":[{MOVE.replace(":1}", ":-1}")}]}}',
    ],
)
def test_what_is_no_plan_is_refused(text: str) -> None:
    assert Plan.from_json(f'{{"moves":[{MOVE}]}}').moves[0].partition == "foo-0"
    with pytest.raises(InvalidRequest, match="no plan of a reassignment"):
        Plan.from_json(text)


def test_a_plan_is_asked_for_in_requests_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves, "APPLIED_TOGETHER_MAX", 2)
    plan = Plan(moves=tuple(move(f"foo-{number}", (1,), (2,), None) for number in range(3)))
    was = PlannedFrom(topic_id="id-foo", replicas=(1,))
    assert list(plan.requests()) == [
        Reassign(targets={"foo-0": (2,), "foo-1": (2,)}, planned_from={"foo-0": was, "foo-1": was}),
        Reassign(targets={"foo-2": (2,)}, planned_from={"foo-2": was}),
    ]


def test_a_drained_broker_is_replaced_in_its_place_of_the_order_by_who_holds_least_in_an_unused_rack() -> None:
    brokers = {b: registration(b, rack=rack) for b, rack in ((1, "a"), (2, "b"), (3, "b"), (4, "c"), (5, "c"))}
    present = {FOO: (1, 2), BAR: (4, 1), TopicPartition("other", 0): (2, 4)}

    assert drained([1], present, brokers) == {BAR: (4, 3), FOO: (5, 2)}
    assert drained([1], present, brokers, ["foo"]) == {FOO: (5, 2)}


def test_a_broker_that_shuts_down_takes_nothing_over() -> None:
    stopping = {2: registration(2), 3: registration(3)}
    stopping[2] = msgspec.structs.replace(stopping[2], shutting_down=True)

    assert drained([1], {FOO: (1,)}, stopping) == {FOO: (3,)}


def test_a_drain_is_refused_when_too_few_brokers_are_left() -> None:
    with pytest.raises(InvalidReplicaAssignment, match="only 1 live"):
        drained([1], {FOO: (1, 2)}, {1: registration(1), 2: registration(2)})


def test_a_drain_of_a_broker_that_nobody_knows_is_a_mistake_and_of_an_empty_one_is_done() -> None:
    with pytest.raises(InvalidRequest, match=r"no broker 9, and nothing on it: \[1, 2\] are live"):
        drained([9], {FOO: (1,)}, {1: registration(1), 2: registration(2)})
    assert drained([2], {FOO: (1,)}, {1: registration(1), 2: registration(2)}) == {}

"""`spark-replication reassign`: what they ask for, and what they say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark_replication.core.moves.moves import Plan
from spark_replication.messages.descriptions import CopySize, ReplicaSize, ReplicaSizes
from spark_replication.messages.records import Refusal
from spark_replication.messages.requests import CancelReassignment, Reassign, Request, RequestAnswer
from spark_replication.model import TopicPartition
from tests.unit.admin.conftest import Run
from tests.unit.client.fake_cluster import FakeBroker, FakeCluster

STALE = Refusal(error="STALE_PLAN", message="plan again", retriable=False)


@pytest.fixture
def asked(cluster: FakeCluster) -> list[Request]:
    """What the controller is asked; it refuses orders-1."""
    found: list[Request] = []

    def carry_out(_broker: FakeBroker, request: Request) -> RequestAnswer:
        found.append(request)
        return RequestAnswer(errors={"orders-1": STALE} if "orders-1" in str(request) else {})

    cluster.carry_out = carry_out
    size = ReplicaSize(topic="orders", partition=0, topic_id="id-orders", leads=True, bytes=2048)
    cluster.sizes = {1: ReplicaSizes(replicas=(size,))}
    return found


def test_a_plan_is_shown_saved_and_applied(
    run: Run, cluster: FakeCluster, asked: list[Request], tmp_path: Path
) -> None:
    file = tmp_path / "plan.json"
    planned = run("reassign", "plan", "-b", cluster.bootstrap, "orders-0=1", "orders-2=2,1", "--save", file)
    assert (planned.exit, planned.err) == (0, "")
    assert planned.out == (
        "partition  from  to    adds  drops  bytes\n"
        "orders-0   1, 2  1           2      0 B\n"
        "orders-2   1, 2  2, 1               0 B\n"
        "2 partitions change, 0 replicas are copied: 0 B\n"
    )
    assert asked == []
    applied = run("reassign", "apply", "-b", cluster.bootstrap, file, "--wait", 5)
    said = "2 of 2 partitions have begun to move\n2 of 2 partitions have ended their move\n"
    assert applied == (0, said, "")
    assert asked == list(Plan.from_json(file.read_text()).requests())


def test_a_plan_as_json_is_the_plan_itself(run: Run, cluster: FakeCluster, asked: list[Request]) -> None:
    cluster.hosted = (1,)
    planned = run("reassign", "plan", "-b", cluster.bootstrap, "--without", "1", "-t", "orders", "--format", "json")
    plan = Plan.from_json(planned.out)
    assert [(move.partition, move.target, move.bytes) for move in plan.moves] == [
        ("orders-1", (2,), None),
        ("orders-2", (2,), None),
        ("orders-0", (2,), 2048),
    ]
    spread = run("reassign", "plan", "-b", cluster.bootstrap, "--over", "2", "--format", "json")
    assert Plan.from_json(spread.out) == plan
    assert asked == []


def test_what_of_a_plan_is_refused_is_an_error_and_the_rest_has_begun(
    run: Run, cluster: FakeCluster, asked: list[Request], tmp_path: Path
) -> None:
    file = tmp_path / "plan.json"
    run("reassign", "plan", "-b", cluster.bootstrap, "orders-0=1", "orders-1=1", "--save", file)
    applied = run("reassign", "apply", "-b", cluster.bootstrap, file)
    assert applied == (
        1,
        "1 of 2 partitions have begun to move\n",
        "error: orders-1: STALE_PLAN: plan again\n",
    )
    file.write_text("{}")
    refused = run("reassign", "apply", "-b", cluster.bootstrap, file)
    assert (refused.exit, refused.out) == (1, "")
    assert "no plan of a reassignment" in refused.err


def test_what_finds_no_room_begins_when_others_have_ended(run: Run, cluster: FakeCluster, tmp_path: Path) -> None:
    full = Refusal(error="THROTTLING_QUOTA_EXCEEDED", message="ask again", retriable=True)
    answers = [{"orders-0": full, "orders-1": STALE}, {}]
    asked: list[list[str]] = []

    def carry_out(_broker: FakeBroker, request: Request) -> RequestAnswer:
        assert isinstance(request, Reassign)
        asked.append(list(request.targets))
        return RequestAnswer(errors=answers.pop(0))

    cluster.carry_out = carry_out
    file = tmp_path / "plan.json"
    run("reassign", "plan", "-b", cluster.bootstrap, "orders-0=1", "orders-1=1", "orders-2=1", "--save", file)
    found = run("reassign", "apply", "-b", cluster.bootstrap, file, "--wait", 20)
    said = "1 of 3 partitions have begun to move\n2 of 3 partitions have ended their move\n"
    assert found == (1, said, "error: orders-1: STALE_PLAN: plan again\n")
    assert asked == [["orders-0", "orders-1", "orders-2"], ["orders-0"]]


def test_a_wait_that_is_too_short_is_an_error(
    run: Run, cluster: FakeCluster, asked: list[Request], tmp_path: Path
) -> None:
    file = tmp_path / "plan.json"
    run("reassign", "plan", "-b", cluster.bootstrap, "orders-0=1", "--save", file)
    cluster.adding = {TopicPartition("orders", 0): (2,)}
    found = run("reassign", "apply", "-b", cluster.bootstrap, file, "--wait", 0.5)
    assert (found.exit, found.out) == (1, "1 of 1 partitions have begun to move\n")
    assert "orders-0 is the first: wait longer" in found.err
    assert len(asked) == 1


def test_what_cannot_be_planned_says_why(run: Run, cluster: FakeCluster) -> None:
    found = run("reassign", "plan", "-b", cluster.bootstrap, "--without", "1")
    assert (found.exit, found.out) == (1, "")
    assert found.err.startswith("error: INVALID_REPLICA_ASSIGNMENT: orders-0 has 2 replicas")


def test_the_status_tells_what_is_left(run: Run, cluster: FakeCluster) -> None:
    cluster.in_sync = {1}
    cluster.adding = {TopicPartition("orders", number): (2,) for number in (0, 1)}
    copy = {2: CopySize(bytes_left=5000, bytes_per_second=1000)}
    size = ReplicaSize(topic="orders", partition=0, topic_id="id-orders", leads=True, bytes=9000, copies=copy)
    cluster.sizes = {1: ReplicaSizes(replicas=(size,))}
    status = ("reassign", "status", "-b", cluster.bootstrap)
    known = {"replicas": [1, 2], "adding": [2], "removing": [], "isr": [1]}
    assert json.loads(run(*status, "--format", "json").out) == [
        {"partition": "orders-0", **known, "bytes_left": 5000, "seconds_left": 5},
        {"partition": "orders-1", **known, "bytes_left": None, "seconds_left": None},
    ]
    table = run(*status)
    assert (table.exit, "seconds left" in table.out, "orders-1" in table.out) == (0, True, True)


def test_named_ones_are_cancelled_or_all_that_are_under_way(
    run: Run, cluster: FakeCluster, asked: list[Request]
) -> None:
    cancel = ("reassign", "cancel", "-b", cluster.bootstrap)
    assert run(*cancel, "--all") == (0, "0 of 0 partitions go back\n", "")
    assert asked == []
    assert run(*cancel, "orders-0", "orders-1") == (
        1,
        "1 of 2 partitions go back\n",
        "error: orders-1: STALE_PLAN: plan again\n",
    )
    cluster.adding = {TopicPartition("orders", number): (2,) for number in (0, 2)}
    assert run(*cancel, "--all").exit == 0
    assert asked == [
        CancelReassignment(partitions=("orders-0", "orders-1")),
        CancelReassignment(partitions=("orders-0", "orders-2")),
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("reassign", "plan"), "one of these"),
        (("reassign", "plan", "--over", "1", "--without", "2"), "one of these"),
        (("reassign", "plan", "--over", "1", "orders-0=1"), "one of these"),
        (("reassign", "plan", "-t", "orders", "orders-0=1"), "one of these"),
        (("reassign", "plan", "--over", "1,x"), "'1,x' is not a list of broker ids"),
        (("reassign", "plan", "--over", "1,\u0662"), "'1,\u0662' is not a list of broker ids"),
        (("reassign", "plan", "--over", "9" * 5_000), "is not a list of broker ids"),
        (("reassign", "plan", "--replace", f"1={'9' * 5_000}"), "is not of the form 3=4"),
        (("reassign", "plan", "--replace", "1"), "'1' is not of the form 3=4"),
        (("reassign", "plan", "--replace", "1=x"), "'1=x' is not of the form 3=4"),
        (("reassign", "plan", "orders-0"), "'orders-0' is not of the form orders-3=1,2,3"),
        (("reassign", "plan", "orders-0="), "'' is not a list of broker ids"),
        (("reassign", "apply", "/no/such/file"), "/no/such/file"),
        (("reassign", "cancel"), "one of these"),
        (("reassign", "cancel", "--all", "orders-0"), "one of these"),
    ],
)
def test_wrong_usage_is_told_before_anybody_is_asked(run: Run, arguments: tuple[str, ...], said: str) -> None:
    found = run(*arguments, "-b", "127.0.0.1:1")
    assert (found.exit, found.out) == (2, "")
    assert said in found.err


@pytest.mark.parametrize(
    ("goal", "target", "said"),
    [
        (("--replication-factor", "1"), (1,), "0 B\n"),
        (("--over", "1,2"), (2, 1), "0 replicas are copied: 0 B\n"),
        (("--add", "2"), (2, 1), "0 replicas are copied: 0 B\n"),
        (("--balance-leaders",), (2, 1), "leaders change once it is applied, by `leader elect`"),
    ],
)
def test_goals_are_planned_and_nothing_moves(
    run: Run, cluster: FakeCluster, asked: list[Request], goal: tuple[str, ...], target: tuple[int, ...], said: str
) -> None:
    planned = run("reassign", "plan", "-b", cluster.bootstrap, "-t", "orders", *goal)
    assert (planned.exit, said in planned.out, asked) == (0, True, [])
    plan = Plan.from_json(run("reassign", "plan", "-b", cluster.bootstrap, "--format=json", *goal).out)
    assert {move.target for move in plan.moves} <= {target}


def test_who_takes_the_place_of_a_broker_is_copied_to_and_how_long_that_takes_is_told(
    run: Run, cluster: FakeCluster, asked: list[Request]
) -> None:
    cluster.hosted = (1,)
    asked_for = ("reassign", "plan", "-b", cluster.bootstrap, "--replace", "1=2", "orders-0=2")
    assert run(*asked_for).exit == 2
    planned = run(*asked_for[:-1], "--rate", 1024)
    assert "how long it takes is unknown, as its size is\n" in planned.out, "of orders-1 nobody tells"
    sizes = [ReplicaSize(topic="orders", partition=n, topic_id="id-orders", leads=True, bytes=1024) for n in range(3)]
    cluster.sizes = {1: ReplicaSizes(replicas=tuple(sizes))}
    told = "about {}, if each broker sends {}/s (--rate): `reassign status` tells how it goes\n"
    assert run(*asked_for[:-1], "--rate", 1024).out.endswith(told.format("3 s", "1.0 KiB"))
    assert run(*asked_for[:-1], "--rate", 10).out.endswith(told.format("5 minutes", "10 B"))
    assert asked == []

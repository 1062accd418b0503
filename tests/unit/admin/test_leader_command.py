"""`spark-replication leader`: what is shown before and after, what it asks, and what it asks the controller."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from spark_replication.admin.cli import leader_command
from spark_replication.messages.descriptions import ReplicaSize, ReplicaSizes
from spark_replication.messages.records import Refusal
from spark_replication.messages.requests import AcknowledgeLoss, ElectLeaders, Request, RequestAnswer
from spark_replication.model import TopicPartition
from tests.unit.admin.conftest import Run
from tests.unit.client.fake_cluster import FakeBroker, FakeCluster
from tests.unit.core.stories import loss

STALE = Refusal(error="ELECTION_NOT_NEEDED", message="it has one", retriable=False)


@pytest.fixture
def asked(cluster: FakeCluster) -> list[Request]:
    """What the controller is asked; it elects broker 2, and refuses orders-1."""
    found: list[Request] = []

    def carry_out(_broker: FakeBroker, request: Request) -> RequestAnswer:
        assert isinstance(request, ElectLeaders)
        found.append(request)
        for name in request.partitions or ():
            partition = TopicPartition.parse(name)
            if partition.partition != 1 and partition in cluster.logs:
                cluster.lead(2, partition.topic, partition.partition)
        return RequestAnswer(errors={"orders-1": STALE} if "orders-1" in str(request) else {})

    cluster.carry_out = carry_out
    cluster.sizes = {
        1: ReplicaSizes(replicas=(log(0, 3, 10), log(2, 3, 10))),
        2: ReplicaSizes(replicas=(log(0, 2, 7),)),
    }
    return found


def log(partition: int, epoch: int, end: int) -> ReplicaSize:
    return ReplicaSize(
        topic="orders",
        partition=partition,
        topic_id="id-orders",
        leads=False,
        bytes=1,
        log_end=end,
        last_epoch=epoch,
    )


def elect(run: Run, cluster: FakeCluster, *arguments: object) -> tuple[int, list[dict[str, Any]], str]:
    ran = run("leader", "elect", "-b", cluster.bootstrap, "--format=json", *arguments)
    return ran.exit, json.loads(ran.out or "[]"), ran.err


def test_the_preferred_replica_leads_again_wherever_it_does_not(
    run: Run, cluster: FakeCluster, asked: list[Request]
) -> None:
    cluster.hosted = (2, 1)
    cluster.lead(2, partition=2)
    code, rows, err = elect(run, cluster)
    assert asked == [ElectLeaders(kind="preferred", partitions=("orders-0", "orders-1"))]
    assert (code, err) == (1, "error: orders-1: ELECTION_NOT_NEEDED: it has one\n")
    assert rows == [
        {
            "partition": "orders-0",
            "leader_before": 1,
            "leader": 2,
            "leader_epoch": 1,
            "elected": None,
            "error": None,
        },
        {
            "partition": "orders-1",
            "leader_before": 1,
            "leader": 1,
            "leader_epoch": 0,
            "elected": None,
            "error": "ELECTION_NOT_NEEDED: it has one",
        },
    ]


@pytest.mark.parametrize(
    ("kind", "said"), [("preferred", "led by its preferred replica"), ("unclean", "every partition has a leader")]
)
def test_that_there_is_nothing_to_elect_is_said(
    run: Run, cluster: FakeCluster, asked: list[Request], kind: str, said: str
) -> None:
    code, rows, err = elect(run, cluster, "--kind", kind)
    assert (code, rows, asked) == (0, [], [])
    assert said in err


def test_a_preferred_replica_that_is_not_in_sync_cannot_lead(
    run: Run, cluster: FakeCluster, asked: list[Request]
) -> None:
    cluster.hosted, cluster.in_sync = (2, 1), {1}
    assert elect(run, cluster)[:2] == (0, [])
    assert asked == []


def test_who_may_lose_records_sees_what_each_replica_has_and_is_asked(
    run: Run, cluster: FakeCluster, asked: list[Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.hosted, cluster.in_sync = (1, 2, 3), {2}
    for number, leader in enumerate((None, 2, 2)):
        cluster.lead(leader, partition=number)
    monkeypatch.setattr("click.confirm", lambda text, **_options: answers.append(text))
    answers: list[str] = []
    code, rows, err = elect(run, cluster, "--kind", "longest_log_proactive")
    assert (code, answers) == (0, ["elect all the same?"])
    assert asked == [ElectLeaders(kind="longest_log_proactive", partitions=("orders-0",))]
    assert [(row["leader_before"], row["leader"]) for row in rows] == [(None, 2)]
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in err.splitlines() if line.startswith("│")]
    assert cells == [
        ["orders-0", "1", "False", "3", "10", "0"],
        ["orders-0", "2", "True", "2", "7", "3"],
        ["orders-0", "3", "False", "", "", "does not answer"],
    ]


def test_only_topics_of_partitions_that_are_elected_are_looked_at(
    run: Run, cluster: FakeCluster, asked: list[Request]
) -> None:
    cluster.create("payments")
    elect(run, cluster, "--kind", "unclean", "--yes", "orders-0", "gone-0")
    assert {topics for topics in cluster.asked_topics if topics != ()} == {("gone", "orders")}
    cluster.asked_topics.clear()
    cluster.lead(None)
    elect(run, cluster, "--kind", "unclean", "--yes")
    first, *others = (topics for topics in cluster.asked_topics if topics != ())
    assert (first, set(others)) == (None, {("orders",)}), "who is to be elected is looked for among all"


def test_without_a_yes_nobody_is_elected(
    run: Run, cluster: FakeCluster, asked: list[Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    cluster.lead(None)
    code, rows, _ = elect(run, cluster, "--kind", "unclean", "orders-0")
    assert (code, rows, asked) == (1, [], [])


def test_a_file_names_partitions_and_leaders(
    run: Run, cluster: FakeCluster, asked: list[Request], tmp_path: Path
) -> None:
    file = tmp_path / "elections.json"
    cluster.create("payments")
    chosen = [{"topic": "orders", "partition": 0, "desiredLeader": 2}, {"topic": "payments", "partition": 0}]
    file.write_text(json.dumps({"partitions": chosen[:1]}))
    code, rows, _ = elect(run, cluster, "--kind", "designation", "--path-to-json-file", file, "--yes")
    assert (code, [row["leader"] for row in rows]) == (0, [2])
    file.write_text(json.dumps({"partitions": chosen}))
    assert elect(run, cluster, "--kind", "unclean", "--path-to-json-file", file, "--yes")[0] == 0
    assert asked == [
        ElectLeaders(kind="designation", partitions=("orders-0",), desired={"orders-0": 2}),
        ElectLeaders(kind="unclean", partitions=("orders-0",)),
        ElectLeaders(kind="unclean", partitions=("payments-0",)),
    ]
    refused = elect(run, cluster, "--kind", "designation", "--path-to-json-file", file, "--yes")
    assert (refused[0], "desiredLeader in the file" in refused[2]) == (2, True)


@pytest.mark.parametrize("text", ["{", "[]", '{"partitions": [{"topic": "orders"}]}', '{"partitions": [], "more": 1}'])
def test_a_file_that_says_something_else_is_refused(run: Run, cluster: FakeCluster, tmp_path: Path, text: str) -> None:
    file = tmp_path / "elections.json"
    file.write_text(text)
    code, _, err = elect(run, cluster, "--path-to-json-file", file)
    assert (code, "names no partitions" in err) == (1, True)


def test_logs_that_do_not_come_in_time_are_not_waited_for(
    run: Run, cluster: FakeCluster, asked: list[Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_command, "ANSWERS_S", 0.0)
    cluster.lead(None)
    cluster.carry_out = lambda _broker, _request: RequestAnswer()
    code, rows, _ = elect(run, cluster, "--kind", "longest_log_balanced", "--yes", "orders-0")
    assert (code, [row["leader"] for row in rows]) == (0, [None])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--kind", "any"), "'any' is not one of"),
        (("--leader", "1", "orders-0"), "for --kind designation alone"),
        (("--kind", "designation", "orders-0"), "A designation needs"),
        (("--kind", "designation", "--leader", "1"), "A designation needs"),
        (("--path-to-json-file", "/no/such/file"), "/no/such/file"),
        (("--path-to-json-file", __file__, "orders-0"), "leave out PARTITIONS"),
        (("--path-to-json-file", __file__, "--leader", "1"), "leave out PARTITIONS"),
    ],
)
def test_wrong_usage_is_told_before_anybody_is_asked(run: Run, arguments: tuple[str, ...], said: str) -> None:
    found = run("leader", "elect", *arguments, "-b", "127.0.0.1:1")
    assert (found.exit, found.out) == (2, "")
    assert said in found.err


NOT_THERE = Refusal(error="LOSS_NOT_ACKNOWLEDGED", message="it shows none", retriable=False)


@pytest.fixture
def lossy(cluster: FakeCluster) -> list[Request]:
    """orders-0 and orders-2 may have lost records. What the controller is asked; it refuses orders-1."""
    found: list[Request] = []

    def carry_out(_broker: FakeBroker, request: Request) -> RequestAnswer:
        found.append(request)
        return RequestAnswer(errors={"orders-1": NOT_THERE} if "orders-1" in str(request) else {})

    cluster.carry_out = carry_out
    cluster.log("orders", 0).loss = loss(3, 5, since_ms=1_795_878_001_234, from_offset=40)
    cluster.log("orders", 2).loss = loss(2, since_ms=70, from_offset=0, records_max=9)
    return found


def acknowledge(run: Run, cluster: FakeCluster, *arguments: object) -> tuple[int, list[dict[str, Any]], str]:
    ran = run("leader", "acknowledge-loss", "-b", cluster.bootstrap, "--format=json", *arguments)
    return ran.exit, json.loads(ran.out or "[]"), ran.err


OF_0 = {
    "partition": "orders-0",
    "since": "2026-11-28T15:00:01.234+00:00",
    "from_offset": 40,
    "records_max": None,
    "first_epoch": 3,
    "last_epoch": 5,
    "error": None,
}


def test_what_is_shown_is_acknowledged_and_no_more(run: Run, cluster: FakeCluster, lossy: list[Request]) -> None:
    code, rows, err = acknowledge(run, cluster)
    assert (code, err) == (0, "")
    assert lossy == [AcknowledgeLoss(known={"orders-0": 5, "orders-2": 2})]
    assert (rows[0], [row["partition"] for row in rows]) == (OF_0, ["orders-0", "orders-2"])


def test_what_is_named_alone_is_acknowledged_or_refused(run: Run, cluster: FakeCluster, lossy: list[Request]) -> None:
    code, rows, err = acknowledge(run, cluster, "orders-0", "orders-1", "orders-0")
    assert (code, err) == (1, "error: orders-1: LOSS_NOT_ACKNOWLEDGED: it shows none\n")
    assert lossy == [AcknowledgeLoss(known={"orders-0": 5, "orders-1": 0})]
    assert (rows[0], rows[1]["since"], rows[1]["error"]) == (OF_0, None, "LOSS_NOT_ACKNOWLEDGED: it shows none")


def test_that_there_is_nothing_to_acknowledge_is_said(run: Run, cluster: FakeCluster) -> None:
    assert acknowledge(run, cluster) == (0, [], "nothing to acknowledge: no partition shows a possible loss\n")


def test_partitions_with_possible_loss_are_listed(run: Run, cluster: FakeCluster, lossy: list[Request]) -> None:
    listed = ("partitions", "-b", cluster.bootstrap, "--possible-loss")
    rows = json.loads(run(*listed, "--format=json").out)
    assert [(row["partition"], row["possible_loss"]["from_offset"]) for row in rows] == [(0, 40), (2, 0)]
    assert "from offset 0 on, 9 at most" in run(*listed).out
    everything = json.loads(run("partitions", "-b", cluster.bootstrap, "--format=json").out)
    assert [(row["partition"], row["possible_loss"] is None) for row in everything] == [
        (0, False),
        (2, False),
        (1, True),
    ]

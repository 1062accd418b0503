"""`spark-replication topics create`, `configure`, `delete` and their like: what they ask of the controller."""

from __future__ import annotations

import pytest

from spark_replication.messages.requests import (
    AddPartitions,
    Configure,
    DeleteTopic,
    RemovePartitions,
    Request,
    RequestAnswer,
)
from spark_replication.model import Scalar
from tests.unit.admin.conftest import Run
from tests.unit.client.fake_cluster import FakeBroker, FakeCluster


@pytest.fixture
def asked(cluster: FakeCluster) -> list[Request]:
    found: list[Request] = []

    def carry_out(_broker: FakeBroker, request: Request) -> RequestAnswer:
        found.append(request)
        match request:
            case DeleteTopic(topic=topic):
                del cluster.topics[topic]
            case AddPartitions():
                cluster.create("orders", partitions=5)
            case _:
                pass
        return RequestAnswer()

    cluster.carry_out = carry_out
    return found


def test_a_topic_is_created_with_its_settings(run: Run, cluster: FakeCluster) -> None:
    made = run("topics", "create", "-b", cluster.bootstrap, "new", "--schema", "id:int64", "-p", 2, "retention.ms=5")
    assert made == (0, "new has 2 partitions of 2 replicas each\n", "")
    again = run("topics", "create", "-b", cluster.bootstrap, "new", "--schema", "id:string", "-p", 2)
    assert (again.exit, "TOPIC_ALREADY_EXISTS" in again.err) == (1, True)


def test_settings_are_given_and_taken_away(run: Run, cluster: FakeCluster, asked: list[Request]) -> None:
    given = ("retention.ms=86400000", "compression=lz4", "min.insync.replicas=")
    said = run("topics", "configure", "-b", cluster.bootstrap, "orders", *given)
    assert said == (0, f"orders is configured: {', '.join(given)}\n", "")
    settings: dict[str, Scalar | None] = {"retention.ms": 86_400_000, "compression": "lz4", "min.insync.replicas": None}
    assert asked == [Configure(topic="orders", settings=settings)]


@pytest.mark.parametrize(("least", "is_told"), [(3, True), (2, False)])
def test_more_in_sync_than_there_are_replicas_is_told(
    run: Run, cluster: FakeCluster, asked: list[Request], least: int, is_told: bool
) -> None:
    setting = f"min.insync.replicas={least}"
    warning = (
        "warning: orders has 2 replicas, fewer than min.insync.replicas=3: acks=all waits for all 2, and is refused "
        "while one is away. Set less than that, or give it more replicas: `spark-replication guide moves`\n"
    )
    done = run("topics", "configure", "-b", cluster.bootstrap, "orders", setting)
    assert done == (0, f"orders is configured: {setting}\n", warning if is_told else "")
    assert len(asked) == 1


def test_so_it_is_of_a_new_topic(run: Run, cluster: FakeCluster) -> None:
    for name, least, is_told in (("new", 2, False), ("newer", 3, True)):
        setting = f"min.insync.replicas={least}"
        made = run("topics", "create", "-b", cluster.bootstrap, name, "--schema", "id:int64", "-p", 1, setting)
        assert (made.exit, f"warning: {name} has 2 replicas, fewer than {setting}" in made.err) == (0, is_told)


def test_partitions_are_added_and_removed(run: Run, cluster: FakeCluster, asked: list[Request]) -> None:
    assert run("topics", "add-partitions", "-b", cluster.bootstrap, "orders", 5).out == "orders has 5 partitions\n"
    removed = run("topics", "remove-partitions", "-b", cluster.bootstrap, "orders", 3, 4, "--yes")
    assert removed.exit == 0
    assert asked == [AddPartitions(counts={"orders": 5}), RemovePartitions(partitions={"orders": (3, 4)})]


def test_what_ends_records_asks_first(
    run: Run, cluster: FakeCluster, asked: list[Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    questions: list[str] = []

    def no(text: str, **_options: object) -> None:
        questions.append(text)
        raise SystemExit(1)

    monkeypatch.setattr("click.confirm", no)
    assert run("topics", "delete", "-b", cluster.bootstrap, "orders").exit == 1
    assert run("topics", "remove-partitions", "-b", cluster.bootstrap, "orders", 2).exit == 1
    assert questions == ["delete orders with all its records?", "remove orders-2 with all their records?"]
    assert asked == []
    assert run("topics", "delete", "-b", cluster.bootstrap, "orders", "--yes") == (0, "orders is deleted\n", "")
    assert asked == [DeleteTopic(topic="orders")]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("create", "new"), "Missing option '--schema'"),
        (("create", "new", "--schema", "id:int64", "-p", "0"), "0 is not in the range"),
        (("configure", "orders"), "Name a setting"),
        (("add-partitions", "orders", "0"), "0 is not in the range"),
        (("remove-partitions", "orders"), "Missing argument"),
    ],
)
def test_wrong_usage(run: Run, arguments: tuple[str, ...], said: str) -> None:
    refused = run("topics", *arguments, "-b", "127.0.0.1:1")
    assert (refused.exit, said in refused.err) == (2, True)

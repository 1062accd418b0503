"""`spark-replication groups`: what is listed of groups, and where a person has one go on."""

from __future__ import annotations

import io
import json
from typing import Any

import pyarrow as pa
import pytest

from spark_replication.client.producing.producer import Producer
from tests.unit.admin.conftest import Run
from tests.unit.client.fake_cluster import SCHEMA, FakeCluster
from tests.unit.client.told_groups import group, member, position

COMMITTED = "2025-11-30T10:53:20Z"


@pytest.fixture
def rows(cluster: FakeCluster) -> FakeCluster:
    """Partition 0 has four rows, and partition 1 two. Of three groups two are empty."""
    with Producer(cluster.bootstrap) as producer:
        for number, count in ((0, 4), (1, 2)):
            batch = pa.record_batch([pa.array(range(count), pa.int64())], schema=SCHEMA)
            producer.send("orders", batch, partition=number).result()
    cluster.groups.add(group("audit", positions=[position(0, 4), position(1, 2)]))
    cluster.groups.add(group("etl", [member("one", 0, 2), member("two", 1, hands_over=[1])], [position(0, 3)]))
    cluster.groups.add(group("old", positions=[position(0, 0)]))
    return cluster


def told(run: Run, cluster: FakeCluster, *arguments: object) -> Any:
    """Without the time that records wait: that is not always the same, but it is there with records only."""
    found = run("groups", *arguments, "-b", cluster.bootstrap, "--format=json")
    assert (found.exit, found.err) == (0, "")
    whole = json.loads(found.out)
    rows = whole if isinstance(whole, list) else [whole, *whole["partitions"]]
    for row in rows:
        records, time_ms = row["lag_records"], row.pop("lag_ms")
        assert (time_ms is None, bool(time_ms)) == (records is None, bool(records))
    return whole


def offsets(cluster: FakeCluster, name: str) -> list[int]:
    return [each.offset for each in cluster.groups.by_name[name].positions]


def test_the_group_that_is_most_behind_comes_first(run: Run, rows: FakeCluster) -> None:
    expected = [
        ("old", "empty", 0, 3, 6, COMMITTED),
        ("etl", "moving", 2, 3, 3, COMMITTED),
        ("audit", "empty", 0, 3, 0, COMMITTED),
    ]
    names = ("group", "state", "members", "partitions", "lag_records", "oldest_commit")
    for arguments in ((), ("list",)):
        assert told(run, rows, *arguments) == [dict(zip(names, each, strict=True)) for each in expected]
    shown = run("groups", "-b", rows.bootstrap)
    assert [line.split()[1] for line in shown.out.splitlines() if "moving" in line or "empty" in line] == [
        *("old", "etl", "audit")
    ]


def test_a_group_of_which_nobody_knows_how_far_it_is_behind_comes_before_those_that_are_not(
    run: Run, rows: FakeCluster
) -> None:
    rows.create("quiet")
    rows.groups.add(group("far", positions=[position(0, 0, topic="quiet")]))
    rows.lead(None, "quiet")
    found = [(each["group"], each["lag_records"]) for each in told(run, rows)]
    assert found == [("old", 6), ("etl", 3), ("far", None), ("audit", 0)], "as the page has them"
    shown = run("groups", "describe", "far", "-b", rows.bootstrap)
    assert shown.out.startswith("far  empty, 0 members, how far behind is not known\n")


def test_a_group_is_described_with_its_members_and_its_partitions(run: Run, rows: FakeCluster) -> None:
    found = told(run, rows, "describe", "etl")
    members, partitions = found.pop("members"), found.pop("partitions")
    assert found == {"group": "etl", "state": "moving", "lag_records": 3}
    assert members[1] == {
        "name": "job-two",
        "host": "host-two",
        "partitions": ["orders-1"],
        "hands_over": ["orders-1"],
        "silent_ms": 70,
        "connected": True,
        "member": "two",
    }
    names = ("topic", "partition", "position", "end", "lag_records", "committed", "member")
    assert partitions == [
        dict(zip(names, each, strict=True))
        for each in (
            ("orders", 0, 3, 4, 1, COMMITTED, "job-one"),
            ("orders", 1, None, 2, 2, None, "job-two"),
            ("orders", 2, None, 0, 0, None, "job-one"),
        )
    ]
    shown = run("groups", "describe", "etl", "-b", rows.bootstrap)
    assert (shown.exit, shown.err) == (0, "")
    assert shown.out.startswith("etl  moving, 2 members, 3 records behind\n")
    assert ("job-two" in shown.out, "hands over" in shown.out) == (True, True)


def test_lag_is_told_of_one_group_or_of_all_the_most_first(run: Run, rows: FakeCluster) -> None:
    found = told(run, rows, "lag")
    assert [(each["group"], each["partition"], each["lag_records"]) for each in found] == [
        *(("old", 0, 4), ("etl", 1, 2), ("old", 1, 2), ("etl", 0, 1)),
        *(("audit", 0, 0), ("audit", 1, 0), ("audit", 2, 0), ("etl", 2, 0), ("old", 2, 0)),
    ]
    names = ("group", "topic", "partition", "position", "end", "lag_records", "member")
    assert told(run, rows, "lag", "old")[:1] == [dict(zip(names, ("old", "orders", 0, 0, 4, 4, None), strict=True))]


@pytest.mark.parametrize(
    ("option", "after"),
    [
        (("--to-offset", 1), 1),
        (("--to-earliest",), 0),
        (("--to-latest",), 4),
        (("--to-time", "2100-01-01T00:00:00Z"), 4),
        (("--shift", 1), 3),
        (("--shift", -1), 1),
    ],
)
def test_a_reset_shows_what_it_changes_and_a_dry_run_what_it_would(
    run: Run, rows: FakeCluster, option: tuple[object, ...], after: int
) -> None:
    rows.groups.add(group("old", positions=[position(0, 2)]))
    wanted = ("groups", "reset", "old", "--topic", "orders", "-p", 0, *option, "-b", rows.bootstrap, "--format=json")
    names = ("topic", "partition", "before", "after", "skipped", "read_again")
    expected = [dict(zip(names, ("orders", 0, 2, after, max(0, after - 2), max(0, 2 - after)), strict=True))]
    dry = run(*wanted, "--dry-run")
    assert (dry.exit, json.loads(dry.out), offsets(rows, "old")) == (0, expected, [2])
    assert dry.err == "nothing is changed: without --dry-run it is\n"
    done = run(*wanted)
    assert (done.exit, json.loads(done.out), offsets(rows, "old"), done.err) == (0, expected, [after], "")


def test_a_group_with_members_is_neither_reset_nor_deleted(run: Run, rows: FakeCluster) -> None:
    for arguments in (
        ("reset", "etl", "--to-latest"),
        ("reset", "etl", "--to-latest", "--dry-run"),
        ("delete", "etl", "--yes"),
    ):
        found = run("groups", *arguments, "-b", rows.bootstrap)
        assert (found.exit, found.out) == (1, "")
        assert "NON_EMPTY_GROUP: group etl has 2 members (one on host-one, two on host-two)" in found.err


def test_a_group_is_deleted_once_a_person_has_said_so(
    run: Run, rows: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    asked = run("groups", "delete", "old", "-b", rows.bootstrap)
    assert (asked.exit, "delete old with all its positions?" in asked.err) == (1, True)
    assert "old" in rows.groups.by_name
    assert run("groups", "delete", "old", "--yes", "-b", rows.bootstrap) == (0, "old is deleted\n", "")
    assert [each["group"] for each in told(run, rows)] == ["etl", "audit"]


@pytest.mark.parametrize("verb", [("describe",), ("lag",), ("reset", "--to-latest"), ("delete", "--yes")])
def test_an_unknown_group_is_answered_with_those_that_there_are(
    run: Run, cluster: FakeCluster, verb: tuple[str, ...]
) -> None:
    first = run("groups", *verb, "elt", "-b", cluster.bootstrap)
    said = "error: GROUP_ID_NOT_FOUND: there is no group elt, there is none at all: check the name\n"
    assert first == (1, "", said)
    for number in range(12):
        cluster.groups.add(group(f"g{number:02}"))
    named = ", ".join(f"g{number:02}" for number in range(10))
    found = run("groups", *verb, "elt", "-b", cluster.bootstrap)
    assert found == (
        1,
        "",
        f"error: GROUP_ID_NOT_FOUND: there is no group elt, there are {named} and 2 more: check the name\n",
    )

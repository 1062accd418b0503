"""Groups as Admin tells of them, and where a reset sets them: coordinators know the positions, leaders the logs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from spark_replication.client.asking import group_logs
from spark_replication.client.asking.admin import Admin
from spark_replication.client.asking.group_resets import PositionChange
from spark_replication.client.producing.producer import Producer
from spark_replication.core.routing import partition_of_key
from spark_replication.errors import (
    GroupNotEmpty,
    InvalidRequest,
    OffsetOutOfRange,
    ReplicationError,
    UnknownGroup,
    UnknownTopicOrPartition,
)
from spark_replication.messages.groups import GROUPS_PARTITIONS, GROUPS_TOPIC
from spark_replication.model import TopicPartition
from spark_replication.process.threads import now_ms
from tests.unit.client.fake_cluster import PASSES_MS, SCHEMA, FakeCluster
from tests.unit.client.told_groups import group, member, position


@pytest.fixture
def admin(cluster: FakeCluster) -> Iterator[Admin]:
    with Admin(cluster.bootstrap, deadline_ms=10_000) as opened:
        yield opened


@pytest.fixture
def rows(cluster: FakeCluster) -> FakeCluster:
    """Partitions 0 and 1 have four rows each, two of which were appended at 1,000 ms in epoch 0, and two at 2,000 in
    epoch 1; the group etl has committed two of partition 0 and has no position elsewhere."""
    with Producer(cluster.bootstrap) as producer:
        for epoch, at_ms in enumerate((1_000, 2_000)):
            for number in (0, 1):
                cluster.log(partition=number).now_ms = at_ms
                batch = pa.record_batch([pa.array(range(2), pa.int64())], schema=SCHEMA)
                producer.send("orders", batch, partition=number).result()
                if epoch == 0:
                    cluster.lead(1, partition=number)
    cluster.groups.add(group("etl", positions=[position(0, 2)]))
    return cluster


def changed(before: int | None, after: int, number: int = 0, *, skipped: int = 0, again: int = 0) -> PositionChange:
    return PositionChange(
        topic="orders", partition=number, before=before, after=after, skipped=skipped, read_again=again
    )


def stored(cluster: FakeCluster, name: str = "etl") -> dict[int, tuple[str, int, int]]:
    positions = cluster.groups.by_name[name].positions
    return {each.partition: (each.topic_id, each.offset, each.last_epoch) for each in positions}


# What is told


def test_a_group_is_as_far_behind_as_leaders_have_records(rows: FakeCluster, admin: Admin) -> None:
    rows.groups.add(group("etl", members=[member("one", 0, 1)], positions=[position(0, 3)]))
    (found,) = admin.groups()
    assert [(each.partition, each.offset, each.end, each.lag, each.member) for each in found.partitions] == [
        (0, 3, 4, 1, "one"),
        (1, None, 4, 4, "one"),
        (2, None, 0, 0, None),
    ]
    assert (found.state, found.lag) == ("moving", 5), "nobody reads partition 2"


@pytest.mark.parametrize(
    ("name", "state", "partitions"), [("spark:etl", "spark_query", [0]), ("spark", "empty", [0, 1, 2])]
)
def test_a_spark_query_is_told_from_a_group_that_has_no_members_and_reads_what_it_reports(
    rows: FakeCluster, admin: Admin, name: str, state: str, partitions: list[int]
) -> None:
    rows.groups.add(group(name, positions=[position(0, 3)]))
    (found,) = admin.groups([name])
    assert (found.state, [each.partition for each in found.partitions]) == (state, partitions)


def test_a_spark_query_is_not_reset_but_forgotten(rows: FakeCluster, admin: Admin) -> None:
    rows.groups.add(group("spark:etl", positions=[position(0, 3)]))
    with pytest.raises(InvalidRequest, match="goes on where its checkpoint says"):
        admin.reset_group("spark:etl", to="earliest")
    admin.delete_group("spark:etl")
    assert "spark:etl" not in rows.groups.by_name


def test_what_a_leader_does_not_say_is_not_known(rows: FakeCluster, admin: Admin) -> None:
    rows.lead(None, partition=0)
    (found,) = admin.groups(["etl"])
    assert [(each.partition, each.offset, each.end, each.lag) for each in found.partitions] == [
        (0, 2, None, None),
        (1, None, 4, 4),
        (2, None, 0, 0),
    ]
    assert found.lag is None


@pytest.mark.parametrize("is_registered", [True, False])
def test_what_a_leader_does_not_say_that_is_gone_is_not_known(rows: FakeCluster, is_registered: bool) -> None:
    for number in range(GROUPS_PARTITIONS):
        rows.lead(2, GROUPS_TOPIC, number)
    rows.lead(2, partition=1)
    rows.brokers[1].proxy.down()
    rows.registered = None if is_registered else {2}
    with Admin(rows.brokers[2].address, deadline_ms=10_000) as admin:
        (found,) = admin.groups(["etl"])
    assert [(each.partition, each.lag) for each in found.partitions] == [(0, None), (1, 4), (2, None)]


def test_of_a_topic_that_may_not_be_seen_positions_alone_are_told(rows: FakeCluster, admin: Admin) -> None:
    rows.create("secret")
    rows.create("nobodys")
    rows.groups.add(group("etl", positions=[position(0, 2), position(0, 7, topic="secret")]))
    rows.unseen.add("secret")
    (found,) = admin.groups()
    assert [(each.topic, each.offset, each.lag) for each in found.partitions] == [
        ("orders", 2, 2),
        ("orders", None, 4),
        ("orders", None, 0),
        ("secret", 7, None),
    ]
    assert found.lag is None


def test_a_partition_whose_state_cannot_be_read_is_not_left_out(rows: FakeCluster, admin: Admin) -> None:
    rows.hidden.add(TopicPartition("orders", 1))
    (found,) = admin.groups()
    assert [(each.partition, each.offset, each.lag) for each in found.partitions] == [
        (0, 2, 2),
        (1, None, None),
        (2, None, 0),
    ]
    assert found.lag is None


def test_leaders_are_asked_for_so_many_ranges_at_a_time(
    rows: FakeCluster, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = [(each.end, each.lag) for each in admin.groups()[0].partitions]
    monkeypatch.setattr(group_logs, "RANGES_A_CALL", 2)
    assert [(each.end, each.lag) for each in admin.groups()[0].partitions] == before == [(4, 2), (4, 4), (0, 0)]


def test_a_place_is_asked_about_once_however_many_groups_are_there(rows: FakeCluster, admin: Admin) -> None:
    """Partition 0 has four records, partition 1 as many that nobody has read, partition 2 none."""
    for number in range(10):
        rows.groups.add(group(f"at-{number:02}", positions=[position(0, 4 if number < 5 else 1)]))
    assert [each.lag for each in admin.groups()] == [4] * 5 + [7] * 5 + [6]
    asked = [rows.log(partition=number).asked_ranges for number in range(3)]
    assert asked == [1 + 2, 1 + 1, 1], "its end; and since when, at 1 and at 2; at 0; nothing is there"


def test_since_when_is_asked_of_so_many_places_and_those_first_that_are_most_behind(
    rows: FakeCluster, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_logs, "TIMED_MAX", 1)
    (found,) = admin.groups()
    assert [each.lag for each in found.partitions] == [2, 4, 0]
    assert [None if each.lag_ms is None else each.lag_ms > 0 for each in found.partitions] == [None, True, False]
    assert found.lag_ms is None


def test_groups_of_every_coordinator_are_told_each_with_its_own_positions(rows: FakeCluster, admin: Admin) -> None:
    rows.groups.add(group("audit", positions=[position(0, 4)]))
    rows.lead(2, GROUPS_TOPIC, partition_of_key(range(GROUPS_PARTITIONS), b"audit"))
    assert [(each.group, each.state, each.lag) for each in admin.groups()] == [
        ("audit", "empty", 4),
        ("etl", "empty", 6),
    ], "what nobody has committed counts"
    assert [each.group for each in admin.groups(["audit", "nobody"])] == ["audit"]


def test_a_position_in_a_topic_that_was_made_again_is_none(rows: FakeCluster, admin: Admin) -> None:
    rows.groups.add(group("etl", positions=[position(0, 2, topic_id="before")]))
    (found,) = admin.groups()
    assert [(each.offset, each.lag) for each in found.partitions] == [(None, 4), (None, 4), (None, 0)]


def test_the_first_record_that_is_not_committed_says_for_how_long_a_group_is_behind(
    rows: FakeCluster, admin: Admin
) -> None:
    rows.groups.add(group("etl", positions=[position(0, 1), position(1, 4)]))
    before_ms = now_ms()
    (found,) = admin.groups()
    (behind, done, empty), took_ms = found.partitions, now_ms() - before_ms
    assert behind.lag_ms is not None
    assert before_ms - 1_000 <= behind.lag_ms <= before_ms - 1_000 + took_ms
    assert (done.lag_ms, empty.lag_ms, found.lag_ms) == (0, 0, behind.lag_ms)
    rows.groups.add(group("etl", positions=[position(0, 2, topic_id="before"), position(1, 4)]))
    (again,) = admin.groups()
    assert again.lag_ms is not None
    assert again.lag_ms >= before_ms - 1_000, "a position of a topic that was made again counts for nothing"
    rows.lead(None, partition=1)
    (unknown,) = admin.groups()
    assert (unknown.partitions[1].lag_ms, unknown.lag_ms) == (None, None)
    rows.log(partition=0).now_ms = now_ms() + 3_600_000
    with Producer(rows.bootstrap) as producer:
        batch = pa.record_batch([pa.array([1], pa.int64())], schema=SCHEMA)
        producer.send("orders", batch, partition=0).result()
    rows.groups.add(group("etl", positions=[position(0, 4)]))
    (ahead,) = admin.groups()
    assert ahead.partitions[0].lag_ms == 0, "a leader whose clock is ahead has nothing from before"


def test_a_group_of_which_nothing_is_stored_has_no_partitions(cluster: FakeCluster, admin: Admin) -> None:
    assert admin.groups() == [], "without the groups' log there is none"
    cluster.groups.add(group("etl"))
    (found,) = admin.groups()
    assert (found.partitions, found.lag) == ((), 0)


# Where a reset sets it


@pytest.mark.parametrize(
    ("to", "expected", "last_epoch"),
    [
        (1, changed(2, 1, again=1), 0),
        (4, changed(2, 4, skipped=2), 1),
        ("earliest", changed(2, 0, again=2), -1),
        ("latest", changed(2, 4, skipped=2), 1),
        ("+1", changed(2, 3, skipped=1), 1),
        ("-1", changed(2, 1, again=1), 0),
        ("+100", changed(2, 4, skipped=2), 1),
        ("-100", changed(2, 0, again=2), -1),
        (datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC), changed(2, 2), 0),
        (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(hours=1), changed(2, 4, skipped=2), 1),
    ],
)
def test_a_place_is_stored_with_the_epoch_of_the_record_before_it(
    rows: FakeCluster, admin: Admin, to: Any, expected: PositionChange, last_epoch: int
) -> None:
    before = rows.groups.by_name["etl"]
    assert admin.reset_group("etl", "orders", [0], to=to, dry_run=True) == [expected]
    assert rows.groups.by_name["etl"] is before, "nothing was done"
    assert admin.reset_group("etl", "orders", [0], to=to) == [expected]
    assert stored(rows) == {0: ("id-orders", expected.after, last_epoch)}


def test_all_partitions_of_its_topics_are_set_and_shifted_are_those_that_it_has_read(
    rows: FakeCluster, admin: Admin
) -> None:
    assert admin.reset_group("etl", to="-1") == [changed(2, 1, again=1)]
    assert admin.reset_group("etl", to="latest") == [
        changed(1, 4, skipped=3),
        changed(None, 4, 1, skipped=4),
        changed(None, 0, 2),
    ]
    assert stored(rows) == {0: ("id-orders", 4, 1), 1: ("id-orders", 4, 1), 2: ("id-orders", 0, -1)}


def test_a_group_that_nobody_knows_is_made_for_a_topic(rows: FakeCluster, admin: Admin) -> None:
    assert admin.reset_group("new", "orders", [1], to=2) == [changed(None, 2, 1, skipped=2)]
    assert stored(rows, "new") == {1: ("id-orders", 2, 0)}


def test_the_first_group_of_all_is_made_with_the_log_of_groups(cluster: FakeCluster, admin: Admin) -> None:
    assert admin.reset_group("new", "orders", [1], to="earliest") == [changed(None, 0, 1)]
    assert stored(cluster, "new") == {1: ("id-orders", 0, -1)}


@pytest.mark.parametrize(
    ("arguments", "to", "error", "message"),
    [
        (("nobody",), "latest", UnknownGroup, "there is no group nobody, there are etl: check the name"),
        (("a b",), "latest", InvalidRequest, "'a b' is no group's name"),
        (("etl", None, [0]), "latest", InvalidRequest, "partitions are of one topic"),
        (("etl", "orders", []), "latest", InvalidRequest, "one partition at least"),
        (("etl", "orders", [0, 7, 8]), "latest", UnknownTopicOrPartition, "no partition 7 to 8, it has 0 to 2"),
        (("etl", "none"), "latest", UnknownTopicOrPartition, "none"),
        (("etl", "orders", [0, 1]), "+1", InvalidRequest, "no position in orders-1 that can be shifted"),
        (("new", "orders"), "+1", InvalidRequest, "group new has no position in orders"),
        (
            ("etl",),
            5,
            OffsetOutOfRange,
            "5 is outside of orders-0 with 0 to 4; orders-1 with 0 to 4; orders-2 with",
        ),
        (("etl",), "newest", InvalidRequest, "to='newest': it is an offset"),
        (("etl",), -1, InvalidRequest, "to=-1: it is an offset"),
        (("etl",), True, InvalidRequest, "to=True: it is an offset"),
        (("etl",), datetime(2026, 1, 1), InvalidRequest, "no time zone"),
    ],
)
def test_what_cannot_be_set_is_refused_before_anything_is(
    rows: FakeCluster, admin: Admin, arguments: Any, to: Any, error: type[ReplicationError], message: str
) -> None:
    with pytest.raises(error, match=message):
        admin.reset_group(*arguments, to=to)
    assert [*rows.groups.by_name] == ["etl"]
    assert stored(rows) == {0: ("id-orders", 2, 0)}


def test_what_retention_has_removed_is_outside_and_neither_skipped_nor_read_again(
    rows: FakeCluster, admin: Admin
) -> None:
    rows.groups.add(group("etl", positions=[position(0, 1)]))
    del rows.log().batches[0]
    with pytest.raises(OffsetOutOfRange, match="offset 1 is outside of orders-0 with 2 to 4"):
        admin.reset_group("etl", "orders", [0], to=1)
    assert admin.reset_group("etl", "orders", [0], to=3) == [changed(1, 3, skipped=1)]


def test_a_group_with_members_is_refused_by_a_dry_run_and_by_its_coordinator(rows: FakeCluster, admin: Admin) -> None:
    rows.groups.add(group("etl", members=[member("one", 0)], positions=[position(0, 2)]))
    for is_dry in (True, False):
        with pytest.raises(GroupNotEmpty, match=r"group etl has 1 members \(one on host-one\)"):
            admin.reset_group("etl", to="latest", dry_run=is_dry)
    with pytest.raises(GroupNotEmpty, match="its positions are deleted once they have left"):
        admin.delete_group("etl")


def test_a_coordinator_that_has_moved_is_found_again(rows: FakeCluster, admin: Admin) -> None:
    number = partition_of_key(range(GROUPS_PARTITIONS), b"etl")
    for broker in (1, 2):
        rows.lead(broker, GROUPS_TOPIC, number)
        assert admin.reset_group("etl", "orders", [0], to="latest")[0].after == 4
    rows.lead(1, GROUPS_TOPIC, number)
    admin.delete_group("etl")
    assert admin.groups() == []


def test_an_end_that_a_new_leader_does_not_know_is_waited_for(rows: FakeCluster) -> None:
    rows.log().knows_the_end = False
    with (
        Admin(rows.bootstrap, deadline_ms=PASSES_MS) as admin,
        pytest.raises(ReplicationError, match="has only begun"),
    ):
        admin.reset_group("etl", "orders", [0], to="latest")
    assert rows.log().refused_ends > 1

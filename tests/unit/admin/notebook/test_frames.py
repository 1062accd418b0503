"""What is told as tables: their columns, their types, and a row for each."""

from __future__ import annotations

import base64
from typing import Any

import pyarrow as pa
import pytest

from spark_replication.admin.notebook.frames import (
    BROKER_COLUMNS,
    EVENT_COLUMNS,
    GROUP_COLUMNS,
    LAG_COLUMNS,
    PARTITION_COLUMNS,
    POSITION_COLUMNS,
    TOPIC_COLUMNS,
    broker_frame,
    event_frame,
    group_frame,
    lag_frame,
    partition_frame,
    position_frame,
    topic_frame,
)
from spark_replication.client.asking.descriptions import BrokerDescription, ClusterDescription
from spark_replication.client.asking.replica_sizes import ReplicaDescription
from spark_replication.messages.descriptions import FollowerLag
from spark_replication.model import TopicPartition
from tests.unit.admin.notebook.described import event, least_cpu_s, partition, topic
from tests.unit.view.described_groups import group, member, position

MANY = 10_000
WELL_UNDER_A_SECOND_S = 0.5


def test_partitions_have_the_mirrors_columns_and_a_condition() -> None:
    found = topic(partition(0), partition(1, leader=None, isr=(), elr=(2, 1), elected="elr", start_at=40), name="a")
    frame = partition_frame([found, topic(partition(), name="b")])
    shown = frame.to_pandas()
    assert [*shown.columns] == PARTITION_COLUMNS.names
    assert [*zip(shown.topic, shown.partition, shown.condition, strict=True)] == [
        ("a", 0, "in sync"),
        ("a", 1, "leaderless"),
        ("b", 0, "in sync"),
    ]
    assert str(shown.leader.dtype) == "Int32"
    assert [*shown.leader.isna()] == [False, True, False]
    assert [*shown.isr] == [(1, 2), (), (1, 2)]  # ascending, as the mirror has them
    assert [*shown.elr] == [(), (1, 2), ()]
    assert [*shown.replicas] == [(2, 1)] * 3
    assert shown.recovering.dtype == bool
    arrow = frame.to_arrow()
    assert arrow.schema == PARTITION_COLUMNS
    assert arrow["elected_how"].to_pylist() == [None, "elr", None]
    assert arrow["start_at"].to_pylist() == [None, 40, None]
    assert arrow["isr"].to_pylist() == [[1, 2], [], [1, 2]]


def test_every_column_says_what_it_means() -> None:
    own = (LAG_COLUMNS, GROUP_COLUMNS, POSITION_COLUMNS)
    for schema in (PARTITION_COLUMNS, BROKER_COLUMNS, TOPIC_COLUMNS, EVENT_COLUMNS, *own):
        assert all(field.metadata[b"comment"] for field in schema)


def test_many_partitions_take_well_under_a_second() -> None:
    described = [topic(*map(partition, range(MANY)))]
    partition_frame(described[:0]).to_pandas()  # imports pandas
    assert len(partition_frame(described).to_pandas()) == MANY
    assert least_cpu_s(lambda: partition_frame(described).to_pandas()) < WELL_UNDER_A_SECOND_S


def test_brokers_say_where_they_are() -> None:
    told: dict[str, Any] = {"host": "h", "port": 5, "replication_port": 6, "epoch": 7}
    cluster = ClusterDescription(
        cluster_id="c",
        controller=None,
        brokers=(
            BrokerDescription(id=1, rack=None, shutting_down=False, **told),
            BrokerDescription(id=2, rack="r", shutting_down=True, **told),
        ),
    )
    frame = broker_frame(cluster)
    assert frame.to_arrow().to_pylist() == [
        {"broker": 1, "host": "h", "port": 5, "rack": None, "epoch": 7, "state": "live"},
        {"broker": 2, "host": "h", "port": 5, "rack": "r", "epoch": 7, "state": "shutting_down"},
    ]
    assert [*frame.to_pandas().columns] == BROKER_COLUMNS.names


def test_a_topics_schema_can_be_read() -> None:
    schema = base64.b64encode(pa.schema([("id", pa.int64()), ("at", pa.string())]).serialize().to_pybytes()).decode()
    told = [topic(partition(), schema=schema, config={"retention.ms": 5}), topic(name="bare")]
    assert topic_frame(told).to_arrow().select(TOPIC_COLUMNS.names[:5]).to_pylist() == [
        {
            "topic": "orders",
            "partitions": 1,
            "columns": "id:int64, at:string",
            "schema_version": 0,
            "settings": '{"retention.ms":5}',
        },
        {"topic": "bare", "partitions": 0, "columns": None, "schema_version": 0, "settings": "{}"},
    ]


def test_events_have_a_time_with_a_zone() -> None:
    told = [event(1, 1_001, None, (1, 0), leader=1, leader_epoch=0), event(2, 2_000, (1, 0), None, topic=None)]
    frame = event_frame(told)
    shown = frame.to_pandas()
    assert [*shown.columns] == EVENT_COLUMNS.names
    assert [each.isoformat() for each in shown["at"]] == [
        "1970-01-01T00:00:01.001000+00:00",
        "1970-01-01T00:00:02+00:00",
    ]
    assert [*shown.became.isna()] == [False, True]
    assert shown.became[0] == '{"leader":1,"leader_epoch":0,"isr":[1]}'
    assert frame.to_arrow().schema == EVENT_COLUMNS
    assert [each.timestamp() for each in frame.to_arrow()["at"].to_pylist()] == [1.001, 2.0]


def replica(broker: int, lags: dict[int, FollowerLag], number: int = 0, *, leads: bool = True) -> ReplicaDescription:
    return ReplicaDescription(
        topic="orders",
        partition=number,
        broker=broker,
        leads=leads,
        bytes=1,
        log_start=0,
        high_watermark=1,
        log_end=1,
        last_epoch=0,
        lags=lags,
    )


def test_each_follower_has_a_lag_or_none_that_is_known() -> None:
    told = topic(
        partition(0, replicas=(1, 2, 3), isr=(1, 2)),
        partition(1, leader=2),  # who does not answer
        partition(2, leader=None, isr=()),
    )
    lags = {2: FollowerLag(records=0, ms=0), 3: FollowerLag(records=None, ms=70)}
    old = replica(2, {1: FollowerLag(records=9, ms=9)}, 2)  # it believes that it leads
    frame = lag_frame([told], [replica(1, lags), replica(1, {}, 1, leads=False), old])
    rows = [tuple(row.values()) for row in frame.to_arrow().to_pylist()]
    assert rows == [
        ("orders", 0, 2, 1, 0, 0, True),
        ("orders", 0, 3, 1, None, 70, False),
        ("orders", 1, 1, 2, None, None, True),
        ("orders", 2, 2, None, None, None, False),
        ("orders", 2, 1, None, None, None, False),
    ]
    assert str(frame.to_pandas().records.dtype) == "Int64"


READ = group(
    "etl",
    position("orders", 0, 9, 10, member="id-a", committed_ms=1_001),
    position("orders", 1, None, 5),
    position("orders", 2, 9, None, committed_ms=1_000),
    members=(member("a", TopicPartition("orders", 0)),),
    state="moving",
)


def test_a_group_says_how_far_it_is_behind_and_of_how_much_nobody_knows_it() -> None:
    frame = group_frame([READ, group("new")])
    assert [tuple(row.values())[:6] for row in frame.to_arrow().to_pylist()] == [
        ("etl", "moving", 1, 3, 6, 1),
        ("new", "empty", 0, 0, 0, 0),
    ]
    shown = frame.to_pandas()
    assert shown.committed_at[0].isoformat() == "1970-01-01T00:00:01.001000+00:00"
    assert [*shown.committed_at.isna()] == [False, True]
    assert str(shown.committed_at.dtype) == "datetime64[ns, UTC]"


def test_each_position_says_who_reads_on_from_there() -> None:
    frame = position_frame([READ])
    rows = [tuple(row.values())[:8] for row in frame.to_arrow().to_pylist()]
    assert rows == [
        ("etl", "orders", 0, "a", "here", 9, 10, 1),
        ("etl", "orders", 1, None, None, None, 5, 5),
        ("etl", "orders", 2, None, None, 9, None, None),
    ]
    assert [*frame.to_pandas().committed_at.isna()] == [False, True, False]
    assert frame.to_arrow().schema == POSITION_COLUMNS


@pytest.mark.parametrize(
    ("frame", "schema"),
    [
        (partition_frame([]), PARTITION_COLUMNS),
        (topic_frame([]), TOPIC_COLUMNS),
        (event_frame([]), EVENT_COLUMNS),
        (lag_frame([], []), LAG_COLUMNS),
        (group_frame([]), GROUP_COLUMNS),
        (position_frame([]), POSITION_COLUMNS),
    ],
)
def test_nothing_has_the_same_columns(frame: Any, schema: pa.Schema) -> None:
    assert [*frame.to_pandas().columns] == schema.names
    assert frame.to_arrow().schema == schema

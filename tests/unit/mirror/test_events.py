"""What an event calls a change, and what it tells of the row."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from spark_replication.core.controller.cluster import StoredTopic
from spark_replication.mirror.tables.brokers import BROKERS
from spark_replication.mirror.tables.columns import Face, Table, Tombstone
from spark_replication.mirror.tables.events import EVENTS, EventRow, face_of, subject_of, text_of
from spark_replication.mirror.tables.partitions import PARTITIONS
from spark_replication.mirror.tables.topics import TOPICS, TopicRow
from spark_replication.model import TopicConfig, TopicState
from tests.live.mirror.mirror_stories import CLUSTER, broker_row, command, row

TOPIC = TopicRow(
    cluster_id=CLUSTER,
    name="orders",
    topic=StoredTopic(TopicState(topic_id="first", partitions={0: (1, 2)}), 1, TopicConfig(settings={"b": 1, "a": 2})),
    told_ms=0,
)
ROWS: list[tuple[Table[Any], Any]] = [
    (PARTITIONS, row(command(), 10)),
    (BROKERS, broker_row(1, 10)),
    (BROKERS, broker_row(1, 10, shutting_down=True)),
    (TOPICS, TOPIC),
]


@pytest.mark.parametrize(("table", "told"), ROWS)
def test_a_row_is_told_of_as_its_columns_have_it(table: Table[Any], told: Any) -> None:
    assert table.tells is not None
    (stored,) = table.rows([told], []).to_pylist()
    face = table.face(told)
    assert face == {name: stored[name] for name in table.tells.columns}
    assert face_of(text_of(face)) == face


@pytest.mark.parametrize("table", [PARTITIONS, BROKERS, TOPICS])
def test_of_what_is_gone_nothing_is_told(table: Table[Any]) -> None:
    assert table.face(Tombstone(cluster_id=CLUSTER, key=("orders", 3), zxid=1, told_ms=0)) is None
    assert text_of(None) is None
    assert face_of(None) is None


def partition(**changed: Any) -> Face:
    face = PARTITIONS.face(row(command(leader_epoch=4), 10))
    assert face is not None
    return {**face, **changed}


def broker(**changed: Any) -> Face:
    return {**(BROKERS.face(broker_row(1, 10)) or {}), **changed}


def topic(**changed: Any) -> Face:
    return {**(TOPICS.face(TOPIC) or {}), **changed}


@pytest.mark.parametrize(
    ("table", "was", "became", "kind"),
    [
        (PARTITIONS, None, partition(), "created"),
        (PARTITIONS, partition(), partition(topic_id="second", leader=2), "created"),
        (PARTITIONS, partition(), None, "removed"),
        (PARTITIONS, partition(), partition(leader=2, leader_epoch=5, isr=[2]), "elected"),
        (PARTITIONS, partition(leader=None), partition(leader_epoch=5), "elected"),
        (PARTITIONS, partition(), partition(leader_epoch=5), "elected"),
        (PARTITIONS, partition(), partition(leader=None, leader_epoch=5), "leaderless"),
        (PARTITIONS, partition(leader=None), partition(leader=None, elr=[1]), "isr"),
        (PARTITIONS, partition(), partition(isr=[1]), "isr"),
        (PARTITIONS, partition(), partition(elr=[3]), "isr"),
        (PARTITIONS, partition(), partition(last_known_elr=[3]), "isr"),
        (PARTITIONS, partition(), partition(replicas=[2, 1, 3, 4], adding=[4]), "reassigning"),
        (PARTITIONS, partition(adding=[4]), partition(leader_epoch=5), "reassigned"),
        (PARTITIONS, partition(), partition(replicas=[1, 2, 3]), "reassigned"),
        (PARTITIONS, partition(recovering=True), partition(), "changed"),
        (PARTITIONS, partition(), partition(min_isr=1), "changed"),
        (PARTITIONS, partition(), partition(start_at=40), "changed"),
        (BROKERS, None, broker(), "registered"),
        (BROKERS, broker(), broker(epoch=11), "registered"),
        (BROKERS, broker(), broker(state="shutting_down"), "shutting_down"),
        (BROKERS, broker(), broker(port=1), "changed"),
        (BROKERS, broker(), None, "gone"),
        (TOPICS, None, topic(), "created"),
        (TOPICS, topic(), topic(topic_id="second", partitions=9), "created"),
        (TOPICS, topic(), topic(partitions=9), "resized"),
        (TOPICS, topic(), topic(schema_version=1), "widened"),
        (TOPICS, topic(), topic(settings="{}"), "configured"),
        (TOPICS, topic(), None, "deleted"),
    ],
)
def test_a_change_is_called_by_what_matters_most(
    table: Table[Any], was: Face | None, became: Face | None, kind: str
) -> None:
    assert table.tells is not None
    assert table.tells.kind(was, became) == kind


def test_why_is_how_it_was_elected_or_what_it_waits_for() -> None:
    assert PARTITIONS.tells is not None
    led = row(command(), 10)
    elected = replace(led, command=replace(led.command, state=replace(led.command.state, elected="elr")))
    waits = replace(row(command(leader=None), 10), waiting_for="no member of the ELR lives")
    why = PARTITIONS.tells.why
    assert (why(elected, "elected"), why(elected, "isr")) == ("elr", None)
    assert why(waits, "leaderless") == why(waits, "isr") == "no member of the ELR lives"


@pytest.mark.parametrize(
    ("subject", "found"),
    [
        ({"topic": "orders", "partition": 0}, ("partitions", ("orders", 0))),
        ({"topic": "orders"}, ("topics", ("orders",))),
        ({"broker": 0}, ("brokers", (0,))),
        ({}, None),
    ],
)
def test_an_event_says_which_row_it_is_of(subject: dict[str, Any], found: object) -> None:
    event = EventRow(cluster_id=CLUSTER, number=1, kind="changed", subject=subject, at_ms=0, told_ms=0)
    (stored,) = EVENTS.rows([event], []).to_pylist()
    assert subject_of(stored) == found

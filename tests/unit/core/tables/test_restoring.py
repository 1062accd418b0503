"""Which topic a table makes, and who may take it over (TB7): each side that is refused says what to do."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from spark_replication.core.tables.restoring import (
    FoundTable,
    ThenRestored,
    TopicOutline,
    carried_over,
    creation_of,
    is_to_be_taken_over,
    outline_of,
    restored,
)
from spark_replication.core.tables.table import TableVersion
from spark_replication.errors import InvalidRequest, ReplicationError, TopicAlreadyExists, WrongCluster
from spark_replication.messages.requests import CreateTopic, RestoredTable
from spark_replication.model import TableOrigin, TopicConfig

OURS, THEIRS = TableOrigin(cluster_id="ours", topic_id="t1"), TableOrigin(cluster_id="theirs", topic_id="t1")
OUTLINE = TopicOutline(schema="abc", earlier_columns=(2,), settings={"retention.ms": 5, "table": False}, partitions=3)


def found(origin: TableOrigin, outline: TopicOutline | None = OUTLINE) -> FoundTable:
    return FoundTable(
        topic="orders",
        uri="/tables/orders",
        origin=origin,
        outline=outline,
        version=TableVersion(number=4),
        row_count=9,
        columns=(),
    )


@pytest.mark.parametrize(
    ("table", "topic_id", "taken_over", "then"),
    [
        (found(OURS), "t1", (), ThenRestored.DONE),
        (found(OURS, None), "t1", (), ThenRestored.DONE),
        (found(OURS), None, (), ThenRestored.MADE),
        (found(THEIRS), None, ("another", "theirs"), ThenRestored.MADE),
        (found(THEIRS), "t1", ("theirs",), ThenRestored.ASKED),
        (found(THEIRS), "t2", ("theirs",), ThenRestored.ASKED),
    ],
)
def test_what_is_to_be_done(table: FoundTable, topic_id: str | None, taken_over: tuple[str, ...], then: object) -> None:
    assert restored(table, "ours", topic_id, taken_over) == then


@pytest.mark.parametrize(
    ("table", "topic_id", "taken_over", "error", "says"),
    [
        (found(OURS), "t2", (), TopicAlreadyExists, "topics delete orders, and restore again"),
        (found(THEIRS), None, (), WrongCluster, "--take-over theirs"),
        (found(THEIRS), None, ("another",), WrongCluster, "--take-over theirs"),
        (found(THEIRS), "t1", (), WrongCluster, "--take-over theirs"),
        (found(OURS, None), None, (), InvalidRequest, "its schema, its settings and the number of its partitions"),
        (found(THEIRS, None), None, ("theirs",), InvalidRequest, "table write --once orders"),
    ],
)
def test_what_is_refused(
    table: FoundTable, topic_id: str | None, taken_over: tuple[str, ...], error: type[ReplicationError], says: str
) -> None:
    with pytest.raises(error, match=says):
        restored(table, "ours", topic_id, taken_over)


def test_the_topic_is_made_as_it_was_and_is_a_table() -> None:
    config = TopicConfig(settings={"retention.ms": 5, "table": False}, schema="abc", earlier_columns=(2,))
    assert outline_of(config, 3) == OUTLINE
    assert creation_of(found(THEIRS), 2) == CreateTopic(
        name="orders",
        schema="abc",
        partitions=3,
        replication_factor=2,
        config={"retention.ms": 5, "table": True},
        restores=RestoredTable(origin=THEIRS, earlier_columns=(2,)),
    )


@pytest.mark.parametrize(("owner", "is_due"), [(OURS, False), (THEIRS, True)])
def test_a_table_is_taken_over_once(owner: TableOrigin, is_due: bool) -> None:
    assert is_to_be_taken_over(owner, OURS, THEIRS, "/tables/orders") == is_due


@pytest.mark.parametrize("owner", [replace(THEIRS, topic_id="t2"), replace(OURS, topic_id="t2")])
def test_a_table_that_is_neithers_stays(owner: TableOrigin) -> None:
    with pytest.raises(WrongCluster, match="another has it by now"):
        is_to_be_taken_over(owner, OURS, THEIRS, "/tables/orders")


def test_ends_stay_and_epochs_go_on() -> None:
    before = TableVersion(number=4, ends={0: 12, 2: 5}, epochs={0: 6, 1: 0}, starts={0: 4, 2: 5})
    assert carried_over(before) == TableVersion(number=4, ends={0: 12, 2: 5}, epochs={0: 7, 1: 1}, starts={0: 4, 2: 5})

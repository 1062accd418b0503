"""Whether a topic can be a table is found out before rows come (TB8)."""

from __future__ import annotations

from typing import Any

import pytest

from spark_replication.core.controller.cluster import ClusterState
from spark_replication.core.controller.requests import plan_request
from spark_replication.core.controller.widening import SchemaChange
from spark_replication.core.tables.fitting import nothing_fits
from spark_replication.errors import InvalidSchema
from spark_replication.messages.groups import GROUPS_TOPIC
from spark_replication.messages.requests import Configure, CreateTopic, Request, WidenTopic
from spark_replication.model import ClusterSettings, TopicConfig
from tests.unit.core.stories import loaded, topic

TABLE: dict[str, Any] = {"table": True}


def fits(schema: str, partition_by: str) -> None:
    """A schema of letters, of which z is of a type that no table has."""
    if "z" in schema:
        raise InvalidSchema("column 'z' is a time: cast it")
    if partition_by and partition_by not in schema:
        raise InvalidSchema(f"there is no column {partition_by!r}")


def letters(before: str, after: str) -> SchemaChange:
    return SchemaChange(columns_before=len(before), columns_after=len(after))


def cluster(stored: dict[str, Any] | None = None, **schemas: str) -> ClusterState:
    """Topics of these schemas; `table` is one, if there is a schema of that name."""
    return ClusterState(
        loaded(
            *(1, 2, 3),
            topics={name: topic((1, 2), name=name) for name in schemas},
            configs={
                name: TopicConfig(schema=schema, settings=TABLE if name == "table" else {})
                for name, schema in schemas.items()
            },
            stored_settings=ClusterSettings(settings=stored or {}),
        ),
        letters,
        fits,
    )


def refusal(known: ClusterState, asked: Request) -> str:
    """Why it is refused; empty if it is not."""
    error = plan_request(known, asked).reply.error
    assert error is None or isinstance(error, InvalidSchema)
    return "" if error is None else error.message


def create(schema: str, **config: Any) -> CreateTopic:
    return CreateTopic(name="new", schema=schema, partitions=1, replication_factor=1, config=config)


@pytest.mark.parametrize(
    "asked",
    [
        create("abz"),
        create("ab", table=True),
        CreateTopic(
            name="new", schema="abz", partitions=1, replication_factor=1, config={"table.partition.by": "nothing"}
        ),
        Configure(topic="plain", settings={"segment.bytes": 5}),
        Configure(topic="good", settings=TABLE),
        Configure(topic="table", settings={"table": False}),
        WidenTopic(topic="table", schema="abc"),
        WidenTopic(topic="plain", schema="abzc"),
    ],
)
def test_what_fits_or_is_no_table_is_allowed(asked: Request) -> None:
    assert refusal(cluster(plain="abz", good="ab", table="ab"), asked) == ""


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (create("abz", table=True), "topic new can be no table (table=true): column 'z' is a time"),
        (create("", table=True), "topic new has no schema"),
        (
            CreateTopic(
                name="new",
                schema="ab",
                partitions=1,
                replication_factor=1,
                config={"table": True, "table.partition.by": "c"},
            ),
            "there is no column 'c'",
        ),
        (Configure(topic="plain", settings=TABLE), "topic plain can be no table"),
        (Configure(topic="table", settings={"table.partition.by": "c"}), "there is no column 'c'"),
        (Configure(settings=TABLE), "topic plain can be no table"),
        (WidenTopic(topic="table", schema="abz"), "topic table can be no table"),
    ],
)
def test_what_does_not_fit_is_refused_and_the_column_named(asked: Request, why: str) -> None:
    assert why in refusal(cluster(plain="abz", good="ab", table="ab"), asked)


def test_of_a_cluster_whose_topics_are_tables_each_new_one_is_looked_at() -> None:
    known = cluster(TABLE, good="ab")
    assert "topic new can be no table" in refusal(known, create("abz"))
    assert refusal(known, create("abz", table=False)) == ""
    assert "topic good can be no table" in refusal(known, Configure(settings={"table.partition.by": "c"}))
    assert refusal(known, Configure(settings={"segment.bytes": 5})) == ""


def test_the_groups_log_is_no_table() -> None:
    asked = CreateTopic(name=GROUPS_TOPIC, schema="z", partitions=1, replication_factor=1)
    assert refusal(cluster(TABLE), asked) == ""


def test_where_nobody_reads_schemas_nothing_is_a_table() -> None:
    with pytest.raises(InvalidSchema, match="cannot be read here"):
        nothing_fits("ab", "")

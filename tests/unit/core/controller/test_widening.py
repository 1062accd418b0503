"""Which schema may follow a topic's own, and what is then known of the one before."""

from __future__ import annotations

import pytest

from spark_replication.core.controller import widening
from spark_replication.core.controller.announcing import announce
from spark_replication.core.controller.events import Requested
from spark_replication.core.controller.plan import Decision, Step
from spark_replication.core.controller.requests import narrowed, plan_request
from spark_replication.core.controller.widening import SchemaChange, incomparable, widened
from spark_replication.core.law.writes import Made, TopicConfigWrite
from spark_replication.errors import InvalidSchema, ReplicationError, UnknownTopicOrPartition
from spark_replication.messages.commands import UpdateMetadata
from spark_replication.messages.requests import WidenTopic
from spark_replication.model import TopicConfig
from tests.unit.core.stories import cluster_of, state, topic

CONFIG = TopicConfig(settings={"min.insync.replicas": 1}, schema="ab", earlier_columns=(1,))


def letters(before: str, after: str) -> SchemaChange:
    """Each capital or small letter is a column, and `.` is none."""
    columns = [text.replace(".", "") for text in (before, after)]
    difference = "" if columns[1].startswith(columns[0]) else f"{after} does not go on from {before}"
    return SchemaChange(columns_before=len(columns[0]), columns_after=len(columns[1]), difference=difference)


@pytest.mark.parametrize(
    ("schema", "earlier_columns"),
    [("abc", (1, 2)), ("abcde", (1, 2)), ("ab", (1,)), ("a.b", (1,))],
    ids=["one more", "several at once", "the same", "the same columns"],
)
def test_a_version_is_kept_with_how_many_columns_it_had(schema: str, earlier_columns: tuple[int, ...]) -> None:
    found = widened("foo", CONFIG, schema, letters)
    assert found.earlier_columns == earlier_columns
    assert found.schema_version == len(earlier_columns)
    assert found.settings == CONFIG.settings
    assert found.schema == (schema if found.schema_version > CONFIG.schema_version else "ab")


@pytest.mark.parametrize(
    ("config", "schema", "message"),
    [
        (CONFIG, "axc", "axc does not go on from ab: foo may only gain nullable columns after its last"),
        (TopicConfig(), "abc", "topic foo has no schema that could be widened"),
        (CONFIG, "abcdefghi", "the schema has 9 columns, and may have 8: use fewer"),
        (CONFIG, "abc" * 4, "the schema takes 12 characters, and at most 9 fit: use fewer columns"),
    ],
)
def test_what_is_no_widening_is_refused(
    monkeypatch: pytest.MonkeyPatch, config: TopicConfig, schema: str, message: str
) -> None:
    monkeypatch.setattr(widening, "SCHEMA_CHARACTERS_MAX", 9)
    monkeypatch.setattr(widening, "COLUMNS_MAX", 8)
    with pytest.raises(InvalidSchema, match=message):
        widened("foo", config, schema, letters)
    assert widened("foo", CONFIG, "abcdefgh.", letters).schema_version == 2, "the limit itself fits"


def test_where_no_schema_can_be_read_none_is_changed() -> None:
    assert widened("foo", CONFIG, "ab", incomparable) == CONFIG
    with pytest.raises(InvalidSchema, match="cannot be read here"):
        widened("foo", CONFIG, "abc", incomparable)


def test_a_topic_is_widened_by_one_write_and_every_broker_hears_of_it() -> None:
    known = cluster_of(1, 2, topics={"foo": topic((1, 2))}, states={"foo-0": state(1, [1, 2])}, configs={"foo": CONFIG})
    known.compare_schemas = letters
    asked = WidenTopic(topic="foo", schema="abc")
    after = TopicConfig(settings=CONFIG.settings, schema="abc", earlier_columns=(1, 2))
    assert plan_request(known, asked) == Decision(steps=(Step((TopicConfigWrite(topic="foo", config=after),)),))
    known.apply_topic_config("foo", after, Made())
    assert plan_request(known, asked) == Decision(), "it is done already"
    commands = announce(known, Requested(asked=asked), [])
    assert [broker for broker, _ in commands] == [1, 2]
    for _, command in commands:
        assert isinstance(command, UpdateMetadata)
        assert command.topics == {"foo": after}
    assert narrowed(asked, []) == asked


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        (WidenTopic(topic="bar", schema="abc"), UnknownTopicOrPartition),
        (WidenTopic(topic="gone", schema="abc"), UnknownTopicOrPartition),
        (WidenTopic(topic="foo", schema="xbc"), InvalidSchema),
    ],
)
def test_what_cannot_be_widened_changes_nothing_and_says_why(asked: WidenTopic, error: type[ReplicationError]) -> None:
    known = cluster_of(
        1,
        topics={"foo": topic((1,)), "gone": topic((1,), name="gone")},
        configs={"foo": CONFIG, "gone": CONFIG},
    )
    known.deleting.add("gone")
    known.compare_schemas = letters
    planned = plan_request(known, asked)
    assert isinstance(planned.reply.error, error)
    assert (planned.steps, planned.then) == ((), ())


def test_of_an_unknown_topic_nothing_is_told() -> None:
    known = cluster_of(1, topics={"foo": topic((1,))})
    assert announce(known, Requested(asked=WidenTopic(topic="bar", schema="a")), []) == []

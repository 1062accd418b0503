"""`spark-replication topics`: what is listed, and how a topic gets more columns."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from spark_replication.admin.schema_texts import with_columns
from spark_replication.errors import InvalidRequest
from spark_replication.messages.requests import Request, RequestAnswer, WidenTopic
from tests.unit.admin.conftest import Run
from tests.unit.client.fake_cluster import SCHEMA, FakeBroker, FakeCluster


def listed(run: Run, cluster: FakeCluster) -> list[tuple[str, int]]:
    found = run("topics", "-b", cluster.bootstrap, "--format=json")
    assert (found.exit, found.err) == (0, "")
    return [(each["topic"], each["schema_version"]) for each in json.loads(found.out)]


def test_a_topic_is_widened_by_the_columns_that_are_named(run: Run, cluster: FakeCluster) -> None:
    asked: list[Request] = []

    def carry_out(_broker: FakeBroker, request: Request) -> RequestAnswer:
        asked.append(request)
        if cluster.topics["orders"].schema_version == 0:
            cluster.widen("orders", SCHEMA.append(pa.field("name", pa.string())))
        return RequestAnswer()

    cluster.carry_out = carry_out
    assert listed(run, cluster) == [("orders", 0)]
    said = "orders has the columns number, name: version 1 of its schema\n"
    for arguments in (
        ("widen", "orders", "name:string", "-b", cluster.bootstrap),
        ("-b", cluster.bootstrap, "widen", "orders", "name:string"),
    ):
        assert run("topics", *arguments) == (0, said, "")
    assert asked == [WidenTopic(topic="orders", schema=cluster.topics["orders"].schema)] * 2
    assert listed(run, cluster) == [("orders", 1)]


def test_without_brokers_to_ask_the_usage_is_wrong(run: Run) -> None:
    for arguments in ((), ("widen", "orders", "name:string")):
        found = run("topics", *arguments)
        assert (found.exit, "Missing option '--bootstrap' / '-b'" in found.err) == (2, True)


def test_columns_come_after_the_last_and_those_that_are_there_stay() -> None:
    found = with_columns(SCHEMA, ("number:int64", "name:string", "a:b:timestamp[us]"))
    assert found == pa.schema([*SCHEMA, ("name", pa.string()), ("a:b", pa.timestamp("us"))])
    of_another_type = with_columns(SCHEMA, ("number:string",))
    assert of_another_type.names == ["number", "number"], "which the controller refuses, and says why"


@pytest.mark.parametrize("column", ["name", "name:text", ":string", "", "name:", "string"])
def test_what_names_no_column_is_refused(column: str) -> None:
    with pytest.raises(InvalidRequest, match=f"'{column}'"):
        with_columns(SCHEMA, (column,))

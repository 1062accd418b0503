"""What people write as options, and what they hear of a mistake."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from spark_replication.config import BOOTSTRAP_VARIABLE
from spark_replication.errors import InvalidRequest
from spark_replication.model import AtTime
from spark_replication.spark.datasource.options import LogOptions, over, parse
from spark_replication.spark.datasource.positions import ByTopic

HERE = {BOOTSTRAP_VARIABLE: "127.0.0.1:1"}


def options(given: Mapping[str, str] = {}, *, is_stream: bool = False) -> LogOptions:
    return parse({"topic": "orders", **given}, HERE, is_stream=is_stream)


def test_what_is_not_said_is_as_users_of_logs_expect() -> None:
    batch = LogOptions(topic="orders", bootstrap="127.0.0.1:1", security={})
    assert options() == batch
    assert options(is_stream=True).starting == "latest"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"startingOffsets": " Earliest"}, {"starting": "earliest"}),
        ({"startingOffsets": '{"0": 3, "1": "latest"}'}, {"starting": {0: 3, 1: "latest"}}),
        (
            {"startingOffsets": '{"orders": {"0": -2, "1": -1}}'},
            {"starting": ByTopic({"orders": {0: "earliest", 1: "latest"}})},
        ),
        ({"startingTimestamp": "2026-11-21T10:00:00Z"}, {"starting": AtTime(1795255200000)}),
        ({"endingTimestamp": "17"}, {"ending": AtTime(17)}),
        ({"COLUMNS": "id, amount"}, {"columns": ("id", "amount")}),
        ({"includemetadata": "TRUE"}, {"include_metadata": True}),
        ({"failOnDataLoss": "false"}, {"fail_on_data_loss": False}),
        ({"minPartitions": "8"}, {"min_partitions": 8}),
        ({"maxRecordsPerTrigger": "8"}, {"max_records_per_trigger": 8}),
        ({"maxBytesPerTrigger": "8"}, {"max_bytes_per_trigger": 8}),
        ({"bootstrap": "a:1"}, {"bootstrap": "a:1"}),
        ({"mirror": "/mirror"}, {"bootstrap": "delta:/mirror"}),
        ({"mirror": "s3a://lake/mirror"}, {"bootstrap": "delta:s3a://lake/mirror"}),
        ({"security.mode": "token"}, {"security": {"security.mode": "token"}}),
        ({"partitionBy": "region,id"}, {"partition_by": ("region", "id")}),
        ({"checkpointLocation": "/tmp", "queryName": "q", "path": "x"}, {}),
        ({"deadlineMs": "100"}, {"deadline_ms": 100}),
        ({"queryName": "a name of Spark's, for a sink"}, {"query_name": None, "reports_group": True}),
        ({"reportGroup": "false"}, {"reports_group": False}),
        ({"writeId": "copy"}, {"write_id": "copy", "write_batch": None, "append_bytes": None}),
        ({"writeId": "copy", "writeBatch": "0"}, {"write_batch": 0}),
        ({"appendBytes": "65536"}, {"append_bytes": 65_536}),
    ],
)
def test_options_are_read_whatever_their_case(given: dict[str, str], expected: dict[str, Any]) -> None:
    found = options(given)
    assert {name: getattr(found, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"subscribe": "orders"}, {"topic": "orders", "reads_several": False}),
        ({"SUBSCRIBE": "orders, payments"}, {"topic": "", "topics": ("orders", "payments"), "reads_several": True}),
        ({"subscribepattern": "or.*"}, {"topic": "", "pattern": "or.*", "reads_several": True}),
        ({"assign": '{"orders": [1, 0]}'}, {"topic": "orders", "assigned": {"orders": (0, 1)}, "reads_several": False}),
        (
            {"Assign": '{"b": [0], "a": [2]}'},
            {"topic": "", "topics": ("a", "b"), "assigned": {"a": (2,), "b": (0,)}, "reads_several": True},
        ),
        ({"subscribe": "a", "maxOffsetsPerTrigger": "8"}, {"max_records_per_trigger": 8}),
        ({"subscribe": "a", "MINOFFSETSPERTRIGGER": "8"}, {"min_records_per_trigger": 8}),
        ({"subscribe": "a", "minRecordsPerTrigger": "8"}, {"max_trigger_delay_ms": 900_000}),
        ({"subscribe": "a", "minOffsetsPerTrigger": "8", "maxTriggerDelay": "5m"}, {"max_trigger_delay_ms": 300_000}),
        ({"subscribe": "a", "minOffsetsPerTrigger": "8", "maxTriggerDelay": "500"}, {"max_trigger_delay_ms": 500}),
    ],
)
def test_kafkas_names_say_what_is_read_and_how_much_at_a_time(given: dict[str, str], expected: dict[str, Any]) -> None:
    found = parse(given, HERE, is_stream=True)
    assert {name: getattr(found, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"subscribe": "a", "subscribePattern": "b"}, "subscribe and subscribePattern each say what is read"),
        ({"subscribe": "a,a"}, "subscribe='a,a': it is names, separated by commas, each once"),
        ({"subscribe": ""}, "subscribe='': it is names"),
        ({"subscribePattern": "*"}, "it is a regular expression as Python has them, and nothing to repeat"),
        ({"subscribePattern": ""}, "would match no topic"),
        ({"assign": "orders"}, "it is JSON of partitions by topic, as"),
        ({"assign": '{"orders": [0, 0]}'}, "each once"),
        ({"assign": '{"orders": []}'}, "it is JSON"),
        ({"assign": '{"orders": [-1]}'}, "it is JSON"),
        ({"assign": "{}"}, "it is JSON"),
    ],
)
def test_a_mistake_in_what_is_read_is_named(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        parse(given, HERE, is_stream=True)


def test_a_path_names_the_topic() -> None:
    assert parse({"path": "orders"}, HERE, is_stream=False).topic == "orders"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"startingOffset": "x"}, "there is no option startingoffset: did you mean startingOffsets?"),
        ({"writeBatch": "1"}, "writeBatch counts the writes of a writeId: name that, too"),
        ({"writeId": "x", "writeBatch": "-1"}, "writeBatch='-1': it is a number from 0 to 2147483647"),
        ({"writeId": "x", "writeBatch": "2147483648"}, "it is a number from 0 to 2147483647"),
        ({"zzz": "x"}, "there is no option zzz: there are topic, subscribe, .*bootstrap, mirror"),
        ({"startingOffsets": "first"}, "startingOffsets='first': it is earliest, latest, or JSON"),
        ({"startingOffsets": "[1]"}, "startingOffsets='\\[1\\]': it is earliest"),
        ({"startingOffsets": "{}"}, "it is earliest"),
        ({"startingOffsets": '{"a": 1}'}, "'a' is no partition"),
        ({"startingOffsets": '{"\u0661": 1}'}, "is no partition"),
        ({"startingOffsets": f'{{"{"9" * 5_000}": 1}}'}, "is no partition"),
        ({"startingOffsets": '{"0": -3}'}, "-3 is no offset"),
        ({"startingOffsets": '{"0": true}'}, "True is no offset"),
        ({"startingTimestamp": "9" * 5_000}, "it is milliseconds since 1970"),
        ({"startingTimestamp": "yesterday"}, "it is milliseconds since 1970"),
        ({"startingTimestamp": "2026-11-21T10:00:00"}, "has no time zone"),
        ({"startingOffsets": "latest", "startingTimestamp": "1"}, "two places to be starting at"),
        ({"includeMetadata": "yes"}, "it is true or false"),
        ({"minPartitions": "0"}, "it is a number from 1"),
        ({"minPartitions": "many"}, "it is a number from 1"),
        ({"columns": "a,a"}, "each once"),
        ({"columns": " , "}, "each once"),
        ({"bootstrap": "a:1", "mirror": "/m"}, "name one of them"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger='0': it is a number from 1"),
        ({"maxOffsetsPerTrigger": "5", "maxRecordsPerTrigger": "5"}, "is Kafka's name of maxRecordsPerTrigger: name"),
        ({"minOffsetsPerTrigger": "6", "maxRecordsPerTrigger": "5"}, "at least 6 and at most 5 records: no number"),
        ({"maxTriggerDelay": "5s"}, "maxTriggerDelay is how long minOffsetsPerTrigger may wait: name that, too"),
        ({"minOffsetsPerTrigger": "6", "maxTriggerDelay": "soon"}, "it is a time as 15m or 500ms"),
        ({"minOffsetsPerTrigger": "6", "maxTriggerDelay": "5 weeks"}, "with a unit of ms, s, m"),
        ({"minOffsetsPerTrigger": "6", "maxTriggerDelay": "0s"}, "it is a time"),
        ({"subscribe": "orders"}, "topic and subscribe each say what is read: name one of them"),
        ({"startingOffsets": '{"orders": {}}'}, "it is earliest"),
        ({"startingOffsets": '{"orders": {"0": 1}, "1": 2}'}, "'orders' is no partition"),
    ],
)
def test_a_mistake_is_named_with_what_is_right(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        options(given)


def test_a_stream_is_a_group_of_its_querys_name() -> None:
    assert options({"queryname": "etl:2"}, is_stream=True).query_name == "etl:2"
    for wrong in ("", "two words", "x" * 244):
        with pytest.raises(InvalidRequest, match="it names a group"):
            options({"queryName": wrong}, is_stream=True)


def test_a_stream_has_no_end() -> None:
    with pytest.raises(InvalidRequest, match="a stream has no end"):
        options({"endingOffsets": "latest"}, is_stream=True)


def test_without_a_topic_or_a_cluster_it_says_how_to_name_them() -> None:
    with pytest.raises(InvalidRequest, match='option\\("topic"'):
        parse({}, HERE, is_stream=False)
    with pytest.raises(InvalidRequest, match=r"sr\.register"):
        parse({"topic": "orders"}, {}, is_stream=False)


def test_a_query_that_says_where_the_cluster_is_means_no_other() -> None:
    defaults = {"bootstrap": "a:1", "deadlineMs": "5"}
    assert over(defaults, {"Topic": "t"}) == {**defaults, "Topic": "t"}
    assert over(defaults, {"MIRROR": "/m"}) == {"deadlineMs": "5", "MIRROR": "/m"}
    assert over(defaults, {"bootstrap": "b:1", "DEADLINEMS": "6"}) == {"bootstrap": "b:1", "DEADLINEMS": "6"}

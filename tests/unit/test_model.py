"""Values check themselves: what ZooKeeper or a disk holds is whole, or an error that names its place."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from spark_replication.errors import CorruptState
from spark_replication.model import (
    BrokerEpoch,
    BrokerSequence,
    ClusterInfo,
    ControllerEpoch,
    ControllerInfo,
    PartitionState,
    Registration,
    TopicConfig,
    TopicPartition,
    TopicState,
    Value,
    decode,
    encode,
    in_ranges,
    number_of,
)
from tests.unit.core.stories import loss, registration, state

VALUES: list[Value] = [
    state(1, [1, 2], min_isr=3, elr=[10], last_known_elr=[9], epochs={10: 4}, last_known_leader=3, recovering=True),
    state(None, []),
    state(1, [1], loss=loss(3, 5, since_ms=70, from_offset=40, records_max=9)),
    state(1, [1], start_at=1 << 40),
    TopicState(topic_id="id", partitions={0: (2, 1), 10: (1,)}, adding={0: (1,)}, origin={0: (2,)}),
    registration(1, rack="a"),
    BrokerEpoch(epoch=4, incarnation="x", clean_since=2),
    ControllerInfo(id="c", host="h", port=1, epoch=3),
    TopicConfig(settings={"min.insync.replicas": 1, "a": "b", "c": True}, schema="s"),
    TopicConfig(schema="s", earlier_columns=(2, 5)),
    ClusterInfo(cluster_id="c", features={"f": 1}),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_what_is_stored_is_read_again(value: Value) -> None:
    assert decode(encode(value), type(value), "/x") == value


STORED = (
    b'{"v":1,"leader":1,"leader_epoch":4,"isr":[1,2],"min_isr":2,"elr":[],"epochs":{"1":0,"2":0},"created":0,'
    b'"last_known_elr":[],"last_known_leader":null,"recovering":false,%b"elected":null,"controller_epoch":0}'
)


def test_a_partition_that_has_lost_nothing_is_stored_as_by_an_older_program() -> None:
    assert encode(state(1, [1, 2])) == STORED % b""
    assert decode(STORED % b"", PartitionState, "/x") == state(1, [1, 2])


def test_possible_loss_is_stored_so_that_a_person_can_read_it() -> None:
    text = b'"loss":{"since_ms":70,"first_epoch":3,"last_epoch":5,"from_offset":40,"records_max":null},'
    assert encode(state(1, [1, 2], loss=loss(3, 5, since_ms=70, from_offset=40))) == STORED % text


def test_where_a_partition_starts_is_stored_once_it_starts_somewhere() -> None:
    assert encode(state(1, [1, 2], start_at=40)) == STORED % b'"start_at":40,'
    assert (state(1, [1, 2], start_at=40).lowest_offset, state(1, [1, 2]).lowest_offset) == (40, 0)


@pytest.mark.parametrize("start_at", [b"-1", b"null", b'"0"', b"9223372036854775808"])
def test_a_partition_starts_at_no_other_offset(start_at: bytes) -> None:
    with pytest.raises(CorruptState, match="start_at"):
        decode(STORED % (b'"start_at":%b,' % start_at), PartitionState, "/x")


def test_possible_loss_does_not_end_before_it_began() -> None:
    with pytest.raises(ValueError, match="epoch 5 is after 4"):
        loss(5, 4)


def test_a_topic_of_an_older_program_has_the_first_version_of_its_schema() -> None:
    found = decode(b'{"v":1,"settings":{"a":1},"schema":"s"}', TopicConfig, "/config/topics/foo")
    assert found == TopicConfig(settings={"a": 1}, schema="s")
    assert found.schema_version == 0
    assert TopicConfig(earlier_columns=(2, 5)).schema_version == 2


@pytest.mark.parametrize("earlier", ["[2,2]", "[3,2]", "[-1]"])
def test_versions_of_a_schema_only_gain_columns(earlier: str) -> None:
    with pytest.raises(CorruptState, match="/config/topics/foo is not a TopicConfig"):
        decode(b'{"earlier_columns":%b}' % earlier.encode(), TopicConfig, "/config/topics/foo")


def test_the_same_value_always_gives_the_same_bytes() -> None:
    one = state(1, [1, 2, 10], epochs={10: 1, 1: 0, 2: 0})
    other = state(1, [10, 2, 1], epochs={2: 0, 10: 1})
    assert one == other
    assert encode(one) == encode(other)
    assert encode(ControllerEpoch(epoch=3)) == b'{"v":1,"epoch":3}'


def test_what_a_newer_release_added_is_passed_over() -> None:
    assert decode(b'{"v":1,"epoch":3,"mood":"good"}', ControllerEpoch, "/x") == ControllerEpoch(epoch=3)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "Input data was truncated"),
        (b"{", "truncated"),
        (b"null", "Expected `object`"),
        (b'{"v":1}', "missing required field `epoch`"),
        (b'{"epoch":"3"}', "Expected `int`, got `str`"),
        (b'{"epoch":-1}', "Expected `int` >= 0"),
        (b'{"epoch":3,"v":2}', "version 2 is not known here"),
        (b'{"epoch":3,"v":0}', "version 0 is not known here"),
        (b'{"epo\xff":3}', "missing required field"),
        (b'{"epoch":3,"deep":' + b"[" * 100_000, "recursion"),
    ],
)
def test_what_does_not_parse_is_corrupt_and_names_its_path(data: bytes, text: str) -> None:
    with pytest.raises(CorruptState, match=f"/controller_epoch is not a ControllerEpoch: .*{text}"):
        decode(data, ControllerEpoch, "/controller_epoch")


def test_a_text_that_is_none_is_corrupt_too() -> None:
    with pytest.raises(CorruptState, match=r"/cluster is not a ClusterInfo: .*utf-8"):
        decode(b'{"cluster_id":"\xff"}', ClusterInfo, "/cluster")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"leader": 3}, "leader 3 is outside the ISR"),
        ({"elr": [1]}, r"\[1\] are in the ISR and in the ELR"),
        ({"last_known_elr": [2]}, "last_known_elr holds members"),
        ({"elr": [3], "last_known_elr": [3], "epochs": {"1": 0, "2": 0, "3": 0}}, "last_known_elr holds members"),
        ({"epochs": {"1": 0}}, "epochs are not those of the members"),
        ({"epochs": {"1": 0, "2": 0, "3": 0}}, "epochs are not those of the members"),
        ({"min_isr": 0}, "Expected `int` >= 1"),
        ({"leader_epoch": -1}, "Expected `int` >= 0"),
    ],
)
def test_a_partition_that_contradicts_itself_is_refused(fields: dict[str, Any], text: str) -> None:
    whole: dict[str, Any] = {
        "leader": 1,
        "leader_epoch": 4,
        "isr": [1, 2],
        "min_isr": 2,
        "epochs": {"1": 0, "2": 0},
    }
    assert _read(whole, PartitionState) == state(1, [1, 2])
    with pytest.raises(CorruptState, match=text):
        _read(whole | fields, PartitionState)


@pytest.mark.parametrize(
    ("partitions", "text"),
    [({"0": [1], "1": []}, "partition 1 has no replicas"), ({"0": [1, 2, 1]}, "partition 0 names a broker twice")],
)
def test_an_assignment_that_cannot_be_is_refused(partitions: dict[str, Any], text: str) -> None:
    with pytest.raises(CorruptState, match=text):
        _read({"topic_id": "id", "partitions": partitions}, TopicState)


@pytest.mark.parametrize("clean_since", [0, 3])
def test_a_chain_of_clean_registrations_starts_at_or_before_the_present_one(clean_since: int) -> None:
    known = BrokerEpoch(epoch=3, incarnation="x", clean_since=clean_since)
    assert decode(encode(known), BrokerEpoch, "/x") == known


def test_a_chain_that_starts_after_the_present_one_is_refused() -> None:
    with pytest.raises(ValueError, match="clean since epoch 4, which is after 3"):
        BrokerEpoch(epoch=3, incarnation="x", clean_since=4)


def test_the_next_id_is_no_negative_number() -> None:
    with pytest.raises(CorruptState, match="/brokers/seqid"):
        decode(b'{"next":-1}', BrokerSequence, "/brokers/seqid")


def _read(fields: dict[str, Any], kind: type[Value]) -> Value:
    return decode(msgspec.json.encode(fields), kind, "/x")


@pytest.mark.parametrize(
    ("text", "partition"),
    [("foo-0", TopicPartition("foo", 0)), ("a-b-12", TopicPartition("a-b", 12)), ("--3", TopicPartition("-", 3))],
)
def test_a_partition_is_written_as_topic_and_number(text: str, partition: TopicPartition) -> None:
    assert TopicPartition.parse(text) == partition
    assert str(partition) == text


@pytest.mark.parametrize(
    "text", ["", "foo", "foo-", "-3", "foo-x", "foo- 3", "foo-03", "foo-٣", "foo-2147483648", "foo-" + "9" * 5000]
)
def test_any_other_text_names_no_partition(text: str) -> None:
    with pytest.raises(ValueError, match="is not of the form TOPIC-PARTITION") as raised:
        TopicPartition.parse(text)
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (ControllerEpoch, '"epoch":%s'),
        (ControllerEpoch, '"v":1,"epoch":%s'),
        (BrokerSequence, '"next":%s'),
        (TopicState, '"topic_id":"id","partitions":{"%s":[1]}'),
        (TopicState, '"topic_id":"id","partitions":{"0":[%s]}'),
        (PartitionState, '"leader":null,"leader_epoch":%s,"isr":[],"min_isr":1'),
        (PartitionState, '"leader":null,"leader_epoch":0,"isr":[%s],"min_isr":1,"epochs":{"%s":0}'),
        (PartitionState, '"leader":null,"leader_epoch":0,"isr":[1],"min_isr":1,"epochs":{"1":%s}'),
    ],
)
@pytest.mark.parametrize("number", ["2147483648", str(1 << 40), str(1 << 63), "1" + "0" * 30, "1" + "0" * 5_000])
def test_a_number_that_no_znode_or_index_entry_holds_is_refused(kind: type[Value], fields: str, number: str) -> None:
    with pytest.raises(CorruptState, match="/x is not a"):
        decode(f"{{{fields.replace('%s', number)}}}".encode(), kind, "/x")
    decode(f"{{{fields.replace('%s', '1' if 'epochs' in fields else str((1 << 31) - 1))}}}".encode(), kind, "/x")


@pytest.mark.parametrize(
    ("name", "number"),
    [("0", 0), ("7", 7), (str((1 << 31) - 1), (1 << 31) - 1)]
    + [(name, None) for name in ("", "note", "-1", "+1", "01", "٠", "1 ", "1_0", str(1 << 31), "9" * 10, "9" * 5_000)],
)
def test_only_the_usual_name_of_a_number_is_one(name: str, number: int | None) -> None:
    assert number_of(name) == number


def test_a_process_is_reached_at_its_host_and_port() -> None:
    broker = Registration(host="h", port=5, replication_port=6, epoch=0, incarnation="x")
    assert (broker.address, ControllerInfo(id="c", host="h", port=7, epoch=0).address) == ("h:5", "h:7")


@pytest.mark.parametrize(
    ("numbers", "told"),
    [
        ([], "none"),
        ([7], "7"),
        ([2, 0, 1, 5, 7, 8], "0 to 2, 5, 7 to 8"),
        (range(10_000), "0 to 9999"),
        (range(0, 20, 2), "0, 2, 4, 6, 8, 10, 12, 14, 16, 18"),
        (range(0, 22, 2), "0, 2, 4, 6, 8, 10, 12, 14, 16, 18, …"),
    ],
)
def test_many_numbers_are_told_in_a_line(numbers: list[int], told: str) -> None:
    assert in_ranges(numbers) == told

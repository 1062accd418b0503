"""Records on the page: where a look begins, how it goes on, what it may take, and what refuses it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlencode

import pyarrow as pa
import pytest
from msgspec.structs import replace

from spark_replication.client.reading.log_batch import LogBatch
from spark_replication.client.reading.reader import Reader
from spark_replication.errors import TopicAuthorizationFailed
from spark_replication.messages.records import BatchMetadata
from spark_replication.model import TopicPartition
from spark_replication.page import app, records
from spark_replication.page.records import conditions_of
from spark_replication.page.server import PageServer
from spark_replication.transport.security.security import NO_SECURITY
from tests.unit.client.fake_cluster import FakeBroker, FakeCluster, StoredBatch
from tests.unit.page.page_cluster import PageCluster
from tests.unit.page.viewer import Answer, Viewer, nobody_hears
from tests.waiting import eventually

WIDE = pa.schema([("number", pa.int64()), ("text", pa.string()), ("raw", pa.binary())])


@pytest.fixture
def filled() -> Iterator[FakeCluster]:
    """orders: numbers 0 to 5 in partition 0, as of the times 1,000 and 3,000 ms; and 10 to 12 in 2, as of 2,000."""
    started = FakeCluster()
    fill(started, 0, [0, 1, 2], at_ms=1_000)
    fill(started, 0, [3, 4, 5], at_ms=3_000)
    fill(started, 2, [10, 11, 12], at_ms=2_000)
    yield started
    started.close()


@pytest.fixture
def reads(filled: FakeCluster) -> Iterator[Viewer]:
    """A page of that cluster's records."""
    with Reader(filled.bootstrap, deadline_ms=1_000) as reader:
        server = PageServer.start(
            PageCluster(), reader, host="127.0.0.1", port=0, security=NO_SECURITY, say=nobody_hears
        )
        yield Viewer(server.url)
        server.stop()


def fill(cluster: FakeCluster, partition: int, numbers: Sequence[int], *, at_ms: int) -> None:
    append(cluster, "orders", partition, pa.record_batch({"number": pa.array(numbers, pa.int64())}), at_ms=at_ms)


def append(cluster: FakeCluster, topic: str, partition: int, batch: pa.RecordBatch, *, at_ms: int = 7) -> None:
    with cluster.changed:
        log = cluster.logs[TopicPartition(topic, partition)]
        log.now_ms = at_ms
        log.append(batch, BatchMetadata(producer=99, sequence=len(log.batches)))
        cluster.changed.notify_all()


def ask(page: Viewer, topic: str = "orders", **given: Any) -> Answer:
    return page.ask(f"/api/topics/{topic}/records?{urlencode(given, doseq=True)}")


def numbers(answer: Answer) -> list[int]:
    assert answer.status == 200, answer.body
    return [int(cells[0]) for *_, cells in answer.json["rows"]]


def seen(answer: Answer) -> dict[int, tuple[int, int]]:
    return {partition: (start, end) for partition, start, end, *_ in answer.json["seen"]}


def test_the_newest_rows_of_all_partitions_come_by_their_times(reads: Viewer) -> None:
    found = ask(reads, last=5)
    assert found.json["rows"] == [
        [2, 1, 2_000, ["11"]],
        [2, 2, 2_000, ["12"]],
        [0, 3, 3_000, ["3"]],
        [0, 4, 3_000, ["4"]],
        [0, 5, 3_000, ["5"]],
    ]
    assert found.json["columns"] == [["number", "int64"]]
    assert (found.json["topic_id"], found.json["columns_in_all"]) == ("id-orders", 1)
    assert found.json["seen"] == [[0, 3, 6, 0, 6], [1, 0, 0, 0, 0], [2, 1, 3, 0, 3]]
    assert (found.json["is_cut"], found.json["leaderless"]) == (False, [])


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, [0, 1, 2, 10, 11, 12, 3, 4, 5]),
        ({"start": "earliest", "last": 4}, [0, 1, 2, 10]),
        ({"start": "newest", "partition": 0, "last": 2}, [4, 5]),
        ({"last": 0}, [5]),
        ({"start": 2, "partition": 0, "last": 3}, [2, 3, 4]),
        ({"start": 6, "partition": 0}, []),
        ({"start": "1970-01-01T00:00:02Z"}, [10, 11, 12, 3, 4, 5]),
        ({"start": "1970-01-01 00:00:03"}, [3, 4, 5]),
        ({"start": "1970-01-01T02:00:03+02:00", "last": 1}, [3]),
        ({"start": "2999-01-01T00:00Z"}, []),
        ({"partition": 1}, []),
        ({"where": "number >= 4 and number < 12"}, [10, 11, 4, 5]),
        ({"where": "number in 1,12", "last": 1}, [12]),
        ({"where": "number in 0,1,2", "start": "earliest", "partition": 0, "last": 2}, [0, 1]),
        ({"where": "number not in 0,1,2,10,11,12"}, [3, 4, 5]),
        ({"where": "_partition = 2"}, [10, 11, 12]),
        ({"where": "_offset >= 1 and _offset < 3"}, [1, 2, 11, 12]),
        ({"where": "_offset < 2", "start": 3, "partition": 0}, []),
        ({"where": "_timestamp > 1970-01-01T00:00:01Z"}, [10, 11, 12, 3, 4, 5]),
        ({"where": "_timestamp != 1970-01-01T00:00:01Z and number < 4"}, [3]),
    ],
)
def test_a_look_begins_where_it_is_asked_to(reads: Viewer, given: dict[str, Any], found: list[int]) -> None:
    assert numbers(ask(reads, **given)) == found


@pytest.mark.parametrize("where", ["", "number != 3"])
@pytest.mark.parametrize("way", ["older", "newer"])
def test_pages_join_without_a_gap(reads: Viewer, way: str, where: str) -> None:
    wanted = sorted(n for n in (0, 1, 2, 3, 4, 5, 10, 11, 12) if n != 3 or not where)
    found = ask(reads, start="newest" if way == "older" else "earliest", last=2, where=where)
    together = numbers(found)
    for _ in range(10):
        edges = ",".join(f"{each}:{span[way == 'newer']}" for each, span in seen(found).items())
        found = ask(reads, **{way: edges}, last=2, where=where)
        together += numbers(found)
    assert sorted(together) == wanted


def test_a_tail_has_what_came_since_and_tells_what_it_leaves_out(reads: Viewer, filled: FakeCluster) -> None:
    here = "0:6,1:0,2:3"
    still = ask(reads, tail=here)
    assert (numbers(still), seen(still)) == ([], {0: (6, 6), 1: (0, 0), 2: (3, 3)})
    fill(filled, 0, [6, 7, 8], at_ms=4_000)
    fill(filled, 1, [20], at_ms=5_000)
    assert numbers(ask(reads, tail=here)) == [6, 7, 8, 20]
    short = ask(reads, tail=here, last=2)
    assert (numbers(short), seen(short)) == ([8, 20], {0: (8, 9), 1: (0, 1), 2: (3, 3)})
    assert numbers(ask(reads, tail="0:9,2:3")) == [20], "a partition that is not named is new"


def test_there_is_nothing_older_in_partitions_that_are_not_named(reads: Viewer) -> None:
    assert numbers(ask(reads, older="0:2")) == [0, 1]


@pytest.mark.parametrize(
    ("given", "span"),
    [
        ({"start": 3, "where": "_offset < 2"}, (3, 3)),
        ({"start": "earliest", "where": "_offset >= 9"}, (6, 6)),
        ({"where": "_offset >= 9"}, (6, 6)),
        ({"where": "_offset >= 4 and _offset < 2"}, (2, 2)),
        ({"start": "earliest", "where": "_offset >= 4 and _offset < 2"}, (4, 4)),
        ({"tail": "0:6", "where": "_offset < 2"}, (6, 6)),
        ({"older": "0:1", "where": "_offset >= 4"}, (1, 1)),
    ],
)
def test_a_filter_that_leaves_nothing_leaves_a_place_to_go_on_from(
    reads: Viewer, given: dict[str, Any], span: tuple[int, int]
) -> None:
    found = ask(reads, partition=0, **given)
    assert (numbers(found), seen(found)) == ([], {0: span})


def test_columns_are_chosen_and_the_filter_may_look_at_others(reads: Viewer, filled: FakeCluster) -> None:
    filled.create("wide", schema=WIDE)
    append(filled, "wide", 0, pa.record_batch([[1, 2], ["<b>one</b>", "two"], [b"\0", None]], schema=WIDE))
    found = ask(reads, "wide", column=["raw", "text"], where="number < 2").json
    assert (found["columns"], found["columns_in_all"]) == ([["raw", "binary"], ["text", "string"]], 3)
    assert found["rows"] == [[0, 0, 7, ["00", "<b>one</b>"]]], "HTML is text: the browser makes no markup of it"
    assert ask(reads, "wide", column=["text", "text"]).json["columns"] == [["text", "string"]]
    assert ask(reads, "wide", where='text = "two"').json["rows"] == [[0, 1, 7, ["2", "two", None]]]
    assert ask(reads, "wide", where="text = two").json["rows"] == [[0, 1, 7, ["2", "two", None]]]


def test_rows_of_an_earlier_schema_have_nulls_in_columns_that_came_later(reads: Viewer, filled: FakeCluster) -> None:
    assert numbers(ask(reads, last=1)) == [5]
    filled.widen("orders", WIDE)
    append(filled, "orders", 0, pa.record_batch([[6], ["new"], [None]], schema=WIDE), at_ms=9_000)
    assert [cells for *_, cells in ask(reads, last=2).json["rows"]] == [["5", None, None], ["6", "new", None]]


def test_a_topic_without_values_is_shown(reads: Viewer, filled: FakeCluster) -> None:
    filled.create("empty", schema=pa.schema([("nothing", pa.null())]))
    append(filled, "empty", 0, pa.record_batch({"nothing": pa.nulls(3)}))
    assert ask(reads, "empty").json["rows"] == [[0, each, 7, [None]] for each in range(3)]


def test_a_topic_may_have_a_column_that_is_called_as_the_place_of_a_row(reads: Viewer, filled: FakeCluster) -> None:
    filled.create("odd", schema=pa.schema([("_offset", pa.int64()), ("_timestamp", pa.string())]))
    append(filled, "odd", 0, pa.record_batch({"_offset": [7, 8], "_timestamp": ["now", "then"]}))
    found = [[0, 1, 7, ["8", "then"]]]
    assert ask(reads, "odd", where="_offset >= 8").json["rows"] == found
    assert ask(reads, "odd", where='_timestamp = "then"').json["rows"] == found


def test_an_answer_has_no_more_rows_and_columns_than_a_browser_holds(reads: Viewer, filled: FakeCluster) -> None:
    names = [f"c{each}" for each in range(records.COLUMNS_MAX + 1)]
    filled.create("many", schema=pa.schema([(name, pa.int8()) for name in names]))
    append(filled, "many", 0, pa.record_batch({name: pa.array([1] * 300, pa.int8()) for name in names}))
    found = ask(reads, "many", last=300).json
    assert (len(found["rows"]), found["rows"][0][1]) == (records.ROWS_MAX, 100)
    assert (len(found["columns"]), found["columns_in_all"]) == (records.COLUMNS_MAX, records.COLUMNS_MAX + 1)
    assert ask(reads, "many", column=names[-1:], last=1).json["columns"] == [[names[-1], "int8"]]
    refused = ask(reads, "many", column=names)
    assert (refused.status, "name 50 at most" in refused.json["message"]) == (400, True)


def test_the_name_of_a_type_is_shortened(reads: Viewer, filled: FakeCluster) -> None:
    nested = pa.struct([(f"field {each}", pa.int8()) for each in range(100)])
    filled.create("nested", schema=pa.schema([("all", nested)]))
    ((_, kind),) = ask(reads, "nested").json["columns"]
    assert (kind[:15], len(kind)) == ("struct<field 0:", 200)


def test_a_row_of_a_mebibyte_is_shortened_before_it_is_sent(reads: Viewer, filled: FakeCluster) -> None:
    filled.create("large", schema=WIDE)
    for each in range(3):
        append(filled, "large", 0, pa.record_batch([[each], ["x" * (1 << 20)], [bytes(1 << 20)]], schema=WIDE))
    found = ask(reads, "large")
    assert numbers(found) == [0, 1, 2]
    assert found.json["rows"][0][3][1].endswith("x… (1,048,576 bytes)")
    assert len(found.body) < 2_000


@pytest.mark.parametrize(("start", "rest"), [("newest", [0, 1]), ("earliest", [1, 2])])
def test_a_look_that_takes_too_much_ends_early_and_goes_on(
    reads: Viewer, filled: FakeCluster, monkeypatch: pytest.MonkeyPatch, start: str, rest: list[int]
) -> None:
    monkeypatch.setattr(records, "LOOK_BYTES_MAX", 1_000)
    filled.create("large", schema=WIDE)
    for each in range(3):
        append(filled, "large", 0, pa.record_batch([[each], ["x" * 2_000], [None]], schema=WIDE))
    found = ask(reads, "large", start=start)
    assert (len(numbers(found)), found.json["is_cut"]) == (1, True)
    way, edge = ("older", seen(found)[0][0]) if start == "newest" else ("newer", seen(found)[0][1])
    monkeypatch.undo()
    assert numbers(ask(reads, "large", **{way: f"0:{edge}"})) == rest


def test_no_partition_takes_the_share_of_another(
    reads: Viewer, filled: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled.create("large", partitions=2, schema=WIDE)
    for each in range(6):
        append(filled, "large", each // 3, pa.record_batch([[each], ["x" * 1_000], [None]], schema=WIDE))
    monkeypatch.setattr(records, "LOOK_BYTES_MAX", 3_000)
    found = ask(reads, "large", where="number != 9")
    assert {partition for partition, *_ in found.json["rows"]} == {0, 1}


def test_no_read_begins_once_time_is_over(reads: Viewer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "LOOK_S", -1.0)
    found = ask(reads)
    assert (numbers(found), found.json["is_cut"]) == ([], True)
    assert seen(found) == {0: (6, 6), 1: (0, 0), 2: (3, 3)}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"start": "soon"}, "'soon' is no place to start at"),
        ({"start": 3}, "offset 3 is of one partition: choose that, too"),
        ({"start": "1969-01-01"}, "no time between 1970"),
        ({"start": "newest", "tail": "0:1"}, "start and tail are two places to look from"),
        ({"older": "0"}, "'0' is no offset of a partition"),
        ({"newer": "0:1,x:2"}, "'x:2' is no offset of a partition"),
        ({"partition": "x"}, "partition=x is no number"),
        ({"partition": -1}, "partition=-1 is no number"),
        ({"last": "many"}, "last=many is no number"),
        ({"column": "nothing"}, "column 'nothing' is not in the topic"),
        ({"column": "_offset"}, "column '_offset' is not in the topic"),
        ({"where": "number"}, "'number' is no condition such as 'amount > 5'"),
        ({"where": "number > 1 and"}, "is none"),
        ({"where": "nothing > 1"}, "column 'nothing' is not in the topic"),
        ({"where": "number > many"}, "number is int64, and 'many' is none"),
        ({"where": "number in 5,"}, "has a comma without a value"),
        ({"where": "_timestamp > 5.5"}, "and '5.5' is none: give a time as 2026-11-21T10:00:00Z"),
        ({"where": "number > 1" + " " * 1_000}, "the filter has 1,010 characters"),
    ],
)
def test_what_asks_for_nothing_that_there_could_be_is_refused(reads: Viewer, given: dict[str, Any], why: str) -> None:
    answer = ask(reads, **given)
    assert (answer.status, why in answer.json["message"]) == (400, True), answer.body


def test_a_filter_that_arrow_cannot_compute_is_refused(reads: Viewer, filled: FakeCluster) -> None:
    filled.create("lists", schema=pa.schema([("items", pa.list_(pa.int64()))]))
    append(filled, "lists", 0, pa.record_batch({"items": [[1]]}))
    answer = ask(reads, "lists", where="items > 1")
    assert (answer.status, "which no condition can compare" in answer.json["message"]) == (400, True)


@pytest.mark.parametrize(
    ("topic", "given", "status", "why"),
    [
        ("nothing", {}, 404, "nothing"),
        ("orders", {"partition": 3}, 404, "orders has no partition 3"),
        ("orders", {"partition": 0, "start": 7}, 410, "orders-0 ends at offset 6, below 7"),
        ("orders", {"older": "0:7"}, 410, "orders-0 ends at offset 6, below 7"),
        ("orders", {"tail": "0:7"}, 410, "orders-0 ends at offset 6, below 7"),
    ],
)
def test_what_is_not_there_is_said_in_one_sentence(
    reads: Viewer, topic: str, given: dict[str, Any], status: int, why: str
) -> None:
    answer = ask(reads, topic, **given)
    assert (answer.status, why in answer.json["message"]) == (status, True), answer.body


def test_what_retention_has_removed_is_not_there(reads: Viewer, filled: FakeCluster) -> None:
    del filled.log().batches[0]
    gone = ask(reads, partition=0, start=2)
    assert (gone.status, gone.json["message"]) == (410, "orders-0 has the offsets from 3 on: start there")
    assert numbers(ask(reads, newer="0:1,2:3")) == [3, 4, 5], "whoever pages on finds what is left"
    assert numbers(ask(reads, older="0:2")) == []


def test_a_topic_that_is_made_again_meanwhile_is_not_mixed_with_the_one_before(
    reads: Viewer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranges, read, asked = Reader.ranges, Reader.read, []

    def read_of(reader: Reader, *given: Any, **named: Any) -> Iterator[LogBatch]:
        asked.append(named["topic_id"])
        return read(reader, *given, **named)

    monkeypatch.setattr(Reader, "read", read_of)
    assert numbers(ask(reads, partition=2)) == [10, 11, 12]
    assert asked == ["id-orders"]
    monkeypatch.setattr(
        Reader,
        "ranges",
        lambda reader, wanted: {
            name: replace(each, topic_id="another") for name, each in ranges(reader, wanted).items()
        },
    )
    answer = ask(reads)
    assert (answer.status, answer.json["message"]) == (404, "orders has just been made again: look anew")


def test_what_retention_removes_meanwhile_is_said_to_be_gone(
    reads: Viewer, filled: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = filled.log().pieces
    monkeypatch.setattr(filled.log(), "pieces", lambda start, end, piece_bytes: ())
    gone = ask(reads, partition=0)
    assert (gone.status, "nothing below offset 6 any more" in gone.json["message"]) == (410, True)
    monkeypatch.setattr(filled.log(), "pieces", told)
    assert numbers(ask(reads, partition=0, last=1)) == [5]


def test_a_partition_that_nobody_leads_is_left_out_and_told(reads: Viewer, filled: FakeCluster) -> None:
    filled.lead(None, partition=0)
    found = ask(reads)
    assert (numbers(found), found.json["leaderless"]) == ([10, 11, 12], [0])
    alone = ask(reads, partition=0)
    assert (alone.status, alone.json["error"]) == (503, "LEADER_NOT_AVAILABLE")
    assert alone.json["message"] == "orders-0 has no leader: its records cannot be read until it has one"


def test_a_topic_of_many_partitions_is_read_one_by_one(reads: Viewer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "PARTITIONS_MAX", 2)
    answer = ask(reads)
    assert answer.json["message"] == "orders has 3 partitions, and 2 at most are read together: choose one"
    assert numbers(ask(reads, partition=2)) == [10, 11, 12]
    assert numbers(ask(reads, where="_partition in 0,1", last=1)) == [5]


def test_whoever_may_not_read_the_topic_is_told_so(reads: Viewer, filled: FakeCluster) -> None:
    filled.refuse_metadata = TopicAuthorizationFailed("carol has no right to read orders: ask a super user for it")
    answer = ask(reads)
    assert (answer.status, answer.json["error"]) == (403, "TOPIC_AUTHORIZATION_FAILED")
    assert "carol has no right to read orders" in answer.json["message"]


def test_whoever_may_not_see_the_page_sees_no_record(stranger: Viewer) -> None:
    answer = ask(stranger)
    assert (answer.status, answer.json["error"]) == (401, "AUTHENTICATION_FAILED")
    assert stranger.ask("/api/topics/orders/records", method="POST").status == 405


def test_only_so_many_look_at_one_time(reads: Viewer, filled: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "TURN_S", 0.05)
    may_go_on, waiting = threading.Event(), threading.Semaphore(0)

    def before_read(_broker: FakeBroker, _stored: StoredBatch) -> None:
        waiting.release()
        assert may_go_on.wait(20)

    filled.before_read = before_read
    looks = [threading.Thread(target=ask, args=(reads,)) for _ in range(app.LOOKS_MAX)]
    for each in looks:
        each.start()
    try:
        for _ in looks:
            assert waiting.acquire(timeout=20)
        refused = ask(reads)
        assert (refused.status, refused.json["error"]) == (503, "THROTTLING_QUOTA_EXCEEDED")
        assert reads.view()["whole"], "all else is answered meanwhile"
    finally:
        may_go_on.set()
        for each in looks:
            each.join(20)
    eventually(lambda: ask(reads, last=1).status == 200, "their turns are given back")


@pytest.mark.parametrize(
    ("text", "conditions"),
    [
        ("", ()),
        ("  ", ()),
        ("amount > 5", (("amount", ">", ("5",)),)),
        ("a=1 AND b!=-2.5", (("a", "=", ("1",)), ("b", "!=", ("-2.5",)))),
        ('a == "x and y" and b <= "z"', (("a", "==", ("x and y",)), ("b", "<=", ("z",)))),
        ("a not  in x,y", (("a", "not in", ("x", "y")),)),
        ("a = some text", (("a", "=", ("some text",)),)),
    ],
)
def test_conditions_are_as_in_a_shell_joined_by_and(text: str, conditions: tuple[Any, ...]) -> None:
    assert conditions_of(text) == conditions


def test_answers_are_json_that_every_browser_reads(reads: Viewer) -> None:
    answer = ask(reads, last=1)
    assert answer.headers["content-type"] == "application/json"
    assert json.loads(answer.body)["rows"] == [[0, 5, 3_000, ["5"]]]

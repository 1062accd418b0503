"""`produce` takes rows of any of its formats to a topic and says what was acknowledged; `consume` shows them."""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from spark_replication.admin.cli.record_files import read_batches
from spark_replication.errors import BatchTooLarge, InvalidRequest, ReplicationError
from spark_replication.messages.records import BatchMetadata
from tests.unit.admin.conftest import Run
from tests.unit.client.fake_cluster import FakeCluster

pytestmark = pytest.mark.usefixtures("endings")

NUMBERS = pa.table({"number": pa.array(range(25), pa.int64())})


def as_parquet(path: Path) -> None:
    parquet.write_table(NUMBERS.cast(pa.schema([("number", pa.int32())])), path)  # the topic's type is wider


def as_arrow_file(path: Path) -> None:
    with pa.ipc.new_file(path, NUMBERS.schema) as writer:
        writer.write_table(NUMBERS, max_chunksize=7)
        writer.write_batch(pa.RecordBatch.from_pylist([], NUMBERS.schema))


def as_arrow_stream(path: Path) -> None:
    with pa.ipc.new_stream(path, NUMBERS.schema) as writer:
        writer.write_table(NUMBERS)


def as_csv(path: Path) -> None:
    csv.write_csv(NUMBERS, path)


def as_lines(path: Path) -> None:
    path.write_text("\n" + "".join(f'{{"number": {number}}}\n' for number in range(25)) + "\n")


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("rows.parquet", as_parquet),
        ("rows.arrow", as_arrow_file),
        ("rows.arrows", as_arrow_stream),
        ("rows.CSV", as_csv),
        ("rows.jsonl", as_lines),
    ],
)
def test_a_file_is_produced_in_batches(
    run: Run, cluster: FakeCluster, tmp_path: Path, name: str, write: Callable[[Path], None]
) -> None:
    write(tmp_path / name)
    ran = run(
        "produce", "-b", cluster.bootstrap, "orders", tmp_path / name, "-p", 2, "--batch-rows", 10, "--format", "json"
    )
    assert (ran.exit, ran.err) == (0, "")
    (found,) = json.loads(ran.out)
    assert found["batches"] >= 3
    assert {name: found[name] for name in found if name != "batches"} == {
        "topic": "orders",
        "partition": 2,
        "rows": 25,
        "first_offset": 0,
        "last_offset": 24,
    }
    assert cluster.log(partition=2).numbers == list(range(25))


def test_lines_of_json_come_from_standard_input(
    run: Run, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = io.BytesIO(b'{"number": 1}\n{"number": null}\n{"number": 3}')
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=given))
    assert run("produce", "-b", cluster.bootstrap, "orders", "-p", 0).exit == 0
    assert cluster.log().numbers == [1, None, 3]


def produced(run: Run, cluster: FakeCluster, file: Path, *arguments: object) -> list[tuple[int, int]]:
    """Of each partition, how many rows."""
    ran = run("produce", "-b", cluster.bootstrap, "orders", file, "--format=json", *arguments)
    assert (ran.exit, ran.err) == (0, "")
    return [(each["partition"], each["rows"]) for each in json.loads(ran.out)]


def test_batches_go_to_partitions_in_turn(run: Run, cluster: FakeCluster, tmp_path: Path) -> None:
    as_parquet(tmp_path / "rows.parquet")
    told = produced(run, cluster, tmp_path / "rows.parquet", "--batch-rows", 10)
    stored = [cluster.log(partition=number).numbers for number in range(3)]
    assert told == [(number, len(rows)) for number, rows in enumerate(stored)]
    first = stored.index([*range(10)])
    assert [*stored[first:], *stored[:first]] == [[*range(10)], [*range(10, 20)], [*range(20, 25)]]


def test_small_inputs_do_not_all_go_to_one_partition(run: Run, cluster: FakeCluster, tmp_path: Path) -> None:
    as_parquet(tmp_path / "rows.parquet")
    assert len({tuple(produced(run, cluster, tmp_path / "rows.parquet")) for _ in range(20)}) > 1


def test_rows_of_one_key_go_where_a_producer_sends_that_key(run: Run, cluster: FakeCluster, tmp_path: Path) -> None:
    as_parquet(tmp_path / "rows.parquet")
    found = produced(run, cluster, tmp_path / "rows.parquet", "--key", "number", "--batch-rows", 10)
    assert sum(rows for _, rows in found) == 25
    for partition, _ in found:
        numbers = cluster.log(partition=partition).numbers
        assert numbers == [number for number in range(25) if zlib.crc32(b"%d" % number) % 3 == partition]


def test_a_key_is_a_column_and_leaves_no_choice_of_a_partition(run: Run, cluster: FakeCluster, tmp_path: Path) -> None:
    as_parquet(tmp_path / "rows.parquet")
    asked = ("produce", "-b", cluster.bootstrap, "orders", tmp_path / "rows.parquet", "--key")
    refused = run(*asked, "id")
    assert (refused.exit, "--key id: orders has the columns number" in refused.err) == (1, True)
    assert run(*asked, "number", "-p", 1).exit == 2
    assert cluster.received == []


def test_nothing_to_produce_is_said_so(run: Run, cluster: FakeCluster, tmp_path: Path) -> None:
    (tmp_path / "none.jsonl").write_text("\n\n")
    ran = run("produce", "-b", cluster.bootstrap, "orders", tmp_path / "none.jsonl", "--format", "json")
    assert ran.exit == 0
    assert json.loads(ran.out)[0]["rows"] == 0


def test_what_was_acknowledged_is_said_when_something_fails(run: Run, cluster: FakeCluster, tmp_path: Path) -> None:
    def refuse(batch: pa.RecordBatch, _metadata: BatchMetadata) -> ReplicationError | None:
        return BatchTooLarge("split it") if 12 in batch.column(0).to_pylist() else None

    cluster.refuse = refuse
    as_lines(tmp_path / "rows.jsonl")
    ran = run(
        "produce",
        "-b",
        cluster.bootstrap,
        "orders",
        tmp_path / "rows.jsonl",
        "-p",
        0,
        "--batch-rows",
        5,
        "--format=json",
    )
    assert (ran.exit, ran.err) == (1, "error: MESSAGE_TOO_LARGE: split it\n")
    assert json.loads(ran.out)[0]["rows"] == len(cluster.log().numbers)
    assert set(range(9)) <= set(cluster.log().numbers)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ('{"amount": 1}', "unexpected field"),
        ('{"number": "one"}', "changed from number to string"),
        ("nonsense", "JSON parse error"),
    ],
)
def test_rows_of_another_schema_are_refused(
    run: Run, cluster: FakeCluster, tmp_path: Path, content: str, why: str
) -> None:
    (tmp_path / "rows.jsonl").write_text(content)
    ran = run("produce", "-b", cluster.bootstrap, "orders", tmp_path / "rows.jsonl")
    assert ran.exit == 1
    assert "rows.jsonl cannot be read as jsonl of the topic's schema" in ran.err
    assert why in ran.err
    assert cluster.received == []


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({"number": [1], "amount": [1.5]}, "column 'amount' is not in the topic"),
        ({"amount": [1.5]}, "column 'number' is missing"),
        ({"number": [1.5]}, "truncated"),
    ],
)
def test_columns_that_do_not_fit_are_named(table: dict[str, list[float]], why: str) -> None:
    file = io.BytesIO()
    parquet.write_table(pa.table(table), file)
    file.seek(0)
    with pytest.raises(InvalidRequest, match=why):
        list(read_batches(file, "parquet", NUMBERS.schema, rows_max=10, name="it"))


def test_wrong_usage_is_2_and_an_unknown_suffix_or_topic_1(run: Run, cluster: FakeCluster, tmp_path: Path) -> None:
    assert run("produce", "-b", cluster.bootstrap, "orders", tmp_path / "not there.csv").exit == 2
    assert run("produce", "-b", cluster.bootstrap, "orders", "--input-format", "csv").exit == 2
    (tmp_path / "rows.txt").write_text("")
    ran = run("produce", "-b", cluster.bootstrap, "orders", tmp_path / "rows.txt")
    assert ran.exit == 1
    assert "name its format" in ran.err
    as_csv(tmp_path / "rows.csv")
    assert "there is no topic ordrs" in run("produce", "-b", cluster.bootstrap, "ordrs", tmp_path / "rows.csv").err


def test_consume_shows_a_range_of_columns_from_whom_is_preferred(
    run: Run, cluster: FakeCluster, tmp_path: Path
) -> None:
    as_csv(tmp_path / "rows.csv")
    run("produce", "-b", cluster.bootstrap, "orders", tmp_path / "rows.csv", "-p", 0)
    asked = ("consume", "-b", cluster.bootstrap, "orders", "-p", 0, "--format", "json")
    ran = run(*asked, "--from", 3, "--to", 6, "-c", "number", "--prefer", "follower")
    assert json.loads(ran.out) == [{"_offset": n, "number": n} for n in range(3, 6)]
    assert set(cluster.served) == {2}
    assert [row["_offset"] for row in json.loads(run(*asked, "--prefer", 1, "--rows", 2).out)] == [0, 1]
    assert json.loads(run(*asked, "--from", 25).out) == json.loads(run(*asked, "--from", 99).out) == []
    assert run(*asked, "--prefer", "anybody").exit == 1
    assert run(*asked, "--from", -1).exit == 2


def test_consume_shows_all_partitions_unless_one_is_named(run: Run, cluster: FakeCluster, tmp_path: Path) -> None:
    as_csv(tmp_path / "rows.csv")
    for partition in (0, 2):
        run("produce", "-b", cluster.bootstrap, "orders", tmp_path / "rows.csv", "-p", partition)
    asked = ("consume", "-b", cluster.bootstrap, "orders", "-c", "number", "--format", "json")
    rows = json.loads(run(*asked).out)
    assert rows == [
        {"_partition": partition, "_offset": offset, "number": offset} for partition in (0, 2) for offset in range(25)
    ]
    unknown = run(*asked, "-p", 3)
    assert (unknown.exit, "orders has no partition 3, it has 0, 1, 2: name one" in unknown.err) == (1, True)


def test_consume_starts_at_an_offset_a_named_place_or_a_time(run: Run, cluster: FakeCluster, tmp_path: Path) -> None:
    as_csv(tmp_path / "rows.csv")
    cluster.log().now_ms = 1_795_255_200_000
    run("produce", "-b", cluster.bootstrap, "orders", tmp_path / "rows.csv", "-p", 0)
    asked = ("consume", "-b", cluster.bootstrap, "orders", "-p", 0, "--rows", 1, "--format", "json")

    def first(*options: object) -> list[int]:
        return [row["_offset"] for row in json.loads(run(*asked, *options).out)]

    assert first("--from", "earliest") == first("--from", 0) == [0]
    assert first("--from", "latest") == []
    assert first("--from-time", "2026-11-21T10:00:00Z") == first("--from-time", "2026-11-21T12:00:00+02:00") == [0]
    assert first("--from-time", "2026-11-21T10:00:00.001Z") == []
    for wrong, why in (
        (("--from", "newest"), "neither an offset nor earliest or latest"),
        (("--from-time", "2026-11-21T10:00:00"), "has no time zone"),
        (("--from-time", "yesterday"), "is no time such as"),
        (("--from", 0, "--from-time", "2026-11-21T10:00:00Z"), "two places to start at"),
        (("--from", 5, "--to", 4), "--from 5 --to 4 is no range of offsets"),
    ):
        ran = run(*asked, *wrong)
        assert ran.exit == 2
        assert why in ran.err

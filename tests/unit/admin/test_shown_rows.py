"""`consume`, `topics head` and `topics tail`: which rows and columns are shown, in which format, and how it ends."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from spark_replication.client.reading.log_batch import LogBatch
from spark_replication.client.reading.reader import Reader
from spark_replication.errors import ClientClosed, CorruptLog
from spark_replication.messages.records import BatchMetadata
from spark_replication.model import TopicPartition
from spark_replication.process.stop_signals import INTERRUPTED
from tests.unit.admin.conftest import Run
from tests.unit.client.fake_cluster import FakeCluster
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("endings")

SALES = pa.schema([("id", pa.int64()), ("item", pa.string())])
Rows = Sequence[tuple[int, str | None]]


def append(cluster: FakeCluster, partition: int, rows: Rows, at_ms: int) -> None:
    batch = pa.record_batch([pa.array([row[place] for row in rows], SALES.types[place]) for place in (0, 1)], SALES)
    with cluster.changed:
        log = cluster.logs[TopicPartition("sales", partition)]
        log.now_ms = at_ms
        log.append(batch, BatchMetadata(producer=99, sequence=len(log.batches)))
        cluster.changed.notify_all()


@pytest.fixture
def sales(cluster: FakeCluster) -> FakeCluster:
    """Of partition 0, ids 0 to 2 as of 1 s and 3 to 5 as of 3 s; of partition 1, ids 10 to 12 as of 2 s."""
    cluster.create("sales", partitions=2, schema=SALES)
    append(cluster, 0, [(0, "tea"), (1, "salt"), (2, None)], at_ms=1_000)
    append(cluster, 0, [(3, "tea"), (4, "oil"), (5, "a\tb\x1b[2J")], at_ms=3_000)
    append(cluster, 1, [(10, "tea"), (11, "tea"), (12, "oil")], at_ms=2_000)
    return cluster


def shown(run: Run, cluster: FakeCluster, verb: str, *options: object) -> list[dict[str, Any]]:
    ran = run(*verb.split(), "-b", cluster.bootstrap, "sales", "--format", "json", *options)
    assert (ran.exit, ran.err) == (0, "")
    rows: list[dict[str, Any]] = json.loads(ran.out)
    return rows


def ids(run: Run, cluster: FakeCluster, verb: str, *options: object) -> list[int]:
    return [row["id"] for row in shown(run, cluster, verb, *options)]


@pytest.mark.parametrize(
    ("options", "given"),
    [
        (("--where", "id > 4"), [5, 10, 11, 12]),
        (("--where", "item = tea", "--where", "id != 0"), [3, 10, 11]),
        (("--where", "item in tea,oil", "-n", 3), [0, 3, 4]),
        (("--where", "item not in tea,oil", "--where", "_partition = 0"), [1, 2, 5]),
        (("--where", "_offset >= 4"), [4, 5]),
        (("--where", "_offset in 0,4"), [0, 4, 10]),
        (("--where", "_timestamp > 1970-01-01T00:00:02Z"), [3, 4, 5]),
        (("--where", "id = 1", "-p", 1), []),
        (("-p", 0, "--from", 2, "--to", 5, "--where", "item = oil"), [4]),
        (("--rows", 7), [0, 1, 2, 3, 4, 5, 10]),
    ],
)
def test_rows_of_which_all_conditions_hold_are_shown(
    run: Run, sales: FakeCluster, options: tuple[object, ...], given: list[int]
) -> None:
    assert ids(run, sales, "consume", *options) == given


@pytest.mark.parametrize("option", ["--columns", "--column", "-c"])
def test_columns_are_named_by_commas_or_one_by_one(run: Run, sales: FakeCluster, option: str) -> None:
    by_commas = shown(run, sales, "consume", option, "item, _timestamp", "-n", 1)
    assert by_commas == [{"_partition": 0, "_offset": 0, "item": "tea", "_timestamp": "1970-01-01T00:00:01Z"}]
    assert shown(run, sales, "consume", option, "item", option, "_timestamp", "-n", 1) == by_commas
    assert list(shown(run, sales, "consume", "-p", 1, option, "id,_offset,id", "-n", 1)[0]) == ["_offset", "id"]


def test_a_table_shows_the_first_ten_unless_told_and_a_program_gets_all(run: Run, sales: FakeCluster) -> None:
    append(sales, 1, [(20, None), (21, None)], at_ms=4_000)
    asked = ("consume", "-b", sales.bootstrap, "sales", "-c", "id")
    assert [run(*asked, *rows).out.count("\n") - 4 for rows in ((), ("-n", 2), ("-n", 20))] == [10, 2, 11]
    assert len(shown(run, sales, "consume")) == 11
    assert "offset" in run(*asked, "--where", "id < 0").out, "a table without rows has columns"


def test_head_and_tail(run: Run, sales: FakeCluster) -> None:
    assert ids(run, sales, "topics head", "-n", 7) == [0, 1, 2, 3, 4, 5, 10]
    assert shown(run, sales, "topics tail", "-n", 4, "-c", "_timestamp,id")[:2] == [
        {"_partition": 1, "_offset": 2, "_timestamp": "1970-01-01T00:00:02Z", "id": 12},
        {"_partition": 0, "_offset": 3, "_timestamp": "1970-01-01T00:00:03Z", "id": 3},
    ]
    assert ids(run, sales, "topics tail", "--where", "item = tea", "-n", 3) == [10, 11, 3]
    assert ids(run, sales, "topics head", "--where", "item = tea", "-n", 3) == [0, 3, 10]
    assert ids(run, sales, "topics head") == [0, 1, 2, 3, 4, 5, 10, 11, 12]
    assert run("topics", "tail", "-b", sales.bootstrap, "sales", "-n", 1).out.count("\n") == 4 + 1


@pytest.mark.parametrize("verb", ["consume", "consume --follow", "topics head", "topics tail"])
@pytest.mark.parametrize(
    ("option", "why"),
    [
        (("--columns", "id,price"), "sales has no column 'price', it has id, item, _topic"),
        (("--where", "price > 5"), "sales has no column 'price'"),
        (("--where", "id > many"), "id is int64, and 'many' is none"),
    ],
)
def test_what_a_topic_does_not_have_is_wrong_usage(
    run: Run, sales: FakeCluster, verb: str, option: tuple[str, str], why: str
) -> None:
    ran = run(*verb.split(), "-b", sales.bootstrap, "sales", *option)
    assert (ran.exit, ran.out, f"WRONG_USAGE: {why}" in ran.err) == (2, "", True)
    assert sales.served == []


class Bytes(io.TextIOWrapper):
    """Standard output, as bytes; or a terminal."""

    def __init__(self, *, is_terminal: bool = False) -> None:
        self.written = io.BytesIO()
        self.is_terminal = is_terminal
        super().__init__(self.written)

    def isatty(self) -> bool:
        return self.is_terminal


@pytest.mark.parametrize("verb", ["consume", "topics head", "topics tail"])
def test_arrow_is_a_stream(run: Run, sales: FakeCluster, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    stdout = Bytes()
    monkeypatch.setattr(sys, "stdout", stdout)
    assert run(*verb.split(), "-b", sales.bootstrap, "sales", "--format", "arrow", "--where", "id > 10").exit == 0
    with pa.ipc.open_stream(stdout.written.getvalue()) as stream:
        found = stream.read_all()
    assert found.schema.names == ["_partition", "_offset", "id", "item"]
    assert sorted(found["id"].to_pylist()) == [11, 12]
    assert all(batch.num_rows for batch in found.to_batches())


def test_arrow_without_rows_is_a_stream_with_its_columns(
    run: Run, sales: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    stdout = Bytes()
    monkeypatch.setattr(sys, "stdout", stdout)
    run("consume", "-b", sales.bootstrap, "sales", "--format", "arrow", "--where", "id < 0", "-c", "id")
    assert pa.ipc.open_stream(stdout.written.getvalue()).read_all().to_pydict() == {
        "_partition": [],
        "_offset": [],
        "id": [],
    }


def test_arrow_is_nothing_for_a_terminal(run: Run, sales: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Bytes(is_terminal=True))
    ran = run("consume", "-b", sales.bootstrap, "sales", "--format", "arrow")
    assert (ran.exit, "this is a terminal: add `> rows.arrows`, or a pipe" in ran.err) == (2, True)


# While it follows

COMING: list[tuple[int, int, Rows]] = [
    (1, 7, [(1, "tea"), (2, "oil")]),
    (0, 3, [(1_000_000, "oil")]),
    (1, 9, [(3, "a\tb\x1b[2J")]),
]


def coming(partition: int, base: int, rows: pa.RecordBatch) -> LogBatch:
    last = base + rows.num_rows - 1
    return LogBatch(
        topic="sales",
        partition=partition,
        batch=rows,
        base_offset=base,
        last_offset=last,
        leader_epoch=0,
        timestamp=0,
        high_watermark=last + 1,
    )


@pytest.fixture
def follows(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], endings: SimpleNamespace) -> list[str]:
    """What was shown by the time that the next batch comes. After the last one somebody presses Ctrl-C."""
    shown_yet: list[str] = []

    def read(_reader: Reader, topic: str, **asked: Any) -> Iterator[LogBatch]:
        assert (topic, asked["follow"], asked["columns"]) == ("sales", True, ("id", "item"))
        for partition, base, rows in COMING:
            columns = [pa.array([row[place] for row in rows], SALES.types[place]) for place in (0, 1)]
            yield coming(partition, base, pa.record_batch(columns, SALES))
            shown_yet.append(capsys.readouterr().out)
        endings.stop()
        raise ClientClosed("a reader that is closed meanwhile may say so")

    monkeypatch.setattr(Reader, "read", read)
    return shown_yet


def test_what_is_followed_is_shown_as_it_comes_until_ctrl_c(run: Run, sales: FakeCluster, follows: list[str]) -> None:
    assert run("consume", "-b", sales.bootstrap, "sales", "--follow") == (0, "", "")
    assert follows == [
        "partition  offset  id  item\n1          7       1   tea\n1          8       2   oil\n",
        "0          3       1000000  oil\n",
        "1          9       3        a\\x09b\\x1b[2J\n",
    ]


def test_what_is_followed_as_json_is_a_line_a_row(run: Run, sales: FakeCluster, follows: list[str]) -> None:
    assert run("consume", "-b", sales.bootstrap, "sales", "--follow", "--format", "json") == (0, "", "")
    assert [[json.loads(line) for line in shown.splitlines()] for shown in follows] == [
        [
            {"_partition": 1, "_offset": 7, "id": 1, "item": "tea"},
            {"_partition": 1, "_offset": 8, "id": 2, "item": "oil"},
        ],
        [{"_partition": 0, "_offset": 3, "id": 1_000_000, "item": "oil"}],
        [{"_partition": 1, "_offset": 9, "id": 3, "item": "a\tb\x1b[2J"}],
    ]


def test_rows_that_fail_a_condition_are_not_shown_and_not_counted(
    run: Run, sales: FakeCluster, follows: list[str]
) -> None:
    ran = run("consume", "-b", sales.bootstrap, "sales", "-f", "--where", "item = oil", "-n", 2, "-c", "id")
    assert (ran.exit, ran.out, follows) == (
        0,
        "0          3       1000000\n",
        ["partition  offset  id\n1          8       2\n"],
    )


def test_one_who_follows_may_have_enough(run: Run, sales: FakeCluster, follows: list[str]) -> None:
    ran = run("consume", "-b", sales.bootstrap, "sales", "-p", 1, "--follow", "--rows", 1)
    assert (ran, follows) == ((0, "offset  id  item\n7       1   tea\n", ""), [])


@pytest.mark.parametrize(
    ("options", "start", "start_time"),
    [
        ((), 0, None),
        (("--where", "_timestamp >= 1970-01-01T00:00:02Z"), 0, 2_000),
        (("--from", "latest", "--where", "_timestamp >= 1970-01-01T00:00:02Z"), "latest", None),
        (("--from-time", "1970-01-01T00:00:01Z", "--where", "_timestamp >= 1970-01-01T00:00:02Z"), 0, 1_000),
    ],
)
def test_a_condition_on_times_says_where_to_begin_unless_that_is_said(
    run: Run,
    sales: FakeCluster,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    start: object,
    start_time: int | None,
) -> None:
    asked: list[dict[str, Any]] = []

    def read(_reader: Reader, _topic: str, **given: Any) -> Iterator[LogBatch]:
        asked.append(given)
        return iter(())

    monkeypatch.setattr(Reader, "read", read)
    run("consume", "-b", sales.bootstrap, "sales", "--follow", *options)
    assert [(each["start"], each["start_time"]) for each in asked] == [(start, start_time)]


# How it ends otherwise


def interrupted(monkeypatch: pytest.MonkeyPatch, end: Any) -> None:
    """`end` is called, or its error raised, after each batch."""
    read = Reader.read

    def until(reader: Reader, *asked: Any, **more: Any) -> Iterator[LogBatch]:
        for found in read(reader, *asked, **more):
            yield found
            end()

    monkeypatch.setattr(Reader, "read", until)


@pytest.mark.parametrize("output", ["json", "arrow"])
def test_what_is_cut_short_by_ctrl_c_can_be_read_and_says_so(
    run: Run, sales: FakeCluster, monkeypatch: pytest.MonkeyPatch, endings: SimpleNamespace, output: str
) -> None:
    def press() -> None:
        endings.stop()

    interrupted(monkeypatch, press)
    stdout = Bytes()
    monkeypatch.setattr(sys, "stdout", stdout)
    assert run("consume", "-b", sales.bootstrap, "sales", "--format", output, "-c", "id").exit == INTERRUPTED
    written = stdout.written.getvalue()
    rows = json.loads(written) if output == "json" else pa.ipc.open_stream(written).read_all().to_pylist()
    assert [row["id"] for row in rows] == [0, 1, 2]


def test_what_is_cut_short_by_an_error_is_no_list(
    run: Run, sales: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise CorruptLog("ask another replica")

    interrupted(monkeypatch, fail)
    ran = run("consume", "-b", sales.bootstrap, "sales", "--format", "json", "-c", "id")
    assert (ran.exit, ran.out.endswith('"id":2}')) == (1, True)


class Following:
    """A `consume --follow` in a process of its own."""

    def __init__(self, cluster: FakeCluster, *options: str, stdout: int = subprocess.PIPE) -> None:
        command = [
            sys.executable,
            "-m",
            "spark_replication",
            "consume",
            "-b",
            cluster.bootstrap,
            "sales",
            "-f",
            *options,
        ]
        self.process = subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE)

    def ended(self) -> tuple[int, bytes, bytes]:
        """Its exit code, what it wrote that nobody has read, and its errors."""
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out or b"", err


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("output", ["table", "json", "arrow"])
def test_a_signal_ends_it_well(sales: FakeCluster, output: str, number: signal.Signals) -> None:
    following = Following(sales, "--format", output, "--where", "id != 4")
    stdout = following.process.stdout
    assert stdout is not None
    first = os.read(stdout.fileno(), 1)
    append(sales, 1, [(13, "tea")], at_ms=4_000)
    eventually(lambda: len(sales.served) >= 4, "the last batch has been sent")
    following.process.send_signal(number)
    code, rest, err = following.ended()
    assert (code, err) == (0, b"")
    if output == "arrow":
        assert set(pa.ipc.open_stream(first + rest).read_all()["id"].to_pylist()) <= {0, 1, 2, 3, 5, 10, 11, 12, 13}
        assert (first + rest)[-8:] == b"\xff\xff\xff\xff\x00\x00\x00\x00", "it has an end"
    else:
        assert (first + rest).endswith(b"\n")


@pytest.mark.slow
def test_a_pipe_that_nobody_reads_ends_it_without_a_word(sales: FakeCluster) -> None:
    """Nothing is written meanwhile that would tell."""
    reading, writing = os.pipe()
    following = Following(sales, "--from", "latest", stdout=writing)
    os.close(writing)
    os.close(reading)
    assert following.ended() == (1, b"", b"")


@pytest.mark.slow
def test_a_write_to_a_pipe_that_nobody_reads_ends_it_without_a_word(sales: FakeCluster) -> None:
    following = Following(sales, "--format", "json")
    assert following.process.stdout is not None
    os.read(following.process.stdout.fileno(), 1)
    following.process.stdout.close()
    following.process.stdout = None
    append(sales, 1, [(13, "tea")], at_ms=4_000)
    assert following.ended() == (1, b"", b"")

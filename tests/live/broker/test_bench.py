"""`spark-replication bench`: what it prints of real brokers, in short runs; not how fast they are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

import spark_replication as sr
from spark_replication.admin.bench import sending
from spark_replication.admin.bench.bare import RECEIVE_BYTES, Bare
from spark_replication.admin.bench.harness import Row
from spark_replication.admin.bench.programs import kept
from spark_replication.admin.bench.report import Report
from spark_replication.admin.bench.side import RECENT, RECENT_BYTES, WHOLE, Rows
from spark_replication.admin.bench.sides import bare
from spark_replication.admin.cli.main import cli
from spark_replication.errors import BatchTooLarge, ReplicationError

pytestmark = pytest.mark.live

BRIEFLY = ("--rounds=2", "--warm-up-s=0.1")
WAITS = ("median", "99 %", "99.9 %", "worst")
LEADERS = ("each has a new leader", "each new leader has confirmed", "all changes are stored")
FOLLOWS = (
    "partitions that it led",
    "leaderAndISRs that changed",
    "its registration is gone",
    *LEADERS,
    "the Delta table shows them",
    *(f"{each}, since it was gone" for each in LEADERS),
    "as many conditional writes, one at a time",
    "these, by what storing took",
    "half of them take rows again",
    "all of them take rows again",
    "the broker is back, and all is as before",
)
TAKEN_OVER = ("another holds /controller", "it has read everything", "each broker has been told")


def run(*arguments: str) -> str:
    result = CliRunner().invoke(cli, ["bench", *arguments, "--format=json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize(
    ("arguments", "cases", "measures", "beside"),
    [
        (
            ("produce", "--beside=bare", "--batch-bytes=4096", "--partitions=2", "--producers=2", "--mib=8", *BRIEFLY),
            1,
            ("rate", "brokers", "clients"),
            ["bare"],
        ),
        (
            (
                "produce",
                "--security=none",
                "--security=token",
                "--security=tls",
                "--batch-bytes=65536",
                "--mib=8",
                *BRIEFLY,
            ),
            1,
            ("rate", "brokers", "clients"),
            ["token", "tls"],
        ),
        (
            ("produce", "--beside=bare", "--rate=100", "--partitions=2", "--seconds=0.3", "--apart", *BRIEFLY),
            1,
            WAITS,
            ["bare"],
        ),
        (
            (
                "produce",
                "--beside=nothing",
                "--rate=100",
                "--seconds=0.3",
                *BRIEFLY,
                "--meanwhile=catch-up",
                "--meanwhile=paced-catch-up",
                "--meanwhile=reassignment",
            ),
            3,
            (*WAITS, "beside it"),
            [],
        ),
        (
            (
                "consume",
                "--beside=bare",
                "--by=reader",
                "--by=flight",
                "--by=files",
                "--batch-bytes=65536",
                "--mib=8",
                *BRIEFLY,
            ),
            3,
            ("rate",),
            ["bare"],
        ),
        (
            (
                "failover",
                "--partitions=30",
                "--session-ms=3000",
                "--pages=2",
                "--loss=killed",
                "--loss=silent",
                *BRIEFLY,
            ),
            2,
            FOLLOWS,
            ["ours, 2 pages"],
        ),
        (
            ("failover", "--of=controller", "--partitions=30", "--session-ms=3000", *BRIEFLY),
            2,
            TAKEN_OVER,
            [],
        ),
        (
            (
                "failover",
                "--of=broker",
                "--of=controller",
                "--successor=restarted",
                "--partitions=30",
                "--write=once-led",
                "--security=none",
                "--security=token",
                "--rounds=1",
            ),
            2,
            ("each broker has been told", "all of them take rows again"),
            ["token"],
        ),
        (
            ("soak", "--minutes=0.1", "--kill-every=1", "--widen-every=1", "--sample-every=0.5"),
            11,
            ("median",),
            ["early"],
        ),
    ],
    ids=lambda value: " ".join(value[:3]) if isinstance(value, tuple) else "",
)
def test_each_measures_what_it_says_beside_a_limit(
    arguments: tuple[str, ...], cases: int, measures: tuple[str, ...], beside: list[str]
) -> None:
    found = msgspec.json.decode(run(*arguments), type=list[Row])
    assert len({row.what for row in found}) == cases
    of_interest = [row for row in found if row.measure in measures]
    assert {row.measure for row in of_interest} == set(measures)
    assert all(row.figure > 0 for row in of_interest), found
    for row in of_interest:
        assert [each.side for each in row.beside] == beside, row
        assert all(each.figure > 0 for each in row.beside), row


def test_all_measures_the_parts_that_are_named(tmp_path: Path) -> None:
    few = ("partitions=30", "session_ms=3000", "idle_s=0.3", "mirror_partitions=30", "mirror_writes=2")
    parts = ("idle", "takeover", "failover", "mirror", "mirror-growth")
    arguments = [*(f"--set={each}" for each in (*few, "mirror_commits=5")), *(f"--only={each}" for each in parts)]
    found = msgspec.json.decode(run("all", "--quick", f"--folder={tmp_path}", *arguments), type=Report)
    assert found.missing == []
    rows = {section.title: section.rows for section in found.sections}
    assert list(rows) == ["Idle", "Takeover", "Failover", "Mirror", "What the mirror grows to"]
    assert len({row.what for row in rows["Idle"]}) == 4, "three brokers and the controller"
    assert {row.measure for row in rows["Idle"]} == {
        "processor",
        "memory",
        "memory for each partition",
        "threads",
        "open files",
    }
    assert {row.measure for row in rows["Takeover"]} == set(TAKEN_OVER)
    assert len({row.what for row in rows["Failover"]}) == 2
    assert all(row.beside[0].side == "a plain append" for row in rows["Mirror"])
    assert {row.measure for row in rows["What the mirror grows to"]} == {"size", "files", "median"}
    assert json.loads((tmp_path / "figures.json").read_text())["missing"] == []


@pytest.fixture
def loop() -> Iterator[Bare]:
    with bare() as side:
        yield side


ROWS = Rows(row_bytes=5_000, batch_bytes=5_000, partitions=1)


def sizes(loop: Bare) -> list[int]:
    return [path.stat().st_size for path in sorted(loop._directory.iterdir())]


def test_the_bare_loop_acknowledges_what_all_three_have_written_and_gives_it_back(loop: Bare) -> None:
    loop.create("t", 1, WHOLE)
    with kept(loop, loop.sender("t", ROWS)) as program:
        (took_ns,) = program.ask("paced 1000 100")
        assert len(took_ns) == 100
        assert all(took_ns)
        assert len(set(sizes(loop))) == 1
        assert sizes(loop)[0] > 100 * 5_000
    for door in ("reader", "flight", "files"):
        with kept(loop, loop.consumer("t", ROWS, 100, door, looks=True)) as program:
            assert program.ask("0")[0][0] > 0
    pids = loop.pids
    loop.delete("t")
    assert loop.pids == ()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert sizes(loop) == []


def test_several_clients_of_the_bare_loop_are_each_told_what_is_theirs(loop: Bare) -> None:
    loop.create("t", 1, RECENT)
    with kept(loop, loop.sender("t", ROWS), times=3) as programs:
        assert [len(took_ns) for took_ns in programs.ask("paced 1000 200")] == [200] * 3
        assert len(set(sizes(loop))) == 1
        assert sizes(loop)[0] > 3 * 200 * 5_000


def test_the_bare_loop_keeps_what_it_wrote_last(loop: Bare) -> None:
    loop.create("t", 1, RECENT)
    rows = Rows(row_bytes=1 << 20, batch_bytes=1 << 20, partitions=1)
    with kept(loop, loop.sender("t", rows)) as program:
        program.ask(f"fast {2 * (RECENT_BYTES >> 20)}")
    assert all(size < RECENT_BYTES + RECEIVE_BYTES for size in sizes(loop))


def test_a_bare_loop_that_ends_is_told(loop: Bare) -> None:
    loop.create("t", 1, RECENT)
    with kept(loop, loop.sender("t", ROWS)) as program:
        program.ask("fast 1")
        loop.delete("t")
        with pytest.raises(ReplicationError, match="exit code 1"):
            program.ask("fast 1000")


def test_a_program_of_the_load_says_which_error_its_batches_got() -> None:
    with sr.LocalCluster.start(brokers=1, config={"batch.bytes.max": 1 << 10}) as cluster:
        cluster.admin.create_topic("rows", sending.SCHEMA, replication_factor=1)
        where: dict[str, Any] = {"bootstrap": cluster.bootstrap, "security": {}, "topic": "rows", "partitions": 1}
        with sending.sending(sending.Work(**where, row_bytes=4 << 10, rows=1, joins=False)) as program:
            for line in ("fast 1", "paced 10 1", "since 0 0"):
                with pytest.raises(BatchTooLarge):
                    program.asked(line.split())


def test_columns_measures_what_crosses_the_wire_and_both_ways_to_read_all() -> None:
    arguments = ("--batch-bytes=16384", "--partitions=2", "--mib=2", *BRIEFLY)
    found = msgspec.json.decode(run("columns", *arguments), type=list[Row])
    sides = {row.what.partition(", ")[0]: [each.side for each in row.beside] for row in found}
    assert sides == {
        "1 of 20 columns": ["all columns"],
        "5 of 20 columns": ["all columns"],
        "1 of 20 columns as a table": ["all columns"],
        "all 20 columns": ["Reader"],
        "all 20 columns as a table": ["Reader"],
    }
    assert {row.measure for row in found} == {"rows", "received", "brokers", "client"}
    received = {row.what.partition(", ")[0]: row for row in found if row.measure == "received"}
    assert 160 < received["all 20 columns"].figure < 180
    assert 3.6 < (received["5 of 20 columns"].beside[0].ratio or 0) < 4.4
    assert 8 < received["1 of 20 columns"].figure < 16
    assert all(row.figure > 0 for row in found if row.measure == "rows")


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("part", "sides"),
    [
        ("files", {"8 MiB of 20 columns": ("ours", ["delta-rs"])}),
        ("commits", {"70 commits": ("the last", ["the first"])}),
        ("topics", {"4 topics with 8 MiB": ("ours", [])}),
        (
            "produce",
            {
                "rows of 1 KiB, batches of 16 KiB, 3 partitions, a flush every 1 s": ("with a table", ["without"]),
                "50 rows of 1 KiB a second, a flush every 1 s": ("with a table", ["without"]),
            },
        ),
    ],
)
def test_tables_measures_what_topics_cost_that_are_tables(part: str, sides: dict[str, tuple[str, list[str]]]) -> None:
    sizes = ("--batch-bytes=16384", "--mib=8", "--rate=50", "--commits=70", "--topics=4")
    found = msgspec.json.decode(run("tables", f"--of={part}", *sizes, *BRIEFLY), type=list[Row])
    assert {row.what: (row.side, [each.side for each in row.beside]) for row in found} == sides
    assert all(row.figure > 0 for row in found), found
    memory = [row.figure for row in found if row.measure == "largest writer"]
    assert all(50 < each < 1_100 for each in memory), "MB, of a process that may have 1 GiB"

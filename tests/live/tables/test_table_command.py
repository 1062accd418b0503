"""`spark-replication table` as a person types it: how far tables are, who writes, verifies and tidies them by hand."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from deltalake import DeltaTable

import spark_replication as sr
from tests.live.cluster.test_command_line import Shell
from tests.live.tables.written import SCHEMA, produce, stored
from tests.waiting import eventually

pytestmark = [pytest.mark.live, pytest.mark.trust, pytest.mark.timeout(240)]

CONFIG = {"page.enabled": False, "min.insync.replicas": 1, "table.writer.enabled": False}
STATUS = {
    "topic",
    "partition",
    "table_start",
    "table_end",
    "log_start",
    "log_end",
    "rows_behind",
    "seconds_behind",
    "bytes_behind",
    "epoch",
    "trouble",
}
FAULT = {"topic", "partition", "what", "start", "end"}
WRITES_S = 60.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sr.LocalCluster]:
    directory = tmp_path_factory.mktemp("cluster")
    with sr.LocalCluster.start(brokers=1, directory=directory, config=CONFIG) as cluster:
        yield cluster


@pytest.fixture
def shell(cluster: sr.LocalCluster) -> Shell:
    return Shell(cluster.bootstrap)


@pytest.fixture
def topic(cluster: sr.LocalCluster, request: pytest.FixtureRequest) -> str:
    name = str(request.node.name)
    cluster.admin.create_topic(
        name, SCHEMA, partitions=2, replication_factor=1, config={"table": True, "table.flush.ms": 100}
    )
    cluster.wait_healthy()
    return name


def test_how_far_a_table_is_is_seen_and_written_by_hand(cluster: sr.LocalCluster, shell: Shell, topic: str) -> None:
    produce(cluster, 0, 30, topic=topic)
    before = shell.rows("table", "status", topic, has=STATUS)
    told = [(each["partition"], each["table_end"], each["log_end"], each["rows_behind"]) for each in before]
    assert told == [(0, None, 30, 30), (1, None, 0, 0)]
    assert before[0]["bytes_behind"] > 0
    assert [0 < each["seconds_behind"] < WRITES_S for each in before] == [True, False]
    assert (before[0]["epoch"], before[0]["trouble"]) == (-1, "")

    assert "30 rows in 1 commits to 1 tables" in shell.run("table", "write", "--once", topic).stderr
    assert "0 rows in 0 commits to 1 tables" in shell.run("table", "write", "--once", topic).stderr
    produce(cluster, 30, 10, topic=topic)
    after = shell.rows("table", "status", topic, has=STATUS)
    told = [(each["partition"], each["table_end"], each["log_end"], each["rows_behind"]) for each in after]
    assert told == [(0, 30, 40, 10), (1, None, 0, 0)]
    assert after[0]["epoch"] == 0
    assert after[0]["bytes_behind"] < before[0]["bytes_behind"]
    assert "table end" in shell.run("table", "status", topic).stdout
    assert topic in {each["topic"] for each in shell.rows("table", "status", has=STATUS)}


def test_one_that_writes_until_it_is_stopped(cluster: sr.LocalCluster, shell: Shell, topic: str) -> None:
    with writing(shell, topic, "30 rows in "):
        produce(cluster, 0, 10, topic=topic)
        eventually(lambda: len(offsets(cluster, topic)) == 10, "it writes", WRITES_S)
        produce(cluster, 10, 20, topic=topic, partition=1)
        eventually(lambda: len(offsets(cluster, topic)) == 30, "it goes on", WRITES_S)


def test_what_is_wrong_with_a_table_is_told_and_fails(cluster: sr.LocalCluster, shell: Shell, topic: str) -> None:
    for first in (0, 10, 20):  # each is a batch of its own
        produce(cluster, first, 10, topic=topic)
    assert "there is no table yet" in shell.run("table", "verify", topic).stderr
    shell.run("table", "write", "--once", topic)
    assert f"{topic}: each offset is there once, as the log has it" in shell.run("table", "verify", topic).stderr
    table = DeltaTable(str(cluster.directory / "tables" / topic))
    table.update({"number": "number + 1"}, predicate="_offset = 12")
    (told,) = shell.rows("table", "verify", topic, has=FAULT, code=1)
    assert told == {"topic": topic, "partition": 0, "what": "not the log's", "start": 10, "end": 20}
    table.update({"number": "number - 1"}, predicate="_offset = 12")
    assert shell.rows("table", "verify", topic, has=FAULT) == []
    table.delete("_offset = 5")
    wrong = shell.rows("table", "verify", topic, has=FAULT, code=1)
    assert [(each["what"], each["start"], each["end"]) for each in wrong] == [
        ("missing", 5, 6),
        ("not the log's", 0, 10),
    ]


def test_a_table_gives_up_its_oldest_rows_and_goes_on(cluster: sr.LocalCluster, shell: Shell, topic: str) -> None:
    def places() -> list[tuple[int | None, int | None]]:
        return [(each["table_start"], each["table_end"]) for each in shell.rows("table", "status", topic, has=STATUS)]

    assert places() == [(None, None), (None, None)]
    produce(cluster, 0, 10, topic=topic)
    produce(cluster, 0, 7, topic=topic, partition=1)
    shell.run("table", "write", "--once", topic)
    shell.run("table", "compact", topic)
    assert places() == [(0, 10), (0, 7)], "a table keeps all rows, unless it is told"
    shell.run("topics", "configure", topic, "table.retention.ms=0")
    shell.run("table", "compact", topic)
    assert (places(), offsets(cluster, topic)) == ([(10, 10), (7, 7)], [])
    produce(cluster, 10, 5, topic=topic)
    shell.run("table", "write", "--once", topic)
    assert (places(), offsets(cluster, topic)) == ([(10, 15), (7, 7)], [*range(10, 15)])
    assert f"{topic}: each offset is there once, as the log has it" in shell.run("table", "verify", topic).stderr


def test_small_files_are_joined_by_hand(cluster: sr.LocalCluster, shell: Shell, topic: str) -> None:
    with writing(shell, topic, "17 rows in 17 commits to 1 tables"):
        for number in range(17):
            produce(cluster, number, 1, topic=topic)
            eventually(lambda: len(offsets(cluster, topic)) > number, "it is in the table", WRITES_S)  # noqa: B023
    uri = str(cluster.directory / "tables" / topic)
    assert len(DeltaTable(uri).file_uris()) == 17
    assert shell.run("table", "compact", topic).stdout == ""
    assert len(DeltaTable(uri).file_uris()) == 1
    assert (Path(uri) / "_delta_log" / "_last_checkpoint").exists()
    assert offsets(cluster, topic) == [*range(17)]
    assert shell.rows("table", "verify", topic, has=FAULT) == []


@pytest.mark.parametrize("command", [("status",), ("write", "--once"), ("verify",), ("compact",)])
def test_what_is_no_table_is_refused(cluster: sr.LocalCluster, shell: Shell, command: tuple[str, ...]) -> None:
    name = f"no-table-{command[0]}"
    cluster.admin.create_topic(name, SCHEMA, partitions=1, replication_factor=1)
    refused = shell.run("table", *command, name, code=1).stderr
    assert f"topic {name} is no table: spark-replication topics configure {name} table=true" in refused
    assert "there is no topic nobodys" in shell.run("table", *command, "nobodys", code=1).stderr


def offsets(cluster: sr.LocalCluster, topic: str) -> list[int]:
    if not DeltaTable.is_deltatable(str(cluster.directory / "tables" / topic)):
        return []
    return [offset for (offset,) in stored(cluster.directory, "_offset", topic=topic)]


@contextmanager
def writing(shell: Shell, topic: str, says: str) -> Iterator[None]:
    """By hand, until the end, when it says so."""
    writer = shell.starts("table", "write", topic)
    try:
        yield
    finally:
        writer.send_signal(signal.SIGINT)
        _, told = writer.communicate(timeout=WRITES_S)
        assert writer.returncode == 0, told
    assert says in told

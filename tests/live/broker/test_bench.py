"""`spark-replication bench`: what it prints of real brokers, in short runs; not how fast they are."""

from __future__ import annotations

import threading
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from click.testing import CliRunner

import spark_replication as sr
from spark_replication.admin.bench import pacing as paced
from spark_replication.admin.bench import producing
from spark_replication.admin.bench.bare import RECEIVE_BYTES, RECENT_BYTES, BareLoop
from spark_replication.admin.bench.bare_flight import BareFlight
from spark_replication.admin.bench.load import AnswerReader, rate
from spark_replication.admin.bench.pacing import pacing
from spark_replication.admin.bench.producing import SCHEMA, sending
from spark_replication.admin.cli.main import cli
from spark_replication.errors import BatchTooLarge, BrokerNotAvailable, NotLeader
from tests.waiting import eventually

pytestmark = [pytest.mark.trust, pytest.mark.live]

BRIEFLY = "--warm-up-s=0.1"


@pytest.mark.parametrize(
    ("arguments", "rows", "positive"),
    [
        (
            ("replicate", "--sizes=4096", "--partitions=1", "--partitions=3", "--seconds=0.3", "--rounds=1"),
            2,
            ("mb_per_s", "cpu_s_per_gb", "p50_ms", "p99_ms", "bare_mb_per_s", "bare_p50_ms", "of_one_partition"),
        ),
        (
            (
                "produce",
                "--no-kafka",
                "--batch-bytes=4096",
                "--partitions=2",
                "--producers=2",
                "--mib=8",
                "--rounds=2",
                BRIEFLY,
            ),
            1,
            ("mb_per_s", "broker_cpu_s_per_gb", "client_cpu_s_per_gb"),
        ),
        (
            ("consume", "--no-kafka", "--batch-bytes=4096", "--partitions=2", "--mib=8", "--rounds=2", BRIEFLY),
            1,
            ("mb_per_s", "cpu_s_per_gb"),
        ),
        (
            ("ack", "--no-kafka", "--rows-per-s=100", "--partitions=2", "--seconds=0.3", "--rounds=2", BRIEFLY),
            1,
            ("p50_ms", "p99_ms", "p999_ms", "max_ms"),
        ),
        (
            (
                "ack",
                "--no-kafka",
                "--rows-per-s=100",
                "--seconds=0.3",
                "--rounds=1",
                BRIEFLY,
                "--meanwhile=catch-up",
                "--meanwhile=paced-catch-up",
                "--meanwhile=reassignment",
            ),
            3,
            ("p50_ms", "meanwhile_mb_per_s"),
        ),
        (
            ("outage", "--no-kafka", "--partitions=30", "--rounds=2"),
            1,
            ("led", "elected_ms", "half_written_ms", "written_ms"),
        ),
        (("latency", "--seconds=0.3", "--batches-per-s=100"), 1, ("p50_ms", "p99_ms", "max_ms", "bare_p50_ms")),
        (
            ("read", "--sizes=65536", "--mib=8", "--rounds=1"),
            1,
            ("mb", "mb_per_s", "flight_mb_per_s", "flight_ratio", "local_mb_per_s", "mapped_mb_per_s", "local_ratio"),
        ),
        (
            ("failover", "--partitions=30", "--session-ms=3000", "--pages=2"),
            4,
            (
                "led",
                "changed",
                "gone_ms",
                "elected_ms",
                "active_ms",
                "shown_ms",
                "written_ms",
                "stored_ms",
                "sequential_ms",
                "rejoined_s",
            ),
        ),
        (("takeover", "--partitions=30", "--session-ms=3000"), 2, ("won_ms", "loaded_ms", "told_ms")),
        (
            ("mirror", "--partitions=30", "--changed=1", "--changed=30", "--writes=2"),
            2,
            ("p50_ms", "p99_ms", "append_ms"),
        ),
        (("mirror", "--partitions=30", "--commits=5"), 1, ("mb", "files", "first_ms", "last_ms", "ratio")),
        (
            ("soak", "--minutes=0.1", "--kill-every=1", "--widen-every=1", "--sample-every=0.5"),
            11,
            ("early", "late"),
        ),
        (("idle", "--partitions=30", "--seconds=0.3"), 4, ("memory_mb", "kb_per_partition", "threads", "open_files")),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_each_measures_brokers_beside_a_limit(arguments: tuple[str, ...], rows: int, positive: tuple[str, ...]) -> None:
    result = CliRunner().invoke(cli, ["bench", *arguments, "--format=json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    found = msgspec.json.decode(result.stdout, type=list[dict[str, float | str | None]])
    assert len(found) == rows
    for figures in found:
        values = [figures[name] for name in positive]
        assert all(isinstance(value, (int, float)) and value > 0 for value in values), found


def test_the_bare_loop_acknowledges_what_all_three_have_written() -> None:
    with BareLoop(b"x" * 5_000) as bare:
        answers = AnswerReader(1)
        bare.begin(answers)
        for _ in range(100):
            answers.sent(0, 0.0)
            bare.send(0)
        answers.wait_below(1)
        assert answers.answered == 100
        sizes = {path.name: path.stat().st_size for path in bare.directory.iterdir()}
        assert sizes == dict.fromkeys(("leader", "follower-1", "follower-2"), 500_000)
        directory = bare.directory
    assert not directory.exists()


def test_the_bare_loop_keeps_what_it_wrote_last() -> None:
    with BareLoop(bytes(1 << 20)) as bare:
        answers = AnswerReader(1)
        bare.begin(answers)
        for _ in range(2 * (RECENT_BYTES >> 20)):
            answers.sent(0, 0.0)
            bare.send(0)
        answers.wait_below(1)
        assert answers.answered == 2 * (RECENT_BYTES >> 20)
        assert all(path.stat().st_size < RECENT_BYTES + RECEIVE_BYTES for path in bare.directory.iterdir())


def test_a_measurement_ends_with_the_first_refusal() -> None:
    class Refusing:
        streams = 1
        batch_bytes = 1
        pids: tuple[int, ...] = ()

        def begin(self, answers: AnswerReader) -> None:
            self.answers = answers

        def send(self, stream: int) -> None:
            self.answers.failed(NotLeader("it moved: retry"))
            self.answers.failed(BrokerNotAvailable("and then it went away"))

        def close(self) -> None: ...

    with pytest.raises(NotLeader):
        rate(Refusing(), 0.1)


def test_what_is_acknowledged_after_the_measured_time_counts_with_the_time_it_took() -> None:
    class Late:
        streams = 1
        batch_bytes = 1_000
        pids: tuple[int, ...] = ()

        def begin(self, answers: AnswerReader) -> None:
            self.answers = answers

        def send(self, stream: int) -> None:
            threading.Timer(0.1, self.answers.came, (stream, 1)).start()

        def close(self) -> None: ...

    found = rate(Late(), 0.001)
    assert 0 < found.mb_per_s < 1, "a window of 2,000 batches is 2 MB"
    assert found.cpu_s_per_gb > 0


def test_flight_alone_gives_a_batch_as_often_as_asked_and_its_process_ends_with_it() -> None:
    batch = pa.record_batch({"number": pa.array([1, 2, 3])})
    with BareFlight(batch) as bare:
        assert [chunk.data.equals(batch) for chunk in bare.batches(4)] == [True] * 4
    assert bare.process.returncode == 0


def test_the_processes_of_a_bare_loop_end_with_it() -> None:
    with BareLoop(b"x") as bare:
        processes = bare.processes
        assert all(process.poll() is None for process in processes)
    eventually(lambda: all(process.poll() == 0 for process in processes), "they end by themselves")


def test_a_program_of_the_load_says_which_error_its_batches_got() -> None:
    with sr.LocalCluster.start(brokers=1, config={"batch.bytes.max": 1 << 10}) as cluster:
        cluster.admin.create_topic("rows", SCHEMA, replication_factor=1)
        where: dict[str, Any] = {"bootstrap": cluster.bootstrap, "topic": "rows", "partitions": 1}
        with sending(producing.Work(**where, row_bytes=4 << 10, rows=1)) as program, pytest.raises(BatchTooLarge):
            program.send(1)
        with pacing(paced.Work(**where, row_bytes=4 << 10)) as rows, pytest.raises(BatchTooLarge):
            rows.send(10, 1)

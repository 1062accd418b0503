"""The report of `bench all`: its files, and what is told of a measurement that fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from spark_replication.admin.bench import ack, everything, replicate
from spark_replication.admin.bench.plots import draw
from spark_replication.admin.bench.report import FIGURES, TABLE, Machine, Report, Row, Section, table, this_machine
from spark_replication.admin.bench.rounds import Rounds
from spark_replication.admin.bench.side import Paced
from spark_replication.errors import RequestTimedOut, StartFailed

MACHINE = Machine(
    date="2026-11-26 01:00 UTC", processor="a processor", processors=2, memory_gb=16.8, kernel="Linux 6", versions={}
)
COMPARED = Section(
    title="Produce",
    peer="Kafka 4.3.1",
    conditions="Three brokers.",
    rows=[
        Row(what="small", unit="MB/s", ours=1_234.5, theirs=61.37, ratio=20.1, least_ratio=18.0, most_ratio=22.34),
        Row(what="small, median", unit="ms", ours=0.912, theirs=1.8, ratio=1.97),
        Row(what="large", unit="MB/s", ours=10.0),
    ],
)
ALONE = Section(
    title="Idle", peer=None, conditions="Nobody writes.", rows=[Row(what="a broker", unit="MB", ours=240.0)]
)


def test_a_table_tells_three_digits_and_the_range_of_the_rounds() -> None:
    text = table(Report(machine=MACHINE, rounds="Medians of five.", sections=[COMPARED, ALONE], missing=[]))
    assert "| | ours | Kafka 4.3.1 | ratio |" in text
    assert "| small | 1,234 MB/s | 61.4 | 20.1 (18 to 22.3) |" in text
    assert "| small, median | 0.912 ms | 1.8 | 1.97 |" in text
    assert "| large | 10 MB/s |  |  |" in text
    assert "| | ours |\n| --- | --- |\n| a broker | 240 MB |" in text
    assert "Linux 6; . Medians of five." in text
    assert "Not measured" not in text


def test_it_says_where_it_was_measured() -> None:
    text = table(
        Report(machine=this_machine(Kafka="4.3.1"), rounds="", sections=[], missing=["Kafka: it does not run"])
    )
    assert "Kafka 4.3.1" in text
    assert "pyarrow " in text
    assert "Not measured:\n- Kafka: it does not run" in text


def test_each_comparison_is_drawn(tmp_path: Path) -> None:
    drawn = draw([COMPARED, ALONE], tmp_path)
    assert [path.name for path in drawn] == ["produce.png"]
    assert drawn[0].read_bytes().startswith(b"\x89PNG")


def test_a_measurement_that_fails_keeps_its_first_figures_and_its_place_and_ends_no_other(tmp_path: Path) -> None:
    def fails() -> Iterator[Row]:
        yield Row(what="one", unit="ms", ours=1.0)
        raise RequestTimedOut("it did not end")

    said: list[str] = []
    running = everything.Running(MACHINE, Rounds(3, 5, within_s=60.0), tmp_path / "new", said.append)
    running.measure("Idle", "Nobody writes.", None, ALONE.rows)
    running.measure("Outage", "kill -9", None, fails())
    report = msgspec.json.decode((tmp_path / "new" / FIGURES).read_bytes(), type=Report)
    assert report == running.report
    assert [section.title for section in report.sections] == ["Outage", "Idle"]
    assert report.missing == ["Outage: REQUEST_TIMED_OUT: it did not end"]
    assert (tmp_path / "new" / TABLE).read_text() == table(report)
    assert said == ["Idle:", "Outage:"]


def test_what_measurements_need_and_cannot_have_is_told_and_ends_no_other(tmp_path: Path) -> None:
    running = everything.Running(MACHINE, Rounds(3, 5, within_s=60.0), tmp_path, lambda _: None)

    def start() -> None:
        raise StartFailed("no port is free")

    with running.required("a cluster"):
        start()
    assert running.report.missing == ["a cluster: START_FAILED: no port is free"]


def test_times_and_rates_are_told_beside_kafkas(monkeypatch: pytest.MonkeyPatch) -> None:
    paced = Paced(row_bytes=1 << 10, rows_per_s=2_000, partitions=1)
    found = ack.Figures(
        **msgspec.structs.asdict(paced),
        p50_ms=1.0,
        p99_ms=2.0,
        p999_ms=4.0,
        max_ms=9.0,
        kafka_p50_ms=2.0,
        kafka_p99_ms=5.0,
        kafka_p999_ms=6.0,
        kafka_max_ms=7.0,
        p50_ratio=2.0,
        p99_ratio=2.5,
        p999_ratio=1.5,
    )
    monkeypatch.setattr(ack, "ack", lambda *_, **__: iter([found]))
    (told,) = [measured for title, _, measured in everything.COMPARED if title == "Acknowledge"]
    assert list(told([], everything.QUICK, lambda _: None)) == [
        Row(what="2,000 rows of 1 KiB a second, median", unit="ms", ours=1.0, theirs=2.0, ratio=2.0),
        Row(what="2,000 rows of 1 KiB a second, 99 %", unit="ms", ours=2.0, theirs=5.0, ratio=2.5),
        Row(what="2,000 rows of 1 KiB a second, 99.9 %", unit="ms", ours=4.0, theirs=6.0, ratio=1.5),
    ]


def test_what_goes_on_beside_acknowledgements_is_told_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Paced] = []

    def acks(_sides: object, cases: list[Paced], **_: object) -> Iterator[ack.Figures]:
        asked.extend(cases)
        for case in cases:
            yield ack.Figures(
                **msgspec.structs.asdict(case), p50_ms=1.0, p99_ms=2.0, p999_ms=4.0, max_ms=9.0, meanwhile_mb_per_s=50.0
            )

    monkeypatch.setattr(ack, "ack", acks)
    (told,) = [measured for title, _, measured in everything.COMPARED if title == "Acknowledge while others work"]
    rows = list(told([], everything.FULL, lambda _: None))
    assert [case.meanwhile for case in asked] == ["catch-up", "paced-catch-up", "reassignment"]
    assert rows[3] == Row(what="catch-up beside them", unit="MB/s", ours=50.0)
    assert rows[8].what == "reassignment, 200 rows of 1 KiB a second, median"
    assert list(told([], everything.QUICK, lambda _: None)) == [], "there is no time for it"


def test_a_measurement_beside_a_limit_tells_which_part_of_it_was_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    found = replicate.Figures(
        batch_bytes=1 << 20,
        partitions=16,
        mb_per_s=300.0,
        cpu_s_per_gb=5.0,
        p50_ms=1.0,
        p99_ms=2.0,
        bare_mb_per_s=1_000.0,
        bare_cpu_s_per_gb=2.0,
        bare_p50_ms=0.25,
        bare_p99_ms=0.5,
        ratio=0.3,
    )
    monkeypatch.setattr(replicate, "replicate", lambda *_, **__: iter([found]))
    (told,) = [measured for title, _, _, measured in everything.ALONE if title == "Replicate"]
    assert list(told(everything.QUICK, lambda _: None)) == [
        Row(what="batches of 1 MiB, 16 partitions", unit="MB/s", ours=300.0, theirs=1_000.0, ratio=0.3),
        Row(what="batches of 1 MiB, 16 partitions, median", unit="ms", ours=1.0, theirs=0.25, ratio=0.25),
    ]

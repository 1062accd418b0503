"""The report of `bench all`: its files, its parts, and what is told of a measurement that fails."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from spark_replication.admin.bench import everything
from spark_replication.admin.bench.everything import FULL, PARTS, QUICK, Part, Running, settable, with_values
from spark_replication.admin.bench.harness import Beside, Rounds, Row
from spark_replication.admin.bench.plots import draw
from spark_replication.admin.bench.report import (
    FIGURES,
    TABLE,
    Machine,
    Report,
    Section,
    listing,
    table,
    this_machine,
)
from spark_replication.errors import InvalidRequest, RequestTimedOut, StartFailed

MACHINE = Machine(
    date="2026-11-26 01:00 UTC", processor="a processor", processors=2, memory_gb=16.8, kernel="Linux 6", versions={}
)


def row(what: str, measure: str, unit: str, figure: float, *beside: Beside, side: str = "ours") -> Row:
    return Row(what=what, measure=measure, unit=unit, side=side, figure=figure, beside=beside)


COMPARED = Section(
    title="Produce",
    conditions="Three brokers.",
    rows=[
        row(
            "small",
            "rate",
            "MB/s",
            1_234.5,
            Beside(side="Kafka", figure=61.37, ratio=20.1, least_ratio=18.0, most_ratio=22.34),
            Beside(side="bare", figure=5_000.0, ratio=0.25, least_ratio=0.25, most_ratio=0.25),
        ),
        row("small", "median", "ms", 0.912, Beside(side="Kafka", figure=1.8, ratio=1.97)),
        row("small", "files", "", -120.4, Beside(side="bare", figure=3.0)),
    ],
)
ALONE = Section(title="Idle", conditions="Nobody writes.", rows=[row("a broker", "memory", "MB", 240.0)])


def test_a_table_tells_three_digits_and_the_range_of_the_rounds() -> None:
    text = table(Report(machine=MACHINE, rounds="Medians of five.", sections=[COMPARED, ALONE], missing=[]))
    assert "|  | ours | Kafka | ratio | bare | ratio |\n| --- | --- | --- | --- | --- | --- |" in text
    assert "| small: rate | 1,234 MB/s | 61.4 | 20.1 (18 to 22.3) | 5,000 | 0.25 |" in text
    assert "| small: median | 0.912 ms | 1.8 | 1.97 |  |  |" in text
    assert "| small: files | -120 |  |  | 3 |  |" in text
    assert "|  | ours |\n| --- | --- |\n| a broker: memory | 240 MB |" in text
    assert "Linux 6; . Medians of five." in text
    assert "Not measured" not in text


def test_rows_of_other_sides_have_columns_of_their_own() -> None:
    columns, lines = listing([*ALONE.rows, row("commits", "median", "ms", 2.0, side="the last 100")])
    assert columns == ["", "ours", "the last 100"]
    assert lines == [["a broker: memory", "240 MB", ""], ["commits: median", "", "2 ms"]]


def test_it_says_where_it_was_measured() -> None:
    text = table(
        Report(machine=this_machine(Kafka="4.3.1"), rounds="", sections=[], missing=["Kafka: it does not run"])
    )
    assert "Kafka 4.3.1" in text
    assert "pyarrow " in text
    assert "Not measured:\n- Kafka: it does not run" in text


@pytest.mark.slow
def test_each_comparison_is_drawn(tmp_path: Path) -> None:
    drawn = draw([COMPARED, ALONE], tmp_path)
    assert [path.name for path in drawn] == ["produce.png"]
    assert drawn[0].read_bytes().startswith(b"\x89PNG")


@pytest.fixture
def running(tmp_path: Path) -> Running:
    return Running(QUICK, MACHINE, tmp_path / "new", lambda _: None)


@contextmanager
def nobody(_: Running, *, with_kafka: bool) -> Iterator[Sequence[Any]]:
    yield ()


def test_a_measurement_that_fails_keeps_its_first_figures_and_its_place_and_ends_no_other(
    running: Running, tmp_path: Path
) -> None:
    def fails(_: Running, sides: Sequence[Any]) -> Iterator[Row]:
        yield row("one", "median", "ms", 1.0)
        raise RequestTimedOut("it did not end")

    running.measure(Part("Idle", "Nobody writes.", nobody, lambda _, sides: ALONE.rows), ())
    running.measure(Part("Outage", "kill -9", nobody, fails), ())
    report = msgspec.json.decode((tmp_path / "new" / FIGURES).read_bytes(), type=Report)
    assert report == running.report
    assert [section.title for section in report.sections] == ["Outage", "Idle"]
    assert report.missing == ["Outage: REQUEST_TIMED_OUT: it did not end"]
    assert (tmp_path / "new" / TABLE).read_text() == table(report)


def test_what_measurements_need_and_cannot_have_is_told_and_ends_no_other(running: Running) -> None:
    def start() -> None:
        raise StartFailed("no port is free")

    with running.required("a cluster"):
        start()
    assert running.report.missing == ["a cluster: START_FAILED: no port is free"]


def test_usual_parts_are_measured_or_those_that_are_named_each_among_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[str] = []

    @contextmanager
    def clusters(_: Running, *, with_kafka: bool) -> Iterator[Sequence[Any]]:
        began.append(f"clusters, Kafka {with_kafka}")
        yield ["a"]

    def part(name: str, among: everything.Among, *, is_usual: bool = True) -> Part:
        def found(_: Running, sides: Sequence[Any]) -> Iterator[Row]:
            began.append(name)
            yield row(name, "sides", "", len(sides))

        return Part(name, "", among, found, is_usual=is_usual)

    parts = {"a": part("a", clusters), "b": part("b", nobody), "c": part("c", clusters, is_usual=False)}
    monkeypatch.setattr(everything, "PARTS", parts)
    monkeypatch.setattr(everything, "_alone", nobody)
    monkeypatch.setattr(everything, "_many", clusters)
    found = everything.everything(QUICK, tmp_path, lambda _: None, with_kafka=False)
    assert began == ["b", "clusters, Kafka False", "a"]
    assert [(section.title, section.rows[0].figure) for section in found.sections] == [("a", 1.0), ("b", 0.0)]
    began.clear()
    everything.everything(QUICK, tmp_path, lambda _: None, only=["c"], with_kafka=False)
    assert began == ["clusters, Kafka False", "c"]


def test_a_plan_is_as_large_as_one_says() -> None:
    assert with_values(FULL, {}) == FULL
    plan = with_values(FULL, {"partitions": "30", "idle_s": "0.3", "spark_master": "local[1]"})
    assert (plan.partitions, plan.idle_s, plan.spark_master) == (30, 0.3, "local[1]")
    with pytest.raises(InvalidRequest, match="a plan has no partition: it has warm_up_s, "):
        with_values(FULL, {"partition": "30"})
    with pytest.raises(InvalidRequest, match="partitions=many: "):
        with_values(FULL, {"partitions": "many"})
    assert "rounds" not in settable()


def test_parts_are_told_apart_and_a_quick_run_leaves_out_what_takes_long() -> None:
    assert len({part.title for part in PARTS.values()}) == len(PARTS)
    assert QUICK.rounds < FULL.rounds == Rounds(3, 5, within_s=30.0)
    assert (QUICK.meanwhile, FULL.meanwhile) == ((), ("catch-up", "paced-catch-up", "reassignment"))
